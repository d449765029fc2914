//! Reads a Corefile by the table of plugins, each error at its word.
//!
//! Nothing is opened, bound or resolved here; [`read`] can be called for a file that is only to be checked. What the data
//! means for the machine (interfaces, host names, files) is looked up when the configuration is built.

use corefile::{Corefile, Directive, Located, Location, Scheme};
use plugin::args::{Result, zone_text};
use plugin::endpoint::Transport;
use plugin::spec::ParseContext;
use plugin::{BlockSpec, Key, SetupError, Spec};
use wire::Name;

use crate::plugin_cfg::{self, PLUGINS};
use crate::tls::TlsSpec;

/// Gives a Corefile its meaning; `default_port` fills keys of plain DNS that name none.
///
/// # Errors
/// The first thing that is wrong, where it stands.
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
            Scheme::Https => Err("https://"),
            Scheme::Https3 => Err("https3://"),
            Scheme::Quic => Err("quic://"),
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
    let mut read = BlockSpec { at: block.at.clone(), keys, plugins: Vec::new() };
    for plugin in PLUGINS {
        let written = ParseContext { zones: &zones, directives: &block.directives, read: &read.plugins };
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
    let encrypted = block.keys.iter().find(|key| key.scheme == Scheme::Tls);
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

/// As in CoreDNS, whatever `-dns.port` says.
const TLS_PORT: u16 = 853;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::hosts::HostsSpec;
    use plugin::spec::PluginSpec;
    use std::path::{Path, PathBuf};

    /// The meaning of a Corefile, or the first line of what is wrong with it.
    pub(crate) fn spec(text: &str) -> std::result::Result<Spec, String> {
        let corefile = corefile::read_text("Corefile", text.as_bytes(), Path::new("/nowhere"), &|_| None);
        let corefile = corefile.map_err(|error| format!("{error:#}"))?;
        read(&corefile, 53).map_err(|error| format!("{error:#}"))
    }

    /// The meaning of a server block with these lines, the first of which is the Corefile's second.
    pub(crate) fn block(lines: &str) -> std::result::Result<BlockSpec, String> {
        spec(&format!(". {{\n{lines}\n}}\n")).map(|mut spec| spec.blocks.remove(0))
    }

    /// The same where nothing is wrong.
    pub(crate) fn good(lines: &str) -> BlockSpec {
        block(lines).unwrap_or_else(|error| panic!("{lines:?}: {error}"))
    }

    /// What one plugin is told by these lines, none of which is wrong.
    pub(crate) fn said<T: PluginSpec + Clone>(lines: &str) -> Option<T> {
        good(lines).get::<T>().cloned()
    }

    /// `directive` with one property, which then is the Corefile's third line.
    pub(crate) fn with(directive: &str, property: &str) -> String {
        format!("{directive} {{\n{property}\n}}")
    }

    /// Each row is the lines of a server block, and what is wrong with them behind `Corefile:`.
    pub(crate) fn refused(rows: &[(&str, &str)]) {
        for (lines, expected) in rows {
            match block(lines) {
                Ok(_) => panic!("{lines:?} is taken"),
                Err(error) => assert_eq!(error, format!("Corefile:{expected}"), "{lines:?}"),
            }
        }
    }

    /// Each row is a property of `directive`, and what is wrong with it behind `Corefile:3:`.
    pub(crate) fn refused_properties(directive: &str, rows: &[(&str, &str)]) {
        for (property, expected) in rows {
            let (lines, expected) = (with(directive, property), format!("3:{expected}"));
            refused(&[(&lines, &expected)]);
        }
    }

    /// Every directive that is here, as short as it can be.
    const SHORTEST: &[&str] = &[
        "acl",
        "any",
        "autopath resolv.conf",
        "bind 127.0.0.1",
        "bufsize",
        "cache",
        "chaos",
        "debug",
        "errors",
        "forward . 192.0.2.53",
        "header {\nresponse set aa\n}",
        "health",
        "hosts",
        "k8s_external",
        "kubernetes",
        "loadbalance",
        "log",
        "loop",
        "metadata",
        "minimal",
        "multisocket",
        "nsid",
        "prometheus",
        "ready",
        "reload",
        "rewrite type ANY HINFO",
        "root /etc",
        "template ANY ANY",
        "timeouts {\nread 2s\n}",
        "tls cert.pem key.pem",
        "transfer {\nto *\n}",
        "whoami",
    ];

    fn needed_by(name: &str) -> Option<&'static str> {
        plugin_cfg::NEEDS.iter().find(|(plugin, _)| *plugin == name).map(|(_, other)| *other)
    }

    #[test]
    fn every_directive_is_read_or_said_to_be_missing() {
        let names: Vec<&str> = SHORTEST.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names, plugin_cfg::here(), "each plugin that is here has its shortest line in `SHORTEST`");
        for line in SHORTEST {
            let name = line.split(' ').next().unwrap();
            let mut directives = vec![name];
            directives.extend(needed_by(name));
            let lines = format!("{line}\n{}", needed_by(name).unwrap_or_default());
            assert_eq!(good(&lines).directives(), directives);
        }
        for name in PLUGINS.iter().filter(|plugin| !plugin.is_here()).map(|plugin| plugin.name) {
            let error = format!(
                "2:1: the directive `{name}` of CoreDNS is not built yet; remove it, or keep CoreDNS for this server block"
            );
            refused(&[(name, &error)]);
        }
    }

    #[test]
    fn an_unknown_directive_names_the_nearest_known_one() {
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
            assert_eq!(said::<HostsSpec>(line).unwrap().file, PathBuf::from(file), "{line}");
        }
    }

    #[test]
    fn words_without_arguments_take_none() {
        for name in ["any", "debug", "loop", "minimal", "whoami"] {
            let column = name.len() + 2;
            let extra =
                format!("2:{column}: plugin/{name}: unexpected argument \"x\"; `{name}` wants no argument");
            let body = format!("2:1: plugin/{name}: `{name}` has no sub-block; remove the braces");
            refused(&[(&format!("{name} x"), &extra), (&with(name, "x"), &body)]);
        }
    }

    #[test]
    fn most_directives_stand_once_in_a_server_block() {
        for line in SHORTEST {
            let name = line.split(' ').next().unwrap();
            let twice = block(&format!("{line}\n{line}\n{}", needed_by(name).unwrap_or_default()));
            if ["acl", "bind", "forward", "log", "rewrite", "template", "transfer"].contains(&name) {
                assert!(twice.is_ok(), "{line}");
            } else {
                let second = 3 + line.matches('\n').count();
                let error = format!(
                    "Corefile:{second}:1: plugin/{name}: can only be used once per server block; remove one"
                );
                assert_eq!(twice.err(), Some(error), "{line}");
            }
        }
    }

    #[test]
    fn directives_take_effect_in_the_order_of_coredns() {
        let lines: Vec<&str> = SHORTEST.iter().rev().copied().collect();
        let order: Vec<&str> =
            PLUGINS.iter().filter(|plugin| plugin.is_here()).map(|plugin| plugin.name).collect();
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
        ] {
            let text = format!("{key} {{\nwhoami\ntls cert key\n}}\n");
            let corefile =
                corefile::read_text("Corefile", text.as_bytes(), Path::new("/"), &|_| None).unwrap();
            let keys = &read(&corefile, port).unwrap().blocks[0].keys;
            let zones: Vec<String> = keys
                .iter()
                .map(|key| match key.transport {
                    Transport::Dns => format!("{} {}", key.zone, key.port),
                    Transport::Tls => format!("{} tls {}", key.zone, key.port),
                })
                .collect();
            assert_eq!(zones.join(", "), expected, "{key}");
        }
    }

    #[test]
    fn what_is_no_server_block_of_ours_is_an_error() {
        for (text, error) in [
            ("", "Corefile: the Corefile holds no server block; expected at least `. { ... }`"),
            ("# nothing\n", "Corefile: the Corefile holds no server block; expected at least `. { ... }`"),
            ("a..b {\nwhoami\n}\n", "Corefile:1:1: the zone `a..b` has an empty label"),
            (
                ". tls://.:5553 {\nwhoami\n}\n",
                "Corefile:1:3: \"tls://.:5553\" wants `tls CERT KEY` in this server block: without it nothing would be encrypted; add it, or serve dns://",
            ),
            (
                ". grpc://. {\nwhoami\n}\n",
                "Corefile:1:3: the scheme \"grpc://\" is not built yet; only dns:// and tls:// are served",
            ),
            (
                "https://.:443 {\nwhoami\n}\n",
                "Corefile:1:1: the scheme \"https://\" is not built yet; only dns:// and tls:// are served",
            ),
            (
                "https3://. {\nwhoami\n}\n",
                "Corefile:1:1: the scheme \"https3://\" is not built yet; only dns:// and tls:// are served",
            ),
            (
                "quic://. {\nwhoami\n}\n",
                "Corefile:1:1: the scheme \"quic://\" is not built yet; only dns:// and tls:// are served",
            ),
        ] {
            assert_eq!(spec(text).err().as_deref(), Some(error), "{text:?}");
        }
    }
}
