//! nftables over netlink: one transaction at a time, without a program of its own and without the lock of iptables.

mod batch;
mod statement;

pub(crate) use batch::{Batch, Chain, Set, Socket};
pub(crate) use statement::*;

use std::io;

/// What went wrong between us and nftables.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// No CAP_NET_ADMIN.
    #[error("no permission to change nftables (CAP_NET_ADMIN)")]
    NotPermitted,
    /// The kernel has no nftables, or lacks a part of it that the rules need.
    #[error("this kernel has no nftables, or not all that the rules need ({action}): {source}")]
    NotSupported {
        /// What we were doing, such as `add rule prerouting`.
        action: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A table of this name is another process's.
    #[error("the nftables table {table} belongs to another process")]
    Owned {
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
