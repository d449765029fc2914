//! Handles signals on a thread of its own, so that a stop works while start, reload or stop wait.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use listen::ServerState;
use logging::Logger;

/// A signal's request to the main thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalAction {
    /// SIGHUP or SIGUSR1, by name: reload.
    Reload(&'static str),
    /// SIGUSR2: start the next process.
    Upgrade,
    /// SIGTERM, SIGINT: stop after the queries in flight are answered.
    Stop,
    /// SIGQUIT: stop at once.
    Quit,
}

/// The signal handlers of this process. From their creation on, signals are recorded until a thread
/// reads them.
pub struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

impl Signals {
    /// Installs the handlers. This must precede any other runtime: a runtime with threads could
    /// read a signal after the handler is installed, before its listener exists, and lose it.
    ///
    /// # Errors
    /// Errors of the kernel for a pipe or a handler.
    pub fn new() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let quit = signal(SignalKind::quit())?;
        let hangup = signal(SignalKind::hangup())?;
        let user1 = signal(SignalKind::user_defined1())?;
        let user2 = signal(SignalKind::user_defined2())?;
        drop(entered);
        Ok(Self { runtime, terminate, interrupt, quit, hangup, user1, user2 })
    }

    /// Starts the thread, which sends requests to `asked`, and ends the process if a stop is not
    /// complete in time.
    ///
    /// # Errors
    /// If the kernel refuses a thread.
    pub fn hear(
        self,
        life: Arc<ProcessControl>,
        asked: mpsc::UnboundedSender<SignalAction>,
    ) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread
            .spawn(move || {
                let Self { runtime, terminate, interrupt, quit, hangup, user1, user2 } = self;
                let mut streams = SignalStreams { terminate, interrupt, quit, hangup, user1, user2, asked };
                runtime.block_on(streams.run(&life));
            })
            .map(drop)
    }
}

struct SignalStreams {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
    asked: mpsc::UnboundedSender<SignalAction>,
}

impl SignalStreams {
    async fn run(&mut self, life: &ProcessControl) {
        let message = loop {
            tokio::select! {
                _ = self.terminate.recv() => break "SIGTERM: Shutting down servers then terminating",
                _ = self.interrupt.recv() => break "SIGINT: Shutting down",
                _ = self.quit.recv() => {
                    life.logger.info(None, "SIGQUIT: Quitting process immediately");
                    self.ask(SignalAction::Quit);
                    sleep(QUIT).await;
                    life.end(0);
                }
                _ = self.hangup.recv() => self.ask(SignalAction::Reload("SIGHUP")),
                _ = self.user1.recv() => self.ask(SignalAction::Reload("SIGUSR1")),
                _ = self.user2.recv() => self.ask(SignalAction::Upgrade),
            }
        };
        life.logger.info(None, message);
        self.ask(SignalAction::Stop);
        tokio::select! {
            _ = self.interrupt.recv() => {
                life.logger.info(None, "SIGINT: Force quit");
                life.end(2);
            }
            _ = self.quit.recv() => life.end(0),
            () = life.patience() => {
                life.logger.warning(None, "the shutdown took too long: queries in flight are dropped");
                life.end(0);
            }
        }
    }

    fn ask(&self, what: SignalAction) {
        // Sending fails only when the process ends.
        let _ = self.asked.send(what);
    }
}

/// State needed to end the process.
pub struct ProcessControl {
    logger: Logger,
    pidfile: Mutex<Pidfile>,
    serving: OnceLock<(Weak<ServerState>, Duration)>,
}

enum Pidfile {
    /// The pidfile was not requested, or was removed and must not be written again.
    None,
    At(PathBuf),
}

impl ProcessControl {
    /// Creates the state of a process that will write `pidfile`.
    pub fn new(logger: Logger, pidfile: Option<PathBuf>) -> Arc<Self> {
        let pidfile = Mutex::new(pidfile.map_or(Pidfile::None, Pidfile::At));
        Arc::new(Self { logger, pidfile, serving: OnceLock::new() })
    }

    /// Records that the server has clients from now on: a stop may take the time that their queries
    /// need, and `last` longer for late queries after a failover.
    pub fn serves(&self, running: &Arc<ServerState>, last: Duration) {
        let _ = self.serving.set((Arc::downgrade(running), last));
    }

