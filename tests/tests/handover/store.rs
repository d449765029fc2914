//! Restarts through systemd's file descriptor store: `systemctl restart`.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tests::{Action, Ask, Manager, Server, eventually, isolated, now, run, tool};

use crate::clients::{CALM, Clients, LOCAL, REMOTE};
use crate::place::{AT, PATIENCE, corefile, names, upstream};

/// No query is lost over five restarts.
#[test]
fn five_restarts() {
    isolated(|| {
        if !tool("five_restarts", "bash") {
            return;
        }
        restarts(&[2, 2, 2, 2, 2, 2]);
    });
}

/// A restart with another number of sockets loses no query.
#[test]
fn restart_with_other_socket_count() {
    isolated(|| {
        if !tool("restart_with_other_socket_count", "bash") {
            return;
        }
        restarts(&[2, 4, 1, 3, 2]);
    });
}

/// Starts one process after another, with these numbers of sockets.
fn restarts(sockets: &[usize]) {
    let (manager, upstream, at) = (Manager::new(), upstream(), AT.parse::<SocketAddr>().expect("an address"));
    let mut server = Server::start_with(&corefile(sockets[0], &upstream), manager.options());
    manager.wait_for("READY=1", 1, PATIENCE);
    let clients = Clients::start(at, CALM);
    for (restart, &next) in sockets.iter().enumerate().skip(1) {
        let sent = clients.sent();
        eventually("a few hundred queries", PATIENCE, || (clients.sent() >= sent + 300).then_some(()));
        assert!(server.stop().success());
        server = Server::start_with(&corefile(next, &upstream), manager.options());
        manager.wait_for("READY=1", restart + 1, PATIENCE);
        manager.wait_for_stored(&names(next), PATIENCE);
    }
    let sent = clients.sent();
    eventually("a few hundred queries more", PATIENCE, || (clients.sent() >= sent + 300).then_some(()));
    let restarts = sockets.len() - 1;
    assert!(clients.finish() >= restarts, "each connection that was kept ended with each process");
    assert!(server.stop().success());
}

/// Sockets that the next configuration does not name leave the store.
#[test]
fn unnamed_sockets_leave_the_store() {
    isolated(|| {
        if !tool("unnamed_sockets_leave_the_store", "bash") {
            return;
        }
        let (manager, upstream) = (Manager::new(), upstream());
        let two = corefile(2, &upstream).replace("bind 127.0.0.1", "bind 127.0.0.1 127.0.0.2");
        let mut server = Server::start_with(&two, manager.options());
        let mut both = names(2);
        both.extend(both.clone().iter().map(|name| name.replace("127.0.0.1", "127.0.0.2")));
        both.sort();
        manager.wait_for_stored(&both, PATIENCE);
        // A reload removes them, too.
        server.write_corefile(&corefile(2, &upstream));
        server.signal("USR1");
        manager.wait_for_stored(&names(2), PATIENCE);
        server.write_corefile(&two);
        server.signal("USR1");
        manager.wait_for_stored(&both, PATIENCE);
        assert!(server.stop().success());
        let mut server = Server::start_with(&corefile(2, &upstream), manager.options());
        manager.wait_for_stored(&names(2), PATIENCE);
        assert!(server.stop().success());
    });
}

/// A restart may change `bind` between all addresses and one of them.
#[test]
fn restart_with_an_overlapping_address() {
    isolated(|| {
        if !tool("restart_with_an_overlapping_address", "bash") {
            return;
        }
        let manager = Manager::new();
        let block = |zone: &str, bind: &str| {
            format!("{zone}:53 {{\nbind {bind}\nmultisocket 2\nhosts {{\n{LOCAL} x.example\n}}\n}}\n")
        };
        let (all, one, both) = (&["0.0.0.0"][..], &["127.0.0.1"][..], &["0.0.0.0", "127.0.0.1"][..]);
        // Each pair of them in both orders.
        for (start, binds) in [all, one, both, all, both, one, all].iter().enumerate() {
            let blocks = binds.iter().zip([".", "example"]).map(|(bind, zone)| block(zone, bind));
            let mut server = Server::start_with(&blocks.collect::<String>(), manager.options());
            manager.wait_for("READY=1", start + 1, PATIENCE);
            let at = |bind: &&str| names(2).into_iter().map(|name| name.replace("127.0.0.1", bind)).collect();
            let mut stored = binds.iter().flat_map(|bind| -> Vec<String> { at(bind) }).collect::<Vec<_>>();
            stored.sort();
            manager.wait_for_stored(&stored, PATIENCE);
            let at = AT.parse::<SocketAddr>().expect("an address");
            assert_eq!(Ask::new("x.example", "A").of(at).short(), [LOCAL], "{binds:?}");
            // Half of them without an orderly end.
            if start % 2 == 0 {
                assert!(server.stop().success());
            } else {
                server.signal("KILL");
                server.wait(PATIENCE);
            }
        }
    });
}

