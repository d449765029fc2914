//! Metrics of this process from /proc: the `process_*` metrics of Go's client library.

use std::fs;

use metrics::{Families, Metric, MetricSource, names};

/// Reads `/proc` at every scrape; what cannot be read is left out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Process;

impl Process {
    /// Resident memory in bytes, and CPU time in seconds, as far as `/proc` has them.
    pub fn memory_and_cpu() -> [Option<f64>; 2] {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpu = Stat::read(&read("/proc/self/stat")).map(|stat| stat.cpu);
        [kilobytes(&read("/proc/self/status"), "VmRSS:"), cpu]
    }
}

impl MetricSource for Process {
    fn collect(&self, into: &mut Families) {
        let mut gauge = |metric: Metric, value: Option<f64>| {
            if let Some(value) = value {
                into.gauge(metric, &[], value);
            }
        };
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let stat = Stat::read(&read("/proc/self/stat"));
        let status = read("/proc/self/status");
        let limits = read("/proc/self/limits");
        gauge(names::PROCESS_RESIDENT_MEMORY, kilobytes(&status, "VmRSS:"));
        gauge(names::PROCESS_VIRTUAL_MEMORY, kilobytes(&status, "VmSize:"));
        gauge(names::PROCESS_VIRTUAL_MEMORY_MAX, limit(&limits, "Max address space"));
        gauge(names::PROCESS_MAX_FDS, limit(&limits, "Max open files"));
        // The directory's own descriptor is among them.
        let open = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1) as f64);
        gauge(names::PROCESS_OPEN_FDS, open);
        let started =
            stat.as_ref().zip(boot_time(&read("/proc/stat"))).map(|(stat, boot)| boot + stat.started);
        gauge(names::PROCESS_START_TIME, started);
        if let Some(stat) = &stat {
            into.counter(names::PROCESS_CPU_SECONDS, &[], stat.cpu);
        }
        if let Some([received, sent]) = octets(&read("/proc/self/net/netstat")) {
            into.counter(names::PROCESS_NETWORK_RECEIVED, &[], received);
            into.counter(names::PROCESS_NETWORK_SENT, &[], sent);
        }
    }
}

/// Times of `/proc/self/stat` in seconds (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stat {
    /// CPU time in user and kernel mode.
    cpu: f64,
    /// Start time since the machine's boot.
    started: f64,
}

impl Stat {
    fn read(text: &str) -> Option<Self> {
        // The second field is the program's name in parentheses and may hold anything, parentheses too.
        let (_, fields) = text.rsplit_once(')')?;
        let field =
            |number: usize| -> Option<f64> { fields.split_whitespace().nth(number - 3)?.parse().ok() };
        Some(Self { cpu: (field(14)? + field(15)?) / TICKS, started: field(22)? / TICKS })
    }
}

/// The value of `key` in `/proc/self/status`, in bytes.
fn kilobytes(status: &str, key: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let number: f64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(number * 1024.0)
}

/// The soft limit of this name in `/proc/self/limits`; "unlimited" is the largest number, as in Go.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX as f64),
        number => number.parse().ok(),
    }
}

/// The machine's boot time in seconds since 1970.
fn boot_time(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// InOctets and OutOctets of `/proc/self/net/netstat`: a line of names, then one of numbers.
fn octets(netstat: &str) -> Option<[f64; 2]> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (keys, values) = (lines.next()?, lines.next()?);
    let find = |wanted: &str| -> Option<f64> {
        let at = keys.split_whitespace().position(|key| key == wanted)?;
        values.split_whitespace().nth(at)?.parse().ok()
    };
    Some([find("InOctets")?, find("OutOctets")?])
}

/// Clock ticks per second in /proc: USER_HZ, 100 on every architecture (proc(5)).
const TICKS: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_odd_program_names() {
        let fields = "S 1 2 2 0 -1 4194560 5 0 0 0 250 150 0 0 20 0 3 0 123456 1000 50 0";
        for name in ["localdns", "a) b (c", ") S 1"] {
            let stat = Stat::read(&format!("7 ({name}) {fields}\n")).unwrap();
            assert_eq!(stat, Stat { cpu: 4.0, started: 1234.56 }, "{name}");
        }
        for bad in ["", "7 (x) S 1 2", "7 x S", "7 (x) S a b c d e f g h i j k l m n o p q r s t"] {
            assert_eq!(Stat::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn proc_files() {
        assert_eq!(kilobytes("VmPeak:\t 9 kB\nVmRSS:\t  1234 kB\n", "VmRSS:"), Some(1_263_616.0));
        assert_eq!(kilobytes("VmRSS: many kB\n", "VmRSS:"), None);
        let limits = "Limit    Soft Limit  Hard Limit  Units\nMax open files   1024   4096   files\n\
                      Max address space   unlimited   unlimited   bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(limit(limits, "Max address space"), Some(18_446_744_073_709_551_615.0));
        assert_eq!(limit(limits, "Max nothing"), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000.0));
        let netstat = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 5 6\n";
        assert_eq!(octets(netstat), Some([5.0, 6.0]));
        assert_eq!(octets("IpExt: InOctets\n"), None);
    }

    #[test]
    fn samples_of_this_process() {
        let mut families = Families::default();
        Process.collect(&mut families);
        let printed = format!("{families:?}");
        for metric in [
            names::PROCESS_CPU_SECONDS,
            names::PROCESS_OPEN_FDS,
            names::PROCESS_MAX_FDS,
            names::PROCESS_VIRTUAL_MEMORY,
            names::PROCESS_VIRTUAL_MEMORY_MAX,
            names::PROCESS_RESIDENT_MEMORY,
            names::PROCESS_START_TIME,
        ] {
            assert!(printed.contains(metric.name), "{}", metric.name);
        }
    }
}
