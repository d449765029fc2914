//! The next process, which takes this one's place: who it is, and how far it is. What is done about it is the control's.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::time::Duration;

use handover::{Giver, HandoverSocket, Taker};
use tokio::sync::{mpsc, oneshot};

/// What comes to pass between this process and another, for the main thread to act upon.
pub enum HandoverEvent {
    /// This process answers on every address for the first time; it says so once it is told that it may.
    Settled(oneshot::Sender<()>),
    /// The process before has heard that this one serves: whether it leaves the service to it. Then this one may say so.
    Succeeded(bool, oneshot::Sender<()>),
    /// Another process has connected to take over.
    Came(Giver),
    /// The other process is ready: the workers stop reading the sockets before this is answered.
    Ready(std_mpsc::Sender<()>),
    /// It serves, and waits to be told that it speaks for the service.
    Serving(Giver),
    /// It does not come to serve in time: the sockets are read here again.
    TakenBack,
    /// And it has ended, or was another's to start: why it did not.
    Failed(io::Error),
}

/// How events come to the main thread.
pub type HandoverEvents = mpsc::UnboundedSender<HandoverEvent>;

/// Finds who serves where this process is to: whoever started it for that, or whoever listens at that path.
///
/// # Errors
/// Where there is a predecessor, and its socket cannot be used.
pub fn predecessor(at: Option<&Path>) -> io::Result<Option<Taker>> {
    match at {
        _ if std::env::var(STARTED).is_ok_and(|by| by.parse() == Ok(std::os::unix::process::parent_id())) => {
            match Taker::of_parent() {
                // Standard input is no socket: the parent started this process, and hands no sockets over.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTSOCK.raw_os_error()) => {
                    Ok(None)
                }
                taken => taken.map(Some),
            }
        }
        Some(path) => Taker::find(path),
        None => Ok(None),
    }
}

/// Tells the process before, on a thread of its own, that this one serves: one that hangs keeps nobody waiting.
///
/// # Errors
/// What the kernel says to a thread.
pub fn succeed(taker: Taker, may_say_so: oneshot::Sender<()>, events: HandoverEvents) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("predecessor".to_owned());
    // Sending fails only where this process ends.
    let work = move || drop(events.send(HandoverEvent::Succeeded(taker.serving(), may_say_so)));
    thread.spawn(work).map(drop)
}

/// The process that we started to take our place; none where the next one came by itself.
#[derive(Debug, Clone, Default)]
pub struct Started(Arc<Mutex<Option<Child>>>);

impl Started {
    /// Its id.
    pub fn id(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Waits until it has ended by itself, which it does where it cannot serve, with a line that says why; one that takes
    /// longer than that takes is ended.
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

    /// Ends it, and waits for that; false where there is none.
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

/// Starts this program once more, with the same arguments, to take over by standard input. The file of its name is started,
/// whatever it is by now.
///
/// # Errors
/// What the kernel says.
pub fn start_again() -> io::Result<(Giver, Started)> {
    let (giver, theirs) = handover::pair()?;
    let mut arguments = std::env::args_os();
    let program = arguments.next().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(theirs).env(STARTED, std::process::id().to_string());
    // These variables are systemd's for this process, and wrong for the child.
    for name in ["SYSTEMD_EXEC_PID", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        command.env_remove(name);
    }
    let child = command.spawn()?;
    Ok((giver, Started(Arc::new(Mutex::new(Some(child))))))
}

/// Sees to it, on a thread of its own, that a successor gets these sockets; one that we started ends where it does not come
/// to serve.
///
/// # Errors
/// What the kernel says to a thread.
pub fn hand_over(
    giver: Giver,
    sockets: Vec<(String, OwnedFd)>,
    started: Started,
    events: HandoverEvents,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("successor".to_owned());
    let work = move || {
        let event = match until_it_serves(&giver, sockets, &events) {
            Ok(()) => HandoverEvent::Serving(giver),
            Err(error) => {
                // The connection is closed first: a successor that still runs then ends by itself. Nobody answers until the
                // sockets are read here, so that comes before its end.
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
    giver: &Giver,
    sockets: Vec<(String, OwnedFd)>,
    events: &HandoverEvents,
) -> io::Result<()> {
    giver.give(&sockets)?;
    drop(sockets);
    giver.ready()?;
    let (left, is_left) = std_mpsc::channel();
    let gone = || io::Error::from(io::ErrorKind::Interrupted);
    events.send(HandoverEvent::Ready(left)).map_err(|_| gone())?;
    is_left.recv().map_err(|_| gone())?;
    giver.yours()
}

/// Waits at a path for whoever wants to take over, as long as this process lives.
///
/// # Errors
/// Where there can be no socket.
pub fn await_successors(path: &Path, events: HandoverEvents) -> io::Result<()> {
    let socket = HandoverSocket::open(path)?;
    let thread = std::thread::Builder::new().name("handover".to_owned());
    let wait = move || {
        while events.send(HandoverEvent::Came(socket.wait())).is_ok() {}
    };
    thread.spawn(wait).map(drop)
}

/// The process that started this one to take its place; it has the same name where systemd's side of it is read
/// (`node::Notifier`).
const STARTED: &str = "LOCALDNS_PREDECESSOR";
/// How often we look whether one that does not come to serve has ended, which gives it two seconds for the line that says why.
const LAST_LOOKS: u32 = 200;
const LOOKS: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sockets_are_read_here_again_before_one_that_hangs_is_ended() {
        let (giver, theirs) = handover::pair().expect("two ends");
        let child = Command::new("sleep").arg("600").spawn().expect("it starts");
        let started = Started(Arc::new(Mutex::new(Some(child))));
        let (events, mut heard) = mpsc::unbounded_channel();
        // It does not hear, either.
        drop(theirs);
        hand_over(giver, Vec::new(), started.clone(), events).expect("a thread");
        assert!(matches!(heard.blocking_recv(), Some(HandoverEvent::TakenBack)));
        assert!(started.id().is_some(), "it is waited for first");
        assert!(matches!(heard.blocking_recv(), Some(HandoverEvent::Failed(_))));
        assert!(started.id().is_none(), "it was left");
    }
}
