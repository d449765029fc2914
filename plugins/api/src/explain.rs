//! What `explain` says of a query at one plugin.

/// What becomes of it there.
#[derive(Debug, PartialEq, Eq)]
pub enum Explanation {
    /// It ends here, and how.
    Ends(String),
    /// It goes on; why, where there is something to say.
    Passes(Option<String>),
}
