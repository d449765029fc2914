//! Connections over 127.0.0.1: reuse, pipelining, limits, and the queries of broken connections.
#![allow(clippy::unwrap_used, reason = "its servers and certificates are part of the tests")]

#[path = "../common/mod.rs"]
mod common;
mod order;
mod places;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use client_quota::ClientId;
use common::{Question, answer, ms, query};
use forwarder::{
    ConnectionLimits, Deliver, Exchange, ExchangeError, ExchangeId, Registry, StreamKind, Streams,
    TlsSettings, Upstream, UpstreamProto,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

type Outcome = (usize, u64, Result<Vec<u8>, ExchangeError>);

struct Results(mpsc::UnboundedSender<Outcome>);

impl Deliver for Results {
    fn deliver(&self, worker: usize, id: ExchangeId, result: Result<Vec<u8>, ExchangeError>) {
        self.0.send((worker, id.to_bits(), result)).unwrap();
    }
}

/// A worker's side of the connections.
struct Asker {
    streams: Streams,
    results: mpsc::UnboundedReceiver<Outcome>,
    upstream: Arc<Upstream>,
    kind: StreamKind,
    limits: ConnectionLimits,
    /// The client of its queries.
    client: u128,
    connect: Duration,
    deadline: Duration,
    _registry: Registry,
}

impl Asker {
    fn new(address: SocketAddr, tls: Option<TlsSettings>) -> Self {
        let (registry, _) = Registry::new(now());
        let kind = if tls.is_some() { StreamKind::Tls } else { StreamKind::Tcp };
        let upstream = registry.upstream(address, tls.map(Arc::new), None);
        let (sender, results) = mpsc::unbounded_channel();
        Self {
            streams: Streams::new(tokio::runtime::Handle::current(), Arc::new(Results(sender))),
            results,
            upstream,
            kind,
            limits: ConnectionLimits::default(),
            client: 1,
            connect: ms(5_000),
            deadline: ms(10_000),
            _registry: registry,
        }
    }

    fn send(&self, id: u64) {
        let name = format!("n{id}.example.org");
        let now = now();
        let exchange = Exchange {
            id: ExchangeId::from_bits(id),
            upstream: &self.upstream,
            kind: self.kind,
            message: &query(&Question::new(&name)),
            limits: self.limits,
            client: ClientId::of(self.client),
            give_up_at: now + self.connect,
            deadline: now + self.deadline,
        };
        self.streams.exchange(7, exchange);
    }

    async fn next(&mut self) -> (u64, Result<Vec<u8>, ExchangeError>) {
        let next = tokio::time::timeout(ms(20_000), self.results.recv());
        let (worker, id, result) = next.await.expect("a result in time").unwrap();
        assert_eq!(worker, 7);
        (id, result)
    }

    /// Sends one query and asserts that its result is the answer.
    async fn ask(&mut self, id: u64) {
        self.send(id);
        let (got, result) = self.next().await;
        assert_eq!(got, id);
        assert_is_answer(id, &result.unwrap());
    }

    async fn until_connections_are(&self, count: usize) {
        let wait = async {
            while self.streams.connections() != count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(ms(10_000), wait).await.expect("connections close");
    }
}

#[allow(clippy::disallowed_methods, reason = "connections live on the real clock")]
fn now() -> Instant {
    Instant::now()
}

fn assert_is_answer(id: u64, reply: &[u8]) {
    let asked = query(&Question::new(&format!("n{id}.example.org")));
    assert_eq!(common::message::question_of(reply), common::message::question_of(&asked));
    assert_eq!(reply[7], 1);
}

async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> io::Result<()> {
    let mut framed = (message.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await?;
    stream.flush().await
}

/// Starts a server that handles each connection by `serve`; returns its address and the count of
/// connections.
async fn server<F, Fut>(serve: F) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Fn(usize, TcpStream) -> Fut + Send + 'static,
    Fut: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let accepted = count.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let nth = accepted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(serve(nth, stream));
        }
    });
    (address, count)
}

/// Whether a query timed out, on a connection or before there was one.
fn is_timeout(error: &ExchangeError) -> bool {
    matches!(
        error,
        ExchangeError::Timeout { .. } | ExchangeError::Dial { error: io::ErrorKind::TimedOut, .. }
    )
}

async fn answer_all(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    loop {
        let query = read_frame(&mut stream).await?;
        write_frame(&mut stream, &answer(&query)).await?;
    }
}

