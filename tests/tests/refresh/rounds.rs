//! Refresh rounds: their upstreams, their interval, and their log lines.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use tests::{
    Action, Options, Server, Upstream, add_address, ask, eventually, fresh_ip, isolated, now, publish, run,
};

use super::{EVERY_5_S, NAMES, Node, address};

/// It reports if no other upstream is left.
#[test]
fn own_address_is_never_queried() {
    isolated(|| {
        for ip in ["169.254.10.10", "192.0.2.53", "192.0.2.54"] {
            add_address(&format!("{ip}/32"));
        }
        fs::create_dir_all("/etc/localdns").unwrap();
        fs::write("/etc/localdns/upstream-dns", "169.254.10.10 192.0.2.54\n").unwrap();
        let listed = Upstream::at("192.0.2.54:53".parse().unwrap(), address(4));
        let forwarded = Upstream::at("192.0.2.53:53".parse().unwrap(), address(3));
        let corefile = ".:53 {\nbind 169.254.10.10\nhosts /etc/localdns/hosts {\nttl 5\nreload 100ms\nfallthrough\n}\nforward . 192.0.2.53\n}\n";
        let options = || Options::default().env(NAMES, "a.test").args(["-status", ""]);
        let at: SocketAddr = "169.254.10.10:53".parse().unwrap();
        let sees = |last: &str| {
            eventually(last, Duration::from_secs(15), || {
                sleep(Duration::from_millis(20));
                (ask(at, "a.test", "A").short() == [last]).then_some(())
            });
            // The file is written after the name is served.
            eventually("the file", Duration::from_secs(15), || fs::remove_file("/etc/localdns/hosts").ok());
        };
        let server = Server::start_with(corefile, options());
        sees("192.0.2.4");
        drop(server);
        // The list contains only the server itself: the upstreams of the root block are used.
        fs::write("/etc/localdns/upstream-dns", "169.254.10.10\n").unwrap();
        let server = Server::start_with(corefile, options());
        forwarded.wait_for("a.test.", 1, Duration::from_secs(10));
        drop(server);
        listed.forget();
        forwarded.forget();
        let server =
            Server::start_with(&corefile.replace("ttl 5", "ttl 5\nrefresh_via 169.254.10.10"), options());
        server.wait_for_log(
            "there is no server to refresh the names of /etc/localdns/hosts with",
            Duration::from_secs(10),
        );
        assert_eq!(forwarded.asked().len() + listed.asked().len(), 0, "what is written is meant");
    });
}

/// A pipe as the list of servers is passed over and delays nothing.
#[test]
fn pipe_as_list_is_passed_over() {
    isolated(|| {
        for ip in ["169.254.10.10", "192.0.2.53"] {
            add_address(&format!("{ip}/32"));
        }
        fs::create_dir_all("/etc/localdns").unwrap();
        run("mkfifo", &["/etc/localdns/upstream-dns"]);
        let upstream = Upstream::at("192.0.2.53:53".parse().unwrap(), address(1));
        let corefile = ".:53 {\nbind 169.254.10.10\nhosts /etc/localdns/hosts {\nttl 5\nreload 100ms\nrefresh_interval 5s\nfallthrough\n}\nforward . 192.0.2.53\n}\n";
        let options = Options::default().env(NAMES, "a.test").args(["-status", ""]);
        let mut server = Server::start_with(corefile, options);
        let at: SocketAddr = "169.254.10.10:53".parse().unwrap();
        let sees = |name: &str, address: &str| {
            eventually(&format!("{name} at {address}"), Duration::from_secs(15), || {
                sleep(Duration::from_millis(20));
                (ask(at, name, "A").short() == [address]).then_some(())
            });
        };
        // The upstreams of the root block are used instead, in this round and the next, and the
        // thread that polls hosts files continues.
        for last in [1, 2] {
            upstream.answer_by(address(last));
            sees("a.test", &format!("192.0.2.{last}"));
            let line = format!("192.0.2.{last} a.test");
            eventually("the file", Duration::from_secs(15), || {
                fs::read_to_string("/etc/localdns/hosts").is_ok_and(|text| text.contains(&line)).then_some(())
            });
            publish(Path::new("/etc/localdns/hosts"), format!("{line}\n198.51.100.{last} mine.test\n"));
            sees("mine.test", &format!("198.51.100.{last}"));
        }
        server.signal("TERM");
        assert_eq!(server.wait(Duration::from_secs(2)).code(), Some(0));
    });
}

