//! Lookups: tries the servers in order, over UDP and then over TCP, until one gives an answer. Has no cache, uses no search list, and
//! does not read /etc/hosts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use wire::{Class, Flags, Name, RType, Rcode};

use crate::exchange::{over_stream, over_udp, udp_socket};
use crate::message::{add_edns, query};
use reply::{Chain, Reply};

mod reply;

/// The address family of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// A records.
    Ipv4,
    /// AAAA records.
    Ipv6,
}

impl Family {
    /// `A` or `AAAA`.
    pub fn rtype(self) -> &'static str {
        match self {
            Self::Ipv4 => "A",
            Self::Ipv6 => "AAAA",
        }
    }

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }
}

/// A name and family to look up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Question {
    /// The name; always absolute.
    pub name: Name,
    /// The address family.
    pub family: Family,
}

/// The outcome of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupOutcome {
    /// One to [`MAX_ADDRESSES`] addresses of the family, sorted, each once.
    Addresses {
        /// The addresses of the reply, unfiltered: the caller must check whether they may be used.
        addresses: Vec<IpAddr>,
        /// The minimum TTL of addresses and aliases, in seconds.
        ttl: u32,
    },
    /// The name does not exist (NXDOMAIN), or its alias's target does not.
    NoSuchName,
    /// The name exists, and has no address of this family (RFC 2308, section 2.2).
    NoData,
    /// The lookup failed.
    Failed(LookupError),
}

/// Why a lookup failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LookupError {
    /// There is no server.
    #[error("no server to ask")]
    NoServer,
    /// The round timed out before this name was looked up.
    #[error("the round was over before it was asked")]
    OutOfTime,
    /// No reply in time.
    #[error("no reply")]
    Silent,
    /// An rcode that is neither NOERROR nor NXDOMAIN.
    #[error("the server answered {}", Rcode(*.0))]
    Rcode(u16),
    /// A referral: the server does not recurse.
    #[error("the server does not recurse")]
    Referral,
    /// A reply with records of other names.
    #[error("the reply is about other names")]
    Unasked,
    /// The name is an alias, and the resolver follows none.
    #[error("the name is an alias")]
    Alias,
    /// An alias loop, or more than 16 aliases.
    #[error("aliases without end")]
    Aliases,
    /// A truncated reply over TCP.
    #[error("the reply was cut off")]
    Truncated,
    /// The kernel's error.
    #[error("cannot reach the server: {0}")]
    Io(io::ErrorKind),
    /// A malformed reply.
    #[error("the reply cannot be read")]
    Unreadable,
}

/// A stub resolver with a list of servers.
pub struct Resolver {
    servers: Vec<Server>,
    follows_aliases: bool,
}

struct Server {
    address: SocketAddr,
    /// Idle connections that had a reply: at most as many as concurrent lookups.
    idle: Mutex<Vec<TcpStream>>,
    /// Servers without a reply to their last query: tried after the others, so that later names do not wait for them again.
    silent: AtomicBool,
}

#[derive(Clone, Copy)]
enum Protocol {
    Udp,
    Tcp,
}

impl Resolver {
    /// A resolver of the first [`MAX_SERVERS`] servers. Make one for each round, since it keeps connections.
    pub fn new(servers: &[SocketAddr]) -> Self {
        let servers = servers.iter().take(MAX_SERVERS).map(Server::new).collect();
        Self { servers, follows_aliases: true }
    }

    /// Follows no alias: the lookup of one fails with [`LookupError::Alias`].
    pub fn without_aliases(self) -> Self {
        Self { follows_aliases: false, ..self }
    }

    /// Looks up all questions, at most 64 at a time; those not begun within the time fail.
    ///
    /// Must run inside a tokio runtime. The outcomes are unordered.
    pub async fn round(
        self: &Arc<Self>,
        questions: &[Question],
        within: Duration,
    ) -> Vec<(Question, LookupOutcome)> {
        let mut outcomes = Vec::with_capacity(questions.len());
        self.round_with(questions, within, |outcome| outcomes.push(outcome)).await;
        outcomes
    }

