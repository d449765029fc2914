//! The action after a failed send.

/// The action after a message that the kernel did not accept.
pub(crate) enum AfterError {
    /// Try it again.
    Retry,
    /// Continue with the next one.
    Skip,
    /// Drop the rest.
    Stop,
}
