//! A real networkd under the test's own systemd: the server configures it and reads the link's
//! servers from it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tests::{Systemd, eventually, isolated, isolated_steadily, lacking, output, run, tool};

use super::clients::{ADDRESSES, answers_everywhere};
use super::lab::{Lab, US};
use super::lost_links::is_whole;
use super::restart::{UNIT, boot};

/// networkd has our address at READY and its own again after a stop.
#[test]
fn networkd_at_ready_and_after_stop() {
    isolated(|| {
        let test = "networkd_at_ready_and_after_stop";
        let Some((_lab, systemd)) = boot_with_networkd(test) else { return };
        assert_eq!(servers(&systemd), [VNET]);

        // `systemctl start` returns once the server has sent READY.
        systemd.ctl(&["start", UNIT]);
        assert_eq!(servers(&systemd), [VNET, NODE], "{}", systemd.log(UNIT));
        assert_eq!(state(&systemd, "v2")["AdministrativeState"], "configured");
        answers_everywhere(US, US);
        assert!(
            !systemd.log(UNIT).contains("host lookups are not sent to this server"),
            "{}",
            systemd.log(UNIT)
        );

        // The servers survive a restart and a kill.
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

/// networkd removes from a link that it configures all that it did not add itself.
#[test]
fn networkd_keeps_our_address() {
    isolated_steadily(Duration::from_secs(120), || {
        let test = "networkd_keeps_our_address";
        let Some((_lab, systemd)) = boot_with_networkd(test) else { return };
        systemd.ctl(&["start", UNIT]);
        answers_everywhere(US, US);
        let mut monitor = Command::new("ip");
        monitor.args(["-o", "monitor", "address", "dev", "localdns"]);
        let taken = "/run/taken";
        monitor.stdout(fs::File::create(taken).expect("the test's own"));
        let mut monitor = monitor.spawn().expect("it runs");
        eventually("it receives", PATIENCE, || {
            run("ip", &["address", "add", "198.51.100.7/32", "dev", "localdns"]);
            run("ip", &["address", "del", "198.51.100.7/32", "dev", "localdns"]);
            fs::read_to_string(taken).ok().filter(|seen| seen.contains("198.51.100.7"))
        });
        let ours = "[Match]\\nName=localdns\\n[Network]\\nLinkLocalAddressing=no\\nIPv6AcceptRA=no\\n";
        shell(&systemd, &format!("printf '{ours}' > {DIRECTORY}/90-localdns.network; networkctl reload"));
        eventually("every address is taken", PATIENCE, || {
            let seen = fs::read_to_string(taken).ok()?;
            let is_taken = |ip: &&str| {
                seen.lines().any(|line| line.contains("Deleted") && line.contains(&format!(" {ip}/")))
            };
            ADDRESSES.iter().all(is_taken).then_some(())
        });
        eventually("every address is back", Duration::from_secs(2), || is_whole().then_some(()));
        answers_everywhere(US, US);
        // networkd has finished and does not try again.
        assert_eq!(state(&systemd, "localdns")["AdministrativeState"], "configured");
        assert!(is_whole());
        monitor.kill().expect("it is ours");
        let _ = monitor.wait();
    });
}

/// Boots the test's own systemd with a networkd that has configured the uplink.
fn boot_with_networkd(test: &str) -> Option<(Lab, Systemd)> {
    if !["networkctl", "dbus-daemon"].iter().all(|program| tool(test, program)) {
        return None;
    }
    if let Some(unit) = UNITS.iter().find(|unit| !Path::new(SHIPPED).join(unit).exists()) {
        lacking(test, "systemd", &format!("{SHIPPED}/{unit} is not there"));
        return None;
    }
    let (lab, systemd) = boot(test)?;
    for unit in UNITS {
        fs::copy(Path::new(SHIPPED).join(unit), Path::new("/etc/systemd/system").join(unit))
            .expect("the test's own");
    }
    shell(&systemd, &format!("mkdir -p {DIRECTORY}; printf '{NETWORK}' > {DIRECTORY}/{FILE}"));
    // There is no udev: with a read-only /sys, networkd does not wait for it.
    systemd.more("systemd-networkd", "[Service]\nReadOnlyPaths=/sys\n");
    for unit in ["dbus.service", "systemd-networkd.service"] {
        systemd.ctl(&["start", unit]);
    }
    eventually("a configured link", PATIENCE, || {
        (state(&systemd, "v2")["AdministrativeState"] == "configured").then_some(())
    });
    Some((lab, systemd))
}

/// networkd's state of a link, as JSON.
fn state(systemd: &Systemd, link: &str) -> Value {
    let mut command = systemd.inside("networkctl");
    command.args(["--json=short", "status", link]);
    serde_json::from_slice(&output(command, PATIENCE).stdout).unwrap_or_default()
}

/// The DNS servers that networkd has for the uplink.
fn servers(systemd: &Systemd) -> Vec<IpAddr> {
    let state = state(systemd, "v2");
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
/// Keeps the lab's addresses and routes.
const NETWORK: &str =
    "[Match]\\nName=v2\\n[Network]\\nDNS=10.2.0.2\\nKeepConfiguration=yes\\nIPv6AcceptRA=no\\n";
