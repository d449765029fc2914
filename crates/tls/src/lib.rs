//! TLS for both sides of a connection: settings of a client, certificate verifiers, the system's roots,
//! PEM files.
//!
//! `openssl req -x509` creates one certificate that is both an authority and the server's own.
//! rustls refuses a CA certificate as an end entity; Go's TLS, and with it CoreDNS, accepts it. The
//! verifiers here accept it if it is, byte for byte, one of the roots that the configuration names,
//! is valid now, has the expected name and allows the usage.
//!
//! A peer may send any number of certificates before it proves possession of a key, and webpki
//! tries all paths through them that their names allow: up to 200,000 steps, each of which reads
//! all of them, which takes seconds. `MAX_INTERMEDIATES` take 1 ms.

mod client;
mod error;
mod native_roots;
pub mod pem;

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};

pub use client::{TlsSettings, UpstreamTlsSpec};
pub use error::TlsError;
pub use native_roots::{NativeRootsError, native_root_store, native_roots};

/// webpki's error for a CA certificate that is used as an end entity.
pub const CA_USED_AS_END_ENTITY: &str = "CaUsedAsEndEntity";

/// Maximum number of intermediate certificates; usual are 1 or 2.
const MAX_INTERMEDIATES: usize = 5;

/// Refuses a chain that would take long to verify.
fn check_length(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    match intermediates.len() {
        ..=MAX_INTERMEDIATES => Ok(()),
        _ => Err(CertificateError::Other(OtherError(Arc::new(TooManyCertificates))).into()),
    }
}

/// The peer sent more than `MAX_INTERMEDIATES` certificates beside its own.
#[derive(Debug)]
pub struct TooManyCertificates;

impl fmt::Display for TooManyCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {MAX_INTERMEDIATES} intermediate certificates")
    }
}

impl std::error::Error for TooManyCertificates {}

