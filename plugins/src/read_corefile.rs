//! Parses a Corefile with the table of plugins; each error has the location of its word.
//!
//! Nothing is opened, bound or resolved here: [`read`] also serves to check a file. Interfaces,
//! host names and files are looked up when the configuration is built.

use corefile::{Corefile, Directive, Located, Location, Scheme};
use plugin::args::{Result, zone_text};
use plugin::endpoint::Transport;
use plugin::spec::ParseContext;
use plugin::{BlockSpec, Key, SetupError, Spec};
use wire::Name;

use crate::plugin_cfg::{self, PLUGINS};
use crate::tls::TlsSpec;

/// Parses the directives of a Corefile; `default_port` is for keys of plain DNS without a port.
///
/// # Errors
/// The first error, with its location.
pub fn read(corefile: &Corefile, default_port: u16) -> Result<Spec> {
    if corefile.blocks.is_empty() {
        let file =
            corefile.files.first().map_or_else(|| "Corefile".into(), |file| file.display().to_string());
        return Err(Located::new(&Location::file_only(&file), SetupError::Empty));
    }
    let blocks =
        corefile.blocks.iter().map(|block| read_block(block, default_port)).collect::<Result<Vec<_>>>()?;
    Ok(Spec { blocks })
}

fn read_block(block: &corefile::ServerBlock, default_port: u16) -> Result<BlockSpec> {
    let mut keys = Vec::new();
    for key in &block.keys {
        let (transport, default_port) = match key.scheme {
            Scheme::Dns => Ok((Transport::Dns, default_port)),
            Scheme::Tls => Ok((Transport::Tls, TLS_PORT)),
            Scheme::Grpc => Err("grpc://"),
            Scheme::Https => Ok((Transport::Https, HTTPS_PORT)),
            Scheme::Https3 => Err("https3://"),
            Scheme::Quic => Ok((Transport::Quic, TLS_PORT)),
        }
        .map_err(|scheme| Located::new(&key.written.at, SetupError::SchemeNotBuilt(scheme)))?;
        for zone in &key.zones {
            keys.push(Key {
                zone: zone_text(zone, &key.written.at)?,
                transport,
                port: key.port.unwrap_or(default_port),
                at: key.written.at.clone(),
            });
        }
    }
    for directive in &block.directives {
        known(directive)?;
    }
    let zones: Vec<Name> = keys.iter().map(|key| key.zone).collect();
    let transports: Vec<Transport> = keys.iter().map(|key| key.transport).collect();
    let mut read = BlockSpec { at: block.at.clone(), keys, plugins: Vec::new() };
    for plugin in PLUGINS {
        let written = ParseContext {
            zones: &zones,
            transports: &transports,
            directives: &block.directives,
            read: &read.plugins,
        };
        if let Some(role) = plugin.read(&block.directives, written)? {
            read.plugins.push((plugin.name, role));
        }
    }
    for (plugin, other) in plugin_cfg::NEEDS.iter().copied() {
        let has = |name: &str| block.directives.iter().find(|directive| directive.name.text == name);
        if let (Some(directive), None) = (has(plugin), has(other)) {
            return Err(Located::new(&directive.name.at, SetupError::Needs { plugin, other }));
        }
    }
    let encrypted = block.keys.iter().find(|key| matches!(key.scheme, Scheme::Tls | Scheme::Quic));
    if let (Some(key), None) = (encrypted, read.get::<TlsSpec>()) {
        let error = SetupError::NoCertificate(key.written.text.clone());
        return Err(Located::new(&key.written.at, error));
    }
    Ok(read)
}

fn known(directive: &Directive) -> Result<()> {
    let found = &directive.name.text;
    let error = match plugin_cfg::find(found) {
        Some(plugin) if plugin.is_here() => return Ok(()),
        Some(plugin) => SetupError::NotBuilt(plugin.name),
        None => SetupError::UnknownDirective {
            found: found.clone(),
            nearest: corefile::nearest(found, PLUGINS.iter().map(|plugin| plugin.name)),
        },
    };
    Err(Located::new(&directive.name.at, error))
}

