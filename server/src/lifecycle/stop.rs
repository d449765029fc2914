//! The stop: clients fail over, or wait for the next process; queries in flight are answered.

use std::time::Duration;

use listen::InFlight;
use node::Job;

use super::{LAST_CLIENTS, Server};
use crate::warm_start;
use logging::logger::LAST_LINES;
use node_run::{LeaseManager, StopMode};

impl Server {
    /// Stops as CoreDNS does: /ready ends, `lameduck` passes in full service, then queries in
    /// flight are answered.
    pub fn stop(mut self) {
        // Another process has taken over the sockets, and this one has stopped already.
        if self.succession.gone {
            return;
        }
        self.end_successor();
        // Fails if systemd did not start this process; nothing depends on it.
        let _ = self.notifier.stopping();
        self.admin.stop_ready();
        let (ended, held) = self.let_go();
        let lameduck = self.running.configuration.load().lameduck;
        if !lameduck.is_zero() {
            self.running.logger.info(
                Some("health"),
                &format!("Going into lameduck mode for {}", corefile::go_values::format_duration(lameduck)),
            );
            // The timer must be created inside the runtime that drives it.
            self.handle.block_on(async { tokio::time::sleep(lameduck).await });
        }
        self.leave_known();
        self.watchdog = None;
        if let Some(keeper) = &held {
            // From here on, queries wait in the sockets' queues for the next process. If a worker
            // hangs, they wait for at most `ENDS`, then they fail over.
            keeper.hold(Some(ENDS));
        }
        self.endpoints.close_listeners(&self.handle);
        let in_flight = if self.endpoints.are_left() {
            self.endpoints.leave(warm_start::leave(&self.running));
            self.running.park(true);
            InFlight::Hurried
        } else {
            InFlight::Answered
        };
        self.answer_the_last(in_flight);
        if let Some(keeper) = held {
            // Queries now wait until shortly after the end of this process.
            keeper.hold(None);
        }
        if ended == Some(StopMode::Clean)
            && let Err(error) = self.handle.block_on(node::remove_link())
        {
            self.running.logger.warning(None, &format!("node: {error}; `localdns node down` tries again"));
        }
        self.running.logger.flush(LAST_LINES);
    }

    /// Removes the rules, link and addresses of a process that cannot begin to serve.
    pub fn take_back(&mut self) {
        self.watchdog = None;
        if let Some(keeper) = self.keeper.take() {
            keeper.stop(StopMode::Clean);
        }
        let (ours, added) = (self.endpoints.ours(), self.endpoints.added());
        if let Err(error) = self.handle.block_on(node::remove_addresses(&added, Some(ours.link()))) {
            self.running.logger.warning(None, &format!("node: {error}; `localdns node down` tries again"));
        }
    }

    /// Fails this node's clients over, and answers late queries. On a restart with sockets that
    /// outlive the process, clients do not fail over, and the lease manager is returned.
    fn let_go(&mut self) -> (Option<StopMode>, Option<LeaseManager>) {
        let Some(keeper) = self.keeper.take() else {
            // No process follows, so the sockets are removed from systemd's store: queries would
            // wait in their queues unanswered.
            if self.endpoints.are_left() && Job::now() == Job::Stop {
                self.endpoints.withdraw(&self.notifier);
            }
            return (None, None);
        };
        let ended = keeper.ended();
        match ended {
            StopMode::Restart => {
                if !self.endpoints.are_left() {
                    self.endpoints.offer(&self.notifier);
                }
                if self.endpoints.are_left() {
                    // `node down` is refused from here on: the next process would restore what it
                    // removes.
                    keeper.state().hands_over(true);
                    return (Some(ended), Some(keeper));
                }
            }
            StopMode::Failover | StopMode::Clean => self.endpoints.withdraw(&self.notifier),
        }
        if ended != StopMode::Restart {
            // After the failover, packets of a connection reach another server, which does not know
            // the connection. The client receives the close only while packets still pass both
            // ways.
            self.running.end_idle_connections();
        }
        keeper.stop(ended);
        if ended != StopMode::Restart {
            // Queries in flight, and those of clients with an entry in the connection tracking
            // table, still arrive here and are answered.
            let last = corefile::go_values::format_duration(LAST_CLIENTS);
            self.running
                .logger
                .info(None, &format!("node: queries that still arrive are answered for {last}"));
            self.handle.block_on(async { tokio::time::sleep(LAST_CLIENTS).await });
        }
        (Some(ended), None)
    }

    /// Lets plugins save their state for the next process.
    pub(super) fn leave_known(&self) {
        self.running.shared.lasting.all().iter().for_each(|kept| kept.leave());
    }

    /// Ends the workers once queries in flight are answered.
    pub(super) fn answer_the_last(&mut self, in_flight: InFlight) {
        self.running.end(self.workers.drain(..), in_flight, &self.handle);
    }
}

/// Maximum time that queries wait in the sockets' queues while workers answer queries in flight,
/// which takes at most about 1.5 s unless a worker hangs.
const ENDS: Duration = Duration::from_secs(3);
