//! What follows a message that the kernel did not take.

/// What to do about a message that the kernel did not take.
pub(crate) enum Next {
    /// Try it again.
    Retry,
    /// Go on with the one after it.
    Skip,
    /// Give up the rest.
    Stop,
}
