//! The bound endpoints: the UDP sockets that the workers serve, and the TCP listeners.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use handover::{InheritedSockets, SocketKey, SocketStore};
use node::{AddressPolicy, SocketKind};
use sockets::{ListenOptions, ListenSocket};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::bind::{
    AddedAddress, BindError, BoundEndpoint, Wanted, add, bind_one, explain, has_udp, is_family_absent,
    scope_id, with_port,
};
use super::worker_tasks::Task;
use super::{accept, quic};
use crate::server_state::ServerState;
use configuration::Configuration;
use plugin::endpoint::{Endpoint, Transport};

/// The bound endpoints of a running server.
pub struct Endpoints {
    /// The number of UDP sockets of each address that receive queries. The nth socket belongs to
    /// worker n, modulo the number of workers.
    sockets: usize,
    /// The port of all endpoints with port 0; 0 if there is none.
    free_port: u16,
    listeners: BTreeMap<Endpoint, JoinHandle<()>>,
    /// Whether the listeners accept their last connections.
    ends: watch::Sender<bool>,
    /// Endpoints with an address added to the machine by this or an earlier process.
    added: BTreeMap<Endpoint, AddedAddress>,
    /// Addresses that this process may add.
    ours: AddressPolicy,
    /// Sockets of an earlier process; once the first configuration is served, unused ones are
    /// closed.
    inherited: InheritedSockets,
    /// systemd's descriptor store, from which the next process takes the sockets.
    store: SocketStore,
}

/// Sockets bound for a configuration that is not served yet; dropping it unbinds them.
pub struct Bound {
    new: Vec<BoundEndpoint>,
    /// The number of sockets of each address, once it is served.
    sockets: usize,
    /// The port of all endpoints with port 0, once it is served.
    free_port: u16,
    /// More sockets of addresses that are bound already.
    more: Vec<(SocketAddr, usize, ListenSocket)>,
}

impl Endpoints {
    /// Creates the state in which nothing is bound but the sockets of an earlier process.
    pub fn new(ours: AddressPolicy, inherited: InheritedSockets) -> Self {
        Self {
            sockets: 0,
            free_port: 0,
            listeners: BTreeMap::new(),
            ends: watch::Sender::new(false),
            added: BTreeMap::new(),
            ours,
            inherited,
            store: SocketStore::new(),
        }
    }

    /// Binds the `endpoints` that are not bound: UDP `sockets` times, TCP once. Port 0 stands for
    /// one free port, the same for all addresses, and for UDP and TCP.
    ///
    /// # Errors
    /// The first endpoint that cannot be bound; then no new endpoint is.
    pub fn bind(
        &mut self,
        endpoints: impl Iterator<Item = Endpoint>,
        sockets: usize,
        workers: usize,
        handle: &Handle,
    ) -> Result<Bound, BindError> {
        let mut more = Vec::new();
        let (mut named, mut free) = (Vec::new(), Vec::new());
        let mut asks_for_any = false;
        for endpoint in endpoints {
            asks_for_any |= endpoint.address.port() == 0;
            if !self.listeners.contains_key(&endpoint) {
                let of = if endpoint.address.port() == 0 { &mut free } else { &mut named };
                of.push(endpoint);
                continue;
            }
            let address = with_port(endpoint.address, self.free_port);
            for nth in (self.sockets.max(workers)..sockets).filter(|_| has_udp(endpoint)) {
                let bound = ListenSocket::bind_beside(node::with_link(address), &ListenOptions::default());
                let bound = bound.map_err(|error| explain(address, SocketKind::Udp, error))?;
                // No worker reads the socket yet, or ever if a later step fails: the kernel must
                // not give it datagrams.
                bound
                    .spread_over(self.sockets as u32)
                    .map_err(|error| explain(address, SocketKind::Udp, error))?;
                more.push((endpoint.address, nth, bound));
            }
        }
        let plan = SocketPlan { sockets, workers, handle };
        let mut new = self.bind_all(&named, self.free_port, plan)?;
        let mut tries = 1;
        let of_free = loop {
            match self.bind_all(&free, self.free_port, plan) {
                // The port was free for the first address only.
                Err(BindError::InUse { .. }) if self.free_port == 0 && tries < MOST_TRIES => tries += 1,
                bound => break bound?,
            }
        };
        let chosen = of_free.first().and_then(BoundEndpoint::port).filter(|_| self.free_port == 0);
        let free_port = if asks_for_any { chosen.unwrap_or(self.free_port) } else { 0 };
        new.extend(of_free);
        Ok(Bound { new, sockets, free_port, more })
    }

