//! Lookups: tries the servers in order, over UDP and then over TCP, or encrypted, until one gives an answer. Has no cache, uses no
//! search list, and does not read /etc/hosts.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hickory_proto::op::{DnsRequest, DnsRequestOptions, Query, ResponseCode};
use hickory_proto::rr::{Name as HickoryName, RecordType};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::connections::{CONCURRENT, Connections, Protocol, TRY};
use crate::outcome::{Family, LookupError, LookupOutcome, Question};
use crate::server::Server;
use reply::{Chain, Reply};

mod reply;

/// A stub resolver with a list of servers.
pub struct Resolver {
    servers: Vec<Connections>,
    follows_aliases: bool,
}

impl Resolver {
    /// A resolver of the first [`MAX_SERVERS`] servers. It keeps a connection to each server that was asked over a stream: make one
    /// for rounds that follow each other closely.
    pub fn new<S: Clone + Into<Server>>(servers: &[S]) -> Self {
        let servers = servers.iter().take(MAX_SERVERS).cloned().map(Into::into).map(Connections::new);
        Self { servers: servers.collect(), follows_aliases: true }
    }

    /// Whether it asks these servers, with equal settings.
    pub fn asks(&self, servers: &[Server]) -> bool {
        self.servers.iter().map(|connections| &connections.server).eq(servers.iter().take(MAX_SERVERS))
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
        self.servers.iter().for_each(|server| server.silent.store(false, Relaxed));
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
    /// Returns the first answer, NXDOMAIN included. A server that fails is skipped; one that is asked over UDP is tried over TCP once
    /// all servers were tried. Takes at most `within`.
    pub async fn lookup(&self, question: Question, within: Duration) -> LookupOutcome {
        let end = Instant::now() + within;
        let mut last = LookupError::NoServer;
        // Servers that were silent before are last; otherwise the order stays.
        let (mut order, silent): (Vec<_>, Vec<_>) =
            self.servers.iter().partition(|server| !server.silent.load(Relaxed));
        order.extend(silent);
        let mut over_tcp: Vec<&Connections> = Vec::new();
        let ask = |server, protocol, within| ask(server, protocol, question, self.follows_aliases, within);
        for (at, server) in order.iter().enumerate() {
            let protocol = server.first_protocol();
            // UDP and then TCP at each server that is left, and TCP at those that were silent over UDP.
            let left = &order[at..];
            let over_udp = left.iter().filter(|server| server.first_protocol() == Protocol::Udp).count();
            let tries = left.len() + over_tcp.len() + over_udp;
            match ask(server, protocol, share(end, tries)).await {
                Err(LookupError::Truncated) if protocol == Protocol::Udp => {
                    match ask(server, Protocol::Stream, share(end, tries)).await {
                        Ok(outcome) => return spoke(server, outcome),
                        Err(error) => last = error,
                    }
                }
                Ok(outcome) => return spoke(server, outcome),
                Err(error) => {
                    last = error;
                    if error.may_be_the_protocols() {
                        server.silent.store(true, Relaxed);
                        if protocol == Protocol::Udp {
                            over_tcp.push(server);
                        }
                    }
                }
            }
        }
        let waiting = over_tcp.len();
        for (at, server) in over_tcp.into_iter().enumerate() {
            match ask(server, Protocol::Stream, share(end, waiting - at)).await {
                Ok(outcome) => return spoke(server, outcome),
                // The error of UDP is more specific than a timeout.
                Err(LookupError::OutOfTime) => {}
                Err(error) => last = error,
            }
        }
        LookupOutcome::Failed(last)
    }
}

impl LookupError {
    /// Whether the same server may answer over another protocol.
    fn may_be_the_protocols(self) -> bool {
        matches!(
            self,
            Self::Silent
                | Self::OutOfTime
                | Self::Io(_)
                | Self::Unreadable
                | Self::Certificate(_)
                | Self::Handshake
                | Self::Http
        )
    }
}

fn spoke(server: &Connections, outcome: LookupOutcome) -> LookupOutcome {
    server.silent.store(false, Relaxed);
    outcome
}

/// One server over one protocol.
async fn ask(
    server: &Connections,
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
    server: &Connections,
    protocol: Protocol,
    question: Question,
    follows_aliases: bool,
) -> Result<LookupOutcome, LookupError> {
    let mut chain = Chain::new(reply::name(&question.name)?, follows_aliases);
    loop {
        let asked = chain.name.clone();
        let reply = exchange(server, protocol, &asked, question.family).await?;
        if let Some(addresses) = chain.read(&reply, question.family)? {
            return Ok(LookupOutcome::Addresses { addresses, ttl: chain.ttl });
        }
        // With aliases in the answer the rcode is of the last of them (RFC 6604, section 3).
        if reply.rcode == ResponseCode::NXDomain {
            return Ok(LookupOutcome::NoSuchName);
        }
        // Name servers without an SOA: a referral (RFC 2308, section 2.2).
        let (soa, empty) = (reply.has_authority(RecordType::SOA), reply.is_empty());
        match chain.name == asked {
            true if empty && !soa && reply.has_authority(RecordType::NS) => {
                return Err(LookupError::Referral);
            }
            true if empty => return Ok(LookupOutcome::NoData),
            true => return Err(LookupError::Unasked),
            false if soa => return Ok(LookupOutcome::NoData),
            false => {}
        }
    }
}

/// One query and its reply; repeated without EDNS if the server does not support it (RFC 6891, section 7).
async fn exchange(
    server: &Connections,
    protocol: Protocol,
    name: &HickoryName,
    family: Family,
) -> Result<Reply, LookupError> {
    let rtype = match family {
        Family::Ipv4 => RecordType::A,
        Family::Ipv6 => RecordType::AAAA,
    };
    let request = |edns| {
        let mut options = DnsRequestOptions::default();
        (options.use_edns, options.edns_payload_len) = (edns, wire::UDP_SIZE);
        DnsRequest::from_query(Query::query(name.clone(), rtype), options)
    };
    let mut reply = Reply::read(server.exchange(protocol, request(true)).await?)?;
    if matches!(reply.rcode, ResponseCode::FormErr | ResponseCode::NotImp | ResponseCode::BADVERS) {
        reply = Reply::read(server.exchange(protocol, request(false)).await?)?;
    }
    match reply.rcode {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(reply),
        other => Err(LookupError::Rcode(other.into())),
    }
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

#[cfg(test)]
mod tests;
