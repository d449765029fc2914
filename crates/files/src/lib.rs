//! Reads and replaces files: bounded reads with a deadline, change detection, atomic writes.
//!
//! A path in the configuration may lead anywhere: to a pipe without a writer, an endless device, a
//! network file system with its server down. [`read`] opens regular files only and limits the bytes
//! that it reads; [`with_timeout`] runs such work on a thread of its own and abandons it after a
//! timeout; [`FileRead`] polls for the result without blocking. [`atomic_write()`] replaces a file
//! so that readers see the old content or the new one. Parses no file.

mod atomic_write;
mod file_version;
mod own_state;
mod shown_path;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

pub use atomic_write::{MAX_REPLACED_BYTES, TempFile, WriteError, WriteStep, atomic_write, resolve_target};
pub use file_version::{Change, FileVersion, read_if_changed, read_version};
pub use own_state::read_own_state;
pub use shown_path::ShownPath;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system reported an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The path does not lead to a regular file.
    #[error("expected a file, found {0}")]
    NotAFile(&'static str),
    /// Other users than this process's and root can change the file.
    #[error(
        "expected a file that this process's user and root alone can write, found owner {uid} and mode {mode:04o}; set owner and mode, or remove it"
    )]
    Foreign {
        /// The user id of the file's owner.
        uid: u32,
        /// The file's permission bits.
        mode: u32,
    },
    /// The file exceeds the limit, in bytes.
    #[error("expected at most {0} bytes")]
    TooLarge(u64),
    /// The read did not end within the timeout.
    #[error("no data after {} s; check its disk or file server", .0.as_secs())]
    TimedOut(Duration),
    /// An earlier read of this path timed out and is still blocked, or too many reads of other
    /// files are.
    #[error("an earlier read is still blocked; check its disk or file server")]
    Stuck,
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        let kind = match &error {
            ReadError::Io(_) => io::ErrorKind::Other,
            ReadError::NotAFile(_) => io::ErrorKind::InvalidInput,
            ReadError::Foreign { .. } => io::ErrorKind::PermissionDenied,
            ReadError::TooLarge(_) => io::ErrorKind::FileTooLarge,
            ReadError::TimedOut(_) | ReadError::Stuck => io::ErrorKind::TimedOut,
        };
        match error {
            ReadError::Io(error) => error,
            error => Self::new(kind, error),
        }
    }
}

/// Opens a regular file or /dev/null, following symbolic links, without blocking on a pipe or
/// device.
///
/// # Errors
/// [`ReadError::NotAFile`], or the system's error.
pub fn open(path: &Path) -> Result<(File, Metadata), ReadError> {
    // Checked before opening: opening a device may have side effects.
    check_regular(&fs::metadata(path)?)?;
    // The path may have been replaced since the check: O_NONBLOCK opens a pipe without waiting for
    // its writer.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags as i32).open(path)?;
    let metadata = file.metadata()?;
    check_regular(&metadata)?;
    Ok((file, metadata))
}

/// Returns a regular file's content of at most `max_bytes`. Blocks.
///
/// # Errors
/// Those of [`open`], and [`ReadError::TooLarge`].
pub fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, ReadError> {
    let (file, metadata) = open(path)?;
    content(file, &metadata, max_bytes)
}

fn content(file: File, metadata: &Metadata, max_bytes: u64) -> Result<Vec<u8>, ReadError> {
    if metadata.len() > max_bytes {
        return Err(ReadError::TooLarge(max_bytes));
    }
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    // Files in /proc report a length of 0, and other files may grow during the read.
    if bytes.len() as u64 > max_bytes { Err(ReadError::TooLarge(max_bytes)) } else { Ok(bytes) }
}

/// Does the same as [`read`], limited to [`READ_TIMEOUT`].
///
/// # Errors
/// Those of [`read`] and of [`with_timeout`].
pub fn read_with_timeout(path: &Path, max_bytes: u64) -> Result<Vec<u8>, ReadError> {
    let owned = path.to_owned();
    with_timeout(path, READ_TIMEOUT, move || read(&owned, max_bytes))?
}

/// Runs `work`, which reads the file at `path`, on a thread of its own, and abandons it after
/// `timeout`.
///
/// # Errors
/// Those of [`spawn`], [`ReadError::TimedOut`], or an error if `work` panicked.
pub fn with_timeout<T: Send + 'static>(
    path: &Path,
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    spawn(path, work)?.wait(timeout).unwrap_or(Err(ReadError::TimedOut(timeout)))
}

