//! Reads rendered texts as records, and shows them in messages without values of variables.

use plugin::failure::beginning;

use super::{Record, TemplateSpec};

impl TemplateSpec {
    /// Reads the one record of a rendered text.
    ///
    /// # Errors
    /// The problem, with the beginning of the text; for a private template of the text as written.
    pub(super) fn read_record(&self, record: &Record, text: &str) -> Result<zonetext::Record, String> {
        zonetext::record(text).map_err(|error| {
            let shown = beginning(self.shown(record, text));
            match self.is_private {
                true => format!("{shown:?} makes no record; {NOT_SHOWN}"),
                false => format!("{shown:?} is not a record: {error}"),
            }
        })
    }

    /// A rendered text for messages.
    pub(super) fn shown(&self, record: &Record, rendered: &str) -> String {
        if self.is_private { record.text.clone() } else { rendered.to_owned() }
    }
}

/// The end of a message about a template with the value of an environment variable.
pub(super) const NOT_SHOWN: &str = "values of variables are not shown";
