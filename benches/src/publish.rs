//! Measures the cost of publications to concurrent queries: a hosts file of many lines is replaced,
//! by the server itself and by another program, during an open loop of queries for its names.
//!
//! Slices without and with publications alternate on one server. In both, the other program writes
//! as much, and the managed name is queried as often. Without publications, the program writes to a
//! file that no server reads, and the name's address stays. The difference between the slices is
//! the server's own work.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::compare::config::hosts;
use crate::compare::measure::{UPSTREAM, first_answer, listen};
use crate::compare::proc::Snapshot;
use crate::compare::process::{Launch, Running};
use crate::compare::stage::Stage;
use crate::responder;
use load::clock::Clock;
use load::counts::RunCounts;
use load::flood::{self, FloodPlan, Pace};
use load::workload::{Ask, Kind, Workload};

/// The number of queries, and the publications meanwhile.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Queries of each kind of slice, in all
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    queries: u64,
    /// Queries a second
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Seconds of a slice
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(5..=600))]
    seconds: u64,
    /// A slice counts when other processes, and the machine below, took less than this percentage of all cores
    #[arg(long, default_value_t = 0.5)]
    quiet_percent: f64,
    /// How often a slice is repeated that does not count
    #[arg(long, default_value_t = 20)]
    repeats: u32,
    /// Lines of the hosts file
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    lines: u32,
    /// Milliseconds from one replacement by the other program to the next
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    every: u64,
    /// Core of the server
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// Core of the load, of the upstream and of the other program
    #[arg(long, default_value_t = 1)]
    load_core: usize,
    #[command(flatten)]
    stage: Stage,
}

/// Measures, and prints a Markdown table.
///
/// # Errors
/// When a namespace cannot be created, the server fails, a query is lost or answered wrongly, or
/// nothing was published.
pub fn run(options: &Options) -> Result<()> {
    if let Some(dir) = &options.stage.inside {
        return measure(options, dir);
    }
    options.stage.enter("publish", listen(0).iter().map(SocketAddr::ip))
}

fn measure(options: &Options, dir: &Path) -> Result<()> {
    let myself = std::env::current_exe().context("this program's file")?;
    let localdns = options.stage.server(&myself);
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    // The work of this process besides the load stays off the server's core.
    sockets::pin_to_core(options.load_core).with_context(|| format!("core {}", options.load_core))?;
    let scene = Arc::new(Scene::new(dir, options));
    write(&scene.hosts, [&scene.text, &Scene::canary(0)])?;
    let corefile = dir.join("Corefile");
    fs::write(&corefile, scene.corefile()).with_context(|| corefile.display().to_string())?;
    // Neither thread outlives this process.
    let upstream = Arc::clone(&scene);
    thread::spawn(move || upstream.answer());
    let other = Arc::clone(&scene);
    let other = thread::spawn(move || other.write_again_and_again());
    let outcome = slices(options, &scene, &localdns, &corefile);
    scene.over.store(true, Relaxed);
    other.join().expect("the other program does not panic")?;
    outcome
}

fn slices(options: &Options, scene: &Scene, localdns: &Path, corefile: &Path) -> Result<()> {
    let launch = Launch::new(localdns).args(["-conf", &corefile.display().to_string(), "-status", ""]);
    let mut server = Running::start(&launch, &[options.server_core])?;
    let ask = [Ask { kind: Kind::Hosts(options.lines), weight: 1 }];
    first_answer(&mut server, listen(0)[0], &mut Workload::new(&ask, 1)?, Clock::start())?;
    let plan = FloodPlan {
        pace: Pace::Open(options.rate),
        window: Duration::from_secs(options.seconds),
        ..FloodPlan::closed(vec![listen(0)[0]], vec![options.load_core])
    };
    let mut sums = [RunCounts::default(), RunCounts::default()];
    for number in 0..options.queries.div_ceil(options.rate * options.seconds) {
        for (publishing, sum) in [false, true].into_iter().zip(&mut sums) {
            scene.publishing.store(publishing, Relaxed);
            thread::sleep(SETTLE);
            let workload = Workload::new(&ask, number)?;
            sum.merge(&quiet_slice(options, &plan, &workload, &mut server, TITLES[usize::from(publishing)])?);
        }
    }
    let [own, others] = [&scene.own, &scene.others].map(|count| count.load(Relaxed));
    println!("{HEAD}");
    for (title, sum) in TITLES.iter().zip(&sums) {
        println!("{}", row(title, sum));
    }
    println!(
        "\n{} lines, replaced {own} times by the server, {others} times by another program",
        scene.lines
    );
    ensure!(own > 0 && others > 0, "nothing was published: {}", server.last_words());
    for (title, sum) in TITLES.iter().zip(&sums) {
        let unanswered = sum.lost + sum.unsent + sum.network_errors;
        let others = sum.wrong() + sum.duplicates + sum.strays;
        ensure!(
            unanswered + others == 0,
            "{title}: {unanswered} queries were not answered, {others} replies were not right"
        );
    }
    Ok(())
}

/// Repeats a slice until it counts, at most `repeats` times: 100 ms of stolen processor time are 2
/// % of a slice.
fn quiet_slice(
    options: &Options,
    plan: &FloodPlan,
    workload: &Workload,
    server: &mut Running,
    title: &str,
) -> Result<RunCounts> {
    for _ in 0..=options.repeats {
        let (clock, before) = (Clock::start(), Snapshot::take()?);
        let (counts, _) = flood::run(plan, workload, |_| {})?;
        let passed = Duration::from_nanos(clock.now_ns());
        let usage = Snapshot::take()?.since(&before, passed, server.pid(), std::process::id());
        if let Some(status) = server.ended() {
            bail!("it ended under load with {status} and printed: {}", server.last_words());
        }
        let is_quiet = usage.others * 100.0 < options.quiet_percent;
        let verdict = if is_quiet { "" } else { " does not count" };
        eprintln!("{} others {:.2} %{verdict}", row(title, &counts), usage.others * 100.0);
        // Load of the machine cannot cause wrong replies.
        ensure!(counts.wrong() == 0, "{title}: {} wrong replies", counts.wrong());
        if is_quiet {
            return Ok(counts);
        }
    }
    bail!("no slice was quiet enough")
}

