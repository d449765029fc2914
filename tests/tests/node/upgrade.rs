//! A server with rules and leases that is replaced: no query goes to the upstream meanwhile.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tests::{Ask, Message, Stream, eventually, isolated, signal, tool};

use super::lab::{Lab, NAME, POD, US, within};

#[test]
fn no_query_is_lost_or_goes_to_the_upstream_over_five_upgrades() {
    isolated(|| {
        if !tool("node upgrades", "nft") {
            return;
        }
        let lab = Lab::new();
        let mut server = lab.serve(&[]);
        let serves = |n| drop(server.wait_for_lines("queries to fd10::11 come here", n, PATIENCE));
        serves(1);
        let streams: Vec<Stream> = ["169.254.10.10", "169.254.10.11", "10.96.0.20", "fd10::11"]
            .iter()
            .flat_map(|ip| [None, Some(POD)].map(|place| (place, SocketAddr::from((address(ip), 53)))))
            .map(|(place, at)| match place {
                Some(pod) => within(pod, move || stream(at)).join().expect("a stream starts"),
                None => stream(at),
            })
            .collect();
        let mut pid = server.pid();
        for upgrade in 1..=5 {
            let sent = streams[0].sent();
            eventually("queries", PATIENCE, || (streams[0].sent() >= sent + 60).then_some(()));
            signal(pid, "USR2");
            serves(upgrade + 1);
            pid = eventually("the next process", PATIENCE, || {
                let next = std::fs::read_to_string(server.path("pid")).ok()?.trim().parse().ok()?;
                (next != pid).then_some(next)
            });
        }
        for stream in streams {
            stream.finish(Duration::from_secs(2)).assert_clean();
        }
        assert!(server.wait(PATIENCE).success());
        let log = server.log_text();
        assert!(!log.contains("the lease of"), "a lease ended meanwhile:\n{log}");
        signal(pid, "TERM");
    });
}

/// Every query is answered by us.
fn stream(at: SocketAddr) -> Stream {
    let right = |_, message: &Message| message.answers.first().is_some_and(|record| record.data == US);
    Stream::start(at, 125, |_| Ask::new(NAME, "A"), right)
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

const PATIENCE: Duration = Duration::from_secs(15);
