//! A server that dies, hangs or loses an address while clients send queries: they are answered
//! throughout.

use std::cell::OnceCell;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tests::{
    Ask, Connection, Message, Server, StreamCounts, ask, eventually, flood, isolated, isolated_steadily, now,
    report, run, signal, skip, tempdir, tool,
};

use super::lab::{CLUSTER, COREFILE, Lab, NAME, PLAIN, POD, US, until_ready, within, within_scope};
use super::status::json;

/// The server dies, hangs or loses an address.
#[test]
fn clients_are_answered_through_deaths() {
    isolated_steadily(Duration::from_secs(180), || {
        if !tool("never dark", "nft") {
            return;
        }
        all_kinds_of_clients_are_answered(&Lab::new(), &[]);
    });
}

/// Clients are answered while the addresses are on `lo`.
#[test]
fn clients_are_answered_on_lo() {
    isolated_steadily(Duration::from_secs(180), || {
        if !tool("never dark", "nft") {
            return;
        }
        all_kinds_of_clients_are_answered(&Lab::new(), &["-link", "lo"]);
        assert!(!run("ip", &["link"]).contains("localdns"), "a link of ours is there, too");
    });
}

/// Asserts that the server answers while it lives, the right upstream otherwise, and that no
/// conntrack entries arise.
pub(super) fn all_kinds_of_clients_are_answered(lab: &Lab, flags: &[&'static str]) {
    let seen = Seen::default();
    scope(|scope| {
        for (index, cell) in CELLS.iter().enumerate() {
            let seen = &seen;
            within_scope(scope, cell.place, move || seen.keep_asking(index));
        }
        // Ends the clients in case of a panic too.
        let _over = Over(&seen.over);
        trial(lab, flags, &seen);
    });
}

#[test]
fn removed_parts_are_restored() {
    isolated(|| {
        if !tool("never dark", "nft") {
            return;
        }
        let lab = Lab::new();
        let server =
            lab.serve_of(&COREFILE.replacen("hosts {", "prometheus 127.0.0.1:9253\n    hosts {", 1), &[]);
        server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
        let put_back = || {
            let metrics = server.metrics("127.0.0.1:9253".parse().expect("an address"));
            metrics.value("localdns_rules_put_back_total", &[])
        };
        assert_eq!(put_back(), Some(0.0));
        let rules = || {
            let listed = Command::new("nft").args(["-s", "list", "table", "inet", "localdns"]).output();
            String::from_utf8_lossy(&listed.expect("nft starts").stdout).into_owned()
        };
        let put = rules();
        assert!(put.contains("chain failover"), "{put}");
        let changes = [
            "delete table inet localdns",
            "flush table inet localdns",
            "flush chain inet localdns prerouting",
            "delete rule inet localdns output handle $HANDLE",
            "replace rule inet localdns output handle $HANDLE drop",
            "delete element inet localdns transports { 17 }",
            "add table inet localdns { flags dormant; }",
        ];
        for (count, change) in (1..).zip(changes) {
            let handle = "$(nft -a list chain inet localdns output | sed -n 's/.*# handle //p' | tail -n 1)";
            let change = change.replace("$HANDLE", handle);
            run("sh", &["-ec", &format!("nft \"{change}\"")]);
            eventually(&change, Duration::from_secs(2), || (rules() == put).then_some(()));
            // The counter follows the restoration.
            eventually("the count", Duration::from_secs(2), || {
                (put_back() >= Some(f64::from(count))).then_some(())
            });
        }
        assert_eq!(put_back(), Some(changes.len() as f64), "each once");
        let printed = status(&server, 0);
        assert!(printed.starts_with("rules     in place\n"), "{printed}");
        run("ip", &["addr", "del", "10.96.0.20/32", "dev", "localdns"]);
        let back = || run("ip", &["addr", "show", "to", "10.96.0.20"]).contains("localdns");
        eventually("the address is back", Duration::from_secs(2), || back().then_some(()));
        let listed = status(&server, 0);
        assert!(listed.contains("address   10.96.0.20  on localdns, no fallback, answers"), "{listed}");
        assert!(
            listed.contains("address   169.254.10.11  on localdns, fallback 10.3.0.2, answers"),
            "{listed}"
        );
    });
}

/// The server serves and becomes ready.
#[test]
fn table_owned_by_another_is_reported() {
    isolated(|| {
        if !tool("never dark", "nft") {
            return;
        }
        let lab = Lab::new();
        let (mut other, typed) = anothers_table();
        let directory = tempdir();
        let notifications =
            UnixDatagram::bind(directory.path().join("notify")).expect("the directory is ours");
        notifications.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        let server = lab.serve_with(|options| {
            options
                .env("NOTIFY_SOCKET", &directory.path().join("notify").to_string_lossy())
                .export("SYSTEMD_EXEC_PID", "$$")
        });
        until_ready(&notifications);
        server.wait_for_log(
            "cannot add the rules: clients get no answer once this server dies: add table localdns: not permitted: CAP_NET_ADMIN is missing, or another process owns a table of this name",
            Duration::from_secs(5),
        );
        let printed = status(&server, 1);
        for line in [
            "rules     the table inet localdns is not the server's; its note says why\n",
            "note      cannot add the rules: clients get no answer once this server dies: add table localdns: not permitted: CAP_NET_ADMIN is missing, or another process owns a table of this name\n",
        ] {
            assert!(printed.contains(line), "{printed}");
        }
        let at = SocketAddr::from(("10.96.0.20".parse::<IpAddr>().expect("an address"), 53));
        assert_eq!(ask(at, NAME, "A").short(), [US]);
        drop(typed);
        other.wait().expect("it ends");
        let ours = || run("nft", &["list", "ruleset"]).contains("chain failover").then_some(());
        eventually("our rules", Duration::from_secs(5), ours);
        assert!(status(&server, 0).starts_with("rules     in place\n"));
    });
}

/// Opens `nft` with a table of our name that lasts as long as its netlink socket, until its input
/// ends.
pub(crate) fn anothers_table() -> (Child, ChildStdin) {
    let mut other = Command::new("nft")
        .arg("-i")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("nft starts");
    let mut typed = other.stdin.take().expect("it is piped");
    typed.write_all(b"add table inet localdns { flags owner; }\n").expect("it reads");
    let owned = || run("nft", &["list", "tables", "inet"]).contains("localdns").then_some(());
    eventually("the other's table", Duration::from_secs(5), owned);
    (other, typed)
}

pub(crate) fn status(server: &Server, code: i32) -> String {
    node(server, &["status"], code)
}

/// Runs `localdns node`, with the server's Corefile where the command takes one; returns the output
/// of both streams.
pub(crate) fn node(server: &Server, words: &[&str], code: i32) -> String {
    let mut command = Command::new(tests::binary());
    command.arg("node").args(words);
    if words != ["down"] {
        command.arg("-conf").arg(server.path("Corefile"));
    }
    let output = tests::output(command, Duration::from_secs(20));
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    text.into_owned()
}

fn trial(lab: &Lab, flags: &[&'static str], seen: &Seen) {
    let mut server = lab.serve(flags);
    seen.until("the server starts", |_| US);
    let answered = seen.event("kill -9", || signal(server.pid(), "KILL"), |cell| cell.upstream);
    report_times("kill -9", &answered);
    if flags.is_empty() && !run("ip", &["-d", "link", "show", "localdns"]).contains("dummy") {
        skip("never dark, with our addresses on a dummy", "this kernel makes none, and a bridge had them");
    }
    let answered = seen.event("its return", || server = lab.serve(flags), |_| US);
    report_times("its return", &answered);
    let answered = seen.event("SIGSTOP", || signal(server.pid(), "STOP"), |cell| cell.upstream);
    report_times("SIGSTOP", &answered);
    let answered = seen.event("SIGCONT", || signal(server.pid(), "CONT"), |_| US);
    report_times("SIGCONT", &answered);
    let listed = status(&server, 0);
    assert!(!listed.contains("lost 0 times"), "each lease that ended is counted: {listed}");
    assert_eq!(conntrack(&server, seen), 0, "queries that come here make no entries");
    stop(&mut server, seen);
    assert_eq!(run("nft", &["list", "tables", "inet"]), "table inet localdns\n");
}

fn stop(server: &mut Server, seen: &Seen) {
    signal(server.pid(), "TERM");
    seen.until("it stops", |cell| cell.upstream);
    assert!(server.wait(Duration::from_secs(10)).success());
    assert!(!server.log_text().contains("given up"), "{}", server.log_text());
}

/// Number of conntrack's DNS entries from recent queries, 10,000 of them from a pod, in an interval
/// without a lost lease.
fn conntrack(server: &Server, seen: &Seen) -> usize {
    if !tool("conntrack entries", "conntrack") {
        return 0;
    }
    for _ in 0..10 {
        let before = leases_lost(server);
        run("conntrack", &["-F"]);
        seen.until("all have asked again", |_| US);
        let flooded = within(POD, || {
            let at = SocketAddr::from(([169, 254, 10, 11], 53));
            let is_ours = |_, message: &Message| message.answers.first().is_some_and(|one| one.data == US);
            [(); 10].map(|()| flood(at, 1_000, 64, |_| Ask::new(NAME, "A"), is_ours))
        });
        let flooded = flooded.join().expect("a pod asks");
        let listed = run("conntrack", &["-L"]) + &run("conntrack", &["-L", "-f", "ipv6"]);
        // Without the server's own queries to upstreams.
        let of_clients = |line: &&str| line.contains("dport=53 ") && !line.contains("dst=10.3.0.2");
        let entries = listed.lines().filter(of_clients).count();
        // Where the machine stalled, a lease ended and clients rightly failed over, which created
        // entries: the count is not the server's.
        if leases_lost(server) == before {
            flooded.iter().for_each(StreamCounts::assert_clean);
            return entries;
        }
        report(&format!("measured: a lease ended meanwhile, and {entries} entries came; once more"));
    }
    panic!("a lease ended each time:\n{}", server.log_text());
}

/// Number of leases that ended while the server lived.
fn leases_lost(server: &Server) -> u64 {
    // An end is counted at the next renewal, and there is one between the two requests.
    json(server);
    let printed = json(server);
    let addresses = printed["servers"][0]["addresses"].as_array().expect("it says how it is");
    addresses.iter().filter_map(|address| address["lost"].as_u64()).sum()
}

/// One kind of client.
struct Cell {
    place: Option<&'static str>,
    tcp: bool,
    /// Whether all its queries have one source port, like those of c-ares, Netty and dnsdist.
    keeps_port: bool,
    server: &'static str,
    upstream: &'static str,
}

const fn cell(place: Option<&'static str>, tcp: bool, server: &'static str, upstream: &'static str) -> Cell {
    Cell { place, tcp, keeps_port: false, server, upstream }
}

const fn of_one_port(
    place: Option<&'static str>,
    tcp: bool,
    server: &'static str,
    upstream: &'static str,
) -> Cell {
    Cell { place, tcp, keeps_port: true, server, upstream }
}

static CELLS: &[Cell] = &[
    cell(Some(POD), false, "169.254.10.10", CLUSTER),
    cell(Some(POD), false, "169.254.10.11", PLAIN),
    cell(Some(POD), false, "fd10::11", PLAIN),
    cell(Some(POD), false, "10.96.0.20", CLUSTER),
    cell(Some(POD), true, "169.254.10.10", CLUSTER),
    cell(Some(POD), true, "169.254.10.11", PLAIN),
    cell(Some(POD), true, "fd10::11", PLAIN),
    cell(Some(POD), true, "10.96.0.20", CLUSTER),
    cell(None, false, "169.254.10.10", CLUSTER),
    cell(None, false, "169.254.10.11", PLAIN),
    cell(None, false, "fd10::11", PLAIN),
    cell(None, false, "10.96.0.20", CLUSTER),
    cell(None, true, "169.254.10.10", CLUSTER),
    cell(None, true, "169.254.10.11", PLAIN),
    cell(None, true, "fd10::11", PLAIN),
    cell(None, true, "10.96.0.20", CLUSTER),
    of_one_port(Some(POD), false, "169.254.10.10", CLUSTER),
    of_one_port(Some(POD), false, "169.254.10.11", PLAIN),
    of_one_port(Some(POD), false, "fd10::11", PLAIN),
    of_one_port(Some(POD), false, "10.96.0.20", CLUSTER),
    of_one_port(None, false, "169.254.10.10", CLUSTER),
    of_one_port(None, false, "169.254.10.11", PLAIN),
    of_one_port(None, false, "fd10::11", PLAIN),
    of_one_port(None, false, "10.96.0.20", CLUSTER),
    of_one_port(Some(POD), true, "169.254.10.10", CLUSTER),
    of_one_port(Some(POD), true, "169.254.10.11", PLAIN),
    of_one_port(Some(POD), true, "fd10::11", PLAIN),
    of_one_port(Some(POD), true, "10.96.0.20", CLUSTER),
    of_one_port(None, true, "169.254.10.10", CLUSTER),
    of_one_port(None, true, "169.254.10.11", PLAIN),
    of_one_port(None, true, "fd10::11", PLAIN),
    of_one_port(None, true, "10.96.0.20", CLUSTER),
];

impl Cell {
    fn transport(&self) -> &'static str {
        match (self.tcp, self.keeps_port) {
            (true, false) => "TCP",
            (true, true) => "TCP of one port",
            (false, false) => "UDP",
            (false, true) => "UDP of one port",
        }
    }
}

/// Time within which the right server must answer a client after a fault, or after the return.
const LONG: Duration = Duration::from_secs(3);
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(250);

/// A client's fixed port: over UDP one connected socket; over TCP a connection for each query.
struct OnePort {
    /// Below the kernel's ephemeral ports, and unique.
    number: u16,
    socket: OnceCell<UdpSocket>,
    last_id: std::cell::Cell<u16>,
}

impl OnePort {
    /// The port of a cell.
    fn of(index: usize) -> Self {
        let number = 20_000 + index as u16;
        Self { number, socket: OnceCell::new(), last_id: std::cell::Cell::new(0) }
    }

    /// The server that answers over TCP; none within 250 ms.
    fn ask_over_tcp(&self, ask: &Ask, server: SocketAddr) -> Option<String> {
        let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None).expect("there are sockets");
        socket.set_reuse_address(true).expect("it can be set");
        // Closes with a reset: in TIME_WAIT the port would be unusable for a minute.
        socket.set_linger(Some(Duration::ZERO)).expect("it can be set");
        socket.bind(&SocketAddr::from((any, self.number)).into()).ok()?;
        socket.connect_timeout(&server.into(), PATIENCE).ok()?;
        let mut connection = Connection::ready(socket.into(), PATIENCE).ok()?;
        connection.send(&ask.bytes()).ok()?;
        Some(connection.message().ok()?.answers.first()?.data.clone())
    }

    /// The server that answers over UDP; none within 250 ms.
    fn ask(&self, ask: Ask, server: SocketAddr) -> Option<String> {
        if self.socket.get().is_none() {
            let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
            let socket = UdpSocket::bind((any, 0)).expect("there are ports");
            // Fails while there is no route.
            socket.connect(server).ok()?;
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
            let _ = self.socket.set(socket);
        }
        let (socket, id) = (self.socket.get()?, self.last_id.get().wrapping_add(1));
        self.last_id.set(id);
        socket.send(&ask.id(id).bytes()).ok()?;
        let mut buffer = [0; 512];
        loop {
            let length = socket.recv(&mut buffer).ok()?;
            // Late answers to earlier queries are skipped.
            if buffer[..2] == id.to_be_bytes() {
                let message = Message::decode(&buffer[..length]).ok()?;
                return Some(message.answers.first()?.data.clone());
            }
        }
    }
}

