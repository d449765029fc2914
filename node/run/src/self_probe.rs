//! Sends probe queries of this server to itself, over UDP until every worker has answered, and over
//! TCP, TLS, HTTPS and QUIC.
//!
//! Under a flood, a full socket queue may drop a probe, which must not count as a failure of a
//! working server. A lost UDP probe counts as answered if its worker has received any datagram from
//! that socket since the round began, a lost TCP or TLS probe if any client message was received
//! over a connection to that endpoint. A worker that hangs receives nothing; an accepted connection
//! alone proves nothing.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use listen::{Expected, ServerState};
use plugin::endpoint::{Endpoint, Transport};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use wire::{Class, Flags, Name, RType};

/// The port of plain DNS.
pub const DNS_PORT: u16 = 53;

/// The failed probe of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeFailure {
    /// The reason.
    pub why: String,
    /// Whether another process answers at the address.
    pub is_taken: bool,
}

impl ProbeFailure {
    fn new(mut why: String, is_taken: bool) -> Self {
        if is_taken {
            why += ANOTHER_ANSWERS;
        }
        Self { why, is_taken }
    }
}

/// How an endpoint is probed.
#[derive(Debug, Clone, Copy)]
pub struct ProbeOptions {
    /// SO_MARK of the probe's packets.
    pub mark: Option<u32>,
    /// Time limit of one datagram, before the next is sent from another port.
    pub one_probe: Duration,
    /// Time limit of one connection, before the next is tried.
    pub one_stream: Duration,
}

impl ProbeOptions {
    fn mark(&self, socket: &impl AsFd) -> std::io::Result<()> {
        self.mark.map_or(Ok(()), |mark| SockRef::from(socket).set_mark(mark))
    }
}

/// Probes over UDP, each time from a new source port: the kernel spreads source ports over the
/// first `workers` workers, which read this address.
pub async fn udp(
    running: &ServerState,
    endpoint: Endpoint,
    workers: usize,
    query: &[u8],
    manner: &ProbeOptions,
    until: Instant,
) -> Result<(), ProbeFailure> {
    let target = reachable(running.bound(endpoint.address));
    let mut is_taken = false;
    let taken = || (0..workers).map(move |worker| running.taken.count(endpoint, worker));
    let before: Vec<u64> = taken().collect();
    let mut answered = vec![false; workers];
    while Instant::now() < until {
        let mut probe = pin!(timeout(manner.one_probe, ask(target, query, manner)));
        let mut look = |answer: Option<usize>| {
            for (worker, (answered, (now, before))) in
                answered.iter_mut().zip(taken().zip(&before)).enumerate()
            {
                *answered |= now != *before || answer == Some(worker);
            }
            answered.iter().all(|answered| *answered)
        };
        let ended = loop {
            match timeout(LOOK, &mut probe).await {
                Ok(ended) => break ended,
                // Under a flood the probe may be dropped or queued while the worker receives other
                // datagrams.
                Err(_) if look(None) => return Ok(()),
                Err(_) => {}
            }
        };
        let answer = match ended {
            Ok(Ok(worker)) if worker < workers => Some(worker),
            lost => {
                is_taken |= matches!(&lost, Ok(Err(error)) if is_of_others(error));
                // Probably an immediate ICMP error: without a pause this would be a busy loop.
                if lost.is_ok() {
                    sleep(REFUSED_PAUSE).await;
                }
                None
            }
        };
        if look(answer) {
            return Ok(());
        }
    }
    let silent: Vec<String> =
        (0..workers).filter(|worker| !answered[*worker]).map(|worker| worker.to_string()).collect();
    let why = format!("{target} does not answer over UDP (worker {})", silent.join(", "));
    // Another process has the address only if no worker of this process answered.
    Err(ProbeFailure::new(why, is_taken && silent.len() == workers))
}