    /// Looks up all questions as [`Self::round`] does, but reports each outcome at once, so that a
    /// name without a reply does not delay others.
    pub async fn round_with(
        self: &Arc<Self>,
        questions: &[Question],
        within: Duration,
        mut on_result: impl FnMut((Question, LookupOutcome)),
    ) {
        let end = Instant::now() + within;
        let mut tasks = JoinSet::new();
        for &question in questions {
            if tasks.len() >= CONCURRENT {
                tasks.join_next().await.and_then(Result::ok).into_iter().for_each(&mut on_result);
            }
            let resolver = self.clone();
            tasks.spawn(async move { (question, resolver.lookup(question, until(end)).await) });
        }
        while let Some(finished) = tasks.join_next().await {
            finished.into_iter().for_each(&mut on_result);
        }
    }

    /// Looks up one name, with 3 s for each server and protocol, or its share of `within` if that is less.
    ///
    /// Returns the first answer, NXDOMAIN included. A server that fails is skipped, and tried over TCP once all servers were tried over
    /// UDP. Takes at most `within`.
    pub async fn lookup(&self, question: Question, within: Duration) -> LookupOutcome {
        let end = Instant::now() + within;
        let mut last = LookupError::NoServer;
        // Servers that were silent before are last; otherwise the order stays.
        let (mut order, silent): (Vec<_>, Vec<_>) =
            self.servers.iter().partition(|server| !server.silent.load(Relaxed));
        order.extend(silent);
        let mut over_tcp: Vec<&Server> = Vec::new();
        let ask = |server, protocol, within| ask(server, protocol, question, self.follows_aliases, within);
        for (at, server) in order.iter().enumerate() {
            let tries = (order.len() - at) + over_tcp.len() + (order.len() - at);
            match ask(server, Protocol::Udp, share(end, tries)).await {
                Err(LookupError::Truncated) => match ask(server, Protocol::Tcp, share(end, tries)).await {
                    Ok(outcome) => return server.spoke(outcome),
                    Err(error) => last = error,
                },
                Ok(outcome) => return server.spoke(outcome),
                Err(error) => {
                    last = error;
                    if error.may_be_the_protocols() {
                        server.silent.store(true, Relaxed);
                        over_tcp.push(server);
                    }
                }
            }
        }
        let waiting = over_tcp.len();
        for (at, server) in over_tcp.into_iter().enumerate() {
            match ask(server, Protocol::Tcp, share(end, waiting - at)).await {
                Ok(outcome) => return server.spoke(outcome),
                // The error of UDP is more specific than a timeout.
                Err(LookupError::OutOfTime) => {}
                Err(error) => last = error,
            }
        }
        LookupOutcome::Failed(last)
    }
}

impl Server {
    fn new(address: &SocketAddr) -> Self {
        Self { address: *address, idle: Mutex::default(), silent: AtomicBool::new(false) }
    }

    async fn exchange(&self, protocol: Protocol, query: &[u8]) -> io::Result<Vec<u8>> {
        match protocol {
            Protocol::Udp => self.over_udp(query).await,
            Protocol::Tcp => self.over_tcp(query).await,
        }
    }

    /// Sends the query repeatedly, since datagrams may be lost.
    async fn over_udp(&self, query: &[u8]) -> io::Result<Vec<u8>> {
        let socket = udp_socket(self.address, None).await?;
        loop {
            if let Ok(reply) = timeout(AGAIN, over_udp(&socket, query)).await {
                return reply;
            }
        }
    }

    async fn over_tcp(&self, query: &[u8]) -> io::Result<Vec<u8>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // The server may have closed the idle connection.
        if let Some(mut stream) = idle
            && let Ok(reply) = over_stream(&mut stream, query).await
        {
            self.keep(stream);
            return Ok(reply);
        }
        let mut stream = TcpStream::connect(self.address).await?;
        let reply = over_stream(&mut stream, query).await?;
        self.keep(stream);
        Ok(reply)
    }

    fn keep(&self, stream: TcpStream) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    fn spoke(&self, outcome: LookupOutcome) -> LookupOutcome {
        self.silent.store(false, Relaxed);
        outcome
    }
}

