//! `hosts`: answers from a hosts file and from lines in the Corefile.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use corefile::{Directive, Located, Location, Word};
use files::ShownPath;
use refresh::{Families, RefreshSpec, WrittenServer};
use stub_resolver::MAX_SERVERS;
use tls::TlsError;
use wire::Name;

use plugin::args::{Args, Result, bad, duration, flag, no_block, once, path, unknown_property, zones_or};
use plugin::spec::{ParseContext, SourceSpec};
use plugin::{Fallthrough, SetupError};

pub(super) const PLUGIN: &str = "hosts";
const PROPERTIES: &[&str] = &[
    "fallthrough",
    "fallthrough_unsupported",
    "max_age",
    "no_reverse",
    "refresh",
    "refresh_family",
    "refresh_interval",
    "refresh_sinkhole",
    "refresh_via",
    "reload",
    "tls",
    "tls_servername",
    "ttl",
];

/// One `hosts` directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsSpec {
    /// The file; default /etc/hosts.
    pub file: ShownPath,
    /// Only names within these zones are answered; default the server block's.
    pub zones: Vec<Name>,
    /// The TTL in seconds; default 3600, 1 to 65535.
    pub ttl: u32,
    /// Interval between checks of the file; default 5 s, 0 for never.
    pub reload: Duration,
    /// Whether PTR queries for addresses are answered; false with `no_reverse`.
    pub reverse: bool,
    /// Zones in which names missing from the table pass to the next plugin.
    pub fallthrough: Fallthrough,
    /// Whether queries for a name in the table with types other than A, AAAA and PTR also pass.
    pub fallthrough_unsupported: bool,
    /// The lines in the Corefile.
    pub inline: String,
    /// Selects the names of the file that are refreshed, and how.
    pub refresh: RefreshSpec,
    /// The words whose content is checked when the configuration is built.
    pub tls_at: TlsWords,
}

/// Locations of the words of `tls`, `tls_servername` and of encrypted servers. Two directives are equal wherever these are.
#[derive(Debug, Clone, Default)]
pub struct TlsWords {
    files: Vec<(ShownPath, Location)>,
    server_name: Option<Location>,
    /// The first server that is encrypted.
    server: Option<Location>,
    /// The first server with a name behind `%`.
    named_server: Option<Location>,
}

impl PartialEq for TlsWords {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TlsWords {}

impl HostsSpec {
    /// Returns the spec of the directive without properties.
    fn bare(file: ShownPath, zones: Vec<Name>) -> Self {
        Self {
            file,
            zones,
            ttl: 3600,
            reload: Duration::from_secs(5),
            reverse: true,
            fallthrough: Fallthrough::default(),
            fallthrough_unsupported: false,
            inline: String::new(),
            refresh: RefreshSpec::default(),
            tls_at: TlsWords::default(),
        }
    }

    /// Reads the certificates of encrypted servers, so that a Corefile without usable ones is refused. Rounds read them again.
    ///
    /// # Errors
    /// The file or name, with its location.
    pub(super) fn check_tls(&self) -> Result<()> {
        let Some(server) = &self.tls_at.server else { return Ok(()) };
        self.refresh.via.load().map(drop).map_err(|error| {
            let of_file = self.tls_at.files.iter().find(|(path, _)| Some(path) == error.file());
            let named = self.tls_at.server_name.as_ref().or(self.tls_at.named_server.as_ref());
            let at = match error {
                TlsError::ServerName(_) => named,
                _ => of_file.map(|(_, at)| at),
            };
            Located::new(at.unwrap_or(server), SetupError::Tls { plugin: PLUGIN, error })
        })
    }
}

/// Reads the one `hosts` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    let directive = once(PLUGIN, directives)?;
    let mut args = Args::new(PLUGIN, directive, "[FILE [ZONES...]]");
    let file = args.optional().map_or_else(|| "/etc/hosts".into(), |word| path(written.root(), word));
    let mut spec = HostsSpec::bare(file, zones_or(args.rest(), written.zones)?);
    // `refresh_via` is read last, since its words may need a name that another property has.
    let (mut via, mut of_tls) = (Vec::new(), None);
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
            "refresh_via" => via.push(property),
            "tls" => {
                read_tls(property, written.root(), &mut spec)?;
                of_tls = of_tls.or(Some(&property.name));
            }
            "tls_servername" => {
                no_block(PLUGIN, property)?;
                let mut args = Args::new(PLUGIN, property, "NAME");
                let word = args.required()?;
                args.end()?;
                spec.refresh.via.tls.server_name = Some(word.text.clone());
                spec.tls_at.server_name = Some(word.at.clone());
                of_tls = of_tls.or(Some(&property.name));
            }
            "max_age" | "refresh" | "refresh_family" | "refresh_interval" | "refresh_sinkhole" => {
                read_refresh(property, &mut spec.refresh)?;
                if word == "refresh" && spec.file.as_path() == Path::new("/etc/hosts") {
                    let rule = "names are not refreshed in /etc/hosts, which is the system's; name a file of their own";
                    return Err(Located::new(&property.name.at, SetupError::Order { plugin: PLUGIN, rule }));
                }
            }
            address if address.split('%').next().is_some_and(|a| a.parse::<IpAddr>().is_ok()) => {
                no_block(PLUGIN, property)?;
                if spec.fallthrough.is_written() {
                    let rule = "lines with addresses must stand before `fallthrough`";
                    return Err(Located::new(&property.name.at, SetupError::Order { plugin: PLUGIN, rule }));
                }
                let names = Args::new(PLUGIN, property, "at least one name behind the address").some()?;
                spec.inline.push_str(address);
                for name in names {
                    spec.inline.push(' ');
                    spec.inline.push_str(&name.text);
                }
                spec.inline.push('\n');
            }
            _ if word.starts_with(|first: char| first.is_ascii_digit()) => {
                return Err(bad(PLUGIN, &property.name, "an IP address or a property of `hosts`"));
            }
            _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
        }
    }
    for property in via {
        read_via(property, &mut spec)?;
    }
    check_names(&spec, of_tls)?;
    Ok(Arc::new(spec))
}

