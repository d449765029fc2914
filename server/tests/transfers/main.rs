//! Zone transfers over TCP and TLS, from a source of this test: complete, in order, no faster than
//! the client reads, within the bytes that streams may hold.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod client;
mod zone;

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use configuration::Configuration;
use listen::ServerState;
use logging::captured_log::CapturedLog;
use logging::{Format, Logger};
use plugin::spec::Role;
use server::cli::Flags;
use server::corefile_source::{Origin, ValidatedConfig};
use server::lifecycle::{Senders, Server, addresses_of};
use testkit::{Ask, Authority, Connection, TlsClient, eventually, exchange_udp, fresh_ip, port, tempdir};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use client::{Received, TransferReader, ixfr, narrow};
use zone::Zones;

/// A server in this process that transfers its zone `example`, over TCP and TLS.
struct Scene {
    server: Option<Server>,
    running: Arc<ServerState>,
    zones: Zones,
    plain: SocketAddr,
    tls: SocketAddr,
    trust: TlsClient,
    log: CapturedLog,
    corefile: Vec<u8>,
    _files: tempfile::TempDir,
    _fatal: mpsc::UnboundedReceiver<String>,
}

impl Scene {
    fn start(directives: &str) -> Self {
        Self::with(RECORDS, directives)
    }

    fn with(records: u32, directives: &str) -> Self {
        let (ip, authority, files) = (fresh_ip(), Authority::new(), tempdir());
        authority.certify(files.path(), HOST);
        let common = format!(
            "bind {ip}\nlog\nerrors\nprometheus {ip}:9153\n{directives}\ntransfer {{\nto *\n}}\nwhoami"
        );
        let tls = format!("root {}\ntls cert.pem key.pem", files.path().display());
        let corefile =
            format!("example:{0} {{\n{common}\n}}\ntls://example:853 {{\n{tls}\n{common}\n}}\n", port())
                .into_bytes();
        let (fatal, fatal_messages) = mpsc::unbounded_channel();
        let log = CapturedLog::default();
        let logger = Logger::start(Format::Text, log.clone()).unwrap();
        let origin = Origin::Text(corefile.clone());
        let senders = Senders { fatal, handover: mpsc::unbounded_channel().0 };
        let server =
            Server::start(&flags(), None, origin, RUNTIME.handle(), logger, senders, clock::now()).unwrap();
        let scene = Self {
            running: server.running().clone(),
            server: Some(server),
            zones: Zones::new(records),
            plain: (ip, port()).into(),
            tls: (ip, 853).into(),
            trust: authority.client(HOST, None),
            log,
            corefile,
            _files: files,
            _fatal: fatal_messages,
        };
        scene.reload();
        scene
    }

    /// Swaps in a new configuration, with the source in each of its blocks.
    fn reload(&self) {
        let mut draft = ValidatedConfig::read(&Origin::Text(self.corefile.clone()), 53).unwrap();
        for block in &mut draft.spec.blocks {
            block.plugins.insert(0, ("zones", Role::Source(Arc::new(self.zones.clone()))));
        }
        let configuration = Configuration::build(&draft.spec, &self.running.shared, &addresses_of).unwrap();
        self.running.configuration.store(Arc::new(configuration));
    }

    /// Connects a client over TCP and one over TLS, with small receive buffers.
    fn clients(&self) -> [Connection; 2] {
        let plain = Connection::ready(narrow(self.plain), PATIENCE).unwrap();
        let tls = narrow(self.tls);
        tls.set_read_timeout(Some(PATIENCE)).unwrap();
        [plain, Connection::encrypt(tls, &self.trust).unwrap()]
    }

    /// Returns the number of references to the current zone, other than the server's and the
    /// caller's.
    fn held(&self) -> usize {
        Arc::strong_count(&self.zones.now()) - 2
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) {
        eventually(what, PATIENCE, || done().then_some(()));
    }

    fn assert_serves(&self) {
        assert_eq!(Ask::new("a.example", "A").of(self.plain).status(), "NOERROR");
        assert_eq!(Ask::new("a.example", "A").tcp().of(self.plain).status(), "NOERROR");
    }
}

