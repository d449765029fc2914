//! What a worker's forwarder has it do: sockets, datagrams, exchanges, and the end of flights.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forwarder::{Effects, Exchange, ExchangeId, Finished, NotSent, SocketId, StreamKind, Upstream};
use wire::Query;

use super::{Outputs, Waiter};

impl Effects<Waiter> for Outputs {
    fn open(&mut self, socket: SocketId, upstream: &Arc<Upstream>) -> Result<SocketAddr, NotSent> {
        let configuration = self.running.configuration.load();
        self.upstreams
            .open(socket, upstream, &configuration.source_ports)
            .map_err(|error| NotSent::from(&error))
    }

    fn close(&mut self, socket: SocketId) {
        self.upstreams.close(socket);
    }

    fn send(&mut self, socket: SocketId, datagram: &[u8]) {
        #[cfg(test)]
        crate::failpoint::within(datagram, "send", "again");
        self.upstreams.queue(socket, datagram);
    }

    fn exchange(&mut self, exchange: Exchange<'_>) {
        #[cfg(test)]
        crate::failpoint::within(exchange.message, "exchange", "exchange");
        self.running.streams.exchange(self.index, exchange);
    }

    fn cancel(&mut self, upstream: &Arc<Upstream>, kind: StreamKind, id: ExchangeId) {
        self.running.streams.cancel(self.index, upstream, kind, id);
    }

    fn joined(&mut self, waiter: &mut Waiter, query: &Query<'_>) {
        waiter.spelled = Some(query.question.into());
    }

    fn finished(&mut self, flight: Finished<'_, Waiter>) {
        // A panic here must not unwind through the state machine, which has yet to free the flight.
        if catch_unwind(AssertUnwindSafe(|| self.tell(flight))).is_err() {
            self.running.panics.add_shared(1);
        }
    }
}
