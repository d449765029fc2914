//! A problem of the node and its remedy, for the log and for `node status`.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;

/// A problem and its remedy; `Display` writes `problem; remedy`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Diagnosis {
    /// The problem.
    pub problem: String,
    /// How an operator can solve the problem, if known.
    pub remedy: Option<String>,
}

impl Diagnosis {
    /// Returns a problem with its remedy.
    pub fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: Some(remedy.into()) }
    }

    /// Returns a problem without a remedy.
    pub fn without_remedy(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: None }
    }

    /// Returns the diagnosis with `context: ` before its problem.
    #[must_use]
    pub fn context(self, context: impl Display) -> Self {
        Self { problem: format!("{context}: {}", self.problem), remedy: self.remedy }
    }
}

impl Display for Diagnosis {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(&self.problem)?;
        match &self.remedy {
            Some(remedy) => write!(out, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl Error for Diagnosis {}

/// Returns the diagnosis inside an [`io::Error`], else the error's text as a problem without a
/// remedy.
impl From<&io::Error> for Diagnosis {
    fn from(error: &io::Error) -> Self {
        let carried = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        carried.cloned().unwrap_or_else(|| Self::without_remedy(error.to_string()))
    }
}

/// Returns a problem without a remedy.
impl From<String> for Diagnosis {
    fn from(problem: String) -> Self {
        Self::without_remedy(problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_carry_it() {
        let diagnosis = Diagnosis::new("iptables: not found", "install it");
        let error = io::Error::new(io::ErrorKind::NotFound, diagnosis.clone());
        assert_eq!(error.to_string(), "iptables: not found; install it");
        assert_eq!(Diagnosis::from(&error), diagnosis);
        let plain = io::Error::other("one; two");
        assert_eq!(Diagnosis::from(&plain), Diagnosis::without_remedy("one; two"));
        assert_eq!(diagnosis.context("no rules").to_string(), "no rules: iptables: not found; install it");
    }
}