    /// Binds endpoints that are not bound yet: those of port 0 at `free_port`, or at the port that
    /// the kernel chooses for the first.
    fn bind_all(
        &mut self,
        endpoints: &[Endpoint],
        mut free_port: u16,
        SocketPlan { sockets, workers, handle }: SocketPlan<'_>,
    ) -> Result<Vec<BoundEndpoint>, BindError> {
        let mut new: Vec<BoundEndpoint> = Vec::new();
        for &endpoint in endpoints {
            let address = endpoint.address;
            let served = self.listeners.keys().copied().chain(new.iter().map(|bound| bound.endpoint));
            let served = served.filter(|own| own.transport.shares_ports(endpoint.transport));
            // Inherited sockets of other addresses are read to their ends, and closed later.
            let inherited = self.inherited.addresses().filter(|inherited| *inherited != address);
            let beside = served.map(|own| own.address).chain(inherited).any(|own| overlap(own, address));
            let wanted = Wanted { endpoint, free_port, count: sockets, workers, beside };
            match bind_one(wanted, self.ours, &mut self.inherited, handle) {
                Ok(bound) => {
                    if address.port() == 0 {
                        free_port = bound.port().unwrap_or(free_port);
                    }
                    new.push(bound);
                }
                // A machine without IPv6 serves IPv4 alone; an address that is configured
                // explicitly must exist.
                Err(BindError::Other { error, .. })
                    if address.ip() == IpAddr::from([0u16; 8]) && is_family_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(new)
    }

    /// Gives new sockets to the workers and new listeners to the stream side, and closes surplus
    /// sockets of the workers.
    pub fn open(&mut self, bound: Bound, running: &Arc<ServerState>, handle: &Handle) {
        if let Some(instead) = bound.new.iter().find_map(|bound| bound.instead) {
            running.logger.info(None, &instead.to_string());
        }
        let post = |nth: usize, task| running.inboxes[nth % running.inboxes.len()].post(task);
        for (address, nth, socket) in bound.more {
            self.keep(SocketKey::Udp(node::with_link(address), nth), &socket, running);
            post(nth, Task::Open(address, nth, socket));
        }
        if bound.free_port != 0 && bound.free_port != self.free_port {
            running.logger.info(None, &format!("port 0 is {} here, over UDP and TCP", bound.free_port));
        }
        self.free_port = bound.free_port;
        running.set_free_port(bound.free_port);
        let before = std::mem::replace(&mut self.sockets, bound.sockets);
        let keep = self.sockets;
        for &Endpoint { address, .. } in self.listeners.keys().filter(|own| before != keep && has_udp(**own))
        {
            post(0, Task::Spread(address, keep));
            for nth in keep.max(running.inboxes.len())..before {
                self.store.remove(SocketKey::Udp(node::with_link(address), nth));
                post(nth, Task::CloseOne { address, nth, keep });
            }
        }
        for BoundEndpoint { endpoint, sockets, inherited, listener, quic, added, .. } in bound.new {
            if let Some(added) = added {
                self.added.insert(endpoint, added);
            }
            let (address, bound) = (endpoint.address, node::with_link(endpoint.address));
            let most = keep.max(running.inboxes.len());
            for (nth, socket) in sockets.into_iter().enumerate() {
                if nth < most {
                    self.keep(SocketKey::Udp(bound, nth), &socket, running);
                }
                post(nth, Task::Open(address, nth, socket));
                // Surplus sockets are read until they are empty, then closed.
                if nth >= most {
                    post(nth, Task::CloseOne { address, nth, keep });
                }
            }
            if inherited > 0 && inherited != keep {
                post(0, Task::Spread(address, keep));
            }
            let (running, ends) = (running.clone(), self.ends.subscribe());
            let task = match (listener, quic) {
                (Some(listener), _) => {
                    self.keep(SocketKey::Tcp(bound), &listener, &running);
                    handle.spawn(accept::accept(listener, endpoint, running, ends))
                }
                (None, Some(socket)) => {
                    self.keep(SocketKey::Udp(bound, 0), &socket, &running);
                    handle.spawn(quic::accept(socket, endpoint, running, ends))
                }
                (None, None) => continue,
            };
            self.listeners.insert(endpoint, task);
        }
    }

    /// Serves another configuration, with its endpoints already bound, and returns the previous
    /// one.
    pub fn swap(
        &mut self,
        configuration: Arc<Configuration>,
        bound: Bound,
        running: &Arc<ServerState>,
        handle: &Handle,
    ) -> Arc<Configuration> {
        let old = running.configuration.load_full();
        // Posted before the swap: a worker that reads the new configuration then finds the task for
        // a socket that is not in that configuration.
        self.close_others(|endpoint| configuration.endpoints.contains_key(endpoint), &old, running);
        running.configuration.store(configuration);
        self.open(bound, running, handle);
        old
    }

    /// Closes every endpoint for which `keep` is false; queries that wait there are served by
    /// `old`.
    fn close_others(
        &mut self,
        keep: impl Fn(&Endpoint) -> bool,
        old: &Arc<Configuration>,
        running: &ServerState,
    ) {
        self.listeners.retain(|endpoint, task| {
            let stays = keep(endpoint);
            if !stays {
                forget(&mut self.store, *endpoint);
                close(*endpoint, task, old, running);
            }
            stays
        });
        self.added.retain(|endpoint, _| keep(endpoint));
    }

    /// Whether this or an earlier process has added an address.
    pub fn has_added(&self) -> bool {
        !self.added.is_empty()
    }

    /// Restores addresses that we added and another program removed; false if one could not be
    /// restored, which is logged once.
    ///
    /// Sockets bound to an IPv4 address serve again as soon as it is back. Sockets of link-local
    /// IPv6 belong to a link, and are bound anew if the address is on another link now.
    pub fn put_back(&mut self, running: &Arc<ServerState>, handle: &Handle) -> bool {
        let mut all_there = true;
        let mut anew = Vec::new();
        let workers = running.inboxes.len();
        for (endpoint, added) in &mut self.added {
            let address = endpoint.address;
            if node::has_address(address.ip()) {
                continue;
            }
            let link = match handle.block_on(add(address, self.ours)) {
                Ok(node::EnsuredAddress::AddedTo { link, .. }) => link,
                Ok(node::EnsuredAddress::AlreadyThere { .. }) => continue,
                Err(error) => {
                    all_there = false;
                    if !std::mem::replace(&mut added.failure_logged, true) {
                        let text = format!(
                            "{} is missing from this machine and cannot be restored: {error}",
                            address.ip()
                        );
                        running.logger.error(None, &text);
                    }
                    continue;
                }
            };
            added.failure_logged = false;
            let text = format!("{} was removed from this machine and is restored on {link}", address.ip());
            running.logger.warning(None, &text);
            if scope_id(node::with_link(address)) != added.scope_id {
                let (free_port, count) = (self.free_port, self.sockets);
                let wanted = Wanted { endpoint: *endpoint, free_port, count, workers, beside: false };
                match bind_one(wanted, self.ours, &mut InheritedSockets::default(), handle) {
                    Ok(bound) => anew.push(bound),
                    Err(error) => running.logger.error(None, &error.to_string()),
                }
            }
        }
        for bound in anew {
            if let Some(task) = self.listeners.remove(&bound.endpoint) {
                forget(&mut self.store, bound.endpoint);
                close(bound.endpoint, &task, &running.configuration.load_full(), running);
            }
            let (sockets, free_port) = (self.sockets, self.free_port);
            let bound = Bound { new: vec![bound], sockets, free_port, more: Vec::new() };
            self.open(bound, running, handle);
        }
        all_there
    }

    /// Like [`Self::put_back`], but also adds every address that a start would add: a reload must
    /// do the same as a start. An address that cannot be added is logged, and its sockets stay.
    pub fn put_back_all(&mut self, running: &Arc<ServerState>, handle: &Handle) -> bool {
        for endpoint in self.listeners.keys().filter(|own| !own.address.ip().is_unspecified()) {
            let address = endpoint.address;
            if !self.added.contains_key(endpoint) && !node::has_address(address.ip()) {
                if self.ours.includes(address.ip()) {
                    let scope_id = scope_id(address);
                    self.added.insert(*endpoint, AddedAddress { scope_id, failure_logged: false });
                } else {
                    let text =
                        format!("no interface has {} any more: queries to it are not answered", address.ip());
                    running.logger.warning(None, &text);
                }
            }
        }
        self.put_back(running, handle)
    }

    /// Returns the addresses that we added to the machine, in this or an earlier process.
    pub fn added(&self) -> Vec<IpAddr> {
        self.added.keys().map(|endpoint| endpoint.address.ip()).collect()
    }

    /// Returns which addresses we may add.
    pub fn ours(&self) -> AddressPolicy {
        self.ours
    }

    /// Adds and restores no address from now on.
    pub fn let_go(&mut self) {
        self.ours = AddressPolicy::Nothing;
        self.added.clear();
    }

    /// Makes the service manager keep the sockets for its next process, and nothing else.
    pub fn offer(&mut self, notifier: &node::Notifier) {
        self.store.offer(std::mem::take(&mut self.inherited), notifier);
    }

    /// Makes the service manager keep nothing.
    pub fn withdraw(&mut self, notifier: &node::Notifier) {
        handover::forget(std::mem::take(&mut self.inherited), notifier);
        self.store.withdraw();
    }

    /// Makes the service manager keep the cache's contents with the sockets.
    pub fn leave(&mut self, warm: Option<OwnedFd>) {
        self.store.store_snapshot(warm);
    }

    /// Returns copies of all sockets, for another process, and the cache's contents.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn copies(&self, warm: Option<OwnedFd>) -> io::Result<Vec<(String, OwnedFd)>> {
        self.store.all(warm)
    }

    /// Accepts TCP connections again.
    pub fn accept_again(&mut self, running: &Arc<ServerState>, handle: &Handle) {
        for (endpoint, task) in &mut self.listeners {
            let (address, is_quic) =
                (node::with_link(endpoint.address), endpoint.transport == Transport::Quic);
            let key = if is_quic { SocketKey::Udp(address, 0) } else { SocketKey::Tcp(address) };
            let (running, ends) = (running.clone(), self.ends.subscribe());
            *task = match self.store.copy(key) {
                Some(socket) if is_quic => {
                    handle.spawn(quic::accept(socket.into(), *endpoint, running, ends))
                }
                Some(listener) => handle.spawn(accept::accept(listener.into(), *endpoint, running, ends)),
                None => {
                    running.fatal(&format!("cannot serve {endpoint} again"));
                    continue;
                }
            }
        }
    }

    /// Drops all listeners and copies; the workers drop their own sockets.
    pub fn drop_all(&mut self) {
        self.stop_accepting();
        self.store = SocketStore::new();
        self.added.clear();
    }

    /// Returns the number of descriptors that a restart hands over, and how many of them the
    /// service manager keeps, if that is fewer.
    pub fn beyond_store(&self, notifier: &node::Notifier) -> Option<(usize, usize)> {
        self.store.beyond_store(notifier)
    }

    /// Whether the next process gets the sockets, with the queries in them.
    pub fn are_left(&self) -> bool {
        self.store.is_offered()
    }

    /// Keeps a copy of a socket for the next process. If there is no descriptor for it, that
    /// process binds its own.
    fn keep(&mut self, key: SocketKey, socket: &impl AsFd, running: &ServerState) {
        if let Err(error) = self.store.insert(key, socket) {
            running.logger.warning(None, &format!("a restart will lose what waits in a socket: {error}"));
        }
    }

    /// Stops accepting TCP connections for good: new ones are refused, unless the next process gets
    /// the listeners. Queued connections are still served: the kernel would reset them.
    pub fn close_listeners(&mut self, handle: &Handle) {
        if self.are_left() {
            return self.stop_accepting();
        }
        self.ends.send_replace(true);
        let last = async {
            for task in self.listeners.values_mut() {
                let _ = task.await;
            }
        };
        // A listener that pauses, as descriptors are short, is not waited for.
        let _ = handle.block_on(async { tokio::time::timeout(LAST_CONNECTIONS, last).await });
        self.stop_accepting();
        self.store = SocketStore::new();
    }

    /// Stops accepting TCP connections; open ones continue.
    pub fn stop_accepting(&mut self) {
        for task in self.listeners.values() {
            task.abort();
        }
    }
}

/// Parameters for giving an endpoint's sockets to the workers.
#[derive(Clone, Copy)]
struct SocketPlan<'h> {
    sockets: usize,
    workers: usize,
    handle: &'h Handle,
}

