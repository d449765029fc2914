//! `transfer`: the clients that may transfer zones of the block.

use std::net::IpAddr;
use std::sync::Arc;

use corefile::{Directive, Located};
use plugin::args::{Args, Result, bad, no_block, unknown_property, zones_or};
use plugin::spec::{BuildContext, Explanation, ParseContext, Source, SourceSpec};
use plugin::{QueryContext, SetupError};
use wire::{Name, Query, ZoneRequest};

/// All `transfer` directives of a server block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferSpec {
    rules: Vec<Rule>,
}

/// One directive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rule {
    zones: Vec<Name>,
    /// Whether `to *` permits every client.
    to_all: bool,
    to: Vec<IpAddr>,
}

/// Reads every `transfer` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    let rules = directives.iter().map(|directive| read_rule(directive, written)).collect::<Result<_>>()?;
    Ok(Arc::new(TransferSpec { rules }))
}

fn read_rule(directive: &Directive, written: ParseContext<'_>) -> Result<Rule> {
    let zones = zones_or(Args::new(PLUGIN, directive, "[ZONES...]").rest(), written.zones)?;
    let mut rule = Rule { zones, ..Rule::default() };
    let mut has_source = false;
    for property in directive.body.iter().flatten() {
        no_block(PLUGIN, property)?;
        match property.name.text.as_str() {
            "to" => {
                for word in Args::new(PLUGIN, property, TO).some()? {
                    match (&*word.text, node::socket_address(&word.text, 53)) {
                        ("*", _) => rule.to_all = true,
                        (_, Some(address)) => rule.to.push(address.ip().to_canonical()),
                        (_, None) => return Err(bad(PLUGIN, word, TO)),
                    }
                }
            }
            "source" => {
                let mut args = Args::new(PLUGIN, property, SOURCE);
                let word = args.required()?;
                args.end()?;
                if has_source {
                    let (first, second) = ("source", "source");
                    return Err(Located::new(
                        &property.name.at,
                        SetupError::Exclusive { plugin: PLUGIN, first, second },
                    ));
                }
                has_source = true;
                word.text.parse::<IpAddr>().map_err(|_| bad(PLUGIN, word, SOURCE))?;
            }
            _ => return Err(unknown_property(PLUGIN, property, &["source", "to"])),
        }
    }
    if !rule.to_all && rule.to.is_empty() {
        let rule = "name the permitted clients with `to`: addresses, or `*`";
        return Err(Located::new(&directive.name.at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    Ok(rule)
}

impl SourceSpec for TransferSpec {
    fn build(&self, _: &BuildContext<'_>) -> Result<Box<dyn Source>> {
        Ok(Box::new(Permission(self.rules.clone())))
    }
}

/// The clients that may transfer each zone.
struct Permission(Vec<Rule>);

impl Permission {
    /// Returns the directive with the longest zone that contains the name.
    fn rule(&self, name: &Name) -> Option<&Rule> {
        let zones = self.0.iter().flat_map(|rule| rule.zones.iter().map(move |zone| (rule, zone)));
        let longest = zones.filter(|(_, zone)| name.is_within(zone));
        longest.max_by_key(|(_, zone)| zone.as_wire().len()).map(|(rule, _)| rule)
    }
}

impl Source for Permission {
    fn permits(&self, request: &ZoneRequest<'_>, context: &QueryContext<'_>) -> Option<bool> {
        let rule = self.rule(&request.query.name)?;
        Some(rule.to_all || rule.to.contains(&context.client().ip().to_canonical()))
    }

    fn sends(&self, query: &Query<'_>) -> Option<String> {
        let rule = self.rule(&query.name)?;
        let to: Vec<_> = rule.to.iter().map(ToString::to_string).collect();
        Some(if rule.to_all { "every client".to_owned() } else { to.join(", ") })
    }

    fn explain(&self, _: &Query<'_>) -> Explanation {
        Explanation::Passes(None)
    }
}

const PLUGIN: &str = "transfer";
const TO: &str = "`*`, IP or IP:PORT";
const SOURCE: &str = "an IP address";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};

    #[test]
    fn clients_of_zones() {
        let name = |text: &str| Name::from_text(text).unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let lines = "transfer example.net 10.in-addr.arpa {\nto 192.0.2.1 192.0.2.2:1053 [2001:db8::2]:34\nsource 2001:db8::53\n}\n\
                     transfer {\nto *\nto ::ffff:192.0.2.3\n}";
        let first = Rule {
            zones: vec![name("example.net"), name("10.in-addr.arpa")],
            to_all: false,
            to: vec![ip("192.0.2.1"), ip("192.0.2.2"), ip("2001:db8::2")],
        };
        let second = Rule { zones: vec![Name::ROOT], to_all: true, to: vec![ip("192.0.2.3")] };
        assert_eq!(parsed(lines), Some(TransferSpec { rules: vec![first, second] }));
        refused(&[
            ("transfer", "2:1: plugin/transfer: name the permitted clients with `to`: addresses, or `*`"),
            (
                "transfer a {\nsource 192.0.2.1\n}",
                "2:1: plugin/transfer: name the permitted clients with `to`: addresses, or `*`",
            ),
            ("transfer {\nto\n}", "3:1: plugin/transfer: `to` needs `*`, IP or IP:PORT"),
            (
                "transfer {\nto example.com\n}",
                "3:4: plugin/transfer: \"example.com\" is not `*`, IP or IP:PORT",
            ),
            ("transfer {\nto *\nsource x\n}", "4:8: plugin/transfer: \"x\" is not an IP address"),
            (
                "transfer {\nto *\nsource ::1\nsource ::1\n}",
                "5:1: plugin/transfer: `source` and `source` exclude each other; keep one",
            ),
            ("transfer {\nform *\n}", "3:1: plugin/transfer: unknown property \"form\"; expected source, to"),
        ]);
    }
}
