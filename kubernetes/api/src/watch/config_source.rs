//! Selects the source of the API's address: the pod's environment, the Corefile or a kubeconfig.

use std::env;

use crate::settings::{Access, ClientFiles, WatchError};

use super::client_config::{Api, Credentials};
use super::kubeconfig;

impl Access {
    /// Reads and validates files and URL as the client does before it connects. In a pod nothing is
    /// checked.
    ///
    /// # Errors
    /// [`WatchError::Access`].
    pub fn check(&self) -> Result<(), WatchError> {
        match self {
            Self::InCluster(_) => Ok(()),
            _ => {
                let credentials = Api::from_access(self)?.credentials;
                credentials.header().map(drop)
            }
        }
    }
}

impl Api {
    /// Reads the configuration. Blocks.
    ///
    /// # Errors
    /// [`WatchError::Access`].
    pub(super) fn from_access(access: &Access) -> Result<Self, WatchError> {
        match access {
            Access::InCluster(account) => Self::in_cluster(account, |name| env::var(name).ok()),
            Access::Endpoint { url, tls } => {
                let pem = tls.as_ref().map(ClientFiles::read).transpose()?.unwrap_or_default();
                Self::at_shown(url, pem, Credentials::None)
            }
            Access::Kubeconfig { file, context } => kubeconfig::read(file, context.as_ref()),
        }
    }
}