/// Starts `work`, which reads the file at `path`, on a thread of its own.
///
/// A thread that is blocked in the kernel cannot be ended. If its [`PendingRead`] is dropped, the
/// thread is abandoned; until it returns, further reads of the path are refused at once. Reads of
/// other files in the directory are refused while [`MAX_STUCK_PER_DIRECTORY`] abandoned reads are
/// blocked there, and all reads while [`MAX_STUCK`] are blocked in total.
///
/// # Errors
/// [`ReadError::Stuck`], or the system's error if no thread can be started.
pub fn spawn<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<PendingRead<T>, ReadError> {
    spawn_in(&STUCK, path, work)
}

/// Paths of abandoned reads; each is removed when its thread returns.
type StuckPaths = Mutex<Vec<Arc<Path>>>;

static STUCK: StuckPaths = Mutex::new(Vec::new());

fn spawn_in<T: Send + 'static>(
    stuck: &'static StuckPaths,
    path: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<PendingRead<T>, ReadError> {
    let path: Arc<Path> = path.into();
    let paths = lock(stuck);
    let in_directory = paths.iter().filter(|other| other.parent() == path.parent()).count();
    if paths.contains(&path) || in_directory >= MAX_STUCK_PER_DIRECTORY || paths.len() >= MAX_STUCK {
        return Err(ReadError::Stuck);
    }
    drop(paths);
    let (sender, receiver) = mpsc::channel();
    let guard = ThreadGuard { stuck, path: path.clone(), sender: Some(sender) };
    thread::Builder::new().name("reader".to_owned()).spawn(move || {
        let guard = guard;
        let result = work();
        if let Some(sender) = &guard.sender {
            // Fails if the read was abandoned.
            let _ = sender.send(result);
        }
    })?;
    Ok(PendingRead { stuck, path, receiver: Some(receiver) })
}

/// A read in progress; dropping it abandons the read.
#[derive(Debug)]
pub struct PendingRead<T> {
    stuck: &'static StuckPaths,
    path: Arc<Path>,
    /// `None` once the result was returned.
    receiver: Option<Receiver<T>>,
}

impl<T> PendingRead<T> {
    /// Waits up to `timeout` for the result; `None` if the read has not ended, or if the result was
    /// already returned.
    pub fn wait(&mut self, timeout: Duration) -> Option<Result<T, ReadError>> {
        let result = match self.receiver.as_ref()?.recv_timeout(timeout) {
            Ok(done) => Ok(done),
            Err(RecvTimeoutError::Timeout) => return None,
            // The thread panicked, and the panic hook has logged the cause.
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("the read failed: internal error").into())
            }
        };
        self.receiver = None;
        Some(result)
    }
}

impl<T> Drop for PendingRead<T> {
    fn drop(&mut self) {
        let Some(receiver) = self.receiver.take() else { return };
        let mut paths = lock(self.stuck);
        // `ThreadGuard` drops the sender under this lock: a channel that is empty and not
        // disconnected means that the thread is still blocked.
        if matches!(receiver.try_recv(), Err(TryRecvError::Empty)) {
            paths.push(self.path.clone());
        }
    }
}

/// Removes the path from the list of abandoned reads when the thread ends, also by a panic.
struct ThreadGuard<T> {
    stuck: &'static StuckPaths,
    path: Arc<Path>,
    sender: Option<Sender<T>>,
}

impl<T> Drop for ThreadGuard<T> {
    fn drop(&mut self) {
        let mut paths = lock(self.stuck);
        // The sender is dropped and the path removed under one lock, which `PendingRead::drop` also
        // takes.
        self.sender = None;
        paths.retain(|path| !Arc::ptr_eq(path, &self.path));
    }
}

fn lock(stuck: &StuckPaths) -> MutexGuard<'_, Vec<Arc<Path>>> {
    stuck.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads one file repeatedly without blocking the caller, which polls several files. At most one
/// read is in progress, and a read that blocks is reported once.
#[derive(Debug)]
pub struct FileRead<T> {
    pending: Option<PendingRead<T>>,
    started: Option<Instant>,
    timeout_reported: bool,
    /// Why the last read could not start.
    refused: Option<ReadError>,
}

impl<T> Default for FileRead<T> {
    fn default() -> Self {
        Self { pending: None, started: None, timeout_reported: false, refused: None }
    }
}

