//! The task of one connection: connects under a deadline, then sends queries and receives replies,
//! in any order, until it is unused or fails.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::client::TlsStream;

use super::dial::{broken, dial, handshake};
use super::pool::{Closed, Overtaking, PIPELINE, expiry};
use super::{ConnectionPools, Destination, Request, RequestId};
use crate::{ExchangeError, StreamKind, UpstreamPath};

/// A command from the pool.
#[derive(Debug)]
pub(super) enum Command {
    /// Send this query.
    Ask(Request),

    /// No client waits for this query any more.
    GiveUp(RequestId),
}

/// Runs the connection to its end; each of its queries is answered or returned to the pool.
pub(super) async fn run(
    pools: Arc<ConnectionPools>,
    destination: Destination,
    lane: u64,
    commands: mpsc::Receiver<Command>,
    connect_by: Instant,
) {
    let now = Instant::now();
    let mut connection = Connection {
        pools,
        destination,
        lane,
        commands,
        queued: Vec::new(),
        pending: HashMap::new(),
        written: Vec::new(),
        read: Vec::new(),
        local: None,
        serial: 0,
        retired: false,
        last_read: now,
        last_reply: (now, now),
        born: now,
        idle_since: now,
    };
    let end = connection.connect_and_serve(connect_by).await;
    connection.clear(end);
}

struct Connection {
    pools: Arc<ConnectionPools>,
    destination: Destination,
    /// The connection's number in the pool.
    lane: u64,
    commands: mpsc::Receiver<Command>,
    /// Queries received before the connection was open.
    queued: Vec<Request>,
    /// Unanswered queries by their id on this connection, given up or not: an id is not reused
    /// while its reply may arrive.
    pending: HashMap<u16, Pending>,
    /// Bytes to write, and bytes read of an incomplete message.
    written: Vec<u8>,
    read: Vec<u8>,
    local: Option<SocketAddr>,
    /// Queries sent so far.
    serial: u64,
    /// Whether the connection gets no more queries.
    retired: bool,
    last_read: Instant,
    /// When the last reply arrived, and when its query was sent.
    last_reply: (Instant, Instant),
    born: Instant,
    idle_since: Instant,
}

/// A query that was sent.
struct Pending {
    request: Request,
    sent: Instant,
    serial: u64,
    /// Whether another query was unanswered when this one was sent.
    is_behind: bool,
    /// Whether a client waits for the reply to this query, or to the query that it is a copy of.
    is_wanted: bool,
}

/// Why a connection ended.
enum End {
    /// The connection is not needed any more.
    Unused,
    /// The connection failed.
    Failed(ExchangeError),
}

