//! Updates managed lines in a hosts file, by renaming a new file onto it or else in place.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use files::{FileVersion, TempFile, WriteError, WriteStep, resolve_target};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::in_place::{Change, max_length, plan};
use super::{MAX_REPLACED_BYTES, ManagedLine, Marker, Text, attributes};

/// A hosts file with managed lines.
#[derive(Debug, Clone)]
pub struct HostsFile {
    path: PathBuf,
    marker: Marker,
}

/// Result of [`HostsFile::update`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The file was not written.
    Unchanged,
    /// A new file was renamed onto it, with the same owner, mode and extended attributes.
    Replaced,
    /// The file was rewritten in place, since it cannot be replaced.
    InPlace,
}

impl HostsFile {
    /// Names the file at `path`, in which lines with this marker are managed. Opens nothing.
    /// Symbolic links are followed.
    pub fn new(path: impl Into<PathBuf>, marker: Marker) -> Self {
        Self { path: path.into(), marker }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the managed lines with the entries that `choose` returns. `choose` is called again
    /// if the file has changed since it was read; the last result is written.
    ///
    /// The new file is written in the same directory and renamed, under the same lock as
    /// [`files::atomic_write`]. If that is impossible (directory not writable, bind mount, several
    /// hard links, an owner or attribute that the process may not set), the file is rewritten in
    /// place, under a lock on itself, so that no reader sees part of a line: a line is shown and
    /// hidden by its first byte, which is `#` while the rest is written. The new lines are first
    /// appended and then moved, so that none is missing in between, except for a short time if the
    /// disk lacks space for both. A process that is killed in between leaves comments, empty lines,
    /// or duplicate lines.
    ///
    /// # Errors
    /// The step that failed, for example if the file is missing; [`WriteError::TooLarge`] above 16
    /// MiB; [`WriteError::Orphaned`]; [`WriteError::Busy`]; [`WriteError::Changing`]. The file is
    /// unchanged, except after [`WriteStep::Write`] in place, [`WriteStep::Sync`],
    /// [`WriteStep::SyncDirectory`] or [`WriteStep::Truncate`].
    pub fn update(
        &self,
        mut choose: impl FnMut(&Text<'_>) -> Vec<ManagedLine>,
    ) -> Result<UpdateOutcome, WriteError> {
        let target = resolve_target(&self.path)?;
        let mut next = |old: &[u8]| {
            let text = Text::new(old, &self.marker);
            text.with(&choose(&text))
        };
        let (_, _, old) = read(&target)?;
        if next(&old).is_none() {
            TempFile::clean_up(&target);
            return Ok(UpdateOutcome::Unchanged);
        }
        for _ in 0..TRIES {
            match replace(&target, &mut next)? {
                Replaced::Done(written) => return Ok(written),
                Replaced::Changed => {}
                Replaced::Impossible => return in_place(&target, &mut next),
            }
        }
        Err(WriteError::Changing(target))
    }
}

enum Replaced {
    Done(UpdateOutcome),
    /// Another program has written to the file.
    Changed,
    Impossible,
}

fn replace(target: &Path, next: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>) -> Result<Replaced, WriteError> {
    let mut temp = match TempFile::create(target) {
        Ok(temp) => temp,
        Err(error) if prevents_renaming(&error) => return Ok(Replaced::Impossible),
        Err(error) => return Err(error),
    };
    let (file, found, old) = read(target)?;
    let Some(new) = next(&old) else { return Ok(Replaced::Done(UpdateOutcome::Unchanged)) };
    // After a rename, the other hard links would keep the old content.
    if found.nlink() > 1 {
        return Ok(Replaced::Impossible);
    }
    temp.write(&new)?;
    if attributes::copy(&file, temp.file()).is_err() {
        return Ok(Replaced::Impossible);
    }
    let now = fs::metadata(target).map_err(WriteStep::Read.at(target))?;
    if FileVersion::from(&now) != FileVersion::from(&found) {
        return Ok(Replaced::Changed);
    }
    match temp.replace_target(Some(&old)) {
        Ok(true) => Ok(Replaced::Done(UpdateOutcome::Replaced)),
        Ok(false) => Ok(Replaced::Changed),
        Err(error) if prevents_renaming(&error) => Ok(Replaced::Impossible),
        Err(error) => Err(error),
    }
}

/// Whether the error means that the directory or mount does not allow a rename, now and later.
fn prevents_renaming(error: &WriteError) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    let WriteError::Io { step: WriteStep::Open | WriteStep::Replace, source, .. } = error else {
        return false;
    };
    matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem | ResourceBusy | CrossesDevices)
}

