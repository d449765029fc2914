//! Regression tests: how far a panic reaches.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use sockets::BATCH;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;
use wire::{Flags, Name, RType};

mod restarts;
mod transfers;
mod turns;

use super::worker_tasks::{ASKS, Task};
use super::{BindError, Endpoints, InFlight, ServerState, StreamResults};
use crate::failpoint::{HALTED, SICK, is_halted, turns};
use configuration::{Configuration, PersistentState};
use forwarder::Streams;
use logging::captured_log::CapturedLog;
use logging::{Format, Logger};
use node::AddressPolicy;

const NOERROR: u8 = 0;
const SERVFAIL: u8 = 2;
const REFUSED: u8 = 5;

#[test]
fn a_packet_that_panics_is_answered_servfail_and_the_next_one_is_served() {
    let scene = Scene::start(2, "");
    for n in 1..=20 {
        assert_eq!(scene.ask("panic-packet.example"), Some(SERVFAIL), "{n}");
        assert_eq!(scene.ask(&format!("udp-{n}.example")), Some(NOERROR));
        assert_eq!(scene.counted(), (n, 0));
    }
    let mut stream = TcpStream::connect(scene.at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for (name, rcode) in [("panic-packet.example", SERVFAIL), ("tcp.example", NOERROR)] {
        let packet = packet(name);
        stream.write_all(&[&(packet.len() as u16).to_be_bytes()[..], &packet].concat()).unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        let mut reply = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[3] & 15, rcode, "{name}");
    }
    assert_eq!(scene.counted(), (21, 0));
}

#[test]
fn a_packet_that_panics_in_the_gate_costs_no_other_of_its_batch() {
    let scene = Scene::start(1, "");
    let clients = scene.at_once(&["one.example", "panic-gate.example", "two.example"]);
    let [one, bad, two] = &clients[..] else { unreachable!() };
    assert_eq!([one, two].map(rcode), [Some(NOERROR); 2]);
    let (panics, restarts) = scene.counted();
    assert_eq!(panics - restarts, 2, "to serve it, and to report it");
    // The next query gets its own reply.
    bad.send(&packet("panic-packet.example")).unwrap();
    assert_eq!((rcode(bad), scene.counted()), (Some(SERVFAIL), (panics + 1, restarts)));
    bad.set_nonblocking(true).unwrap();
    assert_eq!(rcode(bad), None);
}

#[test]
fn a_log_line_that_panics_costs_neither_its_reply_nor_other_lines() {
    let scene = Scene::with(1, "", "log\ntemplate IN A hit {\nrcode NOERROR\n}");
    for place in ["log", "reread"] {
        let names =
            [format!("before-{place}.hit"), format!("panic-{place}.hit"), format!("after-{place}.hit")];
        let before = scene.counted();
        let clients = scene.at_once(&names.each_ref().map(String::as_str));
        assert!(clients.iter().all(|client| rcode(client) == Some(NOERROR)), "{place}");
        scene.wait("the lines around it", || scene.logged(&names[0]) && scene.logged(&names[2]));
        let (panics, restarts) = scene.counted();
        assert_eq!((panics - before.0) - (restarts - before.1), 1, "{place}");
        assert!(!scene.logged(&names[1]), "{place}");
    }
    // A query with an upstream's answer, and others that join its flight.
    let before = scene.counted();
    let clients: Vec<UdpSocket> = scene.at_once(&["panic-log.example"; 3]);
    assert!(clients.iter().all(|client| rcode(client) == Some(NOERROR)));
    scene.wait("a panic for each", || (scene.counted().0 - before.0) - (scene.counted().1 - before.1) == 3);
}

