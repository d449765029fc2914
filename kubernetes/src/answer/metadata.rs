//! Values of `metadata` from a name in a cluster's zone.

use wire::{Name, write_label};

use super::Responder;
use super::name_parser::{self, ParsedName};

impl Responder {
    /// Returns the value of CoreDNS's label `kubernetes/PART` for a name; empty if the name does
    /// not have it. `None` if the name is in no zone of the cluster or is invalid, or for an
    /// unknown part.
    pub fn part(&self, name: &Name, part: &str) -> Option<String> {
        let (_, zone) = self.zone_of(name)?;
        let asked =
            zone.grammar.map_or(ParsedName::Invalid, |grammar| name_parser::parse(name, &zone.name, grammar));
        let grammar = match (zone.grammar, asked) {
            (None, _) | (_, ParsedName::Version | ParsedName::NameServer | ParsedName::Invalid) => {
                return (part == "parse-error").then(|| "invalid query name".to_owned());
            }
            (Some(grammar), _) => grammar,
        };
        // The zone itself, `svc.ZONE` and `pod.ZONE` have no values.
        let count = match asked {
            ParsedName::Apex | ParsedName::Above => 0,
            _ => name.label_count() - zone.name.label_count(),
        };
        let labels: Vec<&[u8]> = name.labels().take(count).collect();
        let from_zone =
            |number: usize| labels.len().checked_sub(number + 1).and_then(|at| labels.get(at..=at));
        let ports =
            if count == 5 { name_parser::port_and_protocol(labels[0], labels[1], grammar) } else { None };
        let found = match part {
            "kind" => from_zone(0),
            "namespace" => from_zone(1),
            "service" => from_zone(2),
            "endpoint" if count == 4 || count == 5 && ports.is_none() => Some(&labels[..1]),
            "cluster" if grammar.multicluster => (count == 5 && ports.is_none()).then(|| &labels[1..2]),
            "zone" if grammar.zonal => labels.get(..count.saturating_sub(5)).filter(|_| count > 5),
            "port-name" | "protocol" => {
                let which = usize::from(part == "protocol");
                return Some(ports.map(|ports| text(&[ports[which]])).unwrap_or_default());
            }
            "endpoint" => None,
            _ => return None,
        };
        Some(found.map(text).unwrap_or_default())
    }
}

/// Returns labels in presentation format, without the final dot.
fn text(labels: &[&[u8]]) -> String {
    let mut text = String::new();
    for label in labels.iter().filter(|label| !label.is_empty()) {
        if !text.is_empty() {
            text.push('.');
        }
        // Writing to a String does not fail.
        let _ = write_label(&mut text, label);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn metadata_values_like_coredns() {
        const PARTS: [&str; 9] = [
            "kind",
            "namespace",
            "service",
            "endpoint",
            "port-name",
            "protocol",
            "cluster",
            "zone",
            "parse-error",
        ];
        let plain = rules("cluster.local in-addr.arpa");
        let mut zonal = plain.clone();
        zonal.zonal = true;
        let mut both = rules("cluster.local clusterset.local");
        both.multicluster = vec![Name::from_text("clusterset.local").unwrap()];
        for (rules, name, expected) in [
            (&plain, "web.t1.svc.cluster.local", "svc t1 web _ _ _ - - -"),
            (&plain, "t1.svc.cluster.local", "svc t1 _ _ _ _ - - -"),
            (&plain, "svc.cluster.local", "_ _ _ _ _ _ - - -"),
            (&plain, "cluster.local", "_ _ _ _ _ _ - - -"),
            (&plain, "H1.web.t1.svc.cluster.local", "svc t1 web h1 _ _ - - -"),
            (&plain, "_http._tcp.web.t1.svc.cluster.local", "svc t1 web _ http tcp - - -"),
            (&plain, "http.tcp.web.t1.svc.cluster.local", "svc t1 web _ http tcp - - -"),
            (&plain, "_._tcp.web.t1.svc.cluster.local", "svc t1 web _ _ tcp - - -"),
            (&plain, "10-0-0-1.t1.pod.cluster.local", "pod t1 10-0-0-1 _ _ _ - - -"),
            (&plain, r"a\.b.t1.svc.cluster.local", r"svc t1 a\.b _ _ _ - - -"),
            (&plain, "a.b.c.web.t1.svc.cluster.local", "- - - - - - - - invalid query name"),
            (&plain, "x.cluster.local", "- - - - - - - - invalid query name"),
            (&plain, "1.0.0.10.in-addr.arpa", "- - - - - - - - invalid query name"),
            (&plain, "example.org", "- - - - - - - - -"),
            (&zonal, "a.b.pin._zone.web.t1.svc.cluster.local", "svc t1 web _ _ _ - a.b -"),
            (&zonal, "web.t1.svc.cluster.local", "svc t1 web _ _ _ - _ -"),
            (&both, "h1.one.web.t1.svc.clusterset.local", "svc t1 web h1 _ _ one - -"),
            (&both, "_http._tcp.web.t1.svc.clusterset.local", "svc t1 web _ http tcp _ - -"),
            (&both, "web.t1.svc.cluster.local", "svc t1 web _ _ _ - - -"),
        ] {
            let (responder, name) = (Responder::new(rules.clone()), Name::from_text(name).unwrap());
            let values = PARTS.map(|part| match responder.part(&name, part) {
                Some(empty) if empty.is_empty() => "_".to_owned(),
                Some(text) => text,
                None => "-".to_owned(),
            });
            assert_eq!(values.join(" "), expected, "{name}");
        }
        assert_eq!(
            Responder::new(plain).part(&Name::from_text("web.t1.svc.cluster.local").unwrap(), "kin"),
            None
        );
    }
}
