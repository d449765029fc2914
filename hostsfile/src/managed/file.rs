//! A hosts file that is not ours, changed by renaming a new file onto it, or else in place.

use std::fs::{self, File as Open, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use files::{Beside, PublishError, Stamp, Step, resolve};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::in_place::{Change, most, plan};
use super::{MAX_BYTES, ManagedLine, Marker, Text, attributes};

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
    /// A new file is written beside the old one and renamed onto it, under the same lock as [`files::publish`].
    /// Where that cannot be (a directory that is not writable, a file mounted by itself or with several names, an owner or
    /// attribute that may not be given) the file is changed in place, under a lock on itself, so that no reader finds part
    /// of a line at any moment: a line comes and goes by its first byte, which is `#` as long as the rest is written. The new
    /// lines come behind the old ones first and then to their place, so that none is missing meanwhile; where there is no
    /// room for both, they are for a moment. Killed in between, it leaves comments, empty lines, or lines twice.
    ///
    /// # Errors
    /// Any step that fails, the file's absence among them; [`PublishError::TooLarge`] above 16 MiB;
    /// [`PublishError::Orphaned`]; [`PublishError::Busy`]; [`PublishError::Changing`]. The file is as
    /// it was, unless the step is [`Step::Write`] in place, [`Step::Sync`], [`Step::SyncDirectory`] or [`Step::Truncate`].
    pub fn update(
        &self,
        mut choose: impl FnMut(&Text<'_>) -> Vec<ManagedLine>,
    ) -> Result<Written, PublishError> {
        let target = resolve(&self.path)?;
        let mut next = |old: &[u8]| {
            let text = Text::new(old, &self.marker);
            text.with(&choose(&text))
        };
        let (_, _, old) = read(&target)?;
        if next(&old).is_none() {
            Beside::tidy(&target);
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
    if Stamp::from(&now) != Stamp::from(&found) {
        return Ok(Replaced::Changed);
    }
    match beside.replace_target(Some(&old)) {
        Ok(true) => Ok(Replaced::Done(Written::Replaced)),
        Ok(false) => Ok(Replaced::Changed),
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
    rewrite(&file, &old, &new).map_err(|(step, error)| step.at(target)(error))?;
    Ok(Written::InPlace)
}

/// Makes `new` of a file that holds `old`.
fn rewrite(file: &Open, old: &[u8], new: &[u8]) -> Result<(), (Step, io::Error)> {
    let mut changes = plan(old, new, true);
    if reserve(file, most(&changes)).is_err() {
        changes = plan(old, new, false);
        reserve(file, most(&changes)).map_err(|error| (Step::Reserve, error))?;
    }
    let mut begun = false;
    for change in changes {
        let (step, done) = match change {
            Change::Write { at, bytes } => {
                begun |= at < old.len();
                (Step::Write, file.write_all_at(&bytes, at as u64))
            }
            Change::Sync => (Step::Sync, file.sync_all()),
            Change::Cut { length } => (Step::Truncate, file.set_len(length as u64)),
        };
        if let Err(error) = done {
            if !begun {
                // Nothing but what stands behind the end is new.
                drop(file.set_len(old.len() as u64));
            }
            return Err((step, error));
        }
    }
    Ok(())
}

/// Makes sure that there is room on the disk, where the file system can; the length stays.
fn reserve(file: &Open, length: usize) -> Result<(), io::Error> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, length as u64) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        reserved => Ok(reserved?),
    }
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
    let of = path.to_owned();
    let work = move || {
        let (file, found) = files::open(&of).map_err(|error| Step::Open.at(&of)(error.into()))?;
        if found.nlink() == 0 {
            return Err(PublishError::Orphaned(of));
        }
        let mut bytes = Vec::new();
        (&file).take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(Step::Read.at(&of))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(PublishError::TooLarge(of));
        }
        Ok((file, found, bytes))
    };
    files::within(path, files::PATIENCE, work).map_err(|error| Step::Read.at(path)(error.into()))?
}

/// How often a file that others change is read again.
const TRIES: usize = 5;
/// 2 s in all, as for the file beside.
const LOCK_TRIES: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
