//! Leases while another process takes over: queries wait in the sockets' queues until it answers.

use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{LeaseCommand, LeaseThread, tell_lost};

impl LeaseThread {
    /// Keeps queries here, although nobody reads them, until this process has them again (true) or another one has them for
    /// good; so long `at_most`, then they go the way out. Those that go it already are left there.
    pub(super) async fn hold(&mut self, held: Sender<()>, at_most: Option<Duration>) -> bool {
        let mut until = at_most.map(|at_most| Instant::now() + at_most);
        self.stretch(until);
        // Sending fails only where the caller no longer waits.
        let _ = held.send(());
        let mut again = Instant::now() + HELD / 4;
        loop {
            // Whatever is asked meanwhile.
            match timeout_at(again, self.told.recv()).await {
                Err(_) => {
                    self.stretch(until);
                    again = Instant::now() + HELD / 4;
                }
                Ok(Some(LeaseCommand::Resume)) => return true,
                // The other process has leases of its own by now.
                Ok(Some(LeaseCommand::Leave) | None) => {
                    let _ = self.leases.take().map(node::Leases::leave);
                    return false;
                }
                Ok(Some(LeaseCommand::Hold(held, at_most))) => {
                    until = at_most.map(|at_most| Instant::now() + at_most);
                    self.stretch(until);
                    let _ = held.send(());
                }
                Ok(Some(LeaseCommand::ControlCommand(order, _place))) => self.obey(order, true).await,
                Ok(Some(LeaseCommand::Stop(ended))) => {
                    self.stop(ended).await;
                    return false;
                }
            }
        }
    }

    /// In the table that stays, too: that of the leases goes with this process. `until` then at most.
    fn stretch(&mut self, until: Option<Instant>) {
        let now = Instant::now();
        let lasts = match until.map(|until| until.saturating_duration_since(now)) {
            None => HELD,
            Some(Duration::ZERO) => return self.tell_ended(now),
            // What was given before lasts as long. In a table that both processes share it would cut the other one's short.
            Some(left) if left < HELD / 4 => return,
            Some(left) => left.min(HELD),
        };
        let addresses = self.held_at(now);
        // The other process may be changing the table at the same time; it is enough if one of the two succeeds.
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

    /// Whose queries come here, of those that the rules are about.
    fn held_at(&self, now: Instant) -> Vec<IpAddr> {
        let states = self.state.addresses();
        let is_held =
            |ip: &IpAddr| states.get(ip).is_some_and(|lease| lease.ends.is_some_and(|ends| ends > now));
        self.put.iter().flatten().map(|listener| listener.address).filter(is_held).collect()
    }

    /// Queries go the way out from now on: whoever is to answer them does not.
    fn tell_ended(&self, now: Instant) {
        let Some(running) = self.running.upgrade() else { return };
        for (address, lease) in self.state.addresses().iter_mut() {
            if lease.ends.is_some_and(|ends| ends <= now) {
                tell_lost(&running, *address, lease, "the next process does not answer");
            }
        }
    }
}

/// How long nobody need answer while one process takes over from another.
const HELD: Duration = Duration::from_secs(2);
