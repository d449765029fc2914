//! Counts the instructions of a query outside the kernel, which do not depend on the machine's
//! load.
//!
//! The release server, a static binary, runs under callgrind and receives queries on its real
//! sockets: a few in one run and many in another. The difference in instructions divided by the
//! difference in queries is the cost of one query; start, end and the filling of a cache cancel
//! out. Every kind of query has a budget; exceeding it is an error, so that a change that makes
//! queries more expensive is noticed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::compare::config::Place;
use crate::compare::measure::{UPSTREAM, first_answer, listen, prefill, start_upstream};
use crate::compare::process::{Launch, Running};
use crate::compare::servers::{Kind, Server, find};
use crate::compare::stage::Stage;
use crate::compare::work::{QueriesOf, Work, all, cache_alone, services};
use crate::kubernetes::api_and_names;
use load::clock::Clock;
use load::flood::{self, FloodPlan, Pace};
use load::workload::{Ask, Kind::File, Workload};

/// What is counted.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Kinds of queries, by name, with commas between them [default: all that have a budget]
    #[arg(long, value_delimiter = ',')]
    works: Vec<String>,
    /// Also count the misses of a cache of this many bytes, with 16 ways and lines of 64 bytes;
    /// budgets limit only instructions
    #[arg(long)]
    cache: Option<u32>,
    /// Keep callgrind's output in this directory, for callgrind_annotate
    #[arg(long)]
    keep: Option<PathBuf>,
    #[command(flatten)]
    stage: Stage,
}

/// Counts, prints a Markdown table, and compares with the budgets.
///
/// # Errors
/// When valgrind or the permission for a namespace is missing, the server fails, or a query costs
/// more than its budget.
pub fn run(options: &Options) -> Result<()> {
    if let Some(dir) = &options.stage.inside {
        return count(options, dir);
    }
    options.stage.enter("instructions", listen(0).iter().map(std::net::SocketAddr::ip))
}

fn count(options: &Options, dir: &Path) -> Result<()> {
    let myself = std::env::current_exe().context("this program's file")?;
    let localdns = options.stage.server(&myself);
    let server = find(&[Kind::Localdns], &localdns, &myself).pop();
    let server = server.with_context(|| format!("{} is not there", localdns.display()))?;
    println!("| query | instructions | budget | misses |\n|---|---|---|---|");
    let mut over = Vec::new();
    for (name, budget) in BUDGETS {
        if !options.works.is_empty() && !options.works.iter().any(|work| work == name) {
            continue;
        }
        let mut works = all().into_iter().chain([cache_alone(), services(dir.join(NAMES))]);
        let work = works.find(|work| work.name == name).context("a row of the comparison")?;
        let (counted, misses) = per_query(&server, &work, &myself, dir, options.cache)?;
        let misses = options.cache.map_or_else(|| "-".to_owned(), |_| format!("{misses:.2}"));
        println!("| {} | {counted} | {budget} | {misses} |", work.title);
        if counted > budget {
            over.push(format!("{name}: {counted} instructions, {budget} allowed"));
        }
        if let Some(keep) = &options.keep {
            fs::create_dir_all(keep).with_context(|| keep.display().to_string())?;
            fs::copy(dir.join(OUT), keep.join(format!("callgrind.{name}.out"))).context("keep")?;
        }
    }
    ensure!(over.is_empty(), "dearer than allowed: {}", over.join("; "));
    Ok(())
}

/// Returns the instructions and cache misses of one query.
fn per_query(
    server: &Server,
    work: &Work,
    myself: &Path,
    dir: &Path,
    cache: Option<u32>,
) -> Result<(u64, f64)> {
    let [few, many] = [FEW, FEW + FURTHER].map(|queries| one_run(server, work, myself, dir, cache, queries));
    let ((few, few_misses), (many, many_misses)) = (few?, many?);
    ensure!(many > few, "{}: more queries did not cost more", work.name);
    Ok(((many - few) / FURTHER, (many_misses as f64 - few_misses as f64) / FURTHER as f64))
}

