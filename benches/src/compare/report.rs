//! The report: a table and all figures. Pure, except for facts about the host.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::measure::{Round, SLICE};
use super::overload::{Overload, TIMES};
use super::servers::{Kind, Server};
use super::spread::Spread;
use super::work::{WORKERS, WORKERS_HOT, Work};

/// A whole comparison.
#[derive(Clone, Debug)]
pub struct Run {
    /// The day of the comparison.
    pub date: String,
    /// Processor, cores and kernel.
    pub host: String,
    /// The commit of the repository.
    pub commit: String,
    /// The words of the command line.
    pub command: Vec<String>,
    /// The window of a round.
    pub window: Duration,
    /// Rounds of each server in each row.
    pub rounds: u32,
    /// Rounds of each server at each fixed rate.
    pub fixed_rounds: u32,
    /// The share of the cores that other processes may use in a round that counts.
    pub quiet: f64,
    /// Queries a second that fixed rates are fractions of, if not CoreDNS's best.
    pub reference: Option<u64>,
    /// The rows.
    pub works: Vec<Work>,
    /// The servers found.
    pub servers: Vec<Server>,
    /// The result of each round.
    pub samples: Vec<Sample>,
    /// The servers that could not do a row.
    pub failures: Vec<Failure>,
    /// Rate and latency at offered rates.
    pub points: Vec<Point>,
    /// Results under overload, one for each server.
    pub overloads: Vec<(Kind, Overload)>,
}

/// One round with its row and server.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The row.
    pub work: &'static str,
    /// The server.
    pub server: Kind,
    /// The fixed rate; `None` for a closed loop.
    pub offered: Option<Offered>,
    /// Number of the round, from 0.
    pub number: u32,
    /// Whether other processes were busy. The round then counts only if no round was quiet.
    pub disturbed: bool,
    /// The result of the round.
    pub round: Round,
}

/// A fixed rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offered {
    /// The share of the reference rate.
    pub fraction: f64,
    /// Queries a second.
    pub rate: u64,
}

/// A server that could not do a row.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The row.
    pub work: &'static str,
    /// The server.
    pub server: Kind,
    /// The error.
    pub why: String,
}

/// Rate and latency of one server at one offered rate.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The server.
    pub server: Kind,
    /// Queries a second offered.
    pub offered: u64,
    /// Replies a second.
    pub rate: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// The 99th percentile of the latency in microseconds.
    pub p99_us: f64,
}

