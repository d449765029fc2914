//! Lookups: each server is asked in turn, over UDP and then over TCP, until one of them knows.
//!
//! There is a pool of hickory-resolver's for each server and protocol, and the turns are ours: a pool with several
//! servers spends its whole time on the first, if that one is silent. Nothing is cached, no search list is used, and
//! /etc/hosts is not read.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::xfer::FirstAnswer as _;
use hickory_resolver::net::{DnsError, DnsHandle as _, NetError};
use hickory_resolver::proto::op::{DnsRequestOptions, Message, Query, ResponseCode};
use hickory_resolver::proto::rr::{Name as HickoryName, RData, RecordType};
use hickory_resolver::{NameServerPool, PoolContext, TlsConfig};
use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use wire::Name;

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
    #[error("the server answered {}", ResponseCode::from((.0 >> 4) as u8, (.0 & 15) as u8))]
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
    udp: Pool,
    tcp: Pool,
    /// Did not answer the last time: asked after the others. Names that come later in a round do not wait for it again.
    silent: AtomicBool,
}

type Pool = NameServerPool<TokioRuntimeProvider>;

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
        let ask = |pool, within| ask(pool, question, self.follows_aliases, within);
        for (at, server) in order.iter().enumerate() {
            let tries = (order.len() - at) + over_tcp.len() + (order.len() - at);
            match ask(&server.udp, share(end, tries)).await {
                Err(LookupError::Truncated) => match ask(&server.tcp, share(end, tries)).await {
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
            match ask(&server.tcp, share(end, waiting - at)).await {
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
        let pool = |mut connection: ConnectionConfig| {
            connection.port = address.port();
            let server = NameServerConfig::new(address.ip(), true, vec![connection]);
            let mut options = ResolverOpts::default();
            (options.timeout, options.attempts, options.cache_size) = (TRY, 0, 0);
            (options.num_concurrent_reqs, options.max_active_requests) = (1, CONCURRENT);
            // Without the feature for TLS there is nothing in it that can fail.
            let tls = TlsConfig::new().expect("no TLS to set up");
            let context = Arc::new(PoolContext::new(options, tls));
            Pool::from_config([server], context, TokioRuntimeProvider::default())
        };
        Self {
            udp: pool(ConnectionConfig::udp()),
            tcp: pool(ConnectionConfig::tcp()),
            silent: AtomicBool::new(false),
        }
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
    pool: &Pool,
    question: Question,
    follows_aliases: bool,
    within: Duration,
) -> Result<LookupOutcome, LookupError> {
    if within.is_zero() {
        return Err(LookupError::OutOfTime);
    }
    match timeout(within, follow(pool, question, follows_aliases)).await {
        // That it is an alias is known, and no other server need be asked.
        Ok(Err(LookupError::Alias)) => Ok(LookupOutcome::Failed(LookupError::Alias)),
        Ok(outcome) => outcome,
        Err(_) => Err(LookupError::Silent),
    }
}

async fn follow(
    pool: &Pool,
    question: Question,
    follows_aliases: bool,
) -> Result<LookupOutcome, LookupError> {
    let mut name = HickoryName::from_labels(question.name.labels()).map_err(|_| LookupError::Unreadable)?;
    name.set_fqdn(true);
    let rtype = match question.family {
        Family::Ipv4 => RecordType::A,
        Family::Ipv6 => RecordType::AAAA,
    };
    let mut chain = Chain { name, follows_aliases, aliases: 0, ttl: u32::MAX };
    loop {
        let asked = chain.aliases;
        let reply = match exchange(pool, &chain.name, rtype).await {
            Ok(reply) => reply,
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
                return match none.response_code {
                    ResponseCode::NXDomain => Ok(LookupOutcome::NoSuchName),
                    // Name servers and no SOA lead elsewhere (RFC 2308, section 2.2).
                    _ if none.ns.is_some() && none.soa.is_none() => Err(LookupError::Referral),
                    _ => Ok(LookupOutcome::NoData),
                };
            }
            Err(error) => return Err(reason(&error)),
        };
        if let Some(addresses) = chain.read(&reply, question.family)? {
            return Ok(LookupOutcome::Addresses { addresses, ttl: chain.ttl });
        }
        match reply.response_code {
            // With aliases in the answer the rcode is about the last of them (RFC 6604, section 3).
            ResponseCode::NXDomain => return Ok(LookupOutcome::NoSuchName),
            ResponseCode::NoError => {}
            other => return Err(LookupError::Rcode(other.into())),
        }
        if chain.aliases == asked {
            return Err(LookupError::Unasked);
        }
        if reply.authorities.iter().any(|record| record.record_type() == RecordType::SOA) {
            return Ok(LookupOutcome::NoData);
        }
    }
}

/// Where a lookup has got to, alias by alias.
struct Chain {
    name: HickoryName,
    follows_aliases: bool,
    aliases: usize,
    ttl: u32,
}

impl Chain {
    /// Goes along the aliases of a reply, to the addresses if they are there. Records of other names are passed over.
    fn read(&mut self, reply: &Message, family: Family) -> Result<Option<Vec<IpAddr>>, LookupError> {
        loop {
            let own = || reply.answers.iter().filter(|record| record.name == self.name);
            let mut addresses: Vec<(IpAddr, u32)> = own()
                .filter_map(|record| match (&record.data, family) {
                    (RData::A(address), Family::Ipv4) => Some((IpAddr::V4(address.0), record.ttl)),
                    (RData::AAAA(address), Family::Ipv6) => Some((IpAddr::V6(address.0), record.ttl)),
                    _ => None,
                })
                .collect();
            addresses.sort_unstable();
            addresses.dedup_by_key(|(address, _)| *address);
            addresses.truncate(MAX_ADDRESSES);
            if !addresses.is_empty() {
                self.ttl = addresses.iter().map(|(_, ttl)| seconds(*ttl)).fold(self.ttl, u32::min);
                return Ok(Some(addresses.into_iter().map(|(address, _)| address).collect()));
            }
            let alias = own().find_map(|record| match &record.data {
                RData::CNAME(target) => Some((target.0.clone(), record.ttl)),
                _ => None,
            });
            let Some((target, ttl)) = alias else {
                return Ok(None);
            };
            if !self.follows_aliases {
                return Err(LookupError::Alias);
            }
            self.ttl = self.ttl.min(seconds(ttl));
            self.name = target;
            self.aliases += 1;
            if self.aliases > MAX_ALIASES {
                return Err(LookupError::Aliases);
            }
        }
    }
}

/// One query and its reply; once more without EDNS, where a server does not know what that is (RFC 6891, section 7).
async fn exchange(pool: &Pool, name: &HickoryName, rtype: RecordType) -> Result<Message, NetError> {
    let mut options = DnsRequestOptions::default();
    (options.recursion_desired, options.use_edns) = (true, true);
    let query = Query::query(name.clone(), rtype);
    let reply = match pool.lookup(query.clone(), options).first_answer().await {
        Err(NetError::Dns(DnsError::ResponseCode(
            ResponseCode::FormErr | ResponseCode::NotImp | ResponseCode::BADVERS,
        ))) => {
            options.use_edns = false;
            pool.lookup(query, options).first_answer().await
        }
        reply => reply,
    };
    reply.map(hickory_resolver::proto::op::DnsResponse::into_message)
}

fn reason(error: &NetError) -> LookupError {
    match error {
        NetError::Dns(DnsError::ResponseCode(code)) => LookupError::Rcode((*code).into()),
        NetError::Timeout => LookupError::Silent,
        NetError::Truncated => LookupError::Truncated,
        NetError::Io(error) => LookupError::Io(error.kind()),
        NetError::NoConnections | NetError::Busy => LookupError::Io(io::ErrorKind::NotConnected),
        _ => LookupError::Unreadable,
    }
}

/// A TTL with the highest bit set counts as 0 (RFC 2181, section 8).
fn seconds(ttl: u32) -> u32 {
    if ttl > i32::MAX as u32 { 0 } else { ttl }
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
/// Lookups at the same time. One needs up to four sockets, as its query is repeated in silence.
const CONCURRENT: usize = 64;
const MAX_ALIASES: usize = 16;

#[cfg(test)]
mod tests;
