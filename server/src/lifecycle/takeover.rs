//! Handover of the sockets to the next process, or from the previous one.

use std::path::PathBuf;
use std::time::Duration;

use handover::{PredecessorEnd, SuccessorEnd};
use listen::InFlight;
use logging::logger::LAST_LINES;

use tokio::sync::oneshot;

use super::Server;
use crate::cli::Flags;

use crate::corefile_source::Origin;
use crate::next_process::{self, HandoverEvent, HandoverEvents, Started};
use crate::warm_start;

/// The state of handovers with the previous and the next process.
pub(super) struct Succession {
    pub(super) events: HandoverEvents,
    /// The previous process, until it is notified that this one serves.
    pub(super) taker: Option<SuccessorEnd>,
    /// Whether the previous process is being notified.
    pub(super) succeeds: bool,
    /// The socket path for the next process.
    pub(super) handover: Option<PathBuf>,
    /// Whether a successor is not ready yet, and has not failed.
    pub(super) under_way: bool,
    /// The successor, if this process started it.
    started: Started,
    /// Whether the workers have stopped reading the sockets for the next process.
    parked: bool,
    /// Whether another process has taken over.
    pub(super) gone: bool,
    /// Whether this process stays, idle, after a handover (`-after-handover wait`).
    stays: bool,
}

impl Succession {
    pub(super) fn new(events: HandoverEvents, taker: Option<SuccessorEnd>, flags: &Flags) -> Self {
        let (handover, stays) = (flags.handover.clone(), flags.stays);
        let (succeeds, under_way, parked, gone) = (false, false, false, false);
        Self {
            events,
            taker,
            succeeds,
            handover,
            under_way,
            started: Started::default(),
            parked,
            gone,
            stays,
        }
    }
}

impl Server {
    /// Whether another process is, or is about to become, the service's main process.
    pub fn is_beside_another(&self) -> bool {
        let Succession { taker, succeeds, under_way, gone, .. } = &self.succession;
        taker.is_some() || *succeeds || *under_way || *gone
    }

    /// Starts the current file of the program as the next process (SIGUSR2).
    pub fn upgrade(&mut self) {
        let logger = self.running.logger.clone();
        logger.info(None, "SIGUSR2: Upgrading");
        let started = match (&self.origin, std::process::id()) {
            _ if self.is_beside_another() => Err("another upgrade is under way".to_owned()),
            (Origin::Text(_), _) => Err("the Corefile was read from a pipe, which the next process cannot read".to_owned()),
            (_, 1) => Err("the first process of a container cannot be replaced: start a container beside it, with -handover".to_owned()),
            _ => next_process::start_again().map_err(|error| error.to_string()),
        };
        match started {
            Ok((giver, started)) => self.hand_over(giver, started),
            Err(error) => logger.error(None, &format!("SIGUSR2: upgrading: {error}")),
        }
    }

    fn hand_over(&mut self, giver: PredecessorEnd, started: Started) {
        self.succession.started = started.clone();
        // The next process reads the saved state once it has the sockets.
        self.leave_known();
        let begun = self.endpoints.copies(warm_start::leave(&self.running)).and_then(|sockets| {
            next_process::hand_over(giver, sockets, started, self.succession.events.clone())
        });
        match begun {
            Ok(()) => self.is_under_way(true),
            Err(error) => {
                self.succession.started.end();
                self.running.logger.error(None, &format!("cannot hand the sockets over: {error}"));
            }
        }
    }

    /// Sets whether a handover is in progress, during which `node down` is refused: the next
    /// process would restore what it removes.
    fn is_under_way(&mut self, is: bool) {
        self.succession.under_way = is;
        if let Some(keeper) = &self.keeper {
            keeper.state().hands_over(is);
        }
    }

    /// Handles an event.
    ///
    /// # Errors
    /// If this process cannot take over.
    pub fn act_on(&mut self, event: HandoverEvent) -> Result<NextPhase, String> {
        match event {
            HandoverEvent::Settled(confirm) => match self.succession.taker.take() {
                Some(taker) => {
                    self.succession.succeeds = true;
                    let result = next_process::succeed(taker, confirm, self.succession.events.clone());
                    result.map_err(|error| error.to_string())?;
                }
                None => {
                    self.settled();
                    let _ = confirm.send(());
                }
            },
            HandoverEvent::Succeeded(true, confirm) => {
                self.succession.succeeds = false;
                self.is_under_way(false);
                self.serve_status();
                self.settled();
                return Ok(NextPhase::TookOver(confirm));
            }
            HandoverEvent::Succeeded(false, _) => {
                return Err(
                    "the previous process took its sockets back: this one was not ready in time".to_owned()
                );
            }
            // One handover at a time: dropping `giver` closes the connection to the second process,
            // which then reports an error.
            HandoverEvent::Connected(giver) if self.is_beside_another() => drop(giver),
            HandoverEvent::Connected(giver) => {
                self.running.logger.info(None, "another process is taking over");
                self.hand_over(giver, Started::default());
            }
            HandoverEvent::Ready(left) => {
                self.park(true);
                let _ = left.send(());
            }
            HandoverEvent::Serving(giver) => return Ok(self.leave(giver)),
            HandoverEvent::TakenBack => self.park(false),
            HandoverEvent::Failed(error) => {
                self.is_under_way(false);
                let text = format!("the next process does not serve, this one continues: {error}");
                self.running.logger.error(None, &text);
            }
        }
        Ok(NextPhase::Goes)
    }

