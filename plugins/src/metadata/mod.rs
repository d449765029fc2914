//! `metadata`: labels that plugins publish of a query can be read by others of its block.
//!
//! Labels are fields of what is known of a query anyway: without the directive nobody reads them, and what is logged is
//! compiled so.

use std::sync::Arc;

use corefile::Directive;

use plugin::args::{Result, no_block, once, zones_or};
use plugin::spec::{BuildContext, EnvelopeSpec, Written};

/// Stands in a block: labels are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetadataSpec;

/// Reads the one `metadata` of a server block. Of the plugins that are here none publishes by zone, so that its zones
/// are checked and change nothing.
pub(crate) fn read(directives: &[&Directive], written: Written<'_>) -> Result<Arc<dyn EnvelopeSpec>> {
    let directive = once(PLUGIN, directives)?;
    no_block(PLUGIN, directive)?;
    zones_or(&directive.args, written.zones)?;
    Ok(Arc::new(MetadataSpec))
}

impl EnvelopeSpec for MetadataSpec {
    fn build(&self, context: &mut BuildContext<'_>) {
        let sources = context.plugins.iter().filter_map(|(_, role)| role.source());
        let known: Vec<_> = sources.filter_map(|source| source.labels(context)).collect();
        context.envelope.labels = Some(Arc::new(known));
    }

    fn publishes_labels(&self) -> bool {
        true
    }
}

const PLUGIN: &str = "metadata";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::tests::{refused, said};

    #[test]
    fn it_stands_once_with_zones_or_without() {
        for line in ["metadata", "metadata example.org 10.0.0.0/8"] {
            assert_eq!(said(line), Some(MetadataSpec), "{line}");
        }
        assert_eq!(said::<MetadataSpec>("whoami"), None);
        refused(&[
            (
                "metadata\nmetadata",
                "3:1: plugin/metadata: can only be used once per server block; remove one",
            ),
            ("metadata {\na\n}", "2:1: plugin/metadata: `metadata` has no sub-block; remove the braces"),
        ]);
    }
}
