//! What keeps a cluster from being known or heard, for whoever asks the server.

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The kinds that are not followed for it, or the snapshot.
    pub about: String,
    /// As the log has it.
    pub what: String,
    /// What ends it.
    pub mend: &'static str,
}
