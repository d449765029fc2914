//! The lease table.

use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_netfilter::nftables::InetHookNumber::{LocalOut, PreRouting};
use netlink_packet_netfilter::nftables::{SetFlags, TableFlags};
use tokio::time::Instant;

use super::{RAW, SetOf, TABLE, UNOWNED_LEASES, transports};
use crate::nft::{
    Batch, Chain, Contents, End, Family, NftError, OwnerSocket, Set, TRANSPORTS, accept, address_in,
    destination_is_ours, dns, has_socket, mark_is, notrack, octets,
};

/// The lease table; removed on drop, or with the process.
pub struct Leases {
    socket: OwnerSocket,
    table: String,
    seen: DeathDetection,
    /// The table as written, if it has no owner, so that other processes can change it.
    put: Option<Contents>,
    /// Addresses with a lease that ends only with the table.
    endless: Vec<IpAddr>,
    /// The addresses to which our probes are accepted without a lease.
    probed: Vec<IpAddr>,
}

/// How the kernel detects the end of the process, besides the timeout of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeathDetection {
    /// The kernel deletes the table when the process ends (Linux 5.12).
    pub by_owner: bool,
    /// Rules match only queries that a socket receives (Linux 4.10, with `nft_socket`); for queries
    /// of pods only.
    pub by_socket: bool,
}

impl Leases {
    /// Creates the table, without leases. `mark` is the SO_MARK of our own probes, which need no
    /// lease for the addresses of [`admit_probes`](Self::admit_probes). If the kernel lacks table
    /// owners or socket matches, the table is created without them: [`Leases::seen`].
    ///
    /// # Errors
    /// If the kernel refuses all variants.
    pub fn open(mark: u32) -> Result<Self, NftError> {
        for (by_owner, by_socket) in [(true, true), (true, false), (false, true)] {
            match Self::open_as(mark, DeathDetection { by_owner, by_socket }) {
                Err(NftError::NotSupported { .. } | NftError::Refused { .. }) => {}
                tried => return tried,
            }
        }
        Self::open_as(mark, DeathDetection { by_owner: false, by_socket: false })
    }

    /// Does the same as [`Leases::open`], with exactly these ways of detection.
    ///
    /// # Errors
    /// If the kernel refuses one of them.
    pub fn open_as(mark: u32, seen: DeathDetection) -> Result<Self, NftError> {
        let socket = OwnerSocket::open()?;
        // The old and the new process of a restart overlap: each has its own table, even if both
        // are the first process of a container. A table without owner outlives its process, so all
        // processes share one.
        let table = match seen.by_owner {
            true => format!("{TABLE}-lease-{}-{}", std::process::id(), socket.port()),
            false => UNOWNED_LEASES.to_owned(),
        };
        let mut batch = Batch::default();
        match seen.by_owner {
            true => batch.add_table(&table, TableFlags::Owner),
            false => {
                batch.renew_table(&table);
                let (name, key, flags) = (HOLDERS, MARK_KEY, SetFlags::Timeout);
                batch.add_set(&table, &Set { name, key, flags, elements: Vec::new() });
            }
        }
        transports(&mut batch, &table);
        for family in Family::BOTH {
            let (name, flags) = (SetOf::Leased.name(family), SetFlags::Timeout);
            batch.add_set(&table, &Set { name, key: family.key(), flags, elements: Vec::new() });
            let (name, flags) = (SetOf::Probed.name(family), SetFlags::empty());
            batch.add_set(&table, &Set { name, key: family.key(), flags, elements: Vec::new() });
        }
        batch.add_chain(&table, &Chain { name: "prerouting", hook: Some(("filter", PreRouting, RAW - 10)) });
        batch.add_chain(&table, &Chain { name: "output", hook: Some(("filter", LocalOut, RAW - 10)) });
        for family in Family::BOTH {
            // Leases exist before the failover table. Without this rule, a reply sent in between
            // would create a conntrack entry in the wrong direction, which a client that keeps its
            // port would match after a failover, and keep alive. The most frequent rules are first.
            let answers = address_in(End::Source, family, SetOf::Leased.name(family));
            batch.add_rule(&table, "output", [answers, dns(End::Source), notrack(), accept()]);
        }
        for family in Family::BOTH {
            // Any program with CAP_NET_RAW or CAP_NET_ADMIN can set this mark, so it exempts only
            // queries to our addresses.
            let probed = address_in(End::Destination, family, SetOf::Probed.name(family));
            let probe = [mark_is(mark), probed, dns(End::Destination), notrack(), accept()];
            batch.add_rule(&table, "output", probe);
        }
        for family in Family::BOTH {
            let mut leased = vec![
                address_in(End::Destination, family, SetOf::Leased.name(family)),
                dns(End::Destination),
                destination_is_ours(),
            ];
            batch.add_rule(&table, "output", [&leased[..], &[notrack(), accept()]].concat());
            if seen.by_socket {
                leased.push(has_socket());
            }
            batch.add_rule(&table, "prerouting", [&leased[..], &[notrack(), accept()]].concat());
        }
        let mut leases = Self { socket, table, seen, put: None, endless: Vec::new(), probed: Vec::new() };
        match seen.by_owner {
            true => leases.socket.commit(batch)?,
            false => leases.put = Some(leases.share(batch)?),
        }
        Ok(leases)
    }

    /// Uses the existing table that other processes share, with leases that time out; replaces the
    /// table if it differs from the batch.
    fn share(&mut self, batch: Batch) -> Result<Contents, NftError> {
        let there = self.contents()?;
        let mut holds = Batch::default();
        extend(&mut holds, &self.table, HOLDERS, &holder(), Some(OPENED));
        if there.is_of(&batch, &[TRANSPORTS]) && self.socket.commit_unseen(holds).is_ok() {
            return Ok(there);
        }
        self.socket.commit(batch)?;
        self.contents()
    }

