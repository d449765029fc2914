//! Loads certificates and keys in PEM form from files, and the system's roots: for upstreams and
//! for TLS listeners.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use trust::SystemError;

use crate::TlsError;

/// Reads a file, with a timeout.
///
/// # Errors
/// [`TlsError::File`].
pub fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    readfile::read_in_time(path, MOST_BYTES)
        .map_err(|error| TlsError::File { path: path.to_owned(), error: error.into() })
}

/// Parses the certificates in a file's content, at least one.
///
/// # Errors
/// [`TlsError::Certificate`].
pub fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::Certificate(path.to_owned()))?;
    if certificates.is_empty() { Err(TlsError::Certificate(path.to_owned())) } else { Ok(certificates) }
}

/// Parses a certificate chain to present to a peer, which accepts no handshake message above 64 KiB
/// (rustls; OpenSSL: 100).
///
/// # Errors
/// [`TlsError::Certificate`], [`TlsError::LongChain`].
pub fn chain(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = certificates(path, pem)?;
    let octets = chain.iter().map(|certificate| certificate.len()).sum();
    if octets > MOST_CHAIN_BYTES {
        return Err(TlsError::LongChain { path: path.to_owned(), octets });
    }
    Ok(chain)
}

/// Parses the private key in a file's content.
///
/// # Errors
/// [`TlsError::Key`].
pub fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| TlsError::Key(path.to_owned()))
}

/// Parses the root certificates in a file's content.
///
/// # Errors
/// [`TlsError::Certificate`].
pub fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|_| TlsError::Certificate(path.to_owned()))?;
    }
    Ok(roots)
}

/// Loads the system's root certificates, with a digest of them.
///
/// # Errors
/// [`TlsError::File`] if they cannot be read in time.
pub fn system_roots() -> Result<(RootCertStore, Vec<u8>), TlsError> {
    let mut system = trust::system_authorities()
        .map_err(|SystemError { path, source }| TlsError::File { path, error: source.into() })?;
    system.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
    let digest = digest(&system);
    let mut roots = RootCertStore::empty();
    // Roots that rustls does not accept are left out. Where none is left the first handshake fails
    // with UnknownIssuer.
    roots.add_parsable_certificates(system);
    Ok((roots, digest))
}

/// An eight-byte digest of a list of certificates, to notice changes. It need not be cryptographic:
/// the list is the system administrator's.
fn digest(certificates: &[CertificateDer<'_>]) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    for certificate in certificates {
        certificate.as_ref().hash(&mut hasher);
    }
    hasher.finish().to_be_bytes().into()
}

/// The most bytes of a chain in DER; a few thousand are usual.
const MOST_CHAIN_BYTES: usize = 60 << 10;
/// The most bytes of a file: a key, a chain, or the roots of a whole system, which are some 300 kB.
pub const MOST_BYTES: u64 = 16 << 20;