struct Over<'s>(&'s AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Per cell the first and the last answered query of the server that answers now, and that server.
struct Seen {
    last: Vec<Mutex<Option<(Instant, Instant, String)>>>,
    over: AtomicBool,
}

impl Default for Seen {
    fn default() -> Self {
        Self { last: CELLS.iter().map(|_| Mutex::default()).collect(), over: AtomicBool::new(false) }
    }
}

impl Seen {
    fn keep_asking(&self, index: usize) {
        let cell = &CELLS[index];
        let ip: IpAddr = cell.server.parse().expect("an address");
        let server = SocketAddr::from((ip, 53));
        let port = cell.keeps_port.then(|| OnePort::of(index));
        while !self.over.load(Relaxed) {
            let ask = Ask::new(NAME, "A").timeout(PATIENCE);
            let asked = now();
            let responder = match &port {
                Some(port) if cell.tcp => port.ask_over_tcp(&ask, server),
                Some(port) => port.ask(ask, server),
                None => {
                    let reply = if cell.tcp { ask.tcp() } else { ask }.try_of(server).ok();
                    reply.and_then(|reply| Some((*reply.short().first()?).to_owned()))
                }
            };
            if let Some(responder) = responder {
                let mut last = self.last[index].lock().expect("no thread panics with it");
                let since =
                    last.as_ref().filter(|(.., before)| *before == responder).map_or(asked, |last| last.0);
                *last = Some((since, asked, responder));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the expected server answers every cell; returns how long after `since` each
    /// cell's first such query was sent.
    fn all(&self, what: &str, since: Instant, responder: impl Fn(&Cell) -> &'static str) -> Vec<Duration> {
        CELLS
            .iter()
            .zip(&self.last)
            .map(|(cell, last)| {
                let place = cell.place.unwrap_or("host");
                let what = format!("{what}: {place} over {} at {}", cell.transport(), cell.server);
                eventually(&what, Duration::from_secs(8), || {
                    let last = last.lock().expect("no thread panics with it").clone()?;
                    (last.1 >= since && last.2 == responder(cell))
                        .then(|| last.0.saturating_duration_since(since))
                })
            })
            .collect()
    }

    fn until(&self, what: &str, responder: impl Fn(&Cell) -> &'static str) {
        self.all(what, now(), responder);
    }

    fn event(
        &self,
        what: &str,
        happens: impl FnOnce(),
        responder: impl Fn(&Cell) -> &'static str,
    ) -> Vec<Duration> {
        happens();
        self.all(what, now(), responder)
    }
}

fn report_times(what: &str, after: &[Duration]) {
    let (longest, cell) = after.iter().zip(CELLS).max_by_key(|(after, _)| **after).expect("there are cells");
    let place = cell.place.unwrap_or("host");
    let transport = cell.transport();
    assert!(*longest <= LONG, "{what}: {place} over {transport} at {} waits for {longest:.1?}", cell.server);
    let mut sorted = after.to_vec();
    sorted.sort_unstable();
    let middle = sorted[sorted.len() / 2];
    report(&format!(
        "measured: {what}: the right one answers after {middle:.1?}, at most {longest:.1?} ({place} over {transport} at {})",
        cell.server
    ));
}
