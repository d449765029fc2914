//! The unit with `Delegate=yes`: however the server ends, its control group holds no process, and
//! the next start works.

use std::time::Duration;

use tests::{Systemd, eventually, isolated_for, output};

use super::clients::answers_everywhere;
use super::lab::{CLUSTER, PLAIN, US};
use super::restart::{UNIT, boot};

/// No orphan is left after a stop, a restart, an upgrade and a kill.
#[test]
fn delegated_cgroup_has_no_orphans() {
    isolated_for(Duration::from_secs(180), || {
        let test = "delegated_cgroup_has_no_orphans";
        let Some((_lab, systemd)) = boot(test) else { return };
        systemd.more(UNIT, "[Service]\nDelegate=yes\nTimeoutStopSec=7\n");
        systemd.ctl(&["start", UNIT]);
        assert_eq!(systemd.show(UNIT, "Delegate"), ["yes"]);
        let group = systemd.show(UNIT, "ControlGroup").concat();
        let processes = || processes(&systemd, &group);
        let kill = |with: &str| systemd.ctl(&["kill", "--kill-who=main", &format!("--signal={with}"), UNIT]);
        let alone = |what: &str, before: &str| {
            let pid = systemd.main_pid(UNIT);
            assert!(pid != before && pid != "0", "{what}: {before} is followed by {pid}");
            assert_eq!(processes(), [&*pid], "{what}");
            answers_everywhere(US, US);
            pid
        };
        let mut pid = alone("a start", "0");
        // As in AKS's unit: a process in a child group that systemd did not start and that SIGTERM
        // ends, or SIGKILL alone.
        let orphan = |trap: &str| {
            let script = format!(
                "test -p {PIPE} || mkfifo {PIPE}
                 mkdir -p {GROUPS}{group}/theirs
                 sh -c '{trap} read none < {PIPE}' > /dev/null 2>&1 &
                 echo $! > {GROUPS}{group}/theirs/cgroup.procs"
            );
            shell(&systemd, &script);
            assert_eq!(processes().len(), 2);
        };
        for orphaned in [None, Some(""), Some("trap \"\" TERM;")] {
            orphaned.map(orphan);
            systemd.ctl(&["restart", UNIT]);
            pid = alone("a restart", &pid);
            orphaned.map(orphan);
            kill("KILL");
            eventually("the next process", PATIENCE, || {
                let next = systemd.main_pid(UNIT);
                (next != pid && systemd.show(UNIT, "SubState") == ["running"]).then_some(())
            });
            pid = alone("a kill", &pid);
            orphaned.map(orphan);
            systemd.ctl(&["stop", UNIT]);
            // systemd reports a failure where it had to kill a process; the server itself exited
            // with 0.
            let state = if orphaned.is_some_and(|trap| !trap.is_empty()) { "failed" } else { "inactive" };
            assert_eq!(systemd.show(UNIT, "ActiveState,ExecMainStatus"), [state, "0"]);
            assert_eq!(processes(), Vec::<String>::new(), "after a stop");
            answers_everywhere(CLUSTER, PLAIN);
            systemd.ctl(&["start", UNIT]);
            pid = alone("a start after it", &pid);
        }
        kill("USR2");
        eventually("an upgrade", PATIENCE, || (systemd.main_pid(UNIT) != pid).then_some(()));
        eventually("the old one's end", PATIENCE, || (processes().len() == 1).then_some(()));
        alone("an upgrade", &pid);
        systemd.ctl(&["stop", UNIT]);
        assert_eq!(processes(), Vec::<String>::new(), "after the last stop");
        let log = systemd.log(UNIT);
        for word in ["left-over process", "Failed to kill control group"] {
            assert!(!log.contains(word), "{log}");
        }
    });
}

/// Process IDs of a control group and its descendants.
fn processes(systemd: &Systemd, group: &str) -> Vec<String> {
    let script = format!("find {GROUPS}{group} -name cgroup.procs -exec cat {{}} + 2>/dev/null || true");
    shell(systemd, &script).lines().map(str::to_owned).collect()
}

fn shell(systemd: &Systemd, script: &str) -> String {
    let mut command = systemd.inside("sh");
    command.args(["-ec", script]);
    let done = output(command, PATIENCE);
    assert!(done.status.success(), "{script}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

const GROUPS: &str = "/sys/fs/cgroup";
/// A pipe without a writer.
const PIPE: &str = "/run/silent";
const PATIENCE: Duration = Duration::from_secs(30);