/// Reads everything and never replies.
async fn swallow(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

#[tokio::test]
async fn one_connection_serves_query_after_query() {
    let (address, accepted) = server(|_, stream| answer_all(stream)).await;
    let mut asker = Asker::new(address, None);
    for id in 0..50 {
        asker.ask(id).await;
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
    let metrics = asker.upstream.metrics();
    assert_eq!(
        (metrics.conn_cache_hits(UpstreamProto::Tcp), metrics.conn_cache_misses(UpstreamProto::Tcp)),
        (49, 1)
    );
}

#[tokio::test]
async fn many_at_once_share_connections() {
    let (address, accepted) = server(|_, stream| answer_all(stream)).await;
    let mut asker = Asker::new(address, None);
    for id in 0..1_000 {
        asker.send(id);
    }
    let mut seen = vec![false; 1_000];
    for _ in 0..1_000 {
        let (id, result) = asker.next().await;
        assert_is_answer(id, &result.unwrap());
        assert!(!std::mem::replace(&mut seen[id as usize], true), "{id} was received twice");
    }
    assert!(accepted.load(Ordering::SeqCst) <= 64);
}

#[tokio::test]
async fn a_silent_upstream_holds_a_bounded_number_of_connections_and_queries() {
    let (address, _) = server(|_, stream| swallow(stream)).await;
    let mut asker = Asker::new(address, None);
    asker.connect = ms(3_000);
    for id in 0..4_000 {
        asker.client = u128::from(id % 40);
        asker.send(id);
        assert!(asker.streams.connections() <= 64);
    }
    // The last units of the quota are reserved for clients without any.
    let refused = asker.results.len();
    assert!((1_955..=2_000).contains(&refused), "{refused}");
    let (mut overloaded, mut timeouts) = (0, 0);
    for _ in 0..4_000 {
        match asker.next().await.1 {
            Err(ExchangeError::Overloaded { .. }) => overloaded += 1,
            Err(error) if is_timeout(&error) => timeouts += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(overloaded + timeouts, 4_000);
    // Only queries that got a connection were sent.
    assert!((1..=64).contains(&timeouts), "{timeouts}");
    asker.until_connections_are(0).await;
}

#[tokio::test]
async fn a_connection_closed_while_idle_or_in_use_costs_no_query() {
    // Each connection answers two queries and is closed at the third, by FIN or RST.
    for reset in [false, true] {
        let (address, accepted) = server(move |_, mut stream| async move {
            for _ in 0..2 {
                let query = read_frame(&mut stream).await?;
                write_frame(&mut stream, &answer(&query)).await?;
            }
            read_frame(&mut stream).await?;
            if reset {
                stream.set_zero_linger()?;
            }
            Ok(())
        })
        .await;
        let mut asker = Asker::new(address, None);
        for id in 0..9 {
            asker.ask(id).await;
        }
        assert_eq!(accepted.load(Ordering::SeqCst), 5, "reset: {reset}");
    }
}

#[tokio::test]
async fn a_half_closed_connection_is_left() {
    let (address, accepted) = server(|_, mut stream| async move {
        let query = read_frame(&mut stream).await?;
        write_frame(&mut stream, &answer(&query)).await?;
        stream.shutdown().await?;
        swallow(stream).await
    })
    .await;
    let mut asker = Asker::new(address, None);
    for id in 0..3 {
        asker.ask(id).await;
        asker.until_connections_are(0).await;
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 3);
}

/// The error of an upstream that only closes connections names this cause.
#[tokio::test]
async fn closing_upstream_error() {
    let (address, accepted) =
        server(|_, mut stream| async move { read_frame(&mut stream).await.map(drop) }).await;
    let mut asker = Asker::new(address, None);
    asker.send(1);
    let error = asker.next().await.1.unwrap_err();
    assert!(matches!(error, ExchangeError::Read { error: io::ErrorKind::UnexpectedEof, .. }), "{error}");
    assert!(error.to_string().ends_with(&format!("->{address}: EOF")), "{error}");
    assert_eq!(accepted.load(Ordering::SeqCst), 1, "nothing speaks for another try");
}

#[tokio::test]
async fn garbage_closes_the_connection() {
    let (address, _) = server(|_, mut stream| async move {
        read_frame(&mut stream).await?;
        write_frame(&mut stream, b"garbage").await?;
        swallow(stream).await
    })
    .await;
    let mut asker = Asker::new(address, None);
    asker.send(1);
    let error = asker.next().await.1.unwrap_err();
    assert!(matches!(error, ExchangeError::Garbage { .. }), "{error}");
    asker.until_connections_are(0).await;
}

/// The error of a refused connection names this cause.
#[tokio::test]
async fn refused_connection_error() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut asker = Asker::new(address, None);
    asker.send(1);
    let error = asker.next().await.1.unwrap_err();
    assert_eq!(error.to_string(), format!("dial tcp {address}: connect: connection refused"));
}

#[tokio::test]
async fn idle_and_old_connections_are_closed() {
    for (expire, max_age) in [(ms(50), Duration::ZERO), (ms(60_000), ms(50))] {
        let (address, accepted) = server(|_, stream| answer_all(stream)).await;
        let mut asker = Asker::new(address, None);
        asker.limits = ConnectionLimits { expire, max_age, ..ConnectionLimits::default() };
        for id in 0..2 {
            asker.ask(id).await;
            asker.until_connections_are(0).await;
        }
        assert_eq!(accepted.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test]
async fn max_idle_conns_closes_the_others() {
    let (address, _) = server(|_, stream| answer_all(stream)).await;
    let mut asker = Asker::new(address, None);
    asker.limits.max_idle = 1;
    for id in 0..40 {
        asker.send(id);
    }
    assert!(asker.streams.connections() > 1);
    for _ in 0..40 {
        asker.next().await.1.unwrap();
    }
    asker.until_connections_are(1).await;
}