/// 100,000 records are received completely and in order.
#[test]
fn large_transfer_over_tcp_and_tls() {
    let scene = Scene::start("");
    for (mut client, transport) in scene.clients().into_iter().zip(["tcp", "tls"]) {
        // A query after the transfer, on the same connection, is answered next.
        client.send(&Ask::new("eXample", "AXFR").id(7).edns(1232).bytes()).unwrap();
        client.send(&Ask::new("a.example", "A").id(8).bytes()).unwrap();
        let received = TransferReader::new(7, RECORDS).read(&mut client);
        assert_eq!((received.records, received.serials.clone()), (RECORDS, vec![1, 1]), "{transport}");
        let behind = client.message().unwrap();
        assert_eq!((behind.id, behind.rcode()), (8, 0), "{transport}");
        // The transfer is one reply, counted and logged when it has ended, with all its bytes.
        let line = format!("\"AXFR IN example. tcp 36 false 65535\" NOERROR qr,aa,rd {} ", received.octets);
        scene.wait("a line of the transfer", || scene.log.text().contains(&line));
        scene.wait("nothing held for the client", || scene.running.connections.octets() == 0);
        // A second transfer, after which the client disconnects.
        client.send(&Ask::new("example", "AXFR").id(9).bytes()).unwrap();
        assert_eq!(TransferReader::new(9, RECORDS).read(&mut client).records, RECORDS, "{transport}");
    }
    scene.wait("no client holds the zone", || scene.held() == 0);
}

#[test]
fn a_transfer_of_one_message_has_taken_its_time() {
    let scene = Scene::with(3, "");
    for mut client in scene.clients() {
        client.send(&Ask::new("example", "AXFR").id(7).bytes()).unwrap();
        assert_eq!(TransferReader::new(7, 3).read(&mut client).records, 3);
    }
    let took = || {
        let text = scene.log.text();
        let lines = text.lines().filter(|line| line.contains("\"AXFR IN example."));
        lines.filter_map(|line| Some(line.rsplit_once(' ')?.1.to_owned())).collect::<Vec<_>>()
    };
    scene.wait("a line for each", || took().len() == 2);
    assert!(took().iter().all(|took| took != "0s"), "{:?}", took());
}

#[test]
fn a_client_is_sent_no_more_than_it_reads_and_others_are_served_meanwhile() {
    let scene = Scene::start("");
    let mut clients = scene.clients();
    let mut readers = [1, 2].map(|id| TransferReader::new(id, RECORDS));
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&Ask::new("example", "AXFR").id(n as u16 + 1).bytes()).unwrap();
    }
    // Both transfers are read in turn, one message at a time; other queries are answered meanwhile.
    for _ in 0..20 {
        for (client, reader) in clients.iter_mut().zip(&mut readers) {
            assert!(!reader.step(client));
        }
        scene.assert_serves();
        assert!(scene.running.connections.octets() <= MOST_HELD, "{}", scene.running.connections.octets());
    }
    scene.wait("what waits for its clients", || scene.running.connections.octets() > 1024);
    assert!(scene.running.connections.octets() <= MOST_HELD);
    assert_eq!(scene.held(), 2, "one snapshot for each");
    // Changes of the zone and of the configuration do not affect the transfers in progress.
    scene.zones.change(10);
    scene.reload();
    for (client, reader) in clients.iter_mut().zip(readers) {
        let received = reader.read(client);
        assert_eq!((received.records, received.serials), (RECORDS, vec![1, 1]));
        client.send(&Ask::new("example", "AXFR").id(3).bytes()).unwrap();
        assert_eq!(TransferReader::new(3, 10).read(client).serials, [2, 2]);
    }
}

/// The transfer of a client that stops reading or disconnects ends, and the zone is released.
#[test]
fn slow_or_closed_client_releases_zone() {
    let scene = Scene::start("timeouts {\nwrite 1s\n}");
    for goes in [false, true] {
        let mut clients = scene.clients();
        for client in &mut clients {
            client.send(&Ask::new("example", "AXFR").id(1).bytes()).unwrap();
            assert!(!TransferReader::new(1, RECORDS).step(client));
        }
        scene.wait("two transfers", || scene.held() == 2);
        let kept = if goes { None } else { Some(clients) };
        scene.wait("no client holds the zone", || scene.held() == 0);
        scene.wait("no octets", || scene.running.connections.octets() == 0);
        if let Some(mut clients) = kept {
            assert!(clients.iter_mut().all(Connection::is_closed_by_peer));
        }
    }
    let cut = || scene.log.text().matches("AXFR: transfer cut off after ").count();
    scene.wait("an error for each", || cut() == 4);
    scene.assert_serves();
}

#[test]
fn a_source_with_a_bug_costs_its_own_connection_alone() {
    let scene = Scene::with(10, "");
    for name in ["broken.example", "panicking.example"] {
        for mut client in scene.clients() {
            client.send(&Ask::new(name, "AXFR").bytes()).unwrap();
            assert!(client.is_closed_by_peer(), "{name}");
        }
    }
    assert_eq!(scene.running.panics.get(), 2);
    scene.assert_serves();
}

