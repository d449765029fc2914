//! A private systemd for a test, with the shipped units.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::binary::binary;
use crate::clock::eventually;
use crate::command::{output, signal};
use crate::isolated::{lacking, skip, tool};
use crate::place::{privileged, tempdir};

/// A systemd with the shipped units: init of its own process tree, in its own control groups. It
/// shares the test's network and `/etc`, and ends when dropped.
#[derive(Debug)]
pub struct Systemd {
    unshare: Child,
    pid: u32,
    _directory: TempDir,
    group: PathBuf,
}

impl Systemd {
    /// Starts it; returns `None` and prints the reason where it cannot run.
    ///
    /// # Panics
    /// Where it does not start, or outside of [`crate::isolated()`].
    pub fn boot(test: &str) -> Option<Self> {
        if !Path::new(SYSTEMD).exists() {
            lacking(test, "systemd", "systemd is not installed");
            return None;
        }
        if !tool(test, "nsenter") {
            return None;
        }
        if !privileged() {
            skip(test, "systemd needs root for control groups of its own");
            return None;
        }
        let directory = tempdir();
        let groups = directory.path().join("groups");
        fs::create_dir(&groups).expect("the directory is ours");
        let mut mount = Command::new("mount");
        mount.args(["-t", "cgroup2", "none"]).arg(&groups);
        if !output(mount, PATIENCE).status.success() {
            skip(test, "no control groups of version 2");
            return None;
        }
        let group = groups.join(directory.path().file_name().expect("it has a name"));
        if let Err(error) = fs::create_dir(&group) {
            skip(test, &format!("{}: {error}", group.display()));
            return None;
        }
        let mut possible = Command::new("sh");
        possible.args(["-ec", POSSIBLE]).env("GROUP", &group);
        let possible = output(possible, PATIENCE);
        if !possible.status.success() {
            skip(test, &format!("control groups of its own: {}", text(&possible.stderr).trim()));
            drop(remove(&group));
            return None;
        }
        fs::create_dir_all("/etc/localdns").expect(OURS);
        fs::create_dir_all(UNITS).expect(OURS);
        // With a machine ID systemd does not run its first-boot dialogue.
        fs::write("/etc/machine-id", format!("{:032x}\n", 1)).expect(OURS);
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
        let shipped = SHIPPED.iter().map(|unit| deploy.join(unit));
        let journal = JOURNAL.iter().map(|unit| Path::new("/lib/systemd/system").join(unit));
        for unit in shipped.chain(journal) {
            fs::copy(&unit, Path::new(UNITS).join(unit.file_name().expect("it has a name"))).expect(OURS);
        }
        for target in TARGETS {
            fs::write(Path::new(UNITS).join(target), "[Unit]\nDescription=Nothing to wait for\n")
                .expect(OURS);
        }
        let mut command = Command::new("sh");
        command.args(["-ec", BOOT]).env("GROUP", &group).env("BINARY", binary());
        let unshare = command.stdin(Stdio::null()).spawn().expect("there is a shell");
        let pid = eventually("systemd", PATIENCE, || child(&unshare));
        let systemd = Self { unshare, pid, _directory: directory, group };
        eventually("systemd's readiness", Duration::from_secs(60), || {
            let mut command = systemd.inside("systemctl");
            command.args(["is-active", "basic.target"]);
            output(command, PATIENCE).status.success().then_some(())
        });
        systemd.ctl(&["start", JOURNAL[0]]);
        Some(systemd)
    }

