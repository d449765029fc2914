//! Memory used for clients: large answers, and kernel buffers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tests::{Action, Ask, Dns, Options, Says, Server, Upstream, fresh_ip, port, skip, tool};

/// The server's sockets on its address.
const SOCKETS: usize = 16;
/// Clients on different ports, which the kernel distributes over the sockets.
const CLIENTS: usize = 64;
/// Queries of each client.
const QUERIES: u16 = 32;

/// Large cached answers, queried over UDP, leave no memory in use.
#[test]
fn large_answers_leave_no_memory() {
    let text = format!("large.example. 300 IN TXT \"{}\"\n", "x".repeat(240));
    let upstream = Upstream::start(fresh_ip(), move |_| Action::Truncate(Says::answer(&text.repeat(220))));
    let dns = Dns::start(&format!("multisocket {SOCKETS}\ncache\nforward . {}", upstream.word()));
    let whole = Ask::new("large.example", "TXT").tcp().of(dns.at);
    assert_eq!(whole.answers.len(), 220);

    let clients: Vec<UdpSocket> = (0..CLIENTS)
        .map(|_| {
            let client = UdpSocket::bind("127.0.0.1:0").expect("a client socket can be made");
            client.connect(dns.at).expect("a UDP socket always connects");
            client.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
            client
        })
        .collect();
    let before = dns.server.rss_kb();
    // Queries that wait during the stop are read in full batches.
    dns.server.signal("STOP");
    for id in 0..QUERIES {
        for client in &clients {
            client.send(&Ask::new("large.example", "TXT").id(id).bytes()).expect("the server listens");
        }
    }
    dns.server.signal("CONT");
    let mut reply = [0; 4096];
    for client in &clients {
        for _ in 0..QUERIES {
            if client.recv(&mut reply).is_err() {
                let test = "large_answers_leave_no_memory";
                return skip(test, "the sockets have no room for as many queries");
            }
            assert_eq!(reply[2] & 2, 2, "TC");
        }
    }
    let after = dns.server.rss_kb();
    assert_eq!(upstream.total(), 1, "they were all hits");
    assert!(after < before + (16 << 10), "{before} -> {after} KiB");
}

/// What the server has run stays in memory; what it never ran is not there.
#[test]
fn program_pages_in_memory() {
    let dns = Dns::start("whoami");
    assert_eq!(Ask::new("a.example", "A").of(dns.at).status(), "NOERROR");
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", dns.server.pid())).expect("it is ours");
    let program = tests::binary();
    let (mut resident, mut all) = (0, 0);
    for (head, rest) in mappings(&smaps) {
        if !head.ends_with(program.to_str().expect("a name in ASCII")) || !head.contains(" r-") {
            continue;
        }
        let kib = |key: &str| -> u64 {
            let line =
                rest.iter().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("no {key}"));
            line.trim_end_matches("kB").trim().parse().expect("a number")
        };
        let flags = rest.iter().find_map(|line| line.strip_prefix("VmFlags:")).expect("they are printed");
        if !flags.split_whitespace().any(|flag| flag == "lo") {
            let test = "program_pages_in_memory";
            assert!(!may_lock(), "{head} may be given up");
            return skip(test, "the limit of locked memory is less than the program");
        }
        resident += kib("Rss:");
        all += kib("Size:");
    }
    assert!(0 < resident && resident < all * 9 / 10, "{resident} of {all} KiB");
}

#[test]
fn pidfile_is_synced() {
    if !tool("pidfile_is_synced", "strace") {
        return;
    }
    let at = SocketAddr::from((fresh_ip(), port()));
    let corefile = format!(".:{} {{\nbind {}\nwhoami\n}}", at.port(), at.ip());
    // strace runs as a separate process (`-D`) and prints the system calls on stderr.
    let traced = Options::default().through("strace -D -f -y -e trace=fsync");
    let server = Server::start_with(&corefile, traced);
    server.wait_for_log("/pid>", Duration::from_secs(20));
    assert_eq!(Ask::new("a.example", "A").of(at).status(), "NOERROR");
}

/// Whether memory locks are unlimited: CAP_IPC_LOCK is bit 14 (capability(7)).
fn may_lock() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("it is reported");
    u64::from_str_radix(mask.trim(), 16).expect("a mask") >> 14 & 1 == 1
}

/// The first line and the other lines of each mapping.
fn mappings(smaps: &str) -> Vec<(&str, Vec<&str>)> {
    let mut all = Vec::<(&str, Vec<&str>)>::new();
    for line in smaps.lines() {
        match all.last_mut() {
            Some((_, rest)) if line.split(' ').next().is_some_and(|word| word.ends_with(':')) => {
                rest.push(line)
            }
            _ => all.push((line, Vec::new())),
        }
    }
    all
}

/// Names that lead patterns to ever new states leave little in memory.
#[test]
fn pattern_states_are_bounded() {
    const PATTERNS: usize = 20;
    let pattern =
        |n: usize| format!("rewrite continue name regex ([a-m].{{{}}}[h-z].{{9}}[0-9]) {{1}}\n", 7 + n);
    let rules: String = (0..PATTERNS).map(pattern).collect();
    let dns = Dns::start(&format!("multisocket 1\n{rules}whoami"));
    let before = dns.server.rss_kb();
    // Labels that do not repeat (a linear congruential generator, high bits).
    let mut state = 1_u64;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + (state >> 33) as u8 % 26)
    };
    for _ in 0..60 {
        let labels: Vec<String> = (0..3).map(|_| (0..60).map(|_| letter()).collect()).collect();
        let reply = Ask::new(&labels.join("."), "A").timeout(Duration::from_secs(20)).of(dns.at);
        assert_eq!(reply.status(), "NOERROR");
    }
    let after = dns.server.rss_kb();
    assert!(after < before + (16 << 10), "{before} -> {after} KiB");
}

/// The kernel buffers little of a stream while the server does not read it.
#[test]
fn unread_streams_in_the_kernel() {
    let ip = fresh_ip();
    let page = SocketAddr::from((ip, 9153));
    let dns = Dns::start_on(ip, &format!("health {page}\nwhoami"));
    let query = Ask::new("a.example", "A").bytes();
    let query = [&(query.len() as u16).to_be_bytes()[..], &query].concat();
    let request = format!("GET /health HTTP/1.1\r\nHost: {page}\r\n\r\n").into_bytes();
    for (what, to, message) in [("DNS", dns.at, query), ("HTTP", page, request)] {
        let mut stream = with_small_buffer(to);
        // The connection is accepted and read before the server is stopped.
        stream.write_all(&message).expect("the server reads");
        assert_ne!(stream.read(&mut [0; 1024]).expect("the server answers"), 0, "{what}");
        dns.server.signal("STOP");
        let (message, mut taken) = (message.repeat(1_000), 0);
        loop {
            match stream.write(&message) {
                Ok(octets) => taken += octets,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{what}: {error}"),
            }
        }
        dns.server.signal("CONT");
        // The server requests 16 KiB; the kernel doubles that for overhead, and the client's send
        // buffer adds some.
        assert!((4_096..48 << 10).contains(&taken), "{what}: {taken} octets");
    }
}

fn with_small_buffer(to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("a socket can be made");
    socket.set_send_buffer_size(4_096).expect("a size can be set");
    socket.connect(&to.into()).expect("the server listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout can be set");
    // Until the connection accepts no more.
    stream.set_write_timeout(Some(Duration::from_millis(300))).expect("a timeout can be set");
    stream
}
