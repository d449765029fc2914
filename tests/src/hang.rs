//! A file system whose server is there and never answers, as one across a network that went away.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// As long as it lives, everything below its directory hangs. Who hangs there gets an error when it ends.
#[derive(Debug)]
pub struct Hang {
    directory: PathBuf,
    /// Where questions would be read and answered.
    server: Option<OwnedFd>,
}

impl Hang {
    /// Hides what is in the directory; `None` where this machine has no FUSE, or none for us. Only within
    /// [`isolated`](crate::isolated()), whose mounts are its own.
    ///
    /// # Panics
    /// When there is no such directory.
    pub fn over(directory: &Path) -> Option<Self> {
        let server: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?.into();
        let mut mount = Command::new("mount");
        // The kernel is shown the file as the program's standard input.
        mount.stdin(Stdio::from(server.try_clone().expect("a descriptor can be doubled")));
        mount.args(["-i", "-t", "fuse", "-o", "fd=0,rootmode=40000,user_id=0,group_id=0", "hang"]);
        let mounted =
            mount.arg(directory).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        mounted.then(|| Self { directory: directory.to_owned(), server: Some(server) })
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        // With its server a file system is gone, and who waits for it is told so. Some may still be on their way.
        self.server = None;
        drop(Command::new("umount").arg("-l").arg(&self.directory).status());
    }
}
