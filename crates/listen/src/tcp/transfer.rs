//! A zone transfer on a client's connection: the next message is produced once the kernel has
//! accepted all before it.

use std::time::{Duration, Instant};

use super::super::buffers::Buffers;
use super::super::connection_state::Activity;
use super::super::transfer_limit::Slot;
use super::Connection;
use plugin::zone_request::Next;
use query::serve::{BrokenTransfer, TransferStream};

/// The error of a transfer that was cut off.
#[derive(Debug)]
pub(super) struct CutOff;

/// A transfer in progress.
pub(super) struct Transfer {
    streaming: TransferStream,
    /// The transfer's slot among all transfers.
    slot: Slot,
    began: Instant,
}

impl Transfer {
    pub(super) fn new(streaming: TransferStream, slot: Slot, began: Instant) -> Box<Self> {
        Box::new(Self { streaming, slot, began })
    }

    /// Returns the bytes that the transfer holds.
    pub(super) fn held(&self) -> usize {
        size_of::<Slot>() + self.streaming.held()
    }
}

impl Connection {
    /// Returns how long written bytes may wait for the client: `most`, or until the transfer's time
    /// limit.
    pub(super) fn write_limit(&self, most: Duration) -> Duration {
        self.transfer.as_ref().map_or(most, |transfer| most.min(transfer.slot.left(self.unsent_since)))
    }

    /// Appends the next message of the transfer to the replies; appends nothing while the source
    /// has no message yet.
    ///
    /// # Errors
    /// The transfer cannot continue, or has taken too long: the connection must be reset, so that
    /// the client does not take the received part for the whole zone.
    pub(super) fn go_on(&mut self, scratch: &mut Buffers, now: Instant) -> Result<(), CutOff> {
        let Some(transfer) = &mut self.transfer else { return Ok(()) };
        if transfer.slot.left(now).is_zero() {
            return Err(CutOff);
        }
        // The client has read all that was written, so the time until the next message is not its
        // idle time.
        self.shared.set_state(Activity::Busy, self.source.running.since_start_ms(now));
        let next = transfer.streaming.next(&mut scratch.reply).map_err(|BrokenTransfer| CutOff)?;
        scratch.send_reply();
        if next == Next::End {
            // The query may have been received after `now`, within this turn.
            self.end_transfer(clock::now());
            // The client's next query waited for the transfer, so its time starts now.
            (self.served_at, self.received_at) = (now, now);
        }
        Ok(())
    }

    /// Counts and logs the transfer, if there is one, as one reply: called when all of it is
    /// written or no more will be.
    pub(super) fn end_transfer(&mut self, now: Instant) {
        let Some(transfer) = self.transfer.take() else { return };
        let nanos = now.saturating_duration_since(transfer.began).as_nanos() as u64;
        let seen = self.source.seen(nanos, now);
        transfer.streaming.count(&seen, self.source.running.inboxes.len());
        self.source.running.guarded(|| transfer.streaming.log(&seen, &mut self.source.running.tcp_lines()));
    }
}