/// Returns the report as Markdown.
pub fn markdown(run: &Run) -> String {
    let mut text = format!("# Comparison of {}\n\n", run.date);
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        writeln!(text, "{arguments}").expect("a string takes what is written");
    };
    line(format_args!("- Host: {}", run.host));
    line(format_args!("- Commit: {}; command: `benches {}`", run.commit, run.command.join(" ")));
    for server in &run.servers {
        line(format_args!("- {}: {}", server.kind.name(), server.version));
    }
    line(format_args!(
        "- Rounds: {} of {} s after 1 s of warm-up, the servers started anew for each, all at once, and flooded in turns, {} ms at a time, so that ratios are of the \
         same seconds; at each fixed rate {}, of one server at a time. Medians with smallest and largest.",
        run.rounds,
        run.window.as_secs(),
        SLICE.as_millis(),
        run.fixed_rounds
    ));
    line(format_args!(
        "- Server on one core, load (4 sockets with 64 outstanding each) on another; upstream and reader of log lines share the load's core. Servers listen on \
         two addresses of a network namespace of their own. With `log`, lines go through a pipe to a reader that counts them."
    ));
    line(format_args!(
        "- A round, or a cycle of the servers' turns in it, counts when other processes used less than {} % of all cores; `*`: none was so quiet, and all are shown.",
        run.quiet * 100.0
    ));
    line(format_args!(
        "- Latency at a fixed rate counts from when each query was due. CPU is the server's processor time for each reply, and in brackets what of it was spent \
         outside the kernel, as the kernel samples it. Lost, duplicate and wrong replies: sums over all rounds of the flood.\n"
    ));
    let reference = run.reference.map_or_else(|| "CoreDNS's rate".to_owned(), |rate| format!("{rate} q/s"));
    line(format_args!(
        "| work | server | k q/s | of echo | x CoreDNS | CPU us/q (user) | flood p50 / p99 / p99.9 / max us | at 0.5 of {reference}: p50 / p99 / p99.9 us | at 0.9: p50 / p99 / p99.9 us \
         | lost / dup. / wrong | RSS MiB | start ms | lines/q |"
    ));
    line(format_args!("|---|---|---|---|---|---|---|---|---|---|---|---|---|"));
    for work in &run.works {
        for server in &run.servers {
            if let Some(row) = row(run, work, server.kind) {
                line(format_args!("{row}"));
            }
        }
    }
    let hot: Vec<_> =
        run.servers.iter().filter_map(|server| Some((server, hot(run, server.kind)?))).collect();
    if !hot.is_empty() {
        line(format_args!("\n## One hot name\n"));
        line(format_args!(
            "A worker on every core, the load on the same cores, the two works in turns: each server with one name beside itself with 10,000. \
             Its rate, and the queries that a second of its processor time answers: medians of the rounds' ratios, with smallest and largest.\n"
        ));
        line(format_args!("| server | rate | queries for its processor time |\n|---|---|---|"));
        for (server, ([rate, cpu], disturbed)) in &hot {
            let mark = if *disturbed { "*" } else { "" };
            let [rate, cpu] = [rate, cpu].map(|spread| spread.show(1.0, 2));
            line(format_args!("| {} | {rate}{mark} | {cpu}{mark} |", server.kind.name()));
        }
    }
    if !run.overloads.is_empty() {
        line(format_args!("\n## Overload\n"));
        line(format_args!(
            "Hosts hits, the server held to 30 % of a core by a control group and offered {TIMES} times what it carries for 30 s; `after`: half of it, from one second later on.\n"
        ));
        line(format_args!(
            "| server | carries k q/s | answered of that | RSS MiB before / under / after | after: lost | after: p50 / p99 / p99.9 us |\n|---|---|---|---|---|---|"
        ));
        for (kind, seen) in &run.overloads {
            let Overload { peak, under, after } = seen;
            let [before, during, later] = [peak, under, after].map(|round| round.resident_kb as f64 / 1024.0);
            let [p50, p99, p999, _] = after.counts.latency_us();
            let disturbed = seen.rounds().iter().any(|round| round.usage.others >= run.quiet);
            line(format_args!(
                "| {}{} | {:.1} | {:.2} | {before:.1} / {during:.1} / {later:.1} | {} | {p50:.0} / {p99:.0} / {p999:.0} |",
                kind.name(),
                if disturbed { "*" } else { "" },
                peak.rate() / 1e3,
                seen.kept(),
                after.counts.lost,
            ));
        }
    }
    if !run.failures.is_empty() {
        line(format_args!("\n## Not measured\n"));
        for failure in &run.failures {
            let why: String =
                failure.why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WHY_CHARS).collect();
            line(format_args!("- {} in `{}`: {why}", failure.server.name(), failure.work));
        }
    }
    text
}

/// Returns all figures as JSON.
pub fn json(run: &Run) -> Value {
    let sample = |sample: &Sample| {
        let round = &sample.round;
        let mut value = round.counts.to_json(round.window);
        let more = json!({
            "work": sample.work,
            "server": sample.server.name(),
            "round": sample.number,
            "disturbed": sample.disturbed,
            "others_share": round.usage.others,
            "server_cpu_seconds": round.usage.server.as_secs_f64(),
            "cpu_us_per_query": round.cpu_us(),
            "user_us_per_query": round.user_us(),
            "resident_kb": round.resident_kb,
            "start_ms": round.start.as_secs_f64() * 1e3,
            "log_lines": round.lines,
            "offered": sample.offered.map(|offered| json!({ "rate": offered.rate, "fraction": offered.fraction })),
        });
        if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
            value.extend(more);
        }
        value
    };
    let point = |point: &Point| {
        json!({
            "server": point.server.name(),
            "offered": point.offered,
            "rate": point.rate,
            "p50_us": point.p50_us,
            "p99_us": point.p99_us,
        })
    };
    json!({
        "date": run.date,
        "host": run.host,
        "commit": run.commit,
        "command": run.command,
        "rounds": run.rounds,
        "fixed_rounds": run.fixed_rounds,
        "reference": run.reference,
        "seconds": run.window.as_secs_f64(),
        "quiet_share": run.quiet,
        "servers": run.servers.iter().map(|server| json!({ "name": server.kind.name(), "version": server.version })).collect::<Vec<_>>(),
        "samples": run.samples.iter().map(sample).collect::<Vec<_>>(),
        "overloads": run.overloads.iter().map(|(server, seen)| {
            let load = |round: &Round| json!({ "load": round.counts.to_json(round.window), "resident_kb": round.resident_kb });
            json!({
                "server": server.name(), "kept": seen.kept(),
                "peak": load(&seen.peak), "under": load(&seen.under), "after": load(&seen.after),
            })
        }).collect::<Vec<_>>(),
        "points": run.points.iter().map(point).collect::<Vec<_>>(),
        "failures": run.failures.iter().map(|failure| json!({ "work": failure.work, "server": failure.server.name(), "why": failure.why })).collect::<Vec<_>>(),
    })
}

