//! A hosts file that is not ours, changed by renaming a new file onto it, or else in place.

use std::fs::{self, File as Open, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};

use super::{Entry, MAX_BYTES, Marker, Text, attributes};
use crate::publish::{Beside, PublishError, Step, resolve};

/// A hosts file with lines of ours in it.
#[derive(Debug, Clone)]
pub struct File {
    path: PathBuf,
    marker: Marker,
}

/// What an update did to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Nothing: inode, times and bytes are as they were.
    Unchanged,
    /// Another file has its name now, with the same owner, mode and extended attributes.
    Replaced,
    /// The same file has other bytes, since none may take its place.
    InPlace,
}

impl File {
    /// The file at `path`, in which lines with this marker are ours. A symbolic link is followed. Nothing is opened yet.
    pub fn new(path: impl Into<PathBuf>, marker: Marker) -> Self {
        Self { path: path.into(), marker }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets `choose` say which entries our lines are to hold, and makes it so. It is asked again when the file has changed
    /// meanwhile; its last answer counts.
    ///
    /// A new file is written beside the old one and renamed onto it, under the same lock as [`publish`](crate::publish()).
    /// Where that cannot be (a directory that is not writable, a file mounted by itself or with several names, an owner or
    /// attribute that may not be given) the file is changed in place, under a lock on itself: the space is reserved, newlines
    /// fill it if it is to grow, one write from the first line that differs brings the new bytes, padded with newlines to
    /// the old length, and only then is it cut. Killed in between, it ends in empty lines.
    ///
    /// # Errors
    /// Any step that fails, the file's absence among them; [`PublishError::TooLarge`] above 16 MiB;
    /// [`PublishError::Orphaned`]; [`PublishError::Busy`]; [`PublishError::Changing`]. The file is as
    /// it was, unless the step is [`Step::Sync`], [`Step::SyncDirectory`] or [`Step::Truncate`].
    pub fn update(&self, mut choose: impl FnMut(&Text<'_>) -> Vec<Entry>) -> Result<Written, PublishError> {
        let target = resolve(&self.path)?;
        let mut next = |old: &[u8]| {
            let text = Text::new(old, &self.marker);
            text.with(&choose(&text))
        };
        let (_, _, old) = read(&target)?;
        if next(&old).is_none() {
            return Ok(Written::Unchanged);
        }
        for _ in 0..TRIES {
            match replace(&target, &mut next)? {
                Replaced::Done(written) => return Ok(written),
                Replaced::Changed => {}
                Replaced::Impossible => return in_place(&target, &mut next),
            }
        }
        Err(PublishError::Changing(target))
    }
}

enum Replaced {
    Done(Written),
    /// Somebody else wrote to the file meanwhile.
    Changed,
    Impossible,
}

fn replace(target: &Path, next: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>) -> Result<Replaced, PublishError> {
    let mut beside = match Beside::open(target) {
        Ok(beside) => beside,
        Err(error) if forbids_renaming(&error) => return Ok(Replaced::Impossible),
        Err(error) => return Err(error),
    };
    let (file, found, old) = read(target)?;
    let Some(new) = next(&old) else { return Ok(Replaced::Done(Written::Unchanged)) };
    // A second name would go on leading to the old bytes.
    if found.nlink() > 1 {
        return Ok(Replaced::Impossible);
    }
    beside.write(&new)?;
    if attributes::copy(&file, beside.file()).is_err() {
        return Ok(Replaced::Impossible);
    }
    let now = fs::metadata(target).map_err(Step::Read.at(target))?;
    if state(&now) != state(&found) {
        return Ok(Replaced::Changed);
    }
    match beside.replace_target() {
        Ok(()) => Ok(Replaced::Done(Written::Replaced)),
        Err(error) if forbids_renaming(&error) => Ok(Replaced::Impossible),
        Err(error) => Err(error),
    }
}

/// Whether the place, not the moment, is why no file can be put there.
fn forbids_renaming(error: &PublishError) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    let PublishError::Io { step: Step::Open | Step::Replace, source, .. } = error else { return false };
    matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem | ResourceBusy | CrossesDevices)
}

fn in_place(target: &Path, next: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>) -> Result<Written, PublishError> {
    let file = OpenOptions::new().read(true).write(true).open(target).map_err(Step::Open.at(target))?;
    lock(&file, target)?;
    let (_, found, old) = read(target)?;
    // While we waited somebody may have put another file there.
    let locked = file.metadata().map_err(Step::Read.at(target))?;
    if (locked.dev(), locked.ino()) != (found.dev(), found.ino()) {
        return Err(PublishError::Changing(target.to_owned()));
    }
    let Some(new) = next(&old) else { return Ok(Written::Unchanged) };
    let (old_length, new_length) = (old.len() as u64, new.len() as u64);
    if new_length > old_length {
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, new_length)
            .map_err(io::Error::from)
            .map_err(Step::Reserve.at(target))?;
        // A reader who was told the old length while the bytes are new already would find the last line cut off.
        let newlines = vec![b'\n'; new.len() - old.len()];
        file.write_all_at(&newlines, old_length).map_err(Step::Write.at(target))?;
    }
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let from = new[..same].iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let mut block = new[from..].to_vec();
    block.resize(old.len().max(new.len()) - from, b'\n');
    file.write_all_at(&block, from as u64).map_err(Step::Write.at(target))?;
    file.sync_all().map_err(Step::Sync.at(target))?;
    if new_length < old_length {
        file.set_len(new_length).map_err(Step::Truncate.at(target))?;
        file.sync_all().map_err(Step::Sync.at(target))?;
    }
    Ok(Written::InPlace)
}

fn lock(file: &Open, path: &Path) -> Result<(), PublishError> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(Step::Lock.at(path)(error)),
        }
    }
    Err(PublishError::Busy(path.to_owned()))
}

/// The file, what the system tells about it, and its bytes.
fn read(path: &Path) -> Result<(Open, Metadata, Vec<u8>), PublishError> {
    let file = Open::open(path).map_err(Step::Open.at(path))?;
    let found = file.metadata().map_err(Step::Read.at(path))?;
    if found.nlink() == 0 {
        return Err(PublishError::Orphaned(path.to_owned()));
    }
    let mut bytes = Vec::new();
    (&file).take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(Step::Read.at(path))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(PublishError::TooLarge(path.to_owned()));
    }
    Ok((file, found, bytes))
}

/// What changes when somebody writes to a file or puts another in its place.
fn state(found: &Metadata) -> impl PartialEq {
    (
        found.dev(),
        found.ino(),
        found.size(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    )
}

/// How often a file that others change is read again.
const TRIES: usize = 5;
/// 2 s in all, as for the file beside.
const LOCK_TRIES: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
