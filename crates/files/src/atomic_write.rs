//! A file that is ours, replaced whole: readers find the old content or the new, whatever ends us in between.
//!
//! ```text
//! lock -> write a file beside the target, 0644, sync -> exchange it with the target -> look at what came out -> sync the
//! directory
//! ```
//!
//! [`Beside`] is the file beside the target, for writers that give it attributes of their own.

mod temp_file;
#[cfg(test)]
mod tests;

pub use temp_file::Beside;

use std::fmt;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::open;

/// Makes `bytes` the content of the file at `path`, mode 0644, if it holds `base` or is not there; without `base` whatever
/// it holds.
///
/// The bytes are written to `.NAME.localdns.new` in the same directory, synced and renamed; a symbolic link at `path` is
/// followed, and a file that holds these bytes already is left alone. Whoever publishes holds a lock (flock) on the file
/// `.NAME.localdns`, so two processes take turns: one waits for the other, at most 2 s. What a killed one left there goes
/// with the next.
///
/// # Errors
/// Any step that fails, a directory that is missing among them, [`PublishError::NotAFile`], [`PublishError::Busy`] and
/// [`PublishError::Changed`]. The file holds what it held before, and those beside it are gone, unless the step is
/// [`Step::SyncDirectory`]: then the new content stands, and a crash of the machine may undo it.
pub fn publish(path: &Path, base: Option<&[u8]>, bytes: &[u8]) -> Result<(), PublishError> {
    let target = resolve(path)?;
    if holds(&target, bytes) {
        Beside::tidy(&target);
        return Ok(());
    }
    let mut beside = Beside::open(&target)?;
    beside.write(bytes)?;
    beside.set_mode(MODE)?;
    if beside.replace_target(base)? { Ok(()) } else { Err(PublishError::Changed(target)) }
}

/// Why a file could not be replaced.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A directory, a device, or a path without a file name.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// Another process is writing, and has not finished for 2 s.
    #[error("another process has held the lock on {} for 2 s", .0.display())]
    Busy(PathBuf),
    /// It does not hold what it was thought to hold: somebody else has written it.
    #[error("{} was written by another program meanwhile", .0.display())]
    Changed(PathBuf),
    /// Somebody else changes it again and again.
    #[error("{} changes faster than it can be written", .0.display())]
    Changing(PathBuf),
    /// The file is larger than may be read into memory.
    #[error("{} is larger than {} bytes", .0.display(), MAX_BYTES)]
    TooLarge(PathBuf),
    /// The path leads to a file that is in no directory any more: it is mounted by itself, and where it comes from another
    /// file has taken its place.
    #[error("{} was replaced where it is mounted from; only a new mount shows the new file", .0.display())]
    Orphaned(PathBuf),
    /// The system refused a step.
    #[error("cannot {step} {}: {source}", .path.display())]
    Io {
        /// What was to be done.
        step: Step,
        /// To this.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// What the system may refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// To find out what the path leads to.
    Resolve,
    /// To open or create.
    Open,
    /// To lock.
    Lock,
    /// To read.
    Read,
    /// To write.
    Write,
    /// To give mode, owner or extended attributes.
    Attributes,
    /// To reserve the space that the new content needs.
    Reserve,
    /// To bring the content to the disk.
    Sync,
    /// To cut the file to its new length.
    Truncate,
    /// To put the new file in the old one's place.
    Replace,
    /// To bring the new name to the disk.
    SyncDirectory,
}

impl Step {
    /// Of this step at `path`, for `map_err`.
    pub fn at(self, path: &Path) -> impl FnOnce(io::Error) -> PublishError {
        move |source| PublishError::Io { step: self, path: path.to_owned(), source }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "find",
            Self::Open => "open",
            Self::Lock => "lock",
            Self::Read => "read",
            Self::Write => "write",
            Self::Attributes => "copy the attributes of the file to",
            Self::Reserve => "reserve space for",
            Self::Sync => "sync",
            Self::Truncate => "truncate",
            Self::Replace => "replace",
            Self::SyncDirectory => "sync the directory of",
        })
    }
}

/// The regular file that `path` means, behind its symbolic links; it need not exist.
pub fn resolve(path: &Path) -> Result<PathBuf, PublishError> {
    let not_a_file = || PublishError::NotAFile(path.to_owned());
    match fs::canonicalize(path) {
        Ok(real) if fs::metadata(&real).is_ok_and(|found| !found.is_file()) => Err(not_a_file()),
        Ok(real) => Ok(real),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or_else(not_a_file)?;
            let directory = directory_of(path);
            Ok(fs::canonicalize(directory).map_err(Step::Resolve.at(directory))?.join(name))
        }
        Err(error) => Err(Step::Resolve.at(path)(error)),
    }
}

/// The directory that a file is in.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Whether the file holds these bytes, readable by all. One that cannot be read does not.
fn holds(path: &Path, bytes: &[u8]) -> bool {
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o7777 == MODE) && says(path, bytes)
}

/// Whether the file holds these bytes. One that cannot be read does not.
fn says(path: &Path, bytes: &[u8]) -> bool {
    let compare = || -> io::Result<bool> {
        let (file, found) = open(path)?;
        if found.len() != bytes.len() as u64 {
            return Ok(false);
        }
        let (mut file, mut rest) = (BufReader::with_capacity(64 << 10, file), bytes);
        loop {
            let found = file.fill_buf()?;
            let count = found.len();
            if count == 0 {
                return Ok(rest.is_empty());
            }
            let Some(left) = rest.strip_prefix(found) else { return Ok(false) };
            rest = left;
            file.consume(count);
        }
    };
    compare().unwrap_or(false)
}

/// Everybody may know the hosts.
const MODE: u32 = 0o644;

/// The most that a file may hold that is read as a whole before it is replaced, in bytes.
pub const MAX_BYTES: u64 = 16 << 20;
