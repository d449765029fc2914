//! A line of `localdns explain`.

/// The effect of one plugin on a query.
#[derive(Debug, PartialEq, Eq)]
pub enum Explanation {
    /// The query ends here, and how.
    Ends(String),
    /// The query passes, with a remark if there is one.
    Passes(Option<String>),
}
