//! What `tls` and `tls_servername` say, turned into settings for connections. ring is the one provider.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::TlsError;

/// `tls [CERT KEY] [CA]` and `tls_servername NAME`, or the name behind `%` of an upstream.
#[derive(Clone, Debug, Default)]
pub struct TlsSpec {
    /// The client's certificate and key, where the upstream wants one.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The certificates that upstreams are checked against; `None`: those of the system.
    pub authority: Option<PathBuf>,
    /// The name that upstreams must prove and that is sent as SNI; `None`: their address must be in the certificate.
    pub server_name: Option<String>,
}

/// Settings ready for use. Two are equal when their names and the contents of their files are.
#[derive(Clone)]
pub struct TlsSettings {
    config: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
    /// What the files held: certificate, key, authority; a digest of the system's authorities where none is named, so
    /// that a reload sees them change.
    files: Arc<[Vec<u8>; 3]>,
}

impl TlsSettings {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`], with the file.
    pub fn load(spec: &TlsSpec) -> Result<Self, TlsError> {
        let mut files = [Vec::new(), Vec::new(), Vec::new()];
        let mut roots = RootCertStore::empty();
        match &spec.authority {
            Some(path) => {
                files[2] = read(path)?;
                for certificate in certificates(path, &files[2])? {
                    roots.add(certificate).map_err(|_| TlsError::Certificate(path.clone()))?;
                }
            }
            None => {
                // A system's store may hold some that rustls does not take; the others serve. None at all shows as
                // UnknownIssuer at the first handshake.
                let mut system = system_certificates()?;
                system.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
                files[2] = digest(&system);
                roots.add_parsable_certificates(system);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match &spec.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                files[0] = read(certificate)?;
                files[1] = read(key)?;
                let chain = certificates(certificate, &files[0])?;
                let private =
                    PrivateKeyDer::from_pem_slice(&files[1]).map_err(|_| TlsError::Key(key.clone()))?;
                builder.with_client_auth_cert(chain, private)?
            }
        };
        let settings = Self { config: Arc::new(config), server_name: None, files: Arc::new(files) };
        match &spec.server_name {
            Some(name) => settings.named(name),
            None => Ok(settings),
        }
    }

    /// The same settings, sessions included, for an upstream of another name.
    ///
    /// # Errors
    /// [`TlsError::ServerName`].
    pub fn named(&self, name: &str) -> Result<Self, TlsError> {
        let bare = name.strip_suffix('.').unwrap_or(name);
        let server_name =
            ServerName::try_from(bare.to_owned()).map_err(|_| TlsError::ServerName(name.to_owned()))?;
        Ok(Self { server_name: Some(server_name), ..self.clone() })
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    /// The name that an upstream at `address` must prove.
    pub(crate) fn server_name_for(&self, address: IpAddr) -> ServerName<'static> {
        self.server_name.clone().unwrap_or_else(|| ServerName::from(address))
    }
}

impl PartialEq for TlsSettings {
    fn eq(&self, other: &Self) -> bool {
        self.server_name == other.server_name && self.files == other.files
    }
}

impl Eq for TlsSettings {}

/// Without the key.
impl std::fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSettings").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// Eight octets that tell two lists of certificates apart. Nobody who could choose them needs to.
fn digest(certificates: &[CertificateDer<'_>]) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    for certificate in certificates {
        certificate.as_ref().hash(&mut hasher);
    }
    hasher.finish().to_be_bytes().into()
}

/// Those of the system, or what the environment names in their place. Their library opens whatever it finds there.
fn system_certificates() -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().find_map(std::env::var_os);
    let path = named.map_or_else(|| PathBuf::from("/etc/ssl/certs"), PathBuf::from);
    readfile::within(&path, readfile::PATIENCE, || rustls_native_certs::load_native_certs().certs)
        .map_err(|error| TlsError::File { path, error: error.into() })
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    readfile::read_in_time(path, MAX_BYTES)
        .map_err(|error| TlsError::File { path: path.to_owned(), error: error.into() })
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::Certificate(path.to_owned()))?;
    if certificates.is_empty() { Err(TlsError::Certificate(path.to_owned())) } else { Ok(certificates) }
}

/// A key, a chain, or the authorities of a whole system, which are some 300 kB.
const MAX_BYTES: u64 = 16 << 20;
