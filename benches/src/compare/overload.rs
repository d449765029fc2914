//! Overload: a server held to a share of a core is offered three times what it carries, then left in peace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::measure::{Bench, Round};
use super::servers::Server;
use super::work::Work;
use load::flood::Pace;

/// What one server showed.
#[derive(Clone, Debug)]
pub struct Overload {
    /// Flooded in a closed loop: what it carries.
    pub peak: Round,
    /// Offered [`TIMES`] that rate.
    pub under: Round,
    /// Offered half of it again, from one second after on.
    pub after: Round,
}

impl Overload {
    /// All three, in the order of time.
    pub fn rounds(&self) -> [&Round; 3] {
        [&self.peak, &self.under, &self.after]
    }

    /// Rate under overload as a share of the peak.
    pub fn kept(&self) -> f64 {
        self.under.rate() / self.peak.rate().max(1.0)
    }
}

/// Runs the three loads, one after the other, on one server. `percent`: of one core.
///
/// # Errors
/// When there is no cpu controller to hold it with, or the server fails.
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
    // The warm-up of this one is the second within which all must be normal again.
    let after = bench.load(&mut started, work, offer(0.5)).context("after overload")?;
    Ok(Overload { peak, under, after })
}

/// Where control groups are mounted, beside the directory of the comparison; it is left empty.
pub(super) fn mount_at(dir: &Path) -> PathBuf {
    dir.with_extension("cgroup")
}

/// A control group that may use a share of a core. It goes when it is dropped, after its processes.
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
        // The namespace of the network has a /sys of its own, without control groups; mounts here are private to it.
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

/// How much more is offered than is carried.
pub const TIMES: f64 = 3.0;
const OVERLOAD: Duration = Duration::from_secs(30);
/// All three loads with their warm-ups and their patience, about.
pub(super) const TAKES: Duration = Duration::from_secs(40);
/// What stub resolvers wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of the scheduler's quota: its default, 100 ms, would have a server stand still for 70 of them.
const PERIOD_US: u64 = 10_000;