fn row(run: &Run, work: &Work, server: Kind) -> Option<String> {
    let (flood, disturbed) = samples(run, work.name, server, None);
    let spread = |of: fn(&Round) -> f64| Spread::of(flood.iter().map(|sample| of(&sample.round)));
    let rate = spread(Round::rate)?;
    let mark = if disturbed { "*" } else { "" };
    let beside = |other: Kind| {
        let (others, _) = samples(run, work.name, other, None);
        let ratios = flood.iter().filter_map(|sample| {
            let other = others.iter().find(|other| other.number == sample.number)?;
            Some(sample.round.rate() / other.round.rate())
        });
        Spread::of(ratios).map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}", ratio.median))
    };
    let median = |of: fn(&Round) -> f64, digits: usize| {
        spread(of).map_or_else(|| "-".to_owned(), |spread| format!("{:.digits$}", spread.median))
    };
    let latency = |samples: &[&Sample], columns: usize| {
        let column =
            |at: usize| Spread::of(samples.iter().map(|sample| sample.round.counts.latency_us()[at]));
        let columns: Option<Vec<_>> = (0..columns).map(column).collect();
        let shown = columns
            .map(|all| all.iter().map(|one| format!("{:.0}", one.median)).collect::<Vec<_>>().join(" / "));
        shown.filter(|_| !samples.is_empty()).unwrap_or_else(|| "-".to_owned())
    };
    let at = |fraction: f64| {
        let (offered, disturbed) = samples(run, work.name, server, Some(fraction));
        latency(&offered, 3) + if disturbed { "*" } else { "" }
    };
    let sum = |of: fn(&Round) -> u64| flood.iter().map(|sample| of(&sample.round)).sum::<u64>();
    let lines = if work.log {
        median(|round| round.lines as f64 / round.counts.replies.max(1) as f64, 2)
    } else {
        "-".into()
    };
    Some(format!(
        "| {} | {} | {}{mark} | {} | {} | {} ({}) | {} | {} | {} | {} / {} / {} | {} | {} | {lines} |",
        work.title,
        server.name(),
        rate.show(1e3, 1),
        beside(Kind::Echo),
        beside(Kind::Coredns),
        median(Round::cpu_us, 2),
        median(Round::user_us, 2),
        latency(&flood, 4),
        at(0.5),
        at(0.9),
        sum(|round| round.counts.lost),
        sum(|round| round.counts.duplicates),
        sum(|round| round.counts.wrong()),
        median(|round| round.resident_kb as f64 / 1024.0, 1),
        median(|round| round.start.as_secs_f64() * 1e3, 1),
    ))
}

/// Returns the ratios of the row with one name to the row with many names, round by round: of the
/// rates, and of the queries for the same processor time. True if one of the rows has no quiet
/// round.
fn hot(run: &Run, server: Kind) -> Option<([Spread; 2], bool)> {
    let [(one, one_disturbed), (many, many_disturbed)] =
        [WORKERS_HOT, WORKERS].map(|work| samples(run, work, server, None));
    let pairs: Vec<_> = one
        .iter()
        .filter_map(|one| Some((&one.round, &many.iter().find(|many| many.number == one.number)?.round)))
        .collect();
    let rate = Spread::of(pairs.iter().map(|(one, many)| one.rate() / many.rate()))?;
    let cpu = Spread::of(pairs.iter().map(|(one, many)| many.cpu_us() / one.cpu_us()))?;
    Some(([rate, cpu], one_disturbed || many_disturbed))
}

/// Returns the rounds that count; if none does, all rounds, and true.
fn samples<'r>(run: &'r Run, work: &str, server: Kind, fraction: Option<f64>) -> (Vec<&'r Sample>, bool) {
    let of_row = |sample: &&Sample| {
        sample.work == work
            && sample.server == server
            && sample.offered.map(|offered| offered.fraction) == fraction
    };
    let all: Vec<&Sample> = run.samples.iter().filter(of_row).collect();
    let quiet: Vec<&Sample> = all.iter().filter(|sample| !sample.disturbed).copied().collect();
    if quiet.is_empty() { (all.clone(), !all.is_empty()) } else { (quiet, false) }
}

/// Returns processor, cores and kernel, as one line.
pub fn host() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let text = read("/proc/cpuinfo");
    let model = text.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches([' ', '\t', ':']).trim();
    let cores = read("/proc/stat").lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1);
    format!("{model}, {cores} cores, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}

/// Returns the commit that is checked out, with `+` if files differ from it; `unknown` outside a
/// repository.
pub fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "unknown".to_owned() };
    let changed = git(&["status", "--porcelain"]).is_some_and(|files| !files.is_empty());
    commit + if changed { "+" } else { "" }
}

