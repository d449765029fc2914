//! Replaces a file atomically: readers see the old content or the new one, even if the process is
//! killed.
//!
//! ```text
//! lock -> write and sync a temporary file (mode 0644) -> exchange it with the target
//!      -> verify the replaced content -> sync the directory
//! ```
//!
//! [`TempFile`] is the temporary file, for writers that set other attributes.

mod temp_file;
#[cfg(test)]
mod tests;

pub use temp_file::TempFile;

use std::fmt;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{ShownPath, open};

/// Replaces the content of the file at `path` with `bytes`, mode 0644, if it holds `expected` or
/// does not exist; without `expected` unconditionally.
///
/// The bytes are written to `.NAME.localdns.new` in the same directory, synced and renamed. A
/// symbolic link at `path` is followed, and a file that already holds the bytes is left unchanged.
/// A lock (flock) on `.NAME.localdns` serializes writers: each waits up to 2 s for the lock. A
/// writer removes the files that a killed one left.
///
/// # Errors
/// The step that failed, for example if the directory is missing, [`WriteError::NotAFile`],
/// [`WriteError::Busy`] and [`WriteError::Changed`]. The file is then unchanged and the temporary
/// files are removed, except after [`WriteStep::SyncDirectory`]: the new content is in place, but a
/// crash of the machine may undo it.
pub fn atomic_write(path: &Path, expected: Option<&[u8]>, bytes: &[u8]) -> Result<(), WriteError> {
    let target = resolve_target(path)?;
    if is_up_to_date(&target, bytes) {
        TempFile::clean_up(&target);
        return Ok(());
    }
    let mut temp = TempFile::create(&target)?;
    temp.write(bytes)?;
    temp.set_mode(MODE)?;
    if temp.replace_target(expected)? { Ok(()) } else { Err(WriteError::Changed(target)) }
}

/// Why a file could not be replaced.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A directory, a device, or a path without a file name.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// Another process has held the lock for 2 s.
    #[error("another process has held the lock on {} for 2 s", .0.display())]
    Busy(PathBuf),
    /// The file does not hold the expected content: another program has written it.
    #[error("another program has changed {}", .0.display())]
    Changed(PathBuf),
    /// Other programs change the file again and again.
    #[error("other programs change {} faster than it can be written", .0.display())]
    Changing(PathBuf),
    /// The file exceeds the limit for reading it into memory.
    #[error("{} is larger than {} bytes", .0.display(), MAX_REPLACED_BYTES)]
    TooLarge(PathBuf),
    /// The path leads to a file without a name: the file is mounted by itself (bind mount), and its
    /// source was replaced.
    #[error("{} is a bind mount whose source file was replaced; mount it again", .0.display())]
    Orphaned(PathBuf),
    /// The system reported an error.
    #[error("cannot {step} {}: {source}", .path.display())]
    Io {
        /// The step that failed.
        step: WriteStep,
        /// The file or directory concerned.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A step of a replacement, for [`WriteError::Io`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteStep {
    /// Resolve the path.
    Resolve,
    /// Open or create.
    Open,
    /// Lock.
    Lock,
    /// Read.
    Read,
    /// Write.
    Write,
    /// Set mode, owner or extended attributes.
    Attributes,
    /// Reserve disk space for the new content.
    Reserve,
    /// Sync the content to the disk.
    Sync,
    /// Truncate the file to its new length.
    Truncate,
    /// Rename the new file onto the old one.
    Replace,
    /// Sync the directory to the disk.
    SyncDirectory,
}

impl WriteError {
    /// Returns the error with `file`'s text for messages in place of the path, if the two differ.
    #[must_use]
    pub fn shown_as(mut self, file: &ShownPath) -> Self {
        if let Some(shown) = file.hidden_by() {
            let (Self::NotAFile(path)
            | Self::Busy(path)
            | Self::Changed(path)
            | Self::Changing(path)
            | Self::TooLarge(path)
            | Self::Orphaned(path)
            | Self::Io { path, .. }) = &mut self;
            *path = shown.into();
        }
        self
    }
}

impl WriteStep {
    /// Returns a closure for `map_err` that wraps an error of this step at `path`.
    pub fn at(self, path: &Path) -> impl FnOnce(io::Error) -> WriteError {
        move |source| WriteError::Io { step: self, path: path.to_owned(), source }
    }
}

impl fmt::Display for WriteStep {
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

/// Resolves the symbolic links of `path` to a regular file, which need not exist.
///
/// # Errors
/// [`WriteError::NotAFile`], [`WriteStep::Resolve`].
pub fn resolve_target(path: &Path) -> Result<PathBuf, WriteError> {
    let not_a_file = || WriteError::NotAFile(path.to_owned());
    match fs::canonicalize(path) {
        Ok(real) if fs::metadata(&real).is_ok_and(|found| !found.is_file()) => Err(not_a_file()),
        Ok(real) => Ok(real),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or_else(not_a_file)?;
            let directory = directory_of(path);
            Ok(fs::canonicalize(directory).map_err(WriteStep::Resolve.at(directory))?.join(name))
        }
        Err(error) => Err(WriteStep::Resolve.at(path)(error)),
    }
}

/// Returns the directory of a file.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Whether the file has these bytes and mode 0644; `false` if it cannot be read.
fn is_up_to_date(path: &Path, bytes: &[u8]) -> bool {
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o7777 == MODE)
        && has_content(path, bytes)
}

/// Whether the file has these bytes; `false` if it cannot be read.
fn has_content(path: &Path, bytes: &[u8]) -> bool {
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
            let Some(unread) = rest.strip_prefix(found) else { return Ok(false) };
            rest = unread;
            file.consume(count);
        }
    };
    compare().unwrap_or(false)
}

/// Readable by all users.
const MODE: u32 = 0o644;

/// Maximum size in bytes of a file that is read into memory before it is replaced.
pub const MAX_REPLACED_BYTES: u64 = 16 << 20;
