//! The action after a failed send.

/// The action after a message that the kernel did not accept.
pub(crate) enum AfterError {
    /// Try this message again.
    Retry,
    /// Continue with the next message.
    Skip,
    /// Drop the remaining messages.
    Stop,
}
