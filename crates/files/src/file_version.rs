//! A file that others write, as it is read: whole, and only if it has changed.

use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::{PATIENCE, ReadError, open, within};

/// What tells one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    /// Of the inode: it cannot be set back, as the modification time can.
    changed: (i64, i64),
    size: u64,
}

/// What a look at a file found.
pub enum Looked {
    /// What was seen last.
    Same,
    /// It was written while it was read: the next look will see it whole.
    Busy,
    /// Its text.
    Text(Vec<u8>, Stamp),
}

/// Reads the file, at most `most` octets, unless it is the one that was seen last; `rest` is called between pieces.
///
/// # Errors
/// [`ReadError`], or what the system says.
pub fn look_at(path: &Path, seen: Option<Stamp>, most: u64, rest: impl Fn()) -> io::Result<Looked> {
    let (mut file, metadata) = open(path)?;
    let before = Stamp::from(&metadata);
    if seen == Some(before) {
        return Ok(Looked::Same);
    }
    if before.size > most {
        return Err(ReadError::TooLarge(most).into());
    }
    // One octet more than there is tells the end without growing.
    let mut text = Vec::new();
    text.try_reserve_exact(before.size as usize + 1)?;
    while file.by_ref().take(PIECE).read_to_end(&mut text)? > 0 {
        if text.len() as u64 > most {
            return Err(ReadError::TooLarge(most).into());
        }
        rest();
    }
    let after = Stamp::from(&file.metadata()?);
    Ok(if before == after { Looked::Text(text, after) } else { Looked::Busy })
}

/// A file's text, and which version it is; given up after [`PATIENCE`].
///
/// # Errors
/// [`io::ErrorKind::ResourceBusy`] where it is being written, [`ReadError`], or what the system says.
pub fn read_whole(path: &Path, most: u64, rest: impl Fn() + Send + 'static) -> io::Result<(Vec<u8>, Stamp)> {
    let of = path.to_owned();
    match within(path, PATIENCE, move || look_at(&of, None, most, rest))?? {
        Looked::Text(text, stamp) => Ok((text, stamp)),
        Looked::Same | Looked::Busy => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "it is being written"))
        }
    }
}

impl Stamp {
    /// The modification time in milliseconds since 1970.
    pub fn modified_ms(&self) -> u64 {
        self.modified.0.max(0) as u64 * 1000 + self.modified.1.max(0) as u64 / 1_000_000
    }

    /// How long ago it was written, by a wall clock in milliseconds since 1970.
    pub fn age(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms.saturating_sub(self.modified_ms()))
    }
}

impl From<&Metadata> for Stamp {
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

/// What is read at once.
const PIECE: u64 = 64 << 10;