/// Maximum length of a failed server's output; the JSON has all of it.
const WHY_CHARS: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::proc::Usage;
    use crate::compare::work;
    use load::counts::{RunCounts, Window};

    fn sample(server: Kind, number: u32, rate: u64, fraction: Option<f64>, disturbed: bool) -> Sample {
        let mut counts = RunCounts { replies: rate, answered: rate, lost: 1, ..RunCounts::default() };
        counts.latency.record(100_000);
        let round = Round {
            counts,
            window: Window { from_ns: 0, until_ns: 1_000_000_000 },
            usage: Usage {
                server: Duration::from_millis(500),
                server_user: Duration::from_millis(100),
                others: 0.0,
            },
            start: Duration::from_millis(7),
            resident_kb: 2048,
            lines: 0,
        };
        let offered = fraction.map(|fraction| Offered { fraction, rate });
        Sample { work: "hosts", server, offered, number, disturbed, round }
    }

    fn run(samples: Vec<Sample>) -> Run {
        let server = |kind| Server { kind, program: "/x".into(), version: "1".into() };
        Run {
            date: "2026-01-31".into(),
            host: "a host".into(),
            commit: "abc".into(),
            command: vec!["compare".into()],
            window: Duration::from_secs(1),
            rounds: 3,
            fixed_rounds: 2,
            quiet: 0.02,
            reference: None,
            works: work::all(),
            servers: [Kind::Echo, Kind::Localdns, Kind::Coredns].map(server).into(),
            samples,
            failures: vec![Failure { work: "hosts", server: Kind::Coredns, why: "it\nended".into() }],
            points: vec![],
            overloads: vec![],
        }
    }

    #[test]
    fn a_row_holds_medians_of_the_rounds_that_count_and_ratios_round_by_round() {
        let run = run(vec![
            sample(Kind::Echo, 0, 500_000, None, false),
            sample(Kind::Echo, 1, 250_000, None, false),
            sample(Kind::Localdns, 0, 400_000, None, false),
            sample(Kind::Localdns, 1, 200_000, None, false),
            sample(Kind::Localdns, 2, 1_000, None, true),
            sample(Kind::Localdns, 0, 10_000, Some(0.5), true),
        ]);
        let text = markdown(&run);
        let row = text.lines().find(|line| line.contains("| localdns |")).expect("a row");
        assert_eq!(
            row,
            "| hosts hit, 10,000 names | localdns | 300.0 (200.0-400.0) | 0.80 | - | 1.88 (0.38) | 100 / 100 / 100 / 100 | 100 / 100 / 100* | - | 2 / 0 / 0 | 2.0 | 7.0 | - |"
        );
        assert!(text.contains("- coredns in `hosts`: it ended"));
        assert!(!text.contains("| coredns |"), "nothing was measured");
    }

    #[test]
    fn one_hot_name_stands_beside_many_names_of_the_same_round() {
        let of = |work, number, rate, disturbed| Sample {
            work,
            ..sample(Kind::Localdns, number, rate, None, disturbed)
        };
        let run = run(vec![
            of(WORKERS, 0, 400_000, false),
            of(WORKERS_HOT, 0, 300_000, false),
            of(WORKERS, 1, 200_000, false),
            of(WORKERS_HOT, 1, 200_000, false),
            of(WORKERS, 2, 100_000, true),
            of(WORKERS_HOT, 2, 100, false),
            Sample { server: Kind::Coredns, ..of(WORKERS, 0, 100, false) },
            Sample { server: Kind::Coredns, ..of(WORKERS_HOT, 0, 50, true) },
        ]);
        let text = markdown(&run);
        assert!(text.contains("\n| localdns | 0.88 (0.75-1.00) | 0.88 (0.75-1.00) |\n"), "{text}");
        assert!(text.contains("\n| coredns | 0.50 (0.50-0.50)* | 0.50 (0.50-0.50)* |\n"), "{text}");
    }

    /// A row without a quiet round is marked as disturbed.
    #[test]
    fn row_marks_disturbed_rounds() {
        let text = markdown(&run(vec![sample(Kind::Echo, 0, 1_000, None, true)]));
        assert!(text.contains("| echo | 1.0 (1.0-1.0)* |"), "{text}");
    }

    #[test]
    fn json_holds_every_round() {
        let value = json(&run(vec![sample(Kind::Echo, 3, 1_000, Some(0.5), true)]));
        let sample = &value["samples"][0];
        for (key, expected) in [
            ("server", json!("echo")),
            ("round", json!(3)),
            ("rate", json!(1000.0)),
            ("lost", json!(1)),
            ("disturbed", json!(true)),
            ("cpu_us_per_query", json!(500.0)),
            ("user_us_per_query", json!(100.0)),
            ("offered", json!({ "rate": 1000, "fraction": 0.5 })),
        ] {
            assert_eq!(sample[key], expected, "{key}");
        }
    }
}
