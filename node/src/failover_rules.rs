//! The failover rules: two nftables tables.
//!
//! The failover table stays when the server dies. If no socket receives a query to one of our
//! addresses, the table replaces the destination by the listener's fallback. It does so before
//! conntrack, so that kube-proxy's DNAT still applies to a ClusterIP, and restores the source
//! address of the replies. Each listener's flows have conntrack zones of their own, which change
//! each time queries arrive at the server again: [`Rules::rotate_zones`].
//!
//! The lease table is owned by the server's netlink socket: the kernel deletes it when the process
//! ends, for any reason. While an address has a lease in this table and a socket of this host
//! receives its queries, the table accepts the queries without conntrack. Only a server that has
//! answered its own probes renews leases, so a hang is detected when the lease ends. On kernels
//! without table owners the lease table stays, too, and all processes share it; its leases time
//! out.

mod leases;
mod stays;

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use netlink_packet_netfilter::nftables::{SetFlags, TableFlags};

use crate::nft::{Batch, Contents, Family, NftError, Set, Socket, TRANSPORT_KEY, TRANSPORTS};

pub use leases::{DeathDetection, Leases};
use leases::{HOLDERS, pid_of, renew};
pub use stays::CILIUM_LINK;
use stays::{CHAINS, CLIENTS, FAILOVER, SETS, TURNS, Turns, stays, zones_of};

/// An address that clients query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The address; the port is 53.
    pub address: IpAddr,
    /// The server to which queries are redirected while this one does not answer. A ClusterIP has
    /// no fallback: kube-proxy sends queries to it to the cluster's DNS.
    pub fallback: Option<Fallback>,
    /// Whether queries are refused, not redirected, while this server does not answer.
    pub fails_closed: bool,
}

/// The clients that are redirected to the fallback while no server receives their queries. Queries
/// of this host's own programs are always redirected; a query of any other client arrives at a
/// closed port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clients {
    /// Every client.
    All,
    /// Clients with a source address in one of these networks that is routed back over the link of
    /// arrival.
    In(Vec<IpNet>),
    /// Clients on every link but these, with a source address that is routed back over the link of
    /// arrival.
    NotFrom(Vec<String>),
}

/// The server to which queries are redirected while this one does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// An address of the listener's family; the port is 53.
    pub target: IpAddr,
    /// Whether redirected queries get a masqueraded source address, unless another program, such as
    /// kube-proxy for a ClusterIP, has translated the destination again: that program masquerades
    /// as well.
    pub masquerade: bool,
}

/// The failover table.
pub struct Rules {
    socket: Socket,
    /// The table as the kernel listed it after the last write.
    put: Option<Contents>,
    /// The current conntrack zone of each listener; empty until read from the existing table.
    turns: Turns,
    /// The ruleset generation at which the table was last found unchanged.
    seen: Option<u32>,
    lists: u64,
    /// Whether the kernel can match sockets, as far as known.
    by_socket: bool,
}

/// The state of the failover table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableState {
    /// The table is as last written.
    AsPut,
    /// The table was changed, or this process has not written it.
    Changed,
    /// The table has no rules, or does not exist.
    Missing,
}

impl Rules {
    /// Opens a netlink socket; changes nothing.
    ///
    /// # Errors
    /// If the kernel has no netlink for nftables.
    pub fn open() -> Result<Self, NftError> {
        Ok(Self {
            socket: Socket::open()?,
            put: None,
            turns: Turns::new(),
            seen: None,
            lists: 0,
            by_socket: true,
        })
    }

    /// Writes the table in one transaction, and replaces an existing one. If the kernel cannot
    /// match sockets, queries of a planned restart are kept for the next process even if no socket
    /// takes them.
    ///
    /// # Errors
    /// Errors of the kernel; nothing is changed then.
    pub fn put(&mut self, listeners: &[Listener], clients: &Clients) -> Result<(), NftError> {
        (self.put, self.seen) = (None, None);
        self.load_zones()?;
        for listener in listeners {
            self.turns.entry(listener.address).or_default();
        }
        let table = |by_socket, turns: &Turns| stays((listeners, clients), by_socket, turns);
        match self.socket.commit(table(self.by_socket, &self.turns)) {
            Err(NftError::NotSupported { .. }) if self.by_socket => {
                self.socket.commit(table(false, &self.turns))?;
                self.by_socket = false;
            }
            put => put?,
        }
        let put = self.contents()?;
        // If the listed table differs from the batch, another process changed it in between: the
        // next check then reports it as changed, and it is written again.
        self.put = put.is_like(&table(self.by_socket, &self.turns)).then_some(put);
        Ok(())
    }

