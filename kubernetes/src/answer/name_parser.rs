//! Parses names in a cluster's zone.

use wire::Name;

/// A parsed name; its labels are in lower case, and no object is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParsedName<'n> {
    /// The zone itself.
    Apex,
    /// The name `svc` or `pod` below the zone.
    Above,
    /// `dns-version`.
    Version,
    /// `ns.dns`.
    NameServer,
    /// `NAMESPACE.svc` or `NAMESPACE.pod`.
    Namespace(&'n [u8]),
    /// A service or a name below it.
    Service(ServiceName<'n>),
    /// `ADDRESS.NAMESPACE.pod`, or a name below it.
    Pod {
        /// The address with dashes.
        address: &'n [u8],
        namespace: &'n [u8],
    },
    /// Not a name of a cluster.
    Invalid,
}

/// A name of a service, or of some of its endpoints and ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ServiceName<'n> {
    /// Key of the service in the index.
    pub(crate) key: &'n [u8],
    /// Offset of the key in the name.
    pub(crate) at: usize,
    pub(crate) namespace: &'n [u8],
    /// Label of an endpoint.
    pub(crate) endpoint: Option<&'n [u8]>,
    /// Cluster of the endpoint.
    pub(crate) cluster: Option<&'n [u8]>,
    /// Port and protocol without underscore; empty means any.
    pub(crate) port: &'n [u8],
    pub(crate) protocol: &'n [u8],
    pub(crate) topology: Option<Topology<'n>>,
}

impl ServiceName<'_> {
    /// Whether it is the name of the service itself.
    #[inline]
    pub(crate) fn is_bare(&self) -> bool {
        self.endpoint.is_none() && self.topology.is_none() && self.port.is_empty() && self.protocol.is_empty()
    }
}

/// Endpoints of a topology zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Topology<'n> {
    /// The zone as labels in wire form.
    pub(crate) zone: &'n [u8],
    /// Whether to use all endpoints if the zone has none.
    pub(crate) prefer: bool,
}

/// Optional names in a zone.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Grammar {
    /// The zone is for ServiceImports.
    pub(crate) multicluster: bool,
    /// Names for a topology zone exist.
    pub(crate) zonal: bool,
}

/// Parses `name`, which is within `zone`.
#[inline]
pub(crate) fn parse<'n>(name: &'n Name, zone: &Name, grammar: Grammar) -> ParsedName<'n> {
    let wire = name.as_wire();
    let count = name.label_count() - zone.label_count();
    if count == 3
        && let Some(below) = bare_service(&wire[..wire.len() - zone.as_wire().len()])
    {
        return ParsedName::Service(below);
    }
    parse_labels(wire, count, grammar)
}

/// Parses a name with `count` labels below its zone.
#[inline(never)]
fn parse_labels(wire: &[u8], count: usize, grammar: Grammar) -> ParsedName<'_> {
    // Offsets of the last labels, beginning at the zone.
    let (mut at, mut starts) = (0, [0; LABELS]);
    for left in (0..count).rev() {
        if let Some(start) = starts.get_mut(left) {
            *start = at;
        }
        at += 1 + usize::from(wire[at]);
    }
    let label = |number: usize| {
        let start = starts[number];
        &wire[start + 1..start + 1 + usize::from(wire[start])]
    };
    let is_pod = match (count, if count > 0 { label(0) } else { b"" }) {
        (0, _) => return ParsedName::Apex,
        (1, b"svc" | b"pod") => return ParsedName::Above,
        (1, b"dns-version") => return ParsedName::Version,
        (2, b"dns") if label(1) == b"ns" => return ParsedName::NameServer,
        (2, b"svc" | b"pod") => return ParsedName::Namespace(label(1)),
        (_, b"svc") => false,
        (_, b"pod") => true,
        _ => return ParsedName::Invalid,
    };
    let bare = ServiceName {
        key: &wire[starts[2]..starts[0]],
        at: starts[2],
        namespace: label(1),
        ..ServiceName::default()
    };
    let below = match count {
        3 => Some(bare),
        // In a multicluster zone: endpoints without a cluster.
        4 => Some(ServiceName {
            endpoint: Some(label(3)),
            cluster: grammar.multicluster.then_some(&b""[..]),
            ..bare
        }),
        5 => Some(match port_and_protocol(label(4), label(3), grammar) {
            Some([port, protocol]) => ServiceName { protocol, port, ..bare },
            None => ServiceName { cluster: Some(label(3)), endpoint: Some(label(4)), ..bare },
        }),
        _ if is_pod || !grammar.zonal || grammar.multicluster || label(3) != b"_zone" => None,
        _ => {
            let prefer = match label(4) {
                b"pin" => Some(false),
                b"prefer" => Some(true),
                _ => None,
            };
            let zone = &wire[..starts[4]];
            prefer.map(|prefer| ServiceName { topology: Some(Topology { zone, prefer }), ..bare })
        }
    };
    match below {
        Some(_) if is_pod => ParsedName::Pod { address: label(2), namespace: label(1) },
        Some(below) => ParsedName::Service(below),
        None => ParsedName::Invalid,
    }
}

