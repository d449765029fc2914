//! The one way to read a file: a regular one, within a bound, given up in time.
//!
//! A path of the configuration may lead anywhere: to a pipe that nobody writes to, a device without end, a network file
//! system whose server is gone. [`read`] opens nothing but a regular file and reads no more than it is told; [`within`] does
//! such work on a thread that serves nobody else, and goes on without it; a [`Look`] asks for what came of it from time to
//! time. Knows no format.

mod atomic_write;
mod file_version;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

pub use atomic_write::{Beside, MAX_BYTES, PublishError, Step, publish, resolve};
pub use file_version::{Looked, Stamp, look_at, read_whole};

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// What the system says.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is something else than a regular file.
    #[error("expected a file, found {0}")]
    NotAFile(&'static str),
    /// It is beyond the bound, in octets.
    #[error("expected at most {0} bytes")]
    TooLarge(u64),
    /// It was given up.
    #[error("given up after {} s; does its disk or file server answer?", .0.as_secs())]
    Late(Duration),
    /// It was given up before, and that read has not come back.
    #[error("an earlier read of it has not come back; does its disk or file server answer?")]
    Stuck,
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        let kind = match &error {
            ReadError::Io(_) => io::ErrorKind::Other,
            ReadError::NotAFile(_) => io::ErrorKind::InvalidInput,
            ReadError::TooLarge(_) => io::ErrorKind::FileTooLarge,
            ReadError::Late(_) | ReadError::Stuck => io::ErrorKind::TimedOut,
        };
        match error {
            ReadError::Io(error) => error,
            error => Self::new(kind, error),
        }
    }
}

/// Opens a regular file or /dev/null, behind symbolic links, and waits for nobody.
///
/// # Errors
/// [`ReadError::NotAFile`], or what the system says.
pub fn open(path: &Path) -> Result<(File, Metadata), ReadError> {
    // Looked at first: to open a device may start something.
    regular(&fs::metadata(path)?)?;
    // It may be another now: a pipe is opened without waiting for its writer.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags as i32).open(path)?;
    let metadata = file.metadata()?;
    regular(&metadata)?;
    Ok((file, metadata))
}

/// A regular file's content, if that is at most `most` octets.
///
/// # Errors
/// Those of [`open`], and [`ReadError::TooLarge`].
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, ReadError> {
    let (file, metadata) = open(path)?;
    if metadata.len() > most {
        return Err(ReadError::TooLarge(most));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    // What /proc has says of itself that it is empty, and others grow meanwhile.
    if bytes.len() as u64 > most { Err(ReadError::TooLarge(most)) } else { Ok(bytes) }
}

/// As [`read`], [`within`] the usual patience.
///
/// # Errors
/// Those of [`read`] and of [`within`].
pub fn read_in_time(path: &Path, most: u64) -> Result<Vec<u8>, ReadError> {
    let of = path.to_owned();
    within(path, PATIENCE, move || read(&of, most))?
}

/// Does `work`, which reads the file at `path`, on a thread of its own, and gives it up after `patience`.
///
/// # Errors
/// Those of [`begin`], [`ReadError::Late`], or that it panicked.
pub fn within<T: Send + 'static>(
    path: &Path,
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    begin(path, work)?.wait(patience).unwrap_or(Err(ReadError::Late(patience)))
}

/// Begins `work`, which reads the file at `path`, on a thread of its own.
///
/// A thread that the kernel holds cannot be ended. One whose [`Reading`] is dropped is left behind, and as long as it has not
/// come back no other is sent after it: the path is refused at once. So are others of its directory when
/// [`MOST_STUCK_IN_ONE`] are held there, and all when [`MOST_STUCK`] are.
///
/// # Errors
/// [`ReadError::Stuck`], or what the system says to one more thread.
pub fn begin<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Reading<T>, ReadError> {
    begin_of(&STUCK, path, work)
}

/// Where a read goes: one that was given up takes its path out again when it comes back.
type Stuck = Mutex<Vec<Arc<Path>>>;

static STUCK: Stuck = Mutex::new(Vec::new());

fn begin_of<T: Send + 'static>(
    stuck: &'static Stuck,
    path: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Reading<T>, ReadError> {
    let path: Arc<Path> = path.into();
    let held = lock(stuck);
    let beside = held.iter().filter(|held| held.parent() == path.parent()).count();
    if held.contains(&path) || beside >= MOST_STUCK_IN_ONE || held.len() >= MOST_STUCK {
        return Err(ReadError::Stuck);
    }
    drop(held);
    let (sender, receiver) = mpsc::channel();
    let back = Back { stuck, path: path.clone(), sender: Some(sender) };
    thread::Builder::new().name("reader".to_owned()).spawn(move || {
        let back = back;
        let done = work();
        if let Some(sender) = &back.sender {
            // Nobody waits for what was given up.
            let _ = sender.send(done);
        }
    })?;
    Ok(Reading { stuck, path, receiver: Some(receiver) })
}