impl Connection {
    async fn connect_and_serve(&mut self, connect_by: Instant) -> End {
        let destination = self.destination.clone();
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
        let mut connected = pin!(connected);
        let connected = loop {
            tokio::select! {
                connected = &mut connected => break connected,
                command = self.commands.recv() => match command {
                    None => return End::Unused,
                    Some(Command::Ask(request)) => self.queued.push(request),
                    Some(Command::GiveUp(id)) => {
                        self.queued.retain(|request| request.id != id);
                        if self.queued.is_empty() && self.commands.is_empty() {
                            return End::Unused;
                        }
                    }
                },
            }
        };
        let (stream, local) = match connected {
            Ok(connected) => connected,
            Err(error) => return End::Failed(error),
        };
        self.local = local;
        let now = Instant::now();
        (self.last_read, self.idle_since) = (now, now);
        for request in std::mem::take(&mut self.queued) {
            self.write(request, now);
        }
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
                count = self.commands.recv_many(&mut batch, PIPELINE), if self.written.len() < WRITE_LIMIT => {
                    if count == 0 {
                        return End::Unused;
                    }
                    let now = Instant::now();
                    for command in batch.drain(..) {
                        match command {
                            Command::Ask(request) => self.write(request, now),
                            Command::GiveUp(id) => self.give_up(|request| request.id == id),
                        }
                    }
                    if self.has_only_given_up() {
                        return End::Unused;
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
            // A retired connection lingers, so that the upstream closes first and its side has the
            // TIME-WAIT state.
            if self.retired && self.pending.is_empty() {
                wake.as_mut().reset(self.next_wake());
            }
        }
    }

    /// Queues a query for writing, under an id that is free on this connection.
    fn write(&mut self, mut request: Request, now: Instant) {
        let mut id: u16 = rand::random();
        while self.pending.contains_key(&id) {
            id = rand::random();
        }
        let (Ok(length), Some(own)) =
            (u16::try_from(request.message.len()), request.message.first_chunk_mut())
        else {
            return self
                .fail(request, ExchangeError::Garbage { upstream: self.destination.upstream.address() });
        };
        *own = id.to_be_bytes();
        self.written.extend_from_slice(&length.to_be_bytes());
        self.written.extend_from_slice(&request.message);
        let is_behind = !self.pending.is_empty();
        if !is_behind {
            // The first query in flight: the time without a reply starts here.
            self.last_read = now;
        }
        self.serial += 1;
        let serial = self.serial;
        let pending = Pending { request, sent: now, serial, is_behind, is_wanted: true };
        self.pending.insert(id, pending);
    }

    /// Delivers each complete message that was read.
    fn take_replies(&mut self) -> Result<(), ExchangeError> {
        let now = Instant::now();
        self.last_read = now;
        let mut start = 0;
        while let Some(length) = self.read.get(start..).and_then(|rest| rest.first_chunk::<2>()) {
            let length = usize::from(u16::from_be_bytes(*length));
            if length < wire::HEADER {
                return Err(ExchangeError::Garbage { upstream: self.destination.upstream.address() });
            }
            let Some(message) = self.read.get(start + 2..start + 2 + length) else { break };
            let id = u16::from_be_bytes([message[0], message[1]]);
            // A reply with an unknown id answers a query that has timed out.
            if let Some(pending) = self.pending.remove(&id) {
                let message = message.to_vec();
                let overtaking = self.overtaking(&pending, now);
                self.last_reply = (now, pending.sent);
                let id = pending.request.id;
                // Releases the query's quota before its client can query again.
                drop(pending);
                self.pools.deliver(id, Ok(message));
                self.retired |= self.pools.over(&self.destination, self.lane, id, Some(overtaking));
            }
            start += 2 + length;
        }
        self.read.drain(..start);
        if self.pending.is_empty() {
            self.idle_since = now;
        }
        Ok(())
    }

    fn overtaking(&self, reply: &Pending, now: Instant) -> Overtaking {
        if self.pending.values().any(|other| other.serial < reply.serial) {
            return Overtaking::Overtook;
        }
        let (replied, sent) = self.last_reply;
        let sent_after = reply.sent.saturating_duration_since(sent);
        let held_up = now - reply.sent >= DELAYED && sent_after >= APART && (now - replied) * 2 < sent_after;
        match reply.is_behind {
            false => Overtaking::Alone,
            true if held_up => Overtaking::Delayed,
            true => Overtaking::InOrder,
        }
    }

    fn fail(&mut self, request: Request, error: ExchangeError) {
        let (id, is_copy) = (request.id, request.is_copy);
        drop(request);
        if !is_copy {
            self.pools.deliver(id, Err(error));
        }
        self.retired |= self.pools.over(&self.destination, self.lane, id, None);
    }

    /// Releases the quota of queries for which no client waits any more.
    fn give_up(&mut self, is_over: impl Fn(&Request) -> bool) {
        for pending in self.pending.values_mut().filter(|pending| is_over(&pending.request)) {
            pending.request.place = None;
            pending.is_wanted = false;
        }
    }

    /// Fails queries that were sent late, before their clients give up: the cause is a local limit.
    fn report_late(&mut self, now: Instant) {
        let upstream = self.destination.upstream.address();
        for pending in self.pending.values_mut() {
            let Pending { request, is_wanted, .. } = pending;
            if *is_wanted && request.is_late && !request.is_copy && expiry(request) <= now {
                self.pools.deliver(request.id, Err(ExchangeError::Overloaded { upstream }));
                request.place = None;
                // The result is delivered already: from here on the query counts as a copy.
                (*is_wanted, request.is_copy) = (false, true);
            }
        }
    }

    /// Whether replies would serve at most the cache: not worth a connection.
    fn has_only_given_up(&self) -> bool {
        !self.pending.is_empty() && !self.pending.values().any(|pending| pending.is_wanted)
    }

    /// Returns when [`Self::is_done`] must be called next.
    fn next_wake(&self) -> Instant {
        let limits = self.destination.limits;
        let age = if limits.max_age.is_zero() || self.retired { FAR } else { limits.max_age.min(FAR) };
        let wake = self.born + age;
        if self.pending.is_empty() {
            let idle = if self.retired { LINGER } else { limits.expire.min(FAR) };
            return wake.min(self.idle_since + idle);
        }
        let due = self.pending.values().map(Pending::next_due).min();
        let wake = due.map_or(wake, |due| wake.min(due));
        self.stuck_at().map_or(wake, |stuck| wake.min(stuck))
    }

    /// Returns when a query behind another one has waited too long.
    fn stuck_at(&self) -> Option<Instant> {
        let waits = |pending: &Pending| pending.is_behind && pending.request.place.is_some();
        if self.pending.len() < 2 || !self.pending.values().any(waits) {
            return None;
        }
        let srtt = self.destination.upstream.srtt(UpstreamPath::Stream).unwrap_or_default();
        Some(self.last_read + STALL.max(2 * srtt))
    }

    /// Performs due actions; returns whether the connection is not needed any more.
    fn is_done(&mut self) -> bool {
        let (now, limits) = (Instant::now(), self.destination.limits);
        if !self.retired && !limits.max_age.is_zero() && now >= self.born + limits.max_age.min(FAR) {
            self.retired = true;
            self.pools.retire(&self.destination, self.lane);
        }
        if self.pending.is_empty() {
            let idle = if self.retired { LINGER } else { limits.expire.min(FAR) };
            return now >= self.idle_since + idle;
        }
        self.report_late(now);
        self.give_up(|request| request.give_up_at <= now);
        if self.has_only_given_up() {
            return true;
        }
        self.forget_late(now);
        if self.stuck_at().is_some_and(|at| at <= now) {
            let first = self.pending.values().map(|pending| pending.serial).min();
            let moves = |_: &u16, pending: &mut Pending| {
                Some(pending.serial) != first && pending.request.place.is_some()
            };
            let moved = self.pending.extract_if(moves).map(|(_, pending)| pending.request).collect();
            self.pools.move_on(&self.destination, self.lane, moved);
        }
        false
    }

    /// Drops queries that were given up, once their replies are of no use, and the oldest beyond
    /// [`PIPELINE`].
    fn forget_late(&mut self, now: Instant) {
        let late = self.pending.iter().filter(|(_, pending)| pending.request.place.is_none());
        let mut late: Vec<_> = late.map(|(&id, pending)| (pending.request.deadline, id)).collect();
        late.sort_unstable();
        let over = late.partition_point(|(deadline, _)| *deadline <= now);
        let over = over.max(late.len().saturating_sub(PIPELINE));
        for (_, id) in late.into_iter().take(over) {
            if let Some(pending) = self.pending.remove(&id) {
                self.fail(pending.request, self.timeout());
            }
        }
    }

    fn timeout(&self) -> ExchangeError {
        ExchangeError::Timeout { local: self.local, upstream: self.destination.upstream.address() }
    }

    fn broken(&self, error: &io::Error) -> End {
        End::Failed(broken(error, self.local, self.destination.upstream.address()))
    }

    /// Leaves the pool and gives the unanswered queries back.
    fn clear(mut self, end: End) {
        self.commands.close();
        let mut pending: Vec<_> = self.pending.drain().map(|(_, pending)| pending).collect();
        pending.sort_unstable_by_key(|pending| pending.serial);
        let mut left: Vec<_> = pending.into_iter().map(|pending| pending.request).collect();
        left.append(&mut self.queued);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Ask(request) => left.push(request),
                Command::GiveUp(id) => left.retain(|request| request.id != id),
            }
        }
        let (why, error) = match end {
            End::Unused => (Closed::Unused, self.timeout()),
            End::Failed(error @ (ExchangeError::Dial { .. } | ExchangeError::Read { .. })) => {
                (Closed::ByPeer, error)
            }
            End::Failed(error) => (Closed::Broken, error),
        };
        self.pools.closed(&self.destination, self.lane, why, left, &error);
    }
}

