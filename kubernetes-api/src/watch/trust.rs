//! Who is believed to be the API: whose certificate one of the authorities signed, by few others between them.
//!
//! Whoever has not shown a key yet may send certificates without end, and webpki tries every way through them that names leave
//! open, up to 200,000 steps each of which reads all of them: seconds, at each try to connect.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};

/// Certificates between the API's own and its authority, at most: several times what is usual.
const MOST_INTERMEDIATES: usize = 5;

/// Judges an API's certificate.
#[derive(Debug)]
pub(super) struct FewCertificates {
    /// `None` without an authority: nobody is believed.
    signed: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl FewCertificates {
    /// By these authorities.
    ///
    /// # Errors
    /// What rustls finds wrong with them.
    pub(super) fn new(roots: RootCertStore, provider: Arc<CryptoProvider>) -> Result<Arc<Self>, Error> {
        let algorithms = provider.signature_verification_algorithms;
        let signed = match roots.is_empty() {
            true => None,
            false => {
                let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
                Some(signed.map_err(|error| Error::General(error.to_string()))?)
            }
        };
        Ok(Arc::new(Self { signed, algorithms }))
    }
}

impl ServerCertVerifier for FewCertificates {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if intermediates.len() > MOST_INTERMEDIATES {
            return Err(CertificateError::Other(OtherError(Arc::new(TooManyCertificates))).into());
        }
        let signed = self.signed.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        signed.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
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

/// There are more than [`MOST_INTERMEDIATES`].
#[derive(Debug)]
struct TooManyCertificates;

impl fmt::Display for TooManyCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it comes with more than {MOST_INTERMEDIATES} others")
    }
}

impl std::error::Error for TooManyCertificates {}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    const NAME: &str = "api.example";

    /// Names alone lead from one certificate to the next.
    #[test]
    fn more_certificates_than_a_chain_has_are_refused_unread() {
        let made = |is_ca| {
            let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
            params.is_ca = is_ca;
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let mut roots = RootCertStore::empty();
        roots.add(made(IsCa::Ca(BasicConstraints::Unconstrained))).unwrap();
        let (stranger, name) = (made(IsCa::NoCa), ServerName::try_from(NAME).unwrap());
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        for roots in [roots, RootCertStore::empty()] {
            let api = FewCertificates::new(roots, Arc::new(crypto::ring::default_provider())).unwrap();
            for (count, is_refused_unread) in [(0, false), (5, false), (6, true), (400, true)] {
                let others = vec![CertificateDer::from(&b"none"[..]); count];
                let judged = api.verify_server_cert(&stranger, &others, &name, &[], now);
                let said = format!("{:?}", judged.expect_err("nobody signed it"));
                assert_eq!(said.contains("TooManyCertificates"), is_refused_unread, "{count}: {said}");
            }
        }
    }
}