/// Probes over TCP, TLS, HTTPS or QUIC. If a connection gets no reply in time, another is opened, and a reply on
/// either suffices.
pub async fn stream(
    running: &Arc<ServerState>,
    endpoint: Endpoint,
    query: &Arc<[u8]>,
    manner: &ProbeOptions,
    until: Instant,
) -> Result<(), ProbeFailure> {
    let target = reachable(running.bound(endpoint.address));
    let mut is_taken = false;
    let has_tls =
        running.configuration.load().endpoints.get(&endpoint).is_some_and(|plan| plan.tls.is_some());
    let taken = || running.taken.count(endpoint, running.workers());
    let before = taken();
    let (mut asked, mut next) = (JoinSet::new(), Instant::now());
    while Instant::now() < until {
        if Instant::now() >= next {
            next = Instant::now() + manner.one_stream;
            let (running, query, manner) = (running.clone(), query.clone(), *manner);
            asked.spawn(async move {
                match (endpoint.transport, has_tls) {
                    (Transport::Dns, _) => tcp(target, &query, &running, &manner).await,
                    (Transport::Tls, _) | (Transport::Https, true) => hello(target, &running, &manner).await,
                    (Transport::Https, false) => http(target, &query, &running, &manner).await,
                    (Transport::Quic, _) => quic(target, &manner).await,
                }
            });
        }
        match timeout_at(until.min(next).min(Instant::now() + LOOK), asked.join_next()).await {
            Ok(Some(Ok(Ok(())))) => return Ok(()),
            // The probe's connection may wait in a full accept queue; a server that received client
            // messages meanwhile works.
            Err(_) if taken() != before => return Ok(()),
            Err(_) => {}
            Ok(ended) => {
                is_taken |= matches!(&ended, Some(Ok(Err(error))) if is_of_others(error));
                sleep(REFUSED_PAUSE).await;
                next = Instant::now();
            }
        }
    }
    let over = match endpoint.transport {
        Transport::Dns => "TCP",
        Transport::Tls => "TLS",
        Transport::Https => "HTTPS",
        Transport::Quic => "QUIC",
    };
    Err(ProbeFailure::new(format!("{target} does not answer over {over}"), is_taken))
}

async fn ask(target: SocketAddr, query: &[u8], manner: &ProbeOptions) -> std::io::Result<usize> {
    let socket = UdpSocket::bind((stub_resolver::unspecified(target), 0)).await?;
    // The mark is set before `connect`, which looks up the route.
    manner.mark(&socket)?;
    socket.connect(target).await?;
    let reply = own_reply(stub_resolver::over_udp(&socket, query).await?)?;
    // The worker's number is the last two bytes of the reply's TXT record.
    Ok(reply.last_chunk().map_or(usize::MAX, |number| usize::from(u16::from_be_bytes(*number))))
}

/// Opens a connection for a probe, which does not count towards the connection limit.
async fn connect<'r>(
    target: SocketAddr,
    running: &'r ServerState,
    manner: &ProbeOptions,
) -> std::io::Result<(TcpStream, Expected<'r>)> {
    let socket = if target.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    manner.mark(&socket)?;
    socket.bind((stub_resolver::unspecified(target), 0).into())?;
    let expected = running.connections.expect_own(socket.local_addr()?.port());
    // The source port is registered before `connect`, since the connection may be accepted much
    // later.
    Ok((socket.connect(target).await?, expected))
}

/// Sends a ClientHello and waits for the first record of the answer; verifies nothing, and sends no
/// query.
async fn hello(target: SocketAddr, running: &ServerState, manner: &ProbeOptions) -> std::io::Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(std::io::Error::other)?;
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let mut client = ClientConnection::new(Arc::new(config), ServerName::from(target.ip()))
        .map_err(std::io::Error::other)?;
    let mut hello = Vec::new();
    client.write_tls(&mut hello)?;
    let (mut stream, _expected) = connect(target, running, manner).await?;
    stream.write_all(&hello).await?;
    match stream.read_u8().await? {
        HANDSHAKE => Ok(()),
        other => Err(std::io::Error::other(format!("record of type {other}"))),
    }
}

async fn tcp(
    target: SocketAddr,
    query: &[u8],
    running: &ServerState,
    manner: &ProbeOptions,
) -> std::io::Result<()> {
    let (mut stream, _expected) = connect(target, running, manner).await?;
    own_reply(stub_resolver::over_stream(&mut stream, query).await?).map(drop)
}

/// Sends the query over HTTP/1.1, to an endpoint of DNS over HTTPS in plain text.
async fn http(
    target: SocketAddr,
    query: &[u8],
    running: &ServerState,
    manner: &ProbeOptions,
) -> std::io::Result<()> {
    let (mut stream, _expected) = connect(target, running, manner).await?;
    let head = "POST /dns-query HTTP/1.1\r\nHost: localdns\r\nConnection: close";
    stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n", query.len()).as_bytes()).await?;
    stream.write_all(query).await?;
    let mut response = Vec::new();
    stream.take(RESPONSE_BYTES).read_to_end(&mut response).await?;
    let head = response.windows(4).position(|octets| octets == b"\r\n\r\n");
    own_reply(response.split_off(head.map_or(response.len(), |end| end + 4))).map(drop)
}

