//! Session resumption by tickets (RFC 5077; RFC 8446, section 2.2), and events that end sessions.

use std::time::Duration;

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};
use tests::{Authority, Connection, TlsClient};

use super::{Dot, HOST, rcode};

const PATIENCE: Duration = Duration::from_secs(20);

fn versions() -> [&'static SupportedProtocolVersion; 2] {
    [&TLS12, &TLS13]
}

/// A connection with an answered query, after which the client also has a ticket.
fn answered(dot: &Dot, client: &TlsClient) -> anyhow::Result<Connection> {
    let mut connection = dot.open(client)?;
    anyhow::ensure!(rcode(&mut connection)? == 0);
    Ok(connection)
}

#[test]
fn sessions_end_with_their_certificate() {
    let dot = Dot::start("", "", "whoami\ntimeouts {\nidle 1m\n}");
    let clients = versions().map(|version| dot.authority.client_of(HOST, None, &[version]));
    let mut old = Vec::new();
    for (client, version) in clients.iter().zip(versions()) {
        let first = answered(&dot, client).unwrap();
        let second = answered(&dot, client).unwrap();
        assert_eq!([first.is_resumed(), second.is_resumed()], [false, true], "{version:?}");
        // A client without a ticket starts a new session.
        let other = answered(&dot, &dot.authority.client_of(HOST, None, &[version])).unwrap();
        assert!(!other.is_resumed(), "{version:?}");
        old.extend([first, second]);
    }
    dot.authority.certify(dot.files.path(), HOST);
    dot.server.wait_for_log("plugin/tls: Successfully reloaded", PATIENCE);
    for (client, version) in clients.iter().zip(versions()) {
        let first = answered(&dot, client).unwrap();
        assert!(!first.is_resumed(), "{version:?}: the new certificate is shown");
        assert!(old.iter().all(|old| old.shown().0 != first.shown().0), "{version:?}");
        assert!(answered(&dot, client).unwrap().is_resumed(), "{version:?}");
    }
    for connection in &mut old {
        assert_eq!(rcode(connection).unwrap(), 0, "no connection is lost");
    }
}

/// A client is verified against an authority on every connection.
#[test]
fn client_certificate_on_each_connection() {
    for (word, resumes) in
        [("request", true), ("require", true), ("verify_if_given", false), ("require_and_verify", false)]
    {
        let dot = Dot::start("ca.pem", &format!("client_auth {word}"), "whoami\ntimeouts {\nidle 1m\n}");
        let clients =
            versions().map(|version| dot.authority.client_of(HOST, Some(&dot.authority), &[version]));
        let mut old = Vec::new();
        for (client, version) in clients.iter().zip(versions()) {
            old.extend([answered(&dot, client).unwrap(), answered(&dot, client).unwrap()]);
            assert_eq!(old.last().map(Connection::is_resumed), Some(resumes), "{word}, {version:?}");
        }
        let another = Authority::new();
        another.write(dot.files.path());
        dot.server.wait_for_log("plugin/tls: Successfully reloaded", PATIENCE);
        for (client, version) in clients.iter().zip(versions()) {
            let again = answered(&dot, client);
            let is_let_in_anew = again.as_ref().ok().map(|again| !again.is_resumed());
            assert_eq!(is_let_in_anew, resumes.then_some(true), "{word}, {version:?}: {again:?}");
            let welcome = dot.authority.client_of(HOST, Some(&another), &[version]);
            answered(&dot, &welcome).unwrap();
        }
        for connection in &mut old {
            assert_eq!(rcode(connection).unwrap(), 0, "whoever was let in stays");
        }
    }
}
