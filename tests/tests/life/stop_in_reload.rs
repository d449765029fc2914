//! SIGTERM at every point of a reload: the process exits with 0, and earlier queries are answered.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use tests::{Action, Ask, Connection, Message, Server, Upstream, fresh_ip, port, tempdir};

/// No query is lost over two hundred stops during a reload.
#[test]
fn two_hundred_stops_during_reloads() {
    tests::steadily(two_hundred_ends);
}

fn two_hundred_ends() {
    // Makes the reload slow: it reads 20,000 names.
    let home = tempdir();
    let hosts = home.path().join("hosts");
    let many: String =
        (0..20_000).map(|n| format!("10.0.{}.{} n{n}.example\n", n / 256 % 256, n % 256)).collect();
    fs::write(&hosts, format!("192.0.2.1 x.example\n{many}")).expect("it is ours");
    let hosts = hosts.display().to_string();
    let slow = Upstream::start(fresh_ip(), |asked| {
        let answer = Action::answer(&format!("{} 30 IN A 192.0.2.2", asked.name));
        Action::Delay(Duration::from_millis(30), Box::new(answer))
    });
    let word = slow.word();
    // Two at a time, for the two processors of a small machine.
    let lane = |lane: usize| {
        let (hosts, word) = (hosts.clone(), word.clone());
        thread::spawn(move || (0..100).map(|n| round(2 * n + lane, &hosts, &word)).collect::<Vec<_>>())
    };
    let lanes = [0, 1].map(lane);
    let ends: Vec<End> = lanes.into_iter().flat_map(|lane| lane.join().expect("no round fails")).collect();
    assert_eq!(ends.len(), 200);
    let in_the_midst = ends.iter().filter(|end| **end == End::Midst).count();
    tests::report(&format!("measured: {in_the_midst} of 200 ends came before the end of the reload"));
    assert!(in_the_midst > 0, "none was before the end of the reload");
    assert!(ends.contains(&End::After), "and some when it was over");
}

/// When SIGTERM arrived: during the reload, or after it.
#[derive(PartialEq)]
enum End {
    Midst,
    After,
}

/// Runs one process and stops it at the point that `n` selects.
fn round(n: usize, hosts: &str, upstream: &str) -> End {
    let at = SocketAddr::from((fresh_ip(), port()));
    let corefile = |more: &str| {
        let (ip, port) = (at.ip(), at.port());
        format!(".:{port} {{\nbind {ip}\nhosts {hosts} {{\nfallthrough\n}}\nforward . {upstream}\n{more}}}\n")
    };
    let mut server = Server::start(&corefile(""));
    server.write_corefile(&corefile("nsid next\n"));
    server.signal("USR1");
    match n % 4 {
        0 => {}
        // `n` / 4 * 4 answers later.
        1 => {
            (0..n / 4 * 4).for_each(|_| assert_eq!(Ask::new("x.example", "A").of(at).short(), ["192.0.2.1"]))
        }
        2 => drop(server.wait_for_log("Reloading", PATIENCE)),
        _ => drop(server.wait_for_log("Reloading complete", PATIENCE)),
    }
    // The last queries: for a local answer, for a slow upstream, and over TCP.
    let client = UdpSocket::bind("0.0.0.0:0").expect("a port");
    client.connect(at).expect("a route");
    client.set_read_timeout(Some(PATIENCE)).expect("it can be set");
    let mut stream = Connection::open(at, PATIENCE).expect("it listens");
    stream.send(&Ask::new("x.example", "A").id(99).bytes()).expect("it is sent");
    for id in 0..8 {
        let name = if id < 6 { "x.example".to_owned() } else { format!("slow{id}.example") };
        client.send(&Ask::new(&name, "A").id(id).bytes()).expect("it is sent");
    }
    let ends = tests::now();
    server.signal("TERM");
    let fail = |what: &str| panic!("round {n}: {what}\n{}", server.log_text());
    let mut left: Vec<u16> = (0..8).collect();
    while !left.is_empty() {
        let mut reply = [0; 512];
        let Ok(length) = client.recv(&mut reply) else { fail(&format!("no answer to {left:?}")) };
        let message = Message::decode(&reply[..length]).expect("a message");
        let id = message.id;
        let wanted = if id < 6 { "192.0.2.1" } else { "192.0.2.2" };
        if message.answers.first().is_none_or(|record| record.data != wanted) {
            fail(&format!("{id}: {message:?}"));
        }
        left.retain(|other| *other != id);
    }
    match stream.message() {
        Ok(message) if message.answers.first().is_some_and(|record| record.data == "192.0.2.1") => {}
        other => fail(&format!("over TCP: {other:?}")),
    }
    assert_eq!(server.wait(PATIENCE).code(), Some(0), "round {n}: {}", server.log_text());
    let took = ends.elapsed();
    assert!(took < AT_ONCE, "round {n}: it takes {took:.1?}: {}", server.log_text());
    assert!(!server.path("pid").exists(), "round {n}: a pidfile without a process is left");
    if server.log_text().contains("Reloading complete") { End::After } else { End::Midst }
}

/// A server without `node` waits for queries in flight alone.
const AT_ONCE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(10);