    /// Makes later failovers of these addresses use conntrack zones without flows, from the next
    /// write of the table on. Call this when queries to these addresses arrive here again: a
    /// connection that fails over later then meets no entry of an earlier failover from the same
    /// port. Flows that are redirected at the time of that write break.
    ///
    /// # Errors
    /// If the kernel does not return the current zones.
    pub fn rotate_zones(&mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Result<(), NftError> {
        self.load_zones()?;
        for address in addresses {
            if let Some(turn) = self.turns.get_mut(&address) {
                *turn = (*turn + 1) % TURNS;
            }
        }
        Ok(())
    }

    /// Reads the current zones from the existing table, unless they are known.
    fn load_zones(&mut self) -> Result<(), NftError> {
        if self.turns.is_empty() {
            self.turns = zones_of(&self.contents()?);
        }
        Ok(())
    }

    /// Compares the table with what this value last wrote: flags, chains, rules and sets, except
    /// those of [`plan_restart`](Self::plan_restart). Lists the table only if another process has
    /// changed any table: the listing costs more than everything else that a server without clients
    /// does.
    ///
    /// # Errors
    /// If the kernel does not list its tables.
    pub fn standing(&mut self) -> Result<TableState, NftError> {
        // Without a generation, the listing decides.
        let now = self.socket.generation().ok().flatten();
        if now.is_some() && self.seen == now {
            return Ok(TableState::AsPut);
        }
        self.lists += 1;
        let contents = self.contents()?;
        let standing = match &self.put {
            _ if contents.is_bare() => TableState::Missing,
            Some(put) if *put == contents => TableState::AsPut,
            _ => TableState::Changed,
        };
        self.seen = now.filter(|_| standing == TableState::AsPut);
        Ok(standing)
    }

    /// Returns how often [`standing`](Self::standing) listed the table.
    pub fn lists(&self) -> u64 {
        self.lists
    }

    /// Whether the existing rules, of any author, equal the rules for these listeners and clients
    /// in expressions and addresses.
    ///
    /// # Errors
    /// If the kernel does not list its tables.
    pub fn are_those_of(&mut self, listeners: &[Listener], clients: &Clients) -> Result<bool, NftError> {
        let there = self.contents()?;
        let turns = zones_of(&there);
        let table = |by_socket| stays((listeners, clients), by_socket, &turns);
        Ok([true, false].into_iter().any(|by_socket| there.is_of(&table(by_socket), &SETS)))
    }

    /// Returns the addresses in the existing table, which any process may have created, with their
    /// fallbacks.
    ///
    /// # Errors
    /// If the kernel does not list its tables.
    pub fn led(&mut self) -> Result<Vec<(IpAddr, Option<IpAddr>)>, NftError> {
        Ok(self.contents()?.replaced(FAILOVER))
    }

    /// Returns the links of clients that do not fail over, from the existing table, which any
    /// process may have created.
    ///
    /// # Errors
    /// If the kernel does not list its tables.
    pub fn refused_links(&mut self) -> Result<Vec<String>, NftError> {
        Ok(self.contents()?.accepted_links(CLIENTS))
    }

    fn contents(&mut self) -> Result<Contents, NftError> {
        let chains = CHAINS.each_ref().map(|chain| chain.name);
        self.socket.contents(TABLE, &chains, &SETS)
    }

    /// Whether the table exists.
    ///
    /// # Errors
    /// If the kernel does not list its tables.
    pub fn are_there(&mut self) -> Result<bool, NftError> {
        Ok(self.socket.tables()?.iter().any(|table| table.name == TABLE))
    }

    /// Returns the ids of the processes that have a lease table, or leases in the shared one
    /// without owner.
    ///
    /// # Errors
    /// If the kernel does not list its tables.
    pub fn holders(&mut self) -> Result<Vec<u32>, NftError> {
        let tables = self.socket.tables()?;
        // A table without owner belongs to no server: it was loaded from a saved ruleset, or
        // created by hand.
        let owned = tables.iter().filter(|table| table.is_owned);
        let mut holders: Vec<_> = owned.filter_map(|table| server_of(&table.name)).collect();
        if tables.iter().any(|table| table.name == UNOWNED_LEASES) {
            let listed = self.socket.members(UNOWNED_LEASES, HOLDERS)?;
            holders.extend(listed.iter().filter_map(|holder| pid_of(holder)));
        }
        Ok(holders)
    }

    /// Returns the subset of these addresses that fails over now, according to the kernel's tables:
    /// the address is in the failover table, no other process has leases, and none is taking over.
    ///
    /// # Errors
    /// If the kernel does not list its tables.
    pub fn led_away(&mut self, mut addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, NftError> {
        let led = self.led()?;
        addresses.retain(|ip| led.iter().any(|(address, _)| address == ip));
        // The first processes of two containers have the same id, so holders are counted, not
        // compared.
        let mut is_held = self.holders()?.len() > 1;
        for family in Family::BOTH {
            is_held |= !self.socket.members(TABLE, SetOf::Handover.name(family))?.is_empty();
        }
        Ok(if is_held { Vec::new() } else { addresses })
    }

    /// Keeps queries to these addresses in their sockets' queues for this time without a lease, for
    /// the next process.
    ///
    /// # Errors
    /// If the table does not exist, or the kernel refuses.
    pub fn plan_restart(&mut self, addresses: &[IpAddr], lasts: Duration) -> Result<(), NftError> {
        let mut batch = Batch::default();
        renew(&mut batch, TABLE, SetOf::Handover, addresses, Some(lasts));
        self.socket.commit_unseen(batch)
    }

    /// Whether a [`NetAdminProof`] exists.
    ///
    /// # Errors
    /// If the kernel does not list its tables.
    pub fn is_net_admin_proven(&mut self) -> Result<bool, NftError> {
        Ok(self.socket.tables()?.iter().any(|table| table.name.starts_with(WARRANT)))
    }

    /// Removes the table, if it exists, and lease tables without owner.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn remove(&mut self) -> Result<(), NftError> {
        let mut batch = Batch::default();
        for table in [TABLE, UNOWNED_LEASES] {
            batch.remove_table(table);
        }
        // If tables cannot be listed, the two above are removed all the same.
        for table in self.socket.tables().unwrap_or_default() {
            if !table.is_owned && server_of(&table.name).is_some() {
                batch.remove_table(&table.name);
            }
        }
        self.socket.commit(batch)
    }
}

/// Returns the process id in the name of a lease table.
fn server_of(table: &str) -> Option<u32> {
    let owner = table.strip_prefix(TABLE)?.strip_prefix("-lease-")?;
    owner.split_once('-')?.0.parse().ok()
}

/// Proves to servers of this network namespace that a command is from a process that may change
/// rules: an empty table, which only CAP_NET_ADMIN can create. Removed on drop or, on kernels with
/// table owners, when the process ends.
pub struct NetAdminProof {
    socket: Socket,
    table: String,
}

impl NetAdminProof {
    /// Creates the proof.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, or if the kernel has no nftables.
    pub fn show() -> Result<Self, NftError> {
        let mut socket = Socket::open()?;
        // Without table owners, the proof of a killed process remains, and is deleted here.
        for left in socket.tables()?.into_iter().filter(|table| table.name.starts_with(WARRANT)) {
            let mut batch = Batch::default();
            batch.delete_table(&left.name);
            let _ = socket.commit(batch);
        }
        let table = format!("{WARRANT}{}-{}", std::process::id(), socket.port());
        let shown = |socket: &mut Socket, flags| {
            let mut batch = Batch::default();
            batch.add_table(&table, flags);
            socket.commit(batch)
        };
        shown(&mut socket, TableFlags::Owner).or_else(|_| shown(&mut socket, TableFlags::empty()))?;
        Ok(Self { socket, table })
    }
}

impl Drop for NetAdminProof {
    fn drop(&mut self) {
        let mut batch = Batch::default();
        batch.delete_table(&self.table);
        // If this fails, the kernel deletes the table with its owner, or the next `show` does.
        let _ = self.socket.commit(batch);
    }
}

fn transports(batch: &mut Batch, table: &str) {
    let elements = vec![vec![TCP], vec![UDP]];
    batch.add_set(table, &Set { name: TRANSPORTS, key: TRANSPORT_KEY, flags: SetFlags::empty(), elements });
}

/// The kind of a set of addresses; each kind exists once for each address family.
#[derive(Debug, Clone, Copy)]
enum SetOf {
    /// Addresses that clients query.
    Listeners,
    /// Addresses that the next process is taking over.
    Handover,
    /// Addresses with a lease.
    Leased,
    /// Addresses that our own probes query.
    Probed,
}

impl SetOf {
    fn name(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Listeners, Family::V4) => "listeners4",
            (Self::Listeners, Family::V6) => "listeners6",
            (Self::Handover, Family::V4) => "handover4",
            (Self::Handover, Family::V6) => "handover6",
            (Self::Leased, Family::V4) => "lease4",
            (Self::Leased, Family::V6) => "lease6",
            (Self::Probed, Family::V4) => "probed4",
            (Self::Probed, Family::V6) => "probed6",
        }
    }
}

/// The table's name.
pub const TABLE: &str = "localdns";
/// The name of the lease table on kernels without table owners.
const UNOWNED_LEASES: &str = "localdns-lease";
/// Prefix of the names of [`NetAdminProof`]s.
const WARRANT: &str = "localdns-down-";
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Priority before conntrack.
const RAW: i32 = -300;
