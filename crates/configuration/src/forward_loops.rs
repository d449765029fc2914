//! Finds forwarding loops: upstreams that are this server itself, by which a query would return to the same endpoint and zone.
//!
//! ```text
//! . { forward . 127.0.0.1:5301 }             .:5301 { forward . 192.0.2.53 }     a chain: served
//! . { forward . 127.0.0.1:5301 192.0.2.53 }  .:5301 { forward . 127.0.0.1:53 }   a loop: 127.0.0.1:5301 is left out
//! . { forward . 127.0.0.1:5301 }             .:5301 { forward . 127.0.0.1:53 }   no upstream remains: refused
//! ```
//! The plugin `loop` finds loops through other machines.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use corefile::{Located, Location};
use forwarder::{Stanza, Upstream};
use logging::Logger;
use node::Interface;
use wire::Name;

use crate::{Configuration, EndpointPlan};
use plugin::args::Result;
use plugin::endpoint::Endpoint;
use plugin::{SetupError, Spec};
use plugins::forward::{ForwardSpec, ForwardSpecs, ForwardTarget};
use query::ServedZone;

/// Removes looping upstreams from every `forward` of a new configuration, with a warning for each.
///
/// `all_known` is whether the host names among upstreams have been looked up. If not, a host name
/// may stand for an upstream that remains.
///
/// # Errors
/// [`SetupError::Circle`] if no upstream of a `forward` would remain, at the word of the upstream, or of the file or host name
/// that it is from.
pub(crate) fn remove_loops(
    spec: &Spec,
    configuration: &Configuration,
    all_known: bool,
    logger: &Logger,
) -> Result<()> {
    for checked in check(configuration, None) {
        let specs = spec.blocks[checked.block].get::<ForwardSpecs>();
        let Some(forward) = specs.and_then(|specs| specs.stanzas.get(checked.nth)) else { continue };
        let looping = checked.looping();
        let has_name = forward.targets.iter().any(|(target, _)| matches!(target, ForwardTarget::Host { .. }));
        if checked.none_remains()
            && (all_known || !has_name)
            && let Some(upstream) = looping.last().map(|upstream| endpoint(upstream))
        {
            return Err(Located::new(place(forward, upstream), SetupError::Circle { upstream }));
        }
        for upstream in looping.iter().map(|upstream| endpoint(upstream)) {
            let at = place(forward, upstream);
            logger.warning(None, &format!("{at}: {}", plugins::forward::left_out(upstream)));
        }
        checked.stanza.leave_out_ourselves(looping);
    }
    Ok(())
}

/// Returns which of `upstreams` would loop back to the stanza if they were its upstreams.
pub fn looping(
    configuration: &Configuration,
    stanza: &Stanza,
    upstreams: &[Arc<Upstream>],
) -> Vec<Arc<Upstream>> {
    let mut all = check(configuration, Some((stanza, upstreams))).into_iter();
    let found = all.find(|checked| std::ptr::eq(checked.stanza, stanza));
    found.map(|checked| checked.looping()).unwrap_or_default()
}

/// Checks the serving configuration for loops again, after the machine's addresses or the upstreams of a `forward` have changed.
pub fn recheck(configuration: &Configuration, logger: &Logger) {
    for checked in check(configuration, None) {
        let (stanza, looping) = (checked.stanza, checked.looping());
        let before = stanza.leave_out_ourselves(looping.clone());
        let at = &configuration.blocks[checked.block].at;
        let only_in = |one: &[Arc<Upstream>], other: &[Arc<Upstream>]| {
            let is_in = |upstream: &&Arc<Upstream>| !other.iter().any(|of| Arc::ptr_eq(of, upstream));
            one.iter().filter(is_in).map(|upstream| endpoint(upstream)).collect::<Vec<_>>()
        };
        for upstream in only_in(&looping, &before) {
            let warning = format!("{at}: {}", plugins::forward::left_out(upstream));
            match looping.len() == checked.known.len() {
                true => logger.error(
                    None,
                    &format!("{warning}; no upstream of `forward {}` is left", stanza.spec().from_text()),
                ),
                false => logger.warning(None, &warning),
            }
        }
        for upstream in only_in(&before, &looping) {
            logger.info(
                None,
                &format!("{at}: plugin/forward: the upstream {upstream} is no longer this server itself and is queried again"),
            );
        }
    }
}

