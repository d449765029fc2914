//! `client_auth`: which certificates clients must send, and how they are verified.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use tls::{ClientVerifier, TlsError};

/// Requirement for clients' certificates: the values of Go's `tls.ClientAuthType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate.
    NoCert,
    /// A certificate, optional and not verified.
    Request,
    /// A certificate, required and not verified.
    Require,
    /// A certificate, optional and verified.
    VerifyIfGiven,
    /// A certificate, required and verified.
    RequireAndVerify,
}

impl ClientAuth {
    /// The values of `client_auth`, for errors.
    pub(super) const EXPECTED: &str = "nocert, request, require, verify_if_given or require_and_verify";

    pub(super) fn read(word: &str) -> Option<Self> {
        Some(match word {
            "nocert" => Self::NoCert,
            "request" => Self::Request,
            "require" => Self::Require,
            "verify_if_given" => Self::VerifyIfGiven,
            "require_and_verify" => Self::RequireAndVerify,
            _ => return None,
        })
    }

    /// Whether certificates are verified.
    pub(super) fn verifies(self) -> bool {
        matches!(self, Self::VerifyIfGiven | Self::RequireAndVerify)
    }

    /// The verifier of clients' certificates, if they are requested. `roots` are the authorities
    /// sent to clients in any case; those of them that a file names are `named`.
    pub(super) fn verifier(
        self,
        roots: Option<Arc<RootCertStore>>,
        named: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        let any = |required| -> Arc<dyn ClientCertVerifier> {
            let subjects = roots.as_ref().map(|roots| roots.subjects()).unwrap_or_default();
            Arc::new(Anybody { required, subjects, provider: provider.clone() })
        };
        Ok(Some(match self {
            Self::NoCert => return Ok(None),
            Self::Request => any(false),
            Self::Require => any(true),
            Self::VerifyIfGiven | Self::RequireAndVerify => {
                let roots = roots.clone().unwrap_or_else(|| Arc::new(RootCertStore::empty()));
                let builder = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
                let builder = match self {
                    Self::VerifyIfGiven => builder.allow_unauthenticated(),
                    _ => builder,
                };
                let signed = builder.build().map_err(|error| Error::General(error.to_string()))?;
                ClientVerifier::new(signed, named)
            }
        }))
    }
}

/// Accepts any certificate if the client has its key.
#[derive(Debug)]
struct Anybody {
    required: bool,
    subjects: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for Anybody {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
