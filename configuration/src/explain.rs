//! `localdns explain NAME [TYPE] [@ADDRESS]`: which server block and which plugin would answer, and why. It never dials.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use wire::{Class, Flags, Name, Query, RType};

use crate::{Configuration, Listener};
use plugin::step::{Sought, question};

/// `explain NAME [TYPE] [@ADDRESS]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explain {
    /// The name asked for.
    pub name: Name,
    /// The type asked for; default A.
    pub rtype: RType,
    /// The listen address asked; every one where none is named.
    pub address: Option<IpAddr>,
}

/// One line for each listen address, or for the one asked.
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
        added: wire::Added::NOTHING,
    };
    let mut text = String::new();
    for (endpoint, listener) in &configuration.listeners {
        if wish.address.is_some_and(|wanted| wanted != endpoint.address.ip()) {
            continue;
        }
        let _ = writeln!(text, "{} {} @{endpoint}: {}", wish.name, wish.rtype, one(listener, &query));
    }
    match (text.is_empty(), wish.address) {
        (false, _) => Ok(text),
        (true, Some(address)) => {
            let served: BTreeSet<_> = configuration.listeners.keys().map(|one| one.address.ip()).collect();
            let shown: Vec<_> = served.iter().take(MOST_SHOWN).map(ToString::to_string).collect();
            let more = if served.len() > MOST_SHOWN { " and others" } else { "" };
            Err(format!("nothing listens on {address}, but on {}{more}", shown.join(", ")))
        }
        (true, None) => Err("nothing listens".to_owned()),
    }
}

fn one(listener: &Listener, query: &Query<'_>) -> String {
    let zone = match listener.served.route.find(query) {
        Ok(zone) => zone,
        Err(failure) => return format!("{}: {failure}", failure.rcode()),
    };
    let mut sought = Sought::new(query, &zone.server, false);
    let steps = zone.block.pipeline.steps().iter();
    let around: String =
        steps.filter_map(|step| step.explain(&mut sought, None)).map(|text| text + "; ").collect();
    let (who, why) = zone.block.pipeline.explain(&sought.query(), &zone.zone);
    format!("block {} ({}), {who}: {around}{why}", zone.zone, zone.block.at)
}

/// Addresses that are told.
const MOST_SHOWN: usize = 8;