impl<T: Send + 'static> FileRead<T> {
    /// Whether a read is in progress.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Starts a read, unless one is in progress.
    pub fn start(&mut self, path: &Path, now: Instant, work: impl FnOnce() -> T + Send + 'static) {
        if self.pending.is_some() {
            return;
        }
        match spawn(path, work) {
            Ok(reading) => {
                (self.pending, self.started, self.timeout_reported) = (Some(reading), Some(now), false);
            }
            Err(error) => self.refused = Some(error),
        }
    }

    /// Returns the result, waiting for it up to `timeout`. If the read has taken [`READ_TIMEOUT`],
    /// returns [`ReadError::TimedOut`] once; the read continues, and a later call returns its
    /// result.
    pub fn poll(&mut self, now: Instant, timeout: Duration) -> Option<Result<T, ReadError>> {
        if let Some(error) = self.refused.take() {
            return Some(Err(error));
        }
        let elapsed = self.elapsed(now);
        let timeout = timeout.min(READ_TIMEOUT.saturating_sub(elapsed));
        if let Some(result) = self.pending.as_mut()?.wait(timeout) {
            self.pending = None;
            return Some(result);
        }
        let timed_out =
            elapsed + timeout >= READ_TIMEOUT && !std::mem::replace(&mut self.timeout_reported, true);
        timed_out.then_some(Err(ReadError::TimedOut(READ_TIMEOUT)))
    }

    /// Returns when to poll a read in progress again: after a quarter of the time that it has taken
    /// so far, at least 20 ms and at most 1 s.
    pub fn next_poll(&self, now: Instant) -> Instant {
        now + (self.elapsed(now) / 4).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)
    }

    fn elapsed(&self, now: Instant) -> Duration {
        self.started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started))
    }
}

/// Accepts a regular file, or /dev/null, which stands for an empty one.
fn check_regular(metadata: &Metadata) -> Result<(), ReadError> {
    let found = metadata.file_type();
    if found.is_file() || (found.is_char_device() && metadata.rdev() == rustix::fs::makedev(1, 3)) {
        return Ok(());
    }
    Err(ReadError::NotAFile(match () {
        () if found.is_dir() => "a directory",
        () if found.is_fifo() => "a pipe",
        () if found.is_socket() => "a socket",
        () => "a device",
    }))
}

/// Whether the path leads to a pipe, such as a shell creates for `<(...)`.
pub fn is_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

