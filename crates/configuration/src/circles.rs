//! Upstreams that are this server itself: legal, unless a query would return to the same endpoint and zone.
//!
//! ```text
//! . { forward . 127.0.0.1:5301 }             .:5301 { forward . 192.0.2.53 }     a chain: served
//! . { forward . 127.0.0.1:5301 192.0.2.53 }  .:5301 { forward . 127.0.0.1:53 }   a circle: 127.0.0.1:5301 is left out
//! . { forward . 127.0.0.1:5301 }             .:5301 { forward . 127.0.0.1:53 }   nothing would be left: refused
//! ```
//! Circles through other machines are found by `loop`.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use corefile::{Located, Location};
use forwarder::{Stanza, Upstream};
use node::Interface;
use observe::Logger;
use wire::Name;

use crate::{Configuration, EndpointPlan};
use plugin::args::Result;
use plugin::endpoint::Endpoint;
use plugin::{SetupError, Spec};
use plugins::forward::{ForwardSpec, ForwardSpecs, ForwardTarget};
use query::ServedZone;

/// Leaves out, in every `forward` of a new configuration, the upstreams by which queries would return, with a warning for each.
///
/// `all_known`: host names among upstreams have been looked up; where they have not, one of them may be left.
///
/// # Errors
/// [`SetupError::Circle`] where no upstream of a `forward` would be left, at the upstream or at the file or host name that it
/// is from.
pub(crate) fn leave_out(
    spec: &Spec,
    configuration: &Configuration,
    all_known: bool,
    logger: &Logger,
) -> Result<()> {
    for judged in judged(configuration, None) {
        let specs = spec.blocks[judged.block].get::<ForwardSpecs>();
        let Some(forward) = specs.and_then(|specs| specs.stanzas.get(judged.nth)) else { continue };
        let ourselves = judged.ourselves();
        let has_name = forward.targets.iter().any(|(target, _)| matches!(target, ForwardTarget::Host { .. }));
        if judged.is_nothing_left()
            && (all_known || !has_name)
            && let Some(upstream) = ourselves.last().map(|upstream| endpoint(upstream))
        {
            return Err(Located::new(place(forward, upstream), SetupError::Circle { upstream }));
        }
        for upstream in ourselves.iter().map(|upstream| endpoint(upstream)) {
            let at = place(forward, upstream);
            logger.warning(None, &format!("{at}: {}", plugins::forward::left_out(upstream)));
        }
        judged.stanza.leave_out_ourselves(ourselves);
    }
    Ok(())
}

/// Those of these upstreams by which queries would return to the stanza, were they its upstreams.
pub fn ourselves(
    configuration: &Configuration,
    stanza: &Stanza,
    upstreams: &[Arc<Upstream>],
) -> Vec<Arc<Upstream>> {
    let mut all = judged(configuration, Some((stanza, upstreams))).into_iter();
    let found = all.find(|judged| std::ptr::eq(judged.stanza, stanza));
    found.map(|judged| judged.ourselves()).unwrap_or_default()
}

/// Judges again which upstreams of the configuration that serves are this server itself: the machine has got or lost an
/// address, or a `forward` has other upstreams.
pub fn judge_again(configuration: &Configuration, logger: &Logger) {
    for judged in judged(configuration, None) {
        let (stanza, ourselves) = (judged.stanza, judged.ourselves());
        let before = stanza.leave_out_ourselves(ourselves.clone());
        let at = &configuration.blocks[judged.block].at;
        let only_in = |one: &[Arc<Upstream>], other: &[Arc<Upstream>]| {
            let is_in = |upstream: &&Arc<Upstream>| !other.iter().any(|of| Arc::ptr_eq(of, upstream));
            one.iter().filter(is_in).map(|upstream| endpoint(upstream)).collect::<Vec<_>>()
        };
        for upstream in only_in(&ourselves, &before) {
            let warning = format!("{at}: {}", plugins::forward::left_out(upstream));
            match ourselves.len() == judged.known.len() {
                true => logger.error(
                    None,
                    &format!("{warning}; no upstream of `forward {}` is left", stanza.spec().from),
                ),
                false => logger.warning(None, &warning),
            }
        }
        for upstream in only_in(&before, &ourselves) {
            logger.info(
                None,
                &format!("{at}: plugin/forward: the upstream {upstream} is no longer this server itself: it is asked"),
            );
        }
    }
}

/// The upstreams of one `forward`, and which of them are left out.
struct Judged<'h> {
    block: usize,
    /// Which `forward` of the block.
    nth: usize,
    stanza: &'h Stanza,
    known: Arc<Vec<Arc<Upstream>>>,
    is_out: Vec<bool>,
}

impl Judged<'_> {
    fn ourselves(&self) -> Vec<Arc<Upstream>> {
        let all = self.known.iter().zip(&self.is_out);
        all.filter(|(_, is_out)| **is_out).map(|(upstream, _)| upstream.clone()).collect()
    }

    fn is_nothing_left(&self) -> bool {
        !self.known.is_empty() && !self.is_out.contains(&false)
    }
}

