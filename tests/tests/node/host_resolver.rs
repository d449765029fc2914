//! Lookups of the host itself through networkd's drop-in, resolved's, or /etc/resolv.conf, and
//! their restoration.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tests::{Manager, Options, eventually, isolated, isolated_for, run, signal, tempdir, tool};

use super::availability::{node, status};
use super::lab::{Lab, until_ready};
use super::status::json;

/// A resolv.conf that another program changes is not reported as missing.
#[test]
fn changed_resolv_conf_is_not_missing() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let lab = Lab::new();
        fs::write("/etc/resolv.conf", "nameserver 10.2.0.2\n").expect("the test's own");
        let server = lab.serve(&["-host-resolver", "resolv.conf"]);
        eventually("it is reported", Duration::from_secs(10), || {
            let shown = status(&server, 0);
            shown
                .contains("lookups   of this host are sent to this server, by /etc/resolv.conf\n")
                .then_some(())
        });
        let line = "lookups   of this host are not sent to this server: /etc/resolv.conf no longer names this server; the server restores it";
        // The server checks every 5 s, maybe between the write and the reply, but not twice in a
        // row.
        eventually("the change is reported", Duration::from_secs(10), || {
            fs::write("/etc/resolv.conf", "# by dhclient\nnameserver 10.3.0.2\n").expect("the test's own");
            status(&server, 0).contains(line).then_some(())
        });
    });
}

#[test]
fn directory_mode_is_kept() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let lab = Lab::new();
        fs::write("/etc/resolv.conf", "nameserver 10.2.0.2\n").expect("the test's own");
        fs::create_dir("/run/localdns").expect("the test's own");
        let closed = fs::Permissions::from_mode(0o700);
        fs::set_permissions("/run/localdns", closed.clone()).expect("the test's own");
        let _server = lab.serve(&["-host-resolver", "resolv.conf"]);
        let kept = Path::new("/run/localdns/resolv.conf");
        eventually("the earlier text", Duration::from_secs(10), || kept.exists().then_some(()));
        let is = fs::metadata("/run/localdns").expect("it is there").permissions();
        assert_eq!(is.mode() & 0o7777, closed.mode());
    });
}

/// The server is killed between writing and truncating a file that gets shorter.
#[test]
fn uncut_resolv_conf_is_restored() {
    isolated(|| {
        if !tool("host resolver", "nft") || !tool("host resolver", "strace") {
            return;
        }
        let lab = Lab::new();
        let held = "nameserver 10.2.0.2\nnameserver 10.3.0.2\nnameserver fd03::2\nsearch a.b\n";
        fs::write("/etc/resolv.conf", held).expect("the test's own");
        let killed = "strace -D -f -qq -o /dev/null -P /etc/resolv.conf -e inject=ftruncate:signal=KILL";
        let mut server =
            lab.serve_with(|options| options.args(["-host-resolver", "resolv.conf"]).through(killed));
        assert!(!server.wait(Duration::from_secs(30)).success());
        let left = fs::read_to_string("/etc/resolv.conf").expect("it is there");
        assert!(left.starts_with("nameserver 169.254.10.10\n") && left.len() == held.len(), "{left}");
        let ours: Vec<_> = left.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(ours, ["nameserver 169.254.10.10", "search a.b"], "nothing else is left of it");
        assert!(node(&server, &["down"], 0).contains("restored /etc/resolv.conf\n"));
        assert_eq!(fs::read_to_string("/etc/resolv.conf").expect("it is there"), held);
    });
}