/// Parses `SERVICE.NAMESPACE.svc`, the common case.
#[inline]
fn bare_service(labels: &[u8]) -> Option<ServiceName<'_>> {
    let namespace = 1 + usize::from(*labels.first()?);
    let end = namespace + 1 + usize::from(*labels.get(namespace)?);
    let (key, last) = labels.split_at_checked(end)?;
    (last == b"\x03svc").then(|| ServiceName {
        key,
        namespace: &key[namespace + 1..],
        ..ServiceName::default()
    })
}

/// Parses the two labels below a service as port and protocol; `None` if they are endpoint and
/// cluster. The underscores are optional (as in CoreDNS).
#[inline]
pub(super) fn port_and_protocol<'n>(
    first: &'n [u8],
    second: &'n [u8],
    grammar: Grammar,
) -> Option<[&'n [u8]; 2]> {
    let is_port = |label: &[u8]| label.starts_with(b"_");
    let bare = |label: &'n [u8]| label.strip_prefix(b"_").unwrap_or(label);
    (!grammar.multicluster || is_port(first) || is_port(second)).then(|| [bare(first), bare(second)])
}

impl Topology<'_> {
    /// Whether an endpoint is in this topology zone; `zone` is the endpoint's zone in lower case.
    pub(crate) fn holds(&self, zone: &str) -> bool {
        let (mut labels, mut rest) = (self.zone, zone.as_bytes());
        while let Some((&length, after)) = labels.split_first() {
            let Some((label, after)) = after.split_at_checked(usize::from(length)) else { return false };
            let Some(left) = rest.strip_prefix(label) else { return false };
            labels = after;
            rest = match (labels.is_empty(), left.strip_prefix(b".")) {
                (true, _) => left,
                (false, Some(left)) => left,
                (false, None) => return false,
            };
        }
        rest.is_empty()
    }
}

