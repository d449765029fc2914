//! `hosts`: answers from a hosts file and from lines in the Corefile.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use corefile::Directive;
use wire::Name;

use super::args::{Args, Result, flag, no_block, once, path, unknown_property, zones_or};
use super::{Fallthrough, SetupError};

const PLUGIN: &str = "hosts";
const PROPERTIES: &[&str] = &["fallthrough", "fallthrough_unsupported", "no_reverse", "reload", "ttl"];

/// What one `hosts` directive says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsSpec {
    /// The file; default /etc/hosts.
    pub file: PathBuf,
    /// Only names within these zones are answered; default the server block's.
    pub zones: Vec<Name>,
    /// Seconds; default 3600, 1 to 65535.
    pub ttl: u32,
    /// How often the file is looked at; default 5 s, 0 never again.
    pub reload: Duration,
    /// Whether addresses answer PTR; off with `no_reverse`.
    pub reverse: bool,
    /// Names of these zones that the table does not know go on.
    pub fallthrough: Fallthrough,
    /// Whether types other than A, AAAA and PTR of a known name go on, too.
    pub fallthrough_unsupported: bool,
    /// The lines written in the Corefile.
    pub inline: String,
}

/// Reads the one `hosts` of a server block.
pub(crate) fn parse(directives: &[&Directive], own_zones: &[Name], root: Option<&Path>) -> Result<HostsSpec> {
    let directive = once(PLUGIN, directives)?;
    let mut args = Args::new(PLUGIN, directive, "[FILE [ZONES...]]");
    let mut spec = HostsSpec {
        file: path(root, args.optional().map_or("/etc/hosts", |word| &word.text)),
        zones: zones_or(args.rest(), own_zones)?,
        ttl: 3600,
        reload: Duration::from_secs(5),
        reverse: true,
        fallthrough: Fallthrough::default(),
        fallthrough_unsupported: false,
        inline: String::new(),
    };
    for property in directive.body.iter().flatten() {
        let word = property.name.text.as_str();
        match word {
            "fallthrough" => spec.fallthrough.add(property)?,
            "fallthrough_unsupported" => spec.fallthrough_unsupported = flag(PLUGIN, property)?,
            "no_reverse" => spec.reverse = !flag(PLUGIN, property)?,
            "ttl" => {
                let mut args = Args::new(PLUGIN, property, "a TTL in seconds, 1 to 65535");
                spec.ttl = args.number(1..=65535, "a TTL in seconds, 1 to 65535")?;
                args.end()?;
            }
            "reload" => {
                let mut args = Args::new(PLUGIN, property, "a duration, 0 for never");
                spec.reload = args.duration("a duration such as 5s, 0 for never")?;
                args.end()?;
            }
            address if address.split('%').next().is_some_and(|a| a.parse::<IpAddr>().is_ok()) => {
                no_block(PLUGIN, property)?;
                if spec.fallthrough.is_written() {
                    let rule = "lines with addresses must stand before `fallthrough`";
                    return Err(corefile::Located::new(
                        &property.name.at,
                        SetupError::Order { plugin: PLUGIN, rule },
                    ));
                }
                let names = Args::new(PLUGIN, property, "at least one name behind the address").some()?;
                spec.inline.push_str(address);
                for name in names {
                    spec.inline.push(' ');
                    spec.inline.push_str(&name.text);
                }
                spec.inline.push('\n');
            }
            _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
        }
    }
    Ok(spec)
}
