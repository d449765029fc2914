//! A hosts file as it is read: whole, unless nothing has changed since.

use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use readfile::ReadError;

use crate::clock;
use crate::pace;

/// What tells one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    /// Of the inode: it cannot be set back, as the modification time can.
    changed: (i64, i64),
    size: u64,
}

/// What a look at a file found.
pub(super) enum Looked {
    /// What was seen last.
    Same,
    /// It was written while it was read: the next look will see it whole.
    Busy,
    /// Its text.
    Text(Vec<u8>, Stamp),
}

/// Reads the file, unless it is the one that was seen last.
pub(super) fn look_at(path: &Path, seen: Option<Stamp>) -> io::Result<Looked> {
    let (mut file, metadata) = readfile::open(path)?;
    let before = stamp(&metadata);
    if seen == Some(before) {
        return Ok(Looked::Same);
    }
    if before.size > MAX_FILE {
        return Err(ReadError::TooLarge(MAX_FILE).into());
    }
    // One octet more than there is tells the end without growing.
    let mut text = Vec::new();
    text.try_reserve_exact(before.size as usize + 1)?;
    while file.by_ref().take(PIECE).read_to_end(&mut text)? > 0 {
        if text.len() as u64 > MAX_FILE {
            return Err(ReadError::TooLarge(MAX_FILE).into());
        }
        pace::rest();
    }
    let after = stamp(&file.metadata()?);
    Ok(if before == after { Looked::Text(text, after) } else { Looked::Busy })
}

/// A file's text, and how long ago it was written.
pub(crate) fn read_file(path: &Path) -> io::Result<(Vec<u8>, Duration)> {
    let of = path.to_owned();
    match readfile::within(path, readfile::PATIENCE, move || look_at(&of, None))?? {
        Looked::Text(text, stamp) => Ok((text, stamp.age())),
        Looked::Same | Looked::Busy => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "it is being written"))
        }
    }
}

impl Stamp {
    /// The modification time in milliseconds since 1970.
    pub(super) fn modified_ms(&self) -> u64 {
        self.modified.0.max(0) as u64 * 1000 + self.modified.1.max(0) as u64 / 1_000_000
    }

    pub(super) fn age(&self) -> Duration {
        Duration::from_millis(clock::wall_ms().saturating_sub(self.modified_ms()))
    }
}

fn stamp(metadata: &Metadata) -> Stamp {
    Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        size: metadata.size(),
    }
}

/// More than the pairs that a table has room for.
const MAX_FILE: u64 = 256 << 20;
/// What is read at once.
const PIECE: u64 = 64 << 10;
