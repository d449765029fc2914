//! Corefile reloads and new hosts files, one after another, under load.

use std::net::SocketAddr;
use std::thread::{scope, sleep};
use std::time::Duration;

use tests::{
    Action, Ask, Message, Metrics, Server, Stream, Upstream, ask, eventually, flood, fresh_ip, now, port,
    publish, skip, tempdir,
};

/// No query is lost over reloads and replaced hosts files.
#[test]
fn reloads_and_hosts_swaps() {
    reloads_and_swaps(25, 100, 3_000.0);
}

/// No query is lost over a thousand reloads and ten thousand replaced hosts files.
#[test]
#[ignore = "takes minutes: a thousand reloads and ten thousand hosts swaps"]
fn thousand_reloads_ten_thousand_swaps() {
    reloads_and_swaps(1_000, 10_000, f64::INFINITY);
}

/// At 30 % of the measured rate, at most `most` queries a second: every reply is right, and nothing
/// leaks.
fn reloads_and_swaps(reloads: usize, swaps: usize, most: f64) {
    let directory = tempdir();
    let hosts = directory.path().join("hosts");
    let swap =
        |n: usize| publish(&hosts, format!("192.0.2.{} x.example\n192.0.2.200 steady.example\n", n % 100));
    swap(1);
    let (ip, port) = (fresh_ip(), port());
    let upstream =
        Upstream::start(fresh_ip(), |asked| Action::answer(&format!("{} 300 IN A 192.0.2.201", asked.name)));
    let corefile = |n: usize| {
        format!(
            "# {n}\n.:{port} {{\nbind {ip}\nprometheus {ip}:9153\nhosts {} {{\nreload 10ms\nttl {}\nfallthrough\n}}\ncache\nforward . {}\n}}",
            hosts.display(),
            60 + n % 2,
            upstream.word()
        )
    };
    let mut server = Server::start(&corefile(0));
    let at = SocketAddr::from((ip, port));
    assert_eq!(ask(at, "x.example", "A").status(), "NOERROR");
    assert_eq!(ask(at, "cached.example", "A").status(), "NOERROR");
    let names = ["x.example", "steady.example", "cached.example"];
    let query = move |n: usize| Ask::new(names[n % 3], "A");
    let right = |n: usize, message: &Message| {
        let Some(address) = message.answers.first().map(|record| record.data.as_str()) else { return false };
        match n % 3 {
            0 => address.starts_with("192.0.2.") && address != "192.0.2.200" && address != "192.0.2.201",
            1 => address == "192.0.2.200",
            _ => address == "192.0.2.201",
        }
    };
    let measured = closed_loop(at, query, right);
    let offered = (0.3 * measured).min(most);
    let (targets, rss) = (server.fd_targets(), server.rss_kb());
    let streams = (offered / 10_000.0).ceil();
    let rate = (offered / streams) as u32;
    let running: Vec<Stream> =
        (0..streams as usize).map(|_| Stream::start(at, rate.max(1), query, right)).collect();
    let started = now();
    let mut swapped = 0;
    for n in 1..=reloads {
        server.write_corefile(&corefile(n));
        server.signal("USR1");
        while swapped < swaps * n / reloads {
            swapped += 1;
            swap(swapped);
            sleep(Duration::from_millis(5));
        }
        server.wait_for_lines("Reloading complete", n, Duration::from_secs(5));
    }
    eventually("the last reload", Duration::from_secs(10), || {
        (ask(at, "steady.example", "A").answers[0].ttl == 60 + (reloads % 2) as u32).then_some(())
    });
    let length = started.elapsed();
    let mut sent = 0;
    for stream in running {
        let counts = stream.finish(Duration::from_secs(2));
        counts.assert_clean();
        sent += counts.sent;
    }
    println!("measured {measured:.0} a second; offered {offered:.0}, sent {sent} queries in {length:?}");
    if (sent as f64) < 0.9 * offered * length.as_secs_f64() {
        skip("the rate of reloads and swaps", "this machine is too busy to offer 30 % of what it takes");
    }
    // After a reload each worker may have queried the upstream. Such a socket is closed when it is 10 s old.
    let what = format!("as few descriptors as {targets:?}, of {:?}", server.fd_targets());
    eventually(&what, Duration::from_secs(15), || (server.fds() <= targets.len()).then_some(()));
    assert!(server.rss_kb() < rss + (32 << 10), "{rss} -> {} KiB", server.rss_kb());
    let metrics = Metrics::of((ip, 9153).into());
    assert_eq!(metrics.count("coredns_reload_failed_total", &[]), 0.0);
    assert_eq!(metrics.value("localdns_kernel_drops_total", &[]), Some(0.0));
    assert!(server.is_running());
}

/// Answered queries a second when two clients send as fast as they can, for one second.
fn closed_loop(
    at: SocketAddr,
    query: impl Fn(usize) -> Ask + Copy + Send,
    right: impl Fn(usize, &Message) -> bool + Copy + Send,
) -> f64 {
    let started = now();
    let client = move || {
        let mut answered = 0;
        while started.elapsed() < Duration::from_secs(1) {
            let counts = flood(at, 1_000, 64, query, right);
            counts.assert_clean();
            answered += counts.answered;
        }
        answered
    };
    let answered: usize = scope(|scope| {
        let clients = [scope.spawn(client), scope.spawn(client)];
        clients.map(|client| client.join().expect("every reply is right")).iter().sum()
    });
    answered as f64 / started.elapsed().as_secs_f64()
}
