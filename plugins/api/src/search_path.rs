//! Search paths of clients, which one plugin provides to another (`autopath @PLUGIN`).

use std::fmt::Debug;
use std::net::IpAddr;

use wire::Name;

/// Provides the search paths of clients.
pub trait SearchPaths: Debug + Send + Sync {
    /// Returns the domains of the client's search path, in order, if `name` may be a completed
    /// name; `None` unless the search path is certain.
    fn search_path(&self, name: &Name, client: IpAddr) -> Option<Vec<Name>>;
}

/// Maximum number of domains of a search path, as in Kubernetes (MaxDNSSearchPaths).
pub const MOST_DOMAINS: usize = 32;
/// Maximum bytes of a search path as text, separated by blanks (MaxDNSSearchListChars).
pub const MOST_SEARCH_OCTETS: usize = 2_048;
