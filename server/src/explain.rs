//! `localdns explain NAME [TYPE] [@ADDRESS]`: which server block and which plugin would answer, and why. It never dials.

use std::fmt::Write as _;

use wire::{Class, Flags, Name, Query};

use crate::cli::Explain;
use crate::house::{House, Listener, ServedZone};
use crate::plugin::template::Verdict;

/// One line for each listen address, or for the one asked.
pub fn explain(house: &House, wish: &Explain) -> Result<String, String> {
    let mut question = wish.name.as_wire().to_vec();
    question.extend_from_slice(&wish.rtype.0.to_be_bytes());
    question.extend_from_slice(&Class::IN.0.to_be_bytes());
    let query = Query {
        id: 0,
        flags: Flags(Flags::RD),
        question: &question,
        name: wish.name,
        rtype: wish.rtype,
        class: Class::IN,
        edns: None,
        size: wire::HEADER + question.len(),
    };
    let mut text = String::new();
    for (address, listener) in &house.listeners {
        if wish.address.is_some_and(|wanted| wanted != address.ip()) {
            continue;
        }
        let _ = writeln!(text, "{} {} @{}: {}", wish.name, wish.rtype, address.ip(), one(listener, &query));
    }
    match (text.is_empty(), wish.address) {
        (false, _) => Ok(text),
        (true, Some(address)) => Err(format!("nothing listens on {address}")),
        (true, None) => Err("nothing listens".to_owned()),
    }
}

fn one(listener: &Listener, query: &Query<'_>) -> String {
    let zone = match listener.route.find(query) {
        Ok(zone) => zone,
        Err(failure) => return format!("{}: {failure}", failure.rcode()),
    };
    let (who, why) = plugin(zone, query);
    format!("block {} ({}), {who}: {why}", zone.zone, zone.block.at)
}

/// Who would answer, and why: the same order as the pipeline's.
fn plugin(zone: &ServedZone, query: &Query<'_>) -> (&'static str, String) {
    let pipeline = &zone.block.pipeline;
    let name = &query.name;
    let mut passed = String::new();
    if let Some(templates) = pipeline.templates() {
        match templates.explain(query) {
            Some(Verdict::Matches { template, pattern }) => {
                return ("template", format!("`template {template}` matches by {pattern:?}"));
            }
            Some(Verdict::NoPattern { template }) => {
                return (
                    "template",
                    format!(
                        "SERVFAIL: no pattern of `template {template}` matches and it does not fall through"
                    ),
                );
            }
            None => passed.push_str("no template matches; "),
        }
    }
    if let Some(hosts) = pipeline.hosts() {
        let spec = hosts.table().spec();
        let file = spec.file.display();
        match hosts.table().knows(name, query.rtype) {
            Some(true) => return ("hosts", format!("{passed}{file} has {} for it", query.rtype)),
            Some(false) if !hosts.goes_on(query) => {
                return ("hosts", format!("{passed}NODATA: {file} knows the name, but no {}", query.rtype));
            }
            Some(false) => {}
            None => {
                let within = spec.zones.iter().any(|zone| name.is_within(zone));
                if within && query.rtype != wire::RType::PTR && !spec.fallthrough.through(name) {
                    return (
                        "hosts",
                        format!(
                            "{passed}SERVFAIL: {file} does not know the name, and `fallthrough` is not written"
                        ),
                    );
                }
                let _ = write!(passed, "not in {file}; ");
            }
        }
    }
    if let Some(dial) = pipeline.dial()
        && let Some(group) = dial.chain.groups().iter().find(|group| group.matches(name))
    {
        let upstreams: Vec<String> =
            group.upstreams().iter().map(|upstream| upstream.address().to_string()).collect();
        let cached = match dial.cache.as_ref().and_then(|room| room.covering(name)) {
            Some(_) => "cache, else forward",
            None => "forward",
        };
        let from = &group.spec().from;
        return (cached, format!("{passed}`forward {from}` asks {}", upstreams.join(", ")));
    }
    if pipeline.ends_in_whoami() {
        return ("whoami", format!("{passed}it answers every name"));
    }
    ("nobody", format!("{passed}SERVFAIL: no plugin of the block answers {}", below(name, &zone.zone)))
}

fn below(name: &Name, zone: &Name) -> String {
    if name == zone { "the zone's own name".to_owned() } else { format!("names below {zone}") }
}