impl LookupError {
    /// Whether the same server may answer over another protocol.
    fn may_be_the_protocols(self) -> bool {
        matches!(self, Self::Silent | Self::OutOfTime | Self::Io(_) | Self::Unreadable)
    }
}

/// One server over one protocol.
async fn ask(
    server: &Server,
    protocol: Protocol,
    question: Question,
    follows_aliases: bool,
    within: Duration,
) -> Result<LookupOutcome, LookupError> {
    if within.is_zero() {
        return Err(LookupError::OutOfTime);
    }
    match timeout(within, follow(server, protocol, question, follows_aliases)).await {
        // The name is an alias: no other server needs to be tried.
        Ok(Err(LookupError::Alias)) => Ok(LookupOutcome::Failed(LookupError::Alias)),
        Ok(outcome) => outcome,
        Err(_) => Err(LookupError::Silent),
    }
}

async fn follow(
    server: &Server,
    protocol: Protocol,
    question: Question,
    follows_aliases: bool,
) -> Result<LookupOutcome, LookupError> {
    let mut chain = Chain::new(question.name, follows_aliases);
    loop {
        let asked = chain.name;
        let reply = exchange(server, protocol, &asked, question.family).await?;
        if let Some(addresses) = chain.read(&reply, question.family)? {
            return Ok(LookupOutcome::Addresses { addresses, ttl: chain.ttl });
        }
        // With aliases in the answer the rcode is of the last of them (RFC 6604, section 3).
        if reply.rcode == Rcode::NXDOMAIN {
            return Ok(LookupOutcome::NoSuchName);
        }
        // Name servers without an SOA: a referral (RFC 2308, section 2.2).
        let (soa, empty) = (reply.has_authority(RType::SOA), reply.is_empty());
        match chain.name == asked {
            true if empty && !soa && reply.has_authority(RType::NS) => return Err(LookupError::Referral),
            true if empty => return Ok(LookupOutcome::NoData),
            true => return Err(LookupError::Unasked),
            false if soa => return Ok(LookupOutcome::NoData),
            false => {}
        }
    }
}

/// One query and its reply; repeated without EDNS if the server does not support it (RFC 6891, section 7).
async fn exchange(
    server: &Server,
    protocol: Protocol,
    name: &Name,
    family: Family,
) -> Result<Reply, LookupError> {
    let rtype = match family {
        Family::Ipv4 => RType::A,
        Family::Ipv6 => RType::AAAA,
    };
    let mut query = query(rand::random(), Flags::RD, name, rtype, Class::IN);
    let plain = query.clone();
    add_edns(&mut query);
    let mut reply = once(server, protocol, &query).await?;
    if matches!(reply.rcode, Rcode::FORMERR | Rcode::NOTIMP | Rcode::BADVERS) {
        reply = once(server, protocol, &plain).await?;
    }
    match reply.rcode {
        Rcode::NOERROR | Rcode::NXDOMAIN => Ok(reply),
        other => Err(LookupError::Rcode(other.0)),
    }
}

async fn once(server: &Server, protocol: Protocol, query: &[u8]) -> Result<Reply, LookupError> {
    let octets = server.exchange(protocol, query).await.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => LookupError::Unreadable,
        kind => LookupError::Io(kind),
    })?;
    Reply::read(octets, query)
}

fn until(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// The time for one of `tries` remaining tries.
fn share(end: Instant, tries: usize) -> Duration {
    (until(end) / tries.max(1) as u32).min(TRY)
}

/// Maximum number of servers; more are ignored.
pub const MAX_SERVERS: usize = 15;
/// Maximum number of addresses of one name and family.
pub const MAX_ADDRESSES: usize = 128;
/// Maximum wait for one server over one protocol.
const TRY: Duration = Duration::from_secs(3);
/// The time after which a query over UDP is sent again.
const AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of concurrent lookups; each has one socket.
const CONCURRENT: usize = 64;

#[cfg(test)]
mod tests;