fn in_place(
    target: &Path,
    next: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>,
) -> Result<UpdateOutcome, WriteError> {
    let file = OpenOptions::new().read(true).write(true).open(target).map_err(WriteStep::Open.at(target))?;
    lock(&file, target)?;
    let (_, found, old) = read(target)?;
    // Another program may have replaced the file during the wait for the lock.
    let locked = file.metadata().map_err(WriteStep::Read.at(target))?;
    if (locked.dev(), locked.ino()) != (found.dev(), found.ino()) {
        return Err(WriteError::Changing(target.to_owned()));
    }
    let Some(new) = next(&old) else { return Ok(UpdateOutcome::Unchanged) };
    rewrite(&file, &old, &new).map_err(|(step, error)| step.at(target)(error))?;
    Ok(UpdateOutcome::InPlace)
}

/// Rewrites a file from `old` to `new`.
fn rewrite(file: &File, old: &[u8], new: &[u8]) -> Result<(), (WriteStep, io::Error)> {
    let mut changes = plan(old, new, true);
    if reserve(file, max_length(&changes)).is_err() {
        changes = plan(old, new, false);
        reserve(file, max_length(&changes)).map_err(|error| (WriteStep::Reserve, error))?;
    }
    let mut begun = false;
    for change in changes {
        let (step, done) = match change {
            Change::Write { at, bytes } => {
                begun |= at < old.len();
                (WriteStep::Write, file.write_all_at(&bytes, at as u64))
            }
            Change::Sync => (WriteStep::Sync, file.sync_all()),
            Change::Truncate { length } => (WriteStep::Truncate, file.set_len(length as u64)),
        };
        if let Err(error) = done {
            if !begun {
                // Only bytes past the old end have been written.
                drop(file.set_len(old.len() as u64));
            }
            return Err((step, error));
        }
    }
    Ok(())
}

/// Reserves disk space without changing the length, if the file system supports it.
fn reserve(file: &File, length: usize) -> Result<(), io::Error> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, length as u64) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        reserved => Ok(reserved?),
    }
}

fn lock(file: &File, path: &Path) -> Result<(), WriteError> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(WriteStep::Lock.at(path)(error)),
        }
    }
    Err(WriteError::Busy(path.to_owned()))
}

/// Returns the open file, its metadata and its content.
fn read(path: &Path) -> Result<(File, Metadata, Vec<u8>), WriteError> {
    let owned = path.to_owned();
    let work = move || {
        let (file, found) = files::open(&owned).map_err(|error| WriteStep::Open.at(&owned)(error.into()))?;
        if found.nlink() == 0 {
            return Err(WriteError::Orphaned(owned));
        }
        let mut bytes = Vec::new();
        (&file).take(MAX_REPLACED_BYTES + 1).read_to_end(&mut bytes).map_err(WriteStep::Read.at(&owned))?;
        if bytes.len() as u64 > MAX_REPLACED_BYTES {
            return Err(WriteError::TooLarge(owned));
        }
        Ok((file, found, bytes))
    };
    files::with_timeout(path, files::READ_TIMEOUT, work)
        .map_err(|error| WriteStep::Read.at(path)(error.into()))?
}

/// Maximum attempts to write while other programs change the file.
const TRIES: usize = 5;
/// Maximum attempts to lock, 2 s in total, as for the lock file.
const LOCK_TRIES: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
