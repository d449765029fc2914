//! Upstreams that serve one query at a time, near and slightly above their capacity.

use std::net::UdpSocket;
use std::sync::Mutex;
use std::thread::{scope, sleep};
use std::time::Duration;

use tests::{Ask, Dns, Metrics, Stream, Upstream, eventually, fresh_ip, now, steadily};

use super::good;

/// Load at three quarters or four fifths of the upstream's capacity, and one burst: every query is
/// answered, and the upstream receives at most eleven queries for ten of a client. For comparison,
/// CoreDNS 1.15.0 answered 191 of 745 in the second case, 73 of 220 in the third, and all in the
/// others.
#[test]
fn bursts_at_slow_upstreams_are_answered() {
    let cases = [(30, 25, 60), (30, 25, 120), (100, 8, 20), (400, 2, 0)];
    scope(|scope| {
        for (service_ms, rate, burst) in cases {
            scope.spawn(move || steadily(|| burst_is_answered(service_ms, rate, burst)));
        }
    });
}

fn burst_is_answered(service_ms: u64, rate: u32, burst: usize) {
    let case = format!("{service_ms} ms, {rate}/s, a burst of {burst}");
    let upstream = serial(Duration::from_millis(service_ms));
    let ip = fresh_ip();
    let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\ncache\nforward . {}", upstream.word()));
    let name = |n: usize| format!("n{n}.example");
    let stream = Stream::start(dns.at, rate, move |n| Ask::new(&name(n), "A"), |_, reply| reply.rcode() == 0);
    sent(&stream, 2 * rate as usize);
    let client = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    for n in 0..burst {
        let query = Ask::new(&format!("burst{n}.example"), "A").bytes();
        client.send_to(&query, dns.at).expect("loopback takes it");
    }
    sent(&stream, 16 * rate as usize);
    let counts = stream.finish(Duration::from_secs(5));
    assert_eq!((counts.answered, counts.wrong), (counts.sent, 0), "{case}");
    let all = counts.sent + burst;
    assert!(upstream.total() * 10 <= all * 11, "{case}: {} for {all}", upstream.total());
    let answered =
        Metrics::of((ip, 9153).into()).count("coredns_dns_responses_total", &[("rcode", "NOERROR")]);
    assert_eq!(answered, all as f64, "{case}");
}

/// One and a half times the upstream's capacity: it answers as many queries as it can in time, and
/// the others are refused at once with Extended DNS Error 23.
#[test]
fn overloaded_upstream_reaches_its_capacity() {
    steadily(|| {
        let upstream = serial(Duration::from_millis(30));
        let ip = fresh_ip();
        let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\nerrors\nforward . {}", upstream.word()));
        let stream = Stream::start(
            dns.at,
            50,
            |n| Ask::new(&format!("n{n}.example"), "A").edns(1232),
            |_, reply| matches!(reply.rcode(), 0 | 2),
        );
        sent(&stream, 50 * 12);
        let metrics = || Metrics::of((ip, 9153).into());
        let noerror =
            |metrics: &Metrics| metrics.count("coredns_dns_responses_total", &[("rcode", "NOERROR")]);
        let before = noerror(&metrics());
        sent(&stream, 50 * 22);
        let after = metrics();
        // Ten seconds suffice for 333.
        assert!(noerror(&after) - before >= 280.0, "{}", noerror(&after) - before);
        let limit = after.count("localdns_forward_outstanding_limit", &[]);
        assert!((20.0..=150.0).contains(&limit), "{limit}");
        let refused = eventually("a query that is refused at once", Duration::from_secs(10), || {
            let reply =
                Ask::new("one-more.example", "A").edns(1232).timeout(Duration::from_secs(6)).of(dns.at);
            (reply.status() == "SERVFAIL" && reply.elapsed < Duration::from_millis(500)).then_some(reply)
        });
        let why = refused.extended_error();
        assert!(why.as_ref().is_some_and(|(code, _)| *code == 23), "{why:?}");
        let counts = stream.finish(Duration::from_secs(5));
        assert_eq!((counts.lost, counts.wrong), (0, 0));
    });
}

/// Serves one query at a time for `service` each. A delay by a busy machine shortens the next one.
fn serial(service: Duration) -> Upstream {
    let free_at = Mutex::new(now());
    Upstream::start(fresh_ip(), move |asked| {
        // The kit calls this for one datagram at a time.
        let mut free_at = free_at.lock().expect("no other use panics");
        let start = if now().saturating_duration_since(*free_at) < service { *free_at } else { now() };
        *free_at = start + service;
        sleep(free_at.saturating_duration_since(now()));
        good(asked)
    })
}

fn sent(stream: &Stream, count: usize) {
    eventually("queries to be sent", Duration::from_secs(60), || (stream.sent() >= count).then_some(()));
}
