//! Output of the state machine: actions and datagrams for its driver, and pending work.
//!
//! At most one flight has ended and is not handed out yet, as its answer is in the machine's only
//! buffer. So input that concerns many flights (time, an error of a socket, the shutdown) is
//! processed by the polls that follow it, one flight at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client_quota::ClientId;

use super::actions::{Action, Exchange, FlightResult};
use super::flight::{FlightState, UpstreamTransport};
use super::timer_wheel::MachineTime;
use super::udp_sockets::{AttemptId, SocketRequest};
use super::waiters::WaiterList;
use super::{ExchangeId, Forwarder, LATE, SWEEP, SocketId};
use crate::{ConnectionLimits, ForwardError, StreamKind, Upstream};

/// The output, without requests for sockets, which `UdpSockets` has.
#[derive(Debug)]
pub(super) struct Output<W> {
    /// Attempts with datagrams to send, in order.
    pub(super) datagrams: VecDeque<AttemptId>,
    /// Exchanges to begin and to cancel, in order.
    pub(super) streams: VecDeque<StreamRequest>,
    ended: Option<Ended<W>>,
    /// Slot and generation of the flight that the last poll handed out, and its next step.
    handed_out: Option<(u32, u32, Then)>,
    /// Attempts to fail, with the error.
    pub(super) failing: VecDeque<(AttemptId, ForwardError)>,
    /// Whether timers may be due.
    pub(super) ticking: bool,
    /// During a shutdown, the next slot to end.
    pub(super) stopping: Option<u32>,
}

/// A request about an exchange.
#[derive(Debug)]
pub(super) enum StreamRequest {
    /// Begin the attempt's exchange.
    Exchange(AttemptId),
    /// Cancel an exchange.
    Cancel(Arc<Upstream>, StreamKind, ExchangeId),
    /// Count an exchange for this client.
    Join {
        upstream: Arc<Upstream>,
        kind: StreamKind,
        limits: ConnectionLimits,
        id: ExchangeId,
        client: ClientId,
    },
}

/// Waiters to hand out.
#[derive(Debug)]
pub(super) enum Ended<W> {
    /// All waiters of the flight in a slot, with the upstream that answered and the round-trip
    /// time, or with the error and the upstream that failed last.
    Flight(u32, Result<(u8, Duration), (ForwardError, Option<u8>)>),
    /// No waiters: the flight in a slot failed before, and its answer arrived late, from an
    /// upstream with this round-trip time.
    Late(u32, u8, Duration),
    /// The waiters with expired patience of the flight in a slot.
    Impatient(u32, WaiterList<W>),
}

/// The next step once waiters have been handed out.
#[derive(Clone, Copy, Debug)]
enum Then {
    Conclude,
    Remove,
    GoOn,
}

impl<W> Output<W> {
    pub(super) fn new() -> Self {
        Self {
            datagrams: VecDeque::new(),
            streams: VecDeque::new(),
            ended: None,
            handed_out: None,
            failing: VecDeque::new(),
            ticking: false,
            stopping: None,
        }
    }

    /// Sets the waiters to hand out. There are no others, as the driver polls until `None` after
    /// each input.
    pub(super) fn end(&mut self, ended: Ended<W>) {
        // Otherwise the waiters of the previous flight would never be answered.
        assert!(self.ended.is_none(), "the driver polls until there is nothing more");
        self.ended = Some(ended);
    }

    /// Whether this flight has ended and is not handed out yet.
    pub(super) fn is_ended(&self, slot: u32) -> bool {
        matches!(self.ended, Some(Ended::Flight(ended, _) | Ended::Late(ended, ..)) if ended == slot)
    }

    /// Takes the waiters with expired patience that are not handed out yet, with their slot.
    pub(super) fn take_impatient(&mut self) -> Option<(u32, WaiterList<W>)> {
        match self.ended.take() {
            Some(Ended::Impatient(slot, list)) => Some((slot, list)),
            _ => None,
        }
    }
}

