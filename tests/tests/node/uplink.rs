//! Which .network file gets the drop-in: that of the link that routes to Azure's 168.63.129.16 or,
//! without such a route, to the first of the network's servers.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tests::{Manager, eventually, isolated, run, signal, tool};

use super::host_resolver::{DROP_IN, Machine};
use super::lab::Lab;

/// The link of the first nameserver is used instead of that of Azure's server.
#[test]
fn uplink_without_a_route_to_azure() {
    isolated(|| {
        if !tool("uplink", "nft") {
            return;
        }
        let (lab, machine) = (Lab::new(), Machine::new());
        machine.state("configured");
        // The link to the pods has its own file.
        fs::write("/run/systemd/network/20-pods.network", "[Match]\nName=v1\n").expect("the test's own");
        run("ip", &["route", "add", "10.9.0.0/16", "via", "10.1.0.2"]);
        let blackhole = ["blackhole", "168.63.129.16"];
        for (route, servers, file) in [
            // With a route to it, the list does not matter.
            (None, "nameserver 10.9.0.1\nnameserver 10.2.0.2\n", Some(DROP_IN)),
            (Some("add"), "nameserver 10.9.0.1\nnameserver 10.2.0.2\n", Some(PODS)),
            (None, "nameserver 10.2.0.2\nnameserver 10.9.0.1\n", Some(DROP_IN)),
            // Our own address is skipped: the first of the others counts.
            (None, "nameserver 169.254.10.10\nnameserver 10.9.0.1\n", Some(PODS)),
            (None, "nameserver 127.0.0.1\n", None),
            (Some("del"), "nameserver 127.0.0.1\n", Some(DROP_IN)),
        ] {
            if let Some(how) = route {
                run("ip", &[&["route", how][..], &blackhole].concat());
            }
            machine.resolv_conf(servers);
            let reloads = machine.calls("reload");
            let mut server = lab.serve_with(|options| machine.on_path(options));
            match file {
                Some(file) => {
                    eventually(file, PATIENCE, || Path::new(file).exists().then_some(()));
                    // The notification of networkd outlives a killed server.
                    eventually("a reload", PATIENCE, || (machine.calls("reload") > reloads).then_some(()));
                    let other = if file == PODS { DROP_IN } else { PODS };
                    assert!(!Path::new(other).exists(), "{servers}");
                }
                None => {
                    drop(server.wait_for_log(
                        "host lookups are not sent to this server: there is no route",
                        PATIENCE,
                    ))
                }
            }
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
            if file == Some(PODS) {
                // networkd no longer lists the network's servers: the existing file stays in use.
                machine.resolv_conf("nameserver 169.254.10.10\n");
                let reloads = machine.calls("reload");
                let manager = Manager::new();
                let mut next =
                    lab.serve_with(|_| machine.on_path(manager.options().subcommand(&["node", "run"])));
                manager.wait_for("READY=1", 1, PATIENCE);
                assert!(
                    !next.log_text().contains("host lookups are not sent to this server"),
                    "{}",
                    next.log_text()
                );
                assert_eq!(machine.calls("reload"), reloads);
                signal(next.pid(), "KILL");
                next.wait(PATIENCE);
                manager.forget();
            }
            let mut down = std::process::Command::new(tests::binary());
            down.args(["node", "down"]).env("PATH", machine.path());
            assert!(tests::output(down, PATIENCE).status.success());
            assert!(!Path::new(DROP_IN).exists() && !Path::new(PODS).exists());
        }
    });
}

const PODS: &str = "/run/systemd/network/20-pods.network.d/70-localdns.conf";
const PATIENCE: Duration = Duration::from_secs(20);
