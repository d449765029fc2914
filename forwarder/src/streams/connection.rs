//! One connection: dialled under a deadline, then queries out and replies in, in any order, until it is of no more use.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{ConnectionPools, Destination, Link, PIPELINE, Request};
use crate::{ExchangeError, StreamKind, TlsSettings, Upstream};

/// Lives as long as the connection; whatever it was given is answered or given to another connection.
pub(super) async fn run(
    pools: Arc<ConnectionPools>,
    destination: Destination,
    link: Arc<Link>,
    requests: mpsc::Receiver<Request>,
    connect_by: Instant,
) {
    let mut connection = Connection {
        pending: HashMap::new(),
        written: Vec::new(),
        read: Vec::new(),
        local: None,
        replies: 0,
        last_read: Instant::now(),
        born: Instant::now(),
        idle_since: Instant::now(),
        pools,
        destination,
        link,
        requests,
    };
    let end = connection.connect_and_serve(connect_by).await;
    connection.clear(end);
}

/// Connects; what the kernel says, or that it took too long.
pub(crate) async fn dial(upstream: &Upstream, by: Instant) -> Result<TcpStream, ExchangeError> {
    let address = upstream.address();
    let failed = |error| ExchangeError::Dial { upstream: address, error };
    let connect = async {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if let Some(source) = upstream.source() {
            socket.bind((source, 0).into())?;
        }
        socket.connect(address).await
    };
    let stream = match timeout_at(by, connect).await {
        Ok(stream) => stream.map_err(|error| failed(error.kind()))?,
        Err(_) => return Err(failed(io::ErrorKind::TimedOut)),
    };
    // TCP_NODELAY: a query must not wait for the ACK of the one before (Nagle's algorithm). Where it is refused, queries are
    // slower.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Speaks TLS on a fresh connection, with the server's name, or its address where no name is given.
pub(crate) async fn handshake(
    stream: TcpStream,
    settings: &TlsSettings,
    by: Instant,
) -> Result<TlsStream<TcpStream>, ExchangeError> {
    let upstream = stream.peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
    let local = stream.local_addr().ok();
    let connector = TlsConnector::from(settings.config());
    let name = settings.server_name_for(upstream.ip());
    let error = match timeout_at(by, connector.connect(name, stream)).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(error)) => error,
        Err(_) => return Err(ExchangeError::Timeout { local, upstream }),
    };
    Err(broken(&error, local, upstream))
}

/// What an I/O error says: tokio-rustls wraps what rustls says in one. With TLS 1.3 an upstream refuses our certificate
/// only after the handshake.
fn broken(error: &io::Error, local: Option<SocketAddr>, upstream: SocketAddr) -> ExchangeError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(inner) => ExchangeError::Tls { upstream, error: Box::new(inner.clone()) },
        None => ExchangeError::Read { local, upstream, error: error.kind() },
    }
}

struct Connection {
    pools: Arc<ConnectionPools>,
    destination: Destination,
    link: Arc<Link>,
    requests: mpsc::Receiver<Request>,
    /// What is out, by the id it has here, and so are those that nobody waits for any more: an id of theirs is nobody else's
    /// while a reply may come.
    pending: HashMap<u16, Request>,
    /// Octets that wait to be written, and octets read that are no whole message yet.
    written: Vec<u8>,
    read: Vec<u8>,
    local: Option<SocketAddr>,
    replies: u64,
    last_read: Instant,
    born: Instant,
    idle_since: Instant,
}

/// Why a connection ended.
enum End {
    /// No configuration uses the upstream any more.
    Unused,
    /// It failed.
    Failed(ExchangeError),
}

impl Connection {
    async fn connect_and_serve(&mut self, connect_by: Instant) -> End {
        let link = self.link.clone();
        let (destination, start) = (self.destination.clone(), self.born);
        let connected = async {
            let stream = dial(&destination.upstream, connect_by).await?;
            let local = stream.local_addr().ok();
            match (destination.kind, destination.upstream.tls()) {
                (StreamKind::Tls, Some(settings)) => {
                    let stream = handshake(stream, settings, connect_by).await?;
                    Ok((Stream::Tls(Box::new(stream)), local))
                }
                _ => Ok((Stream::Tcp(stream), local)),
            }
        };
        let late = async {
            sleep_until(start + STALL).await;
            link.stalled.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        };
        let connected = tokio::select! {
            connected = connected => connected,
            () = late => return End::Unused,
        };
        let (stream, local) = match connected {
            Ok(connected) => connected,
            Err(error) => return End::Failed(error),
        };
        self.local = local;
        (self.last_read, self.idle_since) = (Instant::now(), Instant::now());
        self.link.stalled.store(false, Ordering::Relaxed);
        match stream {
            Stream::Tcp(stream) => self.serve(stream).await,
            Stream::Tls(stream) => self.serve(*stream).await,
        }
    }

