//! Validated address, credentials and TLS settings of the API.

use std::path::Path;
use std::sync::Arc;

use files::ShownPath;
use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::sanitize::sanitize;
use crate::settings::{ClientFiles, ShownText, WatchError};

/// Address, credentials and TLS settings of an API.
pub(super) struct Api {
    /// Name or address to connect to, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// `HOST[:PORT]` for requests and metrics.
    pub(super) authority: String,
    /// Prefix of all paths.
    pub(super) prefix: String,
    /// `None` for plain HTTP.
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    pub(super) credentials: Credentials,
}

/// Value of the Authorization header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// No header; a client certificate may identify us.
    None,
    /// A fixed value.
    Fixed(Box<str>),
    /// A token in a file, which is replaced before the token expires.
    TokenFile(ShownPath),
}

/// Text in PEM format, with the name of its file or field for errors.
pub(super) type NamedPem = (Box<str>, Vec<u8>);

/// TLS settings of the client.
#[derive(Default)]
pub(super) struct Pem {
    pub(super) authority: Option<NamedPem>,
    pub(super) client: Option<Client>,
    /// Name that the API's certificate must have; `None`: the host.
    pub(super) server_name: Option<Box<str>>,
}

pub(super) struct Client {
    pub(super) certificate: NamedPem,
    pub(super) key: NamedPem,
}

impl Api {
    /// Reads the environment of a pod, and its service account in the directory `account`.
    ///
    /// # Errors
    /// [`WatchError::Access`].
    pub(super) fn in_cluster(
        account: &Path,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, WatchError> {
        let set = |name: &str| {
            let found = variable(name).filter(|value| !value.is_empty());
            found
                .ok_or_else(|| access_error(name, "not set; outside of a pod use `endpoint` or `kubeconfig`"))
        };
        let (host, port) = (set("KUBERNETES_SERVICE_HOST")?, set("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let authority = account.join("ca.crt").into();
        let pem = Pem { authority: Some((name_of(&authority), file(&authority)?)), ..Pem::default() };
        Self::at(&format!("https://{host}:{port}"), pem, Credentials::TokenFile(account.join("token").into()))
    }

    /// Validates a URL and TLS settings.
    ///
    /// # Errors
    /// [`WatchError::Access`].
    pub(super) fn at(url: &str, pem: Pem, credentials: Credentials) -> Result<Self, WatchError> {
        Self::at_shown(&url.into(), pem, credentials)
    }

    /// As [`Self::at`]; errors show the URL as written in the Corefile.
    ///
    /// # Errors
    /// [`WatchError::Access`].
    pub(super) fn at_shown(url: &ShownText, pem: Pem, credentials: Credentials) -> Result<Self, WatchError> {
        let (url, shown) = (url.as_str(), printable_url(url.shown()));
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme, rest)) => (scheme, rest),
            // As in client-go.
            None if pem.authority.is_some() || pem.client.is_some() => ("https", url),
            None => ("http", url),
        };
        let default = match scheme {
            "https" => 443,
            "http" => 80,
            _ => return Err(access_error(&shown, "expected http:// or https://")),
        };
        let (authority, prefix) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let invalid = || access_error(&shown, "expected HOST or HOST:PORT");
        let parsed: hyper::http::uri::Authority = authority.parse().map_err(|_| invalid())?;
        let possible = prefix.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#@".contains(&byte));
        let odd_port = parsed.port_u16().is_none() && authority.len() > parsed.host().len();
        if parsed.host().is_empty() || authority.contains('@') || odd_port || !possible {
            return Err(invalid());
        }
        let host = parsed.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = if scheme == "https" { Some(pem.settings(&host)?) } else { None };
        Ok(Self {
            host,
            port: parsed.port_u16().unwrap_or(default),
            authority: authority.to_owned(),
            prefix: prefix.trim_end_matches('/').to_owned(),
            tls,
            credentials,
        })
    }
}