/// A forwarder that panicked is not used again, and its waiters are answered.
#[test]
fn panicked_forwarder_answers_waiters() {
    // When a query is sent, when a truncated reply is repeated over TCP, and when a timer repeats
    // the query.
    for place in ["send", "exchange", "again"] {
        let scene = Scene::start(1, "max_concurrent 4");
        let mut stream = TcpStream::connect(scene.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let silent = packet(&format!("silent-tcp-{place}.example"));
        stream.write_all(&[&(silent.len() as u16).to_be_bytes()[..], &silent].concat()).unwrap();
        let twice: Vec<UdpSocket> = (0..2).map(|_| scene.client()).collect();
        for client in &twice {
            client.send(&packet(&format!("silent-{place}.example"))).unwrap();
        }
        scene.wait("two queries in flight", || scene.in_flight() == 2);
        // One of these queries joins the flight of the other.
        assert_eq!(scene.ask(&format!("good-{place}.example")), Some(NOERROR));
        let culprit = scene.client();
        culprit.send(&packet(&format!("panic-{place}.example"))).unwrap();
        assert_eq!(rcode(&culprit), Some(SERVFAIL), "{place}");
        assert!(twice.iter().all(|client| rcode(client) == Some(SERVFAIL)), "{place}");
        let mut reply = [0; 6];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[5] & 15, SERVFAIL, "{place}");
        assert_eq!((scene.counted(), scene.in_flight()), ((1, 0), 0), "{place}");
        // All places are free again, with the same limit.
        let clients: Vec<UdpSocket> = (0..4).map(|_| scene.client()).collect();
        for (n, client) in clients.iter().enumerate() {
            client.send(&packet(&format!("silent-{n}-{place}.example"))).unwrap();
        }
        scene.wait("four queries in flight", || scene.in_flight() == 4);
        assert_eq!(scene.ask(&format!("fifth-{place}.example")), Some(REFUSED), "{place}");
    }
}

/// A query that waits for two subqueries is answered if the forwarder of these panics.
#[test]
fn suspended_query_answered_after_panic() {
    let answer = |target: &str| format!("answer \"{{{{ .Name }}}} 60 IN CNAME {target}.example.\"");
    let template = format!("template IN A two {{\n{}\n{}\n}}", answer("silent-one"), answer("silent-two"));
    let scene = Scene::with(1, "", &template);
    let client = scene.client();
    client.send(&packet("both.two")).unwrap();
    scene.wait("both at the upstream", || scene.asked("silent-one") && scene.asked("silent-two"));
    assert_eq!(scene.ask("panic-send.example"), Some(SERVFAIL));
    // The reply has two aliases without targets.
    assert_eq!((rcode(&client), scene.counted()), (Some(NOERROR), (1, 0)));
}

#[test]
fn an_upstreams_reply_that_panics_costs_its_own_query_alone() {
    let scene = Scene::start(1, "max_concurrent 2");
    // Another query in flight is not affected.
    let silent = scene.client();
    silent.send(&packet("silent.example")).unwrap();
    scene.wait("a query in flight", || scene.in_flight() == 1);
    for n in 1..=5 {
        assert_eq!(scene.ask("panic-reply.example"), Some(SERVFAIL), "{n}");
        assert_eq!(scene.ask("good.example"), Some(NOERROR));
        assert_eq!((scene.counted(), scene.in_flight()), ((n, 0), 1));
    }
    // A panic in the error report too leaves the client without a reply.
    let lost = scene.client();
    lost.send(&packet("panic-deliver.example")).unwrap();
    scene.wait("the panic", || scene.counted() == (6, 0));
    scene.wait("its place", || scene.in_flight() == 1);
    assert_eq!(scene.ask("good.example"), Some(NOERROR));
}

#[test]
fn letters_behind_one_that_panics_are_read() {
    let scene = Scene::start(1, "");
    for n in 1..=20 {
        let mut stream = TcpStream::connect(scene.at).unwrap();
        let packet = packet(&format!("panic-task.n{n}.example"));
        stream.write_all(&[&(packet.len() as u16).to_be_bytes()[..], &packet].concat()).unwrap();
        for _ in 0..50 {
            let (sender, mut receiver) = mpsc::channel::<()>(1);
            scene.running.inboxes[0].post(Task::Barrier(sender));
            let read = async { tokio::time::timeout(PATIENCE, receiver.recv()).await };
            assert!(RUNTIME.block_on(read).is_ok(), "a task was lost");
        }
        scene.wait("the restart", || scene.counted() == (n, n));
    }
}

