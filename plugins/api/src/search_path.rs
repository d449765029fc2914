//! Search paths of clients, which one plugin provides to another (`autopath @PLUGIN`).

use std::fmt::Debug;
use std::net::IpAddr;

use wire::Name;

/// Provides the search paths of clients.
pub trait SearchPaths: Debug + Send + Sync {
    /// The domains of the client's search path in its order, if `name` may be a completed name; `None`
    /// unless they are known for certain.
    fn search_path(&self, name: &Name, client: IpAddr) -> Option<Vec<Name>>;
}

/// Most domains of a search path, as in Kubernetes (MaxDNSSearchPaths).
pub const MOST_DOMAINS: usize = 32;
/// Most bytes of all domains of a search path, as text with a blank between two (MaxDNSSearchListChars).
pub const MOST_SEARCH_OCTETS: usize = 2_048;
