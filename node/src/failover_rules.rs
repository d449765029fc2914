//! The rules that keep a node's DNS alive: two nftables tables.
//!
//! One stays when the server dies: queries to our addresses that nobody takes are given a new destination, the listener's
//! way out, before conntrack, so that a ClusterIP still gets kube-proxy's own DNAT behind it; answers get their source back. Each
//! listener's flows have conntrack zones of their own, and after each return another of these: [`Rules::take_turns`].
//!
//! The other is owned by the server's netlink socket: the kernel drops it when the process ends, however it ends. In it are
//! the leases: while an address has one, and a socket of this machine takes queries to it, they are taken here, without
//! conntrack. Only a server that has answered its own probes renews them, so that a hang is seen when the lease ends.
//! Where the kernel knows no owners this one stays, too, and all processes share it: its leases end by themselves.

mod leases;
mod stays;

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use netlink_packet_netfilter::nftables::{SetFlags, TableFlags};

use crate::nft::{Batch, Contents, Family, NftError, Set, Socket, TRANSPORT_KEY, TRANSPORTS};

pub use leases::{DeathDetection, Leases};
use leases::{HOLDERS, pid_of, renew};
use stays::{CHAINS, FAILOVER, SETS, TURNS, Turns, stays, turns_of};

/// An address that clients ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The address; the port is 53.
    pub address: IpAddr,
    /// The server that queries are led to while this one does not answer. A ClusterIP has none: kube-proxy sends it to the
    /// cluster's DNS.
    pub fallback: Option<Fallback>,
    /// Whether every client is refused while this server does not answer, instead.
    pub fails_closed: bool,
}

/// The clients whose queries are redirected to the way out while no server takes them. Queries of this machine's own programs always are;
/// a query of any other client arrives at a closed port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clients {
    /// Every client.
    All,
    /// Those with a source address in one of these networks that is routed back by the link of arrival.
    In(Vec<IpNet>),
    /// Those on every link but these, with a source address that is routed back by the link of arrival.
    NotFrom(Vec<String>),
}

/// The server that queries are led to while this one does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// An address of the listener's family; the port is 53.
    pub target: IpAddr,
    /// Whether pods' addresses are hidden from it, where nobody (kube-proxy, for a ClusterIP) gave it yet another address:
    /// who did sees to that as well.
    pub masquerade: bool,
}

/// The table that stays.
pub struct Rules {
    socket: Socket,
    /// What was put there last, as the kernel lists it.
    put: Option<Contents>,
    /// Which of its conntrack zones each listener has; none where that is for the table to say that is there.
    turns: Turns,
    /// The generation at which it was so.
    seen: Option<u32>,
    lists: u64,
    /// Whether the kernel can look for a socket, as far as is known.
    by_socket: bool,
}

/// What has become of the table that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableState {
    /// It is as it was put there.
    AsPut,
    /// It is not, or it is not known what was put there.
    Changed,
    /// There is no rule in it, or no such table.
    Missing,
}

impl Rules {
    /// Opens a way to the kernel; changes nothing.
    ///
    /// # Errors
    /// Where the kernel has no netlink for nftables.
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

    /// Puts the table there, in one transaction: in place of one of its name, whoever made it. Where the kernel cannot look for a
    /// socket, queries wait for the next process whether there is one or not.
    ///
    /// # Errors
    /// Where the kernel refuses; then all is as it was.
    pub fn put(&mut self, listeners: &[Listener], clients: &Clients) -> Result<(), NftError> {
        (self.put, self.seen) = (None, None);
        self.know_turns()?;
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
        // Where the table differs, another process changed it in between: the next check finds it unknown and puts it anew.
        self.put = put.is_like(&table(self.by_socket, &self.turns)).then_some(put);
        Ok(())
    }

    /// Has queries to these addresses led away in conntrack zones that no flow is in, once the table is put there anew. To be said
    /// when they come here again: a connection to us, when it is led away itself, meets no entry of one that was led away from the
    /// same port. A flow that is led away at that moment is broken.
    ///
    /// # Errors
    /// Where the kernel does not say which they have now.
    pub fn take_turns(&mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Result<(), NftError> {
        self.know_turns()?;
        for address in addresses {
            if let Some(turn) = self.turns.get_mut(&address) {
                *turn = (*turn + 1) % TURNS;
            }
        }
        Ok(())
    }

    /// Goes on from those of the table that is there, whoever put it there.
    fn know_turns(&mut self) -> Result<(), NftError> {
        if self.turns.is_empty() {
            self.turns = turns_of(&self.contents()?);
        }
        Ok(())
    }

    /// What has become of the table since it was put there by this value: of its flags, its chains, its rules and its sets, but
    /// for [`plan_restart`](Self::plan_restart)'s. It is listed only where some table has changed by another process's
    /// doing: to list it costs more than all else that a server without clients does.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn standing(&mut self) -> Result<TableState, NftError> {
        // Where the kernel has none, the list says.
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

    /// How often [`standing`](Self::standing) had to list the table.
    pub fn lists(&self) -> u64 {
        self.lists
    }

    /// Whether the rules that are there are those of these listeners and clients, whoever put them there: each is looked at by what it is
    /// made of, and by its addresses.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn are_those_of(&mut self, listeners: &[Listener], clients: &Clients) -> Result<bool, NftError> {
        let there = self.contents()?;
        let turns = turns_of(&there);
        let table = |by_socket| stays((listeners, clients), by_socket, &turns);
        Ok([true, false].into_iter().any(|by_socket| there.is_of(&table(by_socket), &SETS)))
    }