/// A read that goes on; dropped, it is given up.
#[derive(Debug)]
pub struct Reading<T> {
    stuck: &'static Stuck,
    path: Arc<Path>,
    /// Until what came of it was taken.
    receiver: Option<Receiver<T>>,
}

impl<T> Reading<T> {
    /// Waits up to `patience` for the result, and takes it; `None` if there is none yet, or it was taken.
    pub fn wait(&mut self, patience: Duration) -> Option<Result<T, ReadError>> {
        let came = match self.receiver.as_ref()?.recv_timeout(patience) {
            Ok(done) => Ok(done),
            Err(RecvTimeoutError::Timeout) => return None,
            // The thread panicked, and the panic hook has written why.
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the reading failed").into()),
        };
        self.receiver = None;
        Some(came)
    }
}

impl<T> Drop for Reading<T> {
    fn drop(&mut self) {
        let Some(receiver) = self.receiver.take() else { return };
        let mut held = lock(self.stuck);
        // `Back` drops the sender under this lock: an empty channel means that the thread is still held.
        if matches!(receiver.try_recv(), Err(TryRecvError::Empty)) {
            held.push(self.path.clone());
        }
    }
}

/// Takes the path out of the list of those given up when the thread ends, also by a panic.
struct Back<T> {
    stuck: &'static Stuck,
    path: Arc<Path>,
    sender: Option<Sender<T>>,
}

impl<T> Drop for Back<T> {
    fn drop(&mut self) {
        let mut held = lock(self.stuck);
        // Both under one lock, for `Reading::drop`, which looks at both.
        self.sender = None;
        held.retain(|path| !Arc::ptr_eq(path, &self.path));
    }
}

fn lock(stuck: &Stuck) -> MutexGuard<'_, Vec<Arc<Path>>> {
    stuck.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that is looked at again and again by who has others to look at as well, and waits for none: one look goes on at a
/// time, and what hangs is told once.
#[derive(Debug)]
pub struct Look<T> {
    going: Option<Reading<T>>,
    began: Option<Instant>,
    told_late: bool,
    /// A look that could not begin.
    refused: Option<ReadError>,
}

impl<T> Default for Look<T> {
    fn default() -> Self {
        Self { going: None, began: None, told_late: false, refused: None }
    }
}

impl<T: Send + 'static> Look<T> {
    /// Whether one goes on.
    pub fn goes_on(&self) -> bool {
        self.going.is_some()
    }

    /// Begins a look, unless one goes on.
    pub fn begin(&mut self, path: &Path, now: Instant, work: impl FnOnce() -> T + Send + 'static) {
        if self.going.is_some() {
            return;
        }
        match begin(path, work) {
            Ok(reading) => {
                (self.going, self.began, self.told_late) = (Some(reading), Some(now), false);
            }
            Err(error) => self.refused = Some(error),
        }
    }

    /// What came of it, if that is known within `patience`; once [`ReadError::Late`] if it has taken [`PATIENCE`] by then,
    /// and what comes of it after all when it comes.
    pub fn take(&mut self, now: Instant, patience: Duration) -> Option<Result<T, ReadError>> {
        if let Some(error) = self.refused.take() {
            return Some(Err(error));
        }
        let took = self.took(now);
        let patience = patience.min(PATIENCE.saturating_sub(took));
        if let Some(came) = self.going.as_mut()?.wait(patience) {
            self.going = None;
            return Some(came);
        }
        let late = took + patience >= PATIENCE && !std::mem::replace(&mut self.told_late, true);
        late.then_some(Err(ReadError::Late(PATIENCE)))
    }

    /// When to ask again for what goes on: soon, and less often the longer it has taken.
    pub fn again(&self, now: Instant) -> Instant {
        now + (self.took(now) / 4).clamp(SOON, LATER)
    }

    fn took(&self, now: Instant) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began))
    }
}