/// Sends a packet of a version that no server supports, and waits for the server's list of versions
/// (RFC 9000, section 6): no connection begins.
async fn quic(target: SocketAddr, manner: &ProbeOptions) -> std::io::Result<()> {
    let socket = UdpSocket::bind((stub_resolver::unspecified(target), 0)).await?;
    manner.mark(&socket)?;
    socket.connect(target).await?;
    let mut packet = vec![0; QUIC_INITIAL_BYTES];
    packet[..6].copy_from_slice(&[0xc0, 0x0a, 0x0a, 0x0a, 0x0a, 8]);
    packet[6..14].copy_from_slice(&rand::random::<[u8; 8]>());
    packet[14] = 8;
    socket.send(&packet).await?;
    let mut reply = [0; 64];
    let count = timeout(manner.one_stream, socket.recv(&mut reply)).await??;
    match reply[..count] {
        [first, 0, 0, 0, 0, ..] if first & 0x80 != 0 => Ok(()),
        _ => Err(std::io::Error::other("no list of versions")),
    }
}

/// Accepts only replies that end in our TXT record, apart from the worker's number, so that another
/// server cannot satisfy the probe.
fn own_reply(reply: Vec<u8>) -> std::io::Result<Vec<u8>> {
    let is_ours = reply.get(ANSWERS) == Some(&[0, 1])
        && reply.split_last_chunk::<2>().is_some_and(|(before, _)| before.ends_with(&WORKER_RECORD));
    match is_ours {
        true => Ok(reply),
        false => Err(std::io::Error::other(OfOthers)),
    }
}

fn is_of_others(error: &std::io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<OfOthers>())
}

#[derive(Debug, thiserror::Error)]
#[error("another process answers")]
struct OfOthers;

/// Returns the probe query: type TXT, class CH, for this name.
pub fn query(name: &Name) -> Vec<u8> {
    stub_resolver::query(rand::random(), Flags::RD, name, RType::TXT, Class::CH)
}

fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, v6.port()).into(),
        other => node::with_link(other),
    }
}

/// Suffix of a failure's reason if another process answers at the address.
pub const ANOTHER_ANSWERS: &str = ": another process answers";
/// The position of ANCOUNT in the header.
const ANSWERS: std::ops::Range<usize> = 6..8;
/// The TXT record of a reply without its name and without the worker's number: TXT, CH, TTL 0,
/// RDLENGTH 3, length 2 of the string.
const WORKER_RECORD: [u8; 11] = [0, 16, 0, 3, 0, 0, 0, 0, 0, 3, 2];
/// The content type of a TLS handshake record (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// Bytes of a client's first datagram (RFC 9000, section 14.1).
const QUIC_INITIAL_BYTES: usize = 1200;
/// Bytes of an HTTP response that are read.
const RESPONSE_BYTES: u64 = 4096;
const REFUSED_PAUSE: Duration = Duration::from_millis(10);
/// Interval at which a pending probe checks whether clients' queries were received; a round's time
/// is part of the lease.
const LOOK: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_record_is_ours() {
        let name = Name::from_text("probe.localdns.").expect("a name");
        let reply = |answers: u8, record: &[u8]| {
            let mut reply = query(&name);
            reply[7] = answers;
            reply.extend([0xc0, 12].iter().chain(record));
            reply
        };
        let worker = [&WORKER_RECORD[..], &[1, 2]].concat();
        let address = [0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 192, 0, 2, 2];
        let text = [0, 16, 0, 3, 0, 0, 0, 0, 0, 4, 3, b'n', b'o', b'!'];
        for (reply, ours) in [
            (reply(1, &worker), true),
            (reply(0, &[]), false),
            (reply(2, &worker), false),
            (reply(1, &address), false),
            (reply(1, &text), false),
            (reply(1, &[]), false),
            (vec![0; 12], false),
            (Vec::new(), false),
        ] {
            let found = own_reply(reply.clone());
            assert_eq!(found.is_ok(), ours, "{reply:?}");
            assert!(found.err().is_none_or(|error| is_of_others(&error)));
        }
    }
}
