//! Who is believed on the other side of TLS: whose certificate one of the authorities signed, and who shows an authority itself.
//!
//! `openssl req -x509` makes one certificate that is an authority and its server's own. Whoever names it as the authority means that
//! server. rustls refuses an authority as anybody's own certificate; Go's TLS, and with it CoreDNS, takes it. Here it is taken
//! where it is, octet for octet, one of the certificates that the configuration names, is valid now, is for the name asked for
//! and is meant for what it is used for.
//!
//! Whoever has not shown a key yet may send certificates without end, and webpki tries every way through them that names leave
//! open, up to 200,000 steps each of which reads all of them: seconds. So many as `MOST_INTERMEDIATES` take a millisecond.

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

pub use error::TlsError;
pub use native_roots::{SystemError, system_authorities};

/// webpki's word for an authority that is shown as somebody's own certificate.
pub const CA_AS_OWN: &str = "CaUsedAsEndEntity";

/// Certificates between somebody's own and its authority, at most: several times what is usual.
const MOST_INTERMEDIATES: usize = 5;

/// Refuses what would take long to judge.
fn refuse_many(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    match intermediates.len() {
        ..=MOST_INTERMEDIATES => Ok(()),
        _ => Err(CertificateError::Other(OtherError(Arc::new(TooManyCertificates))).into()),
    }
}

/// More certificates than can be judged in a moment: above five beside somebody's own.
#[derive(Debug)]
pub struct TooManyCertificates;

impl fmt::Display for TooManyCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it comes with more than {MOST_INTERMEDIATES} others")
    }
}

impl std::error::Error for TooManyCertificates {}

