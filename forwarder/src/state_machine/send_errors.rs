//! Datagrams that could not be sent: an address or route that is renewed is back in a fraction of a
//! second.

use std::time::{Duration, Instant};

use super::{Forwarder, SocketId};
use crate::{ForwardError, SendError};

impl<W> Forwarder<W> {
    /// Takes the error of a datagram of [`Forwarder::poll_transmit`] with this id. The query is
    /// sent to another upstream at once, or to the same from a new socket after a pause.
    pub fn unsent(&mut self, socket: SocketId, id: u16, error: SendError) {
        let (local, upstream) = (self.sockets.local(socket), self.sockets.upstream(socket));
        let Some(upstream) = upstream.map(|upstream| upstream.address()) else { return };
        if let Some(owner) = self.sockets.owner(socket, id) {
            self.output.failing.push_back((owner, ForwardError::NotSent { local, upstream, error }));
        }
        if matches!(error, SendError::Refused(_)) {
            self.sockets.spoiled(socket);
        }
    }

    /// Counts the flight's last failure, of an attempt at `upstream`. An attempt that could not
    /// leave this machine is no failure yet but a reason to wait.
    pub(super) fn count_failure(&mut self, slot: u32, upstream: u8) {
        let flight = &mut self.table[slot];
        let cold = flight.cold();
        let passing = cold.failure.as_ref().is_some_and(ForwardError::is_passing);
        if passing {
            cold.unsent |= 1 << upstream;
        }
        if !passing || flight.stanza().counts_unsent() {
            flight.failures = flight.failures.saturating_add(1);
        }
    }

    /// Delays the next attempt if no upstream can be sent to; returns whether it did.
    pub(super) fn pause(&mut self, now: Instant, slot: u32) -> bool {
        let at = self.machine_time(now);
        let flight = &mut self.table[slot];
        if flight.unsent() == 0 || flight.waiting() > 0 {
            return false;
        }
        let cold = flight.cold();
        let pause = UNSENT_PAUSE * (1 << cold.pauses.min(7));
        cold.pauses = cold.pauses.saturating_add(1);
        flight.hedge_at = flight.offset(at.after(pause));
        true
    }
}

/// The pause before another attempt, doubled each time. An address that is renewed is absent for
/// 0.1 to 0.4 s.
const UNSENT_PAUSE: Duration = Duration::from_millis(50);
