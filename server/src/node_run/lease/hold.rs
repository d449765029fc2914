//! Leases while another process takes over: queries wait in the sockets' queues until it answers.

use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Told, Worker};

impl Worker {
    /// Keeps queries here, although nobody reads them, until this process has them again (true) or another one has them for
    /// good.
    pub(super) async fn hold(&mut self, held: Sender<()>) -> bool {
        self.stretch();
        // Sending fails only where the caller no longer waits.
        let _ = held.send(());
        loop {
            match timeout(HELD / 4, self.told.recv()).await {
                Err(_) => self.stretch(),
                Ok(Some(Told::Resume)) => return true,
                // The other process has leases of its own by now.
                Ok(Some(Told::Leave) | None) => {
                    let _ = self.leases.take().map(node::Leases::leave);
                    return false;
                }
                Ok(Some(Told::Hold(held))) => {
                    self.stretch();
                    let _ = held.send(());
                }
                Ok(Some(Told::Order(order))) => order.answer("another process takes over: ask it\n"),
                Ok(Some(Told::Stop(ended))) => {
                    self.stop(ended).await;
                    return false;
                }
            }
        }
    }

    /// In the table that stays, too: that of the leases goes with this process.
    fn stretch(&mut self) {
        let addresses: Vec<IpAddr> = self.put.iter().flatten().map(|listener| listener.address).collect();
        // The other process may be changing the table at the same time; it is enough if one of the two succeeds.
        if let Some(rules) = &mut self.rules {
            let _ = rules.plan_restart(&addresses, HELD);
        }
        if let Some(leases) = &mut self.leases {
            let _ = leases.renew(&addresses, Some(HELD));
        }
        let ends = Instant::now() + HELD;
        self.state.addresses().values_mut().for_each(|lease| lease.ends = Some(ends));
    }
}

/// How long nobody need answer while one process takes over from another.
const HELD: Duration = Duration::from_secs(2);
