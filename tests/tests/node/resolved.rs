//! The machine's own systemd-resolved, under a systemd of the test's own: whom its stub asks while we serve, and after.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tests::{Ask, Systemd, eventually, isolated, lacking, output, skip, tool};

use super::lab::{CLUSTER, NAME, US};
use super::restart::{UNIT, boot};

#[test]
fn resolved_itself_asks_us_while_we_serve_and_its_own_servers_after_a_stop() {
    isolated(|| {
        let test = "resolved_itself_asks_us_while_we_serve_and_its_own_servers_after_a_stop";
        if !tool(test, "dbus-daemon") {
            return;
        }
        if let Some(file) = FILES.iter().find(|file| !Path::new(file).exists()) {
            return lacking(test, "systemd-resolved", &format!("{file} is not there"));
        }
        let Some((_lab, systemd)) = boot(test) else { return };
        for file in &FILES[1..] {
            let name = Path::new(file).file_name().expect("a file");
            fs::copy(file, Path::new("/etc/systemd/system").join(name)).expect("the test's own");
        }
        // What an operator has written, which comes before our drop-in.
        fs::create_dir_all("/etc/systemd/resolved.conf.d").expect("the test's own");
        fs::write(
            "/etc/systemd/resolved.conf.d/10-own.conf",
            "[Resolve]\nDNS=10.2.0.2\nCache=no\nDNSSEC=no\n",
        )
        .expect("the test's own");
        systemd.more(UNIT, "[Service]\nEnvironment=LOCALDNS_NODE_HOST_RESOLVER=resolved\n");
        systemd.ctl(&["start", "dbus.service"]);
        if !starts(&systemd) {
            return skip(test, "systemd-resolved does not start in namespaces of a test's own");
        }
        stub_answers(CLUSTER);
        systemd.ctl(&["start", UNIT]);
        stub_answers(US);
        systemd.ctl(&["stop", UNIT]);
        stub_answers(CLUSTER);
    });
}

fn starts(systemd: &Systemd) -> bool {
    let mut command = systemd.inside("systemctl");
    command.args(["start", "systemd-resolved.service"]);
    output(command, PATIENCE).status.success()
}

fn stub_answers(who: &str) {
    let stub: SocketAddr = "127.0.0.53:53".parse().expect("an address");
    eventually(who, PATIENCE, || {
        let reply = Ask::new(NAME, "A").timeout(Duration::from_secs(1)).try_of(stub).ok()?;
        (reply.short() == [who]).then_some(())
    });
}

/// The program, and the units that it takes.
const FILES: [&str; 4] = [
    "/lib/systemd/systemd-resolved",
    "/lib/systemd/system/systemd-resolved.service",
    "/lib/systemd/system/dbus.service",
    "/lib/systemd/system/dbus.socket",
];
const PATIENCE: Duration = Duration::from_secs(30);
