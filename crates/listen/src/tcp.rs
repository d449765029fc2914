//! TCP and TLS clients (RFC 7766, RFC 7858): pipelined, answered out of order, with bounds on
//! connections, time, bytes and queries in flight.
//!
//! One task serves a connection, turn by turn: it writes pending replies, and reads and answers
//! more only when the kernel has accepted all of them. So a client that does not read is not read
//! from (backpressure).

mod header;
mod message;
mod transfer;

use std::io::{self, Read as _};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use wire::Proto;

use super::buffers::{BUFFERS, Buffers, TOGETHER};
use super::connection_state::{Activity, ConnectionState};
use super::cpu_budget::MOMENT;
use super::proxy_header::ProxyHeader;
use super::query_source::QuerySource;
use super::tls::Tls;
use crate::receive_counts::ReceiveCounter;
use crate::server_state::ServerState;
use plugin::endpoint::Endpoint;
use plugins::timeouts::TimeoutsSpec;
use transfer::Transfer;

/// One client's connection.
pub(crate) struct Connection {
    /// The client, and the endpoint that accepted it.
    source: QuerySource,
    shared: Arc<ConnectionState>,
    /// Counts messages of clients to this endpoint; `None` for a probe of our own.
    taken: Option<Arc<ReceiveCounter>>,
    stream: TcpStream,
    /// TLS, if the endpoint has it.
    tls: Option<Box<Tls>>,
    /// The PROXY protocol's header, as long as it may still arrive.
    header: Option<Box<ProxyHeader>>,
    /// Bytes received and not served: complete messages while the client does not read, else the
    /// start of one.
    received: Vec<u8>,
    /// When the first byte of `received`, or of the first TLS record in it, was received.
    received_at: Instant,
    /// Bytes to discard: the rest of a message that is too long and answered already.
    rest: usize,
    /// When the last message was served.
    served_at: Instant,
    /// Replies that the kernel has not fully accepted, and how many of their bytes it has.
    unsent: Vec<u8>,
    sent: usize,
    /// When the unsent replies were first written.
    unsent_since: Instant,
    /// A transfer in progress. Nothing more is read meanwhile.
    transfer: Option<Box<Transfer>>,
    /// The number of queries that the client may still send.
    left: u32,
    /// Whether no more is read; queries in flight are still answered (RFC 7766, section 6.2.4).
    ending: bool,
}

/// The events that a connection waits for.
struct Pause {
    read: bool,
    write: bool,
    until: Option<Instant>,
}

/// The result of a turn.
enum Turn {
    /// There is more to do, after other tasks.
    Again,
    Wait(Pause),
    /// Close: all replies are written.
    End,
    /// Reset, and drop the kernel's unsent bytes: the client did not read, or the connection was
    /// evicted.
    Abort,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end_transfer(clock::now());
        self.shared.close();
        self.source.running.connections.leave(&self.shared);
    }
}

impl Connection {
    pub(crate) fn new(
        endpoint: Endpoint,
        local: SocketAddr,
        peer: SocketAddr,
        running: Arc<ServerState>,
        shared: Arc<ConnectionState>,
        stream: TcpStream,
        now: Instant,
    ) -> Self {
        // A probe of our own is checked by its answer, so its messages are not counted.
        let taken = (!shared.is_own()).then(|| running.taken.socket(endpoint, running.inboxes.len()));
        Self {
            source: QuerySource { endpoint, local, peer, proto: Proto::Tcp, running },
            shared,
            taken,
            stream,
            tls: None,
            header: None,
            received: Vec::new(),
            received_at: now,
            rest: 0,
            served_at: now,
            unsent: Vec::new(),
            sent: 0,
            unsent_since: now,
            transfer: None,
            left: u32::MAX,
            ending: false,
        }
    }

