//! `proxyproto`: clients behind a proxy, by the header of the PROXY protocol.

pub mod header;
mod sessions;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corefile::Directive;
use ipnet::IpNet;

use header::Header;
use plugin::SetupError;
use plugin::args::{Args, Result, bad, duration, no_block, number, once, unknown_property};
use plugin::cidr::canonical;
use plugin::endpoint::Transport;
use plugin::spec::{ParseContext, PluginSpec};
use sessions::Sessions;

/// The directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyProtoSpec {
    /// `allow`: networks of proxies; all if empty.
    allow: Vec<IpNet>,
    /// `default`: how headers from other addresses are treated.
    default: Option<Policy>,
    /// `udp_session_tracking`: the lifetime and the number of sessions.
    sessions: Option<(Duration, usize)>,
}

/// How headers from an address are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The header names the client.
    Use,
    /// The header is removed.
    Ignore,
    /// A connection or datagram with a header is refused.
    Reject,
    /// There is no header: all bytes are the client's.
    Skip,
}

/// Reads the one `proxyproto` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    let directive = once(PLUGIN, directives)?;
    if written.transports.contains(&Transport::Quic) {
        let rule = "headers before QUIC are not read yet; put the keys with quic:// into a block without it";
        return Err(corefile::Located::new(&directive.name.at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    Args::new(PLUGIN, directive, "properties in braces").end()?;
    let mut spec = ProxyProtoSpec { allow: Vec::new(), default: None, sessions: None };
    for property in directive.body.iter().flatten() {
        no_block(PLUGIN, property)?;
        match property.name.text.as_str() {
            "allow" => {
                for word in &property.args {
                    let network: IpNet =
                        word.text.parse().map_err(|_| bad(PLUGIN, word, "a network such as 192.0.2.0/24"))?;
                    spec.allow.push(canonical(network.trunc()));
                }
            }
            "default" => {
                let mut args = Args::new(PLUGIN, property, POLICIES);
                let word = args.required()?;
                args.end()?;
                spec.default = Some(match word.text.to_ascii_lowercase().as_str() {
                    "use" => Policy::Use,
                    "ignore" => Policy::Ignore,
                    "reject" => Policy::Reject,
                    "skip" => Policy::Skip,
                    _ => return Err(bad(PLUGIN, word, POLICIES)),
                });
            }
            "udp_session_tracking" => {
                const LIFETIME: &str = "a duration such as 28s, and a number of sessions";
                let mut args = Args::new(PLUGIN, property, LIFETIME);
                let lifetime = duration(PLUGIN, args.required()?, LIFETIME)?;
                let most = match args.optional() {
                    Some(word) => {
                        number(PLUGIN, word, 1..=MOST_SESSIONS, "a number of sessions, 1 to 1048576")?
                    }
                    None => SESSIONS,
                };
                args.end()?;
                spec.sessions = (!lifetime.is_zero()).then_some((lifetime, most));
            }
            "tlv_metadata" => {
                let error = SetupError::PropertyNotBuilt { plugin: PLUGIN, property: "tlv_metadata" };
                return Err(corefile::Located::new(&property.name.at, error));
            }
            _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
        }
    }
    Ok(Arc::new(spec))
}

impl ProxyProtoSpec {
    /// Builds what a listener applies.
    pub fn build(&self) -> ProxyProtocol {
        let sessions = self.sessions.map(|(lifetime, most)| Sessions::new(lifetime, most));
        ProxyProtocol { spec: self.clone(), sessions }
    }
}

/// The PROXY protocol on one listener.
#[derive(Debug)]
pub struct ProxyProtocol {
    spec: ProxyProtoSpec,
    sessions: Option<Sessions>,
}

/// A datagram without its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unwrapped<'d> {
    /// The client's bytes.
    pub octets: &'d [u8],
    /// The client.
    pub client: SocketAddr,
}

impl ProxyProtocol {
    /// Returns how headers from this address are treated.
    pub fn policy(&self, from: IpAddr) -> Policy {
        let from = from.to_canonical();
        match self.spec.allow.is_empty() {
            true => self.spec.default.unwrap_or(Policy::Use),
            false if self.spec.allow.iter().any(|network| network.contains(&from)) => Policy::Use,
            false => self.spec.default.unwrap_or(Policy::Ignore),
        }
    }

    /// Removes the header of a datagram; `None` if the datagram is invalid, refused, or begins a
    /// session without a query.
    pub fn unwrap<'d>(&self, octets: &'d [u8], from: SocketAddr, now: Instant) -> Option<Unwrapped<'d>> {
        let policy = self.policy(from.ip());
        if policy == Policy::Skip {
            return Some(Unwrapped { octets, client: from });
        }
        let (length, client) = match Header::read(octets) {
            // What is shorter than a signature is no header, nor a query.
            Header::Absent => {
                let session = self.sessions.as_ref().filter(|_| policy == Policy::Use);
                let client = session.and_then(|sessions| sessions.client(from, now)).unwrap_or(from);
                return Some(Unwrapped { octets, client });
            }
            Header::Complete { version: 2, length, client, is_datagram: true } => (length, client),
            Header::Incomplete | Header::Invalid | Header::Complete { .. } => return None,
        };
        let octets = &octets[length..];
        match policy {
            Policy::Reject => None,
            Policy::Use => {
                if let (Some(sessions), Some(client)) = (&self.sessions, client) {
                    sessions.store(from, client, now);
                }
                if self.sessions.is_some() && octets.is_empty() {
                    return None;
                }
                Some(Unwrapped { octets, client: client.unwrap_or(from) })
            }
            Policy::Ignore | Policy::Skip => Some(Unwrapped { octets, client: from }),
        }
    }
}