/// networkd is notified once we answer, and READY waits until it has finished.
#[test]
fn networkd_reloads_before_ready() {
    isolated_for(Duration::from_secs(120), || {
        if !tool("host resolver", "nft") {
            return;
        }
        let lab = Lab::new();
        let machine = Machine::new();
        let directory = tempdir();
        let notifications =
            UnixDatagram::bind(directory.path().join("notify")).expect("the directory is ours");
        notifications.set_read_timeout(Some(Duration::from_secs(15))).expect("a timeout can be set");
        let notify = directory.path().join("notify");
        let mut server = lab.serve_with(|options| {
            let options = options.env("NOTIFY_SOCKET", &notify.to_string_lossy());
            let options = options.env("LOCALDNS_NODE_LINK", "localdns").env("LOCALDNS_PREDECESSOR", "99999");
            machine.on_path(options.export("SYSTEMD_EXEC_PID", "$$"))
        });
        eventually("the drop-in", Duration::from_secs(10), || Path::new(DROP_IN).exists().then_some(()));
        // networkd has not finished: the host's resolv.conf names us, but the link is still being
        // configured.
        machine.resolv_conf("nameserver 169.254.10.10\n");
        eventually("a look at its state", Duration::from_secs(5), || {
            (machine.calls("status v2") > 2).then_some(())
        });
        notifications.set_nonblocking(true).expect("it can be set");
        assert!(notifications.recv(&mut [0; 64]).is_err(), "READY arrived before networkd had finished");
        notifications.set_nonblocking(false).expect("it can be set");
        machine.state("configured");
        until_ready(&notifications);
        assert_eq!(fs::read_to_string(DROP_IN).expect("it is there"), PRODUCTION);
        // Variables of the server are not passed to the programs that it runs.
        assert_eq!(fs::read_to_string("/run/variables").expect("they were run"), "");
        assert_eq!(mode(DROP_IN), 0o644);
        assert_eq!(mode(DIRECTORY), 0o755);
        assert_eq!(machine.calls("reload"), 1);
        assert_eq!(json(&server)["host_resolver"][0], DROP_IN);

        // A drop-in that another program removes is reported and restored.
        fs::remove_file(DROP_IN).expect("it is there");
        let gone = format!(
            "lookups   of this host are not sent to this server: {DROP_IN} is gone; the server restores it"
        );
        let shown = status(&server, 0);
        assert!(shown.contains(&gone), "{shown}");
        server.wait_for_log(
            &format!("{DROP_IN} was removed by another program; it is restored"),
            Duration::from_secs(40),
        );
        eventually("it is back", Duration::from_secs(10), || (machine.calls("reload") == 2).then_some(()));
        assert_eq!(fs::read_to_string(DROP_IN).expect("it is there"), PRODUCTION);

        // A killed server leaves the drop-in, and the address in it fails over; the next server
        // finds it.
        signal(server.pid(), "KILL");
        server.wait(Duration::from_secs(5));
        let mut server = lab.serve_with(|options| machine.on_path(options));
        server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
        signal(server.pid(), "TERM");
        eventually("the drop-in goes first", Duration::from_secs(2), || {
            (!Path::new(DIRECTORY).exists()).then_some(())
        });
        assert!(server.is_running(), "and 5 s are left for the remaining clients");
        assert!(server.wait(Duration::from_secs(10)).success());
        assert_eq!(machine.calls("reload"), 3);
    });
}

/// A networkd that never finishes delays READY for 10 s and is reported.
#[test]
fn stuck_networkd_delays_ready_10_s() {
    isolated_for(Duration::from_secs(120), || {
        if !tool("host resolver", "nft") {
            return;
        }
        let lab = Lab::new();
        let machine = Machine::new();
        machine.state("configuring");
        let (manager, why) = (Manager::new(), "after 10 s networkd has not configured its link yet");
        let server = lab.serve_with(|_| machine.on_path(manager.options().subcommand(&["node", "run"])));
        eventually("the drop-in", Duration::from_secs(10), || Path::new(DROP_IN).exists().then_some(()));
        machine.resolv_conf("nameserver 169.254.10.10\n");
        server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
        assert_eq!(manager.received("READY=1"), 0, "{}", server.log_text());
        manager.wait_for("READY=1", 1, Duration::from_secs(15));
        let line = server.wait_for_log(why, Duration::from_secs(5));
        assert!(line.contains(DROP_IN), "{line}");
        let shown = status(&server, 0);
        assert!(shown.contains(why) && shown.contains("see `networkctl status`"), "{shown}");
        assert_eq!(fs::read_to_string(DROP_IN).expect("it stands"), PRODUCTION);
    });
}