/// Queries beyond the limit of a worker's queue are answered with a failure, and the others are
/// forwarded.
#[test]
fn queue_limit_answers_excess_queries() {
    let scene = Scene::start(1, "max_concurrent 9000");
    HALTED.lock().unwrap().push(scene.running.shared.probe);
    let streams: Vec<TcpStream> = (0..65)
        .map(|n| {
            let mut stream = TcpStream::connect(scene.at).unwrap();
            let framed = |i| {
                let packet = packet(&format!("silent-{n}-{i}.example"));
                [&(packet.len() as u16).to_be_bytes()[..], &packet].concat()
            };
            stream.write_all(&(0..64).flat_map(framed).collect::<Vec<u8>>()).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    // The room of each connection is used up by its immediate replies: 64 queries were sent.
    scene.wait("the end of the room", || scene.running.shed.get() == 65 * 64 - u64::from(ASKS));
    let mut octets = vec![Vec::new(); streams.len()];
    let replies = |octets: &[Vec<u8>]| -> Vec<u8> {
        let mut rcodes = Vec::new();
        for mut rest in octets.iter().map(Vec::as_slice) {
            while let Some((length, after)) = rest.split_first_chunk::<2>() {
                let Some((reply, after)) = after.split_at_checked(u16::from_be_bytes(*length).into()) else {
                    break;
                };
                rcodes.push(reply[3] & 15);
                rest = after;
            }
        }
        rcodes
    };
    scene.wait("their replies", || {
        for (mut stream, octets) in streams.iter().zip(&mut octets) {
            let mut some = [0; 8192];
            if let Ok(count) = stream.read(&mut some) {
                octets.extend_from_slice(&some[..count]);
            }
        }
        replies(&octets).len() >= 65 * 64 - ASKS as usize
    });
    assert_eq!(replies(&octets), vec![SERVFAIL; 65 * 64 - ASKS as usize]);
    // Queries of other clients are accepted, and the server's own tasks always are.
    let other = RUNTIME.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        socket.connect(scene.at).await.unwrap().into_std().unwrap()
    });
    other.set_nonblocking(false).unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    let packet = packet("good.example");
    (&other).write_all(&[&(packet.len() as u16).to_be_bytes()[..], &packet].concat()).unwrap();
    scene.wait("its query among them", || scene.running.inboxes[0].asks() == ASKS + 1);
    let (sender, mut receiver) = mpsc::channel::<()>(1);
    scene.running.inboxes[0].post(Task::Barrier(sender));
    HALTED.lock().unwrap().retain(|halted| *halted != scene.running.shared.probe);
    let read = async { tokio::time::timeout(PATIENCE, receiver.recv()).await };
    assert!(RUNTIME.block_on(read).is_ok(), "the task behind them");
    let mut reply = [0; 6];
    (&other).read_exact(&mut reply).unwrap();
    assert_eq!(reply[5] & 15, NOERROR, "it is asked as soon as the worker goes on");
    assert_eq!(scene.running.shed.get(), 65 * 64 - u64::from(ASKS));
    scene.wait("the others at the upstream", || scene.in_flight() == ASKS);
}

#[test]
fn what_waits_at_an_address_that_a_reload_closes_is_answered_a_batch_in_each_turn() {
    let mut scene = Scene::with(1, "", "bind 127.0.0.2\ntemplate IN A hit {\nrcode NOERROR\n}");
    let closing = SocketAddr::new([127, 0, 0, 2].into(), scene.at.port());
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(closing).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let probe = scene.running.shared.probe;
    HALTED.lock().unwrap().push(probe);
    // A client's socket has room for this many replies.
    let batches = 3;
    for n in 0..batches * BATCH {
        client.send(&packet(&format!("n{n}.hit"))).unwrap();
    }
    // The worker halts at the start of a turn, before it has read the first of the queries.
    scene.wait("the worker's halt", || is_halted(&probe));
    let before = turns(&probe) - 1;
    let mut server = scene.server.take().unwrap();
    let corefile = scene.corefile("");
    let configuration = scene.running.configuration.load_full();
    thread::scope(|scope| {
        let reload = scope.spawn(|| server.reload(&corefile));
        scene.wait("the new configuration", || {
            !Arc::ptr_eq(&configuration, &scene.running.configuration.load())
        });
        HALTED.lock().unwrap().retain(|halted| *halted != probe);
        for n in 0..batches * BATCH {
            assert_eq!(rcode(&client), Some(NOERROR), "{n}");
        }
        reload.join().unwrap();
    });
    assert!(turns(&probe) - before >= batches as u64, "no turn takes more than one batch of it");
    // The socket is closed once the reload is complete: the address is free.
    drop(UdpSocket::bind(closing).unwrap());
    assert_eq!(scene.ask("good.example"), Some(NOERROR));
}