/// How often to try to find a port that is free for all endpoints with port 0.
const MOST_TRIES: u32 = 64;
/// How long listeners may take for their last connections.
const LAST_CONNECTIONS: Duration = Duration::from_millis(200);

/// Removes an endpoint's sockets from those that the next process gets; another endpoint may have
/// the same port for UDP or TCP.
fn forget(store: &mut SocketStore, endpoint: Endpoint) {
    let address = node::with_link(endpoint.address);
    match endpoint.transport {
        Transport::Dns => store.remove_address(address),
        Transport::Tls | Transport::Https => store.remove(SocketKey::Tcp(address)),
        Transport::Quic => store.remove(SocketKey::Udp(address, 0)),
    }
}

/// Closes an endpoint. Its UDP sockets are read until they are empty, and queries there are served
/// by `configuration`.
fn close(
    endpoint: Endpoint,
    task: &JoinHandle<()>,
    configuration: &Arc<Configuration>,
    running: &ServerState,
) {
    task.abort();
    for inbox in running.inboxes.iter().filter(|_| has_udp(endpoint)) {
        inbox.post(Task::Close(endpoint.address, configuration.clone()));
    }
}

/// Whether both addresses accept connections to the same address and port: one of them is the
/// wildcard, or one replaces the other, as when a reload changes the transport.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && one.is_ipv4() == other.is_ipv4()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}
