//! TCP clients (RFC 7766): pipelined, answered out of order, bounded in number, time and queries in flight.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use wire::{Gate, HeldQuery, accept as gate};

use super::connections::{IN_FLIGHT, Place};
use super::inbox::{Client, Frame, Letter, StreamReply, Waiter};
use crate::clock;
use crate::failure::Failure;
use crate::observe::LineRing;
use crate::observe::counters::Proto;
use crate::plugin::Moment;
use crate::plugin::hosts::Tables;
use crate::running::Running;
use crate::serve::{self, Outcome, Room, Seen, Served};
use crate::setup::TimeoutsSpec;

/// Accepts connections on one address until it is aborted.
pub(super) async fn accept(listener: std::net::TcpListener, address: SocketAddr, running: Arc<Running>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return running.fatal(&format!("cannot serve {address} (tcp): {error}")),
    };
    let taken = running.taken.socket(address, running.inboxes.len());
    // It was raised at the start; where it cannot be told, running out of them does.
    let limit = sockets::raise_open_files_limit().map_or(u64::MAX, |(_, limit)| limit);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                taken.note();
                // The kernel gives the lowest number that is free: a high one says that few are left.
                let last = stream.as_raw_fd() as u64 + RESERVED >= limit;
                let now = running.since_start_ms(clock::now());
                let Some(place) = running.connections.enter(peer.port(), now) else { continue };
                let local = stream.local_addr().unwrap_or(address);
                let connection = Connection { address, local, peer, running: running.clone(), place };
                tokio::spawn(connection.serve(stream));
                if last {
                    running.connections.make_room();
                    tokio::time::sleep(CLOSING).await;
                }
            }
            Err(error) => {
                running.io_error("accept", address, &error, clock::now());
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
    /// The listen address.
    address: SocketAddr,
    /// The address the client asked.
    local: SocketAddr,
    peer: SocketAddr,
    running: Arc<Running>,
    place: Arc<Place>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.running.connections.leave(&self.place);
    }
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        // Replies are small and must not wait for each other's ACK.
        let _ = stream.set_nodelay(true);
        let timeouts = match self.running.house.load().listeners.get(&self.address) {
            Some(listener) => listener.timeouts,
            None => return,
        };
        let (reader, writer) = stream.into_split();
        let (sender, receiver) = mpsc::channel(IN_FLIGHT);
        let writing = tokio::spawn(write(writer, receiver, timeouts.write));
        self.read(BufReader::with_capacity(4096, reader), sender, &timeouts).await;
        // The client may have closed its side only: what is in flight is still answered (RFC 7766, section 6.2.4).
        let _ = writing.await;
    }

    async fn read(
        &self,
        mut reader: BufReader<OwnedReadHalf>,
        sender: mpsc::Sender<Frame>,
        limits: &TimeoutsSpec,
    ) {
        let mut message = Vec::new();
        let mut lines = self.running.logger.ring(LOG_RING_BYTES);
        let mut wait = limits.read;
        let mut left = limits.queries.unwrap_or(u32::MAX);
        while left > 0 {
            let Ok(permit) = self.place.in_flight.clone().acquire_owned().await else { return };
            // The writer gave up: the client does not read.
            if sender.is_closed() {
                return;
            }
            if !self.next_message(&mut reader, &mut message, wait, limits.read).await.unwrap_or(false) {
                return;
            }
            wait = limits.idle;
            left -= 1;
            let permit = Arc::new(permit);
            let way_back = StreamReply { sender: sender.clone(), peer: self.peer, local: self.local, permit };
            if !self.query(&message, way_back, &mut lines) {
                return;
            }
            self.place.waits(self.running.since_start_ms(clock::now()));
        }
    }

    /// Reads one message; false at the end of the stream, or where another connection needs the place. The first octet may
    /// take `first`, the rest `rest` in all.
    async fn next_message(
        &self,
        reader: &mut BufReader<OwnedReadHalf>,
        message: &mut Vec<u8>,
        first: Duration,
        rest: Duration,
    ) -> io::Result<bool> {
        let mut length = [0; 2];
        tokio::select! {
            read = timeout(first, reader.read(&mut length[..1])) => match read {
                Ok(Ok(1)) => {}
                Ok(Ok(_)) | Err(_) => return Ok(false),
                Ok(Err(error)) => return Err(error),
            },
            () = self.place.cut() => return Ok(false),
        }
        self.place.reads();
        let body = async {
            reader.read_exact(&mut length[1..]).await?;
            message.resize(usize::from(u16::from_be_bytes(length)), 0);
            reader.read_exact(message).await?;
            io::Result::Ok(())
        };
        match timeout(rest, body).await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Serves one message; false where the connection is not worth keeping.
    fn query(&self, message: &[u8], way_back: StreamReply, lines: &mut LineRing) -> bool {
        let now = clock::now();
        let house = self.running.house.load();
        let Some(listener) = house.listeners.get(&self.address) else { return false };
        let tables = Tables::default();
        let (client, server, writer) = (self.peer, self.local, self.running.inboxes.len());
        let moment = Moment { now, client, server, proto: Proto::Tcp, writer, tables: &tables };
        let (mut out, mut outcome) = (Vec::new(), Outcome::OPEN);
        let gate = gate(message);
        let served = self
            .running
            .guarded(|| serve::serve(listener, &gate, &moment, Room::Stream, &mut out, &mut outcome));
        let Some(served) = served else {
            let Gate::Pass(query) = &gate else { return false };
            serve::bare_reply(query, &Failure::Panic, &mut out);
            way_back.send(&out);
            return true;
        };
        match served {
            // Whoever sends responses or scraps here is no client.
            Served::Nothing => return false,
            Served::Ask { query, zone, patience } => {
                let waiter = Waiter::new(query, zone, Client::Stream(way_back), now);
                self.post(query.hold(), waiter, patience);
                return true;
            }
            Served::ReplyAndRefresh(query, zone) => {
                // What is kept is for all: asked for one subnet it would not be.
                let refresh = query.hold().without_subnet();
                self.post(refresh, Waiter::new(query, zone, Client::Nobody, now), None);
            }
            Served::Follow { replied: false, asked } => {
                let (query, waiter, patience) = Waiter::of(*asked, Client::Stream(way_back), now);
                self.post(query, waiter, patience);
                return true;
            }
            Served::Follow { replied: true, asked } => {
                let (query, waiter, patience) = Waiter::of(*asked, Client::Nobody, now);
                self.post(query, waiter, patience);
            }
            Served::Reply => {}
        }
        way_back.send(&out);
        if !outcome.counted {
            return true;
        }
        let done = clock::now();
        let nanos = done.saturating_duration_since(now).as_nanos() as u64;
        let seen = Seen { client: self.peer, local: Some(self.local), proto: Proto::Tcp, nanos, now: done };
        let zone = outcome.zone.and_then(|index| house.zones.get(index as usize));
        let tally = zone.map_or_else(|| listener.dropped_tally(writer), |zone| zone.tally(writer));
        serve::count(tally, &outcome, Proto::Tcp, self.peer.is_ipv6(), nanos);
        if let (Some(zone), Gate::Pass(query)) = (zone, &gate)
            && (zone.block.log.is_some() || outcome.failure.is_some())
        {
            serve::log(zone, &outcome, &seen, query, lines);
        }
        true
    }

    /// Hands a miss to the worker that has the same query in flight, else to the one that its key chooses.
    fn post(&self, query: HeldQuery, waiter: Waiter, patience: Option<Duration>) {
        let inboxes = &self.running.inboxes;
        let (worker, key) = self.running.flights.place(&query, &waiter, None, inboxes.len());
        inboxes[worker].post(Letter::Ask { query, waiter, patience, key });
    }
}

