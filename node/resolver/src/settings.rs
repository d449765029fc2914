//! Validates the settings from the environment and the flags.

use std::path::PathBuf;
use std::time::Duration;

use hostsfile::managed::{HostsFile, Marker, MarkerError};
use ipnet::IpNet;
use refresh::{ServerSyntax, Via, WrittenServer};
use thiserror::Error;
use tls::{TlsError, UpstreamTlsSpec};

use super::reconcile::Rules;
use super::services::{Services, ServicesError, VARIABLE, is_label};
use admin::AdminAddress;

/// The unvalidated settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `-once`: run one round and exit.
    pub once: bool,
    /// `-remove`: only remove the managed lines.
    pub remove: bool,
    /// `-hosts-file`; default /etc/hosts.
    pub hosts_file: PathBuf,
    /// `-services-file`: the file that lists the services, in place of `SERVICES`.
    pub services_file: Option<PathBuf>,
    /// `-marker`; default [`DEFAULT_MARKER`](super::DEFAULT_MARKER).
    pub marker: String,
    /// `-interval`: seconds between rounds, 1 to 3600; default 60.
    pub interval_seconds: u16,
    /// `-metrics`: the address of /metrics; none by default.
    pub metrics: Option<String>,
    /// `-log-format json`: whether log lines are JSON.
    pub json: bool,
    /// `SERVICES`: names separated by commas, spaces and line feeds.
    pub services: Option<String>,
    /// `NAMESERVER`: the cluster's DNS service, one or more servers as in `refresh_via`.
    pub nameserver: Option<String>,
    /// `TLS_SERVERNAME`: the name in the certificates of encrypted servers.
    pub tls_servername: Option<String>,
    /// `TLS_CA`: the file of their authorities; the system's if absent.
    pub tls_ca: Option<String>,
    /// `CLUSTER_DOMAIN`; default `cluster.local`.
    pub cluster_domain: Option<String>,
    /// `SERVICE_CIDRS`: the networks of service addresses.
    pub service_cidrs: Option<String>,
}

/// An invalid setting, with the expected value.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// `NAMESERVER` is missing.
    #[error("NAMESERVER is not set; set it to the address of the cluster's DNS service, such as 10.96.0.10")]
    NoNameserver,
    /// A word of `NAMESERVER` is not an address.
    #[error(
        "NAMESERVER: {0:?} is not an IP address, with or without port, such as 10.96.0.10 or [fd00::a]:53"
    )]
    Nameserver(String),
    /// A word of `NAMESERVER` with a scheme is not a server.
    #[error("NAMESERVER: {word:?} is not {}", why.expected().replace("`tls_servername`", "TLS_SERVERNAME"))]
    EncryptedNameserver {
        /// The word.
        word: String,
        /// Why.
        why: ServerSyntax,
    },
    /// A variable for encrypted servers, of which `NAMESERVER` has none.
    #[error("{0} needs a server of tls://, https:// or quic:// in NAMESERVER")]
    NoEncryptedNameserver(&'static str),
    /// A name in `TLS_SERVERNAME` and one in `NAMESERVER`.
    #[error("TLS_SERVERNAME and the name behind % in NAMESERVER exclude each other; keep one")]
    TwoNames,
    /// The authorities or the name cannot be used.
    #[error("{variable}: {error}; {}", error.remedy())]
    Tls {
        /// The variable.
        variable: &'static str,
        /// Why.
        error: TlsError,
    },
    /// Too many words in `NAMESERVER`.
    #[error("NAMESERVER names more than {} servers", stub_resolver::MAX_SERVERS)]
    TooManyNameservers,
    /// `CLUSTER_DOMAIN` is not a domain.
    #[error(
        "CLUSTER_DOMAIN: {0:?} is not a domain of lower-case labels and at most 100 characters, such as cluster.local"
    )]
    Domain(String),
    /// A word of `SERVICE_CIDRS` is not a network.
    #[error("SERVICE_CIDRS: {0:?} is not a network such as 10.96.0.0/12 or fd00:96::/112")]
    Network(String),
    /// The list of services is invalid.
    #[error(transparent)]
    Services(#[from] ServicesError),
    /// `-marker` is invalid.
    #[error(transparent)]
    Marker(#[from] MarkerError),
    /// `-metrics` is not an address and port.
    #[error("-metrics: {0:?} is not ADDRESS:PORT, such as :9353 or 127.0.0.1:9353")]
    Metrics(String),
}

/// The validated settings.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) file: HostsFile,
    pub(crate) services: Services,
    pub(crate) via: Via,
    pub(crate) rules: Rules,
    pub(crate) interval: Duration,
    pub(crate) metrics: Option<AdminAddress>,
}

