//! `node annotate`: sets AKS's annotation on this node if a hosts file answers critical names, and
//! removes it otherwise, as AKS's script does.
//!
//! A separate command that runs once, so that the server does not depend on the cluster's API.

use std::path::PathBuf;
use std::time::Duration;

use kubernetes_api::{Access, annotate};

use super::peers;

/// The annotation's target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// `-kubeconfig`: address and credentials of the API.
    pub kubeconfig: PathBuf,
    /// `-node`; default: the host's name in lower case, as kubelet uses it.
    pub node: Option<String>,
    /// `-wait`: how long to retry. At boot, the server and kubelet's credentials may not exist yet.
    pub wait: Duration,
}

impl Annotation {
    /// kubelet's kubeconfig.
    pub const KUBECONFIG: &str = "/var/lib/kubelet/kubeconfig";

    /// Sets or removes the annotation, and returns a line that reports the result.
    ///
    /// # Errors
    /// The error of the last try.
    pub fn apply(&self) -> Result<String, String> {
        let node = self.node.clone().unwrap_or_else(name_of_the_machine);
        let until = clock::now() + self.wait;
        loop {
            match self.once(&node) {
                Ok(line) => return Ok(line),
                Err(error) if clock::now() + AGAIN > until => return Err(error),
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }

    fn once(&self, node: &str) -> Result<String, String> {
        let entries = hosts_entries()?;
        let access = Access::Kubeconfig { file: self.kubeconfig.clone().into(), context: None };
        let value = (entries > 0).then_some(ENABLED);
        annotate(&access, node, HOSTS_PLUGIN, value).map_err(|error| error.to_string())?;
        Ok(match value {
            Some(value) => format!("node {node} has the annotation {HOSTS_PLUGIN}={value}\n"),
            None => format!(
                "node {node} has no annotation {HOSTS_PLUGIN}: no hosts file with entries is served\n"
            ),
        })
    }
}

/// Returns the number of hosts entries that the node's server serves.
fn hosts_entries() -> Result<u64, String> {
    let servers = peers::all().reports;
    match servers.iter().find(|status| status.is_ok()).or_else(|| servers.first()) {
        None => Err("no `localdns node run` runs on this node; start it".to_owned()),
        Some(Err(error)) => Err(error.to_string()),
        Some(Ok(status)) => status["hosts_entries"].as_u64().ok_or_else(|| {
            format!("process {} is of a version that does not report its hosts entries", status["pid"])
        }),
    }
}

fn name_of_the_machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_lowercase()
}

/// The name of the annotation that AKS's script sets.
const HOSTS_PLUGIN: &str = "kubernetes.azure.com/localdns-hosts-plugin";
const ENABLED: &str = "enabled";
const AGAIN: Duration = Duration::from_secs(3);
