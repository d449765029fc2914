//! One round: servers are started on their core, loaded, measured and ended.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use sockets::{Epoll, Events};

use super::config::Place;
use super::proc::{Snapshot, Usage, resident_kb};
use super::process::{Launch, Running};
use super::servers::{Kind, Server};
use super::work::{QueriesOf, Work};
use load::clock::Clock;
use load::counts::{RunCounts, Window};
use load::flood::{self, Edge, FloodPlan, Pace};
use load::judge::{Judgement, judge};
use load::workload::Workload;

/// Settings of all rounds.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Directory for files.
    pub dir: PathBuf,
    /// This program, for echo, relay and upstream.
    pub myself: PathBuf,
    /// The server's core.
    pub server_core: usize,
    /// The load's cores, one thread each.
    pub load_cores: Vec<usize>,
    /// The upstream's core.
    pub upstream_core: usize,
    /// Duration of the load before the window.
    pub warmup: Duration,
    /// Duration of the window that is counted.
    pub window: Duration,
    /// A query without a reply for this time is lost.
    pub patience: Duration,
}

/// Results of one round of a server.
#[derive(Clone, Debug)]
pub struct Round {
    /// Counts and latency.
    pub counts: RunCounts,
    /// The counted window.
    pub window: Window,
    /// Processor time of the server and of others.
    pub usage: Usage,
    /// Time from the server's start to its first right answer.
    pub start: Duration,
    /// Resident memory after the load.
    pub resident_kb: u64,
    /// Lines that the server printed during the window.
    pub lines: u64,
}

impl Round {
    /// Returns the replies a second.
    pub fn rate(&self) -> f64 {
        self.counts.replies as f64 / self.window.seconds()
    }

    /// Returns the processor time of the server for each reply, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.each_us(self.usage.server)
    }

    /// Returns the part of [`Self::cpu_us`] that is spent outside the kernel.
    pub fn user_us(&self) -> f64 {
        self.each_us(self.usage.server_user)
    }

    fn each_us(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / (self.counts.replies.max(1) as f64)
    }
}

impl Bench {
    /// Runs one round of one server. `seed` selects the names.
    ///
    /// # Errors
    /// When the server does not start, does not answer, or ends.
    pub fn round(&self, server: &Server, work: &Work, pace: Pace, seed: u64) -> Result<Round> {
        let _upstream = self.upstream(&[(work, server)])?;
        let mut started = self.start(server, work, 0, seed)?;
        self.load(&mut started, work, pace)
    }

    /// Runs one round of several servers at once, loaded one after the other in short slices,
    /// repeatedly, so that changes of the machine's speed affect all of them alike.
    ///
    /// A cycle counts if other processes used less than the share `quiet` of all cores; up to
    /// `repeats` times as many cycles are added to replace cycles that do not count. Returns true
    /// if too few cycles were quiet, and the quietest of the others are used instead.
    ///
    /// # Errors
    /// When the upstream does not start. A server's failure is an error in place of the server's
    /// round.
    pub fn turns(
        &self,
        entrants: &[(&Work, &Server)],
        outstanding: usize,
        seed: u64,
        (quiet, repeats): (f64, u32),
    ) -> Result<(Vec<Result<Round>>, bool)> {
        let _upstream = self.upstream(entrants)?;
        let pace = Pace::Closed(outstanding);
        let wanted = self.cycles();
        // Servers get different names where no name may repeat; the bounds of the options leave
        // enough names for every server.
        let looks = 1 + wanted * (1 + repeats as usize);
        let mut started: Vec<Result<Started>> = entrants
            .iter()
            .enumerate()
            .map(|(slot, (work, server))| {
                let mut started = self.start(server, work, slot as u8, seed)?;
                let first = started.workload.slice(0, looks, self.load_cores.len());
                self.look(&mut started, &first, work, pace, (self.warmup, SLICE))?;
                Ok(started)
            })
            .collect();
        let mut cycles = Vec::new();
        while cycles.len() + 1 < looks {
            let mut cycle: Vec<Option<Look>> = Vec::with_capacity(entrants.len());
            for ((work, _), place) in entrants.iter().zip(&mut started) {
                let look = match place {
                    Ok(started) => {
                        let next = started.workload.slice(cycles.len() + 1, looks, self.load_cores.len());
                        self.look(started, &next, work, pace, (SETTLE, SLICE))
                    }
                    Err(_) => Err(anyhow!("it is not there")),
                };
                match look {
                    Ok(look) => cycle.push(Some(look)),
                    Err(error) => {
                        cycle.push(None);
                        if place.is_ok() {
                            *place = Err(error);
                        }
                    }
                }
            }
            let others = cycle.iter().flatten().map(|look| look.usage.others).sum::<f64>();
            cycles.push((others / cycle.iter().flatten().count().max(1) as f64, cycle));
            if cycles.iter().filter(|(others, _)| *others < quiet).count() == wanted {
                break;
            }
        }
        let (mut cycles, disturbed) = quietest(cycles, wanted, quiet);
        let rounds = started.into_iter().enumerate().map(|(slot, place)| {
            let looks = cycles.iter_mut().filter_map(|cycle| cycle[slot].take()).collect();
            place?.round(looks)
        });
        Ok((rounds.collect(), disturbed))
    }

