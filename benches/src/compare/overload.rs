//! Overload: a server limited to a share of a core is offered three times its maximum rate, then
//! half of that maximum.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::measure::{Bench, Round};
use super::servers::Server;
use super::work::Work;
use load::flood::Pace;

/// Results of one server.
#[derive(Clone, Debug)]
pub struct Overload {
    /// The load in a closed loop, which measures the maximum rate.
    pub peak: Round,
    /// The load at [`TIMES`] the peak rate.
    pub under: Round,
    /// The load at half the peak rate, counted from one second after the overload.
    pub after: Round,
}

impl Overload {
    /// Returns all three, in order of time.
    pub fn rounds(&self) -> [&Round; 3] {
        [&self.peak, &self.under, &self.after]
    }

    /// Returns the rate under overload as a share of the peak rate.
    pub fn kept(&self) -> f64 {
        self.under.rate() / self.peak.rate().max(1.0)
    }
}

/// Runs the three loads on one server, limited to `percent` of one core.
///
/// # Errors
/// When there is no cpu controller, or the server fails.
pub fn overload(bench: &Bench, server: &Server, work: &Work, percent: u32, seed: u64) -> Result<Overload> {
    let group = Group::make(percent, &mount_at(&bench.dir))?;
    let mut started = bench.start(server, work, 0, seed)?;
    for pid in started.family()? {
        group.take(pid)?;
    }
    let peak = bench.load(&mut started, work, Pace::Closed(super::OUTSTANDING)).context("peak")?;
    let carries = peak.rate();
    let offer = |times: f64| Pace::Open(((carries * times) as u64).max(1));
    let long = Bench { window: OVERLOAD, patience: PATIENCE, ..bench.clone() };
    let under = long.load(&mut started, work, offer(TIMES)).context("overload")?;
    // The warm-up of this load is the second within which the server must have recovered.
    let after = bench.load(&mut started, work, offer(0.5)).context("after overload")?;
    Ok(Overload { peak, under, after })
}

/// Returns the mount point of control groups: an empty directory beside that of the comparison.
pub(super) fn mount_at(dir: &Path) -> PathBuf {
    dir.with_extension("cgroup")
}

/// A control group limited to a share of a core. Drop ends its processes and removes it.
struct Group {
    path: PathBuf,
}

impl Group {
    fn make(percent: u32, mount_at: &Path) -> Result<Self> {
        let quota = PERIOD_US * u64::from(percent) / 100;
        fs::create_dir_all(mount_at).with_context(|| mount_at.display().to_string())?;
        let name = format!("localdns-bench-{}", std::process::id());
        let mount = |kind: &str, options: &[&str]| -> bool {
            let mut command = Command::new("mount");
            command.args(["-t", kind]).args(options).arg("none").arg(mount_at).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        // The network namespace has its own /sys, without control groups; mounts in it are private.
        let controllers = || fs::read_to_string(mount_at.join("cgroup.controllers")).unwrap_or_default();
        if mount("cgroup2", &[]) && controllers().split_whitespace().any(|word| word == "cpu") {
            fs::write(mount_at.join("cgroup.subtree_control"), "+cpu").context("the cpu controller")?;
            let group = Self::at(mount_at.join(name))?;
            group.write("cpu.max", format_args!("{quota} {PERIOD_US}"))?;
            return Ok(group);
        }
        ensure!(mount("cgroup", &["-o", "cpu"]), "a cpu controller (cgroup v1 or v2) is needed");
        let group = Self::at(mount_at.join(name))?;
        group.write("cpu.cfs_period_us", PERIOD_US)?;
        group.write("cpu.cfs_quota_us", quota)?;
        Ok(group)
    }

    fn at(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path })
    }

    fn take(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", pid)
    }

    fn write(&self, file: &str, value: impl std::fmt::Display) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value.to_string()).with_context(|| path.display().to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.path));
    }
}

/// Factor of the offered rate to the maximum rate.
pub const TIMES: f64 = 3.0;
const OVERLOAD: Duration = Duration::from_secs(30);
/// Approximate time of all three loads with their warm-ups and time limits.
pub(super) const TAKES: Duration = Duration::from_secs(40);
/// How long stub resolvers wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Period of the scheduler's quota. With the default of 100 ms, a limited server would stop for 70
/// ms at a time.
const PERIOD_US: u64 = 10_000;