/// Rounds of 15 s, with few sockets.
#[test]
fn ten_thousand_names_in_rounds() {
    let refresh: String = (0..200)
        .map(|line| {
            let names: String = (0..50).map(|n| format!(" n{}.test", line * 50 + n)).collect();
            format!("refresh{names}\n")
        })
        .collect();
    let without = {
        let node = Node::start(None, "", &[], address(1));
        node.ask("a.test", "A");
        node.server.rss_kb()
    };
    let node = Node::start(None, &format!("{refresh}refresh_interval 5s"), &[], address(1));
    let at_rest = node.server.fds();
    let started = now();
    let mut most = 0;
    eventually("every name", Duration::from_secs(120), || {
        most = most.max(node.server.fds());
        sleep(Duration::from_millis(20));
        (node.text().lines().filter(|line| line.starts_with("192.0.2.1 ")).count() == 10_000).then_some(())
    });
    println!(
        "10,000 names after {:?}, at most {most} descriptors, {} KiB, {without} KiB without them",
        started.elapsed(),
        node.server.rss_kb()
    );
    // 64 lookups with four sockets each, and the server's own.
    assert!(most <= at_rest + 64 * 4 + 64, "{most} descriptors, {at_rest} before");
    // The memory for each name as given in docs/limits.md.
    assert!(node.server.rss_kb() <= without + 10_000 * 8, "{} KiB, {without} before", node.server.rss_kb());
    // The file is complete before the round that wrote it has ended.
    let took = eventually("the round's end", Duration::from_secs(30), || {
        let metrics = node.server.metrics((node.at.ip(), 9153).into());
        metrics.value("localdns_refresh_last_round_duration_seconds", &[])
    });
    assert!(took <= 15.0, "{took}");
}

#[test]
fn blocks_share_a_files_rounds() {
    let directory = tests::tempdir();
    let hosts = directory.path().join("hosts");
    let upstream = Upstream::start(fresh_ip(), address(1));
    let (one, two) = (fresh_ip(), fresh_ip());
    let block = |ip| {
        format!(
            ".:{} {{\nbind {ip}\nhosts {} {{\nttl 5\nreload 5s\nfallthrough\n}}\nforward . {}\n}}\n",
            tests::port(),
            hosts.display(),
            upstream.word()
        )
    };
    let options = Options::default().env(NAMES, "a.test").args(["-status", ""]);
    let _server = Server::start_with(&format!("{}{}", block(one), block(two)), options);
    eventually("the file", Duration::from_secs(10), || hosts.exists().then_some(()));
    for ip in [one, two] {
        eventually("the entry", Duration::from_secs(10), || {
            let reply = ask((ip, tests::port()).into(), "a.test", "A");
            (reply.short() == ["192.0.2.1"] && reply.answers[0].ttl == 5).then_some(())
        });
    }
    let refreshes = upstream.asked_for("a.test.").iter().filter(|asked| asked.rtype == 28).count();
    assert_eq!(refreshes, 1, "one AAAA lookup for both");
}

/// A failure is logged once and when it changes.
#[test]
fn silent_name_delays_no_other() {
    let script = |asked: &tests::Asked| match asked.name.as_str() {
        "silent.test." => Action::Silent,
        _ => address(1)(asked),
    };
    let node = Node::start(None, "refresh a.test b.test silent.test", &[EVERY_5_S], script);
    node.file_holds("192.0.2.1 a.test");
    node.file_holds("192.0.2.1 b.test");
    let metrics = node.server.metrics((node.at.ip(), 9153).into());
    let rounds = metrics.count("localdns_refresh_rounds_total", &[]);
    assert_eq!(rounds, 0.0, "they are written before the round is over");
    let line = node.server.wait_for_log("lookups for ", Duration::from_secs(20));
    let file = node.hosts().display().to_string();
    assert_eq!(
        line,
        format!(
            "[WARNING] plugin/hosts: 2 of 6 lookups for {file} fail, and what was known is kept: silent.test A: no reply; silent.test AAAA: no reply"
        )
    );
    // Retries of one name are neither a failure of the whole round nor logged again.
    node.rounds("partial", 2.0);
    assert_eq!(node.server.log_lines().iter().filter(|line| line.contains("lookups for ")).count(), 1);
    let metrics = node.server.metrics((node.at.ip(), 9153).into());
    assert_eq!(metrics.count("localdns_refresh_rounds_total", &[("result", "failed")]), 0.0);
    node.upstream.answer_by(address(1));
    node.server.wait_for_log(&format!("all names of {file} are answered again"), Duration::from_secs(30));
}
