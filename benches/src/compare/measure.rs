//! One round: a server is started on its core, asked, watched and ended.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sockets::{Epoll, Events, Interest};

use super::config::Place;
use super::proc::{Snapshot, Usage, resident_kb};
use super::process::{Launch, Running};
use super::servers::{Kind, Server};
use super::work::{Source, Work};
use crate::clock::Clock;
use crate::flood::{self, Edge, Pace, Plan};
use crate::judge::{Verdict, judge};
use crate::tally::{Tally, Window};
use crate::workload::Workload;

/// What all rounds have in common.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Where files are written.
    pub dir: PathBuf,
    /// This program, for echo, relay and upstream.
    pub myself: PathBuf,
    /// The server's core.
    pub server_core: usize,
    /// The load's, one thread each.
    pub load_cores: Vec<usize>,
    /// The upstream's.
    pub upstream_core: usize,
    /// Load before what counts.
    pub warmup: Duration,
    /// What counts.
    pub window: Duration,
    /// After which a query is lost.
    pub patience: Duration,
}

/// What one round showed.
#[derive(Clone, Debug)]
pub struct Round {
    /// Counts and latency.
    pub tally: Tally,
    /// The time that counted.
    pub window: Window,
    /// Processor time of the server and of others.
    pub usage: Usage,
    /// From the server's start to its first right answer.
    pub start: Duration,
    /// Resident memory after the load.
    pub resident_kb: u64,
    /// Lines that it printed while it counted.
    pub lines: u64,
}

impl Round {
    /// Replies a second.
    pub fn rate(&self) -> f64 {
        self.tally.replies as f64 / self.window.seconds()
    }

    /// Processor time of the server for each reply, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.each_us(self.usage.server)
    }

    /// What of that was spent outside the kernel.
    pub fn user_us(&self) -> f64 {
        self.each_us(self.usage.server_user)
    }

    fn each_us(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / (self.tally.replies.max(1) as f64)
    }
}

impl Bench {
    /// Runs one round. `seed` chooses the names.
    ///
    /// # Errors
    /// When the server does not start, does not answer, or ends.
    pub fn round(&self, server: &Server, work: &Work, pace: Pace, seed: u64) -> Result<Round> {
        let mut started = self.start(server, work, seed)?;
        self.load(&mut started, work, pace)
    }

    /// Starts a server for a row, and its upstream; waits for the first right answer and fills the cache.
    ///
    /// # Errors
    /// When the server does not start or does not answer.
    pub fn start(&self, server: &Server, work: &Work, seed: u64) -> Result<Started> {
        if self.dir.exists() {
            fs::remove_dir_all(&self.dir).with_context(|| self.dir.display().to_string())?;
        }
        fs::create_dir_all(&self.dir).with_context(|| self.dir.display().to_string())?;
        let mut cores = vec![self.server_core];
        if work.all_cores {
            cores.extend(&self.load_cores);
        }
        let place = place(&self.dir, cores.len());
        let mut workload = Workload::new(&work.asks, seed)?;
        if !server.kind.knows_names() {
            workload = workload.unjudged();
        }
        let upstream = match work.source {
            Source::Upstream(_) if server.kind != Kind::Echo => {
                Some(start_upstream(&self.myself, self.upstream_core)?)
            }
            _ => None,
        };
        let launch = server.launch(work, &place)?;
        let clock = Clock::start();
        let mut running = Running::start(&launch, &cores)?;
        first_answer(&mut running, LISTEN[0], &mut workload, clock)?;
        let start = Duration::from_nanos(clock.now_ns());
        if server.kind.knows_names() {
            prefill(work, self.load_cores[0])?;
        }
        Ok(Started { running, _upstream: upstream, workload, start })
    }

