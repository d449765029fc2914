//! `localdns explain NAME [TYPE] [@ADDRESS]`: which server block and which plugin would answer, and why. Sends no query.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use wire::{Class, Flags, Name, Query, RType};

use crate::{Configuration, EndpointPlan};
use plugin::failure::Failure;
use plugin::middleware::{EffectiveQuery, question};

/// The arguments of `explain NAME [TYPE] [@ADDRESS]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explain {
    /// The query name.
    pub name: Name,
    /// The query type; default A.
    pub rtype: RType,
    /// The listen address; default all.
    pub address: Option<IpAddr>,
    /// The listen port; default all.
    pub port: Option<u16>,
}

/// Returns one line for each listen address that is selected.
///
/// # Errors
/// No listen address is selected.
pub fn explain(configuration: &Configuration, request: &Explain) -> Result<String, String> {
    let question = question(&request.name, request.rtype, Class::IN);
    let query = Query {
        id: 0,
        flags: Flags(Flags::RD),
        question: &question,
        name: request.name,
        rtype: request.rtype,
        class: Class::IN,
        edns: None,
        size: wire::HEADER + question.len(),
        overrides: wire::UpstreamOverrides::NONE,
    };
    let mut text = String::new();
    let bound: BTreeSet<_> = configuration.endpoints.keys().map(|endpoint| endpoint.address).collect();
    for (endpoint, plan) in &configuration.endpoints {
        if !request.address.is_none_or(|wanted| reaches(wanted, endpoint.address, &bound))
            || request.port.is_some_and(|port| port != endpoint.address.port())
        {
            continue;
        }
        let _ = writeln!(text, "{} {} @{endpoint}: {}", request.name, request.rtype, one(plan, &query));
    }
    match (text.is_empty(), request.address, request.port) {
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

/// Whether a packet to `wanted` is received at the listen address `address`: the two are equal, or
/// `address` is the wildcard of the family and no endpoint of that port has exactly `wanted`.
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

/// Returns the result of a query to one endpoint: that of each view that may admit it, in their order,
/// since a view depends on the client.
fn one(plan: &EndpointPlan, query: &Query<'_>) -> String {
    let failed = |failure: Failure| format!("{}: {failure}", failure.rcode());
    let zones = match plan.served.route.candidates(query) {
        Ok(zones) => zones,
        Err(failure) => return failed(failure),
    };
    let mut parts = Vec::new();
    let mut may_pass = false;
    for zone in zones {
        let mut effective = EffectiveQuery::new(query, &zone.server, false);
        let (plugin, reason) = zone.block.pipeline.explain(&mut effective, &zone.zone);
        let view = zone.block.envelope.view.as_ref();
        may_pass = view.is_some();
        let view = view.map(|view| format!(" in {}", view.explain())).unwrap_or_default();
        parts.push(format!("block {} ({}){view}, {plugin}: {reason}", zone.zone, zone.block.at));
    }
    if may_pass {
        parts.push(failed(Failure::NoZone));
    }
    parts.join("; else ")
}

/// Maximum number of addresses in the error.
const MOST_SHOWN: usize = 8;
