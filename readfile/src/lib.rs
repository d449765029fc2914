//! The one way to read a file: a regular one, within a bound, given up in time.
//!
//! A path of the configuration may lead anywhere: to a pipe that nobody writes to, a device without end, a network file
//! system whose server is gone. [`read`] opens nothing but a regular file and reads no more than it is told; [`within`] does
//! such work on a thread that serves nobody else, and goes on without it. Knows no format.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;

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
/// A thread that the kernel holds cannot be ended. It is left behind, and as long as it has not come back no other is sent
/// after it: the path is refused at once. So are all when [`MOST_STUCK`] are held.
///
/// # Errors
/// [`ReadError::Late`], [`ReadError::Stuck`], or what the system says to one more thread.
pub fn within<T: Send + 'static>(
    path: &Path,
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    within_of(&STUCK, path, patience, work)
}

/// Where a read goes: one that was given up takes its path out again when it comes back.
type Stuck = Mutex<Vec<Arc<Path>>>;

static STUCK: Stuck = Mutex::new(Vec::new());

fn within_of<T: Send + 'static>(
    stuck: &'static Stuck,
    path: &Path,
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    let path: Arc<Path> = path.into();
    let held = lock(stuck);
    if held.len() >= MOST_STUCK || held.contains(&path) {
        return Err(ReadError::Stuck);
    }
    drop(held);
    let (sender, receiver) = mpsc::channel();
    let back = Back { stuck, path: path.clone() };
    thread::Builder::new().name("reader".to_owned()).spawn(move || {
        let back = back;
        let done = work();
        // Together, so that who gives up knows whether it has come back.
        let mut held = lock(stuck);
        let given_up = sender.send(done).is_err();
        if given_up {
            held.retain(|path| !Arc::ptr_eq(path, &back.path));
        }
    })?;
    match receiver.recv_timeout(patience) {
        Ok(done) => Ok(done),
        // It panicked, and that was told.
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the reading failed").into()),
        Err(RecvTimeoutError::Timeout) => {
            let mut held = lock(stuck);
            match receiver.try_recv() {
                Ok(done) => Ok(done),
                Err(_) => {
                    held.push(path);
                    drop(receiver);
                    Err(ReadError::Late(patience))
                }
            }
        }
    }
}

/// A thread on its way back, by a panic as well.
struct Back {
    stuck: &'static Stuck,
    path: Arc<Path>,
}

impl Drop for Back {
    fn drop(&mut self) {
        if thread::panicking() {
            lock(self.stuck).retain(|path| !Arc::ptr_eq(path, &self.path));
        }
    }
}

fn lock(stuck: &Stuck) -> MutexGuard<'_, Vec<Arc<Path>>> {
    stuck.lock().unwrap_or_else(PoisonError::into_inner)
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
pub const MOST_STUCK: usize = 16;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

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
        for n in 0..MOST_STUCK {
            let (release, held) = mpsc::channel::<()>();
            let path = PathBuf::from(format!("/hangs/{n}"));
            assert!(within_of(&HELD, &path, Duration::ZERO, move || held.recv()).is_err());
            releases.push(release);
        }
        let one_more = within_of(&HELD, Path::new("/fine"), PATIENCE, || 1);
        assert!(matches!(one_more, Err(ReadError::Stuck)), "{one_more:?}");
        drop(releases);
        while !lock(&HELD).is_empty() {
            thread::yield_now();
        }
        assert_eq!(within_of(&HELD, Path::new("/fine"), PATIENCE, || 1).unwrap(), 1);
    }

    #[test]
    fn a_panic_of_a_reader_is_an_error() {
        static HELD: Stuck = Mutex::new(Vec::new());
        let failed = within_of(&HELD, Path::new("/panics"), PATIENCE, || -> u8 { panic!("on purpose") });
        assert_eq!(failed.unwrap_err().to_string(), "the reading failed");
        assert!(lock(&HELD).is_empty());
    }
}