    pub(crate) async fn serve(mut self) {
        // TCP_NODELAY: replies are small and must not wait for each other's ACK.
        let _ = self.stream.set_nodelay(true);
        let limits = match self.source.running.configuration.load().endpoints.get(&self.source.endpoint) {
            Some(plan) => {
                if let Some(tls) = &plan.tls {
                    let tls = Tls::new(tls.handshakes());
                    self.tls = Some(Box::new(tls));
                }
                self.header = ProxyHeader::expected(plan, self.source.peer);
                plan.timeouts
            }
            None => return,
        };
        self.left = limits.queries.unwrap_or(u32::MAX);
        let (running, shared) = (self.source.running.clone(), self.shared.clone());
        loop {
            let of_address = shared.turn().await;
            let began = clock::now();
            // Each message has a panic guard of its own. A panic elsewhere closes the connection.
            let turn =
                running.guarded(|| BUFFERS.with_borrow_mut(|scratch| self.turn(&limits, scratch, began)));
            let is_over = shared.spend(clock::now().saturating_duration_since(began));
            if is_over || matches!(turn, Some(Turn::Again)) {
                // Yields to all ready tasks, also to tasks that the runtime finds ready only now.
                // The turn of the address is held meanwhile.
                tokio::task::yield_now().await;
            }
            drop(of_address);
            match turn {
                Some(Turn::Again) => {}
                Some(Turn::Wait(pause)) => self.pause(pause).await,
                Some(Turn::End) => {
                    running.guarded(|| self.close());
                    return;
                }
                None => return,
                Some(Turn::Abort) => {
                    // A linger time of 0 makes `close` send an RST: unread bytes must not stay in
                    // the kernel for minutes.
                    let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
                    return;
                }
            }
        }
    }

    /// Closes the connection: TLS's close_notify and a FIN, as far as the kernel accepts them.
    fn close(mut self) {
        if let (Some(tls), true) = (&mut self.tls, self.unsent.is_empty()) {
            let mut octets = Vec::new();
            if tls.close(&mut octets).is_ok() {
                // If the alert cannot be written the client still sees the FIN.
                let _ = self.stream.try_write(&octets);
            }
        }
        // With unread bytes the kernel's close sends an RST instead of a FIN, which a client takes
        // for a failure. So the FIN is sent first: bytes received later still cause an RST, but
        // after the FIN, which the client has read by then.
        let socket = socket2::SockRef::from(&self.stream);
        let _ = socket.shutdown(Shutdown::Write);
        let mut unread = [0; 4096];
        for _ in 0..ROUNDS {
            if !matches!((&*socket).read(&mut unread), Ok(1..)) {
                break;
            }
        }
    }

    async fn pause(&self, pause: Pause) {
        let late = async {
            match pause.until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        // Which event ended the wait does not matter: the next turn tries to read and write.
        tokio::select! {
            _ = self.stream.writable(), if pause.write => {}
            _ = self.stream.readable(), if pause.read => {}
            () = self.shared.woken() => {}
            () = late => {}
        }
    }

    /// Writes, serves and reads without waiting, at most [`ROUNDS`] times and for [`MOMENT`].
    fn turn(&mut self, limits: &TimeoutsSpec, scratch: &mut Buffers, now: Instant) -> Turn {
        let until = now + MOMENT;
        for round in 0..ROUNDS {
            if self.shared.is_cut() {
                return Turn::Abort;
            }
            if round > 0 && clock::now() >= until {
                break;
            }
            if !self.unsent.is_empty() {
                let limit = self.write_limit(limits.write);
                match self.write_unsent() {
                    Ok(true) => {}
                    Ok(false) if now >= self.unsent_since + limit => return Turn::Abort,
                    Ok(false) => return self.rest(Activity::Unread, self.unsent_since, Some(limit)),
                    Err(_) => return Turn::End,
                }
            }
            scratch.replies.clear();
            self.shared.take(&mut scratch.replies);
            if scratch.replies.is_empty() && self.transfer.is_none() {
                let is_over = self.serve_received(scratch, now, until);
                if is_over && scratch.replies.is_empty() {
                    break;
                }
            }
            // Replies to queries received before the transfer are written first.
            if scratch.replies.is_empty() && self.transfer.is_some() && self.go_on(scratch, now).is_err() {
                return Turn::Abort;
            }
            if scratch.replies.is_empty() && self.transfer.is_some() {
                break;
            }
            if !scratch.replies.is_empty() {
                if self.write(scratch, now).is_err() {
                    return Turn::End;
                }
                scratch.shrink();
                continue;
            }
            if self.ending {
                match self.shared.is_owed_nothing() {
                    true => return Turn::End,
                    false => return self.rest(Activity::Busy, now, None),
                }
            }
            if self.shared.in_flight() >= IN_FLIGHT {
                return self.rest(Activity::Busy, now, None);
            }
            match self.read(scratch, now) {
                Ok(0) => self.ending = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(turn) = self.wait_for_client(limits, now) {
                        return turn;
                    }
                }
                Err(_) => return Turn::End,
            }
        }
        match self.hold(Activity::Busy, now) {
            true => Turn::Again,
            false => Turn::Abort,
        }
    }

