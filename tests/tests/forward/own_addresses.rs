//! Upstreams that are this server itself: excluded, by the machine's current addresses.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tests::{Ask, Server, Upstream, add_address, assert_contains, binary, eventually, isolated, output, run};

use super::good;

/// Runs `localdns check` on a Corefile.
pub(crate) fn check(corefile: &Path) -> Output {
    let mut command = Command::new(binary());
    command.arg("check").arg("-conf").arg(corefile);
    output(command, Duration::from_secs(10))
}

/// A server's own address among its upstreams is left out, as where two servers share one Corefile.
#[test]
fn own_address_is_left_out() {
    isolated(|| {
        add_address("192.0.2.2/32");
        let other = Upstream::at("127.0.0.1:5353".parse().unwrap(), good);
        let chain = ".:5301 {\nforward . 127.0.0.1:53 127.0.0.1:5353 {\npolicy sequential\n}\n}\n";
        for (upstreams, more) in [("192.0.2.2", ""), ("192.0.2.2 127.0.0.7", ""), ("127.0.0.1:5301", chain)] {
            let corefile = format!(
                ".:53 {{\nforward . {upstreams} {} {{\npolicy sequential\n}}\n}}\n{more}",
                other.word()
            );
            let server = Server::start(&corefile);
            for upstream in upstreams.split(' ') {
                let address =
                    if upstream.contains(':') { upstream.to_owned() } else { format!("{upstream}:53") };
                let line =
                    server.wait_for_log(&format!("{address} is this server itself"), Duration::from_secs(5));
                assert_contains!(line, "[WARNING] ");
                assert_contains!(line, "Corefile:2:");
            }
            for ask in [Ask::new("x.example", "A"), Ask::new("y.example", "A").tcp()] {
                assert_eq!(
                    ask.of(SocketAddr::from(([127, 0, 0, 1], 53))).short(),
                    ["192.0.2.1"],
                    "{upstreams}"
                );
            }
            let checked = check(&server.path("Corefile"));
            assert!(checked.status.success(), "{checked:?}");
            assert_contains!(String::from_utf8_lossy(&checked.stderr), "is this server itself");
            server.signal("USR1");
            server.wait_for_log("Reloading complete", Duration::from_secs(5));
        }
    });
}

/// The server's own addresses are checked again as a virtual address moves here and away.
#[test]
fn own_addresses_are_checked_again() {
    isolated(|| {
        let other = Upstream::at("127.0.0.1:5353".parse().unwrap(), good);
        let corefile = format!(
            ".:53 {{\nprometheus 127.0.0.1:9153\nforward . 192.0.2.9 [2001:db8::9]:53 {}\n}}\n",
            other.word()
        );
        let server = Server::start(&corefile);
        let left_out = || {
            let (_, text) = tests::http_get(([127, 0, 0, 1], 9153).into(), "/status").unwrap();
            let status: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let all = status["upstreams"].as_array().into_iter().flatten();
            let out = all.filter(|one| one["loops"] == true);
            out.map(|one| one["address"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        // The page may be cached.
        let becomes = |expected: &[&str]| {
            eventually(&format!("{expected:?} are left out"), PATIENCE, || {
                (left_out() == expected).then_some(())
            });
        };
        becomes(&[]);
        for (n, (cidr, upstream)) in [
            ("192.0.2.9/32", "192.0.2.9:53"),
            ("2001:db8::9/128", "[2001:db8::9]:53"),
            ("192.0.2.9/32", "192.0.2.9:53"),
        ]
        .into_iter()
        .enumerate()
        {
            let (patience, nth) = (Duration::from_secs(5), 1 + n / 2);
            add_address(cidr);
            server.wait_for_lines(&format!("the upstream {upstream} is this server itself"), nth, patience);
            becomes(&[upstream]);
            assert_eq!(tests::ask(([127, 0, 0, 1], 53).into(), "x.example", "A").short(), ["192.0.2.1"]);
            run("ip", &["address", "del", cidr, "dev", "lo"]);
            server.wait_for_lines(
                &format!("the upstream {upstream} is no longer this server itself"),
                nth,
                patience,
            );
            becomes(&[]);
        }
    });
}

/// Without upstreams queries fail at once; in a loop they would run until their deadline.
#[test]
fn only_own_addresses_fail_at_once() {
    isolated(|| {
        let server = Server::start(".:53 {\nforward . 192.0.2.9\n}\n");
        add_address("192.0.2.9/32");
        server.wait_for_log("no upstream of `forward .` is left", Duration::from_secs(5));
        let reply = Ask::new("x.example", "A").edns(1232).of(([127, 0, 0, 1], 53).into());
        assert_eq!(reply.status(), "SERVFAIL");
        tests::steadily(|| {
            let reply = Ask::new("x.example", "A").of(([127, 0, 0, 1], 53).into());
            assert!(reply.elapsed < Duration::from_millis(500), "{:?}", reply.elapsed);
        });
    });
}

/// The upstreams in an unchanged file are checked again as an address moves from this machine.
#[test]
fn list_of_own_addresses_is_rechecked() {
    isolated(|| {
        add_address("192.0.2.9/32");
        let list = Path::new("/etc/upstreams.conf");
        tests::publish(list, "nameserver 192.0.2.1\n");
        let server = Server::start(".:53 {\nforward . /etc/upstreams.conf\n}\n");
        tests::publish(list, "nameserver 192.0.2.9\n");
        server
            .wait_for_log("upstreams stay as they were: plugin/forward: the upstream 192.0.2.9:53", PATIENCE);
        run("ip", &["address", "del", "192.0.2.9/32", "dev", "lo"]);
        server.wait_for_log("upstreams changed: 192.0.2.9:53", PATIENCE);
        assert_eq!(server.log_text().matches("stay as they were").count(), 1, "{}", server.log_text());
    });
}

const PATIENCE: Duration = Duration::from_secs(20);
