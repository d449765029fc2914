//! Addresses that the server added and another program removes.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tests::{Ask, Server, ask, assert_contains, eventually, isolated, now, run, steadily};

fn answers(at: SocketAddr) {
    for tcp in [false, true] {
        eventually("the answer", Duration::from_secs(10), || {
            let ask = Ask::new("x.example", "A").timeout(Duration::from_millis(100));
            let reply = if tcp { ask.tcp() } else { ask }.try_of(at).ok()?;
            (reply.short() == ["192.0.2.1"]).then_some(())
        });
    }
}

#[test]
fn removed_address_is_restored() {
    isolated(|| {
        let corefile =
            ".:53 {\nbind 169.254.10.10 169.254.10.11 fe80::a:a\nhosts {\n192.0.2.1 x.example\n}\n}\n";
        let v4: SocketAddr = "169.254.10.10:53".parse().unwrap();
        let v6 = || {
            let index = run("ip", &["-o", "link", "show", "localdns"]);
            let index = index.split(':').next().unwrap();
            SocketAddr::from(std::net::SocketAddrV6::new(
                "fe80::a:a".parse().unwrap(),
                53,
                0,
                index.trim().parse().unwrap(),
            ))
        };
        // The second server finds the first one's addresses, and owns them too.
        steadily(|| {
            for _ in 0..2 {
                let mut server = Server::start(corefile);
                answers(v4);
                answers(v6());
                let taken = |address: &str, n: usize| {
                    let line = format!("{address} was removed from this machine");
                    assert_eq!(server.wait_for_lines(&line, n, Duration::from_secs(5)).len(), n, "{line}");
                };
                let began = now();
                run("ip", &["address", "del", "169.254.10.10/32", "dev", "localdns"]);
                answers(v4);
                taken("169.254.10.10", 1);
                assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
                let began = now();
                run("ip", &["link", "del", "localdns"]);
                answers(v4);
                answers("169.254.10.11:53".parse().unwrap());
                taken("fe80::a:a", 1);
                answers(v6());
                taken("169.254.10.10", 2);
                taken("169.254.10.11", 1);
                assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
                // After the stop the address may be removed.
                assert_eq!(server.stop().code(), Some(0));
            }
        });
        assert_contains!(run("ip", &["address", "show"]), "169.254.10.10/32");
    });
}

#[test]
fn reload_adds_what_a_start_adds() {
    isolated(|| {
        tests::add_address("169.254.10.10/32");
        let server = Server::start(".:53 {\nbind 169.254.10.10\nhosts {\n192.0.2.1 x.example\n}\n}\n");
        answers("169.254.10.10:53".parse().unwrap());
        // The server did not add it, so another program may remove it.
        run("ip", &["address", "del", "169.254.10.10/32", "dev", "lo"]);
        server.signal("USR1");
        server.wait_for_log("Reloading complete", Duration::from_secs(5));
        answers("169.254.10.10:53".parse().unwrap());
        server.wait_for_log("169.254.10.10 was removed from this machine", Duration::from_secs(1));
    });
}

/// A changed Corefile is seen while an address cannot be restored.
#[test]
fn change_seen_without_an_address() {
    isolated(|| {
        let corefile = |last: u8| {
            format!(
                ".:53 {{\nbind 169.254.10.10 fe80::a:a\nreload 3s 0\nhosts {{\n192.0.2.{last} x.example\n}}\n}}\n"
            )
        };
        let at: SocketAddr = "169.254.10.10:53".parse().unwrap();
        let server = Server::start(&corefile(1));
        answers(at);
        // The kernel removes the IPv6 address and refuses it at each attempt, every second.
        fs::write("/proc/sys/net/ipv6/conf/localdns/disable_ipv6", "1").unwrap();
        server.wait_for_log(
            "fe80::a:a is missing from this machine and cannot be restored",
            Duration::from_secs(5),
        );
        server.write_corefile(&corefile(2));
        eventually("the new Corefile", Duration::from_secs(20), || {
            (ask(at, "x.example", "A").short() == ["192.0.2.2"]).then_some(())
        });
        fs::write("/proc/sys/net/ipv6/conf/localdns/disable_ipv6", "0").unwrap();
        server.wait_for_log("fe80::a:a was removed from this machine", Duration::from_secs(5));
    });
}
