//! `loadbalance`: sets the order of addresses in answers.

mod weighted;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use corefile::Directive;
use files::ShownPath;
use ipnet::IpNet;
use rand::seq::SliceRandom as _;
use wire::{Message, RType, Rcode, Rr, Section};

use plugin::QueryContext;
use plugin::args::{Args, Result, bad, once, path, unknown_property};
use plugin::cidr::canonical;
use plugin::middleware::{EffectiveQuery, HookResult, Middleware, OnQuery, ResponseHook, Subqueries};
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec, ParseContext};
use weighted::{WeightFiles, Weights};

/// The `loadbalance` directive.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LoadbalanceSpec {
    policy: Policy,
    /// Networks; addresses in them are put first, in this order.
    prefer: Vec<IpNet>,
}

/// The method of ordering.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Policy {
    /// Addresses are shuffled at random.
    RoundRobin,
    /// One address is drawn by weight and put first. `reload` is the interval of reading the file;
    /// 0 for never.
    Weighted { file: ShownPath, reload: Duration },
}

/// Reads the one `loadbalance` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn MiddlewareSpec>> {
    Ok(Arc::new(LoadbalanceSpec::read(directives, written.root())?))
}

impl MiddlewareSpec for LoadbalanceSpec {
    fn build(&self, context: &BuildContext<'_>) -> Result<Arc<dyn Middleware>> {
        let weights = match &self.policy {
            Policy::RoundRobin => None,
            Policy::Weighted { file, reload } => {
                Some(context.reload_state.get::<WeightFiles>().follow(file, *reload))
            }
        };
        Ok(Arc::new(Loadbalance { spec: self.clone(), weights }))
    }

    fn keeps_names(&self) -> bool {
        true
    }
}

impl LoadbalanceSpec {
    /// Reads the one `loadbalance` of a server block.
    fn read(directives: &[&Directive], root: Option<&ShownPath>) -> Result<Self> {
        let directive = once(PLUGIN, directives)?;
        let mut args = Args::new(PLUGIN, directive, "[round_robin | weighted FILE]");
        let mut policy = match args.optional() {
            None => Policy::RoundRobin,
            Some(word) => match word.text.as_str() {
                "round_robin" => Policy::RoundRobin,
                "weighted" => Policy::Weighted { file: path(root, args.required()?), reload: RELOAD },
                _ => return Err(bad(PLUGIN, word, "a policy: round_robin or weighted")),
            },
        };
        args.end()?;
        let mut prefer = Vec::new();
        for property in directive.body.iter().flatten() {
            match (property.name.text.as_str(), &mut policy) {
                ("prefer", _) => {
                    for word in Args::new(PLUGIN, property, "networks, such as 10.0.0.0/8").some()? {
                        let network =
                            word.text.parse().map_err(|_| bad(PLUGIN, word, "a network, such as 10.0.0.0/8"));
                        prefer.push(canonical(network?));
                    }
                }
                ("reload", Policy::Weighted { reload, .. }) => {
                    let mut args = Args::new(PLUGIN, property, "a duration such as 30s; 0s for never");
                    *reload = args.duration("a duration such as 30s; 0s for never")?;
                    args.end()?;
                }
                (_, Policy::RoundRobin) => return Err(unknown_property(PLUGIN, property, &["prefer"])),
                _ => return Err(unknown_property(PLUGIN, property, &["prefer", "reload"])),
            }
        }
        Ok(Self { policy, prefer })
    }
}

/// The middleware of one server block.
#[derive(Debug)]
struct Loadbalance {
    spec: LoadbalanceSpec,
    /// The weights of `weighted`.
    weights: Option<Arc<Weights>>,
}

impl Middleware for Loadbalance {
    fn on_query<'s>(&'s self, _: &mut EffectiveQuery<'_>, _: &QueryContext<'_>) -> OnQuery<'s> {
        OnQuery::Hook(Box::new(self))
    }

    fn explain(&self, effective: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        if !matches!(effective.query().rtype, RType::A | RType::AAAA | RType::MX) {
            return Explanation::Passes(None);
        }
        Explanation::Passes(Some(match &self.spec.policy {
            Policy::RoundRobin => "the order of several addresses is random".to_owned(),
            Policy::Weighted { file, .. } => {
                format!("the first address is drawn by the weights in {}", file.display())
            }
        }))
    }
}

impl ResponseHook for &Loadbalance {
    fn on_response(
        &self,
        effective: &EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        response: &mut Message,
        _: &mut dyn Subqueries,
    ) -> HookResult {
        let asked = effective.client_query().rtype;
        if response.rcode != Rcode::NOERROR || matches!(asked, RType::AXFR | RType::IXFR) {
            return HookResult::Done;
        }
        let mut random = rand::rng();
        match &self.weights {
            None => {
                for section in [Section::Answer, Section::Authority, Section::Additional] {
                    arrange(response, section, Rest::First, |addresses, mx| {
                        addresses.shuffle(&mut random);
                        mx.shuffle(&mut random);
                    });
                }
            }
            Some(weights) if matches!(asked, RType::A | RType::AAAA | RType::SRV) => {
                for section in [Section::Answer, Section::Additional] {
                    arrange(response, section, Rest::First, |addresses, _| {
                        weights.draw(addresses, &mut random)
                    });
                }
            }
            Some(_) => {}
        }
        if !self.spec.prefer.is_empty() {
            let rank = |rr: &Rr| {
                let address = address(rr);
                self.spec
                    .prefer
                    .iter()
                    .position(|network| address.is_some_and(|address| network.contains(&address)))
            };
            for section in [Section::Answer, Section::Additional] {
                arrange(response, section, Rest::Last, |addresses, _| {
                    addresses.sort_by_key(|rr| rank(rr).unwrap_or(usize::MAX))
                });
            }
        }
        HookResult::Done
    }
}

