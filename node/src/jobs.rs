//! What systemd is about to do with our unit: a restart sends SIGTERM as a stop does, and only its list of jobs tells them
//! apart.

use std::fs;

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
        let jobs = run("systemctl", &["list-jobs", "--no-legend", "--plain", "--full"], "");
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
