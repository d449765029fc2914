//! What 500 changes of slices a second cost the queries that run meanwhile, and what a cluster's names cost beside those of a hosts
//! file.
//!
//! The API does as it is told, and its stream of changes goes on all the time: in turns to the server, and to a reader on the
//! load's core that throws it away. What is left between both is the server's own work.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::kube::{Api, Form, Reply, Request};

use super::api::{Size, objects, slice_with};
use super::subject::{Started, Subject, Who};
use super::visible;
use crate::clock::Clock;
use crate::compare::config::hosts;
use crate::flood::{self, FloodPlan, Pace};
use crate::workload::{Ask, Kind, Workload};

/// How it is measured.
pub(super) struct Plan<'p> {
    pub(super) dir: &'p Path,
    pub(super) localdns: &'p Path,
    pub(super) size: Size,
    pub(super) rounds: u32,
    pub(super) window: Duration,
    /// Queries a second where they are timed.
    pub(super) rate: u64,
    pub(super) server_core: usize,
    pub(super) load_core: usize,
}

/// Rates in replies a second, and p99.9 in microseconds, of each round.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) hosts: Vec<f64>,
    pub(super) quiet: Vec<f64>,
    pub(super) changing: Vec<f64>,
    pub(super) quiet_p999_us: Vec<f64>,
    pub(super) changing_p999_us: Vec<f64>,
}

/// Runs all rounds.
///
/// # Errors
/// When the server does not start, answers wrongly, or has not seen every change.
pub(super) fn measure(plan: &Plan<'_>) -> Result<Seen> {
    sockets::pin_to_core(plan.load_core).with_context(|| format!("core {}", plan.load_core))?;
    let api = Scripted::start(plan.size)?;
    let names = plan.dir.join("names");
    fs::write(&names, known(plan.size)).with_context(|| names.display().to_string())?;
    let mut server = start(plan, &api)?;
    let cluster = Workload::new(&[Ask { kind: Kind::File(names), weight: 1 }], 1)?;
    let of_hosts = Workload::new(&[Ask { kind: Kind::Hosts(HOSTS), weight: 1 }], 1)?;
    let mut seen = Seen::default();
    for _ in 0..plan.rounds {
        for changing in [false, true] {
            api.to_server.store(changing, Relaxed);
            let closed = FloodPlan { window: plan.window, ..flood_plan(plan) };
            if !changing {
                seen.hosts.push(load(&mut server, &closed, &of_hosts)?.0);
            }
            let (rate, _) = load(&mut server, &closed, &cluster)?;
            let open = FloodPlan { pace: Pace::Open(plan.rate), ..closed };
            let (_, p999) = load(&mut server, &open, &cluster)?;
            let (rates, p999s) = match changing {
                false => (&mut seen.quiet, &mut seen.quiet_p999_us),
                true => (&mut seen.changing, &mut seen.changing_p999_us),
            };
            rates.push(rate);
            p999s.push(p999);
            eprintln!("changing {changing}: {rate:.0}/s, p99.9 {p999:.0} us");
        }
    }
    // The stream is in order: where the last is seen, all were.
    let address = api.end(plan.size)?;
    server.probe.until(&plan.size.changed(), address)?;
    Ok(seen)
}

fn start(plan: &Plan<'_>, api: &Scripted) -> Result<Started> {
    let table = plan.dir.join("hosts");
    fs::write(&table, hosts(HOSTS)).with_context(|| table.display().to_string())?;
    let endpoint = format!("endpoint {}", api.api.url());
    let subject = Subject::new(Who::Localdns, plan.localdns, plan.dir, &endpoint)?.with_hosts(&table)?;
    let (name, address) = plan.size.known(0);
    Ok(subject.start(&[plan.server_core], (&name, address))?.0)
}

fn flood_plan(plan: &Plan<'_>) -> FloodPlan {
    FloodPlan::closed(vec![SocketAddr::new(Who::Localdns.address(), 53)], vec![plan.load_core])
}

/// Replies a second, and p99.9 in microseconds.
fn load(server: &mut Started, plan: &FloodPlan, workload: &Workload) -> Result<(f64, f64)> {
    let (counts, window) = flood::run(plan, workload, |_| {})?;
    server.look()?;
    ensure!(counts.wrong() == 0, "{} wrong replies", counts.wrong());
    let [_, _, p999, _] = counts.latency_us();
    Ok((counts.replies as f64 / window.seconds(), p999))
}

/// Lines of a workload: services that changes leave alone.
fn known(size: Size) -> String {
    let own = (0..size.services).filter(|number| !super::api::is_headless(*number));
    own.map(|number| {
        let (name, address) = size.known(number);
        format!("{name} A NOERROR {address}\n")
    })
    .collect()
}

/// An API whose slices change all the time.
struct Scripted {
    api: Api,
    /// Whether changes go to the server, or to who throws them away.
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

    /// Ends the changes with one that can be asked for.
    fn end(&self, size: Size) -> Result<Ipv4Addr> {
        self.over.store(true, Relaxed);
        let address = visible::address(1);
        // Behind whatever the other thread still sends.
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

/// Each kind's list, as a watch begins with it.
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

/// Changes one slice after the other, so many a second.
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
