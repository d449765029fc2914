//! Serves one message of a client's connection: answers it at once, posts it to a worker, or begins
//! a transfer.

use std::slice;
use std::time::Instant;

use wire::{Proto, Verdict, accept as gate, accept_truncated};

use super::super::stream_reply::StreamReply;
use super::super::waiter::{Client, Miss};
use super::Connection;
use super::transfer::Transfer;
use configuration::Configuration;
use plugin::failure::Failure;
use plugin::{HostsGuard, QueryContext};
use query::ServedEndpoint;
use query::serve::{self, Observed, Outcome, Served};

impl Connection {
    /// Serves one message, or the start of one that is too long: writes the reply, if it is ready,
    /// to `out`. Returns false if the connection must be closed.
    pub(super) fn query(
        &self,
        message: &[u8],
        whole: bool,
        now: Instant,
        out: &mut Vec<u8>,
        transfer: &mut Option<Box<Transfer>>,
    ) -> bool {
        out.clear();
        let running = &*self.running;
        if let Some(continues) = running.guarded(|| self.try_query(message, whole, now, out, transfer)) {
            return continues;
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
        replied == Some(true)
    }

    fn try_query(
        &self,
        message: &[u8],
        whole: bool,
        now: Instant,
        out: &mut Vec<u8>,
        transfer: &mut Option<Box<Transfer>>,
    ) -> bool {
        let configuration = self.running.configuration.load();
        let Some(plan) = configuration.endpoints.get(&self.endpoint) else { return false };
        let (client, writer) = (self.peer.into(), self.running.inboxes.len());
        let context = QueryContext::new(now, &client, self.local, Proto::Tcp, writer);
        let mut tables = HostsGuard::default();
        let mut outcome = Outcome::OPEN;
        let gate = if whole { gate(message) } else { accept_truncated(message) };
        #[cfg(test)]
        crate::failpoint::packet(&gate);
        match serve::serve(&plan.served, &gate, &context, &mut tables, out, &mut outcome) {
            // No client sends responses or messages without a complete header: the connection is
            // closed.
            Served::Nothing => return false,
            Served::Silence => {
                out.clear();
                return true;
            }
            Served::Ask { replied: false, asked } => {
                out.clear();
                self.post(Miss::new(asked, Client::Stream(self.way_back()), now));
                return true;
            }
            Served::Ask { replied: true, asked } => {
                self.post(Miss::new(asked, Client::Background, now));
            }
            Served::Follow { replied, lookups } => {
                let client = if replied { Client::Background } else { Client::Stream(self.way_back()) };
                Miss::all(*lookups, client, now).for_each(|miss| self.post(miss));
                if !replied {
                    out.clear();
                    return true;
                }
            }
            Served::Stream(streaming) => {
                match self.running.connections.transfers.enter(self.peer.ip(), now) {
                    Some(slot) => {
                        out.clear();
                        *transfer = Some(Transfer::new(*streaming, slot, now));
                        return true;
                    }
                    None => streaming.refuse(Failure::Transfers, out, &mut outcome),
                }
            }
            Served::Reply => {}
        }
        self.observe(&configuration, &plan.served, &gate, &outcome, now);
        true
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
        serve::count(counters, slice::from_ref(outcome), Proto::Tcp, self.peer.is_ipv6(), nanos);
        if let (Some(zone), Some(query)) = (zone, gate.query())
            && serve::is_logged(zone, outcome)
        {
            self.running.log(zone, outcome, &seen, query, &mut self.running.tcp_lines());
        }
    }

    /// Describes a finished query for metrics and log.
    pub(super) fn seen(&self, nanos: u64, now: Instant) -> Observed {
        let (client, local) = (self.peer, Some(self.local));
        Observed { client, local, proto: Proto::Tcp, nanos, now, upstream: None }
    }

    fn way_back(&self) -> StreamReply {
        StreamReply::new(&self.running.connections, &self.shared, self.peer, self.local)
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
            if let Client::Stream(stream) = client {
                serve::error_reply(&query.query(), &Failure::Overload, &mut reply);
                stream.send(&reply);
            }
        }
    }
}