/// Writes some bytes and returns how many, or flushes if there are none. Cancel-safe.
async fn write_or_flush(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    match writer.write(bytes).await? {
        0 => Err(io::ErrorKind::BrokenPipe.into()),
        count => Ok(count),
    }
}

impl Pending {
    /// Returns the query's next deadline.
    fn next_due(&self) -> Instant {
        let Request { give_up_at, deadline, .. } = self.request;
        match (self.is_wanted, self.request.is_late) {
            (true, true) => expiry(&self.request).min(deadline),
            (true, false) => give_up_at.min(deadline),
            (false, _) => deadline,
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Without a reply for this time, and for twice the round-trip time, queries behind another move to
/// other connections.
const STALL: Duration = Duration::from_millis(400);
/// A reply was blocked by another one if it took at least this long, its query was sent at least
/// [`APART`] after the other query, and it followed the other reply within half of that distance.
const DELAYED: Duration = Duration::from_millis(100);
const APART: Duration = Duration::from_millis(20);
/// How long a retired connection waits for the upstream to close it.
const LINGER: Duration = Duration::from_millis(200);
/// Buffer for reading, and unwritten bytes above which queries wait in the queue.
const READ_ROOM: usize = 16 << 10;
const WRITE_LIMIT: usize = 64 << 10;
/// Stands for no limit; it can be added to a time.
const FAR: Duration = Duration::from_secs(24 * 60 * 60);