    /// The addresses that the table which is there is about, whoever put it there, and where it leads their queries.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn led(&mut self) -> Result<Vec<(IpAddr, Option<IpAddr>)>, NftError> {
        Ok(self.contents()?.replaced(FAILOVER))
    }

    fn contents(&mut self) -> Result<Contents, NftError> {
        let chains = CHAINS.each_ref().map(|chain| chain.name);
        self.socket.contents(TABLE, &chains, &SETS)
    }

    /// Whether the table is there.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn are_there(&mut self) -> Result<bool, NftError> {
        Ok(self.socket.tables()?.iter().any(|table| table.name == TABLE))
    }

    /// The processes that have a table of leases, or leases in the one that has no owner.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn holders(&mut self) -> Result<Vec<u32>, NftError> {
        let tables = self.socket.tables()?;
        // One without an owner is no server's: it was loaded from a saved ruleset, or somebody made it.
        let owned = tables.iter().filter(|table| table.is_owned);
        let mut holders: Vec<_> = owned.filter_map(|table| server_of(&table.name)).collect();
        if tables.iter().any(|table| table.name == UNOWNED_LEASES) {
            let listed = self.socket.members(UNOWNED_LEASES, HOLDERS)?;
            holders.extend(listed.iter().filter_map(|holder| pid_of(holder)));
        }
        Ok(holders)
    }

    /// Those of these addresses whose queries are led away, as far as the kernel says: the table is there, only this process has leases,
    /// if any, and none is about to take them over.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn led_away(&mut self, mut addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, NftError> {
        let led = self.led()?;
        addresses.retain(|ip| led.iter().any(|(address, _)| address == ip));
        // The first processes of two containers have the same number: they are counted.
        let mut is_held = self.holders()?.len() > 1;
        for family in Family::BOTH {
            is_held |= !self.socket.members(TABLE, SetOf::Handover.name(family))?.is_empty();
        }
        Ok(if is_held { Vec::new() } else { addresses })
    }

    /// Keeps queries to these addresses in their sockets' queues for so long, although nobody has a lease: the next
    /// process is about to take them over.
    ///
    /// # Errors
    /// Where the table is not there, or the kernel refuses.
    pub fn plan_restart(&mut self, addresses: &[IpAddr], lasts: Duration) -> Result<(), NftError> {
        let mut batch = Batch::default();
        renew(&mut batch, TABLE, SetOf::Handover, addresses, Some(lasts));
        self.socket.commit_unseen(batch)
    }

    /// Whether a [`NetAdminProof`] is shown.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn is_warrant_shown(&mut self) -> Result<bool, NftError> {
        Ok(self.socket.tables()?.iter().any(|table| table.name.starts_with(WARRANT)))
    }

    /// Takes the table away, if it is there, and those of leases that have no owner.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn remove(&mut self) -> Result<(), NftError> {
        let mut batch = Batch::default();
        for table in [TABLE, UNOWNED_LEASES] {
            batch.remove_table(table);
        }
        // Where they cannot be listed the rest goes all the same.
        for table in self.socket.tables().unwrap_or_default() {
            if !table.is_owned && server_of(&table.name).is_some() {
                batch.remove_table(&table.name);
            }
        }
        self.socket.commit(batch)
    }
}

/// The process whose leases a table of this name has.
fn server_of(table: &str) -> Option<u32> {
    let owner = table.strip_prefix(TABLE)?.strip_prefix("-lease-")?;
    owner.split_once('-')?.0.parse().ok()
}

/// Proves to servers of this network namespace that an order comes from a process that may change the rules: an empty table,
/// which only CAP_NET_ADMIN can make. It goes with its value or, where the kernel knows owners, with the process.
pub struct NetAdminProof {
    socket: Socket,
    table: String,
}

impl NetAdminProof {
    /// Shows it.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, and where the kernel has no nftables.
    pub fn show() -> Result<Self, NftError> {
        let mut socket = Socket::open()?;
        // Kernels without table owners keep the warrant of a process that was killed.
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
        // Where this fails the kernel deletes the table with its owner, or the next `show` does.
        let _ = self.socket.commit(batch);
    }
}

fn transports(batch: &mut Batch, table: &str) {
    let elements = vec![vec![TCP], vec![UDP]];
    batch.add_set(table, &Set { name: TRANSPORTS, key: TRANSPORT_KEY, flags: SetFlags::empty(), elements });
}

/// What the addresses of a set have in common; there is one for each family.
#[derive(Debug, Clone, Copy)]
enum SetOf {
    /// Clients ask them.
    Listeners,
    /// The next process is about to take them over.
    Handover,
    /// They have a lease.
    Leased,
    /// Our own probes ask them.
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
/// The name of the table of leases where the kernel knows no owners.
const UNOWNED_LEASES: &str = "localdns-lease";
/// How the names of [`NetAdminProof`]s begin.
const WARRANT: &str = "localdns-down-";
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Before conntrack.
const RAW: i32 = -300;
