//! Detects changes of files that other programs write, and reads them whole.

use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::{READ_TIMEOUT, ReadError, open, with_timeout};

/// Identifies one version of a file: it differs for each version, whether written in place or
/// renamed onto the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    /// Change time of the inode: unlike the modification time it cannot be set back.
    changed: (i64, i64),
    size: u64,
}

/// Result of [`read_if_changed`].
pub enum Change {
    /// The file has the known version.
    Unchanged,
    /// The file was written during the read: read it again later.
    BeingWritten,
    /// The new text and its version.
    Text(Vec<u8>, FileVersion),
}

/// Reads the file, at most `max_bytes`, unless it has the version `known`; calls `rest` after each
/// 64 KiB.
///
/// # Errors
/// [`ReadError`], or the system's error.
pub fn read_if_changed(
    path: &Path,
    known: Option<FileVersion>,
    max_bytes: u64,
    rest: impl Fn(),
) -> io::Result<Change> {
    let (mut file, metadata) = open(path)?;
    let before = FileVersion::from(&metadata);
    if known == Some(before) {
        return Ok(Change::Unchanged);
    }
    if before.size > max_bytes {
        return Err(ReadError::TooLarge(max_bytes).into());
    }
    // One spare byte lets `read_to_end` detect the end of the file without growing the buffer.
    let mut text = Vec::new();
    text.try_reserve_exact(before.size as usize + 1)?;
    while file.by_ref().take(CHUNK_BYTES).read_to_end(&mut text)? > 0 {
        if text.len() as u64 > max_bytes {
            return Err(ReadError::TooLarge(max_bytes).into());
        }
        rest();
    }
    let after = FileVersion::from(&file.metadata()?);
    Ok(if before == after { Change::Text(text, after) } else { Change::BeingWritten })
}

/// Returns a file's text and version, limited to [`READ_TIMEOUT`].
///
/// # Errors
/// [`io::ErrorKind::ResourceBusy`] if the file is written during the read, [`ReadError`], or the
/// system's error.
pub fn read_version(
    path: &Path,
    max_bytes: u64,
    rest: impl Fn() + Send + 'static,
) -> io::Result<(Vec<u8>, FileVersion)> {
    let owned = path.to_owned();
    match with_timeout(path, READ_TIMEOUT, move || read_if_changed(&owned, None, max_bytes, rest))?? {
        Change::Text(text, version) => Ok((text, version)),
        Change::Unchanged | Change::BeingWritten => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another program is writing it"))
        }
    }
}

impl FileVersion {
    /// The modification time in milliseconds since 1970.
    pub fn modified_ms(&self) -> u64 {
        self.modified.0.max(0) as u64 * 1000 + self.modified.1.max(0) as u64 / 1_000_000
    }

    /// Time since the modification, given the wall clock in milliseconds since 1970.
    pub fn age(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms.saturating_sub(self.modified_ms()))
    }
}

impl From<&Metadata> for FileVersion {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            size: metadata.size(),
        }
    }
}

/// Bytes that are read between two calls of `rest`.
const CHUNK_BYTES: u64 = 64 << 10;