    /// Called when all received bytes are read: waits for more, or ends if the client's time is
    /// over or all connections end.
    fn wait_for_client(&mut self, limits: &TimeoutsSpec, now: Instant) -> Option<Turn> {
        let served_once = self.served_once(limits);
        // Queries received before the end are answered. A new connection is given time for its
        // first query.
        if self.shared.ends() && (served_once || now >= self.served_at + FIRST_QUERY) {
            self.ending = true;
            return None;
        }
        let tls = self.tls.as_deref();
        let half = !self.received.is_empty() || self.rest > 0 || tls.is_some_and(Tls::is_half);
        let (since, limit) = match (half, served_once) {
            // The handshake as a whole has as much time as one message.
            _ if tls.is_some_and(Tls::is_new) => (self.served_at, limits.read),
            (true, _) => (self.received_at, limits.read),
            (false, true) => (self.served_at, limits.idle),
            (false, false) => (self.served_at, limits.read),
        };
        if now >= since + limit {
            self.received = Vec::new();
            self.ending = true;
            return None;
        }
        let state = match (self.shared.in_flight() > 0, half) {
            (true, _) => Activity::Busy,
            (false, true) => Activity::HalfSent,
            (false, false) => Activity::Idle,
        };
        Some(self.rest(state, since, Some(limit)))
    }

    fn served_once(&self, limits: &TimeoutsSpec) -> bool {
        self.left != limits.queries.unwrap_or(u32::MAX)
    }

    /// Returns a wait: sets the connection's state, and counts the bytes that it holds.
    fn rest(&mut self, state: Activity, since: Instant, limit: Option<Duration>) -> Turn {
        if !self.hold(state, since) {
            return Turn::Abort;
        }
        let write = state == Activity::Unread;
        let read = !write && !self.ending && self.shared.in_flight() < IN_FLIGHT;
        Turn::Wait(Pause { read, write, until: limit.map(|limit| since + limit) })
    }

    /// Counts the bytes held until the next turn; false if the budget has no room for them.
    fn hold(&mut self, state: Activity, since: Instant) -> bool {
        self.shared.set_state(state, self.source.running.since_start_ms(since));
        let held =
            self.received.capacity() + self.unsent.capacity() + self.tls.as_ref().map_or(0, |tls| tls.held());
        let held = held + self.header.as_ref().map_or(0, |header| header.held());
        let held = held + self.transfer.as_ref().map_or(0, |transfer| transfer.held());
        if held != self.shared.held_by_task() {
            let connections = &self.source.running.connections;
            if !connections.find_room(&self.shared, |limit| self.shared.hold(held, limit)) {
                return false;
            }
            if self.shared.is_short() {
                connections.relieve();
            }
        }
        true
    }