impl Settings {
    /// Validates all settings; a list of services with one invalid word is refused as a whole.
    pub(crate) fn read(request: &Request) -> Result<Self, SettingsError> {
        let services = match &request.services_file {
            Some(path) => Services::from_file(path)?,
            None => Services::from_text(VARIABLE, request.services.as_deref().unwrap_or_default())?,
        };
        Ok(Self {
            file: HostsFile::new(&request.hosts_file, marker(request)?),
            services,
            via: via(request)?,
            rules: Rules {
                domain: domain(request.cluster_domain.as_deref().unwrap_or_default())?,
                networks: words(request.service_cidrs.as_deref().unwrap_or_default())
                    .map(|word| word.parse().map_err(|_| SettingsError::Network(word.to_owned())))
                    .collect::<Result<Vec<IpNet>, _>>()?,
            },
            interval: Duration::from_secs(request.interval_seconds.into()),
            metrics: request.metrics.as_deref().map(metrics).transpose()?,
        })
    }
}

/// Returns the validated marker of managed lines.
pub(crate) fn marker(request: &Request) -> Result<Marker, SettingsError> {
    Ok(Marker::new(&request.marker)?)
}

/// Returns the servers, with the settings of encrypted ones.
fn via(request: &Request) -> Result<Via, SettingsError> {
    let set = |variable: &Option<String>| variable.clone().filter(|text| !text.is_empty());
    let (name, ca) = (set(&request.tls_servername), set(&request.tls_ca));
    let servers = servers(request.nameserver.as_deref().unwrap_or_default(), name.is_some())?;
    if name.is_some() && servers.iter().any(|server| server.server_name.is_some()) {
        return Err(SettingsError::TwoNames);
    }
    if !servers.iter().any(WrittenServer::is_encrypted) {
        let variable =
            [("TLS_SERVERNAME", &name), ("TLS_CA", &ca)].into_iter().find(|(_, value)| value.is_some());
        if let Some((variable, _)) = variable {
            return Err(SettingsError::NoEncryptedNameserver(variable));
        }
    }
    let tls =
        UpstreamTlsSpec { client: None, authority: ca.map(|ca| PathBuf::from(ca).into()), server_name: name };
    let via = Via { servers, tls };
    // Rounds load them again.
    match via.load() {
        Ok(_) => Ok(via),
        Err(error) => {
            let variable = match error {
                TlsError::ServerName(_) if via.tls.server_name.is_some() => "TLS_SERVERNAME",
                TlsError::ServerName(_) => "NAMESERVER",
                _ => "TLS_CA",
            };
            Err(SettingsError::Tls { variable, error })
        }
    }
}

fn servers(text: &str, named: bool) -> Result<Vec<WrittenServer>, SettingsError> {
    let read = |word: &str| {
        WrittenServer::parse(word, named).map_err(|why| match word.contains("://") {
            true => SettingsError::EncryptedNameserver { word: word.to_owned(), why },
            false => SettingsError::Nameserver(word.to_owned()),
        })
    };
    let servers = words(text).map(read).collect::<Result<Vec<_>, _>>()?;
    match servers.len() {
        0 => Err(SettingsError::NoNameserver),
        count if count > stub_resolver::MAX_SERVERS => Err(SettingsError::TooManyNameservers),
        _ => Ok(servers),
    }
}

fn domain(text: &str) -> Result<Box<str>, SettingsError> {
    let domain = text.trim().trim_end_matches('.');
    if domain.is_empty() && text.trim().is_empty() {
        return Ok("cluster.local".into());
    }
    // The longest service has 131 characters, so that with a dot and a domain of 100 it stays below
    // a name's 253.
    if domain.len() <= 100 && domain.split('.').all(is_label) {
        Ok(domain.into())
    } else {
        Err(SettingsError::Domain(text.to_owned()))
    }
}