/// State shared by the threads.
struct Scene {
    hosts: PathBuf,
    /// A file that the server does not read.
    decoy: PathBuf,
    lines: u32,
    /// The lines of the queried names.
    text: String,
    every: Duration,
    /// Whether the hosts file is being replaced.
    publishing: AtomicBool,
    over: AtomicBool,
    /// Replacements by the server; `others` counts those by the other program.
    own: AtomicU64,
    others: AtomicU64,
}

impl Scene {
    fn new(dir: &Path, options: &Options) -> Self {
        Self {
            hosts: dir.join("hosts"),
            decoy: dir.join("decoy"),
            lines: options.lines,
            text: hosts(options.lines),
            every: Duration::from_millis(options.every),
            publishing: AtomicBool::new(false),
            over: AtomicBool::new(false),
            own: AtomicU64::new(0),
            others: AtomicU64::new(0),
        }
    }

    fn corefile(&self) -> String {
        format!(
            ".:{} {{\n    bind {}\n    errors\n    hosts {} {{\n        ttl 5\n        reload 1s\n        refresh kept.bench\n        \
             refresh_interval 5s jitter 0s\n        refresh_via {UPSTREAM}\n    }}\n}}\n",
            listen(0)[0].port(),
            listen(0)[0].ip(),
            self.hosts.display()
        )
    }

    /// Returns a line that differs for each number.
    fn canary(number: u64) -> String {
        format!("10.255.{}.{} canary.bench\n", number >> 8 & 0xff, number & 0xff)
    }

    /// Serves the upstream of the managed name. During publications the name's address changes with
    /// every answer.
    fn answer(&self) -> Result<()> {
        let number = AtomicU32::new(0);
        responder::serve(&[UPSTREAM], None, LASTING, |query, reply| {
            let answered = responder::upstream(query, reply);
            // One answer record: the reply ends with its address.
            if answered && reply.get(7) == Some(&1) {
                let publishing = u32::from(self.publishing.load(Relaxed));
                let number = number.fetch_add(publishing, Relaxed) + publishing;
                let at = reply.len() - 2;
                reply[at..].copy_from_slice(&(number as u16).to_be_bytes());
            }
            answered
        })
    }

    /// Plays the program that writes the hosts file: replaces the file, or a decoy, at every interval
    /// until the measurement ends.
    fn write_again_and_again(&self) -> Result<()> {
        let mut seen = state(&self.hosts);
        let clock = Clock::start();
        for number in 1.. {
            let due_ns = self.every.as_nanos() as u64 * number;
            while clock.now_ns() < due_ns {
                thread::sleep(LOOK);
                self.look(&mut seen);
                if self.over.load(Relaxed) {
                    return Ok(());
                }
            }
            let publishing = self.publishing.load(Relaxed);
            let path = if publishing { &self.hosts } else { &self.decoy };
            write(path, [&self.text, &Self::canary(number)])?;
            if publishing {
                self.others.fetch_add(1, Relaxed);
                seen = state(&self.hosts);
            }
        }
        Ok(())
    }

    /// Counts a replacement by the server, if the file has changed.
    fn look(&self, seen: &mut State) {
        let found = state(&self.hosts);
        let changed = std::mem::replace(seen, found) != found;
        self.own.fetch_add(u64::from(changed), Relaxed);
    }
}

/// Writes a new file beside `path` and renames it, as a careful program does. It writes in small
/// pieces, since the load is on the same core.
fn write(path: &Path, texts: [&str; 2]) -> Result<()> {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside).with_context(|| beside.display().to_string())?;
    for piece in texts.iter().flat_map(|text| text.as_bytes().chunks(PIECE)) {
        file.write_all(piece).with_context(|| beside.display().to_string())?;
        thread::sleep(PAUSE);
    }
    fs::rename(&beside, path).with_context(|| path.display().to_string())
}

/// The identity of a version of a file: inode and time of change, since a replacement may reuse the
/// inode number.
type State = Option<(u64, i64, i64)>;

fn state(path: &Path) -> State {
    fs::metadata(path).ok().map(|found| (found.ino(), found.mtime(), found.mtime_nsec()))
}

fn row(title: &str, counts: &RunCounts) -> String {
    let [p50, p99, p999, max] = counts.latency_us();
    format!(
        "| {title} | {} | {} | {} | {p50:.0} | {p99:.0} | {p999:.0} | {max:.0} | {:.0} |",
        counts.sent,
        counts.lost,
        counts.wrong(),
        counts.lag_max_ns as f64 / 1e3
    )
}

const TITLES: [&str; 2] = ["without publications", "with publications"];
const HEAD: &str = "| slices | queries | lost | wrong | p50 us | p99 us | p99.9 us | longest us | the load's own longest delay us |\n\
                    |---|---|---|---|---|---|---|---|---|";
/// Time to settle: longer than the server's intervals for the file and for the managed name.
const SETTLE: Duration = Duration::from_secs(7);
/// Longer than any run.
const LASTING: Duration = Duration::from_secs(24 * 3600);
const LOOK: Duration = Duration::from_millis(5);
const PIECE: usize = 64 << 10;
const PAUSE: Duration = Duration::from_millis(1);