/// Returns a URL without user information, query and fragment, which may hold secrets: for errors,
/// the log and /status, which any client of the metrics port can read.
pub fn printable_url(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let rest = match (rest.rfind('@'), rest.find(['?', '#'])) {
        // A `?` before `@` may be part of a password or begin a query with `@`: both may be secret.
        (Some(at), Some(query)) if at > query => "",
        (at, query) => &rest[at.map_or(0, |at| at + 1)..query.unwrap_or(rest.len())],
    };
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

impl Credentials {
    /// Returns the value of the header; reads a token file each time, and blocks.
    ///
    /// # Errors
    /// [`WatchError::Access`].
    pub(super) fn header(&self) -> Result<Option<Box<str>>, WatchError> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(value) => Ok(Some(value.clone())),
            Self::TokenFile(path) => {
                let text = String::from_utf8(file(path)?).unwrap_or_default();
                let token = text.trim();
                let possible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
                let header = possible.then(|| format!("Bearer {token}").into());
                header.map(Some).ok_or_else(|| access_error(&name_of(path), "expected a token"))
            }
        }
    }
}

impl ClientFiles {
    pub(super) fn read(&self) -> Result<Pem, WatchError> {
        let read = |path: &ShownPath| Ok((name_of(path), file(path)?));
        Ok(Pem {
            authority: Some(read(&self.authority)?),
            client: Some(Client { certificate: read(&self.certificate)?, key: read(&self.key)? }),
            server_name: None,
        })
    }
}

impl Pem {
    fn settings(self, host: &str) -> Result<(Arc<ClientConfig>, ServerName<'static>), WatchError> {
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name.clone())
            .map_err(|_| access_error(&name, "not a valid TLS server name"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls_error = |error: rustls::Error| access_error("TLS", &error.to_string());
        let verifier =
            tls::ServerVerifier::new(Vec::new(), self.roots()?, provider.clone()).map_err(tls_error)?;
        // Not dangerous: without listed roots it is rustls's own verifier with a limit for the
        // chain.
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(tls_error)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match self.client {
            None => builder.with_no_client_auth(),
            Some(Client { certificate, key }) => {
                let chain = certificates(&certificate)?;
                let private = PrivateKeyDer::from_pem_slice(&key.1)
                    .map_err(|_| access_error(&key.0, "expected a private key in PEM format"))?;
                builder
                    .with_client_auth_cert(chain, private)
                    .map_err(|error| access_error(&certificate.0, &error.to_string()))?
            }
        };
        Ok((Arc::new(config), name))
    }

    fn roots(&self) -> Result<RootCertStore, WatchError> {
        let mut roots = RootCertStore::empty();
        match &self.authority {
            Some(authority) => {
                let (added, _) = roots.add_parsable_certificates(certificates(authority)?);
                if added == 0 {
                    return Err(access_error(&authority.0, "expected a CA certificate"));
                }
            }
            None => {
                let authorities = tls::native_roots().map_err(|error| {
                    access_error(&name_of(&error.path.clone().into()), &error.source.to_string())
                })?;
                roots.add_parsable_certificates(authorities);
            }
        }
        Ok(roots)
    }
}

fn certificates((name, pem): &NamedPem) -> Result<Vec<CertificateDer<'static>>, WatchError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.ok().filter(|read| !read.is_empty());
    read.ok_or_else(|| access_error(name, "expected certificates in PEM format"))
}

/// Reads a file, with a timeout.
pub(super) fn file(path: &ShownPath) -> Result<Vec<u8>, WatchError> {
    files::read_with_timeout(path, MAX_FILE_BYTES)
        .map_err(|error| access_error(&name_of(path), &error.to_string()))
}

pub(super) fn name_of(path: &ShownPath) -> Box<str> {
    path.display().to_string().into()
}

/// Returns [`WatchError::Access`] with sanitized texts.
pub(super) fn access_error(file: &str, cause: &str) -> WatchError {
    WatchError::Access { file: sanitize(file, MAX_PATH), cause: sanitize(cause, MAX_CAUSE) }
}

