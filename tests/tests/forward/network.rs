//! Effects of the machine's network on upstreams: routes that disappear and return, reserved ports.

use std::cell::Cell;
use std::net::SocketAddr;
use std::thread::{scope, sleep};
use std::time::Duration;

use tests::{Ask, Server, Upstream, add_address, fresh_ip, isolated, run, steadily};

use super::good;

const AWAY: Duration = Duration::from_millis(300);

/// An address that is renewed costs only the time that it is missing.
#[test]
fn renewed_address_costs_its_absence() {
    isolated(|| {
        add_address("198.51.100.53/32");
        let upstream = Upstream::at("198.51.100.53:53".parse().unwrap(), good);
        let at = SocketAddr::from((fresh_ip(), 53));
        let _server = Server::start(&format!(".:53 {{\nbind {}\nforward . {}\n}}", at.ip(), upstream.word()));
        let number = Cell::new(0);
        steadily(|| {
            for (what, tcp) in [("no socket yet", false), ("sockets", false), ("tcp", true)] {
                number.set(number.get() + 1);
                run("ip", &["address", "del", "198.51.100.53/32", "dev", "lo"]);
                let name = format!("n{}.example", number.get());
                let ask = Ask::new(&name, "A").timeout(Duration::from_secs(6));
                let ask = if tcp { ask.tcp() } else { ask };
                let reply = scope(|scope| {
                    let asked = scope.spawn(|| ask.of(at));
                    sleep(AWAY);
                    add_address("198.51.100.53/32");
                    asked.join().unwrap()
                });
                assert_eq!(reply.short(), ["192.0.2.1"], "{what}");
                assert!(reply.elapsed < AWAY + Duration::from_millis(600), "{what}: {:?}", reply.elapsed);
                // Many sockets, before their address is removed.
                for n in 0..40 {
                    assert_eq!(tests::ask(at, &format!("w{n}.{name}"), "A").short(), ["192.0.2.1"]);
                }
            }
        });
    });
}

#[test]
fn reserved_ports_are_not_used() {
    isolated(|| {
        let lend = |range: &str, reserved: &str| {
            std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
            std::fs::write("/proc/sys/net/ipv4/ip_local_reserved_ports", reserved).unwrap();
        };
        lend("40000 40199", "40020-40179");
        let upstream = Upstream::start(fresh_ip(), good);
        let at = SocketAddr::from((fresh_ip(), 53));
        let server = Server::start(&format!(".:53 {{\nbind {}\nforward . {}\n}}", at.ip(), upstream.word()));
        let ports = |what: &str| -> Vec<u16> {
            for n in 0..60 {
                assert_eq!(tests::ask(at, &format!("n{n}.{what}.example"), "A").short(), ["192.0.2.1"]);
            }
            let mut ports: Vec<u16> = upstream.asked().iter().map(|asked| asked.from.port()).collect();
            upstream.forget();
            ports.sort_unstable();
            ports.dedup();
            ports
        };
        let before = ports("before");
        let lent = |port: &u16| (40_000..40_020).contains(port) || (40_180..40_200).contains(port);
        assert!(before.len() > 5 && before.iter().all(lent), "{before:?}");
        // Applies from the next reload.
        lend("50000 50199", "");
        server.signal("USR1");
        server.wait_for_log("Reloading complete", Duration::from_secs(10));
        let after = ports("after");
        let is_new = |port: &u16| (50_000..50_200).contains(port);
        assert!(after.iter().any(is_new), "{after:?}");
        assert!(after.iter().all(|port| is_new(port) || before.contains(port)), "{after:?} after {before:?}");
    });
}