    /// Puts load on a started server and watches it.
    ///
    /// # Errors
    /// When the server ends, or nothing comes back.
    pub fn load(&self, started: &mut Started, work: &Work, pace: Pace) -> Result<Round> {
        let plan = Plan {
            transport: work.transport,
            pace,
            warmup: self.warmup,
            window: self.window,
            patience: self.patience,
            // Sleeping costs the exact time of a reply; never sleeping costs whoever shares the core.
            spin: matches!(pace, Pace::Open(_)) && !work.shares_core(),
            ..Plan::closed(LISTEN.to_vec(), self.load_cores.clone())
        };
        let clock = Clock::start();
        let mut edges = Vec::with_capacity(2);
        let look = |_: Edge| edges.push((clock.now_ns(), Snapshot::take(), started.running.lines()));
        let (tally, window) = flood::run(&plan, &started.workload, look)?;
        let resident_kb = resident_kb(started.running.pid())?;
        if let Some(status) = started.running.ended() {
            bail!("it ended under load with {status} and printed: {}", started.running.last_words());
        }
        ensure!(tally.replies > 0, "no reply within the time that counts");
        let [(from_ns, before, lines_before), (until_ns, after, lines_after)] =
            <[_; 2]>::try_from(edges).ok().context("a window has two edges")?;
        let passed = Duration::from_nanos(until_ns - from_ns);
        let usage = after?.since(&before?, passed, started.running.pid(), std::process::id());
        Ok(Round {
            tally,
            window,
            usage,
            start: started.start,
            resident_kb,
            lines: lines_after - lines_before,
        })
    }
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

/// Asks each name once that is to be in the cache.
pub(crate) fn prefill(work: &Work, core: usize) -> Result<()> {
    let Some(kind) = &work.prefill else { return Ok(()) };
    let all = Workload::in_order(kind)?;
    let plan = Plan {
        pace: Pace::Closed(8),
        warmup: Duration::ZERO,
        window: PREFILL_MAX,
        queries_max: kind.count().into(),
        ..Plan::closed(LISTEN.to_vec(), vec![core])
    };
    let (tally, _) = flood::run(&plan, &all, |_| {})?;
    ensure!(tally.replies > 0, "no reply while the cache was filled");
    Ok(())
}

impl Started {
    /// The server's process, and all that it started.
    ///
    /// # Errors
    /// When there is no `/proc`.
    pub fn family(&self) -> Result<std::collections::HashSet<u32>> {
        Ok(Snapshot::take()?.tree(self.running.pid()))
    }
}

/// A server that answers.
pub struct Started {
    running: Running,
    _upstream: Option<Running>,
    workload: Workload,
    start: Duration,
}

/// Asks one question until the right answer comes.
pub(crate) fn first_answer(
    running: &mut Running,
    target: SocketAddr,
    workload: &mut Workload,
    clock: Clock,
) -> Result<()> {
    let socket = UdpSocket::bind((LISTEN[0].ip(), 0)).context("bind")?;
    socket.connect(target).context("connect")?;
    socket.set_nonblocking(true).context("O_NONBLOCK")?;
    let epoll = Epoll::new().context("epoll")?;
    epoll.add(&socket, 0, Interest::Readable).context("epoll")?;
    let mut events = Events::new(1);
    let (mut query, mut question, mut reply) = (Vec::new(), Vec::new(), [0; 4096]);
    let asked = workload.draw();
    workload.write_query(asked, 1, &mut query);
    workload.write_question(asked, &mut question);
    let expect = workload.expect(asked, &question);
    let mut seen = None;
    while clock.now_ns() < START_MAX.as_nanos() as u64 {
        // An error is what the network says about the query before: nobody listens yet.
        if socket.send(&query).is_ok() {
            epoll.wait(&mut events, Some(ASK_AGAIN)).context("epoll")?;
        }
        match socket.recv(&mut reply) {
            Ok(length) => match judge(&reply[..length], &question, expect) {
                Verdict::Right => return Ok(()),
                verdict => seen = Some(verdict),
            },
            // It listens, and has not answered yet: the query waits in its socket.
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

/// Where everything is, within the namespace.
pub(crate) fn place(dir: &Path, workers: usize) -> Place<'_> {
    Place { dir, listen: &LISTEN, upstream: UPSTREAM, workers }
}

/// Where servers listen: two addresses, as a node's server has: one for the node, one for the cluster.
pub const LISTEN: [SocketAddr; 2] = [
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 10)), 53),
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 11)), 53),
];
pub(crate) const UPSTREAM: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 20)), 5353);
/// Before a server listens, and after a wrong answer.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// Once it listens: only what was lost is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(20);
const START_MAX: Duration = Duration::from_secs(30);
const PREFILL_MAX: Duration = Duration::from_secs(300);
