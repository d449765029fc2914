//! A control group per test: limits a server's memory or CPU time through the kernel.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::eventually;

/// A control group, of version 1 or 2 as the machine provides; dropping it removes the group, so it
/// must outlive its processes.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    unified: bool,
}

impl Cgroup {
    /// A group that limits the memory of its processes together to `limit` bytes, page cache
    /// included.
    ///
    /// # Errors
    /// Why no group can be made.
    pub fn memory(limit: u64) -> Result<Self, String> {
        let group = Self::new("memory")?;
        group
            .write(if group.unified { "memory.max" } else { "memory.limit_in_bytes" }, &limit.to_string())?;
        Ok(group)
    }

    /// A group that limits its processes together to `percent` percent of one core, at least 5, and
    /// guarantees them that share under contention.
    ///
    /// # Errors
    /// Why no group can be made.
    pub fn cpu(percent: u32) -> Result<Self, String> {
        let group = Self::new("cpu")?;
        // Short periods: a server that has used its quota is throttled for milliseconds only. The
        // smallest quota is 1 ms.
        let (quota, period) = (percent * 200, 20_000);
        if group.unified {
            group.write("cpu.max", &format!("{quota} {period}"))?;
            group.write("cpu.weight", "10000")?;
        } else {
            group.write("cpu.cfs_period_us", &period.to_string())?;
            group.write("cpu.cfs_quota_us", &quota.to_string())?;
            group.write("cpu.shares", "262144")?;
        }
        Ok(group)
    }

    /// The file that a process writes `0` into to join the group.
    pub fn door(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// The group's peak memory in bytes; `None` where the kernel does not report it.
    pub fn peak(&self) -> Option<u64> {
        let file = if self.unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        fs::read_to_string(self.directory.join(file)).ok()?.trim().parse().ok()
    }

    /// The number of processes that the kernel killed because the group reached its limit.
    ///
    /// # Panics
    /// When the group does not exist.
    pub fn killed(&self) -> u64 {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.directory.join(file)).expect("the group is there");
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .and_then(|n| n.trim().parse().ok())
            .unwrap_or_else(|| panic!("no count of kills in {text:?}"))
    }

    fn new(controller: &str) -> Result<Self, String> {
        let (parent, unified) =
            hierarchy(controller).ok_or_else(|| format!("no control groups for {controller}"))?;
        if unified {
            // Fails where it is enabled already and the parent has other processes: the files below
            // show whether it works.
            drop(fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}")));
        }
        // Tests in other process trees have the same process IDs, and a killed test leaves its
        // group behind.
        let make = |number: u32| {
            let directory = parent.join(format!("localdns-test-{number}"));
            match fs::create_dir(&directory) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
                made => Some(made.map(|()| directory)),
            }
        };
        let made = (0..MOST_GROUPS).find_map(make);
        let directory = made
            .unwrap_or_else(|| Err(ErrorKind::AlreadyExists.into()))
            .map_err(|error| format!("a group in {}: {error}", parent.display()))?;
        Ok(Self { directory, unified })
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.directory.join(file);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            drop(fs::remove_dir(&self.directory));
            return;
        }
        // A killed process leaves its group shortly after `wait` returns.
        eventually("the end of the control group", Duration::from_secs(5), || {
            fs::remove_dir(&self.directory).ok()
        });
    }
}

/// The parent directory for the groups of a controller, and whether it is version 2.
fn hierarchy(controller: &str) -> Option<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut unified = None;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (Path::new(words.next()?), words.next()?, words.next()?);
        if kind == "cgroup" && options.split(',').any(|option| option == controller) {
            return Some((path.to_owned(), false));
        }
        let offered = || fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
        if kind == "cgroup2" && offered().split_whitespace().any(|offer| offer == controller) {
            unified = Some((path.to_owned(), true));
        }
    }
    unified
}

const MOST_GROUPS: u32 = 1000;
