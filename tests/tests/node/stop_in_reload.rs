//! SIGTERM while a reload goes on: nothing of ours is put back, and whoever asked before is answered.

use std::net::UdpSocket;
use std::time::Duration;

use tests::{Ask, Message, Server, isolated, run, tool};

use super::clients::{ADDRESSES, at};
use super::lab::{COREFILE, Lab, NAME, US};

#[test]
fn a_clean_stop_in_the_midst_of_a_reload_leaves_no_rule_and_no_address() {
    isolated(|| {
        if !tool("stop in reload", "nft") {
            return;
        }
        let lab = Lab::new();
        for until in ["SIGUSR1: Reloading", "Reloading", "Reloading complete", ""] {
            let mut server = lab.serve(&["-host-resolver", "none", "-at-stop", "clean"]);
            server.wait_for_log("queries to fd10::11 come here", PATIENCE);
            // Another address is to come, with its rules.
            server.write_corefile(&COREFILE.replace("169.254.10.11", "169.254.10.11 169.254.10.12"));
            let queries = asked();
            server.signal("USR1");
            if !until.is_empty() {
                server.wait_for_log(until, PATIENCE);
            }
            server.signal("TERM");
            answered(queries, &server);
            assert_eq!(server.wait(PATIENCE).code(), Some(0), "{until}");
            assert_eq!(run("nft", &["list", "tables", "inet"]), "", "{until}");
            assert!(!run("ip", &["link"]).contains("localdns"), "{until}");
        }
    });
}

/// A query to each address, whose answer nobody has read.
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

const PATIENCE: Duration = Duration::from_secs(20);
