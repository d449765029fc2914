//! Hostile content of the service manager's store, and a hostile peer in a handover.

use std::fs;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tests::{Ask, Manager, Options, Server, eventually, isolated, output, tempdir, tool};

/// Sockets that serve no client are not taken from the store.
#[test]
fn unused_sockets_stay_in_the_store() {
    isolated(|| {
        if !tool("hostile handovers", "bash") {
            return;
        }
        fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").expect("the namespace is ours");
        let manager = Manager::new();
        let v4: SocketAddr = "127.0.0.1:53".parse().expect("an address");
        let v6: SocketAddr = "[::]:53".parse().expect("an address");
        let bound = |at: SocketAddr, kind, protocol| {
            let socket =
                Socket::new(Domain::for_address(at), kind, Some(protocol)).expect("there are sockets");
            let shared = protocol == Protocol::ICMPV4 || socket.set_reuse_port(true).is_ok();
            assert!(shared && socket.bind(&SockAddr::from(at)).is_ok(), "{protocol:?}");
            socket
        };
        let connected = bound(v4, Type::DGRAM, Protocol::UDP);
        connected.connect(&SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 9)))).expect("it sends nothing");
        for (name, socket) in [
            ("udp-0-53-127.0.0.1", connected),
            ("udp-1-53-127.0.0.1", bound(v4, Type::DGRAM, Protocol::ICMPV4)),
            ("tcp-53-127.0.0.1", bound(v4, Type::STREAM, Protocol::TCP)),
            // This IPv6 socket receives IPv4, too.
            ("udp-0-53-__", bound(v6, Type::DGRAM, Protocol::UDP)),
            ("", Socket::new(Domain::UNIX, Type::DGRAM, None).expect("there are sockets")),
        ] {
            manager.store(name, OwnedFd::from(socket));
        }
        let mut server = Server::start_with(COREFILE, manager.options());
        manager.wait_for("READY=1", 1, PATIENCE);
        for at in [v4, "[::1]:53".parse().expect("an address")] {
            for _ in 0..20 {
                assert_eq!(Ask::new("a.example", "A").of(at).short(), ["192.0.2.1"], "{at}");
                assert_eq!(Ask::new("a.example", "A").tcp().of(at).short(), ["192.0.2.1"], "{at}");
            }
        }
        assert!(server.stop().success());
    });
}

#[test]
fn handover_needs_the_same_user() {
    isolated(|| {
        if !tool("hostile handovers", "setpriv") {
            return;
        }
        let directory = tempdir();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).expect("the test's own");
        let at = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
        fs::write(at("Corefile"), ".:5353 {\nbind 127.0.0.1\nhosts {\n192.0.2.66 a.example\n}\n}\n")
            .expect("the test's own");
        // The original binary may be readable by root only.
        fs::copy(tests::binary(), at("localdns")).expect("the test's own");
        let other = |door: &str| {
            let mut other = Command::new("setpriv");
            other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all"]);
            other.arg(at("localdns")).args(["-conf", &at("Corefile"), "-handover", &at(door)]);
            other
        };
        // Another user's process listens at the path first, with its own answers.
        let mut first =
            other("theirs").stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        eventually("its socket", PATIENCE, || fs::exists(at("theirs")).ok()?.then_some(()));
        let mut ours = Command::new(tests::binary());
        ours.args(["-conf", &at("Corefile"), "-handover", &at("theirs")]);
        let refused = output(ours, PATIENCE);
        let printed = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{printed}");
        assert!(
            printed.contains("cannot take over from the running process: permission denied"),
            "{printed}"
        );
        first.kill().expect("it runs");
        first.wait().expect("it was started");

        let server = Server::start_with(COREFILE, Options::default().args(["-handover", &at("ours")]));
        eventually("its socket", PATIENCE, || fs::exists(at("ours")).ok()?.then_some(()));
        let refused = output(other("ours"), PATIENCE);
        assert_eq!(refused.status.code(), Some(1), "it may not connect: {refused:?}");
        fs::set_permissions(at("ours"), Permissions::from_mode(0o666)).expect("it is there");
        let refused = output(other("ours"), PATIENCE);
        let printed = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{printed}");
        let answered =
            Ask::new("a.example", "A").of("127.0.0.1:53".parse::<SocketAddr>().expect("an address"));
        assert_eq!(answered.short(), ["192.0.2.1"]);
        assert!(!server.log_text().contains("taking over"), "{}", server.log_text());
    });
}

const COREFILE: &str = ".:53 {\nhosts {\n192.0.2.1 a.example\n}\n}\n";
const PATIENCE: Duration = Duration::from_secs(20);
