//! A kill at any system call on the hosts file leaves whole lines, and the next round repairs the
//! rest.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use tests::{output, tool};

use super::{Node, OTHERS, PATIENCE, WRITABLE, line, succeeded, text, zone};

/// The old file or the new one remains.
#[test]
fn crash_during_a_rename() {
    killed_at_each_call("crash_during_a_rename", false);
}

/// After a crash during a write in place all lines are whole.
#[test]
fn crash_during_a_write_in_place() {
    killed_at_each_call("crash_during_a_write_in_place", true);
}

fn killed_at_each_call(test: &str, in_place: bool) {
    if !tool(test, "strace") {
        return;
    }
    let node = Node::new(
        OTHERS,
        zone(
            "a.n.svc.cluster.local. 5 IN A 10.9.0.1
             b.n.svc.cluster.local. 5 IN A 10.96.0.102",
        ),
    );
    let services = "a.n.svc b.n.svc c.n.svc";
    // The new text is shorter than the first of these and longer than the second.
    let olds = [
        [line("10.96.100.101", "a.n.svc"), line("10.96.100.102", "b.n.svc"), line("fd00:96::64", "c.n.svc")]
            .concat(),
        line("10.96.0.102", "b.n.svc"),
    ];
    let new = [line("10.9.0.1", "a.n.svc"), line("10.96.0.102", "b.n.svc")].concat();
    // How often the file was unchanged, and how often not.
    let mut seen = [0; 2];
    // With a rename the lengths do not matter.
    for old in olds.into_iter().take(if in_place { 2 } else { 1 }) {
        let reset = || {
            fs::write(node.hosts(), format!("{OTHERS}{old}")).expect(WRITABLE);
            drop(fs::remove_file(node.home.path().join("twin")));
            if in_place {
                fs::hard_link(node.hosts(), node.home.path().join("twin")).expect(WRITABLE);
            }
        };
        reset();
        let log = node.home.path().join("strace");
        let status = |inject: Option<&str>| {
            let round = node.command(services, &["-once"]);
            let mut traced = Command::new("strace");
            traced.args(["-f", "-qq", "-o"]).arg(&log);
            for name in ["", "hosts", ".hosts.localdns", ".hosts.localdns.new"] {
                traced.arg("-P").arg(node.home.path().join(name));
            }
            traced.args(inject.map(|inject| format!("--inject={inject}")));
            traced.arg(round.get_program()).args(round.get_args());
            round.get_envs().for_each(|(name, value)| match value {
                Some(value) => drop(traced.env(name, value)),
                None => drop(traced.env_remove(name)),
            });
            output(traced, PATIENCE)
        };
        succeeded(&status(None));
        assert_eq!(node.text(), format!("{OTHERS}{new}"));
        // Files are read on several threads, and strace counts each thread's calls separately.
        let mut calls_of: BTreeMap<(String, String), usize> = BTreeMap::new();
        for call in fs::read_to_string(&log).expect("strace wrote its log").lines().filter_map(call) {
            *calls_of.entry(call).or_default() += 1;
        }
        let mut calls: BTreeMap<String, usize> = BTreeMap::new();
        for ((_, call), times) in calls_of {
            let most = calls.entry(call).or_default();
            *most = times.max(*most);
        }
        let changing = if in_place { ["pwrite64", "fsync"] } else { ["renameat2", "fsync"] };
        assert!(changing.iter().all(|call| calls.contains_key(*call)), "{calls:?}");
        for (call, times) in calls {
            for nth in 1..=times {
                reset();
                let ended = status(Some(&format!("{call}:signal=KILL:when={nth}")));
                assert_eq!(ended.status.signal(), Some(9), "{call} {nth}: {}", text(&ended.stderr));
                let found = node.text();
                seen[usize::from(found != format!("{OTHERS}{old}"))] += 1;
                if in_place {
                    let whole = |line: &str| {
                        let is_comment = line.starts_with('#');
                        let line = format!("{line}\n");
                        is_comment || line == "\n" || old.contains(&line) || new.contains(&line)
                    };
                    let rest =
                        found.strip_prefix(OTHERS).unwrap_or_else(|| panic!("{call} {nth}: {found:?}"));
                    assert!(rest.ends_with('\n') && rest.lines().all(whole), "{call} {nth}: {found:?}");
                } else {
                    let is_one = [&old, &new].iter().any(|text| found == format!("{OTHERS}{text}"));
                    assert!(is_one, "{call} {nth}: {found:?}");
                }
                node.once(services);
                // A kill in place may leave empty lines and comments, since their owner is unknown.
                let counts = |line: &&str| !line.starts_with(['\n', '#']);
                let sorted = |text: &str| {
                    let mut lines: Vec<String> =
                        text.split_inclusive('\n').filter(counts).map(str::to_owned).collect();
                    lines.sort();
                    lines
                };
                assert_eq!(sorted(&node.text()), sorted(&format!("{OTHERS}{new}")), "{call} {nth}");
                assert!(in_place || node.text() == format!("{OTHERS}{new}"), "{call} {nth}");
                assert!(
                    !node.names().iter().any(|name| name.starts_with('.')),
                    "{call} {nth}: {:?}",
                    node.names()
                );
            }
        }
    }
    assert!(seen[0] > 10 && seen[1] > 4, "{seen:?}");
}

/// The thread and the name of the system call in a line of strace's.
fn call(line: &str) -> Option<(String, String)> {
    let (head, _) = line.split_once('(')?;
    let (thread, name) = (head.split_whitespace().next()?, head.split_whitespace().next_back()?);
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then(|| (thread.to_owned(), name.to_owned()))
}
