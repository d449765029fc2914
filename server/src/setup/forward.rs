//! `forward`: upstreams, and how they are asked.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corefile::{Directive, Located, Location, Word};
use forwarder::{GroupSpec, MAX_UPSTREAMS, Policy};
use wire::{Name, Rcode};

use super::SetupError;
use super::args::{Args, Result, bad, duration, flag, path, unknown_property, zones_or};

const PLUGIN: &str = "forward";
const PROPERTIES: &[&str] = &[
    "doh_method",
    "except",
    "expire",
    "failfast_all_unhealthy_upstreams",
    "failover",
    "force_tcp",
    "health_check",
    "max_age",
    "max_concurrent",
    "max_connect_attempts",
    "max_fails",
    "max_idle_conns",
    "next",
    "next_on_nodata",
    "policy",
    "prefer_udp",
    "read_timeout",
    "resolver",
    "source_address",
    "tls",
    "tls_servername",
];

/// What one `forward` directive says.
#[derive(Debug, Clone)]
pub struct ForwardSpec {
    /// Where the directive stands.
    pub at: Location,
    /// What the upstreams' state machine needs to know.
    pub group: GroupSpec,
    /// Whom to ask, in file order; at most 15.
    pub targets: Vec<(Target, Location)>,
    /// `tls [CERT KEY] [CA]`: files, in the meaning that their number gives them.
    pub tls: Option<TlsFiles>,
    /// `tls_servername`.
    pub tls_servername: Option<String>,
    /// `resolver`: who is asked for host names among the targets; the system's where empty.
    pub resolvers: Vec<SocketAddr>,
}

/// One target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An address.
    Address {
        /// Where.
        address: SocketAddr,
        /// Whether TLS is spoken there.
        tls: bool,
        /// The name behind `%`, for TLS.
        server_name: Option<String>,
    },
    /// A file with `nameserver` lines, followed when it changes.
    File(PathBuf),
    /// A host name, resolved when the configuration is built.
    Host {
        /// The name, absolute.
        name: Name,
        /// Its port.
        port: u16,
        /// Whether TLS is spoken there.
        tls: bool,
    },
}

/// The files of `tls`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Our certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Whom to trust instead of the system's authorities.
    pub ca: Option<PathBuf>,
}

/// Reads every `forward` of a server block, in file order.
pub(crate) fn parse(directives: &[&Directive], root: Option<&Path>) -> Result<Vec<ForwardSpec>> {
    directives.iter().map(|directive| parse_one(directive, root)).collect()
}