fn metrics(text: &str) -> Result<AdminAddress, SettingsError> {
    AdminAddress::from_text(text).ok_or_else(|| SettingsError::Metrics(text.to_owned()))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c == ',' || c.is_ascii_whitespace()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn default_port_is_53() {
        for (text, want) in [
            ("10.96.0.10", &["10.96.0.10:53"][..]),
            (
                "10.96.0.10:1053, fd00::a [fd00::b]:5353",
                &["10.96.0.10:1053", "[fd00::a]:53", "[fd00::b]:5353"],
            ),
        ] {
            let want: Vec<SocketAddr> = want.iter().map(|text| text.parse().unwrap()).collect();
            let found: Vec<_> = servers(text, false).unwrap().iter().map(|server| server.address).collect();
            assert_eq!(found, want);
        }
        for (text, expected) in [
            ("", "NAMESERVER is not set"),
            (" , ", "NAMESERVER is not set"),
            ("$(KUBE_DNS_SERVICE_HOST)", "NAMESERVER: \"$(KUBE_DNS_SERVICE_HOST)\" is not an IP address"),
            ("10.96.0.10 dns", "NAMESERVER: \"dns\" is not an IP address"),
            (&"192.0.2.1 ".repeat(16), "NAMESERVER names more than 15 servers"),
        ] {
            let error = servers(text, false).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn encrypted_servers_and_their_variables() {
        let with = |nameserver: &str, name: &str, ca: &str| {
            via(&Request {
                nameserver: Some(nameserver.to_owned()),
                tls_servername: Some(name.to_owned()),
                tls_ca: Some(ca.to_owned()),
                ..request()
            })
        };
        let servers = with("tls://10.96.0.10 quic://10.96.0.11:8853", "dns.example", "").unwrap().servers;
        let shown: Vec<_> = servers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["tls://10.96.0.10:853", "quic://10.96.0.11:8853"]);
        for (nameserver, name, ca, expected) in [
            ("10.96.0.10", "dns.example", "", "TLS_SERVERNAME needs a server of tls://, https:// or quic://"),
            ("10.96.0.10", "", "/ca.pem", "TLS_CA needs a server of tls://, https:// or quic://"),
            ("tls://10.96.0.10%a.example", "dns.example", "", "TLS_SERVERNAME and the name behind %"),
            ("tls://10.96.0.10", "dns..example", "", "TLS_SERVERNAME: \"dns..example\" is not a server name"),
            ("tls://10.96.0.10", "", "/nowhere/ca.pem", "TLS_CA: /nowhere/ca.pem: No such file"),
            (
                "tls://dns.example",
                "",
                "",
                "NAMESERVER: \"tls://dns.example\" is not a server: its IP address",
            ),
        ] {
            let error = with(nameserver, name, ca).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
            assert!(!error.contains("tls_servername"), "{error}");
        }
    }

    fn request() -> Request {
        Request {
            once: false,
            remove: false,
            hosts_file: PathBuf::new(),
            services_file: None,
            marker: String::new(),
            interval_seconds: 60,
            metrics: None,
            json: false,
            services: None,
            nameserver: None,
            tls_servername: None,
            tls_ca: None,
            cluster_domain: None,
            service_cidrs: None,
        }
    }

    #[test]
    fn default_domain_is_cluster_local() {
        for (text, want) in [
            ("", "cluster.local"),
            (" ", "cluster.local"),
            ("cluster.local.", "cluster.local"),
            ("k8s", "k8s"),
            ("a.b-c.d", "a.b-c.d"),
        ] {
            assert_eq!(&*domain(text).unwrap(), want, "{text:?}");
        }
        for bad in
            [".", "a..b", "a b", "x;rm", "Cluster.local", "a\n127.0.0.1 b", &"a".repeat(64), &"a.".repeat(51)]
        {
            let error = domain(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("CLUSTER_DOMAIN: {bad:?} is not a domain")), "{error}");
        }
    }
}
