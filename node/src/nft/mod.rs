//! Changes and lists nftables over netlink, without running a program and without the lock of
//! iptables.

mod batch;
mod canonical_rule;
mod chain_walk;
mod owner_socket;
mod registers;
mod ruleset_dump;
mod statement;
mod verdict;

pub(crate) use batch::{Batch, Chain, Set, Socket, Statement};
pub(crate) use chain_walk::{ChainWalk, Outcome, Place, PlacedRule};
pub(crate) use owner_socket::OwnerSocket;
pub(crate) use registers::Query;
pub(crate) use ruleset_dump::{BaseChain, Contents};
pub(crate) use statement::*;

use std::io;

use crate::Diagnosis;

/// An error of nftables.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// No CAP_NET_ADMIN, or a table of this name that another process owns.
    #[error(
        "{action}: not permitted: CAP_NET_ADMIN is missing, or another process owns a table of this name"
    )]
    NotPermitted {
        /// The step, such as `add table localdns`.
        action: String,
    },
    /// The kernel has no nftables, or lacks a part that the rules need.
    #[error("{}", not_supported(.action, .source))]
    NotSupported {
        /// The step, such as `add rule prerouting`.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another process has changed or removed a table of localdns.
    #[error("table inet {table} was changed by another process")]
    Changed {
        /// The table's name.
        table: String,
    },
    /// The kernel refused for another reason.
    #[error("nftables: {action}: {source}")]
    Refused {
        /// The step, such as `add rule prerouting`.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl From<&NftError> for Diagnosis {
    fn from(error: &NftError) -> Self {
        match error {
            NftError::NotSupported { action, source } => not_supported(action, source),
            other => Self::without_remedy(other.to_string()),
        }
    }
}

fn not_supported(action: &str, source: &io::Error) -> Diagnosis {
    let problem = format!("this kernel lacks nftables, or a part that the rules need ({action}): {source}");
    Diagnosis::new(problem, "load the module nf_tables, or set other -rules")
}