/// A server in this process, with a mock upstream that does not answer names beginning with
/// `silent`.
struct Scene {
    server: Option<Server>,
    running: Arc<ServerState>,
    at: SocketAddr,
    asked: Arc<Mutex<Vec<Vec<u8>>>>,
    log: CapturedLog,
    first: String,
    _fatal: mpsc::UnboundedReceiver<String>,
}

impl Scene {
    fn start(workers: usize, properties: &str) -> Self {
        Self::with(workers, properties, "")
    }

    fn with(workers: usize, properties: &str, directives: &str) -> Self {
        Self::on(&RUNTIME, workers, properties, directives)
    }

    fn on(streams: &'static Runtime, workers: usize, properties: &str, directives: &str) -> Self {
        let asked = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let upstream = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Room for a burst of queries while another thread runs; no more than net.core.rmem_max.
        socket2::SockRef::from(&upstream).set_recv_buffer_size(4 << 20).unwrap();
        let to = upstream.local_addr().unwrap();
        let heard = asked.clone();
        thread::spawn(move || answer(&upstream, &heard));
        let (fatal, fatal_messages) = mpsc::unbounded_channel();
        let log = CapturedLog::default();
        // Another program may have taken the port since.
        let (at, first, server) = (0..10)
            .find_map(|_| {
                let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
                let first = format!(
                    ".:{} {{\nbind {}\nmultisocket {workers}\nforward . {to} {{\nprefer_udp\n{properties}\n}}\n",
                    at.port(),
                    at.ip()
                );
                let logger = Logger::start(Format::Text, log.clone()).unwrap();
                let corefile = format!("{first}{directives}\n}}\n");
                let server = Server::start(&corefile, streams.handle(), logger, fatal.clone()).ok()?;
                Some((at, first, server))
            })
            .unwrap();
        let running = server.running.clone();
        Self { server: Some(server), running, at, asked, log, first, _fatal: fatal_messages }
    }

    /// Returns the server's Corefile with these directives.
    fn corefile(&self, directives: &str) -> String {
        format!("{}{directives}\n}}\n", self.first)
    }

