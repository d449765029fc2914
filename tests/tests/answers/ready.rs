//! `monitor` of `ready`, compared with CoreDNS: /ready after a cluster is lost, and after a reload
//! with another cluster.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use tests::kube::{SERVICES, ScriptedCluster};
use tests::{Server, ask, eventually, fresh_ip, http_get, port};

use crate::cluster;
use crate::coredns::CoreDns;

/// localdns or CoreDNS.
enum Either {
    Ours(Server),
    CoreDns(CoreDns),
}

impl Either {
    fn reload(&self, text: &str) {
        match self {
            Self::Ours(server) => {
                server.write_corefile(text);
                server.signal("USR1");
            }
            Self::CoreDns(server) => server.reload(text),
        }
    }
}

/// Loses the API of a synchronized cluster, then reloads with another cluster, its API down.
pub(crate) fn readiness_lasts_until_a_reload(program: &Path) {
    for monitor in [" {\nmonitor until-ready\n}", " {\nmonitor continuously\n}"] {
        for is_ours in [false, true] {
            let label = if is_ours { "we" } else { "CoreDNS" };
            let first = ScriptedCluster::start(cluster::objects(), false);
            let second = ScriptedCluster::start(cluster::objects(), true);
            let ip = fresh_ip();
            let text = |cluster: &ScriptedCluster| {
                format!(
                    "cluster.local:{} {{\nbind {ip}\nready {ip}:8181{monitor}\nkubernetes {{\nendpoint {}\nstartup_timeout 300ms\n}}\n}}\n",
                    port(),
                    cluster.api.url()
                )
            };
            let server = match is_ours {
                true => Either::Ours(Server::start(&text(&first))),
                false => Either::CoreDns(CoreDns::start(program, &text(&first))),
            };
            until(ip, 200, "OK");
            first.fail();
            let asked = first.api.requests().len();
            eventually("the API is asked in vain", PATIENCE, || {
                (first.api.requests().len() >= asked + 2).then_some(())
            });
            // Known data is still answered, so every plugin is ready, in both modes of `monitor`.
            for _ in 0..3 {
                assert_eq!(readiness(ip), Some((200, "OK".to_owned())), "{label}: {monitor}");
            }

            server.reload(&text(&second));
            until(ip, 503, "kubernetes");
            // CoreDNS may serve the new /ready before the new DNS configuration.
            eventually("nothing is known of the other cluster", PATIENCE, || {
                (ask((ip, port()).into(), NAME, "A").status() == "SERVFAIL").then_some(())
            });
            second.put(SERVICES, "ADDED", cluster::service("t1", "late", &serde_json::json!({}), late()).1);
            second.recover();
            until(ip, 200, "OK");
            assert_eq!(ask((ip, port()).into(), NAME, "A").short(), ["10.96.9.9"], "{label}: {monitor}");
        }
    }
}

fn late() -> serde_json::Value {
    serde_json::json!({"clusterIP": "10.96.9.9", "clusterIPs": ["10.96.9.9"]})
}

/// Returns the status and body of /ready; `None` while the port is closed, as during a reload of
/// CoreDNS.
fn readiness(ip: Ipv4Addr) -> Option<(u16, String)> {
    http_get((ip, 8181).into(), "/ready").ok()
}

/// Waits for this status and a body that begins with `text`; localdns appends the reason.
fn until(ip: Ipv4Addr, status: u16, text: &str) {
    eventually(&format!("{status} {text}"), PATIENCE, || {
        readiness(ip).filter(|(found, body)| *found == status && body.starts_with(text)).map(drop)
    });
}

const NAME: &str = "late.t1.svc.cluster.local";
const PATIENCE: Duration = Duration::from_secs(60);
