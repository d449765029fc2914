//! Signals, heard on a thread of their own: whatever start, reload or stop wait for, who asks for the end gets it.

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

use listen::Running;
use observe::Logger;

/// What a signal asks of the main thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalAction {
    /// SIGHUP, SIGUSR1: which.
    Reload(&'static str),
    /// SIGUSR2: another process of this program takes over.
    Upgrade,
    /// SIGTERM, SIGINT: the queries in flight are answered first.
    Stop,
    /// SIGQUIT: they are not.
    Quit,
}

/// The signals of this process, noted from the moment this is made.
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
    /// Made before any other runtime: one with threads may read a signal after its handler stands and before its listener
    /// does, and it is lost.
    ///
    /// # Errors
    /// What the kernel says to a pipe or a handler.
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

    /// Starts the thread: `asked` hears what is asked, and `life` is ended where nobody obeys in time.
    ///
    /// # Errors
    /// What the kernel says to a thread.
    pub fn hear(
        self,
        life: Arc<ProcessControl>,
        asked: mpsc::UnboundedSender<SignalAction>,
    ) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread
            .spawn(move || {
                let Self { runtime, terminate, interrupt, quit, hangup, user1, user2 } = self;
                let mut heard = Heard { terminate, interrupt, quit, hangup, user1, user2, asked };
                runtime.block_on(heard.run(&life));
            })
            .map(drop)
    }
}

struct Heard {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
    asked: mpsc::UnboundedSender<SignalAction>,
}

impl Heard {
    async fn run(&mut self, life: &ProcessControl) {
        let told = loop {
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
        life.logger.info(None, told);
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
        // Sending fails only while the process ends.
        let _ = self.asked.send(what);
    }
}

/// The process, as far as it takes to end it.
pub struct ProcessControl {
    logger: Logger,
    pidfile: Mutex<Pidfile>,
    serving: OnceLock<(Weak<Running>, Duration)>,
}

enum Pidfile {
    /// None was asked for, or it was removed and must not be written again.
    None,
    At(PathBuf),
}

impl ProcessControl {
    /// Of a process that will say its id in `pidfile`.
    pub fn new(logger: Logger, pidfile: Option<PathBuf>) -> Arc<Self> {
        let pidfile = Mutex::new(pidfile.map_or(Pidfile::None, Pidfile::At));
        Arc::new(Self { logger, pidfile, serving: OnceLock::new() })
    }

    /// From now on there are clients: an end takes the time that they need, and `last` more for whoever still asks where
    /// clients are sent elsewhere first.
    pub fn serves(&self, running: &Arc<Running>, last: Duration) {
        let _ = self.serving.set((Arc::downgrade(running), last));
    }

    /// Writes the pidfile, if one was asked for and the process does not end.
    ///
    /// # Errors
    /// What `write` says.
    pub fn write_pidfile<E>(&self, write: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
        match &*self.pidfile.lock().unwrap_or_else(PoisonError::into_inner) {
            Pidfile::None => Ok(()),
            Pidfile::At(path) => write(path),
        }
    }

    /// Removes the pidfile, unless its disk hangs; a successor may have written its own id meanwhile.
    pub fn remove_pidfile(&self) {
        // The lock is held where the start still writes the pidfile, to a disk that hangs: it is left.
        let Ok(mut pidfile) = self.pidfile.try_lock() else { return };
        if let Pidfile::At(path) = std::mem::replace(&mut *pidfile, Pidfile::None) {
            let own = std::process::id().to_string();
            let of = path.clone();
            let _ = readfile::within(&path, PIDFILE, move || {
                if readfile::read(&of, 64).is_ok_and(|text| text.trim_ascii() == own.as_bytes()) {
                    let _ = std::fs::remove_file(of);
                }
            });
        }
    }

    /// Until a stop has taken too long; while nothing is served yet there is nothing to wait for.
    async fn patience(&self) {
        sleep(START).await;
        sleep(self.patience_left()).await;
    }

    /// What is left of that time after the first moment.
    fn patience_left(&self) -> Duration {
        let Some((running, last)) = self.serving.get() else { return Duration::ZERO };
        // Where `running` is gone all queries are answered, and only memory is still being freed.
        let lameduck = running.upgrade().map(|running| running.configuration.load().lameduck);
        lameduck.unwrap_or_default() + *last + STOP - START
    }

    fn end(&self, code: i32) -> ! {
        self.remove_pidfile();
        self.logger.flush(LAST_WORD);
        std::process::exit(code)
    }
}

/// Writes this process's id. On a full disk no empty file stays behind.
///
/// # Errors
/// What the kernel says.
pub fn write_pidfile(path: &Path) -> std::io::Result<()> {
    // Opened without blocking: a pipe without a reader is an error. Through a symbolic link another file would be emptied.
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
        // In a full control group of version 1 whoever asks for memory waits 100 ms at a time for pages that no disk has yet. Nobody
        // waits for this disk, and the end of the process keeps no socket open for it.
        let path = path.to_owned();
        let sync = move || drop(std::fs::File::open(path).and_then(|file| file.sync_all()));
        let _ = sockets::spawn_with_own_files("pidfile", sync);
    }
    written
}

/// What is left of 5 s once the last lines are written: queries in flight have ended by then.
const STOP: Duration = forwarder::DEADLINE.saturating_add(Duration::from_millis(100));
/// A start that is nearly done is not cut off.
const START: Duration = Duration::from_millis(100);
/// How long the main thread has to tidy up.
const QUIT: Duration = Duration::from_millis(500);
/// How long the pidfile's disk may take at the end.
const PIDFILE: Duration = Duration::from_millis(200);
/// How long the log's reader has for the last lines where the end has waited for somebody already.
const LAST_WORD: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use observe::logger::Format;
    use observe::paper::Paper;

    use super::*;

    #[test]
    fn an_end_is_hurried_while_nothing_is_served_yet_and_not_while_memory_is_freed() {
        let life = ProcessControl::new(Paper::logger(Format::Text).0, None);
        assert_eq!(life.patience_left(), Duration::ZERO);
        // All are answered: what was serving is gone.
        life.serving.set((Weak::new(), Duration::from_secs(1))).expect("it is set once");
        assert_eq!(life.patience_left(), Duration::from_secs(1) + STOP - START);
    }
}
