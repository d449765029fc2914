//! A control group of a test's own: what a server may use of memory or of a core, enforced by the kernel.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::eventually;

/// A control group, of version 1 or 2 as the machine has it; it is removed with its value, so it must outlive what runs in it.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    unified: bool,
}

impl Cgroup {
    /// A group whose processes may hold so many octets together, page cache included.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn memory(limit: u64) -> Result<Self, String> {
        let group = Self::new("memory")?;
        group
            .write(if group.unified { "memory.max" } else { "memory.limit_in_bytes" }, &limit.to_string())?;
        Ok(group)
    }

    /// A group whose processes may use so many hundredths of one core together, at least 5, and have them whoever else wants the core.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn cpu(percent: u32) -> Result<Self, String> {
        let group = Self::new("cpu")?;
        // Short periods: a server that has used up its share stands still for milliseconds. The least quota is 1 ms.
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

    /// The file that a process writes `0` into to enter.
    pub fn door(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// The most octets that the group has held at a time; `None` where the kernel does not tell.
    pub fn peak(&self) -> Option<u64> {
        let file = if self.unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        fs::read_to_string(self.directory.join(file)).ok()?.trim().parse().ok()
    }

    /// How many processes the kernel has killed because the group was full.
    ///
    /// # Panics
    /// When the group is gone.
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
            // Refused where it is on already and we are not alone: the files below tell.
            drop(fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}")));
        }
        // Tests in process trees of their own have the same ids, and one that was killed leaves its group behind.
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
        // A killed process leaves its group a moment after it was waited for.
        eventually("the end of the control group", Duration::from_secs(5), || {
            fs::remove_dir(&self.directory).ok()
        });
    }
}

/// Where the groups of a controller are made, and whether that is version 2.
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
