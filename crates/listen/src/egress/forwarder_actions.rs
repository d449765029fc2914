//! Drives the forwarder: executes its actions on sockets, exchanges and finished flights.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use forwarder::{Action, Forwarder, SendError, SocketId};

use super::{Egress, Waiter};

impl Egress {
    /// Polls the forwarder and executes its actions until there is none. Must be called after each
    /// input: the forwarder has one buffer for an answer.
    pub(crate) fn drive(&mut self, forwarder: &mut Forwarder<Waiter>, now: Instant) {
        loop {
            let Some(action) = forwarder.poll(now) else { return };
            if let Some((socket, result)) = self.perform(action) {
                forwarder.opened(socket, result);
            }
        }
    }

    /// Executes an action. For [`Action::Open`] it returns the result, for [`Forwarder::opened`].
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
            Action::Join { upstream, kind, limits, id, client } => {
                self.running.streams.join(self.index, &upstream, kind, limits, id, client);
            }
            Action::Finished(flight) => {
                // A panic affects only the waiters of this flight.
                if catch_unwind(AssertUnwindSafe(|| self.finished(flight))).is_err() {
                    self.running.panics.add_shared(1);
                }
            }
        }
        None
    }
}
