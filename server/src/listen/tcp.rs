//! TCP clients (RFC 7766): pipelined, answered out of order, bounded in number, time, octets and queries in flight.
//!
//! One task serves a connection, turn by turn: it writes what waits, and only when the kernel has taken all of it does it
//! read and answer more. So a client that does not read is not read from.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use wire::{Gate, HeldQuery, accept as gate, accept_truncated};

use super::inbox::{Client, Waiter};
use super::place::{Place, Waits};
use super::stream_reply::StreamReply;
use crate::clock;
use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::observe::counters::Proto;
use crate::plugin::Moment;
use crate::plugin::hosts::Tables;
use crate::plugin::timeouts::TimeoutsSpec;
use crate::running::Running;
use crate::serve::{self, Outcome, Room, Seen, Served};

/// Accepts connections on one endpoint until it is aborted.
pub(super) async fn accept(listener: std::net::TcpListener, endpoint: Endpoint, running: Arc<Running>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return running.fatal(&format!("cannot serve {endpoint} (tcp): {error}")),
    };
    let taken = running.taken.socket(endpoint, running.inboxes.len());
    // It was raised at the start; where it cannot be told, running out of them does.
    let limit = sockets::raise_open_files_limit().map_or(u64::MAX, |(_, limit)| limit);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                taken.note();
                // The kernel gives the lowest number that is free: a high one says that few are left.
                let last = stream.as_raw_fd() as u64 + RESERVED >= limit;
                let now = clock::now();
                let Some(place) = running.connections.enter(peer, running.since_start_ms(now)) else {
                    continue;
                };
                let local = stream.local_addr().unwrap_or(endpoint.address);
                let connection = Connection::new(endpoint, local, peer, running.clone(), place, stream, now);
                tokio::spawn(connection.serve());
                if last {
                    running.connections.make_room();
                    tokio::time::sleep(CLOSING).await;
                }
            }
            Err(error) => {
                running.io_error("accept", endpoint.address, &error, clock::now());
                // EMFILE, ENFILE: descriptors are short.
                if matches!(error.raw_os_error(), Some(24 | 23)) {
                    running.connections.make_room();
                }
                tokio::time::sleep(CLOSING).await;
            }
        }
    }
}

struct Connection {
    /// Where it came in.
    endpoint: Endpoint,
    /// The address the client asked.
    local: SocketAddr,
    peer: SocketAddr,
    running: Arc<Running>,
    place: Arc<Place>,
    stream: TcpStream,
    /// What has come and is not served: whole messages while the client does not read, else the start of one.
    came: Vec<u8>,
    /// When its first octet came.
    came_at: Instant,
    /// Octets still to come of a message that is too long and answered already: they are thrown away.
    rest: usize,
    /// When the last message was served.
    served_at: Instant,
    /// Replies that the kernel has not taken, and how much of them it has.
    unsent: Vec<u8>,
    sent: usize,
    /// When they were first offered.
    unsent_since: Instant,
    /// Queries that it may still bring.
    left: u32,
    /// No more is read; what is in flight is still answered (RFC 7766, section 6.2.4).
    ending: bool,
}

/// What a connection waits for when nothing can be done.
struct Pause {
    read: bool,
    write: bool,
    until: Option<Instant>,
}

/// What a turn came to.
enum Turn {
    /// There is more to do, after others.
    Again,
    Wait(Pause),
    /// The end, everything said.
    End,
    /// The end for a client that did not read, or that gives way: what the kernel has for it goes as well.
    Abort,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.place.close();
        self.running.connections.leave(&self.place);
    }
}

impl Connection {
    fn new(
        endpoint: Endpoint,
        local: SocketAddr,
        peer: SocketAddr,
        running: Arc<Running>,
        place: Arc<Place>,
        stream: TcpStream,
        now: Instant,
    ) -> Self {
        Self {
            endpoint,
            local,
            peer,
            running,
            place,
            stream,
            came: Vec::new(),
            came_at: now,
            rest: 0,
            served_at: now,
            unsent: Vec::new(),
            sent: 0,
            unsent_since: now,
            left: u32::MAX,
            ending: false,
        }
    }