impl<W> Forwarder<W> {
    /// Returns the next action for the driver. After each input the driver must poll until `None`,
    /// and before it blocks send the datagrams of [`Forwarder::poll_transmit`].
    pub fn poll(&mut self, now: Instant) -> Option<Action<'_, W>> {
        self.finish_end(now);
        loop {
            match self.sockets.poll() {
                Some(SocketRequest::Open(socket, upstream)) => return Some(Action::Open(socket, upstream)),
                Some(SocketRequest::Close(socket)) => return Some(Action::Close(socket)),
                None => {}
            }
            match self.output.streams.pop_front() {
                Some(StreamRequest::Exchange(owner)) => match self.resolve(owner) {
                    Some((slot, nth)) => return Some(Action::Exchange(self.exchange(slot, nth))),
                    None => continue,
                },
                Some(StreamRequest::Cancel(upstream, kind, id)) => {
                    return Some(Action::Cancel(upstream, kind, id));
                }
                Some(StreamRequest::Join { upstream, kind, limits, id, client }) => {
                    return Some(Action::Join { upstream, kind, limits, id, client });
                }
                None => {}
            }
            if let Some(ended) = self.output.ended.take() {
                return Some(Action::Finished(self.hand_out(ended)));
            }
            if !self.work(now) {
                return None;
            }
        }
    }

    /// Appends the next datagram to send to `bytes`, and returns its socket. The driver reports a
    /// datagram that could not be sent to [`Forwarder::unsent`].
    pub fn poll_transmit(&mut self, bytes: &mut Vec<u8>) -> Option<SocketId> {
        loop {
            let owner = self.output.datagrams.pop_front()?;
            let Some((slot, nth)) = self.resolve(owner) else { continue };
            let flight = &self.table[slot];
            let attempt = &flight.attempts[nth];
            if self.sockets.upstream(attempt.socket).is_none() {
                continue;
            }
            let start = bytes.len();
            flight.write(attempt.edns, bytes);
            bytes[start..start + 2].copy_from_slice(&attempt.id.to_be_bytes());
            return Some(attempt.socket);
        }
    }

    /// Performs the next step for the flight of the waiters handed out by the last poll.
    fn finish_end(&mut self, now: Instant) {
        let Some((slot, generation, then)) = self.output.handed_out.take() else { return };
        if !self.table.holds(slot, generation) {
            return;
        }
        match then {
            Then::Conclude => self.concluded(now, slot),
            Then::Remove => self.remove(slot),
            Then::GoOn => self.due(now, slot),
        }
    }

    fn hand_out(&mut self, ended: Ended<W>) -> FlightResult<'_, W> {
        let (slot, outcome, then) = match ended {
            Ended::Flight(slot, outcome) => (slot, outcome, Then::Conclude),
            Ended::Late(slot, upstream, rtt) => (slot, Ok((upstream, rtt)), Then::Remove),
            Ended::Impatient(slot, list) => {
                self.output.handed_out = Some((slot, self.table.generation(slot), Then::GoOn));
                let flight = &self.table[slot];
                return FlightResult {
                    waiters: self.waiters.hand_out(list),
                    outcome: Err(ForwardError::Patience),
                    query: flight.held.0.query(),
                    block: flight.block,
                    key: flight.key,
                    upstream: None,
                    rtt: Duration::ZERO,
                    late: false,
                };
            }
        };
        self.output.handed_out = Some((slot, self.table.generation(slot), then));
        let (outcome, upstream, rtt) = match outcome {
            Ok((upstream, rtt)) => (Ok(&mut self.answer), Some(upstream), rtt),
            Err((failure, upstream)) => (Err(failure), upstream, Duration::ZERO),
        };
        let flight = &mut self.table[slot];
        FlightResult {
            waiters: self.waiters.take_all(&mut flight.waiters),
            outcome,
            query: flight.held.0.query(),
            block: flight.block,
            key: flight.key,
            upstream: upstream.map(|at| &flight.upstreams[usize::from(at)]),
            rtt,
            late: matches!(then, Then::Remove),
        }
    }

    /// Returns the exchange of an attempt over TCP or TLS.
    fn exchange(&mut self, slot: u32, nth: usize) -> Exchange<'_> {
        let generation = self.table.generation(slot);
        let flight = &self.table[slot];
        let attempt = &flight.attempts[nth];
        self.message.clear();
        flight.write(attempt.edns, &mut self.message);
        let kind = match attempt.transport {
            UpstreamTransport::Stream(kind) => kind,
            UpstreamTransport::Udp => unreachable!("only attempts over streams have exchanges"),
        };
        Exchange {
            id: ExchangeId::new(slot, generation, attempt.serial),
            upstream: &flight.upstreams[usize::from(attempt.upstream)],
            kind,
            message: &self.message,
            limits: flight.stanza().spec().connections,
            client: flight.cold.as_ref().and_then(|cold| cold.joined).unwrap_or(flight.waiters.client),
            give_up_at: self.epoch + flight.machine_time(flight.deadline).since(MachineTime(0)),
            deadline: self.epoch + flight.started.after(LATE).since(MachineTime(0)),
        }
    }

    /// Does one piece of pending work; false if there is none.
    fn work(&mut self, now: Instant) -> bool {
        if let Some((owner, failure)) = self.output.failing.pop_front() {
            if let Some((slot, nth)) = self.resolve(owner) {
                self.failed(now, slot, nth, failure);
            }
        } else if let Some(from) = self.output.stopping {
            self.stop(from);
        } else if self.output.ticking {
            let at = self.machine_time(now);
            match self.timers.pop(at) {
                Some(slot) => self.due(now, slot),
                None => {
                    self.output.ticking = false;
                    self.sweep(at);
                }
            }
        } else {
            return false;
        }
        true
    }

    /// Ends the next flight with waiters, from this slot on; after the last one, everything else.
    fn stop(&mut self, from: u32) {
        if let Some(slot) = self.table.next_taken(from) {
            self.output.stopping = Some(slot + 1);
            if self.table[slot].state == FlightState::Flying {
                self.conclude(slot, Err((ForwardError::Shutdown, None)));
            }
            return;
        }
        self.output.stopping = None;
        for slot in self.table.taken() {
            self.remove(slot);
        }
        self.lingering.clear();
        self.sockets.close_all();
        self.sweep_at = MachineTime::NEVER;
    }

    /// Retires sockets by age, once a second.
    fn sweep(&mut self, at: MachineTime) {
        if at >= self.sweep_at {
            self.sockets.sweep(at);
            self.sweep_at = if self.sockets.open_count() == 0 { MachineTime::NEVER } else { at.after(SWEEP) };
        }
    }
}
