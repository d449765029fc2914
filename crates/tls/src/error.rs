//! Why TLS settings cannot be used.

use std::io;
use std::path::{Path, PathBuf};

/// Why TLS settings cannot be used. The configuration is refused with it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file cannot be written.
    #[error("{}: cannot be written: {error}", path.display())]
    Unwritable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file has no certificate in it, or not a valid one.
    #[error("{}: no valid certificate", .0.display())]
    Certificate(PathBuf),
    /// A chain of certificates that no peer takes.
    #[error("{}: {octets} octets of certificates, more than peers take (at most 60 KiB)", path.display())]
    LongChain {
        /// Its file.
        path: PathBuf,
        /// In DER.
        octets: usize,
    },
    /// A file has no private key in it, or not a valid one.
    #[error("{}: no valid private key", .0.display())]
    Key(PathBuf),
    /// `tls_servername` is neither a name nor an address.
    #[error("{0:?} is no server name")]
    ServerName(String),
    /// A key that is not the certificate's.
    #[error("{}: not the key of the certificate in {}", key.display(), certificate.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's.
        key: PathBuf,
    },
    /// What else rustls does not take.
    #[error(transparent)]
    Settings(#[from] rustls::Error),
}

impl TlsError {
    /// What rustls says of a certificate and its key, with the file that it speaks of.
    pub fn of_pair(certificate: &Path, key: &Path, error: rustls::Error) -> Self {
        match error {
            rustls::Error::InconsistentKeys(_) => {
                Self::Pair { certificate: certificate.to_owned(), key: key.to_owned() }
            }
            rustls::Error::InvalidCertificate(_) => Self::Certificate(certificate.to_owned()),
            rustls::Error::General(_) => Self::Key(key.to_owned()),
            error => Self::Settings(error),
        }
    }

    /// The file that is to be mended.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. }
            | Self::Unwritable { path, .. }
            | Self::Certificate(path)
            | Self::LongChain { path, .. }
            | Self::Key(path)
            | Self::Pair { key: path, .. } => Some(path),
            Self::ServerName(_) | Self::Settings(_) => None,
        }
    }

    /// What mends it.
    pub fn mend(&self) -> &'static str {
        match self {
            Self::File { .. } => "name a file in PEM form that this user can read",
            Self::Unwritable { .. } => "name a file that this user can write, in a directory that is there",
            Self::Certificate(_) => "name a file with certificates in PEM form",
            Self::LongChain { .. } => "name the server's own and those between it and its authority alone",
            Self::Key(_) => "name a file with one private key in PEM form",
            Self::Pair { .. } => "name the key and the certificate that were made for each other",
            Self::ServerName(_) => "expected a name such as dns.example.org, or an IP address",
            Self::Settings(_) => "make certificate and key anew",
        }
    }
}
