//! A client port with a past connection to the server and a present one to the upstream, or vice
//! versa: conntrack must not confuse them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tests::{Ask, Connection, Server, eventually, isolated, run, skip, tool};

use super::clients::{ADDRESSES, at};
use super::lab::{CLUSTER, Lab, NAME, PLAIN, POD, US, lose_probes_to, within};

/// A redirected connection ends at once if the upstream still knows its port.
#[test]
fn reused_port_when_redirected() {
    isolated(|| {
        if !tool("port again", "nft") {
            return;
        }
        let (_lab, server) = serve();
        let zones = led_away_to();
        server.signal("STOP");
        until_led_away();
        everybody(|connection, ip| {
            assert_eq!(ask(connection).ok(), Some(upstream(ip).to_owned()), "{ip}");
        });
        server.signal("CONT");
        for ip in ADDRESSES {
            server.wait_for_lines(&format!("queries to {ip} are answered here"), 2, PATIENCE);
        }
        eventually("other zones of conntrack", PATIENCE, || (led_away_to() != zones).then_some(()));

        let mut kept = everybody(|connection, ip| {
            assert_eq!(ask(connection).ok().as_deref(), Some(US), "{ip}");
        });
        server.signal("STOP");
        until_led_away();
        for (client, connection) in &mut kept {
            let error = ask(connection).expect_err("its client hangs");
            let error = error.downcast::<io::Error>().expect("the socket says why");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{client}: {error}");
        }
    });
}

/// The return of another address does not end it.
#[test]
fn redirected_connection_survives_a_return() {
    isolated(|| {
        if !tool("port again", "nft") {
            return;
        }
        let (_lab, server) = serve();
        lose_probes_to("169.254.10.11");
        server.wait_for_log("the lease of 169.254.10.11 ended: ", PATIENCE);
        let mut connections: Vec<_> = [None, Some(POD)]
            .map(|place| at_place(place, || connect(at("169.254.10.11"), FIRST_PORT)))
            .into();
        let mut all_answer = || {
            for connection in &mut connections {
                assert_eq!(ask(connection).ok().as_deref(), Some(PLAIN));
            }
        };
        all_answer();
        let zones = led_away_to();
        server.signal("STOP");
        until_led_away();
        server.signal("CONT");
        for ip in ADDRESSES.into_iter().filter(|ip| *ip != "169.254.10.11") {
            server.wait_for_lines(&format!("queries to {ip} are answered here"), 2, PATIENCE);
        }
        eventually("other zones of conntrack", PATIENCE, || (led_away_to() != zones).then_some(()));
        all_answer();
    });
}

/// A connection to the upstream from a port that a killed server knew ends at once.
#[test]
fn reused_port_at_the_return() {
    isolated(|| {
        if !tool("port again", "nft") {
            return;
        }
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("it is there");
        let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0_u32));
        if [numbers.next(), numbers.next()] < [Some(6), Some(11)] {
            return skip(
                "a port that a killed server knew",
                "Linux forgets what is not acknowledged from 6.11 on",
            );
        }
        let (lab, mut server) = serve();
        let mut kept = everybody(|connection, ip| {
            assert_eq!(ask(connection).ok().as_deref(), Some(US), "{ip}");
        });
        server.signal("KILL");
        assert_eq!(server.wait(PATIENCE).signal(), Some(9));
        // The server's side closes first: the kernel keeps it in TIME_WAIT for a minute.
        for (client, connection) in &mut kept {
            connection.message().expect_err(client);
            connection.finish().expect("the kernel takes it");
        }
        drop(kept);
        until_led_away();
        let mut kept = everybody(|connection, ip| {
            assert_eq!(ask(connection).ok(), Some(upstream(ip).to_owned()), "{ip}");
        });
        let _next = serve_in(&lab);
        for (client, connection) in &mut kept {
            let error = ask(connection).expect_err("it is redirected here now");
            let error = error.downcast::<io::Error>().expect("the socket says why");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{client}: {error}");
        }
    });
}

/// Starts the server and waits for all leases.
fn serve() -> (Lab, Server) {
    let lab = Lab::new();
    let server = serve_in(&lab);
    (lab, server)
}

fn serve_in(lab: &Lab) -> Server {
    let server = lab.serve(&[]);
    for ip in ADDRESSES {
        server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
    }
    server
}

/// Waits until each address has failed over, which happens one by one as the leases end.
fn until_led_away() {
    let ask = Ask::new(NAME, "A").timeout(Duration::from_millis(250));
    for ip in ADDRESSES {
        eventually("the upstream answers", PATIENCE, || {
            (ask.try_of(at(ip)).ok()?.short() == [upstream(ip)]).then_some(())
        });
    }
}

/// Opens a connection from each client to each address, each from its own fixed port, and runs
/// `does` with it.
fn everybody(does: fn(&mut Connection, &'static str)) -> Vec<(String, Connection)> {
    let clients = ADDRESSES.into_iter().flat_map(|ip| [None, Some(POD)].map(|place| (place, ip)));
    let open = |(number, (place, ip)): (u16, (Option<&'static str>, &'static str))| {
        let open = move || {
            let mut connection = connect(at(ip), FIRST_PORT + number);
            does(&mut connection, ip);
            connection
        };
        let connection = at_place(place, open);
        (format!("{} at {ip}", place.unwrap_or("host")), connection)
    };
    (0..).zip(clients).map(open).collect()
}

/// The failover rules, with their conntrack zones.
fn led_away_to() -> String {
    run("nft", &["list", "chain", "inet", "localdns", "failover"])
}

/// Runs this in the place, or on the host.
fn at_place<T: Send + 'static>(place: Option<&'static str>, does: impl FnOnce() -> T + Send + 'static) -> T {
    match place {
        Some(place) => within(place, does).join().expect("it is answered"),
        None => does(),
    }
}

fn connect(server: SocketAddr, port: u16) -> Connection {
    let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None).expect("there are sockets");
    socket.set_reuse_address(true).expect("it can be set");
    // Closes with a reset: in TIME_WAIT the port would be unusable for a minute.
    socket.set_linger(Some(Duration::ZERO)).expect("it can be set");
    socket.bind(&SocketAddr::from((any, port)).into()).expect("the port is the test's");
    socket.connect_timeout(&server.into(), AT_ONCE).expect("a client is there");
    Connection::ready(socket.into(), AT_ONCE).expect("it can be set")
}

/// The server that answers over this connection.
fn ask(connection: &mut Connection) -> anyhow::Result<String> {
    connection.send(&Ask::new(NAME, "A").bytes())?;
    Ok(connection.message()?.answers.into_iter().map(|record| record.data).collect())
}

fn upstream(ip: &str) -> &'static str {
    if ip == "169.254.10.10" || ip == "10.96.0.20" { CLUSTER } else { PLAIN }
}

/// Below the kernel's ephemeral ports.
const FIRST_PORT: u16 = 21_000;
const PATIENCE: Duration = Duration::from_secs(15);
/// Well below the 10 s for which conntrack keeps a reset connection.
const AT_ONCE: Duration = Duration::from_secs(4);
