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

impl HostsSpec {
    /// The directive without properties.
    fn bare(file: PathBuf, zones: Vec<Name>) -> Self {
        Self {
            file,
            zones,
            ttl: 3600,
            reload: Duration::from_secs(5),
            reverse: true,
            fallthrough: Fallthrough::default(),
            fallthrough_unsupported: false,
            inline: String::new(),
        }
    }
}

/// Reads the one `hosts` of a server block.
pub(crate) fn parse(directives: &[&Directive], own_zones: &[Name], root: Option<&Path>) -> Result<HostsSpec> {
    let directive = once(PLUGIN, directives)?;
    let mut args = Args::new(PLUGIN, directive, "[FILE [ZONES...]]");
    let file = path(root, args.optional().map_or("/etc/hosts", |word| &word.text));
    let mut spec = HostsSpec::bare(file, zones_or(args.rest(), own_zones)?);
    for property in directive.body.iter().flatten() {
        let word = property.name.text.as_str();
        match word {
            "fallthrough" => spec.fallthrough.add(PLUGIN, property)?,
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

#[cfg(test)]
mod tests {
    use super::super::tests::{good, refused, refused_properties, with};
    use super::*;

    /// What a row makes different from the bare directive.
    type Change = fn(&mut HostsSpec);

    fn name(text: &str) -> Name {
        Name::from_text(text).unwrap()
    }

    fn bare() -> HostsSpec {
        HostsSpec::bare("/etc/hosts".into(), vec![Name::ROOT])
    }

    #[test]
    fn the_defaults_are_those_of_coredns() {
        let HostsSpec { ttl, reload, reverse, .. } = bare();
        assert_eq!((ttl, reload, reverse), (3600, Duration::from_secs(5), true));
    }

    #[test]
    fn arguments_and_properties_change_what_they_name_and_nothing_else() {
        let rows: &[(String, Change)] = &[
            ("hosts".into(), |_| {}),
            ("hosts /run/h".into(), |s| s.file = "/run/h".into()),
            ("hosts /run/h a.org 10.0.0.0/24".into(), |s| {
                s.file = "/run/h".into();
                s.zones = vec![name("a.org"), name("0.0.10.in-addr.arpa")];
            }),
            (with("hosts", "ttl 1"), |s| s.ttl = 1),
            (with("hosts", "ttl 65535"), |s| s.ttl = 65_535),
            (with("hosts", "reload 0"), |s| s.reload = Duration::ZERO),
            (with("hosts", "reload 1m30s"), |s| s.reload = Duration::from_secs(90)),
            (with("hosts", "no_reverse"), |s| s.reverse = false),
            (with("hosts", "fallthrough"), |s| s.fallthrough.zones = vec![Name::ROOT]),
            (with("hosts", "fallthrough a.org b.org"), |s| {
                s.fallthrough.zones = vec![name("a.org"), name("b.org")];
            }),
            (with("hosts", "fallthrough_unsupported"), |s| s.fallthrough_unsupported = true),
            (with("hosts", "192.0.2.1 a.org b.org\n2001:db8::1 a.org\nfallthrough"), |s| {
                s.inline = "192.0.2.1 a.org b.org\n2001:db8::1 a.org\n".into();
                s.fallthrough.zones = vec![Name::ROOT];
            }),
            (with("hosts", "fe80::1%eth0 a.org"), |s| s.inline = "fe80::1%eth0 a.org\n".into()),
        ];
        for (lines, change) in rows {
            let mut expected = bare();
            change(&mut expected);
            assert_eq!(good(lines).hosts, Some(expected), "{lines}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_at_its_word() {
        refused(&[("hosts /etc/hosts a..b", "2:18: the zone `a..b` has an empty label")]);
        refused_properties(
            "hosts",
            &[
                ("ttl", "1: plugin/hosts: `ttl` wants a TTL in seconds, 1 to 65535"),
                ("ttl 0", "5: plugin/hosts: \"0\" is not a TTL in seconds, 1 to 65535"),
                ("ttl 65536", "5: plugin/hosts: \"65536\" is not a TTL in seconds, 1 to 65535"),
                ("ttl 5s", "5: plugin/hosts: \"5s\" is not a TTL in seconds, 1 to 65535"),
                (
                    "ttl 5 6",
                    "7: plugin/hosts: unexpected argument \"6\"; `ttl` wants a TTL in seconds, 1 to 65535",
                ),
                ("reload", "1: plugin/hosts: `reload` wants a duration, 0 for never"),
                ("reload 5", "8: plugin/hosts: \"5\" is not a duration such as 5s, 0 for never"),
                ("reload -5s", "8: plugin/hosts: \"-5s\" is not a duration such as 5s, 0 for never"),
                (
                    "no_reverse yes",
                    "12: plugin/hosts: unexpected argument \"yes\"; `no_reverse` wants no argument",
                ),
                ("fallthrough a..b", "13: the zone `a..b` has an empty label"),
                ("fallthrough {\nx\n}", "1: plugin/hosts: `fallthrough` has no sub-block; remove the braces"),
                ("192.0.2.1", "1: plugin/hosts: `192.0.2.1` wants at least one name behind the address"),
                ("fallthru", "1: plugin/hosts: unknown property \"fallthru\"; did you mean `fallthrough`?"),
                ("192.0.2.256 a", "1: plugin/hosts: unknown property \"192.0.2.256\""),
            ],
        );
        refused(&[(
            "hosts {\nttl 5\nfallthrough\n192.0.2.1 a\n}",
            "5:1: plugin/hosts: lines with addresses must stand before `fallthrough`",
        )]);
    }
}