/// The upstreams of one `forward`, and which of them loop.
struct Checked<'h> {
    block: usize,
    /// The number of the `forward` within the block.
    nth: usize,
    stanza: &'h Stanza,
    known: Arc<Vec<Arc<Upstream>>>,
    is_out: Vec<bool>,
}

impl Checked<'_> {
    fn looping(&self) -> Vec<Arc<Upstream>> {
        let all = self.known.iter().zip(&self.is_out);
        all.filter(|(_, is_out)| **is_out).map(|(upstream, _)| upstream.clone()).collect()
    }

    fn none_remains(&self) -> bool {
        !self.known.is_empty() && !self.is_out.contains(&false)
    }
}

/// Returns every `forward` with the upstreams to remove so that no query loops. `changed` is a
/// stanza with the upstreams to assume for it.
///
/// A loop through several `forward`s is broken by the removal of one upstream: the first, in file
/// order, of a `forward` that has other upstreams. If each `forward` of the loop has a single
/// upstream, all of these are removed.
fn check<'h>(
    configuration: &'h Configuration,
    changed: Option<(&Stanza, &[Arc<Upstream>])>,
) -> Vec<Checked<'h>> {
    let mut all = Vec::new();
    let mut search = Search::new(configuration);
    for block in &configuration.blocks {
        let stanzas = block.pipeline.forwarding().map(|forwarding| forwarding.chain.stanzas());
        for (nth, stanza) in stanzas.unwrap_or_default().iter().enumerate() {
            let known = match changed {
                Some((of, upstreams)) if std::ptr::eq(of, &**stanza) => Arc::new(upstreams.to_vec()),
                _ => stanza.known(),
            };
            let is_out = vec![false; known.len()];
            search
                .upstreams
                .insert((block.index, nth), known.iter().map(|upstream| endpoint(upstream)).collect());
            all.push(Checked { block: block.index, nth, stanza, known, is_out });
        }
    }
    for must_remain in [1, 0] {
        for checked in &mut all {
            let mut left = checked.is_out.iter().filter(|is_out| !**is_out).count();
            for (upstream, is_out) in checked.known.iter().zip(&mut checked.is_out) {
                let upstream = endpoint(upstream);
                let from = &checked.stanza.spec().from;
                if !*is_out && left > must_remain && search.loops(checked.block, from, upstream) {
                    *is_out = true;
                    left -= 1;
                    if let Some(asked) = search.upstreams.get_mut(&(checked.block, checked.nth)) {
                        asked.retain(|asked| *asked != upstream);
                    }
                }
            }
        }
    }
    all
}

