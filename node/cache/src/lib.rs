//! Makes node-cache's Corefile from a template, this node's addresses and kube-dns's ConfigMap.
//!
//! The template is filled at each read, so that a reload sees changes of the template and of the
//! ConfigMap.

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

/// The flags of node-cache that determine the Corefile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// `-basecorefile`: the file of the template.
    pub base: PathBuf,
    /// `-kubednscm`: the directory of kube-dns's ConfigMap; default /etc/kube-dns, if it exists.
    pub kube_dns: Option<PathBuf>,
    /// `-localip`: the listen addresses.
    pub local_ips: Vec<IpAddr>,
    /// The address of the Service that `-upstreamsvc` names, if the environment has it.
    pub cluster_dns: Option<IpAddr>,
    /// The environment variable with that address.
    pub cluster_dns_variable: String,
    /// `-dns.port`: the port of stub domains, and of the template's blocks without a port.
    pub port: u16,
    /// `-prometheus-listen-address`: the address of /metrics.
    pub prometheus: String,
    /// `-conf`: the file that the filled Corefile is written to, for inspection.
    pub written: Option<PathBuf>,
}

/// Fills a template, and keeps the last good ConfigMap and the current problems.
#[derive(Debug)]
pub struct TemplateRenderer {
    template: Template,
    last_good: Mutex<KubeDns>,
    /// The problem of the ConfigMap; the next two fields: unused addresses, and the error of
    /// writing the filled Corefile.
    wrong: Mutex<Option<Diagnosis>>,
    unbound: Mutex<Option<Diagnosis>>,
    unwritten: Mutex<Option<Diagnosis>>,
    /// Error counters, for /metrics.
    pub errors: SetupErrors,
}

/// Why there is no Corefile.
#[derive(Debug, Error)]
pub enum FillError {
    /// The template cannot be read.
    #[error("cannot be read: {0}; name the template with -basecorefile")]
    Unreadable(#[source] std::io::Error),
    /// The template needs the address of the cluster's DNS, which is not known.
    #[error(
        "{CLUSTER_DNS} is the address of the Service of -upstreamsvc, and {variable} is not set: the Service must be in this pod's namespace and exist before the pod, and the pod must have service links"
    )]
    NoClusterDns {
        /// The environment variable that should have the address.
        variable: String,
    },
    /// The template has an unknown variable.
    #[error("line {line}: {name} was not replaced when the manifest was applied, as with sed")]
    Unfilled {
        /// The line of the variable's first use, from 1.
        line: usize,
        /// The variable.
        name: String,
    },
}

impl TemplateRenderer {
    /// Creates the renderer; reads nothing yet.
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

    /// Returns the path of the template.
    pub fn base(&self) -> &Path {
        &self.template.base
    }

    /// Reads and fills the template, and returns the Corefile. If the ConfigMap is invalid, the
    /// last good one is used.
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

    /// Returns the current problems of the ConfigMap, of addresses and of the written file.
    pub fn problems(&self) -> impl Iterator<Item = Diagnosis> {
        let now = |one: &Mutex<Option<Diagnosis>>| one.lock().unwrap_or_else(PoisonError::into_inner).clone();
        [now(&self.wrong), now(&self.unbound), now(&self.unwritten)].into_iter().flatten()
    }

    /// Returns the ConfigMap to fill this template with: the current one, or the last good one if
    /// the current one is invalid or conflicts with the template.
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
            // An error is counted once, however often the ConfigMap is read.
            Err(error) if wrong.as_ref() != Some(&error) => {
                self.errors.count(SetupErrorKind::ConfigMap);
                *wrong = Some(error);
            }
            Err(_) => {}
        }
        Ok(last_good.clone())
    }

    /// Writes the filled Corefile atomically: readers see either the old or the new text, and the
    /// old file stays if the disk is full.
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
    /// Returns the name of the environment variable with the address of a Service in the pod's
    /// namespace.
    pub fn variable_of(service: &str) -> String {
        format!("{}_SERVICE_HOST", service.replace('-', "_").to_uppercase())
    }
}

const CLUSTER_DNS: &str = "__PILLAR__CLUSTER__DNS__";
const KUBE_DNS: &str = "/etc/kube-dns";
/// Maximum size of a template in bytes.
const LONGEST: u64 = 1 << 20;