/// Every `forward`, with the upstreams that are left out so that no query returns. `changed` has others than it is known to
/// have.
///
/// Of a longer chain one link is enough: the first, in file order, of a `forward` that has other upstreams; where each has
/// this one alone, all that lead back.
fn judged<'h>(
    configuration: &'h Configuration,
    changed: Option<(&Stanza, &[Arc<Upstream>])>,
) -> Vec<Judged<'h>> {
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
                .asked
                .insert((block.index, nth), known.iter().map(|upstream| endpoint(upstream)).collect());
            all.push(Judged { block: block.index, nth, stanza, known, is_out });
        }
    }
    for to_be_left in [1, 0] {
        for judged in &mut all {
            let mut left = judged.is_out.iter().filter(|is_out| !**is_out).count();
            for (upstream, is_out) in judged.known.iter().zip(&mut judged.is_out) {
                let upstream = endpoint(upstream);
                let from = &judged.stanza.spec().from;
                if !*is_out && left > to_be_left && search.leads_back(judged.block, from, upstream) {
                    *is_out = true;
                    left -= 1;
                    if let Some(asked) = search.asked.get_mut(&(judged.block, judged.nth)) {
                        asked.retain(|asked| *asked != upstream);
                    }
                }
            }
        }
    }
    all
}

/// What is looked for, and what was found already: the steps grow with blocks and upstreams, not with their product, where
/// upstreams are others' servers.
struct Search<'h> {
    endpoints: &'h BTreeMap<Endpoint, EndpointPlan>,
    /// Where each block serves which zones.
    homes: HashMap<usize, Vec<Home<'h>>>,
    /// What each `forward` of each block asks.
    asked: HashMap<(usize, usize), Vec<Endpoint>>,
    /// Which listener receives what is sent to an address.
    heard: HashMap<Endpoint, Option<(Endpoint, &'h EndpointPlan)>>,
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
            asked: HashMap::new(),
            heard: HashMap::new(),
            interfaces: OnceCell::new(),
        }
    }

    /// Whether names below `from` that this block sends to `upstream` return to the same endpoint and zone.
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
            let stanzas = forwarding.chain.stanzas().iter().enumerate();
            for (nth, stanza) in stanzas.filter(|(_, stanza)| stanza.matches(name)) {
                next.extend(self.asked.get(&(zone.block.index, nth)).into_iter().flatten());
                // Else the one that is asked next has queries of this one.
                if stanza.spec().next.is_empty() && !stanza.spec().next_on_nodata {
                    break;
                }
            }
        }
        false
    }

    /// The listener that receives what is sent there: that of exactly this address before one of all addresses, and of those
    /// the one of its family first.
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
        let is_local =
            |interfaces: &[Interface]| at.ip().is_unspecified() || node::is_local(interfaces, at.ip());
        let read = || node::interfaces().unwrap_or_default();
        let of_all = || {
            let found = all.into_iter().find_map(wildcard)?;
            is_local(self.interfaces.get_or_init(read)).then_some(found)
        };
        let found = exact.or_else(of_all).map(|(endpoint, plan)| (*endpoint, plan));
        self.heard.insert(endpoint, found);
        found
    }
}

/// Where an upstream is asked.
fn endpoint(upstream: &Upstream) -> Endpoint {
    Endpoint::of_upstream(upstream.address(), upstream.tls().is_some())
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

    /// Builds it: the error, or what is warned of and what each block asks.
    fn judged(text: &str) -> Result<(String, Vec<String>), String> {
        let scene = Scene::build(text)?;
        let asked = scene.configuration.blocks.iter().map(|block| {
            let chain = block.pipeline.forwarding().map(|forwarding| &forwarding.chain);
            let stanzas = chain.map(|chain| chain.stanzas()).unwrap_or_default();
            let upstreams = stanzas.iter().flat_map(|stanza| stanza.upstreams().to_vec());
            upstreams.map(|upstream| upstream.address().to_string()).collect::<Vec<_>>().join(" ")
        });
        let asked = asked.collect();
        Ok((scene.paper.read(&scene.shared.logger), asked))
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
    fn only_what_returns_to_its_zone_is_left_out() {
        let itself = ".:54 {\nforward . 127.0.0.1:54 [::1]:54 192.0.2.53\n}\n".to_owned();
        let both = left_out("2:11", "127.0.0.1:54") + &left_out("2:24", "[::1]:54");
        for (text, warned, asked) in [
            // By itself.
            (block(".", "forward . 192.0.2.53 127.0.0.1"), left_out("3:22", "127.0.0.1:53"), "192.0.2.53:53"),
            (itself, both, "192.0.2.53:53"),
            (block(".", "forward . 127.0.0.1:54 127.0.0.2"), String::new(), "127.0.0.1:54 127.0.0.2:53"),
            // By others of ours; which of its links is left out depends on where others are left.
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
            // Only names below a.example go on, and end elsewhere.
            (
                chain("forward a.example 127.0.0.1") + &block("a.example", "whoami"),
                String::new(),
                "127.0.0.1:5301 127.0.0.1:5302",
            ),
        ] {
            let found = judged(&text).map(|(warned, blocks)| (warned, blocks[0].clone()));
            assert_eq!(found, Ok((warned, asked.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_stanza_of_which_nothing_is_left_is_refused() {
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
            // Nothing is known of a name that was not looked up.
            (block(".", "forward . 127.0.0.1 dns.example"), None),
            // Another `forward` of the block has others, which are not asked for these names.
            (block(".", "forward a.example 127.0.0.1\nforward . 192.0.2.1"), refused("3:19", "127.0.0.1:53")),
            (
                block(".", "forward . 127.0.0.1:5302") + &block(".:5302", "forward . 127.0.0.1"),
                refused("3:11", "127.0.0.1:5302"),
            ),
            // Only names below a.example go on, and return as such.
            (chain("forward a.example 127.0.0.1"), refused("11:19", "127.0.0.1:53")),
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
            assert_eq!(judged(&text).err(), error, "{text}");
        }
    }
}
