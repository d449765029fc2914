//! SIGTERM during a reload: nothing is restored afterwards, and earlier queries are answered.

use std::net::UdpSocket;
use std::ops::Range;
use std::time::Duration;

use tests::{Ask, Message, Server, isolated_steadily, now, run, tool};

use super::clients::{ADDRESSES, asked_at, at};
use super::lab::{COREFILE, Lab, NAME, US};

/// A clean stop during a reload leaves no rule and no address.
#[test]
fn clean_stop_during_a_reload() {
    isolated_steadily(Duration::from_secs(180), || stops(0..8));
}

/// Two hundred clean stops during reloads leave no rule and no address.
#[test]
#[ignore = "long: two hundred stops"]
fn two_hundred_clean_stops_during_reloads() {
    let number = |variable, default| {
        std::env::var(variable).map_or(default, |number| number.parse().expect("a number of stops"))
    };
    isolated_steadily(Duration::from_secs(2400), || stops(number("STOPS_FROM", 0)..number("STOPS_TO", 200)));
}

/// Starts a process for each stop, with SIGTERM at another point of a reload.
fn stops(which: Range<usize>) {
    if !tool("stop in reload", "nft") {
        return;
    }
    let lab = Lab::new();
    for stop in which {
        let until = ["SIGUSR1: Reloading", "Reloading", "Reloading complete", ""][stop % 4];
        let mut server = lab.serve(&["-host-resolver", "none", "-at-stop", "clean"]);
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        // The reload adds another address and its rules.
        server.write_corefile(&COREFILE.replace("169.254.10.11", "169.254.10.11 169.254.10.12"));
        let queries = asked();
        server.signal("USR1");
        if !until.is_empty() {
            server.wait_for_log(until, PATIENCE);
        }
        // A bit later each time.
        (0..stop / 4).for_each(|_| assert_eq!(asked_at("169.254.10.10", false), US));
        let began = now();
        server.signal("TERM");
        answered(queries, &server);
        assert_eq!(server.wait(PATIENCE).code(), Some(0), "{until}");
        let took = began.elapsed();
        assert!((ANSWERS..ANSWERS + MORE).contains(&took), "stop {stop}, {until}: it takes {took:.1?}");
        assert_eq!(run("nft", &["list", "tables", "inet"]), "", "{until}");
        assert!(!run("ip", &["link"]).contains("localdns"), "{until}");
    }
}

/// Sends a query to each address; the replies stay unread.
fn asked() -> Vec<UdpSocket> {
    let ask = |ip| {
        let at = at(ip);
        let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).expect("a port");
        socket.connect(at).expect("a route");
        socket.set_read_timeout(Some(PATIENCE)).expect("it can be set");
        socket.send(&Ask::new(NAME, "A").id(7).bytes()).expect("it is sent");
        socket
    };
    ADDRESSES.map(ask).into()
}

fn answered(queries: Vec<UdpSocket>, server: &Server) {
    for socket in queries {
        let mut reply = [0; 512];
        let length = socket.recv(&mut reply).unwrap_or_else(|error| panic!("{error}\n{}", server.log_text()));
        let message = Message::decode(&reply[..length]).expect("a message");
        assert_eq!(message.answers[0].data, US);
    }
}

/// Time for which a stopping server still answers, and the maximum time that the stop takes beyond
/// it.
const ANSWERS: Duration = Duration::from_secs(5);
const MORE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);
