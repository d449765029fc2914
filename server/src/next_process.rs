//! Finds the other process of a handover, and reports the progress of the handover as events, which
//! `lifecycle` handles.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::time::Duration;

use handover::{HandoverSocket, PredecessorEnd, SuccessorEnd};
use tokio::sync::{mpsc, oneshot};

/// Handover events, for the main thread.
pub enum HandoverEvent {
    /// This process answers on every address for the first time; READY is sent to systemd once the
    /// main thread replies by the sender.
    Settled(oneshot::Sender<()>),
    /// The previous process has been notified that this one serves; true if it leaves the service
    /// to this process. READY is sent to systemd once the main thread replies by the sender.
    Succeeded(bool, oneshot::Sender<()>),
    /// Another process has connected to take over.
    Connected(PredecessorEnd),
    /// The other process is ready: the workers stop reading the sockets before the reply.
    Ready(std_mpsc::Sender<()>),
    /// The next process serves, and waits to be the service's main process.
    Serving(PredecessorEnd),
    /// The next process does not serve in time: this process reads the sockets again.
    TakenBack,
    /// The handover failed: the next process has ended, or does not serve in time.
    Failed(io::Error),
}

/// The sender of events to the main thread.
pub type HandoverEvents = mpsc::UnboundedSender<HandoverEvent>;

/// Finds the predecessor: the parent process if it started this one for a handover, else the
/// process that listens at the path `at`.
///
/// # Errors
/// There is a predecessor, but its socket cannot be used.
pub fn predecessor(at: Option<&Path>) -> io::Result<Option<SuccessorEnd>> {
    match at {
        _ if std::env::var(STARTED).is_ok_and(|by| by.parse() == Ok(std::os::unix::process::parent_id())) => {
            match SuccessorEnd::of_parent() {
                // Standard input is not a socket: the parent started this process, and hands no
                // sockets over.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTSOCK.raw_os_error()) => {
                    Ok(None)
                }
                taken => taken.map(Some),
            }
        }
        Some(path) => SuccessorEnd::connect(path),
        None => Ok(None),
    }
}

/// Notifies the predecessor that this process serves, on a separate thread, so that a predecessor
/// that hangs does not block.
///
/// # Errors
/// If the kernel refuses a thread.
pub fn succeed(taker: SuccessorEnd, confirm: oneshot::Sender<()>, events: HandoverEvents) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("predecessor".to_owned());
    // Sending fails only when this process ends.
    let work = move || drop(events.send(HandoverEvent::Succeeded(taker.serving(), confirm)));
    thread.spawn(work).map(drop)
}

/// The next process, if this one started it.
#[derive(Debug, Clone, Default)]
pub struct Started(Arc<Mutex<Option<Child>>>);

impl Started {
    /// Returns the process id of the next process.
    pub fn id(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Waits until the next process has ended by itself, as it does, with a logged reason, if it
    /// cannot serve; kills it after two seconds. Returns its status if it ended by itself.
    fn give_up(&self) -> Option<ExitStatus> {
        for _ in 0..LAST_LOOKS {
            let ended = self.child().as_mut().map(Child::try_wait);
            match ended {
                Some(Ok(Some(status))) => {
                    self.child().take();
                    return Some(status);
                }
                Some(Ok(None)) => std::thread::sleep(LOOKS),
                _ => break,
            }
        }
        self.end();
        None
    }

    /// Kills the next process and waits for its end; returns false if there is none.
    pub fn end(&self) -> bool {
        let Some(mut child) = self.child().take() else { return false };
        let _ = child.kill();
        let _ = child.wait();
        true
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts this program again, with the same arguments, as the next process. Its standard input is
/// the socket of the handover. If the program's file was replaced, the new file is started.
///
/// # Errors
/// Errors of the kernel.
pub fn start_again() -> io::Result<(PredecessorEnd, Started)> {
    let (giver, theirs) = handover::pair()?;
    let mut arguments = std::env::args_os();
    let program = arguments.next().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(theirs).env(STARTED, std::process::id().to_string());
    // systemd set these variables for this process only.
    for name in ["SYSTEMD_EXEC_PID", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        command.env_remove(name);
    }
    let child = command.spawn()?;
    Ok((giver, Started(Arc::new(Mutex::new(Some(child))))))
}

/// Hands the sockets to a successor, on a separate thread. A successor that this process started is
/// ended if it does not serve in time.
///
/// # Errors
/// If the kernel refuses a thread.
pub fn hand_over(
    giver: PredecessorEnd,
    sockets: Vec<(String, OwnedFd)>,
    started: Started,
    events: HandoverEvents,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("successor".to_owned());
    let work = move || {
        let event = match until_it_serves(&giver, sockets, &events) {
            Ok(()) => HandoverEvent::Serving(giver),
            Err(error) => {
                // Closing the connection makes a successor that still runs end by itself. No query
                // is answered until this process reads the sockets again, so it does so before it
                // waits for the successor's end.
                giver.take_back();
                let _ = events.send(HandoverEvent::TakenBack);
                HandoverEvent::Failed(match started.give_up() {
                    Some(status) => io::Error::other(format!("it ended with {status}, and logged why")),
                    None => error,
                })
            }
        };
        let _ = events.send(event);
    };
    thread.spawn(work).map(drop)
}

fn until_it_serves(
    giver: &PredecessorEnd,
    sockets: Vec<(String, OwnedFd)>,
    events: &HandoverEvents,
) -> io::Result<()> {
    giver.send_sockets(&sockets)?;
    drop(sockets);
    giver.wait_ready()?;
    let (left, is_left) = std_mpsc::channel();
    let gone = || io::Error::from(io::ErrorKind::Interrupted);
    events.send(HandoverEvent::Ready(left)).map_err(|_| gone())?;
    is_left.recv().map_err(|_| gone())?;
    giver.release()
}

/// Accepts connections of successors at `path`, for the life of this process.
///
/// # Errors
/// If the socket cannot be created.
pub fn await_successors(path: &Path, events: HandoverEvents) -> io::Result<()> {
    let socket = HandoverSocket::open(path)?;
    let thread = std::thread::Builder::new().name("handover".to_owned());
    let wait = move || {
        while events.send(HandoverEvent::Connected(socket.accept())).is_ok() {}
    };
    thread.spawn(wait).map(drop)
}

/// The environment variable with the process id of the predecessor that started this process;
/// `node::Notifier` reads it, too.
const STARTED: &str = "LOCALDNS_PREDECESSOR";
/// Number of checks whether a successor that does not serve has ended: two seconds in total for its
/// error line.
const LAST_LOOKS: u32 = 200;
const LOOKS: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// A successor that hangs is ended after this process has begun to read the sockets again.
    #[test]
    fn hanging_successor_is_ended() {
        let (giver, theirs) = handover::pair().expect("two ends");
        let child = Command::new("sleep").arg("600").spawn().expect("it starts");
        let started = Started(Arc::new(Mutex::new(Some(child))));
        let (events, mut heard) = mpsc::unbounded_channel();
        // The successor's end of the connection is closed: it receives no sockets.
        drop(theirs);
        hand_over(giver, Vec::new(), started.clone(), events).expect("a thread");
        assert!(matches!(heard.blocking_recv(), Some(HandoverEvent::TakenBack)));
        assert!(started.id().is_some(), "it is waited for first");
        assert!(matches!(heard.blocking_recv(), Some(HandoverEvent::Failed(_))));
        assert!(started.id().is_none(), "it was left");
    }
}
