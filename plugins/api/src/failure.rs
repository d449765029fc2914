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
    /// A class that nothing on this address serves.
    #[error("class not served")]
    Class,
    /// The server block has no plugin that could answer or ask.
    #[error("the server block has no plugin that answers")]
    NoPlugin,
    /// The server block has no plugin left to ask.
    #[error("plugin/{0}: no next plugin found")]
    NoNextPlugin(&'static str),
    /// A plugin's own.
    #[error(transparent)]
    Own(#[from] OwnFailure),
    /// The target of a name has no answer, with the target's failure.
    #[error("the target of the CNAME has no answer: {0}")]
    Target(Rcode),
    /// An answer needs another that the client may not have.
    #[error("plugin/acl: a name that the answer depends on is dropped")]
    Dropped,
    /// One query leads to too many others.
    #[error("the answer depends on more than {0} other names")]
    TooManyNames(usize),
    /// Answers that lead from one to the next are too large.
    #[error("the answer depends on more than {0} records of other names")]
    TooManyRecords(usize),
    /// An answer needs itself.
    #[error("the answer depends on itself")]
    Circle,
    /// A transfer or a NOTIFY, and no plugin of the zone takes it.
    #[error("no plugin of the server block takes it")]
    NotTaken,
    /// A transfer to a client that `transfer` does not name.
    #[error("plugin/transfer: not to this client")]
    NotPermitted,
    /// An UPDATE, and no plugin of the zone takes any.
    #[error("no plugin of the server block takes updates")]
    NoUpdate,
    /// More transfers at a time than there is room for.
    #[error("too many transfers at a time")]
    Transfers,
    /// An incomplete transfer: the client closed the connection, or took too long.
    #[error("transfer cut off after {0} octets")]
    CutOff(u64),
    /// The upstreams.
    #[error(transparent)]
    Forward(#[from] forwarder::ForwardError),
    /// More queries in flight than there is room for.
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
    /// Its name.
    pub plugin: &'static str,
    /// Its text.
    pub why: Cow<'static, str>,
    /// What kind of failure it is.
    pub kind: FailureKind,
}

/// Kind of a plugin's failure, for clients and operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// An error, which `errors` logs.
    Error,
    /// The name is not the plugin's, which does not fall through.
    NotMine,
    /// The plugin's data is not complete yet.
    NotReady,
}

impl Failure {
    /// A plugin's own.
    pub fn own(plugin: &'static str, kind: FailureKind, why: impl Into<Cow<'static, str>>) -> Self {
        Self::Own(OwnFailure { plugin, why: why.into(), kind })
    }

    /// The header's description.
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
            // The client tries another server at once; the table is full only here.
            Self::Forward(forwarder::ForwardError::MaxConcurrent(_)) => Rcode::REFUSED,
            Self::Forward(_) => Rcode::SERVFAIL,
        }
    }

    /// Whether `errors` logs it: CoreDNS's plugins answer SERVFAIL without an error for names
    /// outside their zones.
    pub fn is_error(&self) -> bool {
        match self {
            Self::Own(own) => own.kind == FailureKind::Error,
            Self::NotTaken | Self::NotPermitted | Self::NoUpdate => false,
            _ => true,
        }
    }

    /// Whether there was no room for the query, which is no property of its name or of an upstream.
    pub fn is_overload(&self) -> bool {
        match self {
            Self::Overload => true,
            Self::Forward(failure) => failure.is_overload(),
            _ => false,
        }
    }

    /// The Extended DNS Error for clients with EDNS (RFC 8914).
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

/// Truncates a text that clients can influence to the longest spelling of a name, for logs. A rule
/// or a template may have made a short name much longer.
pub fn beginning(mut text: String) -> String {
    if text.len() > LONGEST_NAME {
        text.truncate(text.floor_char_boundary(LONGEST_NAME));
        text.push_str("...");
    }
    text
}

/// Bytes of a name's text: each of its own as a backslash and three digits, and dots.
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