/// Reads `refresh_via`, after all properties that say what its words may be.
fn read_via(property: &Directive, spec: &mut HostsSpec) -> Result<()> {
    no_block(PLUGIN, property)?;
    let via = &mut spec.refresh.via;
    let named = via.tls.server_name.is_some();
    for word in Args::new(PLUGIN, property, "at least one server").some()? {
        let server =
            WrittenServer::parse(&word.text, named).map_err(|error| bad(PLUGIN, word, error.expected()))?;
        if via.servers.len() == MAX_SERVERS {
            let rule = "at most 15 servers can stand in `refresh_via`";
            return Err(Located::new(&word.at, SetupError::Order { plugin: PLUGIN, rule }));
        }
        if server.is_encrypted() {
            spec.tls_at.server.get_or_insert_with(|| word.at.clone());
        }
        if server.server_name.is_some() {
            spec.tls_at.named_server.get_or_insert_with(|| word.at.clone());
        }
        via.servers.push(server);
    }
    Ok(())
}

/// Refuses names of certificates, and `tls`, where no server or two properties could use them.
fn check_names(spec: &HostsSpec, of_tls: Option<&Word>) -> Result<()> {
    if let (Some(at), Some(_)) = (&spec.tls_at.named_server, &spec.tls_at.server_name) {
        let (first, second) = ("tls_servername", "%NAME");
        return Err(Located::new(at, SetupError::Exclusive { plugin: PLUGIN, first, second }));
    }
    match of_tls {
        Some(word) if spec.tls_at.server.is_none() => {
            let rule =
                "`tls` and `tls_servername` need a server of tls://, https:// or quic:// in `refresh_via`";
            Err(Located::new(&word.at, SetupError::Order { plugin: PLUGIN, rule }))
        }
        _ => Ok(()),
    }
}

/// Reads `tls [CERT KEY] [CA]`, whose meaning depends on the number of files.
fn read_tls(property: &Directive, root: Option<&ShownPath>, spec: &mut HostsSpec) -> Result<()> {
    no_block(PLUGIN, property)?;
    let words = Args::new(PLUGIN, property, "[CERT KEY] [CA]").rest();
    let file = |word: &Word| path(root, word);
    spec.tls_at.files = words.iter().map(|word| (file(word), word.at.clone())).collect();
    let tls = &mut spec.refresh.via.tls;
    (tls.client, tls.authority) = match words {
        [] => (None, None),
        [ca] => (None, Some(file(ca))),
        [cert, key] => (Some((file(cert), file(key))), None),
        [cert, key, ca] => (Some((file(cert), file(key))), Some(file(ca))),
        [_, _, _, extra, ..] => return Err(bad(PLUGIN, extra, "expected here: `tls [CERT KEY] [CA]`")),
    };
    Ok(())
}

