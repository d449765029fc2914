//! CPU time and memory of processes, and the load by other processes, from Linux's `/proc`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// The processor time of every process and of the machine at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    machine: Machine,
    processes: HashMap<u32, Process>,
}

/// The machine's totals, in ticks since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Machine {
    cores: u64,
    /// User, nice and system time without interrupts: kernels account an interrupt to the process
    /// that caused it or to none, and here the load causes the interrupts.
    busy: u64,
    /// Time stolen by the hypervisor.
    stolen: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    /// The process's own time, in ticks.
    ticks: u64,
    /// The part of `ticks` that was spent outside the kernel.
    user_ticks: u64,
    /// The time of reaped children.
    reaped_ticks: u64,
    reaped_user_ticks: u64,
}

impl Process {
    fn all_ticks(&self) -> u64 {
        self.ticks + self.reaped_ticks
    }

    fn all_user_ticks(&self) -> u64 {
        self.user_ticks + self.reaped_user_ticks
    }
}

/// CPU usage between two times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Processor time of the server with its children.
    pub server: Duration,
    /// The part of `server` that was spent outside the kernel.
    pub server_user: Duration,
    /// Share of all cores that went to processes outside the comparison, 0 to 1.
    pub others: f64,
}

impl Snapshot {
    /// Reads `/proc`. Processes that end during the read are left out.
    ///
    /// # Errors
    /// When there is no `/proc`.
    pub fn take() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let machine = read_machine(&text).context("/proc/stat reads otherwise")?;
        let mut processes = HashMap::new();
        for entry in fs::read_dir("/proc").context("/proc")?.filter_map(Result::ok) {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            if let Some(process) = read_process(&text) {
                processes.insert(pid, process);
            }
        }
        Ok(Self { machine, processes })
    }

    /// Whether the process exists in the snapshot.
    pub fn knows(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Returns a process and its descendants.
    pub fn tree(&self, root: u32) -> HashSet<u32> {
        let mut tree = HashSet::from([root]);
        loop {
            let more = |(pid, process): (&u32, &Process)| {
                (tree.contains(&process.parent) && !tree.contains(pid)).then_some(*pid)
            };
            let more: Vec<u32> = self.processes.iter().filter_map(more).collect();
            if more.is_empty() {
                return tree;
            }
            tree.extend(more);
        }
    }

    /// Returns the sum of `of` over a process and its descendants.
    fn sum(&self, root: u32, of: fn(&Process) -> u64) -> u64 {
        self.tree(root).iter().filter_map(|pid| self.processes.get(pid)).map(of).sum()
    }

    /// Returns the usage since the snapshot `before`, which was taken `passed` ago: by the process
    /// tree of `server`, and by processes outside the tree of `ours`.
    ///
    /// The usage by other processes is the larger of two measures. The machine's sum without `ours`
    /// includes other containers, but is too low by the interrupts that are accounted to `ours`.
    /// The sum over all other processes and their reaped children misses other containers. Time
    /// stolen by the hypervisor is added.
    pub fn since(&self, before: &Self, passed: Duration, server: u32, ours: u32) -> Usage {
        let grown = |root, of| self.sum(root, of).saturating_sub(before.sum(root, of));
        let busy = self.machine.busy.saturating_sub(before.machine.busy);
        let machine = busy.saturating_sub(grown(ours, Process::all_ticks));
        let ours = self.tree(ours);
        let other = |(pid, process): (&u32, &Process)| {
            let is_other = !ours.contains(pid) && *pid != KTHREADD && process.parent != KTHREADD;
            let then = before.processes.get(pid).map_or(0, Process::all_ticks);
            is_other.then(|| process.all_ticks().saturating_sub(then))
        };
        let processes: u64 = self.processes.iter().filter_map(other).sum();
        let stolen = self.machine.stolen.saturating_sub(before.machine.stolen);
        let all = passed.as_secs_f64() * TICKS_PER_SECOND * self.machine.cores.max(1) as f64;
        Usage {
            server: duration(grown(server, Process::all_ticks)),
            server_user: duration(grown(server, Process::all_user_ticks)),
            others: ((machine.max(processes) + stolen) as f64 / all.max(1.0)).min(1.0),
        }
    }
}

fn duration(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND)
}

/// Returns the resident memory of a process and its descendants, in kB. Shared memory is counted
/// for each process.
pub fn resident_kb(root: u32) -> Result<u64> {
    let of = |pid: u32| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Ok(Snapshot::take()?.tree(root).into_iter().filter_map(of).sum())
}

