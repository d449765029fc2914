//! Compares servers: the same work, in turns, on a dedicated core, in a separate network namespace.

pub mod config;
pub mod measure;
pub(crate) mod namespace;
pub mod overload;
pub mod proc;
pub mod process;
pub mod report;
pub mod servers;
pub mod spread;
pub(crate) mod stage;
pub mod work;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use self::measure::{Bench, Round};
use self::overload::Overload;
use self::report::{Failure, Offered, Point, Run, Sample};
use self::servers::{Kind, Server};
use self::spread::Spread;
use self::stage::Stage;
use self::work::Work;
use load::flood::Pace;

/// What is compared, for how long, and where it is written.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Directory for DATE.md and DATE.json
    #[arg(long, default_value = "benches/runs")]
    out: PathBuf,
    /// Name of the run instead of the date
    #[arg(long)]
    name: Option<String>,
    /// Rounds of each server in each row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Rounds of each server at each fixed rate [default: as many]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    fixed_rounds: Option<u32>,
    /// Seconds of each round that count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Rows, by name, with commas between them [default: all]
    #[arg(long, value_delimiter = ',')]
    works: Vec<String>,
    /// Servers, by name, with commas between them [default: all that are found]
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// Core of the server
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// Core of the load; may be repeated, one thread each
    #[arg(long, default_values_t = [1])]
    load_core: Vec<usize>,
    /// Core of the upstream [default: the first of the load]
    #[arg(long)]
    upstream_core: Option<usize>,
    /// A round counts when other processes used less than this percentage of all cores
    #[arg(long, default_value_t = 2.0)]
    quiet_percent: f64,
    /// How often a round is repeated that does not count; in turns, how many times as many cycles are added
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=5))]
    repeats: u32,
    /// Measure only the maximum rate of each server: no fixed rates, and so no latency at them
    #[arg(long)]
    flood_only: bool,
    /// Queries a second of which the fixed rates are 0.5 and 0.9, for every row and server [default: CoreDNS's best in the row]
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u64).range(2..=10_000_000))]
    reference: Option<u64>,
    /// Offered rates, for each server, at which rate and latency are measured; 0 for none
    #[arg(long, default_value_t = 10)]
    points: u32,
    #[command(flatten)]
    stage: Stage,
}

/// Creates the namespace, runs the comparison in it and writes the report.
///
/// # Errors
/// When a namespace cannot be created, no server is found, or the report cannot be written. A
/// server's failure is a line of the report.
pub fn run(options: &Options) -> Result<()> {
    if let Some(dir) = &options.stage.inside {
        return Comparison::new(options, dir.clone())?.compare(options);
    }
    fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    options.stage.enter("bench", (0..measure::SLOTS).flat_map(measure::listen).map(|addr| addr.ip()))
}

struct Comparison {
    bench: Bench,
    repeats: u32,
    seed: u64,
    /// Settings and results so far.
    run: Run,
}

