//! Semantic errors of Corefiles with valid syntax.

use std::net::SocketAddr;

use corefile::Kind;
use files::ShownPath;
use thiserror::Error;

/// Why a configuration cannot be served; each message has the text found and the text expected.
#[derive(Debug, Error)]
pub enum SetupError {
    /// A syntax error.
    #[error(transparent)]
    Syntax(#[from] corefile::SyntaxError),
    /// No server block at all.
    #[error("the Corefile holds no server block; expected at least `. {{ ... }}`")]
    Empty,
    /// A directive unknown to CoreDNS.
    #[error("unknown directive {found:?}{}", did_you_mean(*.nearest, || "`localdns -plugins` lists those that are served".to_owned()))]
    UnknownDirective {
        /// The word.
        found: String,
        /// The known directive nearest to it.
        nearest: Option<&'static str>,
    },
    /// An unsupported directive of CoreDNS.
    #[error(
        "the directive `{0}` of CoreDNS is not supported yet; remove it, or keep CoreDNS for this server block"
    )]
    NotBuilt(&'static str),
    /// An unsupported property of CoreDNS.
    #[error(
        "plugin/{plugin}: the property `{property}` of CoreDNS is not supported yet; remove it, or keep CoreDNS for this server block"
    )]
    PropertyNotBuilt {
        /// The directive.
        plugin: &'static str,
        /// The property.
        property: &'static str,
    },
    /// An unsupported scheme of CoreDNS.
    #[error("the scheme {0:?} is not supported yet; use dns://, tls://, https:// or quic://")]
    SchemeNotBuilt(&'static str),
    /// An unsupported transport to upstreams.
    #[error(
        "plugin/forward: upstreams over {0} are not supported yet; name the upstream by IP[:PORT] or tls://IP[:PORT]"
    )]
    UpstreamNotBuilt(&'static str),
    /// A source address of another family than the upstream's.
    #[error(
        "plugin/forward: {upstream} cannot be asked from {source_address}: write both as IPv4 or both as IPv6"
    )]
    SourceFamily {
        /// The upstream.
        upstream: SocketAddr,
        /// `source_address`.
        source_address: std::net::IpAddr,
    },
    /// An unknown property of a directive.
    #[error("plugin/{plugin}: unknown property {found:?}{}", did_you_mean(*.nearest, || all_of(.known)))]
    UnknownProperty {
        /// The directive.
        plugin: &'static str,
        /// The word.
        found: String,
        /// The known property nearest to it.
        nearest: Option<&'static str>,
        /// Every known property.
        known: Box<[&'static str]>,
    },
    /// A missing argument.
    #[error("plugin/{plugin}: `{word}` needs {expected}")]
    MissingArgument {
        /// The directive.
        plugin: &'static str,
        /// The directive or property as written.
        word: String,
        /// The expected argument.
        expected: &'static str,
    },
    /// An argument too many.
    #[error("plugin/{plugin}: unexpected argument {found:?}; `{word}` needs {expected}")]
    ExtraArgument {
        /// The directive.
        plugin: &'static str,
        /// The directive or property as written.
        word: String,
        /// The argument.
        found: String,
        /// The expected arguments.
        expected: &'static str,
    },
    /// An argument of the wrong kind or out of range.
    #[error("plugin/{plugin}: {found:?} is not {expected}")]
    BadValue {
        /// The directive.
        plugin: &'static str,
        /// The argument.
        found: String,
        /// The expected argument.
        expected: &'static str,
    },
    /// An unexpected sub-block.
    #[error("plugin/{plugin}: `{word}` has no sub-block; remove the braces")]
    UnexpectedBlock {
        /// The directive.
        plugin: &'static str,
        /// The directive or property.
        word: String,
    },
    /// A repeated directive in a server block.
    #[error("plugin/{0}: can only be used once per server block; remove one")]
    OnlyOnce(&'static str),
    /// Properties that exclude each other.
    #[error("plugin/{plugin}: `{first}` and `{second}` exclude each other; keep one")]
    Exclusive {
        /// The directive.
        plugin: &'static str,
        /// The one.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// A label selector.
    #[error("plugin/{plugin}: the label selector cannot be used: {error}")]
    Selector {
        /// The directive.
        plugin: &'static str,
        /// Why.
        error: String,
    },
    /// A zone of a property that is not a zone of its directive.
    #[error("plugin/{plugin}: {zone} is not a zone of this directive; add it there")]
    ForeignZone {
        /// The directive.
        plugin: &'static str,
        /// The zone.
        zone: String,
    },
    /// A directive without another one that it requires.
    #[error("plugin/{plugin}: `{other}` is missing in this server block; add it")]
    Needs {
        /// The directive.
        plugin: &'static str,
        /// The required directive.
        other: &'static str,
    },
    /// A zone that hides names of another zone of its directive.
    #[error("plugin/{plugin}: {zone} lies in {other}, whose names it would hide; remove one of them")]
    HiddenNames {
        /// The directive.
        plugin: &'static str,
        /// The zone.
        zone: String,
        /// The zone with the hidden names.
        other: String,
    },
    /// A property in the wrong order.
    #[error("plugin/{plugin}: {rule}")]
    Order {
        /// The directive.
        plugin: &'static str,
        /// The required order.
        rule: &'static str,
    },
    /// The same zone twice on one address.
    #[error(
        "cannot serve {server} - it is already defined at {first}; merge the blocks, or give each its own `bind`"
    )]
    AlreadyDefined {
        /// As `dns://zone:port on address`.
        server: String,
        /// Where the first stands.
        first: String,
    },
    /// The same zone and port with `bind` and without.
    #[error(
        "cannot serve {server} - zone overlap listener capacity with {first}: one block has `bind`, the other listens on all addresses; give both a `bind`"
    )]
    Overlap {
        /// As `dns://zone:port`.
        server: String,
        /// Where the other stands.
        first: String,
    },
    /// TLS endpoints of two blocks on one listener with different settings.
    #[error(
        "cannot serve {server} - conflicting TLS configuration with the `tls` at {first}: {why}; write the same `tls` in both, or give each block its own `bind`"
    )]
    TlsConflict {
        /// As `tls://zone:port`.
        server: String,
        /// Where the other stands.
        first: String,
        /// What differs.
        why: &'static str,
    },
    /// Two transports that want the same connections.
    #[error(
        "cannot serve {server} - connections to that address and port go to the server block at {first}, which has another transport; choose another port or address"
    )]
    TransportConflict {
        /// As `tls://zone:port`.
        server: String,
        /// Where the other stands.
        first: String,
    },
    /// A TLS endpoint without a certificate.
    #[error(
        "{0:?} needs `tls CERT KEY` in this server block: connections would not be encrypted; add it, or serve dns://"
    )]
    NoCertificate(String),
    /// A zone that is no domain name.
    #[error("{found:?} is not a zone: {error}")]
    Zone {
        /// The word.
        found: String,
        /// Why.
        error: wire::NameError,
    },
    /// An address or interface that `bind` cannot use.
    #[error("plugin/bind: {0}")]
    Bind(#[from] node::NodeError),
    /// A regular expression.
    #[error("plugin/{plugin}: the regular expression cannot be used: {error}")]
    Pattern {
        /// The directive.
        plugin: &'static str,
        /// Why, on one line.
        error: String,
    },
    /// What only one plugin knows to be wrong.
    #[error("plugin/{plugin}: {error}")]
    Own {
        /// The directive.
        plugin: &'static str,
        /// Why.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file that a directive names.
    #[error("plugin/{plugin}: cannot read {}: {error}; name a file that this user can read", .path.display())]
    File {
        /// The directive.
        plugin: &'static str,
        /// The file.
        path: ShownPath,
        /// Why.
        error: std::io::Error,
    },
    /// Certificates or keys.
    #[error("plugin/{plugin}: {error}; {}", error.remedy())]
    Tls {
        /// The directive.
        plugin: &'static str,
        /// Why.
        error: tls::TlsError,
    },
    /// A forward target that is one of this server's listeners: a loop.
    #[error(
        "plugin/forward: the upstream {upstream} is this server itself: its queries would return to this server block; name another upstream"
    )]
    Circle {
        /// The upstream's address.
        upstream: crate::endpoint::Endpoint,
    },
    /// A file of upstreams without a name server.
    #[error("plugin/forward: no nameserver in {}; expected lines such as `nameserver 192.0.2.53`", .0.display())]
    NoNameservers(ShownPath),
    /// The environment file for the Corefile.
    #[error("cannot be read: {0}; name a file that this user can read, or a Corefile with -conf")]
    EnvironmentFile(#[source] std::io::Error),
    /// An error in that file.
    #[error(transparent)]
    Environment(#[from] corefile::VariantError),
    /// node-cache's template.
    #[error("{0}")]
    Template(String),
    /// A host name that does not resolve.
    #[error("plugin/forward: cannot resolve {name}: {error}; name the upstream by its address")]
    Unresolved {
        /// The host name.
        name: String,
        /// Why.
        error: Box<forwarder::ResolveError>,
    },
}

impl Kind for SetupError {
    fn kind(&self) -> String {
        let of = |plugin: &str, what: &str| format!("plugin/{plugin}: {what}");
        match self {
            Self::Syntax(error) => error.kind(),
            Self::UnknownDirective { nearest, .. } => {
                format!("unknown directive{}", did_you_mean(*nearest, || "`localdns -plugins` lists those that are served".to_owned()))
            }
            Self::SourceFamily { .. } => of(
                "forward",
                "an upstream cannot be asked from `source_address`: write both as IPv4 or both as IPv6",
            ),
            Self::UnknownProperty { plugin, nearest, known, .. } => {
                of(plugin, &format!("unknown property{}", did_you_mean(*nearest, || all_of(known))))
            }
            Self::MissingArgument { plugin, expected, .. } => of(plugin, &format!("expected is {expected}")),
            Self::ExtraArgument { plugin, expected, .. } => {
                of(plugin, &format!("unexpected argument; expected is {expected}"))
            }
            Self::BadValue { plugin, expected, .. } => of(plugin, &format!("the word is not {expected}")),
            Self::UnexpectedBlock { plugin, .. } => of(plugin, "there is no sub-block; remove the braces"),
            Self::Selector { plugin, .. } => of(plugin, "the label selector cannot be used"),
            Self::ForeignZone { plugin, .. } => {
                of(plugin, "the zone is not a zone of this directive; add it there")
            }
            Self::HiddenNames { plugin, .. } => {
                of(plugin, "a zone lies in another one, whose names it would hide; remove one of them")
            }
            Self::AlreadyDefined { first, .. } => format!(
                "cannot serve the zone - it is already defined at {first}; merge the blocks, or give each its own `bind`"
            ),
            Self::Overlap { first, .. } => format!(
                "cannot serve the zone - zone overlap listener capacity with {first}: one block has `bind`, the other listens on all addresses; give both a `bind`"
            ),
            Self::TlsConflict { first, why, .. } => format!(
                "cannot serve the zone - conflicting TLS configuration with the `tls` at {first}: {why}; write the same `tls` in both, or give each block its own `bind`"
            ),
            Self::TransportConflict { first, .. } => format!(
                "cannot serve the zone - connections to that address and port go to the server block at {first}, which has another transport; choose another port or address"
            ),
            Self::NoCertificate(_) => {
                "this key needs `tls CERT KEY` in its server block: connections would not be encrypted; add it, or serve dns://".to_owned()
            }
            Self::Zone { .. } => "the word is not a zone".to_owned(),
            Self::Bind(_) => of("bind", "the address or interface cannot be used"),
            Self::Pattern { plugin, .. } => of(plugin, "the regular expression cannot be used"),
            Self::Own { plugin, .. } => of(plugin, "what is written here cannot be used"),
            Self::File { plugin, error, .. } => {
                of(plugin, &format!("cannot read the file: {}; name a file that this user can read", error.kind()))
            }
            Self::Tls { plugin, .. } => of(plugin, "the certificates or keys cannot be used"),
            Self::Circle { .. } => of(
                "forward",
                "an upstream is this server itself: its queries would return to this server block; name another upstream",
            ),
            Self::NoNameservers(_) => {
                of("forward", "no nameserver in the file; expected lines such as `nameserver 192.0.2.53`")
            }
            Self::EnvironmentFile(error) => format!(
                "cannot be read: {}; name a file that this user can read, or a Corefile with -conf",
                error.kind()
            ),
            Self::Environment(_) => "the environment file does not hold a Corefile".to_owned(),
            Self::Template(_) => "the template cannot be filled".to_owned(),
            Self::Unresolved { .. } => {
                of("forward", "cannot resolve the upstream's name; name the upstream by its address")
            }
            Self::Empty
            | Self::NotBuilt(_)
            | Self::PropertyNotBuilt { .. }
            | Self::SchemeNotBuilt(_)
            | Self::UpstreamNotBuilt(_)
            | Self::OnlyOnce(_)
            | Self::Exclusive { .. }
            | Self::Needs { .. }
            | Self::Order { .. } => self.to_string(),
        }
    }
}

/// The nearest word, or what else helps.
fn did_you_mean(word: Option<&'static str>, otherwise: impl FnOnce() -> String) -> String {
    match word {
        Some(word) => format!("; did you mean `{word}`?"),
        None => format!("; {}", otherwise()),
    }
}

fn all_of(known: &[&str]) -> String {
    format!("expected {}", known.join(", "))
}
