//! `refresh_via` with tls://, https:// and quic://: answers, certificates, silence, connections that end, and wrong replies.

use std::net::SocketAddr;
use std::time::Duration;

use tests::{
    Action, Authority, Encrypted, EncryptedPeer, Options, PeerReply, Server, Upstream, assert_contains,
    eventually, free_port, fresh_ip, tempdir,
};

use super::{EVERY_5_S, Node, address};

const NAME: &str = "dns.example";

/// A node whose names are refreshed via `servers`; other queries get no answer.
fn node(directory: &std::path::Path, authority: &Authority, name: &str, servers: &str) -> Node {
    let ca = authority.write(directory);
    let properties = format!(
        "refresh a.test\nrefresh_via {servers}\nrefresh_family ipv4\ntls {}\ntls_servername {name}",
        ca.display()
    );
    Node::start_in(directory, None, &properties, &[EVERY_5_S], |_| Action::Silent)
}

fn free() -> SocketAddr {
    let ip = fresh_ip();
    (ip, free_port(ip.into())).into()
}

fn address_of(last: u8) -> PeerReply {
    PeerReply::Address([192, 0, 2, last].into())
}

/// Waits for a failed lookup of `a.test`, and returns its reason.
fn failure(node: &Node) -> String {
    eventually("a failed lookup", Duration::from_secs(30), || {
        node.entry("a.test", "ipv4")["failure"].as_str().map(str::to_owned)
    })
}

/// The name is sent as SNI, and the connection serves more than one round.
#[test]
fn encrypted_servers_answer() {
    let authority = Authority::new();
    for over in Encrypted::ALL {
        let directory = tempdir();
        let peer = EncryptedPeer::start(over, free(), (&authority, NAME), address_of(1));
        let node = node(directory.path(), &authority, NAME, &peer.word);
        node.sees("a.test", "A", &["192.0.2.1"]);
        node.rounds("ok", 2.0);
        assert_eq!(node.status()["servers"][0], *peer.word);
        assert_eq!(peer.server_names(), [Some(NAME.to_owned())], "{over:?}");
    }
}

/// A name after `%` is as good as `tls_servername`.
#[test]
fn name_behind_the_address() {
    let (authority, directory) = (Authority::new(), tempdir());
    let peer = EncryptedPeer::start(Encrypted::Tls, free(), (&authority, NAME), address_of(1));
    let ca = authority.write(directory.path());
    let word = peer.word.replace(':', "\n").replacen("\n", ":", 1).replace('\n', &format!("%{NAME}:"));
    let properties = format!("refresh a.test\nrefresh_via {word}\ntls {}", ca.display());
    let node = Node::start_in(directory.path(), None, &properties, &[EVERY_5_S], |_| Action::Silent);
    node.sees("a.test", "A", &["192.0.2.1"]);
}

#[test]
fn wrong_certificates_are_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    for over in Encrypted::ALL {
        for (issuer, name, reason) in [
            (&authority, "other.example", "certificate is not for the expected name"),
            (&other, NAME, "certificate is of an unknown authority"),
        ] {
            let directory = tempdir();
            let peer = EncryptedPeer::start(over, free(), (issuer, NAME), address_of(1));
            let node = node(directory.path(), &authority, name, &peer.word);
            assert_contains!(failure(&node), reason);
            assert!(!node.text().contains("192.0.2.1"), "{over:?}: {}", node.text());
        }
    }
}

/// Within the time of one round.
#[test]
fn next_server_after_silence() {
    let authority = Authority::new();
    let next = Upstream::start(fresh_ip(), address(2));
    for over in Encrypted::ALL {
        let directory = tempdir();
        let peer = EncryptedPeer::start(over, free(), (&authority, NAME), PeerReply::Silent);
        let node = node(directory.path(), &authority, NAME, &format!("{} {}", peer.word, next.word()));
        node.sees("a.test", "A", &["192.0.2.2"]);
        node.rounds("ok", 1.0);
        assert!(!peer.server_names().is_empty(), "the first server is asked first");
    }
}

