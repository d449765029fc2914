//! `forward`: upstreams, and how they are queried.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use corefile::{Directive, Located, Location, Word};
use files::ShownPath;
use forwarder::{HealthCheck, MAX_UPSTREAMS, Policy, StanzaSpec};
use wire::{Name, Rcode};

use plugin::args::{Args, Result, bad, duration, flag, path, unknown_property, zones_or};
use plugin::spec::{ParseContext, PluginSpec};
use plugin::{SetupError, Spec};

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
    "max_connections",
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

/// All `forward` directives of a server block.
#[derive(Debug, Clone)]
pub struct ForwardSpecs {
    /// The stanzas in file order; the first that matches a name is used.
    pub stanzas: Vec<ForwardSpec>,
}

/// Returns the warnings about `forward` directives, with their location.
pub fn odd(spec: &Spec) -> impl Iterator<Item = String> {
    let all = spec.blocks.iter().filter_map(|block| block.get::<ForwardSpecs>());
    all.flat_map(|ForwardSpecs { stanzas }| stanzas).filter_map(|stanza| stanza.odd.clone())
}

/// One `forward` directive.
#[derive(Debug, Clone)]
pub struct ForwardSpec {
    /// Location of the directive.
    pub at: Location,
    /// A warning about the directive.
    pub odd: Option<String>,
    /// Settings for the state machine.
    pub stanza: StanzaSpec,
    /// The upstreams in file order; at most 15.
    pub targets: Vec<(ForwardTarget, Location)>,
    /// `tls [CERT KEY] [CA]`: files, with a meaning that depends on their number.
    pub tls: Option<TlsFiles>,
    /// Locations of these files.
    pub tls_at: Vec<(ShownPath, Location)>,
    /// `tls_servername`, with its location.
    pub tls_servername: Option<(String, Location)>,
    /// `source_address`: source of all queries; the kernel's choice if absent.
    pub source: Option<IpAddr>,
    /// `resolver`: servers that resolve host names among the targets; empty for the system's.
    pub resolvers: Vec<SocketAddr>,
}

/// The meaning of one word after the zone of `forward`.
#[allow(clippy::large_enum_variant, reason = "a configuration has a handful of them")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardTarget {
    /// An address.
    Address {
        /// The address and port.
        address: SocketAddr,
        /// Whether the upstream uses TLS.
        tls: bool,
        /// The name after `%`, for TLS.
        server_name: Option<String>,
    },
    /// A file with `nameserver` lines, read again when it changes.
    File(ShownPath),
    /// A host name, resolved when the configuration is built.
    Host {
        /// The name, absolute.
        name: Name,
        /// The upstream's port.
        port: u16,
        /// Whether the upstream uses TLS.
        tls: bool,
    },
}

/// The files of `tls`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The client certificate and its key.
    pub client: Option<(ShownPath, ShownPath)>,
    /// Certificate authorities that replace the system's.
    pub ca: Option<ShownPath>,
}

