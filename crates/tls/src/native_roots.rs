//! The authorities that the system trusts.

use std::path::PathBuf;
use std::time::Duration;

use files::ReadError;
use rustls::pki_types::CertificateDer;

/// Why the system's authorities are not known.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", .path.display())]
pub struct SystemError {
    /// Where they were looked for: what SSL_CERT_FILE or SSL_CERT_DIR names, or /etc/ssl/certs.
    pub path: PathBuf,
    /// What went wrong.
    pub source: ReadError,
}

/// The authorities of the system, or what the environment names in their place: SSL_CERT_FILE and SSL_CERT_DIR, as in OpenSSL.
///
/// # Errors
/// Where they cannot be read in time: their library opens whatever it finds there, as a pipe that nobody writes to.
pub fn system_authorities() -> Result<Vec<CertificateDer<'static>>, SystemError> {
    loaded(|| rustls_native_certs::load_native_certs().certs, files::PATIENCE)
}

fn loaded(
    load: impl FnOnce() -> Vec<CertificateDer<'static>> + Send + 'static,
    patience: Duration,
) -> Result<Vec<CertificateDer<'static>>, SystemError> {
    let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().find_map(std::env::var_os);
    let path = named.map_or_else(|| PathBuf::from("/etc/ssl/certs"), PathBuf::from);
    files::within(&path, patience, load).map_err(|source| SystemError { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_that_do_not_come_are_given_up() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let hangs = move || {
            // As a pipe that nobody writes to, until the test ends.
            let _ = held.recv();
            Vec::new()
        };
        let given_up = loaded(hangs, Duration::from_millis(1));
        assert!(matches!(given_up, Err(SystemError { source: ReadError::Late(_), .. })), "{given_up:?}");
        drop(release);
    }
}