    /// Returns the approximate time of one server in a round if every cycle is quiet.
    pub(super) fn turns_take(&self) -> Duration {
        self.warmup + (SLICE + SETTLE + flood::SETUP) * (self.cycles() as u32 + 1)
    }

    /// Returns the number of slices in the window of a round.
    fn cycles(&self) -> usize {
        (self.window.as_nanos() / SLICE.as_nanos()).max(1) as usize
    }

    /// Starts the upstream if one of these servers needs it.
    pub(super) fn upstream(&self, entrants: &[(&Work, &Server)]) -> Result<Option<Running>> {
        let needs = |(work, server): &(&Work, &Server)| {
            matches!(work.source, QueriesOf::Upstream(_)) && server.kind != Kind::Echo
        };
        entrants.iter().any(needs).then(|| start_upstream(&self.myself, self.upstream_core)).transpose()
    }

    /// Starts a server for a row, with the directory and addresses of that slot; waits for the
    /// first right answer and fills the cache. The upstream that it needs must be running.
    ///
    /// # Errors
    /// When the server does not start or does not answer.
    pub fn start(&self, server: &Server, work: &Work, slot: u8, seed: u64) -> Result<Started> {
        let dir = self.dir.join(slot.to_string());
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
        }
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let mut cores = vec![self.server_core];
        if work.all_cores {
            cores.extend(&self.load_cores);
        }
        let listen = listen(slot);
        let place = Place { dir: &dir, listen: &listen, upstream: UPSTREAM, workers: cores.len() };
        let mut workload = Workload::new(&work.asks, seed)?;
        if !server.kind.knows_names() {
            workload = workload.unjudged();
        }
        let launch = server.launch(work, &place)?;
        let clock = Clock::start();
        let mut running = Running::start(&launch, &cores)?;
        first_answer(&mut running, listen[0], &mut workload, clock)?;
        let start = Duration::from_nanos(clock.now_ns());
        if server.kind.knows_names() {
            prefill(work, listen, self.load_cores[0])?;
        }
        Ok(Started { running, listen, workload, start })
    }

    /// Puts load on a started server and measures it.
    ///
    /// # Errors
    /// When the server ends, or no reply arrives.
    pub fn load(&self, started: &mut Started, work: &Work, pace: Pace) -> Result<Round> {
        let workload = started.workload.clone();
        let look = self.look(started, &workload, work, pace, (self.warmup, self.window))?;
        started.round(vec![look])
    }

    /// Runs a load and measures it.
    fn look(
        &self,
        started: &mut Started,
        workload: &Workload,
        work: &Work,
        pace: Pace,
        (warmup, window): (Duration, Duration),
    ) -> Result<Look> {
        let plan = FloodPlan {
            transport: work.transport,
            pace,
            warmup,
            window,
            patience: self.patience,
            // Sleeping makes reply times less exact; polling takes CPU time from processes on the
            // same core.
            spin: matches!(pace, Pace::Open(_)) && !work.shares_core(),
            ..FloodPlan::closed(started.listen.to_vec(), self.load_cores.clone())
        };
        let clock = Clock::start();
        let mut edges = Vec::with_capacity(2);
        let look = |_: Edge| edges.push((clock.now_ns(), Snapshot::take(), started.running.lines()));
        let (counts, window) = flood::run(&plan, workload, look)?;
        if let Some(status) = started.running.ended() {
            bail!("it ended under load with {status} and printed: {}", started.running.last_words());
        }
        let [(from_ns, before, lines_before), (until_ns, after, lines_after)] =
            <[_; 2]>::try_from(edges).ok().context("a window has two edges")?;
        let passed = Duration::from_nanos(until_ns - from_ns);
        let usage = after?.since(&before?, passed, started.running.pid(), std::process::id());
        Ok(Look { counts, window, usage, lines: lines_after - lines_before })
    }
}

