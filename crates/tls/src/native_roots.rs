//! The root certificates of the system.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::Duration;

use files::ReadError;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use crate::TlsError;

/// Why the system's root certificates cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", .path.display())]
pub struct NativeRootsError {
    /// SSL_CERT_FILE or SSL_CERT_DIR if one is set, else /etc/ssl/certs.
    pub path: PathBuf,
    /// The cause.
    pub source: ReadError,
}

/// Returns the root certificates of the system, or those of SSL_CERT_FILE and SSL_CERT_DIR, as in
/// OpenSSL.
///
/// # Errors
/// If the read takes longer than [`files::READ_TIMEOUT`]: rustls-native-certs opens pipes, too, and
/// blocks.
pub fn native_roots() -> Result<Vec<CertificateDer<'static>>, NativeRootsError> {
    load(|| rustls_native_certs::load_native_certs().certs, files::READ_TIMEOUT)
}

fn load(
    read: impl FnOnce() -> Vec<CertificateDer<'static>> + Send + 'static,
    timeout: Duration,
) -> Result<Vec<CertificateDer<'static>>, NativeRootsError> {
    let variable = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().find_map(std::env::var_os);
    let path = variable.map_or_else(|| PathBuf::from("/etc/ssl/certs"), PathBuf::from);
    files::with_timeout(&path, timeout, read).map_err(|source| NativeRootsError { path, source })
}

/// Returns the system's root certificates, and a digest of them that detects changes.
///
/// # Errors
/// [`TlsError::File`] if they cannot be read in time.
pub fn native_root_store() -> Result<(RootCertStore, Vec<u8>), TlsError> {
    let mut certificates = native_roots().map_err(|NativeRootsError { path, source }| TlsError::File {
        path: path.into(),
        error: source.into(),
    })?;
    certificates.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
    let digest = digest(&certificates);
    let mut roots = RootCertStore::empty();
    // The system's store may hold some that rustls does not accept; they are skipped. An empty
    // store shows as UnknownIssuer in the first handshake.
    roots.add_parsable_certificates(certificates);
    Ok((roots, digest))
}

/// Returns 8 bytes that differ for different lists. Not cryptographic: no attacker chooses the
/// system's roots.
fn digest(certificates: &[CertificateDer<'_>]) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    for certificate in certificates {
        certificate.as_ref().hash(&mut hasher);
    }
    hasher.finish().to_be_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_a_blocked_read() {
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let read = move || {
            // Blocks like a pipe without a writer until the test ends.
            let _ = blocked.recv();
            Vec::new()
        };
        let result = load(read, Duration::from_millis(1));
        assert!(matches!(result, Err(NativeRootsError { source: ReadError::TimedOut(_), .. })), "{result:?}");
        drop(release);
    }
}