#[test]
fn down_restores_a_killed_servers_files() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let lab = Lab::new();
        let machine = Machine::new();
        machine.state("configured");
        for (how, notification, file, text) in [
            ("networkd", Some("reload"), DROP_IN, PRODUCTION),
            (
                "resolved",
                Some(RESOLVED_RELOAD),
                RESOLVED_DROP_IN,
                "# Lookups of this host are sent to localdns.\n[Resolve]\nDNS=\nDNS=169.254.10.10\nDomains=~.\n",
            ),
            ("resolv.conf", None, "/etc/resolv.conf", "nameserver 169.254.10.10\nsearch a.b\n"),
        ] {
            fs::write("/etc/resolv.conf", "nameserver 10.2.0.2\nsearch a.b\n").expect("the test's own");
            machine.resolv_conf("nameserver 169.254.10.10\n");
            let mut server = lab.serve_with(|options| machine.on_path(options.args(["-host-resolver", how])));
            eventually(how, Duration::from_secs(10), || {
                (fs::read_to_string(file).ok()? == text).then_some(())
            });
            if let Some(call) = notification {
                eventually("the resolver is notified", Duration::from_secs(5), || {
                    (machine.calls(call) == 1).then_some(())
                });
            }
            signal(server.pid(), "KILL");
            server.wait(Duration::from_secs(5));
            let shown = machine.down();
            let line = match how {
                "resolv.conf" => "restored /etc/resolv.conf\n".to_owned(),
                _ => format!("removed {file}\n"),
            };
            assert_eq!(
                shown,
                format!("{line}removed the rules\nremoved the link localdns with its addresses\n"),
                "{how}"
            );
            assert_eq!(
                fs::read_to_string("/etc/resolv.conf").expect("it is there"),
                "nameserver 10.2.0.2\nsearch a.b\n"
            );
            assert!(!Path::new("/run/systemd/resolved.conf.d").exists());
            assert!(!Path::new(DIRECTORY).exists());
        }
        assert_eq!(machine.calls(RESOLVED_RELOAD), 2);
    });
}

/// A resolver that missed that lookups were given back is notified by the next `down`.
#[test]
fn next_down_repeats_a_missed_notification() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let (lab, machine) = (Lab::new(), Machine::new());
        machine.state("configured");
        machine.resolv_conf("nameserver 169.254.10.10\n");
        for (how, file, reload) in
            [("networkd", DROP_IN, "reload"), ("resolved", RESOLVED_DROP_IN, RESOLVED_RELOAD)]
        {
            let mut server = lab.serve_with(|options| machine.on_path(options.args(["-host-resolver", how])));
            eventually(how, Duration::from_secs(10), || (machine.calls(reload) == 1).then_some(()));
            fs::write("/run/fails", "").expect("the test's own");
            signal(server.pid(), "TERM");
            server.wait_for_log("host lookups are still sent to this server", Duration::from_secs(10));
            assert!(server.wait(Duration::from_secs(15)).success());
            assert!(!Path::new(file).exists(), "{how}");
            for _ in 0..2 {
                let (code, shown) = machine.tries_down();
                assert_eq!(code, Some(1), "{shown}");
                assert!(shown.contains("left: the host's resolver: ") && shown.contains("no bus"), "{shown}");
            }
            fs::remove_file("/run/fails").expect("the test's own");
            let reloads = machine.calls(reload);
            assert!(machine.down().contains(&format!("removed {file}\n")), "{how}");
            assert_eq!(machine.calls(reload), reloads + 1, "{how}");
            machine.down();
            assert_eq!(machine.calls(reload), reloads + 1, "{how}: it knows");
        }
    });
}

