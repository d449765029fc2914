//! Keeps why a server's certificate is refused: of a handshake over QUIC hickory reports an alert alone.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use thiserror::Error;
use tls::ServerVerifier;

/// Why a server's certificate is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CertificateFault {
    /// It has other names.
    #[error("is not for the expected name")]
    Name,
    /// No configured authority has signed it.
    #[error("is of an unknown authority")]
    Authority,
    /// It was valid earlier.
    #[error("has expired")]
    Expired,
    /// It is valid later.
    #[error("is not valid yet")]
    NotYetValid,
    /// Another reason.
    #[error("cannot be accepted")]
    Other,
}

impl From<&Error> for CertificateFault {
    fn from(error: &Error) -> Self {
        let Error::InvalidCertificate(error) = error else { return Self::Other };
        match error {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Self::Name,
            // A bad signature: an authority with the same name has signed it.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::Authority,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            _ => Self::Other,
        }
    }
}

/// The fault of the last certificate that was refused.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastFault(Arc<Mutex<Option<CertificateFault>>>);

impl LastFault {
    /// Removes and returns it.
    pub(crate) fn take(&self) -> Option<CertificateFault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A verifier that keeps the fault of the certificate that it refuses.
#[derive(Debug)]
pub(crate) struct KeepsFault {
    pub(crate) verifier: Arc<ServerVerifier>,
    pub(crate) last: LastFault,
}

impl ServerCertVerifier for KeepsFault {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        *self.last.0.lock().unwrap_or_else(PoisonError::into_inner) =
            verified.as_ref().err().map(CertificateFault::from);
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