    async fn serve(&mut self, stream: impl AsyncRead + AsyncWrite) -> End {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut wake = pin!(sleep_until(self.next_wake()));
        let mut batch = Vec::new();
        let mut unflushed = false;
        loop {
            if self.read.capacity() - self.read.len() < READ_ROOM / 4 {
                self.read.reserve(READ_ROOM);
            }
            tokio::select! {
                read = reader.read_buf(&mut self.read) => match read {
                    Ok(0) => return self.broken(&io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => if let Err(error) = self.take_replies() {
                        return End::Failed(error);
                    },
                    Err(error) => return self.broken(&error),
                },
                wrote = write_or_flush(&mut writer, &self.written), if unflushed || !self.written.is_empty() => match wrote {
                    Ok(count) => {
                        self.written.drain(..count);
                        unflushed = count > 0;
                    }
                    Err(error) => return self.broken(&error),
                },
                count = self.requests.recv_many(&mut batch, PIPELINE), if self.written.len() < WRITE_LIMIT => {
                    if count == 0 {
                        return End::Unused;
                    }
                    for request in batch.drain(..) {
                        self.write(request);
                    }
                    let next = self.next_wake();
                    if next < wake.deadline() {
                        wake.as_mut().reset(next);
                    }
                }
                () = &mut wake => {
                    if self.is_done() {
                        return End::Unused;
                    }
                    wake.as_mut().reset(self.next_wake());
                }
            }
            if self.link.retired.load(Ordering::Relaxed) && self.is_idle() {
                return End::Unused;
            }
        }
    }

    /// Queues a query for the wire, under an id that is free here.
    fn write(&mut self, mut request: Request) {
        let mut id: u16 = rand::random();
        while self.pending.contains_key(&id) {
            id = rand::random();
        }
        let (Ok(length), Some(own)) =
            (u16::try_from(request.message.len()), request.message.first_chunk_mut())
        else {
            return self.answer(
                request,
                Err(ExchangeError::Garbage { upstream: self.destination.upstream.address() }),
            );
        };
        *own = id.to_be_bytes();
        self.written.extend_from_slice(&length.to_be_bytes());
        self.written.extend_from_slice(&request.message);
        if self.pending.is_empty() {
            // The first query in flight: the time without a reply is counted from here.
            self.last_read = Instant::now();
        }
        self.pending.insert(id, request);
    }

    /// Delivers each whole message that was read.
    fn take_replies(&mut self) -> Result<(), ExchangeError> {
        self.last_read = Instant::now();
        self.link.stalled.store(false, Ordering::Relaxed);
        let mut start = 0;
        while let Some(length) = self.read.get(start..).and_then(|rest| rest.first_chunk::<2>()) {
            let length = usize::from(u16::from_be_bytes(*length));
            if length < wire::HEADER {
                return Err(ExchangeError::Garbage { upstream: self.destination.upstream.address() });
            }
            let Some(message) = self.read.get(start + 2..start + 2 + length) else { break };
            let id = u16::from_be_bytes([message[0], message[1]]);
            // A reply whose id is not pending is to a query that has timed out.
            if let Some(request) = self.pending.remove(&id) {
                let message = message.to_vec();
                self.replies += 1;
                self.answer(request, Ok(message));
            }
            start += 2 + length;
        }
        self.read.drain(..start);
        self.note_idle();
        Ok(())
    }

    fn answer(&self, mut request: Request, result: Result<Vec<u8>, ExchangeError>) {
        self.give_back(&mut request);
        self.pools.deliver(&request, result);
    }

    /// Gives back what a query takes from others: its place at the upstream, and that on this connection.
    fn give_back(&self, request: &mut Request) {
        if request.place.take().is_some() {
            self.link.load.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether nobody waits for anything on it.
    fn is_idle(&self) -> bool {
        self.link.load.load(Ordering::Relaxed) == 0
    }

    fn note_idle(&mut self) {
        if self.is_idle() {
            self.idle_since = Instant::now();
            if self.pools.too_many_idle(&self.destination) {
                self.link.retired.store(true, Ordering::Relaxed);
            }
        }
    }

    /// When time must be looked at next.
    fn next_wake(&self) -> Instant {
        let limits = self.destination.limits;
        let age = if limits.max_age.is_zero() || self.link.retired.load(Ordering::Relaxed) {
            FAR
        } else {
            limits.max_age.min(FAR)
        };
        let mut wake = self.born + age;
        if self.pending.is_empty() {
            return wake.min(self.idle_since + limits.expire.min(FAR));
        }
        if !self.link.stalled.load(Ordering::Relaxed) {
            wake = wake.min(self.last_read + STALL);
        }
        self.pending.values().map(Request::next_due).min().map_or(wake, |due| wake.min(due))
    }

    /// Does what is due; whether the connection has no more use.
    fn is_done(&mut self) -> bool {
        let (now, limits) = (Instant::now(), self.destination.limits);
        if !limits.max_age.is_zero() && now >= self.born + limits.max_age.min(FAR) {
            self.link.retired.store(true, Ordering::Relaxed);
        }
        if self.pending.is_empty() && self.is_idle() {
            return now >= self.idle_since + limits.expire.min(FAR);
        }
        if !self.pending.is_empty() && now >= self.last_read + STALL {
            self.link.stalled.store(true, Ordering::Relaxed);
        }
        self.let_go(now);
        self.note_idle();
        // All queries have timed out and nothing was read since: the peer is dead, or the path drops segments. The connection
        // is closed.
        self.pending.is_empty() && self.link.stalled.load(Ordering::Relaxed)
    }

    /// Gives back the places of queries whose clients have been told; of these as many stay as there are places, until they
    /// time out, for their replies fill the cache.
    fn let_go(&mut self, now: Instant) {
        let mut pending = std::mem::take(&mut self.pending);
        let told = pending.values_mut().filter(|request| request.next_due() <= now);
        told.for_each(|request| self.give_back(request));
        let late = pending.iter().filter(|(_, request)| request.place.is_none());
        let mut late: Vec<(Instant, u16)> = late.map(|(&id, request)| (request.deadline, id)).collect();
        self.pending = pending;
        late.sort_unstable();
        let over = late.partition_point(|(deadline, _)| *deadline <= now);
        let over = over.max(late.len().saturating_sub(PIPELINE));
        for (_, id) in late.into_iter().take(over) {
            if let Some(request) = self.pending.remove(&id) {
                self.answer(request, Err(self.timeout()));
            }
        }
    }

    fn timeout(&self) -> ExchangeError {
        ExchangeError::Timeout { local: self.local, upstream: self.destination.upstream.address() }
    }

    fn broken(&self, error: &io::Error) -> End {
        End::Failed(broken(error, self.local, self.destination.upstream.address()))
    }

    /// Leaves the pool and sees to what is left.
    fn clear(mut self, end: End) {
        self.pools.remove(&self.destination, &self.link);
        self.requests.close();
        let mut left: Vec<_> = self.pending.drain().map(|(_, request)| request).collect();
        while let Ok(request) = self.requests.try_recv() {
            left.push(request);
        }
        for mut request in left {
            match &end {
                // Nobody waits for it.
                End::Unused if request.place.is_none() => {
                    self.pools.deliver(&request, Err(self.timeout()));
                }
                End::Unused => self.pools.submit(&self.destination, request),
                // RFC 7766, section 6.2.4: an upstream may close at any time; what it left unanswered is asked again.
                End::Failed(ExchangeError::Read { .. })
                    if self.replies > 0 && request.moved < MOVES && request.place.is_some() =>
                {
                    request.moved += 1;
                    self.pools.submit(&self.destination, request);
                }
                End::Failed(error) => self.pools.deliver(&request, Err(error.clone())),
            }
        }
    }
}

/// Writes some octets and says how many, or flushes where there are none. Can be cancelled without loss.
async fn write_or_flush(writer: &mut (impl AsyncWrite + Unpin), octets: &[u8]) -> io::Result<usize> {
    if octets.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    match writer.write(octets).await? {
        0 => Err(io::ErrorKind::BrokenPipe.into()),
        count => Ok(count),
    }
}

impl Request {
    /// When time means something to it.
    fn next_due(&self) -> Instant {
        if self.place.is_some() { self.connect_by.min(self.deadline) } else { self.deadline }
    }
}

enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Without a reply for so long a connection is passed over where there are others: half of it is the retransmission time
/// that Linux begins with.
const STALL: Duration = Duration::from_millis(400);
/// How often a query may find its connection closed under it, by an upstream that answered others there before.
const MOVES: u8 = 3;
/// Room for reading, and how much may wait to be written before queries wait in the queue.
const READ_ROOM: usize = 16 << 10;
const WRITE_LIMIT: usize = 64 << 10;
/// Longer than anything is waited for.
const FAR: Duration = Duration::from_secs(24 * 60 * 60);
