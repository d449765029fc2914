//! Why TLS settings cannot be used.

use std::io;

use files::ShownPath;

/// Why TLS settings cannot be used; the configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: ShownPath,
        /// The cause.
        error: io::Error,
    },
    /// A file cannot be written.
    #[error("{}: cannot be written: {error}", path.display())]
    Unwritable {
        /// The file.
        path: ShownPath,
        /// The cause.
        error: io::Error,
    },
    /// A file has no certificate, or an invalid one.
    #[error("{}: no valid certificate", .0.display())]
    Certificate(ShownPath),
    /// A chain of certificates that is too long for peers.
    #[error("{}: {bytes} bytes of certificates, more than peers accept (at most 60 KiB)", path.display())]
    LongChain {
        /// The file.
        path: ShownPath,
        /// Size in DER.
        bytes: usize,
    },
    /// A file has no private key, or an invalid one.
    #[error("{}: no valid private key", .0.display())]
    Key(ShownPath),
    /// `tls_servername` is neither a name nor an address.
    #[error("{0:?} is not a server name")]
    ServerName(String),
    /// The key does not match the certificate.
    #[error("{}: does not match the certificate in {}", key.display(), certificate.display())]
    KeyMismatch {
        /// The file of the certificate.
        certificate: ShownPath,
        /// The file of the key.
        key: ShownPath,
    },
    /// Another error of rustls.
    #[error(transparent)]
    Settings(#[from] rustls::Error),
}

impl TlsError {
    /// Converts an error of rustls about a certificate and its key, and adds the file concerned.
    pub fn from_pair(certificate: &ShownPath, key: &ShownPath, error: rustls::Error) -> Self {
        match error {
            rustls::Error::InconsistentKeys(_) => {
                Self::KeyMismatch { certificate: certificate.clone(), key: key.clone() }
            }
            rustls::Error::InvalidCertificate(_) => Self::Certificate(certificate.clone()),
            rustls::Error::General(_) => Self::Key(key.clone()),
            error => Self::Settings(error),
        }
    }

    /// The file that causes the error.
    pub fn file(&self) -> Option<&ShownPath> {
        match self {
            Self::File { path, .. }
            | Self::Unwritable { path, .. }
            | Self::Certificate(path)
            | Self::LongChain { path, .. }
            | Self::Key(path)
            | Self::KeyMismatch { key: path, .. } => Some(path),
            Self::ServerName(_) | Self::Settings(_) => None,
        }
    }

    /// What the operator can do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::File { .. } => "name a PEM file that this user can read",
            Self::Unwritable { .. } => "name a file that this user can write, in an existing directory",
            Self::Certificate(_) => "name a PEM file with certificates",
            Self::LongChain { .. } => "name a file with the server's certificate and its intermediates only",
            Self::Key(_) => "name a PEM file with one private key",
            Self::KeyMismatch { .. } => "name a certificate and its own key",
            Self::ServerName(_) => "expected a name such as dns.example.org, or an IP address",
            Self::Settings(_) => "create a new certificate and key",
        }
    }
}
