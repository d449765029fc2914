//! `metadata`: labels that plugins publish about a query, for other plugins of its block.
//!
//! Some labels are fields of the query itself (`forward/upstream`, `log/type`, `log/class`) and
//! have a value for every name. Other labels are computed by a plugin of the block ([`Labels`]),
//! for names within ZONES, each time a label is read. Without the directive no label is read, and
//! log formats are compiled without labels.

use std::net::IpAddr;
use std::sync::Arc;

use corefile::Directive;
use logging::metadata::Labels;
use wire::Name;

use plugin::args::{Result, no_block, once, zones_or};
use plugin::spec::{BuildContext, HooksSpec, ParseContext, Role};

/// The directive: labels are enabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataSpec {
    /// Zones with the names for which plugins publish labels.
    zones: Vec<Name>,
}

impl MetadataSpec {
    /// Returns the publisher of labels in a block of these zones, given the publishers of its
    /// plugins.
    fn labels(&self, published: Vec<Arc<dyn Labels>>, zones: &[Name]) -> Arc<dyn Labels> {
        let all = zones.iter().all(|zone| self.zones.iter().any(|own| zone.is_within(own)));
        if all || published.is_empty() {
            return Arc::new(published);
        }
        Arc::new(Within { zones: self.zones.clone(), published })
    }
}

/// Publishers limited to names within some zones.
#[derive(Debug)]
struct Within {
    zones: Vec<Name>,
    published: Vec<Arc<dyn Labels>>,
}

impl Labels for Within {
    fn label(&self, label: &str, name: &Name, client: Option<IpAddr>) -> Option<String> {
        self.zones
            .iter()
            .any(|zone| name.is_within(zone))
            .then(|| self.published.label(label, name, client))?
    }
}

/// Reads the one `metadata` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn HooksSpec>> {
    let directive = once(PLUGIN, directives)?;
    no_block(PLUGIN, directive)?;
    Ok(Arc::new(MetadataSpec { zones: zones_or(&directive.args, written.zones)? }))
}

impl HooksSpec for MetadataSpec {
    fn build(&self, context: &mut BuildContext<'_>) {
        let labels = |(_, role): &(&str, Role)| match role.hooks() {
            Some(hooks) => hooks.labels(),
            None => role.source()?.labels(context),
        };
        let known: Vec<_> = context.plugins.iter().filter_map(labels).collect();
        context.hooks.labels = Some(self.labels(known, context.zones));
    }

    fn publishes_labels(&self) -> bool {
        true
    }
}

const PLUGIN: &str = "metadata";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};

    fn name(text: &str) -> Name {
        Name::from_text(text).expect("a name")
    }

    /// Publishes one label for every name.
    #[derive(Debug)]
    struct Publisher;

    impl Labels for Publisher {
        fn label(&self, _: &str, name: &Name, _: Option<IpAddr>) -> Option<String> {
            Some(name.to_string())
        }
    }

    #[test]
    fn labels_within_zones() {
        let block = [name("example.org"), name("example.net")];
        for (zones, inside, outside) in [
            (&["example.org"][..], &["example.org", "a.example.org"][..], &["a.example.net"][..]),
            (&["b.example.org", "example.net"], &["a.b.example.org", "a.example.net"], &["a.example.org"]),
            (&["."], &["example.org", "a.example.net"], &[]),
            (&["org", "example.net"], &["example.org", "a.example.net"], &[]),
        ] {
            let spec = MetadataSpec { zones: zones.iter().map(|zone| name(zone)).collect() };
            let labels = spec.labels(vec![Arc::new(Publisher)], &block);
            for of in inside {
                assert_eq!(labels.label("p/l", &name(of), None), Some(format!("{of}.")), "{zones:?}");
            }
            for of in outside {
                assert_eq!(labels.label("p/l", &name(of), None), None, "{zones:?}: {of}");
            }
            // A block receives no name outside its own zones: if all of these are within ZONES,
            // names are not compared.
            let elsewhere = labels.label("p/l", &name("example.com"), None);
            assert_eq!(elsewhere.is_some(), outside.is_empty(), "{zones:?}");
        }
    }

    #[test]
    fn metadata_zones() {
        for (line, zones) in [
            ("metadata", &["."][..]),
            ("metadata example.org 10.0.0.0/8", &["example.org", "10.in-addr.arpa"]),
        ] {
            let zones = zones.iter().map(|zone| name(zone)).collect();
            assert_eq!(parsed(line), Some(MetadataSpec { zones }), "{line}");
        }
        assert_eq!(parsed::<MetadataSpec>("whoami"), None);
        refused(&[
            (
                "metadata\nmetadata",
                "3:1: plugin/metadata: can only be used once per server block; remove one",
            ),
            ("metadata {\na\n}", "2:1: plugin/metadata: `metadata` has no sub-block; remove the braces"),
        ]);
    }
}
