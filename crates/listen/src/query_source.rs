//! The queries of one connection: answers each at once, or posts it to a worker.

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use wire::{Opcode, Proto, Rcode, Verdict, accept as gate, accept_truncated};

use super::waiter::{Client, Miss};
use crate::server_state::ServerState;
use configuration::Configuration;
use plugin::endpoint::Endpoint;
use plugin::failure::Failure;
use plugin::{HostsGuard, QueryContext};
use query::ServedEndpoint;
use query::serve::{self, Observed, Outcome, Served, TransferStream};

/// A client's connection, as its queries are counted and logged.
pub(crate) struct QuerySource {
    /// The endpoint that accepted it.
    pub(crate) endpoint: Endpoint,
    /// The address that the client connected to.
    pub(crate) local: SocketAddr,
    /// The client.
    pub(crate) peer: SocketAddr,
    pub(crate) proto: Proto,
    pub(crate) running: Arc<ServerState>,
}

/// The result of a message.
pub(crate) enum Handled {
    /// The reply is written.
    Reply,
    /// The reply, written, refuses the message whatever it asks for: FORMERR or NOTIMP.
    Refused,
    /// A worker will answer.
    Posted,
    /// There is no reply.
    Silence,
    /// No client sends such a message: a response, or one without a complete header.
    NoQuery,
    /// The configuration does not serve the endpoint any more.
    Gone,
    /// A zone transfer has begun.
    Transfer,
}

impl QuerySource {
    /// Serves one message, or the start of one that is too long: writes the reply, if it is ready,
    /// to `out`, which is empty otherwise. `client` makes the handle for a later reply; `begin`
    /// begins a zone transfer, or returns it with the failure to answer instead.
    pub(crate) fn serve(
        &self,
        message: &[u8],
        whole: bool,
        now: Instant,
        out: &mut Vec<u8>,
        client: impl Fn() -> Client,
        begin: impl FnMut(Box<TransferStream>) -> Result<(), (Box<TransferStream>, Failure)>,
    ) -> Handled {
        out.clear();
        let running = &*self.running;
        let handled = running.guarded(|| self.try_serve(message, whole, now, out, client, begin));
        if let Some(handled) = handled {
            if !matches!(handled, Handled::Reply | Handled::Refused) {
                out.clear();
            }
            return handled;
        }
        out.clear();
        // The message is parsed a second time: if the parser is what panics, its client gets no
        // reply.
        let replied = running.guarded(|| {
            let gate = gate(message);
            let Some(query) = gate.query() else { return false };
            serve::error_reply(query, &Failure::Panic, out);
            true
        });
        if replied == Some(true) { Handled::Reply } else { Handled::NoQuery }
    }

    fn try_serve(
        &self,
        message: &[u8],
        whole: bool,
        now: Instant,
        out: &mut Vec<u8>,
        client: impl Fn() -> Client,
        mut begin: impl FnMut(Box<TransferStream>) -> Result<(), (Box<TransferStream>, Failure)>,
    ) -> Handled {
        let configuration = self.running.configuration.load();
        let Some(plan) = configuration.endpoints.get(&self.endpoint) else { return Handled::Gone };
        let (peer, writer) = (self.peer.into(), self.running.inboxes.len());
        let context = QueryContext::new(now, &peer, self.local, self.proto, writer);
        let mut tables = HostsGuard::default();
        let mut outcome = Outcome::OPEN;
        let gate = if whole { gate(message) } else { accept_truncated(message) };
        #[cfg(test)]
        crate::failpoint::packet(&gate);
        match serve::serve(&plan.served, &gate, &context, &mut tables, out, &mut outcome) {
            Served::Nothing => return Handled::NoQuery,
            Served::Silence => return Handled::Silence,
            Served::Ask { replied: false, asked } => {
                self.post(Miss::new(asked, client(), now));
                return Handled::Posted;
            }
            Served::Ask { replied: true, asked } => {
                self.post(Miss::new(asked, Client::Background, now));
            }
            Served::Follow { replied, lookups } => {
                let client = if replied { Client::Background } else { client() };
                Miss::all(*lookups, client, now).for_each(|miss| self.post(miss));
                if !replied {
                    return Handled::Posted;
                }
            }
            Served::Stream(streaming) => match begin(streaming) {
                Ok(()) => return Handled::Transfer,
                Err((streaming, failure)) => streaming.refuse(failure, out, &mut outcome),
            },
            Served::Reply => {}
        }
        self.observe(&configuration, &plan.served, &gate, &outcome, now);
        match gate {
            Verdict::Refuse(refusal) if matches!(refusal.rcode, Rcode::FORMERR | Rcode::NOTIMP) => {
                Handled::Refused
            }
            Verdict::Zone(request) if request.query.flags.opcode() == Opcode::UPDATE => Handled::Refused,
            _ => Handled::Reply,
        }
    }

    /// Counts and logs a query with a written reply, if it is counted.
    fn observe(
        &self,
        configuration: &Configuration,
        served: &ServedEndpoint,
        gate: &Verdict<'_>,
        outcome: &Outcome,
        began: Instant,
    ) {
        if !outcome.counted {
            return;
        }
        let now = clock::now();
        let nanos = now.saturating_duration_since(began).as_nanos() as u64;
        let seen = self.seen(nanos, now);
        let zone = outcome.zone.and_then(|index| configuration.zones.get(index as usize));
        let writer = self.running.inboxes.len();
        let counters = zone.map_or_else(|| served.dropped_counters(writer), |zone| zone.counters(writer));
        serve::count(counters, slice::from_ref(outcome), self.proto, self.peer.is_ipv6(), nanos);
        if let (Some(zone), Some(query)) = (zone, gate.query())
            && serve::is_logged(zone, outcome)
        {
            self.running.log(zone, outcome, &seen, query, &mut self.running.tcp_lines());
        }
    }

    /// Describes a finished query for metrics and log.
    pub(crate) fn seen(&self, nanos: u64, now: Instant) -> Observed {
        let (client, local) = (self.peer, Some(self.local));
        Observed { client, local, proto: self.proto, nanos, now, upstream: None }
    }

    /// Posts a miss to the worker that has the same query in flight, else to the one that its key
    /// chooses.
    fn post(&self, miss: Miss) {
        let inboxes = &self.running.inboxes;
        let (worker, key) = match miss.is_timer {
            // A wait joins no query in flight.
            true => ((miss.waiter.client.number() % inboxes.len().max(1) as u128) as usize, 0),
            false => self.running.flights.worker_for(&miss, None, inboxes.len()),
        };
        if let Some(miss) = inboxes[worker].ask(miss, key) {
            // If that worker has the flight already, later queries on other workers can no longer
            // join it (single flight); there is no other effect.
            if !miss.is_timer {
                self.running.flights.release(key, worker);
            }
            self.running.shed.add_shared(1);
            let mut reply = Vec::new();
            let Some((query, client)) = miss.without_room() else { return };
            serve::error_reply(&query.query(), &Failure::Overload, &mut reply);
            client.send_stream(&reply);
        }
    }
}
