//! The file beside the target: where new content grows until it takes the target's name. It is the lock as well.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::OFlags;

use super::{PublishError, Step, directory_of};

/// An empty file `.NAME.localdns`, locked. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Beside {
    file: File,
    path: PathBuf,
    target: PathBuf,
    replaced: bool,
}

impl Beside {
    /// Opens the file beside `target` and locks it, waiting up to 2 s for whoever holds the lock.
    ///
    /// A lock that everybody may take would let everybody stop us: the file is for its owner alone until it is complete.
    ///
    /// # Errors
    /// [`Step::Open`], [`Step::Lock`], [`PublishError::NotAFile`], [`PublishError::Busy`].
    pub(crate) fn open(target: &Path) -> Result<Self, PublishError> {
        let path = path_beside(target).ok_or_else(|| PublishError::NotAFile(target.to_owned()))?;
        for _ in 0..TRIES {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
                .open(&path)
                .map_err(Step::Open.at(&path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => {
                    sleep(PAUSE);
                    continue;
                }
                Err(fs::TryLockError::Error(error)) => return Err(Step::Lock.at(&path)(error)),
            }
            let locked = file.metadata().map_err(Step::Open.at(&path))?;
            if !locked.is_file() {
                return Err(PublishError::NotAFile(path));
            }
            // Whoever held the lock before us has renamed or removed the file: what we locked is not beside any more.
            let found = fs::symlink_metadata(&path);
            if !found.is_ok_and(|found| (found.dev(), found.ino()) == (locked.dev(), locked.ino())) {
                continue;
            }
            let beside = Self { file, path, target: target.to_owned(), replaced: false };
            beside.file.set_len(0).map_err(Step::Write.at(&beside.path))?;
            return Ok(beside);
        }
        Err(PublishError::Busy(path))
    }

    /// Appends.
    ///
    /// # Errors
    /// [`Step::Write`].
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), PublishError> {
        self.file.write_all(bytes).map_err(Step::Write.at(&self.path))
    }

    /// Sets the mode.
    ///
    /// # Errors
    /// [`Step::Attributes`].
    pub(crate) fn set_mode(&self, mode: u32) -> Result<(), PublishError> {
        self.file.set_permissions(Permissions::from_mode(mode)).map_err(Step::Attributes.at(&self.path))
    }

    /// The file itself, for its attributes.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file the target's name.
    ///
    /// # Errors
    /// [`Step::Sync`], [`Step::Replace`]: the target is as it was. [`Step::SyncDirectory`]: it is replaced.
    pub(crate) fn replace_target(mut self) -> Result<(), PublishError> {
        self.file.sync_all().map_err(Step::Sync.at(&self.path))?;
        fs::rename(&self.path, &self.target).map_err(Step::Replace.at(&self.target))?;
        self.replaced = true;
        let synced = File::open(directory_of(&self.target)).and_then(|directory| directory.sync_all());
        match synced {
            // Where directories cannot be synced there is nothing to wait for.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced.map_err(Step::SyncDirectory.at(&self.target)),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.replaced {
            // Still locked: nobody else can have put a file of theirs there. What cannot be removed is overwritten next time.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// `.NAME.localdns` in the target's directory.
pub(super) fn path_beside(target: &Path) -> Option<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name()?);
    name.push(".localdns");
    Some(target.with_file_name(name))
}

/// 2 s in all.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);
