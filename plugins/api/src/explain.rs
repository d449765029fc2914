//! A line of `localdns explain`.

/// The effect of one plugin on a query.
#[derive(Debug, PartialEq, Eq)]
pub enum Explanation {
    /// The query ends at this plugin; the text describes the result.
    Ends(String),
    /// The query passes to the next plugin, with an optional remark.
    Passes(Option<String>),
}