fn parse_one(directive: &Directive, root: Option<&Path>) -> Result<ForwardSpec> {
    let mut args = Args::new(PLUGIN, directive, "FROM TO...");
    let from_word = args.required()?;
    let from = zones_or(std::slice::from_ref(from_word), &[])?;
    let mut spec = ForwardSpec {
        at: directive.name.at.clone(),
        // CoreDNS takes the first zone of a network that needs several.
        group: GroupSpec { from: from.first().copied().unwrap_or(Name::ROOT), ..GroupSpec::default() },
        targets: Vec::new(),
        tls: None,
        tls_servername: None,
        resolvers: Vec::new(),
    };
    for word in args.some()? {
        spec.targets.push((target(word, root)?, word.at.clone()));
    }
    if let Some((_, at)) = spec.targets.get(MAX_UPSTREAMS) {
        let rule = "at most 15 upstreams can stand in one `forward`";
        return Err(Located::new(at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    for property in directive.body.iter().flatten() {
        read_property(property, root, &mut spec)?;
    }
    let connections = &spec.group.connections;
    if !connections.max_age.is_zero() && connections.max_age < connections.expire {
        let rule = "`max_age` must not be shorter than `expire`, 10s unless written";
        return Err(Located::new(&directive.name.at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    let named = spec
        .targets
        .iter()
        .find(|(target, _)| matches!(target, Target::Address { server_name: Some(_), .. }));
    if let (Some((_, at)), Some(_)) = (named, &spec.tls_servername) {
        let (first, second) = ("tls_servername", "a server name behind %");
        return Err(Located::new(at, SetupError::Exclusive { plugin: PLUGIN, first, second }));
    }
    Ok(spec)
}

fn read_property(property: &Directive, root: Option<&Path>, spec: &mut ForwardSpec) -> Result<()> {
    let group = &mut spec.group;
    let mut args = Args::new(PLUGIN, property, expected(&property.name.text));
    match property.name.text.as_str() {
        "except" => group.except.extend(zones_or(args.some()?, &[])?),
        "max_fails" => group.max_fails = args.number(0..=u32::MAX, "a number of failed probes")?,
        "max_connect_attempts" => {
            group.max_connect_attempts =
                Some(args.number(0..=u32::MAX, "a number of attempts, 0 for no limit")?);
        }
        "health_check" => {
            group.health.interval = args.duration("a duration such as 500ms")?;
            while let Some(word) = args.optional() {
                match word.text.as_str() {
                    "no_rec" => group.health.recursion = false,
                    "domain" => group.health.domain = super::args::zone(args.required()?)?,
                    _ => return Err(bad(PLUGIN, word, "`no_rec` or `domain FQDN`")),
                }
            }
        }
        "force_tcp" => group.force_tcp = flag(PLUGIN, property)?,
        "prefer_udp" => group.prefer_udp = flag(PLUGIN, property)?,
        "tls" => {
            let file = |word: &Word| path(root, &word.text);
            let words = args.rest();
            spec.tls = Some(match words {
                [] => TlsFiles::default(),
                [ca] => TlsFiles { client: None, ca: Some(file(ca)) },
                [cert, key] => TlsFiles { client: Some((file(cert), file(key))), ca: None },
                [cert, key, ca] => TlsFiles { client: Some((file(cert), file(key))), ca: Some(file(ca)) },
                [_, _, _, extra, ..] => {
                    return Err(bad(PLUGIN, extra, "expected here: `tls [CERT KEY] [CA]`"));
                }
            });
        }
        "tls_servername" => spec.tls_servername = Some(args.required()?.text.clone()),
        "expire" => group.connections.expire = args.duration("a duration such as 10s")?,
        "max_age" => group.connections.max_age = args.duration("a duration such as 1m, 0 for no limit")?,
        "max_idle_conns" => {
            group.connections.max_idle =
                args.number(0..=u32::MAX, "a number of connections, 0 for no limit")?;
        }
        "read_timeout" => {
            let word = args.required()?;
            group.read_timeout = duration(PLUGIN, word, "a duration above 0")?;
            if group.read_timeout.is_zero() {
                return Err(bad(PLUGIN, word, "a duration above 0"));
            }
        }
        "policy" => {
            let word = args.required()?;
            group.policy = match word.text.as_str() {
                "random" => Policy::Random,
                "round_robin" => Policy::RoundRobin,
                "sequential" => Policy::Sequential,
                _ => return Err(bad(PLUGIN, word, "a policy: random, round_robin or sequential")),
            };
        }
        "max_concurrent" => {
            group.max_concurrent = args.number(0..=u32::MAX, "a number of queries, 0 for no limit")?
        }
        "next" => group.next = rcodes(args.some()?)?,
        "next_on_nodata" => group.next_on_nodata = flag(PLUGIN, property)?,
        "failfast_all_unhealthy_upstreams" => group.failfast = flag(PLUGIN, property)?,
        "failover" => {
            let words = args.some()?;
            group.failover = rcodes(words)?;
            if let Some(at) = group.failover.iter().position(|rcode| *rcode == Rcode::NOERROR) {
                return Err(bad(PLUGIN, &words[at], "an rcode that can fail over; NOERROR is an answer"));
            }
        }
        "resolver" => {
            for word in args.some()? {
                let address = socket_address(&word.text, 53);
                spec.resolvers.push(address.ok_or_else(|| bad(PLUGIN, word, "IP or IP:PORT of a resolver"))?);
            }
        }
        "doh_method" => return Err(not_built(property, "forward's doh_method")),
        "source_address" => return Err(not_built(property, "forward's source_address")),
        _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
    }
    args.end()
}

fn not_built(property: &Directive, name: &'static str) -> Located<SetupError> {
    Located::new(&property.name.at, SetupError::NotBuilt(name))
}

fn rcodes(words: &[Word]) -> Result<Vec<Rcode>> {
    words
        .iter()
        .map(|word| word.text.parse().map_err(|_| bad(PLUGIN, word, "an rcode such as SERVFAIL")))
        .collect()
}

/// `IP[:PORT]`, a file, `tls://IP[%NAME][:PORT]`, or a host name.
fn target(word: &Word, root: Option<&Path>) -> Result<Target> {
    let text = word.text.as_str();
    let (scheme, rest) = text.split_once("://").unwrap_or(("dns", text));
    let tls = match scheme {
        "dns" => false,
        "tls" => true,
        "https" => return Err(Located::new(&word.at, SetupError::SchemeNotBuilt("https://"))),
        "quic" => return Err(Located::new(&word.at, SetupError::SchemeNotBuilt("quic://"))),
        _ => return Err(bad(PLUGIN, word, "an upstream: IP[:PORT], tls://IP[:PORT], a file or a host name")),
    };
    let port = if tls { 853 } else { 53 };
    // `IP%NAME:PORT` names a TLS server; `fe80::1%eth0` a link.
    if tls && let Some((host, name)) = rest.split_once('%') {
        let (name, port) = match name.rsplit_once(':') {
            Some((name, digits)) => {
                (name, port_number(digits).ok_or_else(|| bad(PLUGIN, word, "IP%NAME[:PORT]"))?)
            }
            None => (name, port),
        };
        let host: IpAddr = host.parse().map_err(|_| bad(PLUGIN, word, "IP%NAME[:PORT]"))?;
        let address = SocketAddr::new(host, port);
        return Ok(Target::Address { address, tls, server_name: Some(name.to_owned()) });
    }
    if let Some(address) = socket_address(rest, port) {
        return Ok(Target::Address { address, tls, server_name: None });
    }
    if rest.contains('%') {
        return Err(bad(PLUGIN, word, "an address on an interface of this machine"));
    }
    let file = path(root, rest);
    if scheme == "dns" && !text.contains("://") && (rest.contains('/') || file.is_file()) {
        return Ok(Target::File(file));
    }
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, digits)) => (
            host,
            port_number(digits).ok_or_else(|| {
                bad(PLUGIN, word, "an upstream: a port of 1 to 65535 belongs behind the last colon")
            })?,
        ),
        None => (rest, port),
    };
    let name = super::args::zone_text(host, &word.at)?;
    // Somebody's typing error in an address is no host name: a top-level domain is never all digits (RFC 3696, section 2).
    if host
        .trim_end_matches('.')
        .split('.')
        .next_back()
        .is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Err(bad(PLUGIN, word, "an upstream: IP[:PORT], tls://IP[:PORT], a file or a host name"));
    }
    Ok(Target::Host { name, port, tls })
}

fn socket_address(text: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return (address.port() > 0).then_some(address);
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Some((host, link)) = bare.split_once('%') {
        let index = link.parse().ok().or_else(|| forwarder::resolv_conf::interface_index(link))?;
        return Some(SocketAddrV6::new(host.parse().ok()?, port, 0, index).into());
    }
    bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port))
}