/// Reads every `forward` of a server block, in file order.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    if let Some(more) = directives.get(forwarder::MOST_STANZAS) {
        let rule = "a server block has 255 `forward` at most; give some of these zones a block of their own";
        return Err(Located::new(&more.name.at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    let stanzas =
        directives.iter().map(|directive| stanza(directive, written.root())).collect::<Result<_>>()?;
    Ok(Arc::new(ForwardSpecs { stanzas }))
}

/// Returns the warning for a network of several zones, with the zones that are not forwarded.
fn first_alone(network: &Word, zones: &[Name]) -> Option<String> {
    let [first, others @ ..] = zones else { return None };
    let (Some(next), Some(last)) = (others.first(), others.last()) else { return None };
    let others = if next == last { next.to_string() } else { format!("{next} to {last}") };
    Some(format!(
        "{}: plugin/{PLUGIN}: {:?} stands for {} zones, of which {first} alone is forwarded, not {others}; write a `{PLUGIN}` for each",
        network.at,
        network.shown(),
        zones.len(),
    ))
}

fn stanza(directive: &Directive, root: Option<&ShownPath>) -> Result<ForwardSpec> {
    let mut args = Args::new(PLUGIN, directive, "FROM TO...");
    let from_word = args.required()?;
    let from = zones_or(std::slice::from_ref(from_word), &[])?;
    let mut spec = ForwardSpec {
        at: directive.name.at.clone(),
        odd: first_alone(from_word, &from),
        // CoreDNS uses only the first zone of a network that stands for several.
        stanza: StanzaSpec {
            from: from.first().copied().unwrap_or(Name::ROOT),
            shown_from: from_word.is_private().then(|| from_word.shown().into()),
            ..StanzaSpec::default()
        },
        targets: Vec::new(),
        tls: None,
        tls_at: Vec::new(),
        tls_servername: None,
        source: None,
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
    let connections = &spec.stanza.connections;
    if !connections.max_age.is_zero() && connections.max_age < connections.expire {
        let rule = "`max_age` must not be shorter than `expire`, 10s unless written";
        return Err(Located::new(&directive.name.at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    let named = spec
        .targets
        .iter()
        .find(|(target, _)| matches!(target, ForwardTarget::Address { server_name: Some(_), .. }));
    if let (Some((_, at)), Some(_)) = (named, &spec.tls_servername) {
        let (first, second) = ("tls_servername", "%NAME");
        return Err(Located::new(at, SetupError::Exclusive { plugin: PLUGIN, first, second }));
    }
    Ok(spec)
}

fn read_property(property: &Directive, root: Option<&ShownPath>, spec: &mut ForwardSpec) -> Result<()> {
    let stanza = &mut spec.stanza;
    let mut args = Args::new(PLUGIN, property, expected(&property.name.text));
    match property.name.text.as_str() {
        "except" => stanza.except.extend(zones_or(args.some()?, &[])?),
        "max_fails" => stanza.max_fails = args.number(0..=u32::MAX, "a number of failed probes")?,
        "max_connect_attempts" => {
            stanza.max_connect_attempts =
                Some(args.number(0..=u32::MAX, "a number of attempts, 0 for no limit")?);
        }
        "health_check" => read_health_check(&mut args, &mut stanza.health)?,
        "force_tcp" => stanza.force_tcp = flag(PLUGIN, property)?,
        "prefer_udp" => stanza.prefer_udp = flag(PLUGIN, property)?,
        "tls" => read_tls(args.rest(), root, spec)?,
        "tls_servername" => {
            let word = args.required()?;
            spec.tls_servername = Some((word.text.clone(), word.at.clone()));
        }
        "expire" => stanza.connections.expire = args.duration("a duration such as 10s")?,
        "max_age" => stanza.connections.max_age = args.duration("a duration such as 1m, 0 for no limit")?,
        "max_idle_conns" => {
            stanza.connections.max_idle =
                args.number(0..=u32::MAX, "a number of connections, 0 for no limit")?;
        }
        "max_connections" => {
            stanza.connections.max_connections =
                args.number(1..=1_024, "a number of connections, 1 to 1024")?;
        }
        "read_timeout" => {
            let word = args.required()?;
            stanza.read_timeout = duration(PLUGIN, word, "a duration above 0")?;
            if stanza.read_timeout.is_zero() {
                return Err(bad(PLUGIN, word, "a duration above 0"));
            }
        }
        "policy" => stanza.policy = policy(args.required()?)?,
        "max_concurrent" => {
            stanza.max_concurrent = args.number(0..=u32::MAX, "a number of queries, 0 for no limit")?
        }
        "next" => stanza.next = rcodes(args.some()?)?,
        "next_on_nodata" => stanza.next_on_nodata = flag(PLUGIN, property)?,
        "failfast_all_unhealthy_upstreams" => stanza.failfast = flag(PLUGIN, property)?,
        "failover" => {
            let words = args.some()?;
            stanza.failover = rcodes(words)?;
            if let Some(at) = stanza.failover.iter().position(|rcode| *rcode == Rcode::NOERROR) {
                return Err(bad(PLUGIN, &words[at], "an rcode that can fail over; NOERROR is an answer"));
            }
        }
        "resolver" => {
            for word in args.some()? {
                let address = node::socket_address(&word.text, 53);
                spec.resolvers.push(address.ok_or_else(|| bad(PLUGIN, word, "IP or IP:PORT of a resolver"))?);
            }
        }
        "source_address" => {
            let word = args.required()?;
            let source: Option<IpAddr> = word.text.parse().ok();
            spec.source = Some(source.ok_or_else(|| bad(PLUGIN, word, "an IP address"))?.to_canonical());
        }
        "doh_method" => {
            let error = SetupError::PropertyNotBuilt { plugin: PLUGIN, property: "doh_method" };
            return Err(Located::new(&property.name.at, error));
        }
        _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
    }
    args.end()
}

fn read_health_check(args: &mut Args<'_>, health: &mut HealthCheck) -> Result<()> {
    health.interval = args.duration("a duration such as 500ms")?;
    while let Some(word) = args.optional() {
        match word.text.as_str() {
            "no_rec" => health.recursion = false,
            "domain" => health.domain = plugin::args::zone(args.required()?)?,
            _ => return Err(bad(PLUGIN, word, "`no_rec` or `domain FQDN`")),
        }
    }
    Ok(())
}

fn read_tls(words: &[Word], root: Option<&ShownPath>, spec: &mut ForwardSpec) -> Result<()> {
    let file = |word: &Word| path(root, word);
    spec.tls_at = words.iter().map(|word| (file(word), word.at.clone())).collect();
    spec.tls = Some(match words {
        [] => TlsFiles::default(),
        [ca] => TlsFiles { client: None, ca: Some(file(ca)) },
        [cert, key] => TlsFiles { client: Some((file(cert), file(key))), ca: None },
        [cert, key, ca] => TlsFiles { client: Some((file(cert), file(key))), ca: Some(file(ca)) },
        [_, _, _, extra, ..] => return Err(bad(PLUGIN, extra, "expected here: `tls [CERT KEY] [CA]`")),
    });
    Ok(())
}

fn policy(word: &Word) -> Result<Policy> {
    match word.text.as_str() {
        "random" => Ok(Policy::Random),
        "round_robin" => Ok(Policy::RoundRobin),
        "sequential" => Ok(Policy::Sequential),
        _ => Err(bad(PLUGIN, word, "a policy: random, round_robin or sequential")),
    }
}

fn rcodes(words: &[Word]) -> Result<Vec<Rcode>> {
    words
        .iter()
        .map(|word| word.text.parse().map_err(|_| bad(PLUGIN, word, "an rcode such as SERVFAIL")))
        .collect()
}

/// Parses `IP[:PORT]`, a file, `tls://IP[%NAME][:PORT]`, or a host name.
fn target(word: &Word, root: Option<&ShownPath>) -> Result<ForwardTarget> {
    let text = word.text.as_str();
    let (scheme, rest) = text.split_once("://").unwrap_or(("dns", text));
    let tls = match scheme {
        "dns" => false,
        "tls" => true,
        "https" => return Err(Located::new(&word.at, SetupError::UpstreamNotBuilt("https://"))),
        "quic" => return Err(Located::new(&word.at, SetupError::UpstreamNotBuilt("quic://"))),
        _ => return Err(bad(PLUGIN, word, UPSTREAM)),
    };
    let port = if tls { 853 } else { 53 };
    // In `IP%NAME:PORT`, NAME is a TLS server; in `fe80::1%eth0`, a link.
    if tls && let Some((host, name)) = rest.split_once('%') {
        let wrong = || bad(PLUGIN, word, "IP%NAME[:PORT]");
        let (name, port) = node::host_and_port(name, port).ok_or_else(wrong)?;
        let host: IpAddr = host.parse().map_err(|_| wrong())?;
        let address = SocketAddr::new(host.to_canonical(), port);
        return Ok(ForwardTarget::Address { address, tls, server_name: Some(name.to_owned()) });
    }
    if let Some(address) = node::socket_address(rest, port) {
        return Ok(ForwardTarget::Address { address, tls, server_name: None });
    }
    if rest.contains('%') {
        return Err(bad(PLUGIN, word, "an address on an interface of this machine"));
    }
    if !text.contains("://")
        && let file = path(root, word)
        && (rest.contains('/') || file.is_file())
    {
        return Ok(ForwardTarget::File(file));
    }
    if rest.ends_with([',', ';']) {
        return Err(bad(PLUGIN, word, "an upstream: between upstreams stand blanks and nothing else"));
    }
    let (host, port) = node::host_and_port(rest, port).ok_or_else(|| {
        bad(PLUGIN, word, "an upstream: a port of 1 to 65535 belongs behind the last colon")
    })?;
    let name = plugin::args::zone_text(host, &word.at)?;
    if !is_host_name(host) {
        return Err(bad(PLUGIN, word, UPSTREAM));
    }
    Ok(ForwardTarget::Host { name, port, tls })
}

/// Whether `text` is a host name. A mistyped address or file is not: a host name has only letters,
/// digits, `-` and `_`, and its top-level domain is never all digits (RFC 3696, section 2).
fn is_host_name(text: &str) -> bool {
    let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let top = text.trim_end_matches('.').split('.').next_back();
    letters && top.is_some_and(|label| !label.bytes().all(|byte| byte.is_ascii_digit()))
}

fn expected(property: &str) -> &'static str {
    match property {
        "except" => "NAMES...",
        "max_fails" | "max_idle_conns" | "max_connections" | "max_concurrent" | "max_connect_attempts" => {
            "a number"
        }
        "health_check" => "DURATION [no_rec] [domain FQDN]",
        "tls" => "[CERT KEY] [CA]",
        "tls_servername" => "NAME",
        "expire" | "max_age" | "read_timeout" => "DURATION",
        "policy" => "random, round_robin or sequential",
        "next" | "failover" => "RCODES...",
        "resolver" => "IP[:PORT]...",
        "source_address" => "IP",
        _ => "no argument",
    }
}

const UPSTREAM: &str = "an upstream: IP[:PORT], tls://IP[:PORT], a file or a host name";

/// Interval between checks of a file of upstreams.
pub const FILE_INTERVAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
