//! `prometheus`: the address of /metrics.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use corefile::{Directive, Located};

use crate::http_listen::admin_address;
use admin::AdminAddress;
use plugin::SetupError;
use plugin::args::{Result, flag, once, unknown_property};
use plugin::spec::{BuildContext, HooksSpec, ParseContext};

/// The directive `prometheus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrometheusSpec {
    /// Where /metrics is served; default localhost, port 9153.
    pub address: AdminAddress,
}

impl Default for PrometheusSpec {
    fn default() -> Self {
        Self { address: AdminAddress { host: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), port: 9153 } }
    }
}

/// Reads the one `prometheus` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn HooksSpec>> {
    const PLUGIN: &str = "prometheus";
    let directive = once(PLUGIN, directives)?;
    let address = admin_address(PLUGIN, directive, PrometheusSpec::default().address)?;
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            // There is no Go runtime: the property has no effect.
            "runtime_metrics" => {
                flag(PLUGIN, property)?;
            }
            "tls" => {
                return Err(Located::new(
                    &property.name.at,
                    SetupError::PropertyNotBuilt { plugin: PLUGIN, property: "tls" },
                ));
            }
            _ => return Err(unknown_property(PLUGIN, property, &["runtime_metrics", "tls"])),
        }
    }
    Ok(Arc::new(PrometheusSpec { address }))
}

impl HooksSpec for PrometheusSpec {
    fn build(&self, context: &mut BuildContext<'_>) {
        context.hooks.counts = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused_properties, with};

    #[test]
    fn properties_are_read() {
        assert!(parsed::<PrometheusSpec>(&with("prometheus", "runtime_metrics")).is_some());
        refused_properties(
            "prometheus",
            &[
                (
                    "tls web.yml",
                    "1: plugin/prometheus: the property `tls` of CoreDNS is not supported yet; remove it, or keep CoreDNS for this server block",
                ),
                (
                    "runtime_metrics all",
                    "17: plugin/prometheus: unexpected argument \"all\"; `runtime_metrics` needs no argument",
                ),
                (
                    "runtime_metric x",
                    "1: plugin/prometheus: unknown property \"runtime_metric\"; did you mean `runtime_metrics`?",
                ),
            ],
        );
    }
}
