//! A stop while `node run` is starting: it ends soon and leaves nothing.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::libc;
use tests::{Manager, eventually, isolated_steadily, now, run, signal, tool};

use super::host_resolver::{DROP_IN, Machine};
use super::lab::Lab;

/// A start that waits for the network's list ends at once and leaves nothing.
#[test]
fn stop_while_waiting_for_servers() {
    isolated_steadily(Duration::from_secs(60), || {
        if !tool("stop in a start", "nft") {
            return;
        }
        let _lab = Lab::new();
        let corefile = ".:53 {\nbind 169.254.10.10 10.96.0.20\nforward . 168.63.129.16\n}\n";
        fs::write("/run/Corefile", corefile).expect("/run is ours");
        for rules in ["nft", "iptables"] {
            let mut command = Command::new(tests::binary());
            command.args(["node", "run", "-conf", "/run/Corefile", "-pidfile", "/run/pid", "-rules", rules]);
            let mut start = Killed(command.stdout(Stdio::null()).spawn().expect("the binary starts"));
            eventually("a wait for the list", PATIENCE, || sleeps(start.0.id()).then_some(()));
            let asked = now();
            signal(start.0.id(), "TERM");
            let status = eventually("the end", PATIENCE, || start.0.try_wait().expect("it is ours"));
            assert_eq!(status.code(), Some(0), "{rules}");
            assert!(asked.elapsed() < Duration::from_secs(1), "{rules}: {:?}", asked.elapsed());
            assert!(!Path::new("/run/pid").exists(), "{rules}");
            nothing_is_there();
        }
    });
}

/// The start ends in time and leaves nothing.
#[test]
fn stop_while_waiting_for_networkd() {
    isolated_steadily(Duration::from_secs(120), || {
        if !tool("stop in a start", "nft") {
            return;
        }
        let lab = Lab::new();
        for (hangs, call) in [
            (Some("--json=short"), "status v2"),
            (Some("reload"), "reload"),
            // networkd got the reload, but never configures the link.
            (None, "reload"),
        ] {
            let machine = Machine::new();
            let before = machine.calls(call);
            if let Some(hangs) = hangs {
                machine.hangs_at(hangs);
            }
            let manager = Manager::new();
            let options = manager.options().subcommand(&["node", "run"]).args(["-at-stop", "clean"]);
            let mut server = lab.serve_with(|_| machine.on_path(options));
            eventually("networkd is asked", PATIENCE, || (machine.calls(call) > before).then_some(()));
            let asked = now();
            server.signal("TERM");
            manager.wait_for("STOPPING=1", 1, PATIENCE);
            // A hanging program does not delay the removal of the rules.
            eventually("no rules", Duration::from_secs(3), || has_no_table().then_some(()));
            assert_eq!(server.wait(Duration::from_secs(30)).code(), Some(0), "{hangs:?}");
            let took = asked.elapsed();
            assert!(took < Duration::from_secs(20), "{hangs:?}: {took:?}, of systemd's 30 s");
            let log = server.log_text();
            assert!(!log.contains("given up"), "{hangs:?}: {log}");
            assert_eq!(manager.received("READY=1"), 0, "{hangs:?}: {log}");
            nothing_is_there();
            machine.hangs_nowhere();
        }
    });
}

fn nothing_is_there() {
    assert!(has_no_table(), "{}", run("nft", &["list", "tables"]));
    let links = run("ip", &["link"]);
    assert!(!links.contains("localdns"), "{links}");
    let drop_in = Path::new(DROP_IN);
    assert!(!drop_in.exists() && !drop_in.parent().expect("it has one").exists());
}

fn has_no_table() -> bool {
    !run("nft", &["list", "tables"]).contains("localdns")
}

/// Whether the process's main thread sleeps in `clock_nanosleep`.
pub(super) fn sleeps(pid: u32) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.starts_with(&format!("{} ", libc::SYS_clock_nanosleep))
}

/// A process that is killed on drop.
pub(super) struct Killed(pub(super) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
