//! Measures the cost of 500 slice changes a second to concurrent queries, and the cost of a
//! cluster's names compared to a hosts file: one with the short names of other measurements, and
//! one with the same names in an otherwise equal server block.
//!
//! The API is scripted and sends changes all the time, in turns to the server and to a reader on
//! the load's core that discards them. The difference between the two is the server's own work.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use testkit::kube::{Api, Form, Reply, Request};

use super::api::{Size, objects, slice_with};
use super::subject::{ServerKind, Started, Subject};
use super::visible;
use crate::compare::config::hosts;
use crate::compare::proc::Snapshot;
use load::clock::Clock;
use load::flood::{self, FloodPlan, Pace};
use load::random::Random;
use load::workload::{Ask, Kind, Workload};

/// Settings of the measurement.
pub(super) struct ChurnPlan<'p> {
    pub(super) dir: &'p Path,
    pub(super) localdns: &'p Path,
    pub(super) size: Size,
    pub(super) rounds: u32,
    pub(super) window: Duration,
    /// Queries a second in timed loads.
    pub(super) rate: u64,
    pub(super) server_core: usize,
    pub(super) load_core: usize,
}

/// Measurements of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    /// Hits of short names in a hosts file.
    pub(super) hosts: Load,
    /// Hits of the services' names in a hosts file.
    pub(super) same_names: Load,
    pub(super) quiet: Load,
    pub(super) changing: Load,
    /// `quiet` and `changing` at a fixed query rate.
    pub(super) quiet_timed: Load,
    pub(super) changing_timed: Load,
}

/// Measurements of one load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Replies a second.
    pub(super) rate: f64,
    /// The server's processor time for each reply in microseconds: all of it, and the part outside
    /// the kernel.
    pub(super) cpu_us: [f64; 2],
    pub(super) p999_us: f64,
}

/// Runs all rounds.
///
/// # Errors
/// When the server does not start, answers wrongly, or has missed a change.
pub(super) fn measure(plan: &ChurnPlan<'_>) -> Result<Vec<Round>> {
    sockets::pin_to_core(plan.load_core).with_context(|| format!("core {}", plan.load_core))?;
    let api = Scripted::start(plan.size)?;
    let names = plan.dir.join("names");
    fs::write(&names, known(plan.size)).with_context(|| names.display().to_string())?;
    let mut server = start(plan, &api)?;
    let cluster = Workload::new(&[Ask { kind: Kind::File(names), weight: 1 }], 1)?;
    let of_hosts = Workload::new(&[Ask { kind: Kind::Hosts(HOSTS), weight: 1 }], 1)?;
    let [closed, same_names] = [DNS, SAME_NAMES].map(|port| flood_plan(plan, port));
    let timed = FloodPlan { pace: Pace::Open(plan.rate), ..closed.clone() };
    let mut rounds = Vec::new();
    for number in 0..plan.rounds {
        let mut round = Round::default();
        // The order alternates, so that a drift of the machine's speed affects both.
        for changing in [number % 2 == 1, number % 2 == 0] {
            api.to_server.store(changing, Relaxed);
            if changing {
                round.changing = load(&mut server, &closed, &cluster)?;
                round.changing_timed = load(&mut server, &timed, &cluster)?;
            } else {
                round.hosts = load(&mut server, &closed, &of_hosts)?;
                round.same_names = load(&mut server, &same_names, &cluster)?;
                round.quiet = load(&mut server, &closed, &cluster)?;
                round.quiet_timed = load(&mut server, &timed, &cluster)?;
            }
        }
        eprintln!("{round:?}");
        rounds.push(round);
    }
    // The stream is in order: once the last change is visible, the server has read all changes.
    let address = api.end(plan.size)?;
    server.probe.until(&plan.size.changed(), address)?;
    Ok(rounds)
}

fn start(plan: &ChurnPlan<'_>, api: &Scripted) -> Result<Started> {
    let [table, same_names] = ["hosts", "same-names"].map(|name| plan.dir.join(name));
    fs::write(&table, hosts(HOSTS)).with_context(|| table.display().to_string())?;
    fs::write(&same_names, known_hosts(plan.size)).with_context(|| same_names.display().to_string())?;
    let endpoint = format!("endpoint {}", api.api.url());
    let subject = Subject::new(ServerKind::Localdns, plan.localdns, plan.dir, &endpoint)?;
    let subject = subject.with_hosts(&table, (SAME_NAMES, &same_names))?;
    let (name, address) = plan.size.known(0);
    Ok(subject.start(&[plan.server_core], (&name, address))?.0)
}

fn flood_plan(plan: &ChurnPlan<'_>, port: u16) -> FloodPlan {
    let targets = vec![SocketAddr::new(ServerKind::Localdns.address(), port)];
    let (warmup, window) = (plan.window / 2, plan.window);
    FloodPlan { warmup, window, ..FloodPlan::closed(targets, vec![plan.load_core]) }
}

fn load(server: &mut Started, plan: &FloodPlan, workload: &Workload) -> Result<Load> {
    let mut looks = Vec::new();
    let (counts, window) = flood::run(plan, workload, |_| looks.push(Snapshot::take()))?;
    server.look()?;
    ensure!(counts.wrong() == 0, "{} wrong replies", counts.wrong());
    let looks: Vec<_> = looks.into_iter().collect::<Result<_>>()?;
    let [before, after] = &looks[..] else { bail!("a load has a beginning and an end") };
    let passed = Duration::from_secs_f64(window.seconds());
    let usage = after.since(before, passed, server.running.pid(), std::process::id());
    let [_, _, p999_us, _] = counts.latency_us();
    let each = |spent: Duration| spent.as_secs_f64() * 1e6 / counts.replies.max(1) as f64;
    Ok(Load {
        rate: counts.replies as f64 / window.seconds(),
        cpu_us: [usage.server, usage.server_user].map(each),
        p999_us,
    })
}