impl Comparison {
    fn new(options: &Options, dir: PathBuf) -> Result<Self> {
        let myself = std::env::current_exe().context("this program's file")?;
        let localdns = options.stage.server(&myself);
        let mut works = work::all();
        choose(&mut works, &options.works, |work| work.name)?;
        let mut kinds = Kind::ALL.to_vec();
        choose(&mut kinds, &options.servers, |kind| kind.name())?;
        let servers = servers::find(&kinds, &localdns, &myself);
        ensure!(!servers.is_empty(), "none of these servers is found");
        let first = options.load_core.first().copied().context("a core for the load is needed")?;
        // The work of this process besides the load stays off the server's core.
        sockets::pin_to_core(first).with_context(|| format!("core {first}"))?;
        let window = Duration::from_secs(options.seconds);
        Ok(Self {
            bench: Bench {
                dir,
                myself,
                server_core: options.server_core,
                load_cores: options.load_core.clone(),
                upstream_core: options.upstream_core.unwrap_or(first),
                warmup: Duration::from_secs(1),
                window,
                patience: Duration::from_secs(1),
            },
            repeats: options.repeats,
            seed: 0,
            run: Run {
                date: jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::now()).date().to_string(),
                host: report::host(),
                commit: report::commit(),
                command: std::env::args().skip(1).take_while(|word| word != "--inside").collect(),
                window,
                rounds: options.rounds,
                fixed_rounds: if options.flood_only {
                    0
                } else {
                    options.fixed_rounds.unwrap_or(options.rounds)
                },
                quiet: options.quiet_percent / 100.0,
                reference: options.reference,
                works,
                servers,
                samples: Vec::new(),
                failures: Vec::new(),
                points: Vec::new(),
                overloads: Vec::new(),
            },
        })
    }

    fn compare(mut self, options: &Options) -> Result<()> {
        eprintln!("about {} minutes, more where rounds are repeated", self.duration().as_secs().div_ceil(60));
        let works = self.run.works.clone();
        for works in work::in_turns(&works) {
            let takes = |server: &&Server| works.iter().all(|work| server.kind.takes(work));
            let mut servers: Vec<Server> = self.run.servers.iter().filter(takes).cloned().collect();
            self.rows(works, &mut servers, options);
            // Written after each row, so that an aborted run keeps its results.
            self.write(options)?;
        }
        Ok(())
    }

    /// Runs all measurements of one row, or of several in turns.
    fn rows(&mut self, works: &[Work], servers: &mut Vec<Server>, options: &Options) {
        let work = &works[0];
        if let Some(percent) = work.held {
            self.overload(work, servers, percent);
            return;
        }
        if work.memory {
            self.rounds_of(work, servers, None);
        } else {
            self.zones_of(works, servers);
        }
        let Some(reference) = self.reference(work) else { return };
        if !work.all_cores && !work.memory {
            for fraction in FRACTIONS {
                let rate = (reference * fraction) as u64;
                self.rounds_of(work, servers, Some(Offered { fraction, rate: rate.max(1) }));
            }
        }
        if work.name == OFFERED {
            self.offer(work, servers, options.points);
        }
    }

    fn write(&self, options: &Options) -> Result<()> {
        let run = &self.run;
        let name = options.name.as_ref().unwrap_or(&run.date);
        let file = |ending: &str| options.out.join(format!("{name}.{ending}"));
        write(&file("md"), &report::markdown(run))?;
        write(&file("json"), &format!("{:#}\n", report::json(run)))
    }

    /// Returns the approximate duration if every round counts.
    fn duration(&self) -> Duration {
        let alone = self.bench.warmup + self.bench.window + START_AND_END;
        let turns = self.bench.turns_take() + START_AND_END;
        let fixed = FRACTIONS.len() as u32 * self.run.fixed_rounds;
        let row = |work: &Work| {
            let servers = self.run.servers.iter().filter(|server| server.kind.takes(work)).count() as u32;
            let each = match work {
                Work { memory: true, .. } => alone,
                Work { held: Some(_), .. } => overload::TAKES,
                Work { all_cores: true, .. } => turns * self.run.rounds,
                _ => turns * self.run.rounds + alone * fixed,
            };
            each * servers
        };
        self.run.works.iter().map(row).sum()
    }

    /// Runs all rounds of a row at a fixed rate, or of a row that measures memory, one server after
    /// the other. A server that fails is left out of the further rounds.
    fn rounds_of(&mut self, work: &Work, servers: &mut Vec<Server>, offered: Option<Offered>) {
        for number in 0..if work.memory { 1 } else { self.run.fixed_rounds } {
            servers.retain(|server| {
                let outcome = self.quiet_round(work, server, offered);
                self.keep(work, server, offered, number, outcome)
            });
        }
    }

    /// Runs all rounds that measure the maximum rate in these rows, slice by slice in turns. A
    /// server that fails is left out of the further rounds.
    fn zones_of(&mut self, works: &[Work], servers: &mut Vec<Server>) {
        for number in 0..self.run.rounds {
            self.seed += 1;
            let all = servers.clone();
            let entrants: Vec<_> =
                all.iter().flat_map(|server| works.iter().map(move |work| (work, server))).collect();
            let limits = (self.run.quiet, self.repeats);
            let (rounds, disturbed) = match self.bench.turns(&entrants, OUTSTANDING, self.seed, limits) {
                Ok(turns) => turns,
                Err(error) => (entrants.iter().map(|_| Err(anyhow!("{error:#}"))).collect(), false),
            };
            for ((work, server), outcome) in entrants.into_iter().zip(rounds) {
                if !self.keep(work, server, None, number, outcome.map(|round| (round, disturbed))) {
                    servers.retain(|other| other.kind != server.kind);
                }
            }
        }
    }

    /// Records the result of a round; returns false if the server failed.
    fn keep(
        &mut self,
        work: &Work,
        server: &Server,
        offered: Option<Offered>,
        number: u32,
        outcome: Result<(Round, bool)>,
    ) -> bool {
        let (work_name, kind) = (work.name, server.kind);
        match outcome {
            Ok((round, disturbed)) => {
                print_round(work, server, offered, &round, disturbed);
                let sample = Sample { work: work_name, server: kind, offered, number, disturbed, round };
                self.run.samples.push(sample);
                true
            }
            Err(error) => {
                let why = format!("{error:#}");
                eprintln!("{work_name} {}: {why}", kind.name());
                self.run.failures.push(Failure { work: work_name, server: kind, why });
                false
            }
        }
    }

    /// Measures each server once: its maximum rate, its rate at three times that load, and its rate
    /// after.
    fn overload(&mut self, work: &Work, servers: &[Server], percent: u32) {
        for server in servers {
            match self.quiet_overload(server, work, percent) {
                Ok(seen) => {
                    for round in seen.rounds() {
                        print_round(work, server, None, round, round.usage.others >= self.run.quiet);
                    }
                    self.run.overloads.push((server.kind, seen));
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    eprintln!("{} {}: {why}", work.name, server.kind.name());
                    self.run.failures.push(Failure { work: work.name, server: server.kind, why });
                }
            }
        }
    }

    /// Repeats the overload until it counts; if it never does, returns the quietest.
    fn quiet_overload(&mut self, server: &Server, work: &Work, percent: u32) -> Result<Overload> {
        let others =
            |seen: &Overload| seen.rounds().map(|round| round.usage.others).into_iter().fold(0.0, f64::max);
        let mut quietest: Option<Overload> = None;
        for _ in 0..=self.repeats {
            self.seed += 1;
            let seen = overload::overload(&self.bench, server, work, percent, self.seed)?;
            if others(&seen) < self.run.quiet {
                return Ok(seen);
            }
            if quietest.as_ref().is_none_or(|best| others(&seen) < others(best)) {
                quietest = Some(seen);
            }
        }
        quietest.context("no overload")
    }

    /// Repeats a round until it counts; if it never does, returns the quietest, with true.
    fn quiet_round(
        &mut self,
        work: &Work,
        server: &Server,
        offered: Option<Offered>,
    ) -> Result<(Round, bool)> {
        let pace = offered.map_or(Pace::Closed(OUTSTANDING), |offered| Pace::Open(offered.rate));
        let mut quietest: Option<Round> = None;
        for _ in 0..=self.repeats {
            self.seed += 1;
            let round = self.bench.round(server, work, pace, self.seed)?;
            if round.usage.others < self.run.quiet {
                return Ok((round, false));
            }
            if quietest.as_ref().is_none_or(|best| round.usage.others < best.usage.others) {
                quietest = Some(round);
            }
        }
        Ok((quietest.context("no round")?, true))
    }

    /// Returns the rate that fixed rates are fractions of: the given one, else CoreDNS's best rate
    /// in the row, without CoreDNS the rate of the slowest server that has names.
    fn reference(&self, work: &Work) -> Option<f64> {
        if let Some(rate) = self.run.reference {
            return Some(rate as f64);
        }
        let rate = |kind: Kind| {
            let all = self
                .run
                .samples
                .iter()
                .filter(|s| s.work == work.name && s.server == kind && s.offered.is_none());
            Spread::of(all.map(|sample| sample.round.rate())).map(|spread| spread.median)
        };
        rate(Kind::Coredns).or_else(|| {
            let others = self.run.servers.iter().filter(|server| server.kind.knows_names());
            others.filter_map(|server| rate(server.kind)).min_by(f64::total_cmp)
        })
    }

    /// Measures rate and latency at offered rates from a 32nd of the fastest server's best rate to
    /// a tenth above it; each server up to the rate that it can follow.
    fn offer(&mut self, work: &Work, servers: &[Server], points: u32) {
        let best = self
            .run
            .samples
            .iter()
            .filter(|s| s.work == work.name)
            .map(|s| s.round.rate())
            .fold(0.0, f64::max);
        for server in servers {
            self.seed += 1;
            let mut started = match self.bench.start(server, work, 0, self.seed) {
                Ok(started) => started,
                Err(error) => {
                    let why = format!("{error:#}");
                    self.run.failures.push(Failure { work: work.name, server: server.kind, why });
                    continue;
                }
            };
            for rate in offers(best, points) {
                let Ok(round) = self.bench.load(&mut started, work, Pace::Open(rate)) else { break };
                print_round(
                    work,
                    server,
                    Some(Offered { fraction: 0.0, rate }),
                    &round,
                    round.usage.others >= self.run.quiet,
                );
                let [p50_us, p99_us, ..] = round.counts.latency_us();
                let rate_seen = round.rate();
                self.run.points.push(Point {
                    server: server.kind,
                    offered: rate,
                    rate: rate_seen,
                    p50_us,
                    p99_us,
                });
                if rate_seen < rate as f64 * 0.8 {
                    break;
                }
            }
        }
    }
}

