//! Clients that violate the TLS protocol: each loses its own connection, and nothing panics.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{AlertDescription, DigitallySignedStruct, Error, SignatureScheme};

use super::limits::hello;
use super::{Dot, HOST, PATIENCE, rcode};

/// Accepts no signature that the server can make, which the server detects after its ServerHello.
#[derive(Debug)]
struct Ed25519Alone;

impl ServerCertVerifier for Ed25519Alone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[test]
fn late_handshake_failure_sends_alert() {
    let dot = Dot::start("", "", "whoami");
    let mut client = dot.authority.client_of(HOST, None, &[&TLS13]);
    let mut config = (*client.config).clone();
    config.dangerous().set_certificate_verifier(Arc::new(Ed25519Alone));
    client.config = config.into();
    let error = dot.open(&client).map(|_| ()).unwrap_err();
    let found =
        error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref());
    let expected = Error::AlertReceived(AlertDescription::HandshakeFailure);
    assert_eq!(found, Some(&expected), "{error:#}");
}

/// A client that breaks TLS loses its connection, and nothing panics.
#[test]
fn broken_tls_closes_the_connection() {
    let dot = Dot::start("", "", "whoami");
    let hello = hello(&dot);
    let record = |kind: u8, content: &[u8]| {
        let length = (content.len() as u16).to_be_bytes();
        [&[kind, 3, 1][..], &length, content].concat()
    };
    let mut all = vec![
        // A handshake message above the maximum length, and incomplete.
        record(22, &[1, 0xff, 0xff, 0xff]),
        record(22, &[1, 0, 0xff, 0xff, 0]),
        [record(22, &[1]), record(22, &[0xff; 3]), record(22, &[0; 16_384])].concat(),
        record(22, &[]).repeat(100),
        [record(22, &[]), record(21, &[1, 0])].concat(),
        [record(22, &[]), hello.clone()].concat(),
        [record(22, &[1]), record(21, &[1, 0]), hello.clone()].concat(),
        record(20, &[1]).repeat(100),
        record(23, &[0; 100]),
        vec![22, 3, 1, 0xff, 0xff, 1],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        hello.repeat(2),
    ];
    for at in 0..hello.len() {
        let mut other = hello.clone();
        other[at] ^= 0xff;
        all.push(other);
    }
    // All at once: the server keeps some until their timeout.
    let mut streams = Vec::new();
    for octets in &all {
        let mut stream = TcpStream::connect(dot.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may close it before all is sent.
        let _ = stream.write_all(octets);
        let _ = stream.shutdown(Shutdown::Write);
        streams.push(stream);
    }
    for mut stream in streams {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    rcode(&mut dot.open(&dot.client()).unwrap()).unwrap();
    let log = dot.server.log_text();
    assert!(!log.contains("panicked"), "{log}");
}
