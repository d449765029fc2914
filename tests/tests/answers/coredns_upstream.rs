//! A real CoreDNS as upstream over TCP: it answers the queries of a connection in order.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use tests::{Ask, Dns, Metrics, Stream, eventually, fresh_ip, port, steadily};

use crate::coredns::CoreDns;

/// Names that CoreDNS cannot answer, because their upstream is silent, delay no other names.
pub(crate) fn slow_names_delay_no_others(program: &Path) {
    let silent = fresh_ip();
    // UDP and TCP accept the queries and never answer.
    let _udp = UdpSocket::bind((silent, 53)).or_else(|_| UdpSocket::bind((silent, port())));
    let _udp = _udp.expect("a port is free");
    let at = _udp.local_addr().expect("it is bound");
    let _tcp = TcpListener::bind(at).expect("the port is free");
    let backend = SocketAddr::from((fresh_ip(), port()));
    let (ip, listen) = (backend.ip(), backend.port());
    let _coredns = CoreDns::start(
        program,
        &format!(
            "fast.example:{listen} {{\nbind {ip}\ntemplate IN A {{\nanswer \"{{{{ .Name }}}} 60 IN A 192.0.2.1\"\n}}\n}}\n\
             .:{listen} {{\nbind {ip}\nforward . {at}\n}}\n"
        ),
    );
    for (slow_each, every) in [(1, Duration::from_secs(1)), (10, Duration::from_secs(1))] {
        steadily(|| {
            let ip = fresh_ip();
            let dns =
                Dns::start_on(ip, &format!("prometheus {ip}:9153\nforward . {backend} {{\nforce_tcp\n}}"));
            let ended = AtomicBool::new(false);
            let counts = scope(|scope| {
                scope.spawn(|| {
                    let client = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
                    let mut n = 0;
                    while !ended.load(Ordering::Relaxed) {
                        for _ in 0..slow_each {
                            n += 1;
                            let query = Ask::new(&format!("n{n}.slow.example"), "A").bytes();
                            client.send_to(&query, dns.at).expect("loopback takes it");
                        }
                        sleep(every);
                    }
                });
                let stream = Stream::start(
                    dns.at,
                    20,
                    |n| Ask::new(&format!("n{n}.fast.example"), "A"),
                    |_, reply| reply.rcode() == 0,
                );
                eventually("queries", Duration::from_secs(60), || (stream.sent() >= 240).then_some(()));
                ended.store(true, Ordering::Relaxed);
                stream.finish(Duration::from_secs(5))
            });
            assert_eq!((counts.answered, counts.sent), (counts.sent, counts.sent), "{slow_each}");
            assert!(counts.slowest < Duration::from_millis(300), "{slow_each}: {:?}", counts.slowest);
            let metrics = Metrics::of((ip, 9153).into());
            assert_eq!(metrics.count("localdns_forward_pipelining", &[]), 0.0, "it answers in order");
            assert!(metrics.count("localdns_forward_connections", &[]) <= 64.0);
        });
    }
}