/// A regular file, or /dev/null, which stands for one without content.
fn regular(metadata: &Metadata) -> Result<(), ReadError> {
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

/// Whether the path leads to a pipe, such as a shell makes of `<(...)`.
pub fn is_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

/// How long a file may take.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How many reads may be left behind before no other is tried.
pub const MOST_STUCK: usize = 64;
/// How many in one directory before no other is tried there: most that hang hang together.
pub const MOST_STUCK_IN_ONE: usize = 16;
/// The least and the most between two questions for what came of a look.
const SOON: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    fn within_of<T: Send + 'static>(
        held: &'static Stuck,
        path: &Path,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ReadError> {
        begin_of(held, path, work)?.wait(patience).unwrap_or(Err(ReadError::Late(patience)))
    }

    #[test]
    fn only_a_regular_file_is_read_and_no_more_than_the_bound() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("four"), "four").unwrap();
        std::os::unix::fs::symlink(at("four"), at("link")).unwrap();
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let found = |path: PathBuf| {
            read_in_time(&path, 4).map(|text| String::from_utf8(text).unwrap()).map_err(|e| e.to_string())
        };
        assert_eq!(found(at("four")).as_deref(), Ok("four"));
        assert_eq!(found(at("link")).as_deref(), Ok("four"));
        assert_eq!(found("/dev/null".into()).as_deref(), Ok(""));
        for (path, error) in [
            (home.path().to_owned(), "expected a file, found a directory"),
            (at("pipe"), "expected a file, found a pipe"),
            (at("socket"), "expected a file, found a socket"),
            ("/dev/zero".into(), "expected a file, found a device"),
            // Of no length, as it says.
            ("/proc/self/status".into(), "expected at most 4 bytes"),
            (at("absent"), "No such file or directory (os error 2)"),
        ] {
            assert_eq!(found(path.clone()), Err(error.to_owned()), "{}", path.display());
        }
        fs::write(at("four"), "fives").unwrap();
        assert_eq!(found(at("link")), Err("expected at most 4 bytes".to_owned()));
    }

    #[test]
    fn a_read_that_hangs_is_given_up_and_not_repeated_until_it_comes_back() {
        static HELD: Stuck = Mutex::new(Vec::new());
        let (path, other) = (Path::new("/hangs"), Path::new("/serves"));
        let (release, held) = mpsc::channel::<()>();
        let gone = within_of(&HELD, path, Duration::from_millis(10), move || held.recv());
        assert!(matches!(gone, Err(ReadError::Late(_))), "{gone:?}");
        let again = within_of(&HELD, path, PATIENCE, || unreachable!("it is not sent after the first"));
        assert!(matches!(again, Err(ReadError::Stuck)), "{again:?}");
        assert_eq!(within_of(&HELD, other, PATIENCE, || 1).unwrap(), 1);
        release.send(()).unwrap();
        // It is let go by the thread that comes back.
        while !lock(&HELD).is_empty() {
            thread::yield_now();
        }
        assert_eq!(within_of(&HELD, path, PATIENCE, || 2).unwrap(), 2);
    }

    #[test]
    fn so_many_threads_are_left_behind_and_no_more() {
        static HELD: Stuck = Mutex::new(Vec::new());
        let mut releases = Vec::new();
        let mut hang = |path: &str| {
            let (release, held) = mpsc::channel::<()>();
            releases.push(release);
            within_of(&HELD, Path::new(path), Duration::ZERO, move || held.recv()).unwrap_err().to_string()
        };
        let late = ReadError::Late(Duration::ZERO).to_string();
        for directory in 0..MOST_STUCK / MOST_STUCK_IN_ONE {
            for n in 0..MOST_STUCK_IN_ONE {
                assert_eq!(hang(&format!("/{directory}/{n}")), late);
            }
            assert_eq!(hang(&format!("/{directory}/one-more")), ReadError::Stuck.to_string());
            let beside = within_of(&HELD, Path::new("/serves/well"), PATIENCE, || 1);
            let room = directory + 1 < MOST_STUCK / MOST_STUCK_IN_ONE;
            assert_eq!(beside.ok(), room.then_some(1), "with {} held", lock(&HELD).len());
        }
        drop(releases);
        while !lock(&HELD).is_empty() {
            thread::yield_now();
        }
        assert_eq!(within_of(&HELD, Path::new("/0/1"), PATIENCE, || 1).unwrap(), 1);
    }

    #[test]
    fn a_look_waits_for_nobody_and_tells_what_hangs_once() {
        let path = Path::new("/a/look/of/a/test");
        let (release, held) = mpsc::channel::<()>();
        let mut look = Look::default();
        #[expect(clippy::disallowed_methods, reason = "only steps from here count")]
        let start = Instant::now();
        look.begin(path, start, move || held.recv().is_ok());
        look.begin(path, start, || unreachable!("one goes on"));
        for (seconds, late) in [(0, false), (4, false), (5, true), (6, false), (3600, false)] {
            let came = look.take(start + Duration::from_secs(seconds), Duration::ZERO);
            assert_eq!(matches!(came, Some(Err(ReadError::Late(_)))), late, "after {seconds} s: {came:?}");
            assert_eq!(came.is_none(), !late);
        }
        assert_eq!(look.again(start) - start, SOON);
        assert_eq!(look.again(start + PATIENCE * 2) - start, PATIENCE * 2 + LATER);
        release.send(()).unwrap();
        let came = look.going.as_mut().unwrap().wait(PATIENCE);
        assert!(matches!(came, Some(Ok(true))), "what comes late comes: {came:?}");
    }

    #[test]
    fn a_panic_of_a_reader_is_an_error() {
        static HELD: Stuck = Mutex::new(Vec::new());
        let failed = within_of(&HELD, Path::new("/panics"), PATIENCE, || -> u8 { panic!("on purpose") });
        assert_eq!(failed.unwrap_err().to_string(), "the reading failed");
        // Whenever it is given up: at the latest when the thread is gone nothing holds the path.
        for micros in 0..2_000 {
            let panics = || std::panic::resume_unwind(Box::new("on purpose, and told to nobody"));
            let _: Result<u8, _> =
                within_of(&HELD, Path::new("/panics"), Duration::from_micros(micros % 100), panics);
            while !lock(&HELD).is_empty() {
                thread::yield_now();
            }
        }
    }
}
