//! What a Corefile requires: the name servers of the node's network, and its own listen addresses.

use std::net::IpAddr;
use std::path::Path;

use crate::upstream_discovery::{Discovery, Listed, is_on_our_link};
use plugin::Spec;
use plugins::bind::BindSpec;
use plugins::forward::ForwardSpecs;

/// The list for a server with this Corefile, updated from now on.
///
/// # Errors
/// Those of [`Discovery::first`].
pub fn discovery(file: &Path, spec: &Spec) -> Result<Discovery, String> {
    let own = OwnAddresses::of(spec);
    Discovery::first(file, needs_list(spec), &|ip| own.has(ip))
}

/// The current list, for a command beside the server; does not wait.
pub fn listed_now(file: &Path, spec: &Spec) -> Listed {
    let own = OwnAddresses::of(spec);
    Listed::now(file, needs_list(spec), &|ip| own.has(ip))
}

/// As [`listed_now`], and waits for the network.
pub fn listed(file: &Path, spec: &Spec) -> Listed {
    let own = OwnAddresses::of(spec);
    Listed::awaited(file, needs_list(spec), &|ip| own.has(ip))
}

/// Whether a `forward` uses 168.63.129.16, which stands for these servers.
pub fn needs_list(spec: &Spec) -> bool {
    let stanzas = spec.blocks.iter().filter_map(|block| block.get::<ForwardSpecs>());
    let mut targets = stanzas.flat_map(|specs| &specs.stanzas).flat_map(|stanza| &stanza.targets);
    targets.any(|(target, _)| target.port_of_node().is_some())
}

/// The Corefile's listen addresses, before anything is bound.
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
