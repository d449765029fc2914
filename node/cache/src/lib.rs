//! node-cache's Corefile: a template, filled with this node's addresses and with kube-dns's
//! ConfigMap.
//!
//! It is filled at each read, so that `reload` and signals see changes in either.

mod conflicts;
mod kube_dns;
mod setup_errors;
mod template;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

use kube_dns::KubeDns;
use node::Diagnosis;
pub use setup_errors::{SetupErrorKind, SetupErrors};

/// node-cache's flags for the Corefile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// `-basecorefile`.
    pub base: PathBuf,
    /// `-kubednscm`: the directory of kube-dns's ConfigMap; default /etc/kube-dns, if it exists.
    pub kube_dns: Option<PathBuf>,
    /// `-localip`.
    pub local_ips: Vec<IpAddr>,
    /// The address of the Service of `-upstreamsvc`, if the environment has it.
    pub cluster_dns: Option<IpAddr>,
    /// The variable for it.
    pub cluster_dns_variable: String,
    /// `-dns.port`.
    pub port: u16,
    /// `-prometheus-listen-address`.
    pub prometheus: String,
    /// `-conf`: the file that the filled Corefile is written to, for inspection.
    pub written: Option<PathBuf>,
}

/// Fills a template.
#[derive(Debug)]
pub struct TemplateRenderer {
    template: Template,
    last_good: Mutex<KubeDns>,
    /// Problems of the ConfigMap, unused addresses, and errors of writing the Corefile.
    wrong: Mutex<Option<Diagnosis>>,
    unbound: Mutex<Option<Diagnosis>>,
    unwritten: Mutex<Option<Diagnosis>>,
    /// Error counters, for /metrics.
    pub errors: SetupErrors,
}

/// Why there is no Corefile.
#[derive(Debug, Error)]
pub enum FillError {
    /// The template.
    #[error("cannot be read: {0}; name the template with -basecorefile")]
    Unreadable(#[source] std::io::Error),
    /// The address of the cluster's DNS is needed.
    #[error(
        "{CLUSTER_DNS} is the address of the Service of -upstreamsvc, and {variable} is not set: the Service must be in this pod's namespace and exist before the pod, and the pod must have service links"
    )]
    NoClusterDns {
        /// Its environment variable.
        variable: String,
    },
    /// An unknown variable.
    #[error("line {line}: {name} was not replaced when the manifest was applied, as with sed")]
    Unfilled {
        /// The line of its first use, from 1.
        line: usize,
        /// The variable.
        name: String,
    },
}

impl TemplateRenderer {
    /// Reads nothing yet.
    pub fn new(template: Template) -> Self {
        Self {
            template,
            last_good: Mutex::default(),
            wrong: Mutex::default(),
            unbound: Mutex::default(),
            unwritten: Mutex::default(),
            errors: SetupErrors::default(),
        }
    }

    /// The template's file.
    pub fn base(&self) -> &Path {
        &self.template.base
    }

    /// The current Corefile. An invalid ConfigMap keeps the last good one.
    ///
    /// # Errors
    /// Errors of the template.
    pub fn text(&self) -> Result<String, FillError> {
        let base = files::read_with_timeout(&self.template.base, LONGEST)
            .map_err(|error| FillError::Unreadable(error.into()));
        let base = base.inspect_err(|_| self.errors.count(SetupErrorKind::ConfigMap))?;
        let base = String::from_utf8_lossy(&base);
        let filled = template::fill(&base, &self.template, &self.kube_dns(&base)?)?;
        *self.unbound.lock().unwrap_or_else(PoisonError::into_inner) =
            conflicts::unbound(&filled, &self.template);
        self.write(&filled);
        Ok(filled)
    }

    /// Problems of the ConfigMap, of addresses and of the written file.
    pub fn problems(&self) -> impl Iterator<Item = Diagnosis> {
        let now = |one: &Mutex<Option<Diagnosis>>| one.lock().unwrap_or_else(PoisonError::into_inner).clone();
        [now(&self.wrong), now(&self.unbound), now(&self.unwritten)].into_iter().flatten()
    }

    /// The ConfigMap in effect beside this template.
    fn kube_dns(&self, base: &str) -> Result<KubeDns, FillError> {
        let mut last_good = self.last_good.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = self.template.kube_dns.as_deref();
        let directory = directory.or_else(|| Some(Path::new(KUBE_DNS)).filter(|path| path.exists()));
        let alone = template::fill(base, &self.template, &KubeDns::default())?;
        let read = directory.map_or_else(|| Ok(KubeDns::default()), KubeDns::read);
        let read = read.and_then(|read| conflicts::refuse(&alone, &self.template, &read).map(|()| read));
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(read) => {
                *last_good = read;
                *wrong = None;
            }
            // Counted once, however often it is read.
            Err(error) if wrong.as_ref() != Some(&error) => {
                self.errors.count(SetupErrorKind::ConfigMap);
                *wrong = Some(error);
            }
            Err(_) => {}
        }
        Ok(last_good.clone())
    }

    /// Atomically: readers see no half of it, and the old file stays if there is no space.
    fn write(&self, filled: &str) {
        let Some(path) = &self.template.written else { return };
        let error = files::atomic_write(path, None, filled.as_bytes()).err();
        let unwritten = error.map(|error| {
            let problem = format!("-conf: {error}: the server runs without it");
            Diagnosis::new(problem, "name a file that can be written")
        });
        *self.unwritten.lock().unwrap_or_else(PoisonError::into_inner) = unwritten;
    }
}

impl Template {
    /// The environment variable with the address of a Service in the pod's namespace.
    pub fn variable_of(service: &str) -> String {
        format!("{}_SERVICE_HOST", service.replace('-', "_").to_uppercase())
    }
}

const CLUSTER_DNS: &str = "__PILLAR__CLUSTER__DNS__";
const KUBE_DNS: &str = "/etc/kube-dns";
/// Maximum size of a template.
const LONGEST: u64 = 1 << 20;
