//! Certificates and keys from files in PEM format, for both sides of a connection.

use files::ShownPath;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::TlsError;

/// Reads a file, limited to [`files::READ_TIMEOUT`] and [`MAX_BYTES`].
///
/// # Errors
/// [`TlsError::File`].
pub fn read(path: &ShownPath) -> Result<Vec<u8>, TlsError> {
    files::read_with_timeout(path, MAX_BYTES)
        .map_err(|error| TlsError::File { path: path.clone(), error: error.into() })
}

/// Returns the certificates in a file's content, at least one.
///
/// # Errors
/// [`TlsError::Certificate`].
pub fn certificates(path: &ShownPath, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::Certificate(path.clone()))?;
    if certificates.is_empty() { Err(TlsError::Certificate(path.clone())) } else { Ok(certificates) }
}

/// Returns the chain that is sent to the peer, which accepts handshake messages up to 64 KiB
/// (rustls; OpenSSL: 100).
///
/// # Errors
/// [`TlsError::Certificate`], [`TlsError::LongChain`].
pub fn chain(path: &ShownPath, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = certificates(path, pem)?;
    let bytes = chain.iter().map(|certificate| certificate.len()).sum();
    if bytes > MAX_CHAIN_BYTES {
        return Err(TlsError::LongChain { path: path.clone(), bytes });
    }
    Ok(chain)
}

/// Returns the private key in a file's content.
///
/// # Errors
/// [`TlsError::Key`].
pub fn private_key(path: &ShownPath, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| TlsError::Key(path.clone()))
}

/// Returns the root certificates in a file's content.
///
/// # Errors
/// [`TlsError::Certificate`].
pub fn roots(path: &ShownPath, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|_| TlsError::Certificate(path.clone()))?;
    }
    Ok(roots)
}

/// Maximum size of a chain in DER; a few thousand bytes are usual.
const MAX_CHAIN_BYTES: usize = 60 << 10;
/// Maximum size of a PEM file. The roots of a whole system take some 300 kB.
pub const MAX_BYTES: u64 = 16 << 20;
