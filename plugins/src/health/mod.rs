//! `health`: the address of /health, and the lameduck time after SIGTERM.

use std::sync::Arc;
use std::time::Duration;

use corefile::Directive;

use crate::http_listen::admin_address;
use admin::AdminAddress;
use plugin::args::{Args, Result, once, unknown_property};
use plugin::spec::{ParseContext, PluginSpec};

/// The directive `health`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthSpec {
    /// Where /health is served; default every address, port 8080.
    pub address: AdminAddress,
    /// Time of normal service after SIGTERM; default 0.
    pub lameduck: Duration,
}

/// Reads the one `health` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    const PLUGIN: &str = "health";
    let directive = once(PLUGIN, directives)?;
    let address = admin_address(PLUGIN, directive, AdminAddress::everywhere(8080))?;
    let mut spec = HealthSpec { address, lameduck: Duration::ZERO };
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            "lameduck" => {
                let mut args = Args::new(PLUGIN, property, "a duration");
                spec.lameduck = args.duration("a duration such as 5s")?;
                args.end()?;
            }
            _ => return Err(unknown_property(PLUGIN, property, &["lameduck"])),
        }
    }
    Ok(Arc::new(spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused_properties, with};

    #[test]
    fn properties_are_read() {
        let lameduck = parsed::<HealthSpec>(&with("health", "lameduck 5s")).unwrap().lameduck;
        assert_eq!(lameduck, Duration::from_secs(5));
        refused_properties(
            "health",
            &[
                ("lameduck", "1: plugin/health: `lameduck` needs a duration"),
                ("lameduck 5", "10: plugin/health: \"5\" is not a duration such as 5s"),
                ("lame 5s", "1: plugin/health: unknown property \"lame\"; expected lameduck"),
            ],
        );
    }
}