/// Verifies certificates of servers.
#[derive(Debug)]
pub struct ServerVerifier {
    /// `None` without a root: every certificate is refused.
    webpki: Option<Arc<WebPkiServerVerifier>>,
    named: NamedRoots,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerVerifier {
    /// Accepts certificates that `roots` signed; `named` are those of the roots that a file lists.
    ///
    /// # Errors
    /// Reports roots that rustls refuses.
    pub fn new(
        named: Vec<CertificateDer<'static>>,
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>, Error> {
        let algorithms = provider.signature_verification_algorithms;
        let webpki = match roots.is_empty() {
            true => None,
            false => {
                let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
                Some(webpki.map_err(|error| Error::General(error.to_string()))?)
            }
        };
        Ok(Arc::new(Self { webpki, named: NamedRoots(named), algorithms }))
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        check_length(intermediates)?;
        let webpki = self.webpki.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        match webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(error) if self.named.accepts(end_entity, &error, SERVER_AUTH) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies certificates of clients.
#[derive(Debug)]
pub struct ClientVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    named: NamedRoots,
}

impl ClientVerifier {
    /// Accepts what `webpki` accepts, and the roots `named` that a file lists.
    pub fn new(webpki: Arc<dyn ClientCertVerifier>, named: Vec<CertificateDer<'static>>) -> Arc<Self> {
        Arc::new(Self { webpki, named: NamedRoots(named) })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.webpki.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.webpki.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check_length(intermediates)?;
        match self.webpki.verify_client_cert(end_entity, intermediates, now) {
            Err(error) if self.named.accepts(end_entity, &error, CLIENT_AUTH) => {
                Ok(ClientCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Roots that a file lists.
#[derive(Debug)]
struct NamedRoots(Vec<CertificateDer<'static>>);

impl NamedRoots {
    /// Whether the certificate is one of them, its extended key usage, if it has one, includes
    /// `usage`, and `error` is that it is a CA certificate. webpki checks validity times first, so
    /// that an expired or future one has another error.
    fn accepts(&self, end_entity: &CertificateDer<'_>, error: &Error, usage: &[u8]) -> bool {
        let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
        let contains = |oid: &[u8]| end_entity.windows(oid.len()).any(|window| window == oid);
        other.0.to_string() == CA_USED_AS_END_ENTITY
            && self.0.iter().any(|named| named == end_entity)
            && (!contains(EXTENDED_KEY_USAGE) || contains(usage))
    }
}

/// Object identifiers in DER: the extension for extended key usage (RFC 5280, section 4.2.1.12),
/// and two usages. They are searched in the whole certificate: if another field has the same bytes
/// by chance, a certificate may be refused, or a listed root may be accepted for a usage that it
/// does not have.
const EXTENDED_KEY_USAGE: &[u8] = b"\x06\x03\x55\x1d\x25";
const SERVER_AUTH: &[u8] = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x01";
const CLIENT_AUTH: &[u8] = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x02";

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};
    use rustls::server::WebPkiClientVerifier;

    use super::*;

    const NAME: &str = "dns.example";

    /// A certificate as `openssl req -x509` creates it, modified by `change`.
    fn certificate(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    /// Results for `shown` with the root `named`: as the certificate of a server of this name, and
    /// of a client.
    fn verify(named: &CertificateDer<'static>, shown: &CertificateDer<'_>, name: &str) -> [String; 2] {
        let provider = Arc::new(crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(named.clone()).unwrap();
        let webpki = WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider.clone());
        let clients = ClientVerifier::new(webpki.build().unwrap(), vec![named.clone()]);
        let servers = ServerVerifier::new(vec![named.clone()], roots, provider).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        let text =
            |error: Option<Error>| error.map_or_else(|| "good".to_owned(), |error| format!("{error:?}"));
        [
            text(servers.verify_server_cert(shown, &[], &name, &[], now).err()),
            text(clients.verify_client_cert(shown, &[], now).err()),
        ]
    }

    fn check(named: &CertificateDer<'static>, shown: &CertificateDer<'_>, name: &str, expected: [&str; 2]) {
        let results = verify(named, shown, name);
        for (result, expected) in results.iter().zip(expected) {
            assert!(result.contains(expected), "{results:?}, expected {expected}");
        }
    }

    #[test]
    fn accepts_listed_root_as_end_entity() {
        let own = certificate(|_| {});
        check(&own, &own, NAME, ["good", "good"]);
        check(&own, &own, "other.example", ["NotValidForName", "good"]);
    }

    #[test]
    fn refuses_other_ca_certificates() {
        let (named, other) = (certificate(|_| {}), certificate(|_| {}));
        check(&named, &other, NAME, ["CaUsedAsEndEntity", "CaUsedAsEndEntity"]);
    }

    #[test]
    fn refuses_expired_and_future_certificates() {
        let expired = certificate(|params| params.not_after = date_time_ymd(2020, 1, 1));
        check(&expired, &expired, NAME, ["Expired", "Expired"]);
        let future = certificate(|params| params.not_before = date_time_ymd(2100, 1, 1));
        check(&future, &future, NAME, ["NotValidYet", "NotValidYet"]);
    }

    /// The certificates are not even parsed, so that an attacker needs neither key nor signature.
    #[test]
    fn refuses_long_chains_unread() {
        let own = certificate(|_| {});
        let provider = Arc::new(crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(own.clone()).unwrap();
        let webpki = WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider.clone());
        let clients = ClientVerifier::new(webpki.build().unwrap(), vec![own.clone()]);
        let name = ServerName::try_from(NAME).unwrap();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        for roots in [roots, RootCertStore::empty()] {
            let servers = ServerVerifier::new(vec![own.clone()], roots, provider.clone()).unwrap();
            for (count, refused_unread) in [(0, false), (5, false), (6, true), (400, true)] {
                let others = vec![CertificateDer::from(&b"none"[..]); count];
                let stranger = certificate(|params| params.is_ca = IsCa::NoCa);
                let results = [
                    servers.verify_server_cert(&stranger, &others, &name, &[], now).err(),
                    clients.verify_client_cert(&stranger, &others, now).err(),
                ];
                for error in results {
                    let text = format!("{error:?}");
                    assert_eq!(text.contains("TooManyCertificates"), refused_unread, "{count}: {text}");
                    assert!(error.is_some(), "{count} certificates are accepted");
                }
            }
        }
    }

    #[test]
    fn extended_key_usage_limits_listed_roots() {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let of = |purpose| certificate(|params| params.extended_key_usages = vec![purpose]);
        let server = of(ServerAuth);
        check(&server, &server, NAME, ["good", "CaUsedAsEndEntity"]);
        let client = of(ClientAuth);
        check(&client, &client, NAME, ["CaUsedAsEndEntity", "good"]);
    }
}