#[test]
fn there_are_only_so_many_transfers_to_one_client() {
    let scene = Scene::start("");
    let mut clients: Vec<Connection> = (0..3).flat_map(|_| scene.clients()).collect();
    let (running, refused) = clients.split_at_mut(4);
    for client in running.iter_mut() {
        client.send(&Ask::new("example", "AXFR").id(1).bytes()).unwrap();
        assert!(!TransferReader::new(1, RECORDS).step(client));
    }
    for client in refused {
        client.send(&Ask::new("example", "AXFR").id(2).edns(1232).bytes()).unwrap();
        let reply = client.message().unwrap();
        assert_eq!((reply.rcode(), reply.answers.len()), (2, 0));
    }
    assert!(scene.running.connections.octets() <= 2 * MOST_HELD);
    // One client disconnects, and there is room for another transfer.
    drop(clients.remove(0));
    scene.wait("room", || {
        let [mut client, _] = scene.clients();
        client.send(&Ask::new("example", "AXFR").id(3).bytes()).unwrap();
        Received::of(&client.receive().unwrap()).rcode == 0
    });
}

#[test]
fn a_server_that_stops_ends_a_transfer_that_is_read() {
    let mut scene = Scene::start("");
    let [mut client, _] = scene.clients();
    client.send(&Ask::new("example", "AXFR").id(1).bytes()).unwrap();
    let mut reader = TransferReader::new(1, RECORDS);
    assert!(!reader.step(&mut client));
    let server = scene.server.take().unwrap();
    let stopping = thread::spawn(move || server.stop());
    scene.wait("the end of the listener", || std::net::TcpStream::connect(scene.plain).is_err());
    assert_eq!(reader.read(&mut client).records, RECORDS);
    assert!(client.is_closed_by_peer());
    stopping.join().unwrap();
}

/// The reply depends on the request's type, serial and transport.
#[test]
fn reply_by_request() {
    let scene = Scene::with(3, "acl sub.example {\nblock type AXFR net *\n}");
    let ask = |message: &[u8], udp: bool| -> Received {
        let message = if udp {
            exchange_udp(scene.plain, message, PATIENCE).unwrap()
        } else {
            let [mut client, _] = scene.clients();
            client.send(message).unwrap();
            client.receive().unwrap()
        };
        Received::of(&message)
    };
    let plain = |name: &str, rtype: &str| Ask::new(name, rtype).bytes();
    let of = |opcode| Ask::new("example", "SOA").opcode(opcode).bytes();
    for (what, message, udp, rcode, records, soas) in [
        ("a transfer", plain("example", "AXFR"), false, 0, 3, 2),
        ("RFC 5936, section 4.2", plain("example", "AXFR"), true, 5, 0, 0),
        ("RFC 1995, section 2: retry over TCP", ixfr(0), true, 0, 0, 1),
        ("no history: everything", ixfr(0), false, 0, 3, 2),
        ("the newest is there", ixfr(1), false, 0, 0, 1),
        ("the newest is there, over UDP", ixfr(1), true, 0, 0, 1),
        ("no zone of the source", plain("other.example", "AXFR"), false, 5, 0, 0),
        ("a source without an answer", plain("failing.example", "AXFR"), false, 2, 0, 0),
        ("what acl forbids", plain("sub.example", "AXFR"), false, 5, 0, 0),
        ("a notify", of(4), true, 0, 0, 1),
        ("a notify over TCP", of(4), false, 0, 0, 1),
        ("an update", of(5), true, 4, 0, 0),
        ("an update over TCP", of(5), false, 4, 0, 0),
    ] {
        let received = ask(&message, udp);
        assert_eq!(
            (received.rcode, received.records, received.serials.len()),
            (rcode, records, soas),
            "{what}"
        );
    }
}

fn flags() -> Flags {
    Flags {
        conf: None,
        dns_port: 53,
        pidfile: None,
        quiet: true,
        json: false,
        cache_bytes: 1 << 20,
        status: None,
        handover: None,
        stays: false,
        template: None,
        more_metrics: None,
        reloads_by_itself: false,
        exporter: None,
        environment: Default::default(),
    }
}

const HOST: &str = "dns.example";
const RECORDS: u32 = 100_000;
/// Maximum memory for two connections: a message of the largest size, encrypted, and its queue
/// entry.
const MOST_HELD: usize = 2 * 68 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);
/// The runtime outlives every server.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
});
