//! Name servers over TLS, HTTPS and QUIC.

use tests::{Authority, Encrypted, EncryptedPeer, PeerReply, assert_contains, free_port, fresh_ip, output};

use super::{Node, OTHERS, PATIENCE, line, succeeded, zone};

/// The certificate must have the name of TLS_SERVERNAME and be of TLS_CA; otherwise lines stay.
#[test]
fn encrypted_name_servers() {
    let authority = Authority::new();
    for over in Encrypted::ALL {
        let node = Node::new(OTHERS, zone(""));
        let ip = fresh_ip();
        let at = (ip, free_port(ip.into())).into();
        let reply = PeerReply::Address([10, 96, 0, 1].into());
        let peer = EncryptedPeer::start(over, at, (&authority, "dns.example"), reply);
        let ca = authority.write(node.home.path());
        let round = |name: &str| {
            let mut command = node.command("a.n.svc", &["-once"]);
            command.env("NAMESERVER", &peer.word).env("TLS_SERVERNAME", name).env("TLS_CA", &ca);
            succeeded(&output(command, PATIENCE))
        };
        round("dns.example");
        let written = node.text();
        assert_contains!(written, line("10.96.0.1", "a.n.svc"));
        let log = round("other.example");
        assert_contains!(
            log,
            "its lines are unchanged: the server's certificate is not for the expected name"
        );
        assert_eq!(node.text(), written, "{over:?}");
    }
}
