//! A warm start: what one process knew, the next one answers from memory.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;

use tests::{Ask, Manager, Server, Upstream, isolated, signal, tool};

use crate::clients::REMOTE;
use crate::place::{AT, PATIENCE, corefile, upstream};
use crate::upgrade::pid_of;

const NAMES: usize = 200;

fn cached(upstream: &Upstream) -> String {
    corefile(2, upstream).replace("forward", "cache\nforward")
}

/// Asks for every name, and says for how many of them the upstream was asked meanwhile, once or again.
fn asked(upstream: &Upstream) -> usize {
    let (before, at) = (upstream.total(), AT.parse::<SocketAddr>().expect("an address"));
    for n in 0..NAMES {
        assert_eq!(Ask::new(&format!("hot{n}.example"), "A").of(at).short(), [REMOTE]);
    }
    upstream.asked().into_iter().skip(before).map(|asked| asked.name).collect::<BTreeSet<_>>().len()
}

#[test]
fn hot_names_are_answered_from_memory_after_a_restart_and_after_an_upgrade() {
    isolated(|| {
        if !tool("hot_names_are_answered_from_memory_after_a_restart_and_after_an_upgrade", "bash") {
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

#[test]
fn what_does_not_read_is_refused_and_a_cold_start_serves() {
    isolated(|| {
        if !tool("what_does_not_read_is_refused_and_a_cold_start_serves", "bash") {
            return;
        }
        let (manager, upstream) = (Manager::new(), upstream());
        manager.store("warm", File::open("/dev/null").expect("it is there").into());
        manager.store("warm", File::open("/proc/self/exe").expect("it is there").into());
        manager.store("udp-0-53-127.0.0.1", File::open("/dev/null").expect("it is there").into());
        let mut server = Server::start_with(&cached(&upstream), manager.options());
        manager.wait_for("READY=1", 1, PATIENCE);
        server.wait_for_log("the cache starts empty, what was left does not read", PATIENCE);
        assert_eq!(asked(&upstream), NAMES);
        assert!(server.stop().success());
    });
}