    fn client(&self) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.at).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Returns the rcode of the reply to one UDP client; `None` without a reply.
    fn ask(&self, name: &str) -> Option<u8> {
        let client = self.client();
        client.send(&packet(name)).unwrap();
        rcode(&client)
    }

    /// Sends the clients' queries in one batch, while the only worker rests after a restart.
    fn at_once(&self, names: &[&str]) -> Vec<UdpSocket> {
        let restarts = self.counted().1;
        SICK.lock().unwrap().push(self.running.shared.probe);
        self.wait("a restart", || self.counted().1 > restarts);
        let clients: Vec<UdpSocket> = names.iter().map(|_| self.client()).collect();
        for (client, name) in clients.iter().zip(names) {
            client.send(&packet(name)).unwrap();
        }
        SICK.lock().unwrap().retain(|sick| *sick != self.running.shared.probe);
        clients
    }

    /// Whether the log has this text.
    fn logged(&self, text: &str) -> bool {
        self.log.text().contains(text)
    }

    /// Returns the numbers of panics and restarts.
    fn counted(&self) -> (u64, u64) {
        (self.running.panics.get(), self.running.worker_restarts.get())
    }

    /// Returns the number of places in use of `max_concurrent`.
    fn in_flight(&self) -> u32 {
        let configuration = self.running.configuration.load();
        configuration.blocks[0].pipeline.forwarding().unwrap().chain.stanzas()[0].concurrent()
    }

    /// Whether the upstream received a query for a name with this first label.
    fn asked(&self, label: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|asked| asked == label.as_bytes())
    }

    fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        let until = clock::now() + PATIENCE;
        while !done() {
            assert!(clock::now() < until, "no {what}: {:?}, {} in flight", self.counted(), self.in_flight());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The listeners and workers of a server, without pages, files and signals.
struct Server {
    running: Arc<ServerState>,
    endpoints: Endpoints,
    workers: Vec<thread::JoinHandle<()>>,
    handle: &'static Handle,
}

impl Server {
    fn start(
        corefile: &str,
        handle: &'static Handle,
        logger: Logger,
        fatal: mpsc::UnboundedSender<String>,
    ) -> Result<Self, BindError> {
        let start = clock::now();
        let spec = scene::spec(corefile).unwrap();
        let workers = plugins::multisocket::sockets(&spec);
        let (shared, _) = PersistentState::new(1 << 20, workers + 1, handle, logger.clone(), start);
        let configuration = Configuration::build(&spec, &shared, &|_| Ok(Vec::new())).unwrap();
        let delivery = StreamResults::new();
        let streams = Streams::new(handle.clone(), delivery.clone());
        let running = Arc::new(
            ServerState::new(configuration, shared, workers, streams, logger, fatal, start).unwrap(),
        );
        delivery.serves(&running);
        let mut endpoints = Endpoints::new(AddressPolicy::LinkLocal, handover::InheritedSockets::default());
        let configuration = running.configuration.load_full();
        let bound = endpoints.bind(
            configuration.endpoints.keys().copied(),
            configuration.sockets,
            workers,
            handle,
        )?;
        let workers = (0..workers).map(|index| crate::spawn(running.clone(), index).unwrap()).collect();
        endpoints.open(bound, &running, handle);
        running.settle(handle);
        Ok(Self { running, endpoints, workers, handle })
    }

    fn reload(&mut self, corefile: &str) {
        let (handle, running) = (self.handle, &self.running);
        let spec = scene::spec(corefile).unwrap();
        let configuration = Configuration::build(&spec, &running.shared, &|_| Ok(Vec::new())).unwrap();
        let wanted = configuration.endpoints.keys().copied();
        let bound = self.endpoints.bind(wanted, configuration.sockets, self.workers.len(), handle).unwrap();
        self.endpoints.swap(Arc::new(configuration), bound, running, handle);
        running.settle(handle);
    }

    fn stop(mut self) {
        self.endpoints.close_listeners(self.handle);
        self.running.end(self.workers.drain(..), InFlight::Answered, self.handle);
    }
}

/// The mock upstream: an address for every name, except those beginning with `silent`.
fn answer(socket: &UdpSocket, asked: &Mutex<Vec<Vec<u8>>>) {
    let mut query = [0; 4096];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        let query = &query[..length];
        let label = query[13..13 + usize::from(query[12])].to_vec();
        let silent = label.starts_with(b"silent") || label.starts_with(b"panic-again");
        let flags = if label.starts_with(b"panic-exchange") { 0x83 } else { 0x81 };
        asked.lock().unwrap().push(label);
        if silent {
            continue;
        }
        // The end of the name, then type and class.
        let question = 12 + query[12..].iter().position(|&octet| octet == 0).unwrap() + 5;
        let mut reply = query[..question].to_vec();
        reply[2..12].copy_from_slice(&[flags, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        reply.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\x01\x2c\0\x04\xc0\0\x02\x01");
        socket.send_to(&reply, from).unwrap();
    }
}

fn rcode(client: &UdpSocket) -> Option<u8> {
    let mut reply = [0; 4096];
    client.recv(&mut reply).ok().map(|_| reply[3] & 15)
}

fn packet(name: &str) -> Vec<u8> {
    let mut packet = b"\x12\x34".to_vec();
    packet.extend_from_slice(&Flags::RD.to_be_bytes());
    packet.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    packet.extend_from_slice(Name::from_text(name).unwrap().as_wire());
    packet.extend_from_slice(&RType::A.0.to_be_bytes());
    packet.extend_from_slice(&[0, 1]);
    packet
}

/// The runtime outlives every test, since not all servers of this process are stopped.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
});
const PATIENCE: Duration = Duration::from_secs(4);