#[test]
fn networkctl_without_json() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let (lab, machine) = (Lab::new(), Machine::new());
        let uplink = run("ip", &["-o", "link", "show", "v2"]);
        let kept = Path::new("/run/systemd/netif/links").join(uplink.split(':').next().expect("its number"));
        fs::create_dir_all("/run/systemd/netif/links").expect("the test's own");
        // Output like systemd 249's, and of a version that prints less.
        for printed in ["", "{\"Name\":\"v2\"}"] {
            fs::write("/run/networkctl-json", printed).expect("the test's own");
            let text = "ADMIN_STATE=configuring\nNETWORK_FILE=/run/systemd/network/10-netplan-eth0.network\n";
            fs::write(&kept, text).expect("the test's own");
            machine.resolv_conf("nameserver 169.254.10.10\n");
            let mut server = lab.serve_with(|options| machine.on_path(options));
            server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
            let calls = machine.calls("status v2");
            eventually("a look at its state", Duration::from_secs(10), || {
                (machine.calls("status v2") > calls + 2).then_some(())
            });
            fs::write(&kept, text.replace("configuring", "configured")).expect("the test's own");
            eventually("its lookups come here", Duration::from_secs(15), || {
                (!status(&server, 0).contains("are not sent to this server")).then_some(())
            });
            assert_eq!(fs::read_to_string(DROP_IN).expect("it is there"), PRODUCTION);
            signal(server.pid(), "KILL");
            server.wait(Duration::from_secs(5));
            machine.down();
        }
    });
}

/// What keeps the machine from querying us is reported, and the server serves.
#[test]
fn host_lookups_failure_is_reported() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&[]);
        server.wait_for_log(
            "host lookups are not sent to this server: systemd-networkd does not run",
            Duration::from_secs(10),
        );
        drop(server);
        let machine = Machine::new();
        fs::write("/run/fails", "").expect("the test's own");
        let server = lab.serve_with(|options| machine.on_path(options.env("NOTIFY_SOCKET", "/run/nobody")));
        let line = server.wait_for_log("networkctl: exit status: 1: no bus", Duration::from_secs(10));
        assert!(line.ends_with("no bus"), "it speaks for itself alone: {line}");
        assert!(!Path::new(DROP_IN).exists(), "nothing half-applied");
        node(&server, &["down"], 0);
        drop(server);
        fs::remove_file("/etc/resolv.conf").expect("the test's own");
        run("ln", &["-s", "/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"]);
        let server = lab.serve(&["-host-resolver", "resolv.conf"]);
        server.wait_for_log(
            "/etc/resolv.conf is a symbolic link to /run/systemd/resolve/resolv.conf, which another program writes; set -host-resolver to networkd or resolved",
            Duration::from_secs(10),
        );
    });
}

/// A pipe as the list of servers delays neither the drop-in nor READY nor the end.
#[test]
fn pipe_as_list_of_servers() {
    isolated(|| {
        if !tool("host resolver", "nft") {
            return;
        }
        let lab = Lab::new();
        let machine = Machine::new();
        machine.state("configured");
        // Opening a FIFO blocks until it has a writer.
        run("mkfifo", &["/run/pipe"]);
        let manager = Manager::new();
        let mut server = lab.serve_with(|_| {
            let options = manager.options().subcommand(&["node", "run"]);
            machine.on_path(options.args(["-upstreams", "/run/pipe"]))
        });
        manager.wait_for("READY=1", 1, Duration::from_secs(15));
        assert_eq!(fs::read_to_string(DROP_IN).expect("it is there"), PRODUCTION);
        let up = node(&server, &["up", "-upstreams", "/run/pipe"], 0);
        assert!(up.contains("host lookups"), "{up}");
        let shown = status(&server, 0);
        assert!(
            shown.contains(
                "upstreams /run/pipe: expected a file, found a pipe; have the network manager write "
            ),
            "{shown}"
        );
        signal(server.pid(), "TERM");
        assert!(server.wait(Duration::from_secs(15)).success());
        assert!(!Path::new(DROP_IN).exists());
    });
}

/// Fakes `networkctl`, with a networkd that has a file for v2, and `systemctl`; both record their
/// calls.
pub(super) struct Machine {
    programs: tempfile::TempDir,
}