/// The search for loops, with memoised results. As long as upstreams are on other machines, the
/// cost grows with the sum of blocks and upstreams, not with their product.
struct Search<'h> {
    endpoints: &'h BTreeMap<Endpoint, EndpointPlan>,
    /// The endpoints and zones of each block.
    homes: HashMap<usize, Vec<Home<'h>>>,
    /// The upstreams of each `forward` of each block.
    upstreams: HashMap<(usize, usize), Vec<Endpoint>>,
    /// The listener that receives packets to an address.
    listeners: HashMap<Endpoint, Option<(Endpoint, &'h EndpointPlan)>>,
    /// The machine's addresses; read once.
    interfaces: OnceCell<Vec<Interface>>,
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
        Self {
            endpoints: &configuration.endpoints,
            homes,
            upstreams: HashMap::new(),
            listeners: HashMap::new(),
            interfaces: OnceCell::new(),
        }
    }

    /// Whether queries below `from` that this block sends to `upstream` return to the same endpoint and zone.
    fn loops(&mut self, block: usize, from: &Name, upstream: Endpoint) -> bool {
        // Most upstreams are at addresses that this server does not listen on.
        if self.plan_at(upstream).is_none() {
            return false;
        }
        let homes = self.homes.get(&block).cloned().unwrap_or_default();
        homes.into_iter().any(|home| {
            // The names within both `from` and the zone: there are none unless one of the two is
            // within the other.
            let Some(name) = deeper(&home.1.zone, from) else { return false };
            self.reaches(home, name, upstream)
        })
    }

    /// Whether a query for `name` to `upstream` is forwarded to `home`.
    fn reaches(&mut self, home: Home<'h>, name: &Name, upstream: Endpoint) -> bool {
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
            let stanzas = forwarding.chain.stanzas().iter().enumerate();
            for (nth, stanza) in stanzas.filter(|(_, stanza)| stanza.matches(name)) {
                next.extend(self.upstreams.get(&(zone.block.index, nth)).into_iter().flatten());
                // With `next`, queries of this `forward` may go on to the next matching one.
                if stanza.spec().next.is_empty() && !stanza.spec().next_on_nodata {
                    break;
                }
            }
        }
        false
    }

    /// Returns the listener that receives packets to an address: the one with the exact address,
    /// else the wildcard of the address's family, else the other wildcard.
    fn plan_at(&mut self, endpoint: Endpoint) -> Option<(Endpoint, &'h EndpointPlan)> {
        if let Some(known) = self.listeners.get(&endpoint) {
            return *known;
        }
        let Endpoint { transport, address: at } = endpoint;
        let on = |ip: IpAddr| Endpoint { transport, address: SocketAddr::new(ip, at.port()) };
        let wildcard = |ip: IpAddr| self.endpoints.get_key_value(&on(ip));
        // An IPv6 endpoint may have a scope that the upstream lacks; the sorted map keeps the
        // endpoints of one address and port together.
        let own = self.endpoints.range(on(at.ip())..).next();
        let exact = self.endpoints.get_key_value(&endpoint);
        let same = |own: &Endpoint| (own.address.ip(), own.address.port()) == (at.ip(), at.port());
        let exact = exact.or_else(|| own.filter(|(own, _)| own.transport == transport && same(own)));
        let all: [IpAddr; 2] = match at {
            SocketAddr::V4(_) => [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
            SocketAddr::V6(_) => [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
        };
        let is_local =
            |interfaces: &[Interface]| at.ip().is_unspecified() || node::is_local(interfaces, at.ip());
        let read = || node::interfaces().unwrap_or_default();
        let of_all = || {
            let found = all.into_iter().find_map(wildcard)?;
            is_local(self.interfaces.get_or_init(read)).then_some(found)
        };
        let found = exact.or_else(of_all).map(|(endpoint, plan)| (*endpoint, plan));
        self.listeners.insert(endpoint, found);
        found
    }
}

/// Returns the endpoint of an upstream.
fn endpoint(upstream: &Upstream) -> Endpoint {
    Endpoint::of_upstream(upstream.address(), upstream.tls().is_some())
}

/// Returns the name that is within the other, if one is.
fn deeper<'n>(one: &'n Name, other: &'n Name) -> Option<&'n Name> {
    match (one.is_within(other), other.is_within(one)) {
        (true, _) => Some(one),
        (_, true) => Some(other),
        _ => None,
    }
}

/// Returns the location of the word in the Corefile that an upstream is from.
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

    /// Builds a configuration; returns the warnings and the upstreams of each block, or the error.
    fn built(text: &str) -> Result<(String, Vec<String>), String> {
        let scene = Scene::build(text)?;
        let asked = scene.configuration.blocks.iter().map(|block| {
            let chain = block.pipeline.forwarding().map(|forwarding| &forwarding.chain);
            let stanzas = chain.map(|chain| chain.stanzas()).unwrap_or_default();
            let upstreams = stanzas.iter().flat_map(|stanza| stanza.upstreams().to_vec());
            upstreams.map(|upstream| upstream.address().to_string()).collect::<Vec<_>>().join(" ")
        });
        let asked = asked.collect();
        Ok((scene.log.read(&scene.shared.logger), asked))
    }

    fn block(key: &str, body: &str) -> String {
        format!("{key} {{\nbind 127.0.0.1\n{body}\n}}\n")
    }

    fn chain(last: &str) -> String {
        [
            block(".", "forward . 127.0.0.1:5301 127.0.0.1:5302"),
            block(".:5301", "forward . 192.0.2.1"),
            block(".:5302", last),
        ]
        .concat()
    }

    fn left_out(place: &str, upstream: &str) -> String {
        format!(
            "[WARNING] stdin:{place}: plugin/forward: the upstream {upstream} is this server itself: queries would return to this block, so it is left out\n"
        )
    }

    #[test]
    fn looping_upstreams_are_left_out() {
        let itself = ".:54 {\nforward . 127.0.0.1:54 [::1]:54 192.0.2.53\n}\n".to_owned();
        let both = left_out("2:11", "127.0.0.1:54") + &left_out("2:24", "[::1]:54");
        for (text, warned, asked) in [
            // An upstream is the block's own endpoint.
            (block(".", "forward . 192.0.2.53 127.0.0.1"), left_out("3:22", "127.0.0.1:53"), "192.0.2.53:53"),
            (itself, both, "192.0.2.53:53"),
            (block(".", "forward . 127.0.0.1:54 127.0.0.2"), String::new(), "127.0.0.1:54 127.0.0.2:53"),
            // Through other blocks; the link that is removed depends on where other upstreams remain.
            (chain("forward . 192.0.2.2"), String::new(), "127.0.0.1:5301 127.0.0.1:5302"),
            (chain("forward . 127.0.0.1:5301"), String::new(), "127.0.0.1:5301 127.0.0.1:5302"),
            (chain("forward . 127.0.0.1"), left_out("3:26", "127.0.0.1:5302"), "127.0.0.1:5301"),
            (
                block(".:5302", "forward . 127.0.0.1") + &block(".", "forward . 127.0.0.1:5302 192.0.2.1"),
                left_out("7:11", "127.0.0.1:5302"),
                "127.0.0.1:53",
            ),
            (
                chain("forward . 127.0.0.1:5302 192.0.2.2"),
                left_out("11:11", "127.0.0.1:5302"),
                "127.0.0.1:5301 127.0.0.1:5302",
            ),
            (
                chain("forward . 192.0.2.2 {\nnext NXDOMAIN\n}\nforward . 127.0.0.1"),
                left_out("3:26", "127.0.0.1:5302"),
                "127.0.0.1:5301",
            ),
            // Only queries below a.example are forwarded further, and another block answers them.
            (
                chain("forward a.example 127.0.0.1") + &block("a.example", "whoami"),
                String::new(),
                "127.0.0.1:5301 127.0.0.1:5302",
            ),
        ] {
            let found = built(&text).map(|(warned, blocks)| (warned, blocks[0].clone()));
            assert_eq!(found, Ok((warned, asked.to_owned())), "{text}");
        }
    }

    #[test]
    fn stanza_without_upstreams_is_refused() {
        let refused = |place: &str, upstream: &str| {
            Some(format!(
                "stdin:{place}: plugin/forward: the upstream {upstream} is this server itself: its queries would return to this server block; name another upstream"
            ))
        };
        for (text, error) in [
            (block(".", "forward . 127.0.0.1"), refused("3:11", "127.0.0.1:53")),
            (".:54 {\nforward . 127.0.0.1:54\n}\n".to_owned(), refused("2:11", "127.0.0.1:54")),
            (".:54 {\nforward . [::1]:54\n}\n".to_owned(), refused("2:11", "[::1]:54")),
            (".:54 {\nforward . [::1]:54 127.0.0.1:54\n}\n".to_owned(), refused("2:20", "127.0.0.1:54")),
            (".:54 {\nforward . 127.0.0.1:53 192.0.2.53:54\n}\n".to_owned(), None),
            // A host name that was not looked up may be another server.
            (block(".", "forward . 127.0.0.1 dns.example"), None),
            // Another `forward` of the block has other upstreams, but not for these names.
            (block(".", "forward a.example 127.0.0.1\nforward . 192.0.2.1"), refused("3:19", "127.0.0.1:53")),
            (
                block(".", "forward . 127.0.0.1:5302") + &block(".:5302", "forward . 127.0.0.1"),
                refused("3:11", "127.0.0.1:5302"),
            ),
            // Only queries below a.example are forwarded further, and they return.
            (chain("forward a.example 127.0.0.1"), refused("11:19", "127.0.0.1:53")),
            // Another zone of the same endpoint: no loop.
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
            assert_eq!(built(&text).err(), error, "{text}");
        }
    }
}
