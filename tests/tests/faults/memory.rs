//! What large answers cost in memory.

use std::net::UdpSocket;
use std::time::Duration;

use tests::{Action, Ask, Dns, Says, Upstream, fresh_ip, skip};

/// Sockets of the server's address.
const SOCKETS: usize = 16;
/// Clients, each with a port of its own, over which the kernel spreads them.
const CLIENTS: usize = 64;
/// Of one client.
const QUERIES: u16 = 32;

#[test]
fn large_cached_answers_asked_over_udp_leave_no_memory_behind() {
    let text = format!("large.example. 300 IN TXT \"{}\"\n", "x".repeat(240));
    let upstream = Upstream::start(fresh_ip(), move |_| Action::Truncate(Says::answer(&text.repeat(220))));
    let dns = Dns::start(&format!("multisocket {SOCKETS}\ncache\nforward . {}", upstream.word()));
    let whole = Ask::new("large.example", "TXT").tcp().of(dns.at);
    assert_eq!(whole.answers.len(), 220);

    let clients: Vec<UdpSocket> = (0..CLIENTS)
        .map(|_| {
            let client = UdpSocket::bind("127.0.0.1:0").expect("a client socket can be made");
            client.connect(dns.at).expect("a UDP socket always connects");
            client.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
            client
        })
        .collect();
    let before = dns.server.rss_kb();
    // What waits when it goes on is taken in whole batches.
    dns.server.signal("STOP");
    for id in 0..QUERIES {
        for client in &clients {
            client.send(&Ask::new("large.example", "TXT").id(id).bytes()).expect("the server listens");
        }
    }
    dns.server.signal("CONT");
    let mut reply = [0; 4096];
    for client in &clients {
        for _ in 0..QUERIES {
            if client.recv(&mut reply).is_err() {
                let told = "large_cached_answers_asked_over_udp_leave_no_memory_behind";
                return skip(told, "the sockets have no room for as many queries");
            }
            assert_eq!(reply[2] & 2, 2, "TC");
        }
    }
    let after = dns.server.rss_kb();
    assert_eq!(upstream.total(), 1, "they were all hits");
    assert!(after < before + (16 << 10), "{before} -> {after} KiB");
}
