//! The files beside the target: a lock, and the new content until it takes the target's name.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};

use super::{PublishError, Step, directory_of, says};

/// An empty file `.NAME.localdns.new`, under a lock. Dropped, both are removed.
#[derive(Debug)]
pub struct Beside {
    file: File,
    path: PathBuf,
    target: PathBuf,
    _lock: Lock,
}

/// The file `.NAME.localdns`, locked. It never takes another name, so whoever waits for it waits for the right one.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _held: File,
}

impl Beside {
    /// Locks, waiting up to 2 s for whoever holds the lock, and makes the file for the new content. What a killed process left
    /// there goes.
    ///
    /// A lock that everybody may take would let everybody stop us: both files are for their owner alone until the content is
    /// complete.
    ///
    /// # Errors
    /// [`Step::Open`], [`Step::Lock`], [`PublishError::NotAFile`], [`PublishError::Busy`].
    pub fn open(target: &Path) -> Result<Self, PublishError> {
        let lock = Lock::take(target)?;
        let path = path_beside(target, NEW)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Step::Open.at(&path)(error)),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(Step::Open.at(&path))?;
        Ok(Self { file, path, target: target.to_owned(), _lock: lock })
    }

    /// Removes what a process that was killed after it had done its work left beside `target`.
    pub fn tidy(target: &Path) {
        if path_beside(target, LOCK).is_ok_and(|path| fs::symlink_metadata(path).is_ok()) {
            // What cannot be removed does no harm.
            drop(Self::open(target));
        }
    }

    /// Appends.
    ///
    /// # Errors
    /// [`Step::Write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PublishError> {
        self.file.write_all(bytes).map_err(Step::Write.at(&self.path))
    }

    /// Sets the mode.
    ///
    /// # Errors
    /// [`Step::Attributes`].
    pub fn set_mode(&self, mode: u32) -> Result<(), PublishError> {
        self.file.set_permissions(Permissions::from_mode(mode)).map_err(Step::Attributes.at(&self.path))
    }

    /// The file itself, for its attributes.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file the target's name, unless the target holds anything but `base`; `false`: it does, and stays.
    ///
    /// The two change places in one step, and what came out is looked at: so nobody's rename is lost, however late it came.
    /// Only who has the old file open and writes to it later still is not seen. Where the file system cannot do that, the
    /// target is looked at just before.
    ///
    /// # Errors
    /// [`Step::Sync`], [`Step::Replace`]: the target is as it was. [`Step::SyncDirectory`]: it is replaced.
    /// [`PublishError::Changing`]: others replace it again and again; theirs stands, or ours.
    pub fn replace_target(self, base: Option<&[u8]>) -> Result<bool, PublishError> {
        self.file.sync_all().map_err(Step::Sync.at(&self.path))?;
        let failed = Step::Replace.at(&self.target);
        match base {
            None => self.rename(RenameFlags::empty()).map_err(failed)?,
            Some(base) => match self.rename(RenameFlags::EXCHANGE) {
                Ok(()) if says(&self.path, base) => {}
                Ok(()) => return self.put_back().map(|()| false),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match self.rename(RenameFlags::NOREPLACE) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
                        renamed => renamed.map_err(failed)?,
                    }
                }
                Err(error) if cannot_exchange(&error) => {
                    if self.target.exists() && !says(&self.target, base) {
                        return Ok(false);
                    }
                    self.rename(RenameFlags::empty()).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            },
        }
        let synced = File::open(directory_of(&self.target)).and_then(|directory| directory.sync_all());
        match synced {
            // Where directories cannot be synced there is nothing to wait for.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(true),
            synced => synced.map(|()| true).map_err(Step::SyncDirectory.at(&self.target)),
        }
    }

    fn rename(&self, flags: RenameFlags) -> io::Result<()> {
        Ok(renameat_with(CWD, &self.path, CWD, &self.target, flags)?)
    }

    /// What came out is somebody else's: it goes back, and if yet another came meanwhile, that one stays.
    fn put_back(&self) -> Result<(), PublishError> {
        let identity = |path: &Path| fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()));
        let failed = || Step::Replace.at(&self.target);
        let mut expected = self.file.metadata().map(|own| (own.dev(), own.ino())).map_err(failed())?;
        for _ in 0..EXCHANGES {
            let going_in = identity(&self.path).map_err(failed())?;
            match self.rename(RenameFlags::EXCHANGE) {
                // The target was removed meanwhile: it stays removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                exchanged => exchanged.map_err(failed())?,
            }
            if identity(&self.path).map_err(failed())? == expected {
                return Ok(());
            }
            expected = going_in;
        }
        Err(PublishError::Changing(self.target.clone()))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Still locked: nobody else of us can have put a file there. What cannot be removed is removed next time.
        drop(fs::remove_file(&self.path));
    }
}

impl Lock {
    fn take(target: &Path) -> Result<Self, PublishError> {
        let path = path_beside(target, LOCK)?;
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
            // Whoever held the lock before us has removed the file: what we locked is not beside any more.
            let found = fs::symlink_metadata(&path);
            if found.is_ok_and(|found| (found.dev(), found.ino()) == (locked.dev(), locked.ino())) {
                return Ok(Self { path, _held: file });
            }
        }
        Err(PublishError::Busy(path))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

/// `.NAMEending` in the target's directory.
pub(super) fn path_beside(target: &Path, ending: &str) -> Result<PathBuf, PublishError> {
    let name = target.file_name().ok_or_else(|| PublishError::NotAFile(target.to_owned()))?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(ending);
    Ok(target.with_file_name(beside))
}

/// Whether it is the file system, or the kernel, that does not know how two files change places.
fn cannot_exchange(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

pub(super) const LOCK: &str = ".localdns";
pub(super) const NEW: &str = ".localdns.new";
/// 2 s in all.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);
/// How often others may replace the target while theirs is put back.
const EXCHANGES: usize = 10;
