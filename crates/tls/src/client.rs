//! Turns `tls` and `tls_servername` into settings for connections to servers. The only crypto provider
//! is ring.

use std::net::IpAddr;
use std::sync::Arc;

use files::ShownPath;
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::ServerName;

use crate::{ServerVerifier, TlsError, native_root_store, pem};

/// `tls [CERT KEY] [CA]` and `tls_servername NAME`, or the name after an upstream's `%`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTlsSpec {
    /// The client certificate and its key, for upstreams that require one.
    pub client: Option<(ShownPath, ShownPath)>,
    /// The file of root certificates; `None`: the system's.
    pub authority: Option<ShownPath>,
    /// The name that certificates must have and that is sent as SNI; `None`: they must have the
    /// upstream's address.
    pub server_name: Option<String>,
}

/// Loaded TLS settings. Two of them are equal if their names and the contents of their files are
/// equal.
#[derive(Clone)]
pub struct TlsSettings {
    config: Arc<ClientConfig>,
    verifier: Arc<ServerVerifier>,
    server_name: Option<ServerName<'static>>,
    /// The contents of the files: certificate, key, roots; a digest of the system's roots where no
    /// file is named, so that a reload notices a change.
    files: Arc<[Vec<u8>; 3]>,
}

impl TlsSettings {
    /// Loads the files.
    ///
    /// # Errors
    /// [`TlsError`], with the file.
    pub fn load(spec: &UpstreamTlsSpec) -> Result<Self, TlsError> {
        let mut files = [Vec::new(), Vec::new(), Vec::new()];
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let verifier = match &spec.authority {
            Some(path) => {
                files[2] = pem::read(path)?;
                let (named, roots) = (pem::certificates(path, &files[2])?, pem::roots(path, &files[2])?);
                ServerVerifier::new(named, roots, provider)?
            }
            None => {
                let (roots, digest) = native_root_store()?;
                files[2] = digest;
                ServerVerifier::new(Vec::new(), roots, provider)?
            }
        };
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier.clone());
        let config = match &spec.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                files[0] = pem::read(certificate)?;
                files[1] = pem::read(key)?;
                let chain = pem::chain(certificate, &files[0])?;
                let private = pem::private_key(key, &files[1])?;
                let built = builder.with_client_auth_cert(chain, private);
                built.map_err(|error| TlsError::from_pair(certificate, key, error))?
            }
        };
        let settings = Self { config: Arc::new(config), verifier, server_name: None, files: Arc::new(files) };
        match &spec.server_name {
            Some(name) => settings.named(name),
            None => Ok(settings),
        }
    }

    /// Returns the same settings, sharing sessions, for an upstream with another name.
    ///
    /// # Errors
    /// [`TlsError::ServerName`].
    pub fn named(&self, name: &str) -> Result<Self, TlsError> {
        let bare = name.strip_suffix('.').unwrap_or(name);
        let server_name =
            ServerName::try_from(bare.to_owned()).map_err(|_| TlsError::ServerName(name.to_owned()))?;
        Ok(Self { server_name: Some(server_name), ..self.clone() })
    }

    /// Returns the settings of a connection.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    /// Returns the settings of a connection whose server's certificate `verified` verifies in place of
    /// the verifier that it receives.
    pub fn config_with<V: ServerCertVerifier + 'static>(
        &self,
        verified: impl FnOnce(Arc<ServerVerifier>) -> V,
    ) -> ClientConfig {
        let mut config = ClientConfig::clone(&self.config);
        config.dangerous().set_certificate_verifier(Arc::new(verified(self.verifier.clone())));
        config
    }

    /// Returns the name that the certificate of a server at `address` must have.
    pub fn server_name_for(&self, address: IpAddr) -> ServerName<'static> {
        self.server_name.clone().unwrap_or_else(|| ServerName::from(address))
    }
}

impl PartialEq for TlsSettings {
    fn eq(&self, other: &Self) -> bool {
        self.server_name == other.server_name && self.files == other.files
    }
}

impl Eq for TlsSettings {}

/// Prints the name only: the key must not be printed.
impl std::fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSettings").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}
