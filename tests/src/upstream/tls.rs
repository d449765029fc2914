//! Certificates for TLS upstreams, for the server's own TLS endpoints, and for their clients.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::place::publish;
use crate::tcp::TlsClient;

/// A test's certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority.
    ///
    /// # Panics
    /// Only when the random source fails.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names, none bad");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("keys can be made");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate can be signed") }
    }

    /// Writes its certificate into `directory` and returns the path, for `tls CA`.
    ///
    /// # Panics
    /// When the directory cannot be written.
    pub fn write(&self, directory: &Path) -> PathBuf {
        let path = directory.join("ca.pem");
        std::fs::write(&path, self.issuer.pem()).expect("the test's directory is writable");
        path
    }

    /// Writes a certificate for `host` (a name or an address), and its key, atomically: `cert.pem`
    /// and `key.pem`.
    ///
    /// # Panics
    /// When the directory cannot be written.
    pub fn certify(&self, directory: &Path, host: &str) {
        let (certificate, key) = self.signed(host);
        publish(&directory.join("cert.pem"), certificate.pem());
        publish(&directory.join("key.pem"), key.serialize_pem());
    }

    /// A client that trusts only this authority and expects a server named `host`. It presents a
    /// certificate of `shows`.
    ///
    /// # Panics
    /// When `host` is not a valid name.
    pub fn client(&self, host: &str, shows: Option<&Self>) -> TlsClient {
        self.client_of(host, shows, rustls::ALL_VERSIONS)
    }

    /// Like [`Self::client`], limited to these versions of TLS. It resumes sessions.
    ///
    /// # Panics
    /// When `host` is not a valid name.
    pub fn client_of(
        &self,
        host: &str,
        shows: Option<&Self>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> TlsClient {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("its own certificate is good");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .expect("ring knows them")
            .with_root_certificates(roots);
        let config = match shows.map(|shows| shows.signed("client.example")) {
            Some((certificate, key)) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
                let config = builder.with_client_auth_cert(vec![certificate.der().clone()], key);
                config.expect("key and certificate belong together")
            }
            None => builder.with_no_client_auth(),
        };
        let name = ServerName::try_from(host.to_owned()).expect("a test's host name is a name");
        TlsClient { config: Arc::new(config), name }
    }

    /// A certificate for `host`, with its key, for a server that chooses it itself.
    pub(crate) fn certified(&self, host: &str) -> CertifiedKey {
        let (certificate, key) = self.signed(host);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = rustls::crypto::ring::sign::any_supported_type(&key).expect("ring knows its own keys");
        CertifiedKey::new(vec![certificate.der().clone()], key)
    }

    fn signed(&self, host: &str) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().expect("keys can be made");
        let params = CertificateParams::new(vec![host.to_owned()]).expect("a test's host name is a name");
        (params.signed_by(&key, &self.issuer).expect("a certificate can be signed"), key)
    }

    /// The configuration of a server for `host` (a name or an address); if `expired`, its
    /// certificate expired in 2020.
    pub(super) fn server(&self, host: &str, expired: bool) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("keys can be made");
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("a test's host name is a name");
        if expired {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate can be signed");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring knows the default versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("key and certificate belong together");
        Arc::new(config)
    }
}

impl Authority {
    /// The configuration of a server for `host` (a name or an address) that requires clients to
    /// present a certificate of this authority.
    pub(crate) fn server_of_its_clients(&self, host: &str) -> Arc<ServerConfig> {
        let (certificate, key) = self.signed(host);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("its own certificate is good");
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring knows the default versions")
            .with_client_cert_verifier(verifier.build().expect("there is a root"))
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("key and certificate belong together");
        Arc::new(config)
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}
