//! `cancel`: the time that a query waits for upstreams.

use std::time::Duration;

use tests::{Action, Ask, Asked, Dns, Upstream, fresh_ip};

/// A slow upstream is waited for no longer than `cancel` says; its late answer is cached.
#[test]
fn slow_upstream_is_not_waited_for() {
    let slow = |asked: &Asked| Action::answer(&format!("{} 300 IN A 192.0.2.1", asked.name)).after(SLOW);
    let upstream = Upstream::start(fresh_ip(), slow);
    let dns = Dns::start(&format!("cancel 200ms\ncache\nforward . {}", upstream.word()));
    let reply = Ask::new("a.example", "A").edns(1232).of(dns.at);
    assert_eq!(reply.status(), "SERVFAIL");
    assert_eq!(reply.extended_error(), Some((0, "no answer within the time allowed".to_owned())));
    assert!(reply.elapsed >= Duration::from_millis(200) && reply.elapsed < SLOW, "{:?}", reply.elapsed);
    dns.sees("a.example", "192.0.2.1");
    let patient = Dns::start(&format!("cancel\nforward . {}", upstream.word()));
    assert_eq!(Ask::new("b.example", "A").of(patient.at).short(), ["192.0.2.1"]);
}

const SLOW: Duration = Duration::from_millis(1500);