/// Returns the lines of a workload: services without changes, in random order. In the order of a
/// hosts file each record would follow the previous one in memory, already in the processor's
/// cache.
pub(super) fn known(size: Size) -> String {
    let mut names: Vec<_> = unchanged(size).collect();
    let mut random = Random::new(1);
    for last in (1..names.len()).rev() {
        names.swap(last, random.below(last as u32 + 1) as usize);
    }
    names.into_iter().map(|(name, address)| format!("{name} A NOERROR {address}\n")).collect()
}

/// Returns the same names as lines of a hosts file.
fn known_hosts(size: Size) -> String {
    unchanged(size).map(|(name, address)| format!("{address} {name}\n")).collect()
}

fn unchanged(size: Size) -> impl Iterator<Item = (String, Ipv4Addr)> {
    let own = (0..size.services).filter(|number| !super::api::is_headless(*number));
    own.map(move |number| size.known(number))
}

/// An API with slices that change all the time.
struct Scripted {
    api: Api,
    /// Whether changes are sent to the server, or to the reader that discards them.
    to_server: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    server: Sender<Vec<u8>>,
    version: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Scripted {
    fn start(size: Size) -> Result<Self> {
        let lists = lists(size);
        let (server, to_server) = channel();
        let (reader, to_reader) = channel();
        let live = [Mutex::new(Some(to_server)), Mutex::new(Some(to_reader))];
        let api = Api::start(move |request| reply(request, &lists, &live));
        let version = Arc::new(AtomicU64::new(FIRST_VERSION));
        let (direction, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let stream = thread::spawn({
            let (server, version) = (server.clone(), version.clone());
            let (direction, over) = (direction.clone(), over.clone());
            move || change(size, [&reader, &server], &version, &direction, &over)
        });
        let throwing = TcpStream::connect(api.address()).context("the scripted API")?;
        let reading = thread::spawn(move || throw_away(throwing));
        Ok(Self { api, to_server: direction, over, server, version, threads: vec![stream, reading] })
    }

    /// Ends the changes with one that is visible to a query; returns the address of that change.
    fn end(&self, size: Size) -> Result<Ipv4Addr> {
        self.over.store(true, Relaxed);
        let address = visible::address(1);
        // Newer than every version that the other thread may still send.
        let version = self.version.fetch_add(LEAP, Relaxed) + LEAP;
        let object = slice_with(size.services, address, version);
        self.server.send(FORM.event("MODIFIED", "EndpointSlice", &object)).context("the server has left")?;
        Ok(address)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        self.api.cut();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// Returns each kind's list, as the start of a watch.
pub(super) fn lists(size: Size) -> [(String, Vec<u8>); 3] {
    objects(size).map(|(kind, path, objects)| {
        let mut octets: Vec<u8> =
            objects.iter().flat_map(|object| FORM.event("ADDED", kind, object)).collect();
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let end: Value =
            json!({"metadata": {"resourceVersion": FIRST_VERSION.to_string(), "annotations": annotations}});
        octets.extend(FORM.event("BOOKMARK", kind, &end));
        (path.to_owned(), octets)
    })
}

fn reply(
    request: &Request,
    lists: &[(String, Vec<u8>); 3],
    live: &[Mutex<Option<Receiver<Vec<u8>>>>; 2],
) -> Reply {
    let take = |at: usize| live[at].lock().ok().and_then(|mut live| live.take());
    let begun = Reply::watch(FORM);
    let Some((path, list)) = lists.iter().find(|(path, _)| *path == request.path) else {
        return match take(1) {
            Some(live) => begun.live(live),
            None => Reply::failure(FORM, 404, "NotFound"),
        };
    };
    if !request.is_watch_list() {
        return Reply::failure(FORM, 410, "Expired");
    }
    let begun = begun.octets(list.clone());
    match path.ends_with("endpointslices").then(|| take(0)).flatten() {
        Some(live) => begun.live(live),
        None => begun.stall(),
    }
}

/// Sends changes of one slice after the other, `CHANGES_A_SECOND`.
fn change(
    size: Size,
    [reader, server]: [&Sender<Vec<u8>>; 2],
    version: &AtomicU64,
    to_server: &AtomicBool,
    over: &AtomicBool,
) {
    let clock = Clock::start();
    let every_ns = Duration::from_secs(1).as_nanos() as u64 / CHANGES_A_SECOND;
    for number in 1u32.. {
        clock.sleep_until(u64::from(number) * every_ns);
        if over.load(Relaxed) {
            return;
        }
        let version = version.fetch_add(1, Relaxed) + 1;
        let object = slice_with(number % size.services, visible::address(number), version);
        let to = if to_server.load(Relaxed) { server } else { reader };
        if to.send(FORM.event("MODIFIED", "EndpointSlice", &object)).is_err() {
            return;
        }
    }
}

fn throw_away(mut stream: TcpStream) {
    let mut octets = vec![0; 64 << 10];
    if stream.write_all(b"GET /thrown-away HTTP/1.1\r\nHost: api\r\n\r\n").is_ok() {
        while matches!(stream.read(&mut octets), Ok(1..)) {}
    }
}

pub(super) const FORM: Form = Form::Protobuf;
const FIRST_VERSION: u64 = 1_000;
const LEAP: u64 = 1_000_000;
const CHANGES_A_SECOND: u64 = 500;
const HOSTS: u32 = 10_000;
const DNS: u16 = 53;
/// The port at which a hosts file answers for the services' names.
const SAME_NAMES: u16 = 54;
