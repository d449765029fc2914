//! `ready`: the address of /ready.

use std::sync::Arc;

use corefile::Directive;

use crate::http_listen::admin_address;
use admin::AdminAddress;
use plugin::args::{Args, Result, bad, once, unknown_property};
use plugin::spec::{ParseContext, PluginSpec};

/// The directive `ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadySpec {
    /// Where /ready is served; default every address, port 8181.
    pub address: AdminAddress,
    /// Whether a plugin that was ready once is checked again.
    pub continuously: bool,
}

/// Reads the one `ready` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    const PLUGIN: &str = "ready";
    let directive = once(PLUGIN, directives)?;
    let address = admin_address(PLUGIN, directive, AdminAddress::everywhere(8181))?;
    let mut spec = ReadySpec { address, continuously: false };
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            "monitor" => {
                let mut args = Args::new(PLUGIN, property, "until-ready or continuously");
                let word = args.required()?;
                spec.continuously = match word.text.as_str() {
                    "continuously" => true,
                    "until-ready" => false,
                    _ => return Err(bad(PLUGIN, word, "until-ready or continuously")),
                };
                args.end()?;
            }
            _ => return Err(unknown_property(PLUGIN, property, &["monitor"])),
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
        for (lines, continuously) in [
            ("ready".to_owned(), false),
            (with("ready", "monitor until-ready"), false),
            (with("ready", "monitor continuously"), true),
        ] {
            assert_eq!(parsed::<ReadySpec>(&lines).unwrap().continuously, continuously, "{lines}");
        }
        refused_properties(
            "ready",
            &[
                ("monitor", "1: plugin/ready: `monitor` needs until-ready or continuously"),
                ("monitor never", "9: plugin/ready: \"never\" is not until-ready or continuously"),
                ("moniter never", "1: plugin/ready: unknown property \"moniter\"; did you mean `monitor`?"),
            ],
        );
    }
}
