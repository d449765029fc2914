//! Unplanned deaths of the server: the upstream answers the next query.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use tests::{Cgroup, Server, eventually, isolated, isolated_for, output, skip, tool};

use super::clients::answers_everywhere;
use super::lab::{CLUSTER, Lab, PLAIN, US};
use super::restart::{UNIT, boot};

#[test]
fn memory_kill_leaves_the_fallback() {
    isolated(|| {
        let test = "memory_kill_leaves_the_fallback";
        if !tool(test, "nft") {
            return;
        }
        let group = match Cgroup::memory(64 << 20) {
            Ok(group) => group,
            Err(why) => return skip(test, &why),
        };
        let lab = Lab::new();
        let mut server = lab.serve_with(|options| options.within(&group));
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        answers_everywhere(US, US);
        kill_for_memory(&mut server, &group);
        answers_everywhere(CLUSTER, PLAIN);
    });
}

/// A server that may not lock its program in memory reports what would permit it, and serves.
#[test]
fn unlocked_program_is_reported() {
    isolated(|| {
        let test = "unlocked_program_is_reported";
        if !["nft", "prlimit", "setpriv"].into_iter().all(|program| tool(test, program)) {
            return;
        }
        let lab = Lab::new();
        let limited = "prlimit --memlock=65536 setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock";
        let server = lab.serve_with(|options| options.through(limited));
        let warning = "the program's code may be paged out under memory pressure: Cannot allocate memory (os error 12); LimitMEMLOCK=32M in its unit, or the capability IPC_LOCK, keeps it in memory";
        server.wait_for_log(warning, PATIENCE);
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        answers_everywhere(US, US);
    });
}

/// At a death the lease table goes before the memory and the sockets that threads share.
#[test]
fn lease_table_ends_first() {
    isolated(|| {
        let test = "lease_table_ends_first";
        if !tool(test, "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve_with(|options| options);
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        let process = format!("/proc/{}", server.pid());
        // Sockets of protocol 12 (NETLINK_NETFILTER); the last column is the inode.
        let netfilter = fs::read_to_string(format!("{process}/net/netlink")).expect("it is there");
        let columns = netfilter.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let netfilter: Vec<_> = columns
            .filter(|columns| columns.get(1) == Some(&"12"))
            .filter_map(|columns| Some(format!("socket:[{}]", columns.last()?)))
            .collect();
        let open = |of: &str| {
            let files = fs::read_dir(format!("{process}{of}/fd")).expect("the process runs").flatten();
            files
                .filter_map(|file| Some(fs::read_link(file.path()).ok()?.to_str()?.to_owned()))
                .collect::<Vec<_>>()
        };
        let leases = server.threads("lease-table");
        assert_eq!(leases.len(), 1);
        let its_own = open(&format!("/task/{}", leases[0]));
        let shared = open("");
        let owner: Vec<_> = its_own.iter().filter(|file| file.starts_with("socket:[")).collect();
        assert_eq!(owner.len(), 1, "{its_own:?}");
        assert!(netfilter.contains(owner[0]), "{owner:?} is none of {netfilter:?}");
        assert!(!shared.contains(owner[0]), "{shared:?}");
    });
}

/// The server crashes until systemd gives up.
#[test]
fn crash_loop_leaves_the_fallback() {
    isolated_for(Duration::from_secs(180), || {
        let test = "crash_loop_leaves_the_fallback";
        let Some((_lab, systemd)) = boot(test) else { return };
        systemd.more(UNIT, "[Unit]\nStartLimitIntervalSec=600\nStartLimitBurst=3\n");
        systemd.ctl(&["start", UNIT]);
        for crash in 1..=3 {
            answers_everywhere(US, US);
            systemd.ctl(&["kill", "--kill-who=main", "--signal=KILL", UNIT]);
            if crash < 3 {
                systemd.restarts(UNIT, crash);
            }
        }
        eventually("the end of its starts", PATIENCE, || {
            (systemd.show(UNIT, "ActiveState") == ["failed"]).then_some(())
        });
        answers_everywhere(CLUSTER, PLAIN);
    });
}

/// Has the OOM killer end a server in a full control group of 64 MiB.
pub(crate) fn kill_for_memory(server: &mut Server, group: &Cgroup) {
    let killed = group.killed();
    // A neighbour takes nearly all memory; the kernel kills the server, and the neighbour too where
    // that is slow.
    fs::write(format!("/proc/{}/oom_score_adj", server.pid()), "1000").expect("it is ours");
    let hog =
        format!("echo 0 > '{}'; exec dd if=/dev/zero of=/dev/null bs=63M count=1", group.door().display());
    let mut neighbour = Command::new("sh");
    neighbour.args(["-ec", &hog]);
    output(neighbour, PATIENCE);
    assert_eq!(server.wait(PATIENCE).signal(), Some(9));
    assert!(group.killed() > killed, "the kernel did");
}

const PATIENCE: Duration = Duration::from_secs(20);
