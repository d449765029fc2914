//! Lookups: each server is asked in turn, over UDP and then over TCP, until one of them knows. Nothing is cached, no search
//! list is used, and /etc/hosts is not read.

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

/// Which addresses of a name are asked for.
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

/// One thing to look up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Question {
    /// The name, absolute whatever it looks like.
    pub name: Name,
    /// The kind of address.
    pub family: Family,
}

/// What a lookup came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupOutcome {
    /// At least one address, and at most [`MAX_ADDRESSES`]: of the family that was asked for, sorted, each once.
    Addresses {
        /// The addresses as the server gave them: whether they may be used is for the caller to say.
        addresses: Vec<IpAddr>,
        /// Seconds: the least of the addresses' and of the aliases' on the way to them.
        ttl: u32,
    },
    /// The name does not exist (NXDOMAIN), or its alias's target does not.
    NoSuchName,
    /// The name exists, and has no address of this family (RFC 2308, section 2.2).
    NoData,
    /// Nothing is known.
    Failed(LookupError),
}

/// Why a lookup says nothing about its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LookupError {
    /// There is no server to ask.
    #[error("no server to ask")]
    NoServer,
    /// The time of the round was over before it was this name's turn.
    #[error("the round was over before it was asked")]
    OutOfTime,
    /// No reply in time.
    #[error("no reply")]
    Silent,
    /// An rcode that is neither NOERROR nor NXDOMAIN.
    #[error("the server answered {}", Rcode(*.0))]
    Rcode(u16),
    /// A reply that leads to other name servers: the one that was asked does not recurse.
    #[error("the server does not recurse")]
    Referral,
    /// A reply whose records are about other names.
    #[error("the reply is about other names")]
    Unasked,
    /// The name is an alias, and aliases are not wanted.
    #[error("the name is an alias")]
    Alias,
    /// Aliases that lead in a circle, or through more than 16 names.
    #[error("aliases without end")]
    Aliases,
    /// A reply cut off over TCP, too.
    #[error("the reply was cut off")]
    Truncated,
    /// What the kernel said.
    #[error("cannot reach the server: {0}")]
    Io(io::ErrorKind),
    /// A reply that cannot be read.
    #[error("the reply cannot be read")]
    Unreadable,
}

/// Servers to ask, in order.
pub struct Resolver {
    servers: Vec<Server>,
    follows_aliases: bool,
}

struct Server {
    address: SocketAddr,
    /// Connections over which a reply came, until the next query: never more than there are lookups at the same time.
    idle: Mutex<Vec<TcpStream>>,
    /// Did not answer the last time: asked after the others. Names that come later in a round do not wait for it again.
    silent: AtomicBool,
}

#[derive(Clone, Copy)]
enum Protocol {
    Udp,
    Tcp,
}

impl Resolver {
    /// Asks these servers, at most the first [`MAX_SERVERS`] of them. Make one for each round: it keeps connections.
    pub fn new(servers: &[SocketAddr]) -> Self {
        let servers = servers.iter().take(MAX_SERVERS).map(Server::new).collect();
        Self { servers, follows_aliases: true }
    }

    /// Follows no alias: a name that is one has failed, as [`LookupError::Alias`].
    pub fn without_aliases(self) -> Self {
        Self { follows_aliases: false, ..self }
    }

    /// Looks all of them up, at most 64 at a time; what is not begun when the time is over has failed.
    ///
    /// Must run inside a tokio runtime. The outcomes come in no order.
    pub async fn round(
        self: &Arc<Self>,
        questions: &[Question],
        within: Duration,
    ) -> Vec<(Question, LookupOutcome)> {
        let mut outcomes = Vec::with_capacity(questions.len());
        self.round_telling(questions, within, |outcome| outcomes.push(outcome)).await;
        outcomes
    }

    /// The same, and each outcome is told as soon as it is known: one silent name holds up no other.
    pub async fn round_telling(
        self: &Arc<Self>,
        questions: &[Question],
        within: Duration,
        mut tell: impl FnMut((Question, LookupOutcome)),
    ) {
        let end = Instant::now() + within;
        let mut tasks = JoinSet::new();
        for &question in questions {
            if tasks.len() >= CONCURRENT {
                tasks.join_next().await.and_then(Result::ok).into_iter().for_each(&mut tell);
            }
            let resolver = self.clone();
            tasks.spawn(async move { (question, resolver.lookup(question, until(end)).await) });
        }
        while let Some(finished) = tasks.join_next().await {
            finished.into_iter().for_each(&mut tell);
        }
    }

    /// Looks one name up: 3 s for each server and protocol, or its share of the time if there is less.
    ///
    /// The first server that knows is believed, be it that the name does not exist. One that fails is passed over, and
    /// asked over TCP once every server was asked over UDP. Takes at most `within`.
    pub async fn lookup(&self, question: Question, within: Duration) -> LookupOutcome {
        let end = Instant::now() + within;
        let mut last = LookupError::NoServer;
        // Those that were silent before come last; the order stays otherwise.
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
                // Why UDP failed says more than that time is over.
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

    /// Asks again and again: datagrams are lost.
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
        // The server may have closed it meanwhile.
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
    /// Whether another protocol may do better at the same server.
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
        // That it is an alias is known, and no other server need be asked.
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
        // With aliases in the answer the rcode is about the last of them (RFC 6604, section 3).
        if reply.rcode == Rcode::NXDOMAIN {
            return Ok(LookupOutcome::NoSuchName);
        }
        // Name servers and no SOA lead elsewhere (RFC 2308, section 2.2).
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

/// One query and its reply; once more without EDNS, where a server does not know what that is (RFC 6891, section 7).
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

/// What one try may take, if `tries` may still come.
fn share(end: Instant, tries: usize) -> Duration {
    (until(end) / tries.max(1) as u32).min(TRY)
}

/// Servers that are asked; more are passed over.
pub const MAX_SERVERS: usize = 15;
/// Addresses taken of one name and family.
pub const MAX_ADDRESSES: usize = 128;
/// The longest wait for one server over one protocol.
const TRY: Duration = Duration::from_secs(3);
/// How long a datagram is waited for until the query is sent again.
const AGAIN: Duration = Duration::from_secs(1);
/// Lookups at the same time; each has one socket.
const CONCURRENT: usize = 64;

#[cfg(test)]
mod tests;