fn read_refresh(property: &Directive, spec: &mut RefreshSpec) -> Result<()> {
    no_block(PLUGIN, property)?;
    match property.name.text.as_str() {
        "refresh" => {
            for word in Args::new(PLUGIN, property, "at least one name or list").some()? {
                refresh::name_lists::add(&mut spec.names, &word.text).map_err(|error| {
                    Located::new(&word.at, SetupError::Own { plugin: PLUGIN, error: error.into() })
                })?;
            }
        }
        "refresh_family" => {
            let mut args = Args::new(PLUGIN, property, FAMILIES);
            let word = args.required()?;
            spec.families = match word.text.as_str() {
                "both" => Families::Both,
                "prefer_ipv6" => Families::PreferIpv6,
                "prefer_ipv4" => Families::PreferIpv4,
                "ipv4" => Families::Ipv4,
                "ipv6" => Families::Ipv6,
                _ => return Err(bad(PLUGIN, word, FAMILIES)),
            };
            args.end()?;
        }
        "refresh_interval" => {
            let mut args =
                Args::new(PLUGIN, property, "a duration of at least 5s, and then `jitter` and a duration");
            let word = args.required()?;
            let interval = duration(PLUGIN, word, INTERVAL)?;
            if interval < refresh::LEAST_INTERVAL {
                return Err(bad(PLUGIN, word, INTERVAL));
            }
            let jitter = match args.optional() {
                None => None,
                Some(word) if word.text == "jitter" => Some(args.duration("a duration such as 60s")?),
                Some(word) => return Err(bad(PLUGIN, word, "`jitter`")),
            };
            args.end()?;
            spec.interval = Some((interval, jitter));
        }
        "max_age" => {
            let mut args = Args::new(PLUGIN, property, "a duration, 0 for no limit");
            let max_age = args.duration("a duration such as 24h, 0 for no limit")?;
            args.end()?;
            spec.max_age = Some(max_age).filter(|max_age| !max_age.is_zero());
        }
        _ => {
            for word in Args::new(PLUGIN, property, "at least one IP address").some()? {
                let address = word.text.parse().map_err(|_| bad(PLUGIN, word, "an IP address"))?;
                spec.sinkholes.push(address);
            }
        }
    }
    Ok(())
}