    /// Prepares for the next process. Called once every address has answered and no other process
    /// is the service's main process.
    fn settled(&mut self) {
        match &self.keeper {
            // Rules that match an open socket would not detect this process's death while systemd's
            // store keeps the socket open.
            Some(keeper) if keeper.state().is_seen_by_sockets() => self.endpoints.withdraw(&self.notifier),
            // If this process is killed, the next one gets the sockets from systemd's store, with
            // the queries in their queues.
            _ => self.endpoints.offer(&self.notifier),
        }
        if let Some((wanted, room)) = self.endpoints.beyond_store(&self.notifier) {
            let remedy = format!("set FileDescriptorStoreMax of the unit to at least {wanted}");
            let text = format!(
                "a restart loses queries that wait in sockets: systemd stores {room} sockets of {wanted}; {remedy}"
            );
            self.running.logger.warning(None, &text);
        }
        if let Some(path) = &self.succession.handover
            && let Err(error) = next_process::await_successors(path, self.succession.events.clone())
        {
            let text = format!("no process can take over at {}: {error}", path.display());
            self.running.logger.warning(None, &text);
        }
    }

    /// Stops reading the sockets, for another process to read them, or starts again.
    fn park(&mut self, parked: bool) {
        if std::mem::replace(&mut self.succession.parked, parked) == parked {
            return;
        }
        // Leases are extended before the workers stop reading, since queries then wait in the
        // sockets' queues.
        if let Some(keeper) = self.keeper.as_ref().filter(|_| parked) {
            keeper.hold(Some(ANSWERS_ELSEWHERE));
        }
        if parked {
            self.status = None;
            self.endpoints.stop_accepting();
        } else {
            self.endpoints.accept_again(&self.running, &self.handle);
            self.serve_status();
        }
        self.running.park(parked);
        self.running.settle(&self.handle);
        if let Some(keeper) = self.keeper.as_ref().filter(|_| !parked) {
            keeper.resume();
        }
    }

    /// Kills a successor that this process started, if this process must end before the handover
    /// has. Queries that the successor has read are lost; queued ones are read by this process
    /// again.
    pub fn end_successor(&mut self) {
        if !self.succession.gone && self.succession.started.end() {
            self.park(false);
        }
    }

    /// Makes the next process the service's main process, and answers queries in flight.
    fn leave(&mut self, giver: PredecessorEnd) -> NextPhase {
        let logger = self.running.logger.clone();
        // The next process serves and pings systemd itself; pings of this one no longer count.
        self.watchdog = None;
        if let Some(child) = self.succession.started.id()
            && let Err(error) = handover::succeed(&self.notifier, child)
        {
            logger.error(None, &format!("cannot notify systemd of process {child}: {error}"));
        }
        let _ = giver.done();
        self.succession.gone = true;
        // The next process serves /health and /ready from now on.
        self.admin.close();
        if let Some(keeper) = self.keeper.take() {
            keeper.leave();
        }
        self.answer_the_last(InFlight::Answered);
        self.endpoints.drop_all();
        logger.info(None, "Upgrade finished: another process serves");
        logger.flush(LAST_LINES);
        if self.succession.stays { NextPhase::Waits } else { NextPhase::Ends }
    }
}

/// How long queries wait for the next process before they fail over.
const ANSWERS_ELSEWHERE: Duration = Duration::from_millis(1500);

/// The state of this process after an event.
#[derive(Debug)]
pub enum NextPhase {
    /// The process continues as before.
    Goes,
    /// The process has taken over from the previous one. READY is sent to systemd once the main
    /// thread replies by the sender.
    TookOver(oneshot::Sender<()>),
    /// Another process serves: exit.
    Ends,
    /// Another process serves: wait for a stop signal.
    Waits,
}
