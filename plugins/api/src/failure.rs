//! Failures of queries, and their rcodes: one total function from failure to rcode.

use std::borrow::Cow;

use thiserror::Error;
use wire::{Ede, Rcode};

/// Why a query has no answer.
#[derive(Debug, Clone, Error)]
pub enum Failure {
    /// No server block serves the name.
    #[error("no server block serves this name")]
    NoZone,
    /// No server block on this address serves the class.
    #[error("class not served")]
    Class,
    /// The server block has no plugin that could answer or forward the query.
    #[error("the server block has no plugin that answers")]
    NoPlugin,
    /// This plugin passed the query, and no plugin follows it in the server block.
    #[error("plugin/{0}: no next plugin found")]
    NoNextPlugin(&'static str),
    /// A failure with a plugin's own reason.
    #[error(transparent)]
    Own(#[from] OwnFailure),
    /// The target of a CNAME has no answer; the rcode is that of the target's failure.
    #[error("the target of the CNAME has no answer: {0}")]
    Target(Rcode),
    /// The query is dropped, or the answer depends on another name, and `acl` drops the client's query for
    /// that name.
    #[error("plugin/acl: a name that the answer depends on is dropped")]
    Dropped,
    /// The answer depends on too many other names.
    #[error("the answer depends on more than {0} other names")]
    TooManyNames(usize),
    /// The answer depends on too many records of other names.
    #[error("the answer depends on more than {0} records of other names")]
    TooManyRecords(usize),
    /// The answer depends on itself.
    #[error("the answer depends on itself")]
    Circle,
    /// A transfer request or NOTIFY that no plugin of the server block handles.
    #[error("no plugin of the server block takes it")]
    NotTaken,
    /// A transfer to a client that `transfer` does not name.
    #[error("plugin/transfer: not to this client")]
    NotPermitted,
    /// An UPDATE that no plugin of the server block handles.
    #[error("no plugin of the server block takes updates")]
    NoUpdate,
    /// The limit of concurrent transfers is reached.
    #[error("too many transfers at a time")]
    Transfers,
    /// An incomplete transfer: the client closed the connection or was too slow.
    #[error("transfer cut off after {0} octets")]
    CutOff(u64),
    /// A failure of the upstreams.
    #[error(transparent)]
    Forward(#[from] forwarder::ForwardError),
    /// The limit of queries in flight is reached.
    #[error("too many queries in flight")]
    Overload,
    /// A panic, caught.
    #[error("panic")]
    Panic,
}

/// A plugin's own reason for a failure. The client gets SERVFAIL.
#[derive(Debug, Clone, Error)]
#[error("plugin/{plugin}: {why}")]
pub struct OwnFailure {
    /// The plugin's name.
    pub plugin: &'static str,
    /// The reason as text.
    pub why: Cow<'static, str>,
    /// The kind of the failure.
    pub kind: FailureKind,
}

/// Kind of a plugin's failure, for clients and operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// An error, which `errors` logs.
    Error,
    /// The plugin has no answer for the name, and the name does not fall through.
    NotMine,
    /// The plugin's data is not complete yet.
    NotReady,
}

impl Failure {
    /// Creates a failure with a plugin's own reason.
    pub fn own(plugin: &'static str, kind: FailureKind, why: impl Into<Cow<'static, str>>) -> Self {
        Self::Own(OwnFailure { plugin, why: why.into(), kind })
    }

    /// Returns the rcode of the reply.
    pub fn rcode(&self) -> Rcode {
        match self {
            Self::NoZone | Self::Class | Self::NoPlugin | Self::NotTaken | Self::NotPermitted => {
                Rcode::REFUSED
            }
            Self::NoUpdate => Rcode::NOTIMP,
            Self::NoNextPlugin(_)
            | Self::Own(_)
            | Self::Target(_)
            | Self::Dropped
            | Self::TooManyNames(_)
            | Self::TooManyRecords(_)
            | Self::Circle
            | Self::Transfers
            | Self::CutOff(_)
            | Self::Overload
            | Self::Panic => Rcode::SERVFAIL,
            // With REFUSED the client tries another server at once; only this server's limit is
            // reached.
            Self::Forward(forwarder::ForwardError::MaxConcurrent(_)) => Rcode::REFUSED,
            Self::Forward(_) => Rcode::SERVFAIL,
        }
    }

    /// Whether `errors` logs the failure: for names outside their zones, CoreDNS's plugins answer
    /// SERVFAIL without an error.
    pub fn is_error(&self) -> bool {
        match self {
            Self::Own(own) => own.kind == FailureKind::Error,
            Self::NotTaken | Self::NotPermitted | Self::NoUpdate => false,
            _ => true,
        }
    }

    /// Whether the failure is an overload of this server, independent of the name and the
    /// upstreams.
    pub fn is_overload(&self) -> bool {
        match self {
            Self::Overload => true,
            Self::Forward(failure) => failure.is_overload(),
            _ => false,
        }
    }

    /// Returns the Extended DNS Error for clients with EDNS (RFC 8914).
    pub fn ede(&self) -> Option<Ede> {
        let other = |text| Some(Ede { code: 0, text });
        match self {
            Self::NoZone | Self::Class | Self::NoPlugin => Some(Ede::NOT_AUTHORITATIVE),
            Self::Own(OwnFailure { kind: FailureKind::NotReady, .. }) => Some(Ede::NOT_READY),
            Self::NotTaken | Self::NoUpdate => Some(Ede::NOT_SUPPORTED),
            Self::NotPermitted => Some(Ede { code: 18, text: "" }),
            Self::Transfers => other("too many transfers at a time"),
            Self::NoNextPlugin(_) => other("no plugin of the server block is left to ask"),
            Self::Own(_) => other("a plugin of the server block has no answer"),
            Self::Target(_) => other("the target of the CNAME has no answer"),
            Self::Dropped => other("a name that the answer depends on is dropped"),
            Self::TooManyNames(_) => other("the answer depends on too many other names"),
            Self::TooManyRecords(_) => other("the answer depends on too many records of other names"),
            Self::Circle => other("the answer depends on itself"),
            Self::CutOff(_) => other("the transfer is cut off"),
            Self::Overload => other("too many queries in flight"),
            Self::Panic => other("a fault of this server"),
            Self::Forward(forwarder::ForwardError::Congested(_)) => {
                Some(Ede { text: "the upstream's queue is full", ..Ede::NETWORK_ERROR })
            }
            Self::Forward(failure) if failure.is_overload() => other("too many queries in flight"),
            Self::Forward(failure) => Some(forward_ede(failure)),
        }
    }
}

/// Truncates a text that clients can influence to the longest spelling of a name, for logs: a rule
/// or a template may have made a short name much longer.
pub fn beginning(mut text: String) -> String {
    if text.len() > LONGEST_NAME {
        text.truncate(text.floor_char_boundary(LONGEST_NAME));
        text.push_str("...");
    }
    text
}

/// Maximum bytes of a name as text: each byte as a backslash and three digits, and the dots.
const LONGEST_NAME: usize = 1_016;

fn forward_ede(failure: &forwarder::ForwardError) -> Ede {
    use forwarder::ForwardError as F;
    match failure {
        F::Silent { .. } | F::NoHealthy | F::NoUpstream | F::AllLoop | F::NoStanza => {
            Ede::NO_REACHABLE_AUTHORITY
        }
        F::Network { .. }
        | F::NoSocket { .. }
        | F::NotSent { .. }
        | F::Exchange(_)
        | F::Garbled(_)
        | F::Congested(_) => Ede::NETWORK_ERROR,
        F::MaxConcurrent(_) => Ede { code: 0, text: "concurrent queries exceeded maximum" },
        F::TableFull | F::Subnets => Ede { code: 0, text: "too many queries in flight" },
        F::Patience => Ede { code: 0, text: "no answer within the time allowed" },
        F::Shutdown => Ede { code: 0, text: "shutting down" },
    }
}
