//! A worker as the driver of its forwarder: sockets, exchanges, and the end of flights.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use forwarder::{Action, Forwarder, SendError, SocketId};

use super::{Egress, Waiter};

impl Egress {
    /// Does what the forwarder asks for, until it asks for nothing more: after each input, as the answer that it hands out
    /// stands in a buffer that the next reply is read to.
    pub(crate) fn drive(&mut self, forwarder: &mut Forwarder<Waiter>, now: Instant) {
        loop {
            let Some(action) = forwarder.poll(now) else { return };
            if let Some((socket, result)) = self.perform(action) {
                forwarder.opened(socket, result);
            }
        }
    }

    /// Does one thing; returns the local address of a socket that was to be opened, or why that failed.
    fn perform(&mut self, action: Action<'_, Waiter>) -> Option<(SocketId, Result<SocketAddr, SendError>)> {
        match action {
            Action::Open(socket, upstream) => {
                let configuration = self.running.configuration.load();
                let opened = self.upstreams.open(socket, &upstream, &configuration.source_ports);
                return Some((socket, opened.map_err(|error| SendError::from(&error))));
            }
            Action::Close(socket) => self.upstreams.close(socket),
            Action::Exchange(exchange) => {
                #[cfg(test)]
                crate::failpoint::within(exchange.message, "exchange", "exchange");
                self.running.streams.exchange(self.index, exchange);
            }
            Action::Cancel(upstream, kind, id) => {
                self.running.streams.cancel(self.index, &upstream, kind, id);
            }
            Action::Finished(flight) => {
                // A panic costs the clients that wait for this flight.
                if catch_unwind(AssertUnwindSafe(|| self.finished(flight))).is_err() {
                    self.running.panics.add_shared(1);
                }
            }
        }
        None
    }
}