    /// Writes the pidfile, if requested and the process is not ending.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn write_pidfile<E>(&self, write: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
        match &*self.pidfile.lock().unwrap_or_else(PoisonError::into_inner) {
            Pidfile::None => Ok(()),
            Pidfile::At(path) => write(path),
        }
    }

    /// Removes the pidfile, unless its disk hangs, or a successor has written its own id to the
    /// file.
    pub fn remove_pidfile(&self) {
        // If the start still holds the lock, it is writing to a disk that hangs, and the file is
        // left.
        let Ok(mut pidfile) = self.pidfile.try_lock() else { return };
        if let Pidfile::At(path) = std::mem::replace(&mut *pidfile, Pidfile::None) {
            let own = std::process::id().to_string();
            let of = path.clone();
            let _ = files::with_timeout(&path, PIDFILE, move || {
                if files::read(&of, 64).is_ok_and(|text| text.trim_ascii() == own.as_bytes()) {
                    let _ = std::fs::remove_file(of);
                }
            });
        }
    }

    /// Waits until a stop has taken too long, which is after 100 ms if there are no clients.
    async fn patience(&self) {
        sleep(START).await;
        sleep(self.patience_left()).await;
    }

    /// Returns the time that a stop may take after the first 100 ms.
    fn patience_left(&self) -> Duration {
        let Some((running, last)) = self.serving.get() else { return Duration::ZERO };
        // If the server state is gone, all queries are answered, and only memory is being freed.
        let lameduck = running.upgrade().map(|running| running.configuration.load().lameduck);
        lameduck.unwrap_or_default() + *last + STOP - START
    }

    fn end(&self, code: i32) -> ! {
        self.remove_pidfile();
        self.logger.flush(LAST_WORD);
        std::process::exit(code)
    }
}

/// Writes this process's id. A full disk leaves no empty file.
///
/// # Errors
/// Errors of the kernel.
pub fn write_pidfile(path: &Path) -> std::io::Result<()> {
    // O_NONBLOCK makes a pipe without a reader an error, not a wait. O_NOFOLLOW: opening a symbolic
    // link could truncate another file.
    let open = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32)
        .open(path);
    let mut file = open.map_err(|error| match path.is_symlink() {
        true => std::io::Error::new(error.kind(), "it is a symbolic link, which is not followed"),
        false => error,
    })?;
    let written = writeln!(file, "{}", std::process::id());
    if !file.metadata().is_ok_and(|file| file.is_file()) {
        return written;
    }
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    } else {
        // The file is synced, since in a full control group of version 1 an allocation waits 100 ms
        // at a time for pages that are not on disk yet. No other thread waits for the sync, and the
        // syncing thread keeps no socket open.
        let path = path.to_owned();
        let sync = move || drop(std::fs::File::open(path).and_then(|file| file.sync_all()));
        let _ = sockets::spawn_with_own_files("pidfile", sync);
    }
    written
}

/// Time limit of a stop with clients: queries in flight have ended by then.
const STOP: Duration = forwarder::DEADLINE.saturating_add(Duration::from_millis(100));
/// Time for a start that is almost done, which a stop does not interrupt.
const START: Duration = Duration::from_millis(100);
/// Time limit of the main thread's cleanup.
const QUIT: Duration = Duration::from_millis(500);
/// Time limit of the pidfile's disk at the end.
const PIDFILE: Duration = Duration::from_millis(200);
/// Time limit of writing the last log lines at the end of the process.
const LAST_WORD: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use logging::captured_log::CapturedLog;
    use logging::logger::Format;

    use super::*;

    /// Without clients a stop has no extra time; with clients it has, even while memory is freed.
    #[test]
    fn stop_is_short_before_serving() {
        let life = ProcessControl::new(CapturedLog::logger(Format::Text).0, None);
        assert_eq!(life.patience_left(), Duration::ZERO);
        // All queries are answered, and the server state is gone.
        life.serving.set((Weak::new(), Duration::from_secs(1))).expect("it is set once");
        assert_eq!(life.patience_left(), Duration::from_secs(1) + STOP - START);
    }
}