/// Measurements of one load.
struct Look {
    counts: RunCounts,
    window: Window,
    usage: Usage,
    lines: u64,
}

/// Returns the first `wanted` cycles in which other processes used less than the share `quiet` of
/// all cores. If there are fewer, adds the quietest of the others and returns true. Each cycle is
/// paired with that share.
fn quietest<C>(cycles: Vec<(f64, C)>, wanted: usize, quiet: f64) -> (Vec<C>, bool) {
    let (mut chosen, mut disturbed): (Vec<_>, Vec<_>) =
        cycles.into_iter().partition(|(others, _)| *others < quiet);
    chosen.truncate(wanted);
    disturbed.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let missing = wanted - chosen.len();
    chosen.extend(disturbed.into_iter().take(missing));
    (chosen.into_iter().map(|(_, cycle)| cycle).collect(), missing > 0)
}

/// Starts the upstream on a core and waits until it answers.
pub(crate) fn start_upstream(myself: &Path, core: usize) -> Result<Running> {
    let launch =
        Launch::new(myself).args(["upstream".to_owned(), "--listen".to_owned(), UPSTREAM.to_string()]);
    let clock = Clock::start();
    let mut running = Running::start(&launch, &[core])?;
    let mut workload = Workload::new(&["cached:1".parse()?], 0)?;
    first_answer(&mut running, UPSTREAM, &mut workload, clock).context("upstream")?;
    Ok(running)
}

/// Queries each name that must be in the cache once.
pub(crate) fn prefill(work: &Work, listen: [SocketAddr; 2], core: usize) -> Result<()> {
    let Some(kind) = &work.prefill else { return Ok(()) };
    let all = Workload::in_order(kind)?;
    let plan = FloodPlan {
        pace: Pace::Closed(8),
        warmup: Duration::ZERO,
        window: PREFILL_MAX,
        queries_max: kind.count().into(),
        ..FloodPlan::closed(listen.to_vec(), vec![core])
    };
    let (counts, _) = flood::run(&plan, &all, |_| {})?;
    ensure!(counts.replies > 0, "no reply while the cache was filled");
    Ok(())
}

impl Started {
    /// Returns the server's process and its descendants.
    ///
    /// # Errors
    /// When there is no `/proc`.
    pub fn family(&self) -> Result<std::collections::HashSet<u32>> {
        Ok(Snapshot::take()?.tree(self.running.pid()))
    }

    /// Combines measurements into a round.
    fn round(&mut self, looks: Vec<Look>) -> Result<Round> {
        let mut counts = RunCounts::default();
        let (mut until_ns, mut lines) = (0, 0);
        let mut usage = Usage { server: Duration::ZERO, server_user: Duration::ZERO, others: 0.0 };
        for look in &looks {
            counts.merge(&look.counts);
            until_ns += look.window.until_ns - look.window.from_ns;
            lines += look.lines;
            usage.server += look.usage.server;
            usage.server_user += look.usage.server_user;
            usage.others += look.usage.others / looks.len() as f64;
        }
        ensure!(counts.replies > 0, "no reply within the time that counts");
        let resident_kb = resident_kb(self.running.pid())?;
        let window = Window { from_ns: 0, until_ns };
        Ok(Round { counts, window, usage, start: self.start, resident_kb, lines })
    }
}