/// Position of records other than aliases, addresses and mail exchangers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// After the aliases.
    First,
    /// At the end, where CoreDNS's `prefer` puts them.
    Last,
}

/// Sorts a section: aliases, addresses, mail exchangers; `order` sorts the last two.
fn arrange(response: &mut Message, section: Section, rest: Rest, order: impl FnOnce(&mut [Rr], &mut [Rr])) {
    let Some(start) = response.records.iter().position(|rr| rr.section == section) else { return };
    let count = response.section(section).count();
    let records = &mut response.records[start..start + count];
    let place = |rr: &Rr| match rr.rtype {
        RType::CNAME => 0,
        RType::A | RType::AAAA => 2,
        RType::MX => 3,
        _ if rest == Rest::First => 1,
        _ => 4,
    };
    records.sort_by_key(place);
    let addresses = records.partition_point(|rr| place(rr) < 2);
    let mx = records.partition_point(|rr| place(rr) < 3);
    let last = records.partition_point(|rr| place(rr) < 4);
    let (before, mx) = records[..last].split_at_mut(mx);
    order(&mut before[addresses..], mx);
}

/// Returns the address in a record.
fn address(rr: &Rr) -> Option<IpAddr> {
    match rr.rtype {
        RType::A => <[u8; 4]>::try_from(&*rr.data).ok().map(|octets| Ipv4Addr::from(octets).into()),
        RType::AAAA => <[u8; 16]>::try_from(&*rr.data).ok().map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

const PLUGIN: &str = "loadbalance";
/// Default interval between checks of a file of weights.
const RELOAD: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Others, a, packet, read, through};
    use wire::Name;

    fn spec(lines: &str) -> std::result::Result<LoadbalanceSpec, String> {
        read(lines, |directives| LoadbalanceSpec::read(directives, Some(&"/srv".into())))
    }

    #[test]
    fn policies_and_networks_are_read() {
        let weighted =
            |seconds| Policy::Weighted { file: "/srv/w".into(), reload: Duration::from_secs(seconds) };
        for (lines, policy) in [
            ("loadbalance", Policy::RoundRobin),
            ("loadbalance round_robin", Policy::RoundRobin),
            ("loadbalance weighted w", weighted(30)),
            ("loadbalance weighted w {\nreload 0s\n}", weighted(0)),
            ("loadbalance weighted w {\nreload 2m\nprefer 10.0.0.0/8\n}", weighted(120)),
        ] {
            assert_eq!(spec(lines).unwrap().policy, policy, "{lines}");
        }
        for (lines, error) in [
            (
                "loadbalance best",
                "2:13: plugin/loadbalance: \"best\" is not a policy: round_robin or weighted",
            ),
            (
                "loadbalance weighted",
                "2:1: plugin/loadbalance: `loadbalance` needs [round_robin | weighted FILE]",
            ),
            (
                "loadbalance {\nreload 1s\n}",
                "3:1: plugin/loadbalance: unknown property \"reload\"; expected prefer",
            ),
            (
                "loadbalance {\nprefer 10.0.0.1\n}",
                "3:8: plugin/loadbalance: \"10.0.0.1\" is not a network, such as 10.0.0.0/8",
            ),
        ] {
            assert_eq!(spec(lines).unwrap_err(), format!("Corefile:{error}"), "{lines}");
        }
    }

    #[test]
    fn other_records_and_addresses_order() {
        let others = [RType::SRV, RType::MX, RType::A, RType::CNAME];
        let records = others.map(|rtype| Rr::new(Section::Additional, &Name::ROOT, rtype, 1, b"\x01x\0"));
        let message = Message { records: records.into(), ..Message::default() };
        for (lines, order) in [
            ("loadbalance", [RType::CNAME, RType::SRV, RType::A, RType::MX]),
            ("loadbalance {\nprefer 192.0.2.0/24\n}", [RType::CNAME, RType::A, RType::MX, RType::SRV]),
        ] {
            let step = Loadbalance { spec: spec(lines).unwrap(), weights: None };
            let asked = packet("x", RType::A);
            let response =
                through(&step, "192.0.2.9", &asked, |_| message.clone(), &mut Others::default()).1.unwrap();
            assert_eq!(response.records.iter().map(|rr| rr.rtype).collect::<Vec<_>>(), order, "{lines}");
        }
    }

    #[test]
    fn aliases_then_near_addresses() {
        let step = Loadbalance {
            spec: spec("loadbalance {\nprefer ::ffff:192.0.2.4/128 192.0.2.2/32\n}").unwrap(),
            weights: None,
        };
        let alias = Rr::new(Section::Answer, &Name::ROOT, RType::CNAME, 1, b"\x01x\0");
        let mut records: Vec<Rr> = (1..=4).map(|last| a("x", 1, [192, 0, 2, last])).collect();
        records.push(alias);
        let message = Message { records, ..Message::default() };
        let asked = packet("x", RType::A);
        for _ in 0..20 {
            let response =
                through(&step, "192.0.2.9", &asked, |_| message.clone(), &mut Others::default()).1.unwrap();
            let last: Vec<u8> = response.records.iter().map(|rr| rr.data[rr.data.len() - 1]).collect();
            assert_eq!((response.records[0].rtype, &last[1..3]), (RType::CNAME, &[4, 2][..]));
            assert_eq!(response.records.len(), 5);
        }
    }
}