/// The longest that a read may take.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of blocked, abandoned reads from which on all further reads are refused.
pub const MAX_STUCK: usize = 64;
/// Number of blocked, abandoned reads in one directory from which on further reads there are
/// refused: a file server that hangs blocks all its files.
pub const MAX_STUCK_PER_DIRECTORY: usize = 16;
/// Bounds of [`FileRead::next_poll`].
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    fn with_timeout_in<T: Send + 'static>(
        held: &'static StuckPaths,
        path: &Path,
        timeout: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ReadError> {
        spawn_in(held, path, work)?.wait(timeout).unwrap_or(Err(ReadError::TimedOut(timeout)))
    }

    #[test]
    fn reads_regular_files_up_to_the_limit() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("four"), "four").unwrap();
        std::os::unix::fs::symlink(at("four"), at("link")).unwrap();
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let found = |path: PathBuf| {
            read_with_timeout(&path, 4)
                .map(|text| String::from_utf8(text).unwrap())
                .map_err(|e| e.to_string())
        };
        assert_eq!(found(at("four")).as_deref(), Ok("four"));
        assert_eq!(found(at("link")).as_deref(), Ok("four"));
        assert_eq!(found("/dev/null".into()).as_deref(), Ok(""));
        for (path, error) in [
            (home.path().to_owned(), "expected a file, found a directory"),
            (at("pipe"), "expected a file, found a pipe"),
            (at("socket"), "expected a file, found a socket"),
            ("/dev/zero".into(), "expected a file, found a device"),
            // The metadata of files in /proc report a length of 0.
            ("/proc/self/status".into(), "expected at most 4 bytes"),
            (at("absent"), "No such file or directory (os error 2)"),
        ] {
            assert_eq!(found(path.clone()), Err(error.to_owned()), "{}", path.display());
        }
        fs::write(at("four"), "fives").unwrap();
        assert_eq!(found(at("link")), Err("expected at most 4 bytes".to_owned()));
    }

    #[test]
    fn refuses_a_path_while_its_read_is_blocked() {
        static HELD: StuckPaths = Mutex::new(Vec::new());
        let (path, other) = (Path::new("/blocked"), Path::new("/other"));
        let (release, held) = mpsc::channel::<()>();
        let gone = with_timeout_in(&HELD, path, Duration::from_millis(10), move || held.recv());
        assert!(matches!(gone, Err(ReadError::TimedOut(_))), "{gone:?}");
        let again =
            with_timeout_in(&HELD, path, READ_TIMEOUT, || unreachable!("refused while the first is blocked"));
        assert!(matches!(again, Err(ReadError::Stuck)), "{again:?}");
        assert_eq!(with_timeout_in(&HELD, other, READ_TIMEOUT, || 1).unwrap(), 1);
        release.send(()).unwrap();
        // The thread removes its path when it returns.
        while !lock(&HELD).is_empty() {
            thread::yield_now();
        }
        assert_eq!(with_timeout_in(&HELD, path, READ_TIMEOUT, || 2).unwrap(), 2);
    }

    #[test]
    fn limits_abandoned_threads() {
        static HELD: StuckPaths = Mutex::new(Vec::new());
        let mut releases = Vec::new();
        let mut hang = |path: &str| {
            let (release, held) = mpsc::channel::<()>();
            releases.push(release);
            with_timeout_in(&HELD, Path::new(path), Duration::ZERO, move || held.recv())
                .unwrap_err()
                .to_string()
        };
        let late = ReadError::TimedOut(Duration::ZERO).to_string();
        for directory in 0..MAX_STUCK / MAX_STUCK_PER_DIRECTORY {
            for n in 0..MAX_STUCK_PER_DIRECTORY {
                assert_eq!(hang(&format!("/{directory}/{n}")), late);
            }
            assert_eq!(hang(&format!("/{directory}/one-more")), ReadError::Stuck.to_string());
            let elsewhere = with_timeout_in(&HELD, Path::new("/healthy/file"), READ_TIMEOUT, || 1);
            let below_limit = directory + 1 < MAX_STUCK / MAX_STUCK_PER_DIRECTORY;
            assert_eq!(elsewhere.ok(), below_limit.then_some(1), "with {} held", lock(&HELD).len());
        }
        drop(releases);
        while !lock(&HELD).is_empty() {
            thread::yield_now();
        }
        assert_eq!(with_timeout_in(&HELD, Path::new("/0/1"), READ_TIMEOUT, || 1).unwrap(), 1);
    }

    #[test]
    fn file_read_reports_a_timeout_once() {
        let path = Path::new("/a/test");
        let (release, held) = mpsc::channel::<()>();
        let mut file = FileRead::default();
        #[expect(clippy::disallowed_methods, reason = "only differences to it count")]
        let start = Instant::now();
        file.start(path, start, move || held.recv().is_ok());
        file.start(path, start, || unreachable!("one is in progress"));
        for (seconds, late) in [(0, false), (4, false), (5, true), (6, false), (3600, false)] {
            let result = file.poll(start + Duration::from_secs(seconds), Duration::ZERO);
            assert_eq!(
                matches!(result, Some(Err(ReadError::TimedOut(_)))),
                late,
                "after {seconds} s: {result:?}"
            );
            assert_eq!(result.is_none(), !late);
        }
        assert_eq!(file.next_poll(start) - start, MIN_POLL_INTERVAL);
        assert_eq!(file.next_poll(start + READ_TIMEOUT * 2) - start, READ_TIMEOUT * 2 + MAX_POLL_INTERVAL);
        release.send(()).unwrap();
        let result = file.pending.as_mut().unwrap().wait(READ_TIMEOUT);
        assert!(matches!(result, Some(Ok(true))), "the late result is returned: {result:?}");
    }

    #[test]
    fn panic_in_a_read_is_an_error() {
        static HELD: StuckPaths = Mutex::new(Vec::new());
        let failed =
            with_timeout_in(&HELD, Path::new("/panics"), READ_TIMEOUT, || -> u8 { panic!("on purpose") });
        assert_eq!(failed.unwrap_err().to_string(), "the read failed: internal error");
        // However early the read is abandoned, the path can be read again once the thread has
        // ended.
        for micros in 0..2_000 {
            let panics = || std::panic::resume_unwind(Box::new("on purpose, without a message"));
            let _: Result<u8, _> =
                with_timeout_in(&HELD, Path::new("/panics"), Duration::from_micros(micros % 100), panics);
            while !lock(&HELD).is_empty() {
                thread::yield_now();
            }
        }
    }
}
