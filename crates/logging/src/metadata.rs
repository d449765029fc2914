//! Labels of `metadata`: what plugins publish of a query, for others to read, the log among them.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use wire::Name;

/// Knows labels of queries.
pub trait Labels: Debug + Send + Sync {
    /// What `label`, a plugin and a name with a slash between them, is of a query for `name`; `client` where one asks. `None` where
    /// it is not known.
    fn label(&self, label: &str, name: &Name, client: Option<IpAddr>) -> Option<String>;
}

/// Those of several plugins, none of which knows another's.
impl Labels for Vec<Arc<dyn Labels>> {
    fn label(&self, label: &str, name: &Name, client: Option<IpAddr>) -> Option<String> {
        self.iter().find_map(|labels| labels.label(label, name, client))
    }
}
