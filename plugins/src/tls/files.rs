//! The files of `tls`, read when a configuration is built and again when they change: open
//! connections keep their certificate, new ones get the current one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use files::{FileRead, ReadError, ShownPath};
use rustls::server::NoServerSessionStorage;
use rustls::{RootCertStore, ServerConfig};
use tls::{TlsError, native_root_store, pem};

use super::keylog::{self, KeyLogFile};
use super::{PLUGIN, Settings};
use logging::Logger;
use plugin::reload_state::Persistent;

/// TLS state of one server block's endpoints.
pub struct ServerTls {
    settings: Settings,
    keylog: Option<Arc<KeyLogFile>>,
    current: ArcSwap<Loaded>,
}

/// Use of the file of `keylog`.
enum Secrets {
    /// Opened for writing.
    Written,
    /// Checked without creating it.
    Checked,
    /// Already open.
    Kept,
}

struct Loaded {
    files: Files,
    roots: Option<Arc<RootCertStore>>,
    handshakes: Handshakes,
}

/// Configurations of a handshake, by the protocols that the client offers with ALPN (RFC 7301).
#[derive(Debug, Clone)]
pub struct Handshakes {
    /// Selects `dot`.
    dot: Arc<ServerConfig>,
    /// Selects no protocol: clients that offer only others are served, too, as in CoreDNS.
    any: Arc<ServerConfig>,
    /// Selects `h2` or `http/1.1`.
    https: Arc<ServerConfig>,
    /// Selects `doq`. Without 0-RTT, as every configuration here: its data could be replayed.
    doq: Arc<ServerConfig>,
}

impl Handshakes {
    fn new(any: ServerConfig) -> Self {
        let mut dot = any.clone();
        dot.alpn_protocols = vec![DOT.to_vec()];
        let mut https = any.clone();
        https.alpn_protocols = HTTPS.map(<[u8]>::to_vec).into();
        let mut doq = any.clone();
        doq.alpn_protocols = vec![DOQ.to_vec()];
        Self { dot: Arc::new(dot), any: Arc::new(any), https: Arc::new(https), doq: Arc::new(doq) }
    }

    /// Returns the configuration for a client that offers these protocols; none without ALPN.
    pub fn of<'p>(&self, mut offered: impl Iterator<Item = &'p [u8]>) -> &Arc<ServerConfig> {
        if offered.any(|protocol| protocol == DOT) { &self.dot } else { &self.any }
    }

    /// Returns the configuration for DNS over QUIC.
    pub fn doq(&self) -> Arc<ServerConfig> {
        self.doq.clone()
    }

    /// Returns the configuration for DNS over HTTPS. Clients that offer only other protocols are
    /// refused (RFC 7301, section 3.2), clients without ALPN speak HTTP/1.1.
    pub fn https(&self) -> Arc<ServerConfig> {
        self.https.clone()
    }
}

/// Contents of the files: certificate, key, authority. Without a file for the authority, a digest
/// of the system's.
type Files = [Vec<u8>; 3];

impl ServerTls {
    fn load(settings: &Settings, secrets: Secrets) -> Result<Self, TlsError> {
        let mut files = [pem::read(&settings.certificate)?, pem::read(&settings.key)?, Vec::new()];
        let mut roots = None;
        if let Some(path) = &settings.authority {
            files[2] = pem::read(path)?;
        } else if settings.client_auth.verifies() {
            let (system, digest) = native_root_store()?;
            (files[2], roots) = (digest, Some(Arc::new(system)));
        }
        let unwritable = |path: &ShownPath, error| TlsError::Unwritable { path: path.clone(), error };
        let keylog = match (&settings.keylog, secrets) {
            (Some(path), Secrets::Written) => {
                let opened = KeyLogFile::open(path).map_err(|error| unwritable(path, error))?;
                Some(Arc::new(opened))
            }
            (Some(path), Secrets::Checked) => {
                keylog::check(path).map_err(|error| unwritable(path, error))?;
                None
            }
            _ => None,
        };
        let loaded = Loaded::new(settings, files, roots, keylog.as_ref())?;
        Ok(Self { settings: settings.clone(), keylog, current: ArcSwap::from_pointee(loaded) })
    }

