//! Which of its sources says where the API is: what a pod finds, the Corefile or a kubeconfig.

use std::env;

use crate::settings::{Access, Lost};

use super::client_config::{Api, Credentials, Pem};
use super::kubeconfig;

impl Access {
    /// Reads what a follower would before its first packet: files, a URL. What only a pod has is not looked for.
    ///
    /// # Errors
    /// [`Lost::Access`].
    pub fn look(&self) -> Result<(), Lost> {
        match self {
            Self::InCluster(_) => Ok(()),
            _ => {
                let who = Api::find(self)?.credentials;
                who.header().map(drop)
            }
        }
    }
}

impl Api {
    /// Reads files: it may take a while.
    ///
    /// # Errors
    /// [`Lost::Access`].
    pub(super) fn find(access: &Access) -> Result<Self, Lost> {
        match access {
            Access::InCluster(account) => Self::in_cluster(account, |name| env::var(name).ok()),
            Access::Endpoint { url, tls: None } => Self::at(url, Pem::default(), Credentials::None),
            Access::Endpoint { url, tls: Some(files) } => Self::at(url, files.read()?, Credentials::None),
            Access::Kubeconfig { file, context } => kubeconfig::read(file, context.as_deref()),
        }
    }
}
