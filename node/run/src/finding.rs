//! One line of `node status`: text and, for a problem, JSON with the remedy. Text is escaped, since
//! it may contain another program's text.

use std::fmt::{self, Display, Formatter};

use node::{Diagnosis, escaped};
use serde_json::{Value, json};

/// One line of `node status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// The label at the start of the line.
    subject: &'static str,
    /// The fact or the problem.
    text: String,
    remedy: Option<String>,
    is_problem: bool,
}

impl Finding {
    /// Returns a line that states a fact, not a problem.
    pub(super) fn fact(subject: &'static str, text: impl Into<String>) -> Self {
        Self { subject, text: escaped(&text.into()), remedy: None, is_problem: false }
    }

    /// Returns a line that states a problem and its remedy.
    pub(super) fn problem(subject: &'static str, problem: impl Into<String>, remedy: &str) -> Self {
        Self::diagnosis(subject, &Diagnosis::new(problem, remedy))
    }

    /// Returns a line that states a problem, without a remedy if another line has the remedy.
    pub(super) fn diagnosis(subject: &'static str, Diagnosis { problem, remedy }: &Diagnosis) -> Self {
        let remedy = remedy.as_deref().map(escaped);
        Self { subject, text: escaped(problem), remedy, is_problem: true }
    }

    /// Returns a line that states a note, which counts as a problem if it has a remedy.
    pub(super) fn note(note: &Diagnosis) -> Self {
        Self { is_problem: note.remedy.is_some(), ..Self::diagnosis(NOTE, note) }
    }

    /// Whether the line is a note.
    pub(super) fn is_note(&self) -> bool {
        self.subject == NOTE
    }

    /// Returns the problem as JSON; `None` for a fact.
    pub(super) fn json(&self) -> Option<Value> {
        // Double spaces are for the text form only.
        let problem = self.text.replace("  ", " ");
        self.is_problem.then(|| json!({ "subject": self.subject, "problem": problem, "remedy": self.remedy }))
    }
}

impl Display for Finding {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { subject, text, remedy, .. } = self;
        write!(out, "{subject:<10}{text}")?;
        if let Some(remedy) = remedy {
            write!(out, "; {remedy}")?;
        }
        writeln!(out)
    }
}

/// Returns a diagnosis as JSON, which [`from_json`] reads.
pub(super) fn to_json(Diagnosis { problem, remedy }: &Diagnosis) -> Value {
    json!({ "problem": problem, "remedy": remedy })
}

/// Reads the diagnosis in a server's report; `None` if there is none.
pub(super) fn from_json(value: &Value) -> Option<Diagnosis> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    Some(Diagnosis { problem: text("problem")?, remedy: text("remedy") })
}

/// The label of a note.
const NOTE: &str = "note";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_agree() {
        let bare = Diagnosis::without_remedy;
        for (line, text, problem) in [
            (Finding::fact("rules", "in place"), "rules     in place\n", None),
            (
                Finding::problem("rules", "none", "put them there"),
                "rules     none; put them there\n",
                Some(("none", Some("put them there"))),
            ),
            (
                Finding::diagnosis("address", &bare("192.0.2.1  on lo, does not answer")),
                "address   192.0.2.1  on lo, does not answer\n",
                Some(("192.0.2.1 on lo, does not answer", None)),
            ),
            (
                Finding::diagnosis("lookups", &bare("sh: exit status: 3: one; two")),
                "lookups   sh: exit status: 3: one; two\n",
                Some(("sh: exit status: 3: one; two", None)),
            ),
            (Finding::note(&bare("so it is")), "note      so it is\n", None),
            (
                Finding::note(&Diagnosis::new("it is on another's link", "take it away")),
                "note      it is on another's link; take it away\n",
                Some(("it is on another's link", Some("take it away"))),
            ),
        ] {
            assert_eq!(line.to_string(), text);
            let subject = text.split_whitespace().next();
            let expected = problem
                .map(|(problem, remedy)| json!({ "subject": subject, "problem": problem, "remedy": remedy }));
            assert_eq!(line.json(), expected, "{text}");
        }
    }

    #[test]
    fn json_round_trip() {
        for diagnosis in [Diagnosis::new("it hangs", "restart it"), Diagnosis::without_remedy("it hangs")] {
            assert_eq!(from_json(&to_json(&diagnosis)), Some(diagnosis));
        }
        assert_eq!(from_json(&Value::Null), None);
    }
}
