//! A server block on the node's own address and a Service's: both share one cache.

use std::time::Duration;

use tests::{isolated, tool};

use super::clients::asked_at;
use super::lab::{CLUSTER, Lab, POD, within};

/// A name queried at both addresses of a block is queried once upstream.
#[test]
fn one_upstream_query_for_both_addresses() {
    isolated(|| {
        if !tool("both addresses", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve_of(COREFILE, &["-host-resolver", "none"]);
        for ip in BOTH {
            server.wait_for_log(&format!("queries to {ip} are answered here"), Duration::from_secs(10));
        }
        let asked = lab.asked();
        let asks = || {
            for ip in BOTH {
                for tcp in [false, true] {
                    assert_eq!(asked_at(ip, tcp), CLUSTER, "{ip}, TCP: {tcp}");
                }
            }
        };
        within(POD, asks).join().expect("it is answered");
        asks();
        assert_eq!(lab.asked(), asked + 1, "what the upstream was asked");
    });
}

const BOTH: [&str; 2] = ["169.254.10.10", "10.96.0.20"];
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10 10.96.0.20
    cache 30
    forward . 10.2.0.2
}
";
