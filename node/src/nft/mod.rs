//! nftables over netlink: one transaction at a time, without a program of its own and without the lock of iptables.

mod batch;
mod canonical_rule;
mod owner_socket;
mod ruleset_dump;
mod statement;
mod verdict;

pub(crate) use batch::{Batch, Chain, Set, Socket, Statement};
pub(crate) use owner_socket::SocketApart;
pub(crate) use ruleset_dump::{BaseChain, Contents, LastRule};
pub(crate) use statement::*;

use std::io;

/// What went wrong between us and nftables.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// No CAP_NET_ADMIN, or a table of this name that another process owns.
    #[error(
        "{action}: no permission: it takes CAP_NET_ADMIN, and no table of this name that another process owns"
    )]
    NotPermitted {
        /// What we were doing, such as `add table localdns`.
        action: String,
    },
    /// The kernel has no nftables, or lacks a part of it that the rules need.
    #[error(
        "this kernel has no nftables, or not all that the rules need ({action}): {source}; have it load nf_tables, or choose \
         other -rules"
    )]
    NotSupported {
        /// What we were doing, such as `add rule prerouting`.
        action: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A table of ours is not as it was put there, or gone.
    #[error("table inet {table} is not as it was put there: somebody has changed it")]
    Changed {
        /// Its name.
        table: String,
    },
    /// The kernel refused for another reason.
    #[error("nftables: {action}: {source}")]
    Refused {
        /// What we were doing, such as `add rule prerouting`.
        action: String,
        /// What the kernel said.
        source: io::Error,
    },
}