    async fn serve(mut self) {
        // Replies are small and must not wait for each other's ACK.
        let _ = self.stream.set_nodelay(true);
        let limits = match self.running.house.load().listeners.get(&self.endpoint) {
            Some(listener) => listener.timeouts,
            None => return,
        };
        self.left = limits.queries.unwrap_or(u32::MAX);
        let running = self.running.clone();
        loop {
            // A message has a guard of its own. A panic elsewhere costs the connection.
            let turn = running.guarded(|| SCRATCH.with_borrow_mut(|scratch| self.turn(&limits, scratch)));
            match turn {
                Some(Turn::Again) => tokio::task::yield_now().await,
                Some(Turn::Wait(pause)) => self.pause(pause).await,
                Some(Turn::End) | None => return,
                Some(Turn::Abort) => {
                    // An RST: octets that nobody reads must not stay in the kernel for minutes.
                    let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
                    return;
                }
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
        // What has become of the socket, the next turn finds out.
        tokio::select! {
            _ = self.stream.writable(), if pause.write => {}
            _ = self.stream.readable(), if pause.read => {}
            () = self.place.woken() => {}
            () = late => {}
        }
    }

    /// Does what can be done without waiting, a few times at most.
    fn turn(&mut self, limits: &TimeoutsSpec, scratch: &mut Scratch) -> Turn {
        let now = clock::now();
        for _ in 0..ROUNDS {
            if self.place.is_cut() {
                return Turn::Abort;
            }
            self.ending |= self.place.ends();
            if !self.unsent.is_empty() {
                match self.write_unsent() {
                    Ok(true) => {}
                    Ok(false) if now >= self.unsent_since + limits.write => return Turn::Abort,
                    Ok(false) => return self.rest(Waits::Unread, self.unsent_since, Some(limits.write)),
                    Err(_) => return Turn::End,
                }
            }
            scratch.replies.clear();
            self.place.take(&mut scratch.replies);
            if scratch.replies.is_empty() {
                self.serve_what_came(scratch, now);
            }
            if !scratch.replies.is_empty() {
                if self.write(&scratch.replies, now).is_err() {
                    return Turn::End;
                }
                scratch.shrink();
                continue;
            }
            if self.ending {
                match self.place.is_owed_nothing() {
                    true => return Turn::End,
                    false => return self.rest(Waits::Busy, now, None),
                }
            }
            if self.place.in_flight() >= IN_FLIGHT {
                return self.rest(Waits::Busy, now, None);
            }
            match self.read(scratch, now) {
                Ok(0) => self.ending = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let half = !self.came.is_empty() || self.rest > 0;
                    let (since, limit) = match (half, self.served_once(limits)) {
                        (true, _) => (self.came_at, limits.read),
                        (false, true) => (self.served_at, limits.idle),
                        (false, false) => (self.served_at, limits.read),
                    };
                    if now >= since + limit {
                        self.came = Vec::new();
                        self.ending = true;
                        continue;
                    }
                    let waits = match (self.place.in_flight() > 0, half) {
                        (true, _) => Waits::Busy,
                        (false, true) => Waits::Half,
                        (false, false) => Waits::Idle,
                    };
                    return self.rest(waits, since, Some(limit));
                }
                Err(_) => return Turn::End,
            }
        }
        Turn::Again
    }

    fn served_once(&self, limits: &TimeoutsSpec) -> bool {
        self.left != limits.queries.unwrap_or(u32::MAX)
    }

    /// Tells what is waited for, and counts what is held meanwhile.
    fn rest(&mut self, waits: Waits, since: Instant, limit: Option<Duration>) -> Turn {
        self.place.set_waits(waits, self.running.since_start_ms(since));
        let held = self.came.capacity() + self.unsent.capacity();
        if held != self.place.held_by_task() {
            let connections = &self.running.connections;
            if !connections.find_room(&self.place, |limit| self.place.hold(held, limit)) {
                return Turn::Abort;
            }
            if self.place.is_short() {
                connections.relieve();
            }
        }
        let write = waits == Waits::Unread;
        let read = !write && !self.ending && self.place.in_flight() < IN_FLIGHT;
        Turn::Wait(Pause { read, write, until: limit.map(|limit| since + limit) })
    }

    /// Offers the kernel what it did not take before; true where it has all of it now.
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

    /// Offers the kernel replies, and keeps what it does not take.
    fn write(&mut self, replies: &[u8], now: Instant) -> io::Result<()> {
        let mut rest = replies;
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

    /// Reads once: behind the start of a message, as many octets as came. 0 is the end of the stream.
    fn read(&mut self, scratch: &mut Scratch, now: Instant) -> io::Result<usize> {
        let count = self.stream.try_read(&mut scratch.came)?;
        let thrown = count.min(self.rest);
        self.rest -= thrown;
        let came = &scratch.came[thrown..count];
        if came.is_empty() {
            return Ok(count);
        }
        if self.came.is_empty() {
            self.came_at = now;
        }
        // As much as has come, whatever length it announces; and as much again, for clients that send octet by octet.
        if self.came.capacity() - self.came.len() < came.len() {
            self.came.reserve_exact(came.len().max(self.came.len()));
        }
        self.came.extend_from_slice(came);
        Ok(count)
    }

    /// Serves messages that have come whole, until enough replies are together or too many queries in flight.
    fn serve_what_came(&mut self, scratch: &mut Scratch, now: Instant) {
        let came = std::mem::take(&mut self.came);
        let mut at = 0;
        while !self.ending && scratch.replies.len() < TOGETHER && self.place.in_flight() < IN_FLIGHT {
            let Some((length, rest)) = came[at..].split_first_chunk::<2>() else { break };
            let length = usize::from(u16::from_be_bytes(*length));
            let Some(message) = rest.get(..length.min(MESSAGE_BYTES)) else { break };
            let whole = message.len() == length;
            self.rest = length - message.len();
            // Of what is too long the end may be here already.
            let thrown = self.rest.min(rest.len() - message.len());
            self.rest -= thrown;
            at += 2 + message.len() + thrown;
            self.left -= 1;
            self.ending = !self.query(message, whole, &mut scratch.reply) || self.left == 0;
            if let (Ok(length), false) = (u16::try_from(scratch.reply.len()), scratch.reply.is_empty()) {
                scratch.replies.extend_from_slice(&length.to_be_bytes());
                scratch.replies.extend_from_slice(&scratch.reply);
            }
        }
        match at {
            0 => self.came = came,
            _ if !self.ending && at < came.len() => {
                self.came = came[at..].to_vec();
                self.came_at = now;
            }
            _ => {}
        }
        if at > 0 {
            self.served_at = now;
        }
        if at > 0 && self.rest > 0 {
            self.came_at = now;
        }
    }

    /// Serves one message, or the start of one that is too long: its reply, if there is one already, is in `out` afterwards. False where the connection is not
    /// worth keeping.
    fn query(&self, message: &[u8], whole: bool, out: &mut Vec<u8>) -> bool {
        out.clear();
        let running = &*self.running;
        if let Some(goes_on) = running.guarded(|| self.try_query(message, whole, out)) {
            return goes_on;
        }
        out.clear();
        // Read again: where that was what panicked, there is nothing to say.
        let told = running.guarded(|| {
            let Gate::Pass(query) = gate(message) else { return false };
            serve::bare_reply(&query, &Failure::Panic, out);
            true
        });
        told == Some(true)
    }

    fn try_query(&self, message: &[u8], whole: bool, out: &mut Vec<u8>) -> bool {
        let now = clock::now();
        let house = self.running.house.load();
        let Some(listener) = house.listeners.get(&self.endpoint) else { return false };
        let tables = Tables::default();
        let (client, server, writer) = (self.peer, self.local, self.running.inboxes.len());
        let moment = Moment { now, client, server, proto: Proto::Tcp, writer, tables: &tables };
        let mut outcome = Outcome::OPEN;
        let gate = if whole { gate(message) } else { accept_truncated(message) };
        match serve::serve(listener, &gate, &moment, Room::Stream, out, &mut outcome) {
            // Whoever sends responses or scraps here is no client.
            Served::Nothing => return false,
            Served::Silence => {
                out.clear();
                return true;
            }
            Served::Ask { query, zone, patience } => {
                out.clear();
                let waiter = Waiter::new(query, zone, Client::Stream(self.way_back()), now);
                self.post(query.hold(), waiter, patience);
                return true;
            }
            Served::ReplyAndRefresh(query, zone) => {
                // What is kept is for all: asked for one subnet it would not be.
                let refresh = query.hold().without_subnet();
                self.post(refresh, Waiter::new(query, zone, Client::Nobody, now), None);
            }
            Served::Follow { replied, waits } => {
                let client = if replied { Client::Nobody } else { Client::Stream(self.way_back()) };
                for (query, waiter, patience) in Waiter::all(*waits, client, now) {
                    self.post(query, waiter, patience);
                }
                if !replied {
                    out.clear();
                    return true;
                }
            }
            Served::Reply => {}
        }
        if !outcome.counted {
            return true;
        }
        let done = clock::now();
        let nanos = done.saturating_duration_since(now).as_nanos() as u64;
        let seen = Seen {
            client: self.peer,
            local: Some(self.local),
            proto: Proto::Tcp,
            nanos,
            now: done,
            upstream: None,
        };
        let zone = outcome.zone.and_then(|index| house.zones.get(index as usize));
        let tally = zone.map_or_else(|| listener.dropped_tally(writer), |zone| zone.tally(writer));
        serve::count(tally, &outcome, Proto::Tcp, self.peer.is_ipv6(), nanos);
        if let (Some(zone), Gate::Pass(query)) = (zone, &gate)
            && (zone.block.log.is_some() || outcome.failure.is_some())
        {
            // The reply stands, whatever becomes of its line.
            self.running.guarded(|| serve::log(zone, &outcome, &seen, query, &mut self.running.tcp_lines()));
        }
        true
    }

    fn way_back(&self) -> StreamReply {
        StreamReply::new(&self.running.connections, &self.place, self.peer, self.local)
    }

    /// Hands a miss to the worker that has the same query in flight, else to the one that its key chooses.
    fn post(&self, query: HeldQuery, waiter: Waiter, patience: Option<Duration>) {
        let inboxes = &self.running.inboxes;
        let (worker, key) = self.running.flights.place(&query, &waiter, None, inboxes.len());
        if let Some((query, waiter)) = inboxes[worker].ask(query, waiter, patience, key) {
            // Where that worker has it in flight already, all that is lost is that others join it.
            self.running.flights.release(key, worker);
            self.running.shed.add_shared(1);
            let mut reply = Vec::new();
            let Some((query, client)) = waiter.without_room(query) else { return };
            if let Client::Stream(stream) = client {
                serve::bare_reply(&query.query(), &Failure::Overload, &mut reply);
                stream.send(&reply);
            }
        }
    }
}

/// What one thread needs for as long as a turn of one connection takes.
struct Scratch {
    came: Box<[u8]>,
    reply: Vec<u8>,
    replies: Vec<u8>,
}

impl Scratch {
    /// Gives back what replies of uncommon size have made it.
    fn shrink(&mut self) {
        self.replies.clear();
        self.replies.shrink_to(4 * TOGETHER);
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        came: vec![0; 8192].into(),
        reply: Vec::new(),
        replies: Vec::new(),
    });
}

/// Descriptors that connections of clients leave to upstreams, files and pages.
const RESERVED: u64 = 16;
/// What a connection that gives way may take to close.
const CLOSING: Duration = Duration::from_millis(50);
/// As much of a message is read; what is longer is a format error, as over UDP.
const MESSAGE_BYTES: usize = 4096;
/// Queries that one connection may have in flight; more wait unread.
const IN_FLIGHT: u32 = 64;
/// Octets of replies that leave together; while the kernel does not take them, nothing more is read.
const TOGETHER: usize = 16 * 1024;
/// How often one connection writes and reads before it is others' turn.
const ROUNDS: usize = 8;