fn port_number(digits: &str) -> Option<u16> {
    digits.parse().ok().filter(|port| *port > 0)
}

fn expected(property: &str) -> &'static str {
    match property {
        "except" => "NAMES...",
        "max_fails" | "max_idle_conns" | "max_concurrent" | "max_connect_attempts" => "a number",
        "health_check" => "DURATION [no_rec] [domain FQDN]",
        "tls" => "[CERT KEY] [CA]",
        "tls_servername" => "NAME",
        "expire" | "max_age" | "read_timeout" => "DURATION",
        "policy" => "random, round_robin or sequential",
        "next" | "failover" => "RCODES...",
        "resolver" => "IP[:PORT]...",
        _ => "no argument",
    }
}

/// How often a file of upstreams is looked at.
pub(crate) const FILE_INTERVAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::tests::{block, good, refused, refused_properties, with};
    use super::*;
    use forwarder::{ConnectionLimits, HealthCheck};

    fn name(text: &str) -> Name {
        Name::from_text(text).unwrap()
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Everything that a directive says but where it stands.
    fn shown(spec: &ForwardSpec) -> String {
        let targets: Vec<&Target> = spec.targets.iter().map(|(target, _)| target).collect();
        format!("{:?} {targets:?} {:?} {:?} {:?}", spec.group, spec.tls, spec.tls_servername, spec.resolvers)
    }

    #[test]
    fn upstreams_are_addresses_files_or_host_names() {
        let plain = |text| Target::Address { address: address(text), tls: false, server_name: None };
        let tls = |text, server_name: Option<&str>| Target::Address {
            address: address(text),
            tls: true,
            server_name: server_name.map(str::to_owned),
        };
        let host = |text, port, tls| Target::Host { name: name(text), port, tls };
        for (word, expected) in [
            ("192.0.2.1", plain("192.0.2.1:53")),
            ("192.0.2.1:5353", plain("192.0.2.1:5353")),
            ("dns://192.0.2.1", plain("192.0.2.1:53")),
            ("2001:db8::1", plain("[2001:db8::1]:53")),
            ("[2001:db8::1]", plain("[2001:db8::1]:53")),
            ("[2001:db8::1]:54", plain("[2001:db8::1]:54")),
            ("fe80::1%7", plain("[fe80::1%7]:53")),
            ("[fe80::1%7]:54", plain("[fe80::1%7]:54")),
            ("tls://192.0.2.1", tls("192.0.2.1:853", None)),
            ("tls://[2001:db8::1]:8853", tls("[2001:db8::1]:8853", None)),
            ("tls://192.0.2.1%dns.example.org", tls("192.0.2.1:853", Some("dns.example.org"))),
            ("tls://192.0.2.1%dns.example.org:8853", tls("192.0.2.1:8853", Some("dns.example.org"))),
            ("/run/upstreams.conf", Target::File("/run/upstreams.conf".into())),
            ("run/upstreams.conf", Target::File("run/upstreams.conf".into())),
            ("dns.example.org", host("dns.example.org", 53, false)),
            ("dns.example.org.:54", host("dns.example.org", 54, false)),
            ("dns://dns.example.org", host("dns.example.org", 53, false)),
            ("tls://dns.example.org", host("dns.example.org", 853, true)),
        ] {
            let spec = good(&format!("forward . {word}")).forward.remove(0);
            assert_eq!(spec.targets[0].0, expected, "{word}");
        }
    }

    #[test]
    fn stanzas_keep_their_order_and_zones() {
        let block = good(
            "forward Lab.example.org 192.0.2.1 192.0.2.2\nforward 10.0.0.0/24 192.0.2.3\nforward . 192.0.2.4",
        );
        let stanzas: Vec<(String, usize)> =
            block.forward.iter().map(|spec| (spec.group.from.to_string(), spec.targets.len())).collect();
        let expected = [("lab.example.org.", 2), ("0.0.10.in-addr.arpa.", 1), (".", 1)];
        assert_eq!(stanzas, expected.map(|(zone, count)| (zone.to_owned(), count)));
        let fifteen = "192.0.2.1 ".repeat(15);
        assert_eq!(good(&format!("forward . {fifteen}")).forward[0].targets.len(), 15);
        assert_eq!(
            block_error(&format!("forward . {fifteen}192.0.2.2")),
            "Corefile:2:161: plugin/forward: at most 15 upstreams can stand in one `forward`"
        );
    }

    fn block_error(lines: &str) -> String {
        block(lines).err().unwrap_or_default()
    }

    #[test]
    fn properties_change_what_they_name_and_nothing_else() {
        let seconds = Duration::from_secs;
        let rows: &[(&str, fn(&mut ForwardSpec))] = &[
            ("except a.org 10.0.0.0/24\nexcept b.org", |s| {
                s.group.except = vec![name("a.org"), name("0.0.10.in-addr.arpa"), name("b.org")];
            }),
            ("max_fails 0", |s| s.group.max_fails = 0),
            ("max_connect_attempts 3", |s| s.group.max_connect_attempts = Some(3)),
            ("health_check 1s", |s| s.group.health.interval = Duration::from_secs(1)),
            ("health_check 1s no_rec domain health.local.", |s| {
                s.group.health = HealthCheck {
                    interval: Duration::from_secs(1),
                    recursion: false,
                    domain: name("health.local"),
                    ..HealthCheck::default()
                };
            }),
            ("force_tcp", |s| s.group.force_tcp = true),
            ("prefer_udp", |s| s.group.prefer_udp = true),
            ("tls", |s| s.tls = Some(TlsFiles::default())),
            ("tls ca.pem", |s| s.tls = Some(TlsFiles { client: None, ca: Some("ca.pem".into()) })),
            ("tls c.pem k.pem", |s| {
                s.tls = Some(TlsFiles { client: Some(("c.pem".into(), "k.pem".into())), ca: None });
            }),
            ("tls c.pem k.pem ca.pem", |s| {
                let client = Some(("c.pem".into(), "k.pem".into()));
                s.tls = Some(TlsFiles { client, ca: Some("ca.pem".into()) });
            }),
            ("tls_servername dns.example.org", |s| s.tls_servername = Some("dns.example.org".into())),
            ("expire 1m", |s| s.group.connections.expire = Duration::from_secs(60)),
            ("max_age 10s", |s| s.group.connections.max_age = Duration::from_secs(10)),
            ("max_age 0s", |_| {}),
            ("expire 1s\nmax_age 2s", |s| {
                s.group.connections = ConnectionLimits {
                    expire: Duration::from_secs(1),
                    max_age: Duration::from_secs(2),
                    ..ConnectionLimits::default()
                };
            }),
            ("max_idle_conns 7", |s| s.group.connections.max_idle = 7),
            ("read_timeout 500ms", |s| s.group.read_timeout = Duration::from_millis(500)),
            ("policy random", |s| s.group.policy = Policy::Random),
            ("policy round_robin", |s| s.group.policy = Policy::RoundRobin),
            ("policy sequential", |s| s.group.policy = Policy::Sequential),
            ("max_concurrent 1000", |s| s.group.max_concurrent = 1000),
            ("next NXDOMAIN servfail", |s| s.group.next = vec![Rcode::NXDOMAIN, Rcode::SERVFAIL]),
            ("next_on_nodata", |s| s.group.next_on_nodata = true),
            ("failfast_all_unhealthy_upstreams", |s| s.group.failfast = true),
            ("failover SERVFAIL REFUSED", |s| s.group.failover = vec![Rcode::SERVFAIL, Rcode::REFUSED]),
            ("resolver 192.0.2.8 192.0.2.9:54", |s| {
                s.resolvers = vec![address("192.0.2.8:53"), address("192.0.2.9:54")];
            }),
        ];
        assert_eq!(good("forward . 192.0.2.1").forward[0].group.read_timeout, seconds(2));
        for (property, change) in rows {
            let mut expected = good("forward . 192.0.2.1").forward.remove(0);
            change(&mut expected);
            let found = good(&with("forward . 192.0.2.1", property)).forward.remove(0);
            assert_eq!(shown(&found), shown(&expected), "{property}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_at_its_word() {
        const UPSTREAM: &str = "is not an upstream: IP[:PORT], tls://IP[:PORT], a file or a host name";
        const PORT: &str = "is not an upstream: a port of 1 to 65535 belongs behind the last colon";
        let rows = [
            ("forward", "2:1: plugin/forward: `forward` wants FROM TO...".to_owned()),
            ("forward .", "2:1: plugin/forward: `forward` wants FROM TO...".to_owned()),
            ("forward a..b 192.0.2.1", "2:9: the zone `a..b` has an empty label".to_owned()),
            ("forward . 192.0.2", format!("2:11: plugin/forward: \"192.0.2\" {UPSTREAM}")),
            ("forward . ftp://192.0.2.1", format!("2:11: plugin/forward: \"ftp://192.0.2.1\" {UPSTREAM}")),
            ("forward . 192.0.2.1:0", format!("2:11: plugin/forward: \"192.0.2.1:0\" {PORT}")),
            ("forward . 192.0.2.1:65536", format!("2:11: plugin/forward: \"192.0.2.1:65536\" {PORT}")),
            ("forward . dns.example.org:dns", format!("2:11: plugin/forward: \"dns.example.org:dns\" {PORT}")),
            (
                "forward . fe80::1%nosuchlink0",
                "2:11: plugin/forward: \"fe80::1%nosuchlink0\" is not an address on an interface of this machine"
                    .to_owned(),
            ),
            (
                "forward . tls://192.0.2.1%name:0",
                "2:11: plugin/forward: \"tls://192.0.2.1%name:0\" is not IP%NAME[:PORT]".to_owned(),
            ),
            (
                "forward . 192.0.2.1 https://192.0.2.1/dns-query",
                "2:21: the scheme \"https://\" is not built yet; only dns:// is served".to_owned(),
            ),
            (
                "forward . quic://192.0.2.1",
                "2:11: the scheme \"quic://\" is not built yet; only dns:// is served".to_owned(),
            ),
            (
                "forward . tls://192.0.2.1%a {\ntls_servername b\n}",
                "2:11: plugin/forward: `tls_servername` and `a server name behind %` exclude each other; keep one"
                    .to_owned(),
            ),
            (
                "forward . 192.0.2.1 {\nmax_age 9s\n}",
                "2:1: plugin/forward: `max_age` must not be shorter than `expire`, 10s unless written".to_owned(),
            ),
        ];
        for (line, error) in &rows {
            refused(&[(line, error)]);
        }
    }

    #[test]
    fn wrong_properties_are_told_at_their_word() {
        refused_properties(
            "forward . 192.0.2.1",
            &[
                ("except", "1: plugin/forward: `except` wants NAMES..."),
                ("max_fails -1", "11: plugin/forward: \"-1\" is not a number of failed probes"),
                (
                    "max_connect_attempts x",
                    "22: plugin/forward: \"x\" is not a number of attempts, 0 for no limit",
                ),
                ("health_check", "1: plugin/forward: `health_check` wants DURATION [no_rec] [domain FQDN]"),
                ("health_check 1", "14: plugin/forward: \"1\" is not a duration such as 500ms"),
                ("health_check 1s norec", "17: plugin/forward: \"norec\" is not `no_rec` or `domain FQDN`"),
                (
                    "health_check 1s domain",
                    "1: plugin/forward: `health_check` wants DURATION [no_rec] [domain FQDN]",
                ),
                (
                    "force_tcp yes",
                    "11: plugin/forward: unexpected argument \"yes\"; `force_tcp` wants no argument",
                ),
                ("prefer_udp {\nx\n}", "1: plugin/forward: `prefer_udp` has no sub-block; remove the braces"),
                ("tls a b c d", "11: plugin/forward: \"d\" is not expected here: `tls [CERT KEY] [CA]`"),
                ("tls_servername", "1: plugin/forward: `tls_servername` wants NAME"),
                (
                    "tls_servername a b",
                    "18: plugin/forward: unexpected argument \"b\"; `tls_servername` wants NAME",
                ),
                ("expire 10", "8: plugin/forward: \"10\" is not a duration such as 10s"),
                ("max_age -1s", "9: plugin/forward: \"-1s\" is not a duration such as 1m, 0 for no limit"),
                (
                    "max_idle_conns many",
                    "16: plugin/forward: \"many\" is not a number of connections, 0 for no limit",
                ),
                ("read_timeout 0s", "14: plugin/forward: \"0s\" is not a duration above 0"),
                (
                    "policy best",
                    "8: plugin/forward: \"best\" is not a policy: random, round_robin or sequential",
                ),
                ("max_concurrent", "1: plugin/forward: `max_concurrent` wants a number"),
                (
                    "max_concurrent 1k",
                    "16: plugin/forward: \"1k\" is not a number of queries, 0 for no limit",
                ),
                ("next", "1: plugin/forward: `next` wants RCODES..."),
                ("next OOPS", "6: plugin/forward: \"OOPS\" is not an rcode such as SERVFAIL"),
                (
                    "failover SERVFAIL NOERROR",
                    "19: plugin/forward: \"NOERROR\" is not an rcode that can fail over; NOERROR is an answer",
                ),
                ("resolver", "1: plugin/forward: `resolver` wants IP[:PORT]..."),
                ("resolver dns.org", "10: plugin/forward: \"dns.org\" is not IP or IP:PORT of a resolver"),
                (
                    "doh_method GET",
                    "1: the directive `forward's doh_method` of CoreDNS is not built yet; remove it, or keep CoreDNS for this server block",
                ),
                (
                    "source_address 192.0.2.1",
                    "1: the directive `forward's source_address` of CoreDNS is not built yet; remove it, or keep CoreDNS for this server block",
                ),
                (
                    "prefer_upd",
                    "1: plugin/forward: unknown property \"prefer_upd\"; did you mean `prefer_udp`?",
                ),
            ],
        );
    }
}
