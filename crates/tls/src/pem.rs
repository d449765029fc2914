//! Certificates and keys in PEM form, from files and from the system: for upstreams here, and for whoever else speaks TLS.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::{SystemError, TlsError, system_authorities};

/// Reads a file, in time.
///
/// # Errors
/// [`TlsError::File`].
pub fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    files::read_in_time(path, MOST_BYTES)
        .map_err(|error| TlsError::File { path: path.to_owned(), error: error.into() })
}

/// The certificates in a file's content, at least one.
///
/// # Errors
/// [`TlsError::Certificate`].
pub fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::Certificate(path.to_owned()))?;
    if certificates.is_empty() { Err(TlsError::Certificate(path.to_owned())) } else { Ok(certificates) }
}

/// The certificates that are shown to the other side, which takes no handshake message above 64 KiB (rustls; OpenSSL: 100).
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

/// The private key in a file's content.
///
/// # Errors
/// [`TlsError::Key`].
pub fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| TlsError::Key(path.to_owned()))
}

/// The authorities in a file's content.
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

/// The authorities of the system, with octets that tell two such lists apart.
///
/// # Errors
/// [`TlsError::File`] where they cannot be read in time.
pub fn system_roots() -> Result<(RootCertStore, Vec<u8>), TlsError> {
    let mut system = system_authorities()
        .map_err(|SystemError { path, source }| TlsError::File { path, error: source.into() })?;
    system.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
    let digest = digest(&system);
    let mut roots = RootCertStore::empty();
    // A system's store may hold some that rustls does not take; the others serve. None at all shows as UnknownIssuer at the
    // first handshake.
    roots.add_parsable_certificates(system);
    Ok((roots, digest))
}

/// Eight octets that tell two lists of certificates apart. Nobody who could choose them needs to.
fn digest(certificates: &[CertificateDer<'_>]) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    for certificate in certificates {
        certificate.as_ref().hash(&mut hasher);
    }
    hasher.finish().to_be_bytes().into()
}

/// Of all its certificates; a few thousand octets are usual.
const MOST_CHAIN_BYTES: usize = 60 << 10;
/// A key, a chain, or the authorities of a whole system, which are some 300 kB.
pub const MOST_BYTES: u64 = 16 << 20;
