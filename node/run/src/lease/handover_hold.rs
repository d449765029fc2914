//! Extends the leases during a handover: queries wait in the sockets' queues until the next process
//! answers.

use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{LeaseCommand, LeaseThread, log_lost};

impl LeaseThread {
    /// Keeps queries queued until this process resumes (true) or another has taken over; at most
    /// `at_most`, after which queries fail over. Addresses without a lease get none.
    pub(super) async fn hold(&mut self, held: Sender<()>, at_most: Option<Duration>) -> bool {
        let mut until = at_most.map(|at_most| Instant::now() + at_most);
        self.stretch(until);
        // Sending fails only if the caller no longer waits.
        let _ = held.send(());
        let mut again = Instant::now() + HELD / 4;
        loop {
            // Serves commands between two extensions.
            match timeout_at(again, self.receiver.recv()).await {
                Err(_) => {
                    self.stretch(until);
                    again = Instant::now() + HELD / 4;
                }
                Ok(Some(LeaseCommand::Resume)) => return true,
                // The other process has its own leases by now.
                Ok(Some(LeaseCommand::Leave) | None) => {
                    let _ = self.leases.take().map(node::Leases::leave);
                    return false;
                }
                Ok(Some(LeaseCommand::Hold(held, at_most))) => {
                    until = at_most.map(|at_most| Instant::now() + at_most);
                    self.stretch(until);
                    let _ = held.send(());
                }
                Ok(Some(LeaseCommand::ControlCommand(order, _place))) => self.execute(order, true).await,
                Ok(Some(LeaseCommand::Stop(ended))) => {
                    self.stop(ended).await;
                    return false;
                }
            }
        }
    }

    /// Extends the leases, until `until` at most. Extends them in the failover table, too, since
    /// the lease table ends with this process.
    fn stretch(&mut self, until: Option<Instant>) {
        let now = Instant::now();
        let lasts = match until.map(|until| until.saturating_duration_since(now)) {
            None => HELD,
            Some(Duration::ZERO) => return self.log_expired(now),
            // The previous extension is long enough. A shorter one would shorten the other
            // process's, if both share a table.
            Some(left) if left < HELD / 4 => return,
            Some(left) => left.min(HELD),
        };
        let addresses = self.held_at(now);
        // The other process may change the table at the same time; one of the two writes is
        // sufficient.
        if let Some(rules) = &mut self.rules {
            let _ = rules.plan_restart(&addresses, lasts);
        }
        if let Some(leases) = &mut self.leases {
            let _ = leases.renew(&addresses, Some(lasts));
        }
        let mut states = self.state.addresses();
        states
            .iter_mut()
            .filter(|(ip, _)| addresses.contains(ip))
            .for_each(|(_, lease)| lease.ends = Some(now + lasts));
    }

    /// Returns the addresses in the rules that have a lease.
    fn held_at(&self, now: Instant) -> Vec<IpAddr> {
        let states = self.state.addresses();
        let is_held =
            |ip: &IpAddr| states.get(ip).is_some_and(|lease| lease.ends.is_some_and(|ends| ends > now));
        self.put.iter().flatten().map(|listener| listener.address).filter(is_held).collect()
    }

    /// Logs expired leases as lost: the next process did not answer in time.
    fn log_expired(&self, now: Instant) {
        let Some(running) = self.running.upgrade() else { return };
        for (address, lease) in self.state.addresses().iter_mut() {
            if lease.ends.is_some_and(|ends| ends <= now) {
                log_lost(&running, *address, lease, "the next process does not answer");
            }
        }
    }
}

/// Maximum duration of one extension of the leases; the next follows after a quarter of it.
const HELD: Duration = Duration::from_secs(2);