impl StreamReply {
    /// Sends a reply, its length in front. A connection that is gone loses it.
    pub(super) fn send(&self, reply: &[u8]) {
        let Ok(length) = u16::try_from(reply.len()) else { return };
        let mut octets = Vec::with_capacity(2 + reply.len());
        octets.extend_from_slice(&length.to_be_bytes());
        octets.extend_from_slice(reply);
        // There is room: the channel has a place for each permit, and the frame keeps its own until it is written.
        let _ = self.sender.try_send(Frame { octets, permit: self.permit.clone() });
    }
}

/// Writes replies until nobody can send any more; what waits together leaves together.
async fn write(mut writer: OwnedWriteHalf, mut replies: mpsc::Receiver<Frame>, limit: Duration) {
    let mut together = Vec::new();
    let mut permits = Vec::new();
    while let Some(reply) = replies.recv().await {
        together.extend_from_slice(&reply.octets);
        permits.push(reply.permit);
        while together.len() < 16 * 1024
            && let Ok(more) = replies.try_recv()
        {
            together.extend_from_slice(&more.octets);
            permits.push(more.permit);
        }
        match timeout(limit, writer.write_all(&together)).await {
            Ok(Ok(())) => {}
            _ => return,
        }
        together.clear();
        permits.clear();
    }
    let _ = writer.shutdown().await;
}

/// Log lines of one connection that may wait for the writer.
const LOG_RING_BYTES: usize = 16 * 1024;
/// Descriptors that connections of clients leave to upstreams, files and pages.
const RESERVED: u64 = 16;
/// What a connection that gives way may take to close.
const CLOSING: Duration = Duration::from_millis(50);
