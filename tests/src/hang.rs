//! A file system that never replies, like a network file system after the network has failed.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// While this value lives, every access below its directory hangs; dropping it makes them fail.
#[derive(Debug)]
pub struct Hang {
    directory: PathBuf,
    /// The FUSE device, which is never read.
    server: Option<OwnedFd>,
}

impl Hang {
    /// Mounts over `directory`, which hides its content; `None` where FUSE is missing or not
    /// permitted. For use within [`isolated`](crate::isolated()) alone: its mounts are private.
    ///
    /// # Panics
    /// When `directory` does not exist.
    pub fn over(directory: &Path) -> Option<Self> {
        let server: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?.into();
        let mut mount = Command::new("mount");
        // The mount command passes the device as its standard input.
        mount.stdin(Stdio::from(server.try_clone().expect("a descriptor can be doubled")));
        mount.args(["-i", "-t", "fuse", "-o", "fd=0,rootmode=40000,user_id=0,group_id=0", "hang"]);
        let mounted =
            mount.arg(directory).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        mounted.then(|| Self { directory: directory.to_owned(), server: Some(server) })
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        // Closing the device aborts the file system, and waiting processes get an error. Some may
        // still be about to wait.
        self.server = None;
        drop(Command::new("umount").arg("-l").arg(&self.directory).status());
    }
}