/// Labels next to the zone that are parsed.
const LABELS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_names() {
        let plain = Grammar::default();
        let zonal = Grammar { zonal: true, ..plain };
        let clusterset = Grammar { multicluster: true, ..zonal };
        let rows: &[(&str, Grammar, &str)] = &[
            ("", plain, "apex"),
            ("svc", plain, "above"),
            ("pod", plain, "above"),
            ("dns-version", plain, "version"),
            ("x.dns-version", plain, "nothing"),
            ("ns.dns", plain, "name server"),
            ("x.ns.dns", plain, "nothing"),
            ("dns", plain, "nothing"),
            ("t1", plain, "nothing"),
            ("web.t1", plain, "nothing"),
            ("t1.svc", plain, "namespace t1"),
            ("t1.pod", plain, "namespace t1"),
            ("web.t1.svc", plain, "web.t1 - - - -"),
            ("h1.web.t1.svc", plain, "web.t1 h1 - - -"),
            ("_http._tcp.web.t1.svc", plain, "web.t1 - - http tcp"),
            ("http.tcp.web.t1.svc", plain, "web.t1 - - http tcp"),
            ("h1.one.web.t1.svc", clusterset, "web.t1 h1 one - -"),
            ("_http.tcp.web.t1.svc", clusterset, "web.t1 - - http tcp"),
            ("x._http._tcp.web.t1.svc", plain, "nothing"),
            ("a.pin._zone.web.t1.svc", plain, "nothing"),
            ("a.pin._zone.web.t1.svc", zonal, "web.t1 - - - - pin a"),
            ("a.b.prefer._zone.web.t1.svc", zonal, "web.t1 - - - - prefer a.b"),
            ("a.other._zone.web.t1.svc", zonal, "nothing"),
            ("a.pin._zones.web.t1.svc", zonal, "nothing"),
            ("a.pin._zone.web.t1.svc", clusterset, "nothing"),
            ("a.pin._zone.web.t1.pod", zonal, "nothing"),
            ("1-2-3-4.t1.pod", plain, "pod 1-2-3-4 t1"),
            ("a.b.1-2-3-4.t1.pod", plain, "pod 1-2-3-4 t1"),
            ("a.b.c.1-2-3-4.t1.pod", plain, "nothing"),
        ];
        for zone in [".", "cluster.local", "a.b.c.d.e.f"] {
            for (below, grammar, expected) in rows {
                let text = format!("{below}.{zone}");
                let text = if below.is_empty() { zone.to_owned() } else { text.replace("..", ".") };
                let (name, zone) = (Name::from_text(&text).unwrap(), Name::from_text(zone).unwrap());
                assert_eq!(words(parse(&name, &zone, *grammar)), *expected, "{text}");
            }
        }
    }

    fn words(asked: ParsedName<'_>) -> String {
        let text = |octets: &[u8]| String::from_utf8(octets.to_vec()).unwrap();
        let or_dash = |octets: &[u8]| if octets.is_empty() { "-".to_owned() } else { text(octets) };
        match asked {
            ParsedName::Apex => "apex".to_owned(),
            ParsedName::Above => "above".to_owned(),
            ParsedName::Version => "version".to_owned(),
            ParsedName::NameServer => "name server".to_owned(),
            ParsedName::Invalid => "nothing".to_owned(),
            ParsedName::Namespace(name) => format!("namespace {}", text(name)),
            ParsedName::Pod { address, namespace } => format!("pod {} {}", text(address), text(namespace)),
            ParsedName::Service(below) => {
                let ServiceName { key, endpoint, cluster, port, protocol, topology, .. } = below;
                let key = Name::from_wire(&[key, b"\0"].concat()).unwrap().to_string();
                let [endpoint, cluster] = [endpoint, cluster].map(|label| or_dash(label.unwrap_or_default()));
                let (port, protocol) = (or_dash(port), or_dash(protocol));
                let topology = topology.map(|Topology { zone, prefer }| {
                    let zone = Name::from_wire(&[zone, b"\0"].concat()).unwrap().to_string();
                    format!(" {} {}", if prefer { "prefer" } else { "pin" }, zone.trim_end_matches('.'))
                });
                let key = key.trim_end_matches('.');
                format!("{key} {endpoint} {cluster} {port} {protocol}{}", topology.unwrap_or_default())
            }
        }
    }

    #[test]
    fn topology_matches_zone_text() {
        for (labels, zone, holds) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a", "a.b", false),
            ("a.b", "a.b", true),
            ("a.b", "a", false),
            ("a.b", "ab", false),
            ("a", "", false),
            ("us-west-2a", "us-west-2a", true),
        ] {
            let name = Name::from_text(labels).unwrap();
            let wire = name.as_wire();
            let topology = Topology { zone: &wire[..wire.len() - 1], prefer: false };
            assert_eq!(topology.holds(zone), holds, "{labels} {zone}");
        }
    }
}
