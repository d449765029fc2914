//! Measures localdns and CoreDNS with a cluster of many services and endpoints: the time until they
//! are ready, their memory, and the time until a change is visible in answers.
//!
//! The API is a real one (`tests/kube`), in a network namespace of its own. The baseline is a
//! reader with as many connections for the same streams, which it discards.

mod api;
mod churn;
mod https;
mod lists;
mod meanwhile;
mod subject;
mod visible;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::compare::stage::Stage;
use load::clock::Clock;

use api::{Api, Size};
use meanwhile::{Meanwhile, State};
use subject::{Memory, ServerKind, Started, Subject};
use visible::Visible;

/// How much there is, and how often it is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Services; a tenth is headless
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    services: u32,
    /// Endpoints of all services together
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    endpoints: u32,
    /// Starts of each server
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100))]
    starts: u32,
    /// Changes that are timed
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=60_000))]
    changes: u32,
    /// Restarts of the API
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    relists: u32,
    /// Rounds of load beside 500 changes a second, and without
    #[arg(long, default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Milliseconds of each load that count, after half as many that do not; a round has six loads
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    milliseconds: u64,
    /// Queries a second in timed loads
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Core of the server under load
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// Core of the load, and of the API that changes
    #[arg(long, default_value_t = 1)]
    load_core: usize,
    /// What is measured
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Starts, Part::Changes])]
    parts: Vec<Part>,
    /// Where the API keeps its objects: filled the first time, and used again [default: a directory of its own]
    #[arg(long)]
    state: Option<PathBuf>,
    /// CoreDNS 1.15.0
    #[arg(long, default_value = "coredns")]
    coredns: PathBuf,
    #[command(flatten)]
    stage: Stage,
}

/// What can be measured by itself.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Starts beside the real API, memory, and when a change is seen.
    Starts,
    /// Load beside 500 changes a second.
    Changes,
    /// Processor time until ready, beside an API that has its lists at hand.
    Lists,
}

/// Measures, and prints a Markdown table.
///
/// # Errors
/// When a namespace cannot be created, there is no API or no server, an answer is wrong, or a goal
/// is missed.
pub fn run(options: &Options) -> Result<()> {
    if let Some(dir) = &options.stage.inside {
        return measure(options, dir);
    }
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    options.stage.enter(
        "kubernetes",
        ServerKind::ALL.map(ServerKind::address).into_iter().filter(|own| *own != loopback),
    )
}

/// Starts an API of 10,000 services and 100,000 endpoints with its lists ready; returns it with a
/// workload's lines for the services' names.
pub(crate) fn api_and_names() -> (testkit::kube::Api, String) {
    let size = Size { services: 10_000, endpoints: 100_000 };
    (lists::api(size), churn::known(size))
}

fn measure(options: &Options, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let myself = std::env::current_exe().context("this program's file")?;
    let localdns = options.stage.server(&myself);
    let size = Size { services: options.services, endpoints: options.endpoints };
    let mut goals = Vec::new();
    if options.parts.contains(&Part::Starts) {
        goals.extend(measure_starts(options, dir, &localdns, size)?);
    }
    if options.parts.contains(&Part::Changes) {
        let plan = churn::ChurnPlan {
            dir,
            localdns: &localdns,
            size,
            rounds: options.rounds,
            window: Duration::from_millis(options.milliseconds),
            rate: options.rate,
            server_core: options.server_core,
            load_core: options.load_core,
        };
        goals.extend(report_changes(&churn::measure(&plan)?));
    }
    if options.parts.contains(&Part::Lists) {
        let plan = lists::StartPlan {
            dir,
            programs: [&localdns, &options.coredns],
            size,
            starts: options.starts,
            server_core: options.server_core,
            load_core: options.load_core,
        };
        report_lists(&lists::measure(&plan)?);
    }
    judge(&goals)
}

fn measure_starts(options: &Options, dir: &Path, localdns: &Path, size: Size) -> Result<Vec<Goal>> {
    let api = Api::start(&options.state.clone().unwrap_or_else(|| dir.join("state")))?;
    api.fill(size)?;
    let api_directive = format!("kubeconfig {}", api.kubeconfig.display());
    let subjects = [
        Subject::new(ServerKind::Localdns, localdns, dir, &api_directive)?,
        Subject::new(ServerKind::Coredns, &options.coredns, dir, &api_directive)?,
    ];
    let bench = Bench { api, size, subjects, cores: (0..thread::available_parallelism()?.get()).collect() };
    let starts = bench.starts(options.starts)?;
    let started = bench.start_both()?;
    let visible = visible::changes(&bench.api, size, &started, options.changes)?;
    let relists = bench.relists(&started, options.relists)?;
    Ok(report(&starts, &visible, &relists))
}