impl Machine {
    pub(super) fn new() -> Self {
        for directory in ["/run/systemd/netif", "/run/systemd/network", "/run/systemd/resolve"] {
            fs::create_dir_all(directory).expect("the test's own");
        }
        fs::write("/run/systemd/network/10-netplan-eth0.network", "[Match]\nName=v2\n")
            .expect("the test's own");
        let programs = tempdir();
        for (name, script) in [("networkctl", NETWORKCTL), ("systemctl", SYSTEMCTL)] {
            let path = programs.path().join(name);
            fs::write(&path, script).expect("the test's own");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the test's own");
        }
        let machine = Self { programs };
        machine.state("configuring");
        machine.resolv_conf("nameserver 10.2.0.2\n");
        machine
    }

    pub(super) fn path(&self) -> String {
        format!("{}:{}", self.programs.path().display(), std::env::var("PATH").expect("there is one"))
    }

    pub(super) fn on_path(&self, options: Options) -> Options {
        options.env("PATH", &self.path())
    }

    pub(super) fn state(&self, state: &str) {
        tests::publish(Path::new("/run/state"), state);
    }

    /// Lets `networkctl` hang in calls with this word from now on.
    #[allow(clippy::unused_self, reason = "without the programs nobody hangs")]
    pub(super) fn hangs_at(&self, word: &str) {
        tests::publish(Path::new("/run/hangs"), word);
    }

    #[allow(clippy::unused_self, reason = "without the programs nobody hangs")]
    pub(super) fn hangs_nowhere(&self) {
        let _ = fs::remove_file("/run/hangs");
    }

    pub(super) fn resolv_conf(&self, text: &str) {
        tests::publish(Path::new("/run/systemd/resolve/resolv.conf"), text);
    }

    /// Number of calls that end with these words.
    pub(super) fn calls(&self, words: &str) -> usize {
        let calls = fs::read_to_string("/run/calls").unwrap_or_default();
        calls.lines().filter(|line| line.ends_with(words)).count()
    }

    pub(super) fn down(&self) -> String {
        let (code, shown) = self.tries_down();
        assert_eq!(code, Some(0), "{shown}");
        shown
    }

    /// Returns the exit code and the output of both streams.
    pub(super) fn tries_down(&self) -> (Option<i32>, String) {
        let mut command = Command::new(tests::binary());
        command.args(["node", "down"]).env("PATH", self.path());
        let Output { status, stdout, stderr } = tests::output(command, Duration::from_secs(20));
        let shown = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
        (status.code(), shown.into_owned())
    }
}

fn mode(path: &str) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

const DIRECTORY: &str = "/run/systemd/network/10-netplan-eth0.network.d";
pub(super) const DROP_IN: &str = "/run/systemd/network/10-netplan-eth0.network.d/70-localdns.conf";
const PRODUCTION: &str = "# Set DNS server to localdns cluster listernerIP.
[Network]
DNS=169.254.10.10

# Disable DNS provided by DHCP to ensure local DNS is used.
[DHCP]
UseDNS=false
";
pub(super) const RESOLVED_DROP_IN: &str = "/run/systemd/resolved.conf.d/70-localdns.conf";
const RESOLVED_RELOAD: &str = "try-reload-or-restart systemd-resolved.service";
const NETWORKCTL: &str = r#"#!/bin/sh
env | grep ^LOCALDNS_ >> /run/variables
echo "$*" >> /run/calls
[ -e /run/hangs ] && case "$*" in *"$(cat /run/hangs)"*) exec sleep 60 ;; esac
case "$*" in
*status*) if [ -s /run/networkctl-json ]; then cat /run/networkctl-json
    elif [ -e /run/networkctl-json ]; then echo "networkctl: unrecognized option '--json=short'" >&2; exit 1
    else
        for link; do :; done
        file=$(grep -lx "Name=$link" /run/systemd/network/*.network)
        printf '{"Name":"%s","NetworkFile":"%s","AdministrativeState":"%s"}' "$link" "$file" "$(cat /run/state)"
    fi ;;
reload) if [ -e /run/fails ]; then echo "no bus${NOTIFY_SOCKET:+, and tells a manager}" >&2; exit 1; fi ;;
esac
"#;
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >> /run/calls
case "$*" in
try-reload*) if [ -e /run/fails ]; then echo "no bus" >&2; exit 1; fi ;;
esac
"#;