/// Maximum characters of a path in errors: Linux's PATH_MAX.
const MAX_PATH: usize = 4_096;
const MAX_CAUSE: usize = 300;
/// Maximum size of tokens, certificates and kubeconfigs, which have some kB.
const MAX_FILE_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_urls_are_not_printed() {
        for (url, printed) in [
            ("https://192.0.2.1:6443", "https://192.0.2.1:6443"),
            ("https://admin:s3cret@192.0.2.1/a", "https://192.0.2.1/a"),
            ("https://a:s3@cret@[::1]:1", "https://[::1]:1"),
            ("admin:s3cret@192.0.2.1", "192.0.2.1"),
            ("https://192.0.2.1:1/?token=s3cret", "https://192.0.2.1:1/"),
            ("ftp://192.0.2.1/a#s3cret", "ftp://192.0.2.1/a"),
            ("https://a:s3?cret@192.0.2.1", "https://"),
            ("https://192.0.2.1/?user=a@s3cret", "https://"),
        ] {
            assert_eq!(printable_url(url), printed);
            let read = Api::at(url, Pem::default(), Credentials::None);
            let refused = read.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(!refused.contains("s3") && !refused.contains("cret"), "{url}: {refused}");
        }
    }

    /// Result of a handshake with an API that sends `others` certificates beside its own.
    fn handshake(others: usize) -> Result<(), rustls::Error> {
        let made = rcgen::generate_simple_self_signed(["api".to_owned()]).unwrap();
        let (own, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let chain = vec![own; others + 1];
        let server = server.unwrap().with_no_client_auth().with_single_cert(chain, key.try_into().unwrap());
        let mut server = rustls::ServerConnection::new(Arc::new(server.unwrap())).unwrap();
        let authority = Some(("ca".to_owned().into(), made.cert.pem().into_bytes()));
        let (config, name) = Pem { authority, client: None, server_name: None }.settings("api").unwrap();
        let mut client = rustls::ClientConnection::new(config, name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &*bytes).unwrap();
        server.process_new_packets()?;
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut unread = &*bytes;
        while !unread.is_empty() {
            client.read_tls(&mut unread).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn refuses_long_chains() {
        for (others, is_refused) in [(0, false), (5, false), (6, true), (100, true)] {
            let error = handshake(others).err();
            let text = format!("{error:?}");
            assert_eq!(text.contains("TooManyCertificates"), is_refused, "{others}: {text}");
        }
    }

    #[test]
    fn parses_urls() {
        for (url, host, port, authority, prefix) in [
            ("http://localhost:8080", "localhost", 8080, "localhost:8080", ""),
            (
                "https://[fd00::1]:6443/k8s/clusters/c-1/",
                "fd00::1",
                6443,
                "[fd00::1]:6443",
                "/k8s/clusters/c-1",
            ),
            ("10.0.0.1:6443", "10.0.0.1", 6443, "10.0.0.1:6443", ""),
            ("https://api.example.com/", "api.example.com", 443, "api.example.com", ""),
            ("http://api", "api", 80, "api", ""),
        ] {
            let api = Api::at(url, Pem::default(), Credentials::None).unwrap();
            let found = (&*api.host, api.port, &*api.authority, &*api.prefix, api.tls.is_some());
            assert_eq!(found, (host, port, authority, prefix, url.starts_with("https")), "{url}");
        }
        for url in
            ["", "https://", "ftp://api", "http://user@api", "http://a b", "http://api/?x", "http://api:x"]
        {
            assert!(Api::at(url, Pem::default(), Credentials::None).is_err(), "{url}");
        }
    }

    #[test]
    fn names_missing_parts_of_a_pod() {
        let account = tempfile::tempdir().unwrap();
        let found = |host: &'static str| {
            let variable =
                move |name: &str| Some(if name.ends_with("HOST") { host } else { "443" }.to_owned());
            Api::in_cluster(account.path(), variable)
                .map(|api| api.authority)
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            found("").unwrap_err(),
            "KUBERNETES_SERVICE_HOST: not set; outside of a pod use `endpoint` or `kubeconfig`"
        );
        let authority = ShownPath::from(account.path().join("ca.crt"));
        assert!(found("10.96.0.1").unwrap_err().starts_with(&*name_of(&authority)));
        std::fs::write(&authority, "none").unwrap();
        assert!(found("10.96.0.1").unwrap_err().ends_with("expected certificates in PEM format"));
        let pem = rcgen::generate_simple_self_signed(["api".to_owned()]).unwrap().cert.pem();
        std::fs::write(&authority, pem).unwrap();
        assert_eq!(found("10.96.0.1").unwrap(), "10.96.0.1:443");
        assert_eq!(found("fd00::1").unwrap(), "[fd00::1]:443");
        let token = ShownPath::from(account.path().join("token"));
        let header = || Credentials::TokenFile(token.clone()).header();
        assert!(header().is_err());
        for (text, value) in
            [("one\n", Some("Bearer one")), ("two", Some("Bearer two")), (" \n", None), ("a b", None)]
        {
            std::fs::write(&token, text).unwrap();
            assert_eq!(header().ok().flatten().as_deref(), value, "{text}");
        }
    }
}
