//! The temporary file with the new content, and the lock file, in the target's directory.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, openat, renameat_with};

use super::{WriteError, WriteStep, directory_of, has_content};

/// The temporary file `.NAME.localdns.new`, under a lock. Dropping it removes both files.
#[derive(Debug)]
pub struct TempFile {
    file: File,
    path: PathBuf,
    target: PathBuf,
    _lock: Lock,
}

/// The locked file `.NAME.localdns`. It is never renamed, so that all writers lock the same file.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _held: File,
}

impl TempFile {
    /// Takes the lock, waiting up to 2 s, and creates the temporary file in place of one that a
    /// killed process left.
    ///
    /// Both files have mode 0600, so that other users cannot hold the lock.
    ///
    /// # Errors
    /// [`WriteStep::Open`], [`WriteStep::Lock`], [`WriteError::NotAFile`], [`WriteError::Busy`].
    pub fn create(target: &Path) -> Result<Self, WriteError> {
        let lock = Lock::take(target)?;
        let path = sibling_path(target, NEW)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(WriteStep::Open.at(&path)(error));
            }
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(WriteStep::Open.at(&path))?;
        Ok(Self { file, path, target: target.to_owned(), _lock: lock })
    }

    /// Removes the files that a process left if it was killed after it had replaced `target`.
    pub fn clean_up(target: &Path) {
        if sibling_path(target, LOCK).is_ok_and(|path| fs::symlink_metadata(path).is_ok()) {
            // A file that cannot be removed is harmless.
            drop(Self::create(target));
        }
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`WriteStep::Write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.file.write_all(bytes).map_err(WriteStep::Write.at(&self.path))
    }

    /// Sets the mode.
    ///
    /// # Errors
    /// [`WriteStep::Attributes`].
    pub fn set_mode(&self, mode: u32) -> Result<(), WriteError> {
        self.file.set_permissions(Permissions::from_mode(mode)).map_err(WriteStep::Attributes.at(&self.path))
    }

    /// The open file, for setting attributes.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file onto the target if the target holds `expected` or does not exist; returns
    /// `false` if the target holds other content, which is then kept.
    ///
    /// The two files are exchanged in one step (RENAME_EXCHANGE), and then the replaced content is
    /// verified, so that a concurrent rename is never lost. A program that has the old file open
    /// and writes to it later is not detected. Where the file system cannot exchange files, the
    /// target is verified just before the rename.
    ///
    /// # Errors
    /// [`WriteStep::Sync`], [`WriteStep::Replace`]: the target is unchanged.
    /// [`WriteStep::SyncDirectory`]: the target is replaced. [`WriteError::Changing`]: other
    /// programs replace the target repeatedly; it has their content or that of this process.
    pub fn replace_target(self, expected: Option<&[u8]>) -> Result<bool, WriteError> {
        self.file.sync_all().map_err(WriteStep::Sync.at(&self.path))?;
        let failed = WriteStep::Replace.at(&self.target);
        match expected {
            None => self.rename(RenameFlags::empty()).map_err(failed)?,
            Some(expected) => match self.rename(RenameFlags::EXCHANGE) {
                Ok(()) if has_content(&self.path, expected) => {}
                Ok(()) => return self.put_back().map(|()| false),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match self.rename(RenameFlags::NOREPLACE) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
                        renamed => renamed.map_err(failed)?,
                    }
                }
                Err(error) if cannot_exchange(&error) => {
                    if self.target.exists() && !has_content(&self.target, expected) {
                        return Ok(false);
                    }
                    self.rename(RenameFlags::empty()).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            },
        }
        let synced = File::open(directory_of(&self.target)).and_then(|directory| directory.sync_all());
        match synced {
            // The file system cannot sync directories.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(true),
            synced => synced.map(|()| true).map_err(WriteStep::SyncDirectory.at(&self.target)),
        }
    }

    fn rename(&self, flags: RenameFlags) -> io::Result<()> {
        Ok(renameat_with(CWD, &self.path, CWD, &self.target, flags)?)
    }

    /// Exchanges the files again, to restore content that another program wrote. A file that
    /// another program has renamed onto the target since is kept.
    ///
    /// Each file that was put back stays open until the next exchange: a file system may give the
    /// inode number of a removed file to the next one, which would then look like the file that
    /// was put back.
    fn put_back(&self) -> Result<(), WriteError> {
        let failed = || WriteStep::Replace.at(&self.target);
        let mut placed = self.file.try_clone().map_err(failed())?;
        for _ in 0..EXCHANGES {
            let restored = openat(CWD, &self.path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty());
            let restored = File::from(restored.map_err(|error| failed()(error.into()))?);
            match self.rename(RenameFlags::EXCHANGE) {
                // The target was removed: it stays removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                exchanged => exchanged.map_err(failed())?,
            }
            let taken = fs::symlink_metadata(&self.path).map_err(failed())?;
            let known = placed.metadata().map_err(failed())?;
            if (taken.dev(), taken.ino()) == (known.dev(), known.ino()) {
                return Ok(());
            }
            placed = restored;
        }
        Err(WriteError::Changing(self.target.clone()))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // The lock is still held, so the file is ours. If this fails, the next writer removes it.
        drop(fs::remove_file(&self.path));
    }
}

impl Lock {
    fn take(target: &Path) -> Result<Self, WriteError> {
        let path = sibling_path(target, LOCK)?;
        for _ in 0..TRIES {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
                .open(&path)
                .map_err(WriteStep::Open.at(&path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => {
                    sleep(PAUSE);
                    continue;
                }
                Err(fs::TryLockError::Error(error)) => return Err(WriteStep::Lock.at(&path)(error)),
            }
            let locked = file.metadata().map_err(WriteStep::Open.at(&path))?;
            if !locked.is_file() {
                return Err(WriteError::NotAFile(path));
            }
            // The previous holder may have removed the file that we locked.
            let found = fs::symlink_metadata(&path);
            if found.is_ok_and(|found| (found.dev(), found.ino()) == (locked.dev(), locked.ino())) {
                return Ok(Self { path, _held: file });
            }
        }
        Err(WriteError::Busy(path))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

/// Returns `.NAMEending` in the target's directory.
pub(super) fn sibling_path(target: &Path, ending: &str) -> Result<PathBuf, WriteError> {
    let name = target.file_name().ok_or_else(|| WriteError::NotAFile(target.to_owned()))?;
    let mut sibling = std::ffi::OsString::from(".");
    sibling.push(name);
    sibling.push(ending);
    Ok(target.with_file_name(sibling))
}

/// Whether the file system or kernel does not support RENAME_EXCHANGE.
fn cannot_exchange(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

pub(super) const LOCK: &str = ".localdns";
pub(super) const NEW: &str = ".localdns.new";
/// Attempts to lock, 2 s in all.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of exchanges while other programs replace the target during the restore.
const EXCHANGES: usize = 100;
