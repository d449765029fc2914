//! Search paths of clients: one plugin knows them, another one tries them (`autopath @PLUGIN`).

use std::fmt::Debug;
use std::net::IpAddr;

use wire::Name;

/// Knows the search paths of clients.
pub trait SearchPaths: Debug + Send + Sync {
    /// The domains that `client` completes names with, in its order, of which `name` may be such a name; `None` where they
    /// are not known for certain.
    fn search_path(&self, name: &Name, client: IpAddr) -> Option<Vec<Name>>;
}

/// Domains of a search path, as many as Kubernetes takes (MaxDNSSearchPaths).
pub const MOST_DOMAINS: usize = 32;
/// Octets of all domains of a search path together, as text with a blank between two (MaxDNSSearchListChars).
pub const MOST_SEARCH_OCTETS: usize = 2_048;