const PLUGIN: &str = "proxyproto";
const PROPERTIES: &[&str] = &["allow", "default", "tlv_metadata", "udp_session_tracking"];
const POLICIES: &str = "`use`, `ignore`, `reject` or `skip`";
/// The default number of sessions.
const SESSIONS: usize = 10_240;
const MOST_SESSIONS: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, with};

    fn spec(properties: &str) -> ProxyProtoSpec {
        parsed(&with("proxyproto", properties)).unwrap()
    }

    #[test]
    fn policies_of_addresses() {
        use Policy::{Ignore, Reject, Skip, Use};
        for (properties, listed, other) in [
            ("", Use, Use),
            ("default reject", Reject, Reject),
            ("allow 192.0.2.0/24", Use, Ignore),
            ("allow 192.0.2.9/24 2001:db8::/32\ndefault SKIP", Use, Skip),
            ("allow ::ffff:192.0.2.0/120\ndefault use\ndefault reject", Use, Reject),
        ] {
            let proxy = spec(properties).build();
            let policy = |text: &str| proxy.policy(text.parse().unwrap());
            assert_eq!((policy("192.0.2.7"), policy("198.51.100.1")), (listed, other), "{properties}");
            assert_eq!(policy("::ffff:192.0.2.7"), listed, "{properties}");
        }
    }

    const HEADER: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c\xc6\x33\x64\x01\xc0\0\x02\x35\x0f\xa0\0\x35";

    #[test]
    fn datagrams_and_policies() {
        let now = clock::now();
        let from = SocketAddr::from(([192, 0, 2, 7], 1000));
        let client = SocketAddr::from(([198, 51, 100, 1], 4000));
        let with_query = [HEADER, b"query"].concat();
        let local = [&b"\r\n\r\n\0\r\nQUIT\n\x20\x12\0\x0c"[..], &[0; 12], b"query"].concat();
        let of_stream = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[0; 12], b"query"].concat();
        let line = b"PROXY TCP4 192.0.2.1 192.0.2.53 4000 53\r\nquery";
        for (policy, rows) in [
            (
                "use",
                [
                    (&with_query[..], Some((&b"query"[..], client))),
                    (b"query", Some((b"query", from))),
                    (&local, Some((b"query", from))),
                    (&of_stream, None),
                    (line, None),
                    (HEADER, Some((b"", client))),
                ],
            ),
            (
                "ignore",
                [
                    (&with_query, Some((b"query", from))),
                    (b"query", Some((b"query", from))),
                    (&local, Some((b"query", from))),
                    (&of_stream, None),
                    (line, None),
                    (HEADER, Some((b"", from))),
                ],
            ),
            (
                "reject",
                [
                    (&with_query, None),
                    (b"query", Some((b"query", from))),
                    (&local, None),
                    (&of_stream, None),
                    (line, None),
                    (HEADER, None),
                ],
            ),
            (
                "skip",
                [
                    (&with_query, Some((&with_query, from))),
                    (b"query", Some((b"query", from))),
                    (&local, Some((&local, from))),
                    (&of_stream, Some((&of_stream, from))),
                    (line, Some((line, from))),
                    (HEADER, Some((HEADER, from))),
                ],
            ),
        ] {
            let proxy = spec(&format!("default {policy}")).build();
            for (octets, expected) in rows {
                let expected = expected.map(|(octets, client)| Unwrapped { octets, client });
                assert_eq!(proxy.unwrap(octets, from, now), expected, "{policy} {octets:?}");
            }
        }
    }

    #[test]
    fn session_begins_with_a_header() {
        let now = clock::now();
        let [from, other] = [1000, 1001].map(|port| SocketAddr::from(([192, 0, 2, 7], port)));
        let client = SocketAddr::from(([198, 51, 100, 1], 4000));
        let proxy = spec("udp_session_tracking 10s").build();
        let of = |from, at| proxy.unwrap(b"query", from, at).unwrap().client;
        assert_eq!(of(from, now), from);
        assert_eq!(proxy.unwrap(HEADER, from, now), None);
        assert_eq!((of(from, now), of(other, now)), (client, other));
        assert_eq!(of(from, now + Duration::from_secs(10)), from);
    }

    #[test]
    fn unusable_properties() {
        let beside_quic = crate::read_corefile::tests::spec("quic://. {\ntls cert key\nproxyproto\n}\n");
        let error = beside_quic.expect_err("it is refused");
        assert!(error.starts_with("Corefile:3:1: plugin/proxyproto: headers before QUIC"), "{error}");
        refused(&[
            (
                "proxyproto a",
                "2:12: plugin/proxyproto: unexpected argument \"a\"; `proxyproto` needs properties in braces",
            ),
            (
                &with("proxyproto", "allow 192.0.2.1"),
                "3:7: plugin/proxyproto: \"192.0.2.1\" is not a network such as 192.0.2.0/24",
            ),
            (
                &with("proxyproto", "default maybe"),
                "3:9: plugin/proxyproto: \"maybe\" is not `use`, `ignore`, `reject` or `skip`",
            ),
            (
                &with("proxyproto", "udp_session_tracking x"),
                "3:22: plugin/proxyproto: \"x\" is not a duration such as 28s, and a number of sessions",
            ),
            (
                &with("proxyproto", "udp_session_tracking 1s 0"),
                "3:25: plugin/proxyproto: \"0\" is not a number of sessions, 1 to 1048576",
            ),
            (
                &with("proxyproto", "tlv_metadata"),
                "3:1: plugin/proxyproto: the property `tlv_metadata` of CoreDNS is not supported yet; remove it, or keep CoreDNS for this server block",
            ),
            (
                &with("proxyproto", "alow 192.0.2.0/24"),
                "3:1: plugin/proxyproto: unknown property \"alow\"; did you mean `allow`?",
            ),
        ]);
    }
}
