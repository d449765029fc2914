//! Discovery of the network's name servers for a Corefile: whether it needs them, and which
//! addresses are its own listen addresses, which are no upstreams.

use std::net::IpAddr;
use std::path::Path;

use crate::upstream_discovery::{Discovery, Listed, is_on_our_link};
use plugin::Spec;
use plugins::bind::BindSpec;
use plugins::forward::ForwardSpecs;

/// Reads the list of the network's name servers for a server with this Corefile; the returned value
/// keeps the list up to date.
///
/// # Errors
/// The errors of [`Discovery::first`].
pub fn discovery(file: &Path, spec: &Spec) -> Result<Discovery, String> {
    let own = OwnAddresses::of(spec);
    Discovery::first(file, needs_list(spec), &|ip| own.has(ip))
}

/// Returns the current list, for a command that runs beside the server; does not wait.
pub fn listed_now(file: &Path, spec: &Spec) -> Listed {
    let own = OwnAddresses::of(spec);
    Listed::now(file, needs_list(spec), &|ip| own.has(ip))
}

/// Returns the same as [`listed_now`]; if the Corefile needs the list, retries for 5 s while there
/// is none.
pub fn listed(file: &Path, spec: &Spec) -> Listed {
    let own = OwnAddresses::of(spec);
    Listed::awaited(file, needs_list(spec), &|ip| own.has(ip))
}

/// Whether a `forward` uses 168.63.129.16, which stands for the network's name servers.
pub fn needs_list(spec: &Spec) -> bool {
    let stanzas = spec.blocks.iter().filter_map(|block| block.get::<ForwardSpecs>());
    let mut targets = stanzas.flat_map(|specs| &specs.stanzas).flat_map(|stanza| &stanza.targets);
    targets.any(|(target, _)| target.port_of_node().is_some())
}

/// The listen addresses in the Corefile's `bind` directives.
struct OwnAddresses(Vec<IpAddr>);

impl OwnAddresses {
    fn of(spec: &Spec) -> Self {
        let binds = spec.blocks.iter().filter_map(|block| block.get::<BindSpec>());
        let words = binds.flat_map(BindSpec::targets);
        Self(words.filter_map(|word| word.text.parse().ok()).collect())
    }

    fn has(&self, ip: IpAddr) -> bool {
        self.0.contains(&ip) || is_on_our_link(ip)
    }
}
