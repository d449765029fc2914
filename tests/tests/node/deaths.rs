//! Ends that nobody plans: the upstream answers the next query.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use tests::{Cgroup, Server, eventually, isolated, isolated_for, output, skip, tool};

use super::clients::answers_everywhere;
use super::lab::{CLUSTER, Lab, PLAIN, US};
use super::restart::{UNIT, boot};

#[test]
fn a_server_that_the_kernel_kills_for_want_of_memory_leaves_the_way_out() {
    isolated(|| {
        let test = "a_server_that_the_kernel_kills_for_want_of_memory_leaves_the_way_out";
        if !tool(test, "nft") {
            return;
        }
        let group = match Cgroup::memory(64 << 20) {
            Ok(group) => group,
            Err(why) => return skip(test, &why),
        };
        let lab = Lab::new();
        let mut server = lab.serve_with(|options| options.within(&group));
        server.wait_for_log("queries to fd10::11 come here", PATIENCE);
        answers_everywhere(US, US);
        kill_for_memory(&mut server, &group);
        answers_everywhere(CLUSTER, PLAIN);
    });
}

#[test]
fn a_server_that_crashes_until_systemd_gives_it_up_leaves_the_way_out() {
    isolated_for(Duration::from_secs(180), || {
        let test = "a_server_that_crashes_until_systemd_gives_it_up_leaves_the_way_out";
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

/// Has the kernel kill a server in a full control group of 64 MiB.
pub(crate) fn kill_for_memory(server: &mut Server, group: &Cgroup) {
    let killed = group.killed();
    // A neighbour takes nearly all of it, and the kernel chooses: the server, and the neighbour as well where it is slow.
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
