//! The machine's own networkd, under a systemd of the test's own: it is told, and tells its link's servers.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tests::{Systemd, eventually, isolated, lacking, output, tool};

use super::clients::answers_everywhere;
use super::lab::US;
use super::restart::{UNIT, boot};

#[test]
fn networkd_itself_has_our_address_at_ready_and_its_own_again_after_a_stop() {
    isolated(|| {
        let test = "networkd_itself_has_our_address_at_ready_and_its_own_again_after_a_stop";
        for program in ["networkctl", "dbus-daemon"] {
            if !tool(test, program) {
                return;
            }
        }
        if let Some(unit) = UNITS.iter().find(|unit| !Path::new(SHIPPED).join(unit).exists()) {
            return lacking(test, "systemd", &format!("{SHIPPED}/{unit} is not there"));
        }
        let Some((_lab, systemd)) = boot(test) else { return };
        for unit in UNITS {
            fs::copy(Path::new(SHIPPED).join(unit), Path::new("/etc/systemd/system").join(unit))
                .expect("the test's own");
        }
        shell(&systemd, &format!("mkdir -p {DIRECTORY}; printf '{NETWORK}' > {DIRECTORY}/{FILE}"));
        // There is no udev: networkd waits for none where it cannot change devices.
        systemd.more("systemd-networkd", "[Service]\nReadOnlyPaths=/sys\n");
        for unit in ["dbus.service", "systemd-networkd.service"] {
            systemd.ctl(&["start", unit]);
        }
        eventually("a configured link", PATIENCE, || {
            (state(&systemd)["AdministrativeState"] == "configured").then_some(())
        });
        assert_eq!(servers(&systemd), [VNET]);

        // It comes back once the server has said READY.
        systemd.ctl(&["start", UNIT]);
        assert_eq!(servers(&systemd), [VNET, NODE], "{}", systemd.log(UNIT));
        assert_eq!(state(&systemd)["AdministrativeState"], "configured");
        answers_everywhere(US, US);
        assert!(!systemd.log(UNIT).contains("own lookups do not come here"), "{}", systemd.log(UNIT));

        // A restart leaves them, and a killed server, too.
        systemd.ctl(&["restart", UNIT]);
        assert_eq!(servers(&systemd), [VNET, NODE]);
        systemd.ctl(&["kill", "--kill-who=main", "--signal=KILL", UNIT]);
        systemd.restarts(UNIT, 1);
        assert_eq!(servers(&systemd), [VNET, NODE]);

        systemd.ctl(&["stop", UNIT]);
        eventually("its own servers", PATIENCE, || (servers(&systemd) == [VNET]).then_some(()));
        shell(&systemd, &format!("test ! -e {DIRECTORY}/{FILE}.d"));
    });
}

/// What networkd says of the uplink.
fn state(systemd: &Systemd) -> Value {
    let mut command = systemd.inside("networkctl");
    command.args(["--json=short", "status", "v2"]);
    serde_json::from_slice(&output(command, PATIENCE).stdout).unwrap_or_default()
}

/// The servers that it has for it.
fn servers(systemd: &Systemd) -> Vec<IpAddr> {
    let state = state(systemd);
    let listed = state["DNS"].as_array().into_iter().flatten();
    listed.filter_map(|server| address(&server["Address"])).collect()
}

fn address(octets: &Value) -> Option<IpAddr> {
    let octets: Vec<u8> = serde_json::from_value(octets.clone()).ok()?;
    Some(IpAddr::from(<[u8; 4]>::try_from(octets).ok()?))
}

fn shell(systemd: &Systemd, script: &str) {
    let mut command = systemd.inside("sh");
    command.args(["-ec", script]);
    let done = output(command, PATIENCE);
    assert!(done.status.success(), "{script}: {done:?}");
}

const SHIPPED: &str = "/lib/systemd/system";
const UNITS: [&str; 4] =
    ["dbus.service", "dbus.socket", "systemd-networkd.service", "systemd-networkd.socket"];
const DIRECTORY: &str = "/run/systemd/network";
const FILE: &str = "10-netplan-eth0.network";
const VNET: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 2));
const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 10, 10));
const PATIENCE: Duration = Duration::from_secs(20);
/// The lab's addresses and routes stay.
const NETWORK: &str =
    "[Match]\\nName=v2\\n[Network]\\nDNS=10.2.0.2\\nKeepConfiguration=yes\\nIPv6AcceptRA=no\\n";
