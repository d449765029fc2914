//! Upstreams that are this server itself: legal, unless a query would come to the same endpoint and zone again.
//!
//! ```text
//! . { forward . 127.0.0.1:5301 }   .:5301 { forward . 192.0.2.53 }     a chain: served
//! . { forward . 127.0.0.1:5301 }   .:5301 { forward . 127.0.0.1:53 }   a circle: refused when the Corefile is read
//! ```
//! What leads back by other machines is for `loop`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use corefile::{Located, Location};
use wire::Name;

use crate::dial::is_ours;
use crate::house::{House, Listener, ServedZone};
use crate::setup::args::Result;
use crate::setup::{ForwardSpec, SetupError, Spec, Target};

/// Refuses the first upstream of `spec` that leads back.
///
/// # Errors
/// [`SetupError::Circle`], at the upstream or at the file or host name that it came from.
pub(crate) fn refuse(spec: &Spec, house: &House) -> Result<()> {
    for block in &house.blocks {
        let Some(dial) = block.pipeline.dial() else { continue };
        for (forward, group) in spec.blocks[block.index].forward.iter().zip(dial.chain.groups()) {
            let upstreams = group.upstreams();
            let plain = upstreams.iter().filter(|upstream| upstream.tls().is_none());
            for upstream in plain.map(|upstream| upstream.address()) {
                if leads_back(house, block.index, &forward.group.from, upstream) {
                    return Err(Located::new(place(forward, upstream), SetupError::Circle { upstream }));
                }
            }
        }
    }
    Ok(())
}

/// Whether names below `from` that this block sends to `upstream` come to the same endpoint and zone again.
pub(crate) fn leads_back(house: &House, block: usize, from: &Name, upstream: SocketAddr) -> bool {
    house.listeners.iter().any(|(address, listener)| {
        let zones = listener.route.zones().filter(|zone| zone.block.index == block);
        zones.into_iter().any(|zone| {
            // The names that both have; where neither is within the other there is none.
            let Some(name) = deeper(&zone.zone, from) else { return false };
            comes_back(&house.listeners, (*address, zone), name, upstream)
        })
    })
}

fn comes_back(
    listeners: &BTreeMap<SocketAddr, Listener>,
    home: (SocketAddr, &ServedZone),
    name: &Name,
    upstream: SocketAddr,
) -> bool {
    let (mut seen, mut next) = (Vec::new(), vec![upstream]);
    while let Some(upstream) = next.pop() {
        let Some((address, listener)) = listener_at(listeners, upstream) else { continue };
        let zones = listener.route.zones().filter(|zone| name.is_within(&zone.zone));
        let Some(zone) = zones.max_by_key(|zone| zone.zone.as_wire().len()) else { continue };
        if (address, zone.index) == (home.0, home.1.index) {
            return true;
        }
        if seen.contains(&zone.index) {
            continue;
        }
        seen.push(zone.index);
        let Some(dial) = zone.block.pipeline.dial() else { continue };
        if let Some(group) = dial.chain.groups().iter().find(|group| group.matches(name)) {
            let upstreams = group.upstreams();
            let plain = upstreams.iter().filter(|upstream| upstream.tls().is_none());
            next.extend(plain.map(|upstream| upstream.address()));
        }
    }
    false
}

/// Who hears what is sent there: a socket of exactly this address comes before one of all.
fn listener_at(
    listeners: &BTreeMap<SocketAddr, Listener>,
    at: SocketAddr,
) -> Option<(SocketAddr, &Listener)> {
    let exact = listeners.get_key_value(&at);
    let found = exact.or_else(|| listeners.iter().find(|(own, _)| is_ours(at, &[**own])));
    found.map(|(address, listener)| (*address, listener))
}

fn deeper<'n>(one: &'n Name, other: &'n Name) -> Option<&'n Name> {
    match (one.is_within(other), other.is_within(one)) {
        (true, _) => Some(one),
        (_, true) => Some(other),
        _ => None,
    }
}

/// The word that the upstream came from.
fn place(forward: &ForwardSpec, upstream: SocketAddr) -> &Location {
    let written = forward
        .targets
        .iter()
        .find(|(target, _)| matches!(target, Target::Address { address, .. } if *address == upstream));
    let found = || forward.targets.iter().find(|(target, _)| !matches!(target, Target::Address { .. }));
    written.or_else(found).map_or(&forward.at, |(_, at)| at)
}

#[cfg(test)]
mod tests {
    use crate::house::tests::Scene;

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
