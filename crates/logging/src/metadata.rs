//! Labels of `metadata`: values that plugins publish about a query, for the log and other plugins.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use wire::Name;

/// A provider of labels.
pub trait Labels: Debug + Send + Sync {
    /// The value of `label` (`PLUGIN/NAME`) for a query for `name`; `client` is `None` where no client sent the query. `None` for an
    /// unknown label.
    fn label(&self, label: &str, name: &Name, client: Option<IpAddr>) -> Option<String>;
}

/// The labels of several plugins, with distinct names.
impl Labels for Vec<Arc<dyn Labels>> {
    fn label(&self, label: &str, name: &Name, client: Option<IpAddr>) -> Option<String> {
        self.iter().find_map(|labels| labels.label(label, name, client))
    }
}