/// A goal: its description, the value found, and its maximum.
type Goal = (&'static str, f64, f64);

struct Bench {
    api: Api,
    size: Size,
    subjects: [Subject; 2],
    cores: Vec<usize>,
}

/// Results of starts; medians, except for memory.
struct Starts {
    /// Time of the bare reader; `octets` is the number of bytes that it read.
    bare: Duration,
    octets: u64,
    ready: [Duration; 2],
    /// Ratio of a start's time to that of the bare reader.
    of_bare: [f64; 2],
    memory: [Memory; 2],
}

impl Bench {
    /// Starts both servers in turns, with the bare reader before and after each. The machine's
    /// speed changes by the minute, and the API still frees memory for the previous client: each
    /// start is compared with the two readers around it.
    fn starts(&self, count: u32) -> Result<Starts> {
        let (mut bare, mut octets, mut ready) = (Vec::new(), 0, [Vec::new(), Vec::new()]);
        let (mut of_bare, mut memory) = ([Vec::new(), Vec::new()], [Memory::default(); 2]);
        let mut last = self.read_bare()?.0;
        for number in 0..count {
            for subject in &self.subjects {
                let at = subject.kind as usize;
                let (started, took) = self.start(subject)?;
                let (next, read) = self.read_bare()?;
                let reader = (last + next) / 2;
                last = next;
                octets = read;
                bare.push(reader);
                ready[at].push(took);
                of_bare[at].push(ms(took) / ms(reader));
                self.check(&started)?;
                let name = subject.kind.name();
                if number % MEMORY_EACH > 0 {
                    eprintln!("{name}: ready in {took:?}; bare {reader:?}");
                    continue;
                }
                thread::sleep(SETTLE);
                let now = started.memory()?;
                eprintln!("{name}: ready in {took:?}, {now:?}; bare {reader:?}");
                memory[at] = memory[at].or(now);
            }
        }
        Ok(Starts {
            bare: median(bare),
            octets,
            ready: ready.map(median),
            of_bare: of_bare.map(middle),
            memory,
        })
    }

    /// Reads the streams of a server, each over a connection of its own, and discards them.
    fn read_bare(&self) -> Result<(Duration, u64)> {
        let clock = Clock::start();
        let octets = thread::scope(|scope| {
            let readers = STREAMS.map(|path| scope.spawn(move || self.api.access.open()?.throw_away(path)));
            readers.into_iter().map(|reader| reader.join().expect("no reader panics")).sum::<Result<u64>>()
        })?;
        Ok((Duration::from_nanos(clock.now_ns()), octets))
    }

    /// Checks that a server answers for the first and the last service.
    fn check(&self, started: &Started) -> Result<()> {
        for number in [0, 1, self.size.services - 1, self.size.services / 10 * 10 - 10] {
            let (name, address) = self.size.known(number);
            started.probe.until(&name, address)?;
        }
        ensure!(started.probe.denies("none.ns-0.svc.cluster.local")?, "a name that is not there is answered");
        Ok(())
    }

    fn start(&self, subject: &Subject) -> Result<(Started, Duration)> {
        let (name, address) = self.size.known(0);
        subject.start(&self.cores, (&name, address))
    }

    fn start_both(&self) -> Result<[Started; 2]> {
        let [localdns, coredns] = &self.subjects;
        let both = [self.start(localdns)?.0, self.start(coredns)?.0];
        both.iter().try_for_each(|started| self.check(started))?;
        Ok(both)
    }

    /// Measures memory while all objects are listed again: after each restart of the API etcd is
    /// compacted and each kind has changed, including every slice of some thousand services.
    fn relists(&self, started: &[Started; 2], count: u32) -> Result<[Memory; 2]> {
        let mut most = [Memory::default(); 2];
        let meanwhile = Meanwhile::new(&self.api, self.size)?;
        let until_seen =
            |state: State| started.iter().try_for_each(|started| meanwhile.until_seen(&started.probe, state));
        until_seen(State::Filled)?;
        for number in 0..count {
            let state = if number % 2 == 0 { State::Changed } else { State::Filled };
            started.iter().try_for_each(Started::forget_peak)?;
            let before = started[0].metric(REQUESTS)?;
            self.api.lose()?;
            let changed = meanwhile.happen(state)?;
            ensure!(changed == meanwhile.slices(), "{changed} slices changed, not {}", meanwhile.slices());
            self.api.restart()?;
            // After compaction no watch can report these changes: each kind was listed.
            until_seen(state)?;
            thread::sleep(SETTLE);
            for (started, most) in started.iter().zip(&mut most) {
                self.check(started)?;
                *most = most.or(started.memory()?);
            }
            let asked = started[0].metric(REQUESTS)? - before;
            eprintln!("relist {number}: {changed} slices changed; {most:?}, {asked} requests");
        }
        // Restores the state for the next measurement.
        meanwhile.become_state(State::Filled)?;
        until_seen(State::Filled)?;
        Ok(most)
    }
}

fn report(starts: &Starts, visible: &[Visible; 2], relists: &[Memory; 2]) -> Vec<Goal> {
    let Starts { bare, octets, ready, of_bare, memory } = starts;
    println!("A bare reader of the same {:.1} MB took {:.0} ms.\n", *octets as f64 / 1e6, ms(*bare));
    println!("{HEAD}");
    for kind in ServerKind::ALL {
        let at = kind as usize;
        let [p50, p99] = [0.5, 0.99].map(|share| visible[at].quantile(share));
        println!(
            "| {} | {:.0} | {:.2} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} |",
            kind.name(),
            ms(ready[at]),
            of_bare[at],
            memory[at].resident,
            memory[at].peak,
            relists[at].resident,
            relists[at].peak,
            ms(p50),
            ms(p99)
        );
    }
    let worst = visible.each_ref().map(|visible| ms(visible.quantile(0.99)));
    let resident = memory[0].resident.max(relists[0].resident);
    let peak = memory[0].peak.max(relists[0].peak);
    let of_coredns = |both: &[Memory; 2]| both[0].resident / both[1].resident;
    vec![
        ("ready after at most 1.3 times the bare reader beside it", of_bare[0], 1.3),
        ("ready in at most half of CoreDNS's time", ms(ready[0]) / ms(ready[1]), 0.5),
        ("resident, MB", resident, 64.0),
        ("resident, beside CoreDNS", of_coredns(memory).max(of_coredns(relists)), 1.0 / 3.0),
        ("at the most, MB", peak, 96.0),
        ("a change is visible, p99, beside CoreDNS", worst[0] / worst[1], 1.0),
    ]
}

fn report_lists(costs: &[lists::Cost; 2]) {
    println!("\n| server | processor ms until ready | outside the kernel |\n|---|---|---|");
    for (kind, (all, user)) in ServerKind::ALL.into_iter().zip(costs) {
        println!("| {} | {:.0} | {:.0} |", kind.name(), ms(*all), ms(*user));
    }
}

/// A function that selects a load of a round.
type LoadOf = fn(&churn::Round) -> churn::Load;

fn report_changes(rounds: &[churn::Round]) -> Vec<Goal> {
    let rates = |of: LoadOf| middle(rounds.iter().map(|round| of(round).rate).collect());
    let p999 = |of: LoadOf| middle(rounds.iter().map(|round| of(round).p999_us).collect());
    println!(
        "\n| load | replies a second | processor us each | outside the kernel | p99.9 us at a fixed rate |\n|---|---|---|---|---|"
    );
    let loads: [(&str, LoadOf, Option<LoadOf>); 4] = [
        ("hosts", |round| round.hosts, None),
        ("hosts, the services' names", |round| round.same_names, None),
        ("services", |round| round.quiet, Some(|round| round.quiet_timed)),
        ("services, 500 changes a second", |round| round.changing, Some(|round| round.changing_timed)),
    ];
    for (name, of, timed) in loads {
        let [all, user] =
            [0, 1].map(|which| middle(rounds.iter().map(|round| of(round).cpu_us[which]).collect()));
        let p999 = timed.map_or_else(|| "-".to_owned(), |timed| format!("{:.0}", p999(timed)));
        println!("| {name} | {:.0} | {all:.2} | {user:.2} | {p999} |", rates(of));
    }
    // The machine's speed changes by the minute: loads of one round are compared with each other.
    let pairs = |of: fn(&churn::Round) -> f64| middle(rounds.iter().map(of).collect());
    vec![
        (
            "in the median round, hosts hits beside hits of services",
            pairs(|round| round.hosts.rate / round.quiet.rate),
            1.05,
        ),
        (
            "hosts hits of the services' names beside hits of services",
            pairs(|round| round.same_names.rate / round.quiet.rate),
            1.05,
        ),
        (
            "hits beside those while slices change, 1 / 0.95",
            pairs(|round| round.quiet.rate / round.changing.rate),
            1.0 / 0.95,
        ),
        (
            "p99.9 while slices change beside the quiet one",
            p999(|round| round.changing_timed) / p999(|round| round.quiet_timed),
            2.0,
        ),
    ]
}

fn judge(goals: &[Goal]) -> Result<()> {
    println!();
    let mut missed = Vec::new();
    for (goal, found, most) in goals {
        let held = found <= most;
        println!("- {goal}: {found:.2} of {most:.2}: {}", if held { "held" } else { "missed" });
        missed.extend((!held).then_some(*goal));
    }
    ensure!(missed.is_empty(), "missed: {}", missed.join(", "));
    Ok(())
}

fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    durations.get(durations.len() / 2).copied().unwrap_or_default()
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The streams that `kubernetes` watches by default.
const STREAMS: [&str; 3] =
    ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/namespaces"];
const REQUESTS: &str = "coredns_kubernetes_rest_client_requests_total";
/// Memory is measured in every third start.
const MEMORY_EACH: u32 = 3;
/// Pause before memory is measured, in which freed memory is returned to the kernel.
const SETTLE: Duration = Duration::from_secs(3);
const HEAD: &str = "| server | ready ms | of the bare reader | resident MB | peak | after relists | peak of relists | visible p50 ms | p99 |\n\
                    |---|---|---|---|---|---|---|---|---|";