fn read_machine(text: &str) -> Option<Machine> {
    let mut lines = text.lines();
    let numbers: Vec<u64> =
        lines.next()?.strip_prefix("cpu ")?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let cores = lines.take_while(|line| line.starts_with("cpu")).count() as u64;
    let [user, nice, system, _, _, _, _, stolen, ..] = numbers[..] else { return None };
    Some(Machine { cores, busy: user + nice + system, stolen })
}

fn read_process(text: &str) -> Option<Process> {
    // The program's name is in brackets and may contain anything, brackets too.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        ticks: ticks(11)? + ticks(12)?,
        user_ticks: ticks(11)?,
        reaped_ticks: ticks(13)? + ticks(14)?,
        reaped_user_ticks: ticks(13)?,
    })
}

/// The unit of `/proc` on every Linux (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;
/// The parent of the kernel's threads, which handle the load's interrupts or do housekeeping, and
/// do not count as other processes.
const KTHREADD: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(busy: u64, processes: &[(u32, u32, u64, u64)]) -> Snapshot {
        let processes = processes.iter().map(|&(pid, parent, ticks, reaped_ticks)| {
            let [user_ticks, reaped_user_ticks] = [ticks, reaped_ticks].map(|ticks| ticks / 10);
            (pid, Process { parent, ticks, user_ticks, reaped_ticks, reaped_user_ticks })
        });
        Snapshot { machine: Machine { cores: 2, busy, stolen: 0 }, processes: processes.collect() }
    }

    #[test]
    fn the_kernels_lines_are_read() {
        let text = "cpu  10 20 30 40 50 60 70 80 90 100\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n";
        assert_eq!(read_machine(text), Some(Machine { cores: 2, busy: 60, stolen: 80 }));
        assert_eq!(read_machine("cpu 1 2\n"), None);
        let text = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0";
        assert_eq!(
            read_process(text),
            Some(Process { parent: 7, ticks: 120, user_ticks: 100, reaped_ticks: 7, reaped_user_ticks: 3 })
        );
        assert_eq!(read_process("42 (short) S 7"), None);
        assert_eq!(read_process("garbage"), None);
    }

    #[test]
    fn the_server_is_charged_with_its_children_and_not_with_its_past() {
        let before = snapshot(0, &[(10, 1, 0, 0), (20, 10, 500, 0)]);
        let after = snapshot(160, &[(10, 1, 50, 0), (20, 10, 600, 0), (21, 20, 10, 0)]);
        let usage = after.since(&before, Duration::from_secs(1), 20, 10);
        let [server, server_user] = [1100, 110].map(Duration::from_millis);
        assert_eq!(usage, Usage { server, server_user, others: 0.0 });
    }

    #[test]
    fn children_that_end_meanwhile_are_the_servers_and_no_others() {
        // One child exists before and ends, one starts and ends, one starts and stays.
        let before = snapshot(0, &[(10, 1, 0, 0), (20, 10, 500, 100), (21, 20, 70, 0)]);
        let after = snapshot(300, &[(10, 1, 100, 0), (20, 10, 550, 300), (23, 20, 20, 0)]);
        let usage = after.since(&before, Duration::from_secs(1), 20, 10);
        let [server, server_user] = [2000, 200].map(Duration::from_millis);
        assert_eq!(usage, Usage { server, server_user, others: 0.0 });
    }

    #[test]
    fn others_are_seen_by_whichever_view_sees_them() {
        let ours = (10, 1, 100, 0);
        let zero = snapshot(0, &[(10, 1, 0, 0), (30, 1, 1000, 5)]);
        let rows = [
            // A process in another container: only the machine's sum includes it.
            (snapshot(120, &[ours]), 0.10),
            // Interrupts accounted to the comparison hide other processes from the machine's sum.
            (snapshot(60, &[ours, (30, 1, 1006, 5)]), 0.03),
            // A process that started and ended in between counts in its parent's reaped time.
            (snapshot(60, &[ours, (30, 1, 1000, 15)]), 0.05),
            // The kernel's own threads do not count.
            (snapshot(60, &[ours, (3, 2, 50, 0)]), 0.0),
        ];
        for (after, others) in rows {
            let usage = after.since(&zero, Duration::from_secs(1), 10, 10);
            assert!((usage.others - others).abs() < 1e-9, "{} {others}", usage.others);
        }
    }

    #[test]
    fn this_process_is_found_in_proc() {
        let pid = std::process::id();
        assert!(Snapshot::take().expect("/proc").tree(pid).contains(&pid));
        assert!(resident_kb(pid).expect("/proc") > 100);
    }
}
