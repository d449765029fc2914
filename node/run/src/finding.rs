//! One line of `node status`: text and, for a problem, JSON with the remedy. Its parts are escaped,
//! since they may be another program's text.

use std::fmt::{self, Display, Formatter};

use node::escaped;
use serde_json::{Value, json};

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// The label at its start.
    about: &'static str,
    what: String,
    mend: Option<String>,
    is_wrong: bool,
}

impl Finding {
    /// A fact that is no problem.
    pub(super) fn fact(about: &'static str, what: impl Into<String>) -> Self {
        Self { about, what: escaped(&what.into()), mend: None, is_wrong: false }
    }

    /// A problem and its remedy.
    pub(super) fn wrong(about: &'static str, what: impl Into<String>, mend: &str) -> Self {
        Self { about, what: escaped(&what.into()), mend: Some(escaped(mend)), is_wrong: true }
    }

    /// An error whose text after the first semicolon is the remedy, unless another line has it.
    pub(super) fn error(about: &'static str, sentence: &str) -> Self {
        let (what, mend) = match sentence.split_once("; ") {
            Some((what, mend)) => (what, Some(escaped(mend))),
            None => (sentence, None),
        };
        Self { about, what: escaped(what), mend, is_wrong: true }
    }

    /// A note: a problem if it has a remedy.
    pub(super) fn note(sentence: &str) -> Self {
        let line = Self::error(NOTE, sentence);
        Self { is_wrong: line.mend.is_some(), ..line }
    }

    /// Whether it is a note.
    pub(super) fn is_note(&self) -> bool {
        self.about == NOTE
    }

    /// The problem as JSON.
    pub(super) fn json(&self) -> Option<Value> {
        // Double spaces are for the text form only.
        let what = self.what.replace("  ", " ");
        self.is_wrong.then(|| json!({ "about": self.about, "what": what, "mend": self.mend }))
    }
}

impl Display for Finding {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { about, what, mend, .. } = self;
        write!(out, "{about:<10}{what}")?;
        if let Some(mend) = mend {
            write!(out, "; {mend}")?;
        }
        writeln!(out)
    }
}

/// The label of a note.
const NOTE: &str = "note";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_agree() {
        for (line, words, wrong) in [
            (Finding::fact("rules", "in place"), "rules     in place\n", None),
            (
                Finding::wrong("rules", "none", "put them there"),
                "rules     none; put them there\n",
                Some(("none", Some("put them there"))),
            ),
            (
                Finding::error("address", "192.0.2.1  on lo, does not answer"),
                "address   192.0.2.1  on lo, does not answer\n",
                Some(("192.0.2.1 on lo, does not answer", None)),
            ),
            (
                Finding::error("server", "it hangs; stop it; start it"),
                "server    it hangs; stop it; start it\n",
                Some(("it hangs", Some("stop it; start it"))),
            ),
            (Finding::note("so it is"), "note      so it is\n", None),
            (
                Finding::note("it is on another's link; take it away"),
                "note      it is on another's link; take it away\n",
                Some(("it is on another's link", Some("take it away"))),
            ),
        ] {
            assert_eq!(line.to_string(), words);
            let about = words.split_whitespace().next();
            let expected = wrong.map(|(what, mend)| json!({ "about": about, "what": what, "mend": mend }));
            assert_eq!(line.json(), expected, "{words}");
        }
    }
}
