//! Serves one batch of datagrams.

use std::net::SocketAddr;
use std::time::Instant;

use configuration::EndpointPlan;
use plugin::failure::Failure;
use plugin::{HostsGuard, QueryContext};
use plugins::proxyproto::ProxyProtocol;
pub(super) use plugins::proxyproto::Unwrapped;
use query::serve::{self, Outcome, Served};
use sockets::{Datagram, Peer, RecvBatch, SendBatch};
use wire::{Proto, Verdict, accept_truncated};

use crate::waiter::{Client, Miss, UdpClient};

/// The datagrams of one receive call, and their replies, outcomes and misses.
pub(super) struct Batch<'b, 'h> {
    pub(super) plan: &'h EndpointPlan,
    pub(super) received: &'b RecvBatch,
    pub(super) replies: &'b mut SendBatch,
    pub(super) outcomes: &'b mut [Outcome],
    pub(super) misses: &'b mut Vec<Miss>,
    pub(super) socket_index: u16,
    pub(super) address: SocketAddr,
    pub(super) now: Instant,
    pub(super) writer: usize,
    /// How many datagrams `serve` has begun to handle.
    pub(super) begun: usize,
}

impl Batch<'_, '_> {
    /// Serves the datagrams that `serve` has not begun to handle.
    pub(super) fn serve(&mut self) {
        let Self { plan, now, address, socket_index, .. } = *self;
        if let Some(proxy) = &plan.proxy {
            self.serve_behind(proxy);
            return;
        }
        let (mut gate, mut tables) = (Verdict::Drop, HostsGuard::default());
        let client = |datagram: &Datagram<'_>, replied| match replied {
            true => Client::Background,
            false => Client::Udp {
                socket: (socket_index, address),
                peer: datagram.peer.address(),
                local: datagram.local,
            },
        };
        let placeholder = Peer::from(address);
        let mut context = QueryContext::new(now, &placeholder, address, Proto::Udp, self.writer);
        for index in self.begun..self.received.len() {
            self.begun = index + 1;
            let datagram = self.received.get(index);
            let outcome = &mut self.outcomes[index];
            outcome.counted = false;
            // A reply to port 0 is impossible: such a source is forged.
            if datagram.peer.port() == 0 {
                continue;
            }
            context.take_up(datagram.peer, datagram.local);
            let Some(out) = self.replies.slot() else { break };
            look_over(&mut gate, &datagram);
            #[cfg(test)]
            crate::failpoint::packet(&gate);
            match serve::serve(&plan.served, &gate, &context, &mut tables, out, outcome) {
                Served::Nothing | Served::Silence => {}
                // Transfers over UDP do not exist.
                Served::Stream(streaming) => drop(streaming),
                Served::Reply => self.replies.commit(datagram.peer, datagram.local),
                Served::Ask { replied, asked } => {
                    self.misses.push(Miss::new(asked, client(&datagram, replied), now));
                    if replied {
                        self.replies.commit(datagram.peer, datagram.local);
                    }
                }
                Served::Follow { replied, lookups } => {
                    self.misses.extend(Miss::all(*lookups, client(&datagram, replied), now));
                    if replied {
                        self.replies.commit(datagram.peer, datagram.local);
                    }
                }
            }
        }
    }

    /// The same on an address with `proxyproto`.
    #[inline(never)]
    fn serve_behind(&mut self, proxy: &ProxyProtocol) {
        let Self { plan, now, address, socket_index, .. } = *self;
        let mut tables = HostsGuard::default();
        for index in self.begun..self.received.len() {
            self.begun = index + 1;
            let datagram = self.received.get(index);
            let outcome = &mut self.outcomes[index];
            outcome.counted = false;
            let from = datagram.peer.address();
            if from.port() == 0 {
                continue;
            }
            let Some(Unwrapped { octets, client }) = proxy.unwrap(datagram.bytes, from, now) else {
                continue;
            };
            let (peer, mut gate) = (Peer::from(client), Verdict::Drop);
            let mut context = QueryContext::new(now, &peer, address, Proto::Udp, self.writer);
            context.take_up(&peer, datagram.local);
            let Some(out) = self.replies.slot() else { break };
            look_over(&mut gate, &Datagram { bytes: octets, ..datagram });
            let to = |replied| match replied {
                true => Client::Background,
                false => Client::Proxied(Box::new(UdpClient {
                    socket: (socket_index, address),
                    peer: client,
                    local: datagram.local,
                    reply_to: from,
                })),
            };
            let is_replied = match serve::serve(&plan.served, &gate, &context, &mut tables, out, outcome) {
                Served::Nothing | Served::Silence | Served::Stream(_) => false,
                Served::Reply => true,
                Served::Ask { replied, asked } => {
                    self.misses.push(Miss::new(asked, to(replied), now));
                    replied
                }
                Served::Follow { replied, lookups } => {
                    self.misses.extend(Miss::all(*lookups, to(replied), now));
                    replied
                }
            };
            if is_replied {
                self.replies.commit(datagram.peer, datagram.local);
            }
        }
    }

    /// Answers the packet begun last with SERVFAIL, if it can be parsed.
    #[cold]
    pub(super) fn fail(&mut self) {
        let Some(last) = self.begun.checked_sub(1) else { return };
        self.outcomes[last].counted = false;
        let datagram = self.received.get(last);
        let Some(Unwrapped { octets, .. }) = unwrap(self.plan, &datagram, self.now) else { return };
        let mut gate = Verdict::Drop;
        look_over(&mut gate, &Datagram { bytes: octets, ..datagram });
        if let (Some(query), Some(out)) = (gate.query(), self.replies.slot()) {
            serve::error_reply(query, &Failure::Panic, out);
            self.replies.commit(datagram.peer, datagram.local);
        }
    }
}

/// Returns the client of a datagram and its bytes, by `proxyproto` if the address has it.
pub(super) fn unwrap<'d>(
    plan: &EndpointPlan,
    datagram: &Datagram<'d>,
    now: Instant,
) -> Option<Unwrapped<'d>> {
    let from = datagram.peer.address();
    match &plan.proxy {
        Some(proxy) => proxy.unwrap(datagram.bytes, from, now),
        None => Some(Unwrapped { octets: datagram.bytes, client: from }),
    }
}

/// Parses a datagram.
#[inline]
fn look_over<'p>(gate: &mut Verdict<'p>, datagram: &Datagram<'p>) {
    if datagram.truncated {
        *gate = accept_truncated(datagram.bytes);
    } else {
        gate.read(datagram.bytes);
    }
    #[cfg(test)]
    if let Verdict::Pass(query) = gate {
        crate::failpoint::at("gate", &query.name);
    }
}
