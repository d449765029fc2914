//! `localdns explain NAME [TYPE] [@ADDRESS]`: which server block and which plugin would answer, and why. It never dials.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use wire::{Class, Flags, Name, Query, RType};

use crate::{Configuration, EndpointPlan};
use plugin::middleware::{EffectiveQuery, question};

/// `explain NAME [TYPE] [@ADDRESS]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explain {
    /// The name asked for.
    pub name: Name,
    /// The type asked for; default A.
    pub rtype: RType,
    /// The address asked; every one where none is named.
    pub address: Option<IpAddr>,
    /// Its port; every one where none is named.
    pub port: Option<u16>,
}

/// One line for each listen address, or for each at which the one asked is served.
///
/// # Errors
/// Nothing listens there.
pub fn explain(configuration: &Configuration, wish: &Explain) -> Result<String, String> {
    let question = question(&wish.name, wish.rtype, Class::IN);
    let query = Query {
        id: 0,
        flags: Flags(Flags::RD),
        question: &question,
        name: wish.name,
        rtype: wish.rtype,
        class: Class::IN,
        edns: None,
        size: wire::HEADER + question.len(),
        overrides: wire::UpstreamOverrides::NONE,
    };
    let mut text = String::new();
    let bound: BTreeSet<_> = configuration.endpoints.keys().map(|endpoint| endpoint.address).collect();
    for (endpoint, plan) in &configuration.endpoints {
        if !wish.address.is_none_or(|wanted| reaches(wanted, endpoint.address, &bound))
            || wish.port.is_some_and(|port| port != endpoint.address.port())
        {
            continue;
        }
        let _ = writeln!(text, "{} {} @{endpoint}: {}", wish.name, wish.rtype, one(plan, &query));
    }
    match (text.is_empty(), wish.address, wish.port) {
        (false, ..) => Ok(text),
        (true, Some(address), None) => {
            let served: BTreeSet<_> = bound.iter().map(SocketAddr::ip).collect();
            Err(nothing_listens(&address.to_string(), served.iter().map(ToString::to_string).collect()))
        }
        (true, Some(address), Some(port)) => {
            let wanted = SocketAddr::new(address, port).to_string();
            Err(nothing_listens(&wanted, bound.iter().map(ToString::to_string).collect()))
        }
        (true, None, _) => Err("nothing listens".to_owned()),
    }
}

/// Whether who asks `wanted` is heard at that address: it is that one, or the wildcard of its family and no endpoint has
/// it alone.
fn reaches(wanted: IpAddr, address: SocketAddr, bound: &BTreeSet<SocketAddr>) -> bool {
    let has_own = || bound.iter().any(|own| own.ip() == wanted && own.port() == address.port());
    wanted == address.ip()
        || address.ip().is_unspecified() && address.is_ipv4() == wanted.is_ipv4() && !has_own()
}

fn nothing_listens(wanted: &str, mut served: Vec<String>) -> String {
    let more = if served.len() > MOST_SHOWN { " and others" } else { "" };
    served.truncate(MOST_SHOWN);
    format!("nothing listens on {wanted}, but on {}{more}", served.join(", "))
}

fn one(plan: &EndpointPlan, query: &Query<'_>) -> String {
    let zone = match plan.served.route.find(query) {
        Ok(zone) => zone,
        Err(failure) => return format!("{}: {failure}", failure.rcode()),
    };
    let mut sought = EffectiveQuery::new(query, &zone.server, false);
    let (who, why) = zone.block.pipeline.explain(&mut sought, &zone.zone);
    format!("block {} ({}), {who}: {why}", zone.zone, zone.block.at)
}

/// Addresses that are told.
const MOST_SHOWN: usize = 8;
