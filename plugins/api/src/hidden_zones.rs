//! Zones that are not printed, because their words contain values of environment variables.

use std::sync::Arc;

use corefile::Word;
use wire::Name;

use crate::args::zones_or;

/// Zones of a directive with words that contain the value of an environment variable, which may be
/// a secret; each zone has its word as written in the Corefile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HiddenZones(Vec<(Name, Arc<str>)>);

impl HiddenZones {
    /// Collects the hidden zones of these words; a word that is not a zone is ignored.
    pub fn of(words: &[Word]) -> Self {
        let zones = |word: &Word| zones_or(std::slice::from_ref(word), &[]).unwrap_or_default();
        let hidden = words.iter().filter(|word| word.is_private()).flat_map(|word| {
            let shown: Arc<str> = word.shown().into();
            zones(word).into_iter().map(move |zone| (zone, shown.clone()))
        });
        Self(hidden.collect())
    }

    /// Whether there are no hidden zones.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the text of a zone for messages, metrics and status: as written if the zone is
    /// hidden.
    pub fn text(&self, zone: &Name) -> String {
        self.get(zone).map_or_else(|| zone.to_string(), ToString::to_string)
    }

    /// Returns the word of a zone as written, if the zone is hidden.
    pub fn get(&self, zone: &Name) -> Option<&Arc<str>> {
        self.0.iter().find(|(hidden, _)| hidden == zone).map(|(_, shown)| shown)
    }
}