/// Judges servers.
#[derive(Debug)]
pub struct Servers {
    /// `None` without an authority: nobody is believed.
    signed: Option<Arc<WebPkiServerVerifier>>,
    named: Named,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Servers {
    /// By these authorities; `named` are those of them that a file names.
    ///
    /// # Errors
    /// What rustls finds wrong with them.
    pub fn new(
        named: Vec<CertificateDer<'static>>,
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>, Error> {
        let algorithms = provider.signature_verification_algorithms;
        let signed = match roots.is_empty() {
            true => None,
            false => {
                let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
                Some(signed.map_err(|error| Error::General(error.to_string()))?)
            }
        };
        Ok(Arc::new(Self { signed, named: Named(named), algorithms }))
    }
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        refuse_many(intermediates)?;
        let signed = self.signed.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        match signed.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(error) if self.named.has(end_entity, &error, SERVER_AUTH) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            signed => signed,
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

/// Judges clients.
#[derive(Debug)]
pub struct Clients {
    signed: Arc<dyn ClientCertVerifier>,
    named: Named,
}

impl Clients {
    /// As `signed` does, and by the authorities that a file names.
    pub fn new(signed: Arc<dyn ClientCertVerifier>, named: Vec<CertificateDer<'static>>) -> Arc<Self> {
        Arc::new(Self { signed, named: Named(named) })
    }
}

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        self.signed.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.signed.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        refuse_many(intermediates)?;
        match self.signed.verify_client_cert(end_entity, intermediates, now) {
            Err(error) if self.named.has(end_entity, &error, CLIENT_AUTH) => {
                Ok(ClientCertVerified::assertion())
            }
            signed => signed,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// The certificates that a file names as authorities.
#[derive(Debug)]
struct Named(Vec<CertificateDer<'static>>);

impl Named {
    /// Whether this is one of them, for `purpose` if it says for what, and was refused for being an authority and for nothing
    /// else: webpki looks at the time before it looks at that, so neither an expired one nor one of tomorrow comes here.
    fn has(&self, end_entity: &CertificateDer<'_>, error: &Error, purpose: &[u8]) -> bool {
        let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
        let says = |octets: &[u8]| end_entity.windows(octets.len()).any(|at| at == octets);
        other.0.to_string() == CA_AS_OWN
            && self.0.iter().any(|named| named == end_entity)
            && (!says(EXTENDED_KEY_USAGE) || says(purpose))
    }
}

/// Object identifiers in DER: what an extension is that says for what a certificate is (RFC 5280, section 4.2.1.12), and two of these
/// purposes. Where the octets stand by chance in another field, a certificate is refused that might be taken, or is an
/// authority's own that was named.
const EXTENDED_KEY_USAGE: &[u8] = b"\x06\x03\x55\x1d\x25";
const SERVER_AUTH: &[u8] = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x01";
const CLIENT_AUTH: &[u8] = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x02";

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};
    use rustls::server::WebPkiClientVerifier;

    use super::*;

    const NAME: &str = "dns.example";

    /// What `openssl req -x509` makes, but for what is changed of it.
    fn made(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    /// What is said of `shown` where `named` is the authority: as a server's of this name, and as a client's.
    fn judged(named: &CertificateDer<'static>, shown: &CertificateDer<'_>, name: &str) -> [String; 2] {
        let provider = Arc::new(crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(named.clone()).unwrap();
        let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider.clone());
        let clients = Clients::new(signed.build().unwrap(), vec![named.clone()]);
        let servers = Servers::new(vec![named.clone()], roots, provider).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        let said =
            |error: Option<Error>| error.map_or_else(|| "good".to_owned(), |error| format!("{error:?}"));
        [
            said(servers.verify_server_cert(shown, &[], &name, &[], now).err()),
            said(clients.verify_client_cert(shown, &[], now).err()),
        ]
    }

    fn check(named: &CertificateDer<'static>, shown: &CertificateDer<'_>, name: &str, expected: [&str; 2]) {
        let judged = judged(named, shown, name);
        for (said, expected) in judged.iter().zip(expected) {
            assert!(said.contains(expected), "{judged:?}, expected {expected}");
        }
    }

    #[test]
    fn an_authority_that_is_named_is_good_as_somebodys_own_certificate() {
        let own = made(|_| {});
        check(&own, &own, NAME, ["good", "good"]);
        check(&own, &own, "other.example", ["NotValidForName", "good"]);
    }

    #[test]
    fn one_that_is_not_named_is_refused() {
        let (named, other) = (made(|_| {}), made(|_| {}));
        check(&named, &other, NAME, ["CaUsedAsEndEntity", "CaUsedAsEndEntity"]);
    }

    #[test]
    fn one_whose_time_is_over_or_has_not_come_is_refused() {
        let over = made(|params| params.not_after = date_time_ymd(2020, 1, 1));
        check(&over, &over, NAME, ["Expired", "Expired"]);
        let to_come = made(|params| params.not_before = date_time_ymd(2100, 1, 1));
        check(&to_come, &to_come, NAME, ["NotValidYet", "NotValidYet"]);
    }

    /// Without a key and without a signature that is right: names alone lead from one to the next.
    #[test]
    fn more_certificates_than_a_chain_has_are_refused_unread() {
        let own = made(|_| {});
        let provider = Arc::new(crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(own.clone()).unwrap();
        let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider.clone());
        let clients = Clients::new(signed.build().unwrap(), vec![own.clone()]);
        let name = ServerName::try_from(NAME).unwrap();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        for roots in [roots, RootCertStore::empty()] {
            let servers = Servers::new(vec![own.clone()], roots, provider.clone()).unwrap();
            for (count, is_refused_unread) in [(0, false), (5, false), (6, true), (400, true)] {
                let others = vec![CertificateDer::from(&b"none"[..]); count];
                let stranger = made(|params| params.is_ca = IsCa::NoCa);
                let judged = [
                    servers.verify_server_cert(&stranger, &others, &name, &[], now).err(),
                    clients.verify_client_cert(&stranger, &others, now).err(),
                ];
                for error in judged {
                    let said = format!("{error:?}");
                    assert_eq!(said.contains("TooManyCertificates"), is_refused_unread, "{count}: {said}");
                    assert!(error.is_some(), "{count} are believed");
                }
            }
        }
    }

    #[test]
    fn one_that_says_what_it_is_for_is_for_that_alone() {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let of = |purpose| made(|params| params.extended_key_usages = vec![purpose]);
        let server = of(ServerAuth);
        check(&server, &server, NAME, ["good", "CaUsedAsEndEntity"]);
        let client = of(ClientAuth);
        check(&client, &client, NAME, ["CaUsedAsEndEntity", "good"]);
    }
}
