//! Upstreams that are this server itself: legal, unless a query would come to the same endpoint and zone again.
//!
//! ```text
//! . { forward . 127.0.0.1:5301 }   .:5301 { forward . 192.0.2.53 }     a chain: served
//! . { forward . 127.0.0.1:5301 }   .:5301 { forward . 127.0.0.1:53 }   a circle: refused when the Corefile is read
//! ```
//! What leads back by other machines is for `loop`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use corefile::{Located, Location};
use forwarder::{Stanza, Upstream};
use wire::Name;

use crate::{Configuration, EndpointPlan};
use plugin::args::Result;
use plugin::endpoint::{Endpoint, Transport};
use plugin::{SetupError, Spec};
use plugins::forward::{ForwardSpec, ForwardSpecs, ForwardTarget};
use query::{Block, ServedZone};

/// Refuses the first upstream of `spec` that leads back.
///
/// # Errors
/// [`SetupError::Circle`], at the upstream or at the file or host name that it came from.
pub(crate) fn refuse(spec: &Spec, configuration: &Configuration) -> Result<()> {
    let mut search = Search::new(configuration);
    for block in &configuration.blocks {
        let Some(forwarding) = block.pipeline.forwarding() else { continue };
        let Some(forward) = spec.blocks[block.index].get::<ForwardSpecs>() else { continue };
        for (forward, stanza) in forward.stanzas.iter().zip(forwarding.chain.stanzas()) {
            for upstream in endpoints(stanza) {
                if search.leads_back(block.index, &forward.stanza.from, upstream) {
                    return Err(Located::new(place(forward, upstream), SetupError::Circle { upstream }));
                }
            }
        }
    }
    Ok(())
}

/// The first of these upstreams that leads back to the stanza that would ask them.
pub fn back_to(
    configuration: &Configuration,
    stanza: &Stanza,
    upstreams: &[Arc<Upstream>],
) -> Option<Endpoint> {
    let owns = |block: &&Arc<Block>| {
        let stanzas =
            block.pipeline.forwarding().map(|forwarding| forwarding.chain.stanzas()).unwrap_or_default();
        stanzas.iter().any(|own| std::ptr::eq(&**own, stanza))
    };
    let block = configuration.blocks.iter().find(owns)?.index;
    let mut search = Search::new(configuration);
    let mut endpoints = upstreams.iter().map(|upstream| endpoint(upstream));
    endpoints.find(|endpoint| search.leads_back(block, &stanza.spec().from, *endpoint))
}

/// What is looked for, and what was found already: the steps grow with blocks and upstreams, not with their product, where
/// upstreams are others' servers.
struct Search<'h> {
    endpoints: &'h BTreeMap<Endpoint, EndpointPlan>,
    /// Where each block serves which zones.
    homes: HashMap<usize, Vec<Home<'h>>>,
    /// Who hears what is sent to an address: to know that the machine is asked for its addresses.
    heard: HashMap<Endpoint, Option<(Endpoint, &'h EndpointPlan)>>,
}

type Home<'h> = (Endpoint, &'h ServedZone);

impl<'h> Search<'h> {
    fn new(configuration: &'h Configuration) -> Self {
        let mut homes: HashMap<usize, Vec<Home<'h>>> = HashMap::new();
        for (endpoint, plan) in &configuration.endpoints {
            for zone in plan.served.route.zones() {
                homes.entry(zone.block.index).or_default().push((*endpoint, zone));
            }
        }
        Self { endpoints: &configuration.endpoints, homes, heard: HashMap::new() }
    }

    /// Whether names below `from` that this block sends to `upstream` come to the same endpoint and zone again.
    fn leads_back(&mut self, block: usize, from: &Name, upstream: Endpoint) -> bool {
        // Most upstreams are at addresses that this server does not listen on: no name leads back from them.
        if self.plan_at(upstream).is_none() {
            return false;
        }
        let homes = self.homes.get(&block).cloned().unwrap_or_default();
        homes.into_iter().any(|home| {
            // The names that both have; where neither is within the other there is none.
            let Some(name) = deeper(&home.1.zone, from) else { return false };
            self.comes_back(home, name, upstream)
        })
    }

    fn comes_back(&mut self, home: Home<'h>, name: &Name, upstream: Endpoint) -> bool {
        let (mut seen, mut next) = (HashSet::new(), vec![upstream]);
        while let Some(upstream) = next.pop() {
            let Some((endpoint, plan)) = self.plan_at(upstream) else { continue };
            let Some(zone) = plan.served.route.longest(name) else { continue };
            if (endpoint, zone.index) == (home.0, home.1.index) {
                return true;
            }
            if !seen.insert(zone.index) {
                continue;
            }
            let Some(forwarding) = zone.block.pipeline.forwarding() else { continue };
            if let Some(stanza) = forwarding.chain.stanzas().iter().find(|stanza| stanza.matches(name)) {
                next.extend(endpoints(stanza));
            }
        }
        false
    }