/// A server restarts with the remaining sockets after an address was lost.
#[test]
fn address_lost_between_processes() {
    isolated(|| {
        let test = "address_lost_between_processes";
        if !tool(test, "bash") {
            return;
        }
        let (manager, upstream) = (Manager::new(), upstream());
        let corefile = corefile(2, &upstream).replace("bind 127.0.0.1", "bind 169.254.10.10");
        let mut server = Server::start_with(&corefile, manager.options());
        let left: Vec<_> = names(2).iter().map(|name| name.replace("127.0.0.1", "169.254.10.10")).collect();
        manager.wait_for("READY=1", 1, PATIENCE);
        manager.wait_for_stored(&left, PATIENCE);
        server.signal("KILL");
        server.wait(PATIENCE);
        run("ip", &["link", "del", "localdns"]);
        let mut server = Server::start_with(&corefile, manager.options());
        manager.wait_for("READY=1", 2, PATIENCE);
        let at = "169.254.10.10:53".parse::<SocketAddr>().expect("an address");
        assert_eq!(Ask::new("x.example", "A").of(at).short(), [LOCAL]);
        assert!(server.stop().success());
    });
}

/// The manager polls none of the stored sockets.
#[test]
fn stored_sockets_are_not_polled() {
    isolated(|| {
        if !tool("stored_sockets_are_not_polled", "bash") {
            return;
        }
        let (manager, upstream) = (Manager::new(), upstream());
        let mut server = Server::start_with(&corefile(2, &upstream), manager.options());
        manager.wait_for_stored(&names(2), PATIENCE);
        assert!(server.stop().success());
        // Two UDP sockets, a TCP listener, and the saved cache.
        assert_eq!(manager.received("FDSTORE=1\n"), 4);
        // Otherwise systemd would poll a socket and close it on an error.
        assert_eq!(manager.received("FDSTORE=1\nFDPOLL=0\n"), 4);
    });
}

#[test]
fn small_store_is_reported() {
    isolated(|| {
        let test = "small_store_is_reported";
        if !tool(test, "bash") {
            return;
        }
        let (manager, upstream) = (Manager::new(), upstream());
        // Two UDP sockets, a TCP listener, and the saved cache.
        for (room, is_reported) in [("3", true), ("4", false)] {
            let options = manager.options().env("FDSTORE", room);
            let mut server = Server::start_with(&corefile(2, &upstream), options);
            manager.wait_for_stored(&names(2), PATIENCE);
            assert!(server.stop().success());
            let log = server.log_text();
            assert_eq!(
                log.contains("FileDescriptorStoreMax of the unit to at least 4"),
                is_reported,
                "{room}: {log}"
            );
        }
    });
}

#[test]
fn slow_upstream_delays_no_handover() {
    isolated(|| {
        if !tool("slow_upstream_delays_no_handover", "bash") {
            return;
        }
        let (manager, upstream, at) =
            (Manager::new(), upstream(), AT.parse::<SocketAddr>().expect("an address"));
        upstream.answer_by(|_| Action::Silent);
        let mut server = Server::start_with(&corefile(2, &upstream), manager.options());
        manager.wait_for_stored(&names(2), PATIENCE);
        let waits =
            thread::spawn(move || Ask::new("slow.example", "A").timeout(Duration::from_secs(4)).try_of(at));
        eventually("a query in flight", PATIENCE, || (upstream.total() > 0).then_some(()));
        let began = now();
        assert!(server.stop().success());
        assert!(began.elapsed() < Duration::from_secs(3), "it took {:?}", began.elapsed());
        // It got no reply instead of an error; a retry is answered.
        assert!(waits.join().expect("no panic").is_err());
        upstream.answer_by(|asked| Action::answer(&format!("{} 300 IN A {REMOTE}", asked.name)));
        let _server = Server::start_with(&corefile(2, &upstream), manager.options());
        assert_eq!(Ask::new("slow.example", "A").of(at).short(), [REMOTE]);
    });
}
