//! What systemd is about to do with our unit: a restart sends SIGTERM as a stop does, and only its list of jobs tells them
//! apart.

use std::thread;
use std::time::Duration;
use std::{fs, io};

use crate::program::run;

/// What happens to the unit that this process belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// It is stopped: by `systemctl stop`, `disable --now`, or the machine's own end.
    Stop,
    /// It is stopped to be started again.
    Restart,
    /// Nothing is asked for, or there is no systemd, or it does not say.
    None,
}

impl Job {
    /// Asks systemd, by `systemctl list-jobs`: that knows how to reach it where no bus runs, and is an interface, which
    /// the socket behind it is not. It takes some 10 ms, at an end alone.
    pub fn now() -> Self {
        let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let Some(unit) = unit_of(&group) else { return Self::None };
        let jobs = again(|| run("systemctl", &["list-jobs", "--no-legend", "--plain", "--full"], ""));
        jobs.map_or(Self::None, |jobs| Self::of(&unit, &jobs))
    }

    /// Lines of number, unit, type and state.
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

/// Asks until there is an answer: who asks as the unit ends is in its control group, and may get the SIGTERM that is for all.
fn again<T>(mut ask: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..TRIES {
        match ask() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
            answered => return answered,
        }
    }
    ask()
}

const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// The service whose group this is; a group below it may be its own.
fn unit_of(group: &str) -> Option<String> {
    let path = group.lines().find_map(|line| line.strip_prefix("0::"))?;
    path.rsplit('/').find(|part| part.ends_with(".service")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
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
    fn who_is_killed_while_it_asks_asks_again() {
        for (failures, kind, tries) in [
            (0, io::ErrorKind::Other, 1),
            (2, io::ErrorKind::Other, 3),
            (9, io::ErrorKind::Other, TRIES),
            (9, io::ErrorKind::NotFound, 1),
        ] {
            let mut asked = 0;
            let answered = again(|| {
                asked += 1;
                if asked > failures { Ok(()) } else { Err(kind.into()) }
            });
            assert_eq!((asked, answered.is_ok()), (tries, failures < tries), "{failures} {kind}");
        }
    }

    #[test]
    fn the_unit_is_that_of_the_group() {
        for (group, unit) in [
            ("0::/system.slice/localdns-node.service\n", Some("localdns-node.service")),
            ("1:name=x:/\n0::/localdns.slice/localdns.service/main\n", Some("localdns.service")),
            ("0::/user.slice/session-1.scope\n", None),
            ("", None),
        ] {
            assert_eq!(unit_of(group).as_deref(), unit, "{group}");
        }
    }
}