    /// Writes pending replies again; true if the kernel has accepted all of them.
    fn write_unsent(&mut self) -> io::Result<bool> {
        while self.sent < self.unsent.len() {
            match self.stream.try_write(&self.unsent[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        (self.unsent, self.sent) = (Vec::new(), 0);
        Ok(true)
    }

    /// Writes replies, encrypted with TLS.
    fn write(&mut self, scratch: &mut Buffers, now: Instant) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.offer(&scratch.replies, now) };
        scratch.sealed.clear();
        tls.seal(&scratch.replies, &mut scratch.sealed).map_err(|_| io::ErrorKind::ConnectionAborted)?;
        self.offer(&scratch.sealed, now)
    }

    /// Writes bytes, and keeps those that the kernel does not accept.
    fn offer(&mut self, octets: &[u8], now: Instant) -> io::Result<()> {
        let mut rest = octets;
        while !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        (self.unsent, self.sent, self.unsent_since) = (rest.to_vec(), 0, now);
        Ok(())
    }

    /// Reads once, appending to the start of a message. Returns 0 at the end of the stream.
    fn read(&mut self, scratch: &mut Buffers, now: Instant) -> io::Result<usize> {
        if self.tls.as_ref().is_some_and(|tls| tls.is_finished()) {
            return Ok(0);
        }
        let count = self.stream.try_read(&mut scratch.received)?;
        let read = count;
        let Some(count) = self.take_header(&mut scratch.received, count, now)? else { return Ok(read) };
        let Some(tls) = &mut self.tls else {
            self.keep(&scratch.received[..count], now);
            return Ok(count);
        };
        if count > 0 && self.received.is_empty() && !tls.is_half() {
            self.received_at = now;
        }
        scratch.plain.clear();
        scratch.sealed.clear();
        let opened = match count {
            0 => Ok(()),
            _ => tls.open(&scratch.received[..count], &mut scratch.plain, &mut scratch.sealed),
        };
        self.keep(&scratch.plain, now);
        // Sends messages of the handshake, or the alert that ends it.
        if !scratch.sealed.is_empty() {
            self.note();
            self.offer(&scratch.sealed, now)?;
        }
        opened.map_err(|_| io::ErrorKind::ConnectionAborted)?;
        Ok(count)
    }

    /// Counts that a client's connection was read.
    fn note(&self) {
        if let Some(taken) = &self.taken {
            taken.note_shared();
        }
    }

    /// Keeps bytes of messages until they are served.
    fn keep(&mut self, received: &[u8], now: Instant) {
        let count = received.len();
        let thrown = count.min(self.rest);
        self.rest -= thrown;
        let received = &received[thrown..];
        if received.is_empty() {
            return;
        }
        if self.received.is_empty() {
            self.received_at = now;
        }
        // Reserves as much as was received, whatever length the message announces; doubled, for
        // clients that send byte by byte.
        if self.received.capacity() - self.received.len() < received.len() {
            self.received.reserve_exact(received.len().max(self.received.len()));
        }
        self.received.extend_from_slice(received);
    }

    /// Serves complete messages, one at least, until there are enough replies, too many queries in
    /// flight, or the turn is over; true if the turn is over and messages are left.
    fn serve_received(&mut self, scratch: &mut Buffers, now: Instant, until: Instant) -> bool {
        let received = std::mem::take(&mut self.received);
        let mut at = 0;
        let (mut transfer, mut is_over) = (None, false);
        while !self.ending
            && transfer.is_none()
            && scratch.replies.len() < TOGETHER
            && self.shared.in_flight() < IN_FLIGHT
        {
            let Some((length, rest)) = received[at..].split_first_chunk::<2>() else { break };
            let length = usize::from(u16::from_be_bytes(*length));
            let Some(message) = rest.get(..length.min(MESSAGE_BYTES)) else { break };
            let read = clock::now();
            is_over = at > 0 && read >= until;
            if is_over {
                break;
            }
            let whole = message.len() == length;
            self.rest = length - message.len();
            // The rest of a message that is too long may have been read already.
            let thrown = self.rest.min(rest.len() - message.len());
            self.rest -= thrown;
            at += 2 + message.len() + thrown;
            self.left -= 1;
            self.ending =
                !self.query(message, whole, read, &mut scratch.reply, &mut transfer) || self.left == 0;
            scratch.send_reply();
        }
        self.transfer = transfer;
        match at {
            0 => self.received = received,
            _ if !self.ending && at < received.len() => {
                self.received = received[at..].to_vec();
                self.received_at = now;
            }
            _ => {}
        }
        if at > 0 {
            self.note();
            self.served_at = now;
        }
        if at > 0 && self.rest > 0 {
            self.received_at = now;
        }
        is_over
    }
}

/// Bytes of a message that are read; a longer one is a format error, as over UDP.
const MESSAGE_BYTES: usize = 4096;
/// Queries that one connection may have in flight; more stay unread.
const IN_FLIGHT: u32 = 64;
/// How long a new connection may take to its first query once the server stops.
const FIRST_QUERY: Duration = Duration::from_millis(300);
/// How often one connection writes and reads in a turn.
const ROUNDS: usize = 8;
