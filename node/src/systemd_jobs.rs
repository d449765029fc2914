//! Reads the pending systemd job of our unit: a restart and a stop both send SIGTERM, and only the
//! list of jobs distinguishes them.

use std::ffi::OsStr;
use std::thread;
use std::time::Duration;
use std::{fs, io};

use tokio::time::Instant;

use crate::subprocess::run_within;

/// The job of this process's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// A stop: by `systemctl stop`, `disable --now`, or a shutdown.
    Stop,
    /// A restart.
    Restart,
    /// No job, or systemd does not run or does not answer.
    None,
}

impl Job {
    /// Time limit of [`Job::now`], without the time limit for the program's output: systemd does
    /// not answer during a daemon-reload.
    pub const PATIENCE: Duration = Duration::from_secs(3);

    /// Runs `systemctl list-jobs`, which reaches systemd without a bus and is a stable interface,
    /// unlike the socket behind it. Takes some 10 ms, so call it only at the end of the process.
    /// Returns [`Job::None`] if systemd does not answer.
    pub fn now() -> Self {
        let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let Some(unit) = unit_of(&group) else { return Self::None };
        let ends = Instant::now() + Self::PATIENCE;
        let left = || ends.saturating_duration_since(Instant::now());
        let list = &["list-jobs", "--no-legend", "--plain", "--full"];
        let jobs = again(left, |patience| run_within(OsStr::new("systemctl"), list, "", patience));
        jobs.map_or(Self::None, |jobs| Self::of(&unit, &jobs))
    }

    /// Finds the unit's job in lines of number, unit, type and state.
    fn of(unit: &str, jobs: &str) -> Self {
        let job = jobs.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace().skip_while(|word| word.parse::<u64>().is_err());
            words.next()?;
            (words.next()? == unit).then(|| words.next())?
        });
        match job {
            Some("stop") => Self::Stop,
            Some("restart" | "try-restart") => Self::Restart,
            _ => Self::None,
        }
    }
}

/// Calls `ask` until it succeeds, no time is left, or `TRIES` calls have failed: the program runs
/// in the unit's control group, and may receive the SIGTERM that is sent to the whole group.
fn again<T>(left: impl Fn() -> Duration, mut ask: impl FnMut(Duration) -> io::Result<T>) -> io::Result<T> {
    let mut answered = ask(ONE.min(left()));
    for _ in 1..TRIES {
        match &answered {
            Err(error) if error.kind() != io::ErrorKind::NotFound && left() > PAUSE => thread::sleep(PAUSE),
            _ => break,
        }
        answered = ask(ONE.min(left()));
    }
    answered
}

const TRIES: u32 = 5;
/// Time limit of one call.
const ONE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// Returns the service of this control group, also from a subgroup. With cgroup v1 the hierarchy
/// `name=systemd` contains the service; the entry `0::`, if any, does not.
fn unit_of(group: &str) -> Option<String> {
    let service = |path: &str| path.rsplit('/').find(|part| part.ends_with(".service")).map(str::to_owned);
    ["", "name=systemd"].iter().find_map(|hierarchy| {
        let path = |line: &str| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            (controllers == *hierarchy).then(|| service(path))?
        };
        group.lines().find_map(path)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_units_own_job_counts() {
        let jobs = "1203 localdns-node.service restart running\n 1204 other.service stop waiting\n";
        for (unit, job) in [
            ("localdns-node.service", Job::Restart),
            ("other.service", Job::Stop),
            ("third.service", Job::None),
        ] {
            assert_eq!(Job::of(unit, jobs), job, "{unit}");
        }
        assert_eq!(Job::of("a.service", "7 a.service start waiting\n"), Job::None);
        assert_eq!(Job::of("a.service", "No jobs running.\n"), Job::None);
    }

    #[test]
    fn killed_query_is_repeated() {
        for (failures, kind, tries) in [
            (0, io::ErrorKind::Other, 1),
            (2, io::ErrorKind::Other, 3),
            (9, io::ErrorKind::Other, TRIES),
            (9, io::ErrorKind::NotFound, 1),
        ] {
            let mut asked = 0;
            let answered = again(
                || Job::PATIENCE,
                |_| {
                    asked += 1;
                    if asked > failures { Ok(()) } else { Err(kind.into()) }
                },
            );
            assert_eq!((asked, answered.is_ok()), (tries, failures < tries), "{failures} {kind}");
        }
    }

    #[test]
    fn hanging_systemd_takes_three_seconds() {
        let took = Cell::new(Duration::ZERO);
        let left = || Job::PATIENCE.saturating_sub(took.get());
        let (mut asked, mut longest) = (0, Duration::ZERO);
        let answered = again(left, |patience| {
            asked += 1;
            longest = longest.max(patience);
            took.set(took.get() + patience);
            Err::<(), _>(io::ErrorKind::TimedOut.into())
        });
        assert!(answered.is_err());
        assert_eq!((asked, longest, took.get()), (3, ONE, Job::PATIENCE));
    }

    #[test]
    fn unit_of_control_group() {
        for (group, unit) in [
            ("0::/system.slice/localdns-node.service\n", Some("localdns-node.service")),
            ("1:name=x:/\n0::/localdns.slice/localdns.service/main\n", Some("localdns.service")),
            // cgroup v1, and v1 with a v2 hierarchy mounted beside it.
            (
                "2:cpu,cpuacct:/system.slice\n1:name=systemd:/system.slice/localdns-node.service\n",
                Some("localdns-node.service"),
            ),
            ("1:name=systemd:/system.slice/localdns.service\n0::/\n", Some("localdns.service")),
            ("2:pids:/a.service\n1:name=systemd:/b.service\n0::/c.service\n", Some("c.service")),
            ("2:pids:/a.service\n1:name=x:/b.service\n", None),
            ("0::/user.slice/session-1.scope\n", None),
            ("", None),
        ] {
            assert_eq!(unit_of(group).as_deref(), unit, "{group}");
        }
    }
}