/// The next round connects again.
#[test]
fn closed_connection_is_replaced() {
    let authority = Authority::new();
    for over in Encrypted::ALL {
        let (directory, at) = (tempdir(), free());
        let peer = EncryptedPeer::start(over, at, (&authority, NAME), address_of(1));
        let node = node(directory.path(), &authority, NAME, &peer.word);
        node.sees("a.test", "A", &["192.0.2.1"]);
        drop(peer);
        let _peer = EncryptedPeer::start(over, at, (&authority, NAME), address_of(2));
        node.sees("a.test", "A", &["192.0.2.2"]);
    }
}

#[test]
fn replies_of_another_question() {
    let authority = Authority::new();
    for over in Encrypted::ALL {
        let directory = tempdir();
        let reply = PeerReply::OtherQuestion([192, 0, 2, 1].into());
        let peer = EncryptedPeer::start(over, free(), (&authority, NAME), reply);
        let node = node(directory.path(), &authority, NAME, &peer.word);
        assert_contains!(failure(&node), "the reply cannot be read");
        assert!(!node.text().contains("192.0.2.1"), "{over:?}: {}", node.text());
    }
}

/// hickory drops what it cannot read over TLS, which is then a time-out.
#[test]
fn garbage_is_a_failure() {
    let authority = Authority::new();
    let at = free();
    let over_tls = Upstream::tls(at, &authority, NAME, |asked| {
        Action::Octets([&asked.id.to_be_bytes()[..], b"\x81\x80garbage"].concat())
    });
    let over_http = EncryptedPeer::http(free(), (&authority, NAME), 200, b"\0\0\x81\x80garbage");
    let no_page = EncryptedPeer::http(free(), (&authority, NAME), 404, b"404 page not found");
    let over_quic = EncryptedPeer::garbage_over_quic(free(), (&authority, NAME), b"\0\0\x81\x80garbage");
    for (word, reason) in [
        (format!("tls://{}", over_tls.word()), "no reply"),
        (over_http.word.clone(), "the reply cannot be read"),
        (no_page.word.clone(), "the HTTP reply has no DNS message"),
        (over_quic.word.clone(), "the reply cannot be read"),
    ] {
        let directory = tempdir();
        let node = node(directory.path(), &authority, NAME, &word);
        assert_contains!(failure(&node), reason);
        // The server goes on.
        assert_eq!(node.status()["servers"][0], *word);
    }
}

/// Wrong uses are refused with their place and the remedy.
#[test]
fn wrong_properties_are_refused() {
    let directory = tempdir();
    for (properties, error) in [
        (
            "refresh_via 192.0.2.1\ntls_servername a.example",
            "`tls` and `tls_servername` need a server of tls://",
        ),
        ("refresh_via tls://dns.example", "its IP address stands here, and the name of its certificate"),
        ("refresh_via https://192.0.2.1/dns-query", "the path is always /dns-query and is not written"),
        (
            "refresh_via https://[2001:db8::1]",
            "https:// before an IPv6 address needs the name of the certificate",
        ),
        ("refresh_via tls://192.0.2.1%a.example\ntls_servername b.example", "exclude each other; keep one"),
        ("refresh_via tls://192.0.2.1\ntls /nowhere/ca.pem", "/nowhere/ca.pem: No such file"),
        (
            "refresh_via tls://192.0.2.1\ntls_servername a..b",
            "\"a..b\" is not a server name; expected a name such as",
        ),
    ] {
        let corefile = format!(
            ".:5399 {{\nhosts {}/hosts {{\nrefresh a.test\n{}\n}}\n}}\n",
            directory.path().display(),
            properties
        );
        let output = Server::expect_failure(&corefile, Options::default());
        let output =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_contains!(output, error);
        assert!(output.contains("Corefile:4:") || output.contains("Corefile:5:"), "{output}");
    }
}