    fn contents(&mut self) -> Result<Contents, NftError> {
        self.socket.contents(&self.table, &["prerouting", "output"], &[TRANSPORTS])
    }

    /// Returns how the kernel detects that this process no longer serves.
    pub fn seen(&self) -> DeathDetection {
        self.seen
    }

    /// Makes the table accept our probes without a lease, to these addresses only.
    ///
    /// # Errors
    /// If the kernel refuses, or the table is gone.
    pub fn admit_probes(&mut self, addresses: &[IpAddr]) -> Result<(), NftError> {
        if self.probed == addresses {
            return Ok(());
        }
        let but = |all: &[IpAddr], others: &[IpAddr]| -> Vec<IpAddr> {
            all.iter().copied().filter(|ip| !others.contains(ip)).collect()
        };
        // Other processes of a shared table may still probe other addresses.
        let gone = if self.seen.by_owner { but(&self.probed, addresses) } else { Vec::new() };
        let new = but(addresses, &self.probed);
        let mut batch = Batch::default();
        for family in Family::BOTH {
            let set = SetOf::Probed.name(family);
            let (gone, new) = (keys_of(family, &gone), keys_of(family, &new));
            if !gone.is_empty() {
                batch.delete_elements(&self.table, set, &gone);
            }
            if !new.is_empty() {
                batch.add_elements(&self.table, set, &new, None);
            }
        }
        self.socket.commit_unseen(batch)?;
        self.probed = addresses.to_vec();
        Ok(())
    }

    /// Releases all leases and the table: queries fail over from now on.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn give_up(self) -> Result<(), NftError> {
        let mut batch = Batch::default();
        batch.delete_table(&self.table);
        self.socket.commit(batch)
    }

    /// Ends this process's leases in favor of another process with leases: deletes an owned table,
    /// and keeps a shared one.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn leave(self) -> Result<(), NftError> {
        if self.seen.by_owner { self.give_up() } else { Ok(()) }
    }

    /// Gives these addresses a lease of this duration, or for the table's life; returns the
    /// earliest time at which the lease can have begun.
    ///
    /// # Errors
    /// If the kernel refuses, if the table is gone, or if another process has changed a shared
    /// table.
    pub fn renew(&mut self, addresses: &[IpAddr], lasts: Option<Duration>) -> Result<Instant, NftError> {
        if self.put.is_some() && Some(self.contents()?) != self.put {
            return Err(NftError::Changed { table: self.table.clone() });
        }
        let mut batch = Batch::default();
        renew(&mut batch, &self.table, SetOf::Leased, addresses, lasts);
        if !self.seen.by_owner && !addresses.is_empty() {
            extend(&mut batch, &self.table, HOLDERS, &holder(), lasts);
        }
        let renewed = self.socket.commit_unseen(batch).map_err(|error| match error {
            // The table was created with the same features, so a missing one means that it was
            // changed.
            NftError::NotSupported { .. } => NftError::Changed { table: self.table.clone() },
            error => error,
        })?;
        if lasts.is_none() {
            let new = addresses.iter().filter(|ip| !self.endless.contains(ip)).copied().collect::<Vec<_>>();
            self.endless.extend(new);
        }
        Ok(renewed)
    }

    /// Ends leases without timeout of all addresses but these.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn end_others(&mut self, served: &[IpAddr]) -> Result<(), NftError> {
        let (stay, gone): (Vec<_>, Vec<_>) = self.endless.iter().copied().partition(|ip| served.contains(ip));
        if gone.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        for family in Family::BOTH {
            let keys = keys_of(family, &gone);
            if !keys.is_empty() {
                batch.delete_elements(&self.table, SetOf::Leased.name(family), &keys);
            }
        }
        self.socket.commit_unseen(batch)?;
        self.endless = stay;
        Ok(())
    }
}

/// Adds these addresses with this timeout to the sets of this kind, or restarts the timeout of
/// existing elements.
pub(super) fn renew(
    batch: &mut Batch,
    table: &str,
    sets: SetOf,
    addresses: &[IpAddr],
    lasts: Option<Duration>,
) {
    for family in Family::BOTH {
        let keys = keys_of(family, addresses);
        if !keys.is_empty() {
            extend(batch, table, sets.name(family), &keys, lasts);
        }
    }
}

/// Returns the set elements of the addresses of this family.
fn keys_of(family: Family, addresses: &[IpAddr]) -> Vec<Vec<u8>> {
    addresses.iter().copied().filter(|ip| Family::of(*ip) == family).map(octets).collect()
}

/// Adds elements or extends their timeout, in three steps, since adding an existing element does
/// not extend its timeout.
fn extend(batch: &mut Batch, table: &str, set: &str, keys: &[Vec<u8>], lasts: Option<Duration>) {
    let lasts = lasts.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
    batch.add_elements(table, set, keys, lasts);
    batch.delete_elements(table, set, keys);
    batch.add_elements(table, set, keys, lasts);
}

/// Returns this process as an element of [`HOLDERS`].
fn holder() -> [Vec<u8>; 1] {
    [std::process::id().to_be_bytes().to_vec()]
}

/// Returns the process id in an element of [`HOLDERS`].
pub(super) fn pid_of(holder: &[u8]) -> Option<u32> {
    holder.try_into().map(u32::from_be_bytes).ok()
}

/// Name of the set, in the table without owner, of the processes with leases; an element lasts as
/// long as the process's leases.
pub(super) const HOLDERS: &str = "holders";
/// `mark`: a host-endian number type that every kernel and `nft` has.
const MARK_KEY: (u32, u32) = (19, 4);
/// How long a process counts as a holder before its first lease.
const OPENED: Duration = Duration::from_secs(1);