/// Default port of DNS over TLS and over QUIC, as in CoreDNS regardless of `-dns.port`.
const TLS_PORT: u16 = 853;
/// Default port of DNS over HTTPS.
const HTTPS_PORT: u16 = 443;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::hosts::HostsSpec;
    use plugin::spec::PluginSpec;
    use std::path::Path;

    /// The meaning of a Corefile, or the first line of its error.
    pub(crate) fn spec(text: &str) -> std::result::Result<Spec, String> {
        let corefile = corefile::read_text("Corefile", text.as_bytes(), Path::new("/nowhere"), &|_| None);
        let corefile = corefile.map_err(|error| format!("{error:#}"))?;
        read(&corefile, 53).map_err(|error| format!("{error:#}"))
    }

    /// The meaning of a server block with these lines, the first of which is the Corefile's second.
    pub(crate) fn block(lines: &str) -> std::result::Result<BlockSpec, String> {
        spec(&format!(". {{\n{lines}\n}}\n")).map(|mut spec| spec.blocks.remove(0))
    }

    /// The same without errors.
    pub(crate) fn good(lines: &str) -> BlockSpec {
        block(lines).unwrap_or_else(|error| panic!("{lines:?}: {error}"))
    }

    /// The spec of one plugin from these lines, without errors.
    pub(crate) fn parsed<T: PluginSpec + Clone>(lines: &str) -> Option<T> {
        good(lines).get::<T>().cloned()
    }

    /// `directive` with one property, which then is the Corefile's third line.
    pub(crate) fn with(directive: &str, property: &str) -> String {
        format!("{directive} {{\n{property}\n}}")
    }

    /// Each row is the lines of a server block, and the error message after `Corefile:`.
    pub(crate) fn refused(rows: &[(&str, &str)]) {
        for (lines, expected) in rows {
            match block(lines) {
                Ok(_) => panic!("{lines:?} is taken"),
                Err(error) => assert_eq!(error, format!("Corefile:{expected}"), "{lines:?}"),
            }
        }
    }

    /// Each row is a property of `directive`, and the error message after `Corefile:3:`.
    pub(crate) fn refused_properties(directive: &str, rows: &[(&str, &str)]) {
        for (property, expected) in rows {
            let (lines, expected) = (with(directive, property), format!("3:{expected}"));
            refused(&[(&lines, &expected)]);
        }
    }

    /// The rows of the section `[corefile]` in `coredns.txt` of a plugin: whether localdns accepts
    /// them, and their text.
    fn rows(plugin: &str) -> Vec<(bool, String)> {
        let path = format!("{}/src/{plugin}/coredns.txt", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let section =
            text.split_once("\n[corefile]\n").unwrap_or_else(|| panic!("{path} has no [corefile]")).1;
        let lines = section.split("\n[").next().unwrap_or_default().lines();
        let rows = lines.filter(|line| !line.is_empty() && !line.starts_with(['>', '#']));
        rows.map(|line| {
            let (server, directives) = line.split_once(' ').unwrap();
            let directives = directives.replace("\\n", "\n").replace("@IP@", "127.0.0.1");
            (["both", "localdns"].contains(&server), directives.replace("@DIR@", "/nowhere"))
        })
        .collect()
    }

    /// The shortest use of a plugin: the first accepted row. Some plugins need a second directive.
    fn shortest(plugin: &str) -> String {
        let found = rows(plugin).into_iter().find(|(is_accepted, _)| *is_accepted);
        found.unwrap_or_else(|| panic!("{plugin} has no row that is accepted")).1
    }

    /// The directive of the shortest use, without another that it needs.
    fn directive(plugin: &str) -> String {
        let text = shortest(plugin);
        let lines: Vec<&str> = text.lines().skip(starts(plugin, &text)[0]).collect();
        let end =
            if lines[0].ends_with('{') { lines.iter().position(|line| *line == "}").unwrap() } else { 0 };
        lines[..=end].join("\n")
    }

    /// The first line of each directive of a plugin, from 0.
    fn starts(plugin: &str, directives: &str) -> Vec<usize> {
        let mut depth = 0;
        let mut starts = Vec::new();
        for (at, line) in directives.lines().enumerate() {
            if depth == 0 && line.split(' ').next() == Some(plugin) {
                starts.push(at);
            }
            depth += usize::from(line.ends_with('{'));
            // A refused row may close more than it opens.
            depth = depth.saturating_sub(usize::from(line == "}"));
        }
        starts
    }

    #[test]
    fn directives_are_read_or_not_built() {
        for plugin in PLUGINS {
            let name = plugin.name;
            if plugin.is_here() {
                assert!(good(&shortest(name)).directives().contains(&name), "{name}");
                continue;
            }
            let error = format!(
                "2:1: the directive `{name}` of CoreDNS is not supported yet; remove it, or keep CoreDNS for this server block"
            );
            refused(&[(name, &error)]);
        }
    }

    #[test]
    fn unknown_directive_suggests_nearest() {
        refused(&[
            ("forwrad . 192.0.2.53", "2:1: unknown directive \"forwrad\"; did you mean `forward`?"),
            ("  Whoami", "2:3: unknown directive \"Whoami\"; did you mean `whoami`?"),
            ("whoami\nhots", "3:1: unknown directive \"hots\"; did you mean `hosts`?"),
            ("kuberntes", "2:1: unknown directive \"kuberntes\"; did you mean `kubernetes`?"),
            (
                "nothinglikeit",
                "2:1: unknown directive \"nothinglikeit\"; `localdns -plugins` lists those that are served",
            ),
        ]);
    }

    #[test]
    fn relative_paths_start_at_root() {
        for (line, file) in
            [("hosts h", "h"), ("hosts h\nroot /srv", "/srv/h"), ("root /srv\nhosts /etc/h", "/etc/h")]
        {
            assert_eq!(parsed::<HostsSpec>(line).unwrap().file, file.into(), "{line}");
        }
    }

    /// Plugins with accepted rows that have no argument and no sub-block.
    #[test]
    fn bare_directives_take_no_argument() {
        let is_bare = |name: &&str| {
            let accepted = rows(name).into_iter().filter(|(is_accepted, _)| *is_accepted);
            let lines = accepted.map(|(_, text)| text.lines().next().unwrap_or_default().to_owned());
            lines.collect::<Vec<_>>().iter().all(|line| line == name)
        };
        let bare: Vec<&str> = plugin_cfg::here().into_iter().filter(is_bare).collect();
        assert!(bare.contains(&"whoami"), "{bare:?}");
        for name in bare {
            let column = name.len() + 2;
            let extra =
                format!("2:{column}: plugin/{name}: unexpected argument \"x\"; `{name}` needs no argument");
            let body = format!("2:1: plugin/{name}: `{name}` has no sub-block; remove the braces");
            refused(&[(&format!("{name} x"), &extra), (&with(name, "x"), &body)]);
        }
    }

    /// A row of each plugin has its directive twice, with whether that is accepted.
    #[test]
    fn repeated_directive_is_refused_at_the_second() {
        for name in plugin_cfg::here() {
            let twice = rows(name).into_iter().find(|(_, text)| starts(name, text).len() == 2);
            let (is_accepted, text) = twice.unwrap_or_else(|| panic!("no row of {name} has it twice"));
            let second = starts(name, &text)[1] + 2;
            let error = format!(
                "Corefile:{second}:1: plugin/{name}: can only be used once per server block; remove one"
            );
            assert_eq!(block(&text).err(), (!is_accepted).then_some(error), "{text}");
        }
    }

    #[test]
    fn directives_take_effect_in_the_order_of_coredns() {
        let order: Vec<&str> =
            PLUGINS.iter().filter(|plugin| plugin.is_here()).map(|plugin| plugin.name).collect();
        let lines: Vec<String> = order.iter().rev().map(|name| directive(name)).collect();
        assert_eq!(good(&lines.join("\n")).directives(), order);
    }

    #[test]
    fn keys_become_zones_with_ports() {
        for (key, port, expected) in [
            (".", 53, ". 53"),
            (".", 1053, ". 1053"),
            ("Example.ORG:5300", 53, "example.org. 5300"),
            ("dns://example.org", 53, "example.org. 53"),
            ("dns://.:54", 53, ". 54"),
            ("a.org b.org:54", 53, "a.org. 53, b.org. 54"),
            ("a.org,\nb.org", 53, "a.org. 53, b.org. 53"),
            ("10.0.0.0/24", 53, "0.0.10.in-addr.arpa. 53"),
            ("10.0.0.0/15:54", 53, "0.10.in-addr.arpa. 54, 1.10.in-addr.arpa. 54"),
            ("2001:db8::/32", 53, "8.b.d.0.1.0.0.2.ip6.arpa. 53"),
            ("tls://.", 53, ". tls 853"),
            ("tls://a.org:5553 .", 54, "a.org. tls 5553, . 54"),
            ("quic://.", 54, ". quic 853"),
            ("https://. https://a.org:8443", 54, ". https 443, a.org. https 8443"),
        ] {
            let text = format!("{key} {{\nwhoami\ntls cert key\n}}\n");
            let corefile =
                corefile::read_text("Corefile", text.as_bytes(), Path::new("/"), &|_| None).unwrap();
            let keys = &read(&corefile, port).unwrap().blocks[0].keys;
            let zones: Vec<String> = keys
                .iter()
                .map(|key| match key.transport {
                    Transport::Dns => format!("{} {}", key.zone, key.port),
                    other => format!("{} {} {}", key.zone, other.name(), key.port),
                })
                .collect();
            assert_eq!(zones.join(", "), expected, "{key}");
        }
    }

    #[test]
    fn unsupported_server_blocks() {
        for (text, error) in [
            ("", "Corefile: the Corefile holds no server block; expected at least `. { ... }`"),
            ("# nothing\n", "Corefile: the Corefile holds no server block; expected at least `. { ... }`"),
            ("a..b {\nwhoami\n}\n", "Corefile:1:1: the zone `a..b` has an empty label"),
            (
                ". tls://.:5553 {\nwhoami\n}\n",
                "Corefile:1:3: \"tls://.:5553\" needs `tls CERT KEY` in this server block: connections would not be encrypted; add it, or serve dns://",
            ),
            (
                ". grpc://. {\nwhoami\n}\n",
                "Corefile:1:3: the scheme \"grpc://\" is not supported yet; use dns://, tls://, https:// or quic://",
            ),
            (
                "https3://. {\nwhoami\n}\n",
                "Corefile:1:1: the scheme \"https3://\" is not supported yet; use dns://, tls://, https:// or quic://",
            ),
            (
                "quic://. {\nwhoami\n}\n",
                "Corefile:1:1: \"quic://.\" needs `tls CERT KEY` in this server block: connections would not be encrypted; add it, or serve dns://",
            ),
        ] {
            assert_eq!(spec(text).err().as_deref(), Some(error), "{text:?}");
        }
    }
}