    /// Who hears what is sent there: a socket of exactly this address comes before one of all, and of those the one of its
    /// family first.
    fn plan_at(&mut self, endpoint: Endpoint) -> Option<(Endpoint, &'h EndpointPlan)> {
        if let Some(known) = self.heard.get(&endpoint) {
            return *known;
        }
        let Endpoint { transport, address: at } = endpoint;
        let on = |ip: IpAddr| Endpoint { transport, address: SocketAddr::new(ip, at.port()) };
        let wildcard = |ip: IpAddr| self.endpoints.get_key_value(&on(ip));
        // An IPv6 endpoint may have a scope that the upstream lacks; the map keeps those of one address and port together.
        let own = self.endpoints.range(on(at.ip())..).next();
        let exact = self.endpoints.get_key_value(&endpoint);
        let same = |own: &Endpoint| (own.address.ip(), own.address.port()) == (at.ip(), at.port());
        let exact = exact.or_else(|| own.filter(|(own, _)| own.transport == transport && same(own)));
        let all: [IpAddr; 2] = match at {
            SocketAddr::V4(_) => [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
            SocketAddr::V6(_) => [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
        };
        let of_all =
            || all.into_iter().find_map(wildcard).filter(|(own, _)| node::leads_to(at, &[own.address]));
        let found = exact.or_else(of_all).map(|(endpoint, plan)| (*endpoint, plan));
        self.heard.insert(endpoint, found);
        found
    }
}

/// Where a stanza asks.
fn endpoints(stanza: &Stanza) -> Vec<Endpoint> {
    stanza.upstreams().iter().map(|upstream| endpoint(upstream)).collect()
}

/// Where an upstream is asked.
fn endpoint(upstream: &Upstream) -> Endpoint {
    let transport = if upstream.tls().is_some() { Transport::Tls } else { Transport::Dns };
    Endpoint { transport, address: upstream.address() }
}

fn deeper<'n>(one: &'n Name, other: &'n Name) -> Option<&'n Name> {
    match (one.is_within(other), other.is_within(one)) {
        (true, _) => Some(one),
        (_, true) => Some(other),
        _ => None,
    }
}

/// The word that the upstream came from.
fn place(forward: &ForwardSpec, upstream: Endpoint) -> &Location {
    let written = forward.targets.iter().find(
        |(target, _)| matches!(target, ForwardTarget::Address { address, .. } if *address == upstream.address),
    );
    let found =
        || forward.targets.iter().find(|(target, _)| !matches!(target, ForwardTarget::Address { .. }));
    written.or_else(found).map_or(&forward.at, |(_, at)| at)
}

#[cfg(test)]
mod tests {
    use scene::Scene;

    #[test]
    fn only_what_comes_to_the_same_endpoint_and_zone_again_is_refused() {
        let refused = |place: &str, upstream: &str| {
            Some(format!(
                "stdin:{place}: plugin/forward: the upstream {upstream} is this server itself and leads back to this block: queries would go round in circles; name another one"
            ))
        };
        let block = |key: &str, body: &str| format!("{key} {{\nbind 127.0.0.1\n{body}\n}}\n");
        let chain = |last: &str| {
            [
                block(".", "forward . 127.0.0.1:5301 127.0.0.1:5302"),
                block(".:5301", "forward . 192.0.2.1"),
                block(".:5302", last),
            ]
            .concat()
        };
        for (text, error) in [
            // By itself.
            (block(".", "forward . 192.0.2.53 127.0.0.1"), refused("3:22", "127.0.0.1:53")),
            (".:54 {\nforward . 127.0.0.1:54\n}\n".to_owned(), refused("2:11", "127.0.0.1:54")),
            (".:54 {\nforward . [::1]:54\n}\n".to_owned(), refused("2:11", "[::1]:54")),
            (".:54 {\nforward . 127.0.0.1:53 192.0.2.53:54\n}\n".to_owned(), None),
            (block(".", "forward . 127.0.0.1:54 127.0.0.2"), None),
            // By others of ours.
            (chain("forward . 192.0.2.2"), None),
            (chain("forward . 127.0.0.1:5301"), None),
            (chain("whoami"), None),
            (chain("forward . 127.0.0.1"), refused("3:26", "127.0.0.1:5302")),
            (chain("forward . 127.0.0.1:5302"), refused("11:11", "127.0.0.1:5302")),
            // Only names below a.example go on, and come back as such.
            (chain("forward a.example 127.0.0.1"), refused("11:19", "127.0.0.1:53")),
            (chain("forward a.example 127.0.0.1") + &block("a.example", "whoami"), None),
            // Another zone of the same endpoint is no circle.
            (
                block("a.example", "forward . 127.0.0.1") + &block(".", "forward . 192.0.2.1"),
                refused("3:11", "127.0.0.1:53"),
            ),
            (block("a.example", "forward . 127.0.0.1:54") + &block(".:54", "forward . 192.0.2.1"), None),
            (block("a.example", "forward b.example 127.0.0.1"), None),
            (
                block("a.example", "forward . 127.0.0.1:54") + &block("example:54", "forward . 127.0.0.1"),
                refused("3:11", "127.0.0.1:54"),
            ),
            (
                block("a.example", "forward . 127.0.0.1:54") + &block("b.example:54", "forward . 127.0.0.1"),
                None,
            ),
        ] {
            assert_eq!(Scene::build(&text).err(), error, "{text}");
        }
    }
}