    /// A command that runs in systemd's namespaces.
    pub fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &self.pid.to_string(),
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--cgroup",
            "--",
            program,
        ]);
        command
    }

    /// Runs `systemctl`.
    ///
    /// # Panics
    /// When it fails; the message contains the units' logs.
    pub fn ctl(&self, args: &[&str]) {
        let mut command = self.inside("systemctl");
        command.args(args);
        let done = output(command, Duration::from_secs(60));
        let units: Vec<String> = args[1..].iter().map(|unit| self.log(unit)).collect();
        assert!(done.status.success(), "{args:?}: {}\n{}", text(&done.stderr), units.concat());
    }

    /// Properties of a unit, sorted by name.
    pub fn show(&self, unit: &str, properties: &str) -> Vec<String> {
        let mut command = self.inside("systemctl");
        command.args(["show", unit, "--property", properties]);
        let mut lines: Vec<String> =
            text(&output(command, PATIENCE).stdout).lines().map(str::to_owned).collect();
        lines.sort();
        lines.iter().filter_map(|line| Some(line.split_once('=')?.1.to_owned())).collect()
    }

    /// The unit's main process, in systemd's PID namespace.
    pub fn main_pid(&self, unit: &str) -> String {
        self.show(unit, "MainPID").concat()
    }

    /// Waits until a unit was restarted `times` times, and runs.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn restarts(&self, unit: &str, times: u32) {
        let want = [times.to_string(), "running".to_owned()];
        eventually(&format!("restart {times} of {unit}"), Duration::from_secs(30), || {
            (self.show(unit, "NRestarts,SubState") == want).then_some(())
        });
    }

    /// Adds a drop-in with settings to a unit.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn more(&self, unit: &str, settings: &str) {
        let directory = format!("{UNITS}/{unit}.service.d");
        fs::create_dir_all(&directory).expect(OURS);
        fs::write(Path::new(&directory).join("more.conf"), settings).expect(OURS);
        self.ctl(&["daemon-reload"]);
    }

    /// The log of a unit, with systemd's messages about it.
    pub fn log(&self, unit: &str) -> String {
        let mut command = self.inside("journalctl");
        command.args(["--no-pager", "--output=cat", "--unit", unit]);
        text(&output(command, PATIENCE).stdout)
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // Killing init kills all its processes. The groups can be removed once they are empty.
        signal(self.pid, "KILL");
        drop(self.unshare.wait());
        eventually("empty control groups", PATIENCE, || remove(&self.group).ok());
    }
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

fn remove(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)?.flatten().filter(|entry| entry.path().is_dir()) {
        remove(&entry.path())?;
    }
    fs::remove_dir(group)
}

/// The process that `unshare` started.
fn child(unshare: &Child) -> Option<u32> {
    let id = unshare.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    let child = children.trim().parse().ok()?;
    let command = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
    (command.trim() == "systemd").then_some(child)
}

const OURS: &str = "the test has an /etc of its own";
const SYSTEMD: &str = "/lib/systemd/systemd";
/// The only directory where this systemd looks for units; of the machine's units it has those of
/// the journal.
const UNITS: &str = "/etc/systemd/system";
const SHIPPED: &[&str] = &[
    "localdns.service",
    "localdns-node-annotate.service",
    "localdns-node.service",
    "localdns-node-up.service",
    "localdns-refresh.service",
    "localdns-refresh.timer",
    "localdns-node-resolver.service",
];
const JOURNAL: &[&str] =
    &["systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket"];
const TARGETS: &[&str] = &[
    "basic.target",
    "network-online.target",
    "network.target",
    "nss-lookup.target",
    "shutdown.target",
    "sysinit.target",
    "timers.target",
];
/// Checks whether the namespaces of `BOOT` can be made.
const POSSIBLE: &str = r#"
echo $$ > "$GROUP/cgroup.procs"
exec unshare --cgroup --pid --mount --uts --ipc --fork --kill-child --mount-proc mount -t cgroup2 none /sys/fs/cgroup
"#;
/// Enters the group and the namespaces; it shares only the network, `/etc` and the disk.
const BOOT: &str = r#"
echo $$ > "$GROUP/cgroup.procs"
exec unshare --cgroup --pid --mount --uts --ipc --fork --kill-child --mount-proc sh -ec '
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs tmpfs /usr/local/bin
touch /usr/local/bin/localdns
mount --bind "$BINARY" /usr/local/bin/localdns
for place in /run /tmp /var/log; do mount -t tmpfs tmpfs $place; done
mkdir /run/lock
exec env -i container=lxc SYSTEMD_UNIT_PATH=/etc/systemd/system \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=basic.target --log-target=journal --show-status=no
'
"#;
const PATIENCE: Duration = Duration::from_secs(20);
