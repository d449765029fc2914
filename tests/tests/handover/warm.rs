//! Warm start: the next process answers from the cache of the previous one.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;

use tests::{
    Action, Ask, Manager, Options, Says, Server, Upstream, eventually, isolated, run, signal, tempdir, tool,
};

use crate::clients::REMOTE;
use crate::place::{AT, PATIENCE, corefile, upstream};
use crate::upgrade::pid_of;

const NAMES: usize = 200;

fn cached(upstream: &Upstream) -> String {
    corefile(2, upstream).replace("forward", "cache\nforward")
}

/// Queries every name; returns for how many of them the upstream received queries.
fn asked(upstream: &Upstream) -> usize {
    let (before, at) = (upstream.total(), AT.parse::<SocketAddr>().expect("an address"));
    for n in 0..NAMES {
        assert_eq!(Ask::new(&format!("hot{n}.example"), "A").of(at).short(), [REMOTE]);
    }
    upstream.asked().into_iter().skip(before).map(|asked| asked.name).collect::<BTreeSet<_>>().len()
}

/// Hot names are answered from the cache after a restart and an upgrade.
#[test]
fn warm_cache_after_restart_and_upgrade() {
    isolated(|| {
        if !tool("warm_cache_after_restart_and_upgrade", "bash") {
            return;
        }
        let (manager, upstream) = (Manager::new(), upstream());
        let mut server = Server::start_with(&cached(&upstream), manager.options());
        manager.wait_for("READY=1", 1, PATIENCE);
        assert_eq!(asked(&upstream), NAMES);
        assert!(server.stop().success());
        assert!(manager.stored().contains(&"warm".to_owned()), "{:?}", manager.stored());
        let mut server = Server::start_with(&cached(&upstream), manager.options());
        manager.wait_for("READY=1", 2, PATIENCE);
        server.wait_for_log(&format!("the cache starts with {NAMES} answers"), PATIENCE);
        assert!(asked(&upstream) <= NAMES / 10, "of ten hot names nine are answered from memory");
        assert!(!manager.stored().contains(&"warm".to_owned()), "it is of use once");
        server.signal("USR2");
        manager.wait_for("READY=1", 3, PATIENCE);
        assert!(server.wait(PATIENCE).success());
        assert!(asked(&upstream) <= NAMES / 10, "of ten hot names nine are answered from memory");
        signal(pid_of(&server), "TERM");
    });
}

/// Hot names are answered from the cache after a takeover.
#[test]
fn warm_cache_after_a_takeover() {
    isolated(|| {
        let (upstream, directory) = (upstream(), tempdir());
        let door = directory.path().join("door");
        let start = || {
            let options =
                Options::default().args(["-handover", &door.to_string_lossy(), "-after-handover", "exit"]);
            Server::start_with(&cached(&upstream), options)
        };
        let mut server = start();
        assert_eq!(asked(&upstream), NAMES);
        for _ in 0..2 {
            let next = start();
            assert!(server.wait(PATIENCE).success());
            next.wait_for_log(&format!("the cache starts with {NAMES} answers"), PATIENCE);
            assert!(asked(&upstream) <= NAMES / 10, "of ten hot names nine are answered from memory");
            server = next;
        }
        assert!(server.stop().success());
    });
}

/// The next process knows refreshed names that no disk accepted.
#[test]
fn unwritten_refreshed_names_are_passed() {
    isolated(|| {
        let test = "unwritten_refreshed_names_are_passed";
        if !["bash", "mount"].into_iter().all(|program| tool(test, program)) {
            return;
        }
        run("mount", &["-t", "tmpfs", "tmpfs", "/mnt"]);
        std::fs::write("/mnt/hosts", "192.0.2.1 a.test\n").expect("the test's own");
        // Older than the refreshed entries; the times have a resolution of a second.
        run("touch", &["-d", "1 hour ago", "/mnt/hosts"]);
        run("mount", &["-o", "remount,ro", "/mnt"]);
        let (manager, upstream) = (Manager::new(), upstream());
        upstream.answer_by(|asked| match (asked.name.as_str(), asked.rtype) {
            ("a.test.", 1) => Action::answer("a.test. 60 IN A 192.0.2.2"),
            _ => Action::Reply(Says::nodata("test. 60 IN SOA a. b. 1 2 3 4 60")),
        });
        let hosts = "hosts /mnt/hosts {\nrefresh a.test\nfallthrough\n}";
        let corefile = format!(".:53 {{\nbind 127.0.0.1\n{hosts}\nforward . {}\n}}\n", upstream.word());
        let address =
            || Ask::new("a.test", "A").of(AT.parse::<SocketAddr>().expect("an address")).short().concat();
        let mut server = Server::start_with(&corefile, manager.options());
        manager.wait_for("READY=1", 1, PATIENCE);
        eventually("the name is refreshed", PATIENCE, || (address() == "192.0.2.2").then_some(()));
        assert!(server.stop().success());
        // From now on the upstream does not answer.
        upstream.answer_by(|_| Action::Silent);
        let mut server = Server::start_with(&corefile, manager.options());
        manager.wait_for("READY=1", 2, PATIENCE);
        assert_eq!(address(), "192.0.2.2", "after a restart");
        server.wait_for_log("names of /mnt/hosts are known from the previous process", PATIENCE);
        server.signal("USR2");
        manager.wait_for("READY=1", 3, PATIENCE);
        assert!(server.wait(PATIENCE).success());
        assert_eq!(address(), "192.0.2.2", "after an upgrade");
        signal(pid_of(&server), "TERM");
    });
}

/// A cache that cannot be read is refused, and a cold start serves.
#[test]
fn unreadable_cache_is_refused() {
    isolated(|| {
        if !tool("unreadable_cache_is_refused", "bash") {
            return;
        }
        let (manager, upstream) = (Manager::new(), upstream());
        manager.store("warm", File::open("/dev/null").expect("it is there").into());
        manager.store("warm", File::open("/proc/self/exe").expect("it is there").into());
        manager.store("udp-0-53-127.0.0.1", File::open("/dev/null").expect("it is there").into());
        let mut server = Server::start_with(&cached(&upstream), manager.options());
        manager.wait_for("READY=1", 1, PATIENCE);
        server
            .wait_for_log("the cache starts empty: the previous process's export is not readable", PATIENCE);
        assert_eq!(asked(&upstream), NAMES);
        assert!(server.stop().success());
    });
}