const FAMILIES: &str = "both, prefer_ipv6, prefer_ipv4, ipv4 or ipv6";
const INTERVAL: &str = "a duration of at least 5s";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties, with};

    /// Differences of a row from the bare directive.
    type Change = fn(&mut HostsSpec);

    fn name(text: &str) -> Name {
        Name::from_text(text).unwrap()
    }

    fn bare() -> HostsSpec {
        HostsSpec::bare("/etc/hosts".into(), vec![Name::ROOT])
    }

    #[test]
    fn defaults_of_coredns() {
        let HostsSpec { ttl, reload, reverse, .. } = bare();
        assert_eq!((ttl, reload, reverse), (3600, Duration::from_secs(5), true));
    }

    #[test]
    fn arguments_and_properties() {
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
            (with("hosts /run/h", "refresh b.org A.org.\nrefresh a.org c.org"), |s| {
                s.file = "/run/h".into();
                s.refresh.names = vec![name("b.org"), name("a.org"), name("c.org")];
            }),
            (with("hosts /run/h", "refresh @azure-china"), |s| {
                s.file = "/run/h".into();
                let mut names = Vec::new();
                refresh::name_lists::add(&mut names, "@azure-china").unwrap();
                s.refresh.names = names;
            }),
            (with("hosts", "refresh_interval 10m"), |s| {
                s.refresh.interval = Some((Duration::from_secs(600), None));
            }),
            (with("hosts", "refresh_interval 5s jitter 0"), |s| {
                s.refresh.interval = Some((Duration::from_secs(5), Some(Duration::ZERO)));
            }),
            (with("hosts", "refresh_via 192.0.2.53 192.0.2.54:54 2001:db8::53"), |s| {
                let via = ["192.0.2.53:53", "192.0.2.54:54", "[2001:db8::53]:53"];
                s.refresh.via.servers = via.map(|text| WrittenServer::parse(text, false).unwrap()).to_vec();
            }),
            (
                with("hosts", "tls_servername dns.org\nrefresh_via tls://192.0.2.53 192.0.2.54\ntls /ca.pem"),
                |s| {
                    let via = ["tls://192.0.2.53:853", "192.0.2.54"];
                    s.refresh.via.servers =
                        via.map(|text| WrittenServer::parse(text, false).unwrap()).to_vec();
                    s.refresh.via.tls.server_name = Some("dns.org".into());
                    s.refresh.via.tls.authority = Some("/ca.pem".into());
                },
            ),
            (with("hosts", "refresh_via quic://192.0.2.53%dns.org\ntls /c.pem /k.pem"), |s| {
                let server = WrittenServer::parse("quic://192.0.2.53%dns.org:853", false).unwrap();
                s.refresh.via.servers = vec![server];
                s.refresh.via.tls.client = Some(("/c.pem".into(), "/k.pem".into()));
            }),
            (with("hosts", "refresh_family prefer_ipv4"), |s| s.refresh.families = Families::PreferIpv4),
            (with("hosts", "max_age 24h"), |s| s.refresh.max_age = Some(Duration::from_secs(86_400))),
            (with("hosts", "max_age 0"), |_| {}),
            (with("hosts", "refresh_sinkhole 192.0.2.66 ::66"), |s| {
                s.refresh.sinkholes = vec!["192.0.2.66".parse().unwrap(), "::66".parse().unwrap()];
            }),
            (with("hosts", "fe80::1%eth0 a.org"), |s| s.inline = "fe80::1%eth0 a.org\n".into()),
        ];
        for (lines, change) in rows {
            let mut expected = bare();
            change(&mut expected);
            assert_eq!(parsed(lines), Some(expected), "{lines}");
        }
    }

    #[test]
    fn errors_have_their_place() {
        refused(&[("hosts /etc/hosts a..b", "2:18: the zone `a..b` has an empty label")]);
        refused_properties(
            "hosts",
            &[
                ("ttl", "1: plugin/hosts: `ttl` needs a TTL in seconds, 1 to 65535"),
                ("ttl 0", "5: plugin/hosts: \"0\" is not a TTL in seconds, 1 to 65535"),
                ("ttl 65536", "5: plugin/hosts: \"65536\" is not a TTL in seconds, 1 to 65535"),
                ("ttl 5s", "5: plugin/hosts: \"5s\" is not a TTL in seconds, 1 to 65535"),
                (
                    "ttl 5 6",
                    "7: plugin/hosts: unexpected argument \"6\"; `ttl` needs a TTL in seconds, 1 to 65535",
                ),
                ("reload", "1: plugin/hosts: `reload` needs a duration, 0 for never"),
                ("reload 5", "8: plugin/hosts: \"5\" is not a duration such as 5s, 0 for never"),
                ("reload -5s", "8: plugin/hosts: \"-5s\" is not a duration such as 5s, 0 for never"),
                (
                    "no_reverse yes",
                    "12: plugin/hosts: unexpected argument \"yes\"; `no_reverse` needs no argument",
                ),
                ("fallthrough a..b", "13: the zone `a..b` has an empty label"),
                ("fallthrough {\nx\n}", "1: plugin/hosts: `fallthrough` has no sub-block; remove the braces"),
                ("192.0.2.1", "1: plugin/hosts: `192.0.2.1` needs at least one name behind the address"),
                ("fallthru", "1: plugin/hosts: unknown property \"fallthru\"; did you mean `fallthrough`?"),
                ("refresh", "1: plugin/hosts: `refresh` needs at least one name or list"),
                (
                    "refresh a..b",
                    "9: plugin/hosts: \"a..b\" is not a host name: letters, digits, `-` and `_` in labels of 1 to 63",
                ),
                (
                    "refresh @azure",
                    "9: plugin/hosts: there is no list \"@azure\"; there are @azure-public, @azure-usgov, @azure-china",
                ),
                (
                    "refresh a.org",
                    "1: plugin/hosts: names are not refreshed in /etc/hosts, which is the system's; name a file of their own",
                ),
                ("refresh_interval 4s", "18: plugin/hosts: \"4s\" is not a duration of at least 5s"),
                ("refresh_interval 5s 5s", "21: plugin/hosts: \"5s\" is not `jitter`"),
                (
                    "refresh_via dns.org",
                    "13: plugin/hosts: \"dns.org\" is not an IP address, perhaps with a port, and tls://, https:// or quic:// before it",
                ),
                (
                    "refresh_via quic://dns.org",
                    "13: plugin/hosts: \"quic://dns.org\" is not a server: its IP address stands here, and the name of its certificate behind % or in `tls_servername`",
                ),
                (
                    "tls_servername dns.org",
                    "1: plugin/hosts: `tls` and `tls_servername` need a server of tls://, https:// or quic:// in `refresh_via`",
                ),
                ("tls a b c d", "11: plugin/hosts: \"d\" is not expected here: `tls [CERT KEY] [CA]`"),
                (
                    "refresh_family inet",
                    "16: plugin/hosts: \"inet\" is not both, prefer_ipv6, prefer_ipv4, ipv4 or ipv6",
                ),
                ("max_age x", "9: plugin/hosts: \"x\" is not a duration such as 24h, 0 for no limit"),
                ("refresh_sinkhole x", "18: plugin/hosts: \"x\" is not an IP address"),
                (
                    "192.0.2.256 a",
                    "1: plugin/hosts: \"192.0.2.256\" is not an IP address or a property of `hosts`",
                ),
            ],
        );
        refused(&[(
            "hosts {\nttl 5\nfallthrough\n192.0.2.1 a\n}",
            "5:1: plugin/hosts: lines with addresses must stand before `fallthrough`",
        )]);
    }
}