    /// Returns the configurations for a new connection.
    pub fn handshakes(&self) -> Handshakes {
        self.current.load().handshakes.clone()
    }

    /// Returns why two blocks cannot share a listener; `None` if they can.
    pub fn differs_from(&self, other: &Self) -> Option<&'static str> {
        let (one, two) = (self.current.load(), other.current.load());
        if self.settings.client_auth != other.settings.client_auth {
            Some("`client_auth` differs")
        } else if one.files[2] != two.files[2] {
            Some("the authorities differ")
        } else if one.files[..2] != two.files[..2] {
            Some("the certificates differ")
        } else if self.settings.keylog != other.settings.keylog {
            Some("`keylog` differs")
        } else {
            None
        }
    }
}

impl Loaded {
    fn new(
        settings: &Settings,
        files: Files,
        system: Option<Arc<RootCertStore>>,
        keylog: Option<&Arc<KeyLogFile>>,
    ) -> Result<Self, TlsError> {
        let (roots, named) = match &settings.authority {
            Some(path) => (Some(Arc::new(pem::roots(path, &files[2])?)), pem::certificates(path, &files[2])?),
            None => (system, Vec::new()),
        };
        let chain = pem::chain(&settings.certificate, &files[0])?;
        let key = pem::private_key(&settings.key, &files[1])?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = settings.client_auth.verifier(roots.clone(), named, &provider)?;
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let built = builder.with_single_cert(chain, key);
        let mut config =
            built.map_err(|error| TlsError::from_pair(&settings.certificate, &settings.key, error))?;
        // Sessions are stored by clients (RFC 5077), encrypted with a key that ends with these
        // files.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        // A resumed session does not verify the certificate again, and each resumption brings
        // another ticket: verified clients get none, so that no client connects after its
        // certificate has expired.
        if !settings.client_auth.verifies() {
            config.ticketer = rustls::crypto::ring::Ticketer::new()?;
            config.send_tls13_tickets = 1;
        }
        if let Some(keylog) = keylog {
            config.key_log = keylog.clone();
        }
        Ok(Self { files, roots, handshakes: Handshakes::new(config) })
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The files of all active `tls` directives.
#[derive(Default)]
pub struct Certificates(Mutex<Vec<Followed>>);

struct Followed {
    tls: Weak<ServerTls>,
    look: FileRead<Result<Vec<Vec<u8>>, TlsError>>,
    next: Instant,
    /// Consecutive checks that found unusable files.
    failed: u32,
}

impl Certificates {
    /// Loads the files of a directive. Returns the existing state, sessions included, if nothing
    /// has changed. `serves` is false for a check of the Corefile.
    ///
    /// # Errors
    /// [`TlsError`], with the file.
    pub fn load(
        &self,
        settings: &Settings,
        serves: bool,
        now: Instant,
        logger: &Logger,
    ) -> Result<Arc<ServerTls>, TlsError> {
        let same = |known: &Arc<ServerTls>| known.settings == *settings;
        let known = self.lock().iter().filter_map(|followed| followed.tls.upgrade()).find(same);
        // With an existing state its secrets are written already.
        let secrets = match (serves, &known) {
            (_, Some(_)) => Secrets::Kept,
            (true, None) => Secrets::Written,
            (false, None) => Secrets::Checked,
        };
        let found = ServerTls::load(settings, secrets)?;
        if let Some(known) = known {
            let found = found.current.load_full();
            if known.current.load().files != found.files {
                known.replace(found.files.clone(), found.roots.clone())?;
                log_reloaded(logger, settings);
            }
            return Ok(known);
        }
        if let (Some(path), true) = (&settings.keylog, serves) {
            logger.warning(Some(PLUGIN), &format!("Writing TLS Key Log to {:?}", path.display().to_string()));
        }
        let found = Arc::new(found);
        let (tls, next) = (Arc::downgrade(&found), now + INTERVAL);
        self.lock().push(Followed { tls, look: FileRead::default(), next, failed: 0 });
        Ok(found)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Followed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerTls {
    fn replace(&self, files: Files, system: Option<Arc<RootCertStore>>) -> Result<(), TlsError> {
        let loaded = Loaded::new(&self.settings, files, system, self.keylog.as_ref())?;
        self.current.store(Arc::new(loaded));
        Ok(())
    }
}

impl Persistent for Certificates {
    /// Files that cannot be read, or do not belong together, change nothing. That is logged once,
    /// and not at the first check: a certificate and its key are replaced one after the other.
    fn look(&self, now: Instant, logger: &Logger) -> Option<Instant> {
        let mut all = self.lock();
        all.retain(|followed| followed.tls.strong_count() > 0);
        for followed in all.iter_mut().filter(|followed| followed.next <= now) {
            let Some(tls) = followed.tls.upgrade() else { continue };
            let settings = &tls.settings;
            let mut paths = vec![settings.certificate.clone(), settings.key.clone()];
            paths.extend(settings.authority.clone());
            let read = |path: ShownPath| {
                let read = files::read(&path, pem::MAX_BYTES);
                read.map_err(|error| TlsError::File { path, error: error.into() })
            };
            let read = move || paths.into_iter().map(read).collect();
            followed.look.start(&settings.certificate, now, read);
            if let Some(outcome) = followed.look.poll(now, Duration::ZERO) {
                // Only the first error is logged as late.
                let late = |error: ReadError| TlsError::File {
                    path: settings.certificate.clone(),
                    error: error.into(),
                };
                followed.apply(outcome.map_err(late).and_then(|read| read), &tls, logger);
            }
            followed.next = match followed.look.is_pending() {
                true => followed.look.next_poll(now),
                false => now + INTERVAL,
            };
        }
        all.iter().map(|followed| followed.next).min()
    }
}

impl Followed {
    fn apply(&mut self, read: Result<Vec<Vec<u8>>, TlsError>, tls: &ServerTls, logger: &Logger) {
        let changed = read.and_then(|read| {
            let current = tls.current.load_full();
            if current.files.iter().zip(&read).all(|(known, read)| known == read) {
                return Ok(false);
            }
            let mut files = current.files.clone();
            files.iter_mut().zip(read).for_each(|(file, read)| *file = read);
            // The system's authorities are read with each configuration.
            let system = current.roots.clone();
            tls.replace(files, system).map(|()| true)
        });
        match changed {
            Ok(changed) => {
                self.failed = 0;
                if changed {
                    log_reloaded(logger, &tls.settings);
                }
            }
            Err(error) => {
                self.failed += 1;
                if self.failed == LOGGED_AT {
                    let remedy = error.remedy();
                    logger.error(
                        Some(PLUGIN),
                        &format!(
                            "cannot use the files of `tls`: {error}; the former files are used; {remedy}"
                        ),
                    );
                }
            }
        }
    }
}

fn log_reloaded(logger: &Logger, settings: &Settings) {
    let file = settings.certificate.display();
    logger.info(Some(PLUGIN), &format!("Successfully reloaded {file} with its key"));
}

/// The ALPN name of DNS over TLS (RFC 7858, section 3.1; IANA).
const DOT: &[u8] = b"dot";
/// The ALPN protocol of DNS over QUIC (RFC 9250, section 4.1).
const DOQ: &[u8] = b"doq";
/// The ALPN protocols of DNS over HTTPS, the preferred one first.
const HTTPS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// Interval of checking the files.
const INTERVAL: Duration = Duration::from_secs(5);
/// The check that logs files that cannot be used.
const LOGGED_AT: u32 = 2;