/// Returns all instructions and cache misses of a server from start to end, with this many queries.
fn one_run(
    server: &Server,
    work: &Work,
    myself: &Path,
    dir: &Path,
    cache: Option<u32>,
    queries: u64,
) -> Result<(u64, u64)> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let api = match work.source {
        QueriesOf::Services => {
            let (api, names) = api_and_names();
            fs::write(dir.join(NAMES), names).with_context(|| dir.display().to_string())?;
            Some(api)
        }
        _ => None,
    };
    let mut workload = Workload::new(&work.asks, 1)?;
    let _upstream = match work.source {
        QueriesOf::Upstream(_) => Some(start_upstream(myself, 0)?),
        _ => None,
    };
    let (listen, upstream) = (listen(0), api.as_ref().map_or(UPSTREAM, |api| api.address()));
    let launch = server.launch(work, &Place { dir, listen: &listen, upstream, workers: 1 })?;
    let out = dir.join(OUT);
    let mut valgrind = Launch::new("valgrind").args([
        "--tool=callgrind",
        "--quiet",
        &format!("--callgrind-out-file={}", out.display()),
    ]);
    if let Some(octets) = cache {
        valgrind = valgrind.args(["--cache-sim=yes", &format!("--LL={octets},16,64")]);
    }
    let mut valgrind = valgrind.args([launch.program.display().to_string()]).args(launch.args);
    valgrind.env = launch.env;
    let mut running = Running::start(&valgrind, &[0]).context("valgrind is needed")?;
    first_answer(&mut running, listen[0], &mut workload, Clock::start())?;
    if api.is_some() {
        // NXDOMAIN is answered only once all lists are complete.
        let absent = dir.join("absent");
        fs::write(&absent, "none.ns-0.svc.cluster.local A NXDOMAIN\n").context("absent")?;
        let mut absent = Workload::new(&[Ask { kind: File(absent), weight: 1 }], 1)?;
        first_answer(&mut running, listen[0], &mut absent, Clock::start())?;
    }
    prefill(work, listen, 0)?;
    if api.is_some() {
        // The lists are not counted: their chunk sizes depend on time, and they are most of the
        // run's instructions.
        count_from_now(running.pid())?;
    }
    let plan = FloodPlan {
        // One socket with a fixed number of outstanding queries: batches are alike from run to run.
        lanes: 1,
        pace: Pace::Closed(OUTSTANDING),
        warmup: Duration::ZERO,
        window: Duration::from_secs(300),
        patience: Duration::from_secs(30),
        queries_max: queries,
        ..FloodPlan::closed(vec![listen[0]], vec![])
    };
    let (counts, _) = flood::run(&plan, &workload, |_| {})?;
    if let Some(status) = running.ended() {
        anyhow::bail!("{}: it ended with {status} and printed: {}", work.name, running.last_words());
    }
    ensure!(
        counts.lost + counts.wrong() == 0 && counts.replies == queries,
        "{}: {} of {queries} answered, {} lost, {} wrong",
        work.name,
        counts.replies,
        counts.lost,
        counts.wrong()
    );
    // callgrind writes the counts at the end of the process.
    drop(running);
    let text = fs::read_to_string(&out).with_context(|| out.display().to_string())?;
    let instructions = total(&text, "Ir").context("callgrind wrote no total")?;
    let misses = ["ILmr", "DLmr", "DLmw"].iter().filter_map(|event| total(&text, event)).sum();
    Ok((instructions, misses))
}

/// Resets callgrind's counters of a process.
fn count_from_now(process: u32) -> Result<()> {
    let mut control = Command::new("callgrind_control");
    let output = control.args(["--zero", &process.to_string()]).output().context("callgrind_control")?;
    let answer = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && answer.contains("OK"), "callgrind_control: {output:?}");
    Ok(())
}

/// Returns the total of an event in callgrind's output.
fn total(text: &str, event: &str) -> Option<u64> {
    let words = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    let at = words("events: ")?.position(|word| word == event)?;
    words("totals: ")?.nth(at)?.parse().ok()
}

/// Rows of the comparison and the budget of a query in the static binary: a tenth above the count
/// when the row was last made cheaper, since compilers and hash seeds differ a little.
///
/// Before plugins had folders of their own, and blocks lists of steps and sources, the same rows
/// took 1,641 (hosts), 2,277 (cache), 1,431 (nxdomain) and 1,374 (whoami): the budgets are 0.68,
/// 0.70, 0.67 and 0.67 of that.
const BUDGETS: [(&str, u64); 9] = [
    ("hosts", HOSTS),
    // The number of lines does not affect a lookup.
    ("hosts-100k", HOSTS),
    // As in production: a hosts table is looked up first. Since a source may delay its reply, the
    // result of each lookup is dropped by a call, of some 20 instructions: 1,619 in place of 1,573.
    ("cache", 1640),
    ("cache-alone", 1455),
    ("nxdomain", 955),
    ("whoami", 920),
    ("log", 4375),
    ("services", 1405),
    ("miss", 12_340),
];
const HOSTS: u64 = 1110;
const FEW: u64 = 2_000;
const FURTHER: u64 = 100_000;
const OUTSTANDING: usize = 64;
const OUT: &str = "callgrind.out";
/// The file with a workload's lines.
const NAMES: &str = "names";