/// A running server that answers.
pub struct Started {
    running: Running,
    listen: [SocketAddr; 2],
    workload: Workload,
    start: Duration,
}

/// Queries until the right answer arrives.
pub(crate) fn first_answer(
    running: &mut Running,
    target: SocketAddr,
    workload: &mut Workload,
    clock: Clock,
) -> Result<()> {
    let socket = UdpSocket::bind((target.ip(), 0)).context("bind")?;
    socket.connect(target).context("connect")?;
    socket.set_nonblocking(true).context("O_NONBLOCK")?;
    let epoll = Epoll::new().context("epoll")?;
    epoll.add(&socket, 0).context("epoll")?;
    let mut events = Events::new(1);
    let (mut query, mut question, mut reply) = (Vec::new(), Vec::new(), [0; 4096]);
    let asked = workload.draw();
    workload.write_query(asked, 1, &mut query);
    workload.write_question(asked, &mut question);
    let expect = workload.expect(asked, &question);
    let mut seen = None;
    while clock.now_ns() < START_MAX.as_nanos() as u64 {
        // An error here is about the previous query: the server does not listen yet.
        if socket.send(&query).is_ok() {
            epoll.wait(&mut events, Some(ASK_AGAIN)).context("epoll")?;
        }
        match socket.recv(&mut reply) {
            Ok(length) => match judge(&reply[..length], &question, expect) {
                Judgement::Right => return Ok(()),
                verdict => seen = Some(verdict),
            },
            // The server listens, but has not answered yet: the query is in its socket's queue.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => {}
        }
        std::thread::sleep(LOOK_AGAIN);
        if let Some(status) = running.ended() {
            bail!("it ended with {status} before its first answer and printed: {}", running.last_words());
        }
    }
    let seen =
        seen.map_or_else(|| "no answer".to_owned(), |verdict| format!("no right answer ({verdict:?})"));
    bail!("{seen} within {START_MAX:?}; it printed: {}", running.last_words());
}

/// Returns the two listen addresses of a slot: as on a node, one for the node and one for the
/// cluster.
pub fn listen(slot: u8) -> [SocketAddr; 2] {
    let at = |last| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, slot, last)), 53);
    [at(10), at(11)]
}

/// Maximum number of servers that run at once.
pub(super) const SLOTS: u8 = 2 * Kind::ALL.len() as u8;
pub(crate) const UPSTREAM: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 20)), 5353);
/// Duration of one server's slice in a cycle: short compared to the seconds between changes of the
/// machine's speed.
pub(super) const SLICE: Duration = Duration::from_millis(100);
/// Load before each slice, until batches are full again and names are back in the processor's
/// caches.
pub(super) const SETTLE: Duration = Duration::from_millis(20);
/// Delay before a query is sent again, before the server listens and after a wrong answer.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// Maximum wait for a reply once the server listens; then the query counts as lost and is sent
/// again.
const ASK_AGAIN: Duration = Duration::from_millis(20);
const START_MAX: Duration = Duration::from_secs(30);
const PREFILL_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_quiet_cycles_count_and_the_quietest_stand_in() {
        let cycles = || vec![(0.5, 'a'), (0.0, 'b'), (0.01, 'c'), (0.3, 'd'), (0.0, 'e')];
        assert_eq!(quietest(cycles(), 2, 0.02), (vec!['b', 'c'], false));
        assert_eq!(quietest(cycles(), 4, 0.02), (vec!['b', 'c', 'e', 'd'], true));
        assert_eq!(quietest(cycles(), 1, 0.0), (vec!['b'], true));
    }

    #[test]
    fn every_seat_has_its_own_addresses() {
        let mut all: Vec<_> = (0..SLOTS).flat_map(listen).chain([UPSTREAM]).map(|addr| addr.ip()).collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