/// Returns the rates to offer, at equal ratios.
fn offers(best: f64, points: u32) -> Vec<u64> {
    let lowest = best / 32.0;
    let last = f64::from(points.saturating_sub(1).max(1));
    (0..points)
        .map(|point| ((lowest * (1.1f64 * 32.0).powf(f64::from(point) / last)) as u64).max(1))
        .collect()
}

/// Keeps the named entries; keeps all if no name is given.
fn choose<T>(all: &mut Vec<T>, names: &[String], name_of: impl Fn(&T) -> &'static str) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|one| name_of(one) != name.as_str())) {
        let known: Vec<_> = all.iter().map(name_of).collect();
        bail!("{unknown:?} is none of {}", known.join(", "));
    }
    if !names.is_empty() {
        all.retain(|one| names.iter().any(|name| name == name_of(one)));
    }
    Ok(())
}

fn print_round(work: &Work, server: &Server, offered: Option<Offered>, round: &Round, disturbed: bool) {
    let [p50, p99, ..] = round.counts.latency_us();
    eprintln!(
        "{:12} {:9} {:>9}: {:8.0} q/s {:6.2} us/q p50 {p50:.0} p99 {p99:.0} us lost {} wrong {} others {:.1} %{}",
        work.name,
        server.kind.name(),
        offered.map_or_else(|| "flood".to_owned(), |offered| offered.rate.to_string()),
        round.rate(),
        round.cpu_us(),
        round.counts.lost,
        round.counts.wrong(),
        round.usage.others * 100.0,
        if disturbed { " (disturbed)" } else { "" },
    );
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// Approximate time of a round besides the load.
const START_AND_END: Duration = Duration::from_millis(700);
/// Outstanding queries on each of four sockets in a closed loop.
const OUTSTANDING: usize = 64;
/// Shares of the reference, CoreDNS's best rate, at which latency is compared.
const FRACTIONS: [f64; 2] = [0.5, 0.9];
/// The row that is measured at offered rates.
const OFFERED: &str = "hosts";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_rise_evenly_to_a_tenth_beyond_the_best() {
        let offers = offers(320_000.0, 3);
        assert_eq!(offers[0], 10_000);
        assert!((59_000..60_000).contains(&offers[1]), "{offers:?}");
        assert!((351_999..=352_001).contains(&offers[2]), "{offers:?}");
        assert!(super::offers(1000.0, 0).is_empty());
        assert_eq!(super::offers(0.0, 2), [1, 1]);
    }

    #[test]
    fn what_is_named_is_kept_and_what_is_unknown_refused() {
        let mut works = work::all();
        choose(&mut works, &["miss".to_owned(), "hosts".to_owned()], |work| work.name)
            .expect("both are rows");
        assert_eq!(works.iter().map(|work| work.name).collect::<Vec<_>>(), ["hosts", "miss"]);
        let error = choose(&mut works, &["nothing".to_owned()], |work| work.name).expect_err("no such row");
        assert!(error.to_string().contains("none of hosts, miss"), "{error}");
    }
}
