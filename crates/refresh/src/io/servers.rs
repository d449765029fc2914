//! Servers for lookups, as `refresh_via` and NAMESERVER list them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use stub_resolver::{Server, Transport};
use tls::{TlsError, TlsSettings, UpstreamTlsSpec};

/// Servers in order, with the settings of those that are encrypted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Via {
    /// The servers; at most 15.
    pub servers: Vec<WrittenServer>,
    /// Files and name of `tls` and `tls_servername`.
    pub tls: UpstreamTlsSpec,
}

/// A server as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenServer {
    /// The address and port.
    pub address: SocketAddr,
    /// What stands before it.
    pub scheme: Scheme,
    /// The name after `%`: that of the certificate.
    pub server_name: Option<String>,
}

/// What stands before the address of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `dns://`, or nothing: UDP and TCP, port 53.
    Dns,
    /// `tls://`, port 853.
    Tls,
    /// `https://`, port 443.
    Https,
    /// `quic://`, port 853.
    Quic,
}

/// Why a word is not a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerSyntax {
    /// Neither an address nor a known scheme before one.
    Address,
    /// A host name in the place of the address.
    HostName,
    /// A path behind the address.
    Path,
    /// Text around `%` that is not an address and a name.
    Name,
    /// `https://` before an IPv6 address without a name.
    NamelessIpv6,
}

impl fmt::Display for ServerSyntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected())
    }
}

impl ServerSyntax {
    /// What is expected in the place of the word.
    pub fn expected(self) -> &'static str {
        match self {
            Self::Address => "an IP address, perhaps with a port, and tls://, https:// or quic:// before it",
            Self::HostName => {
                "a server: its IP address stands here, and the name of its certificate behind % or in `tls_servername`"
            }
            Self::Path => "a server: the path is always /dns-query and is not written",
            Self::Name => "IP%NAME[:PORT]",
            Self::NamelessIpv6 => {
                "a server: https:// before an IPv6 address needs the name of the certificate, behind % or in `tls_servername`"
            }
        }
    }
}

impl WrittenServer {
    /// Parses `[dns://]IP[:PORT]`, or `tls://`, `https://` or `quic://` before `IP[%NAME][:PORT]`. `named` is whether the name of
    /// certificates stands elsewhere.
    ///
    /// # Errors
    /// [`ServerSyntax`].
    pub fn parse(text: &str, named: bool) -> Result<Self, ServerSyntax> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("dns", text));
        let scheme = match scheme {
            "dns" => Scheme::Dns,
            "tls" => Scheme::Tls,
            "https" => Scheme::Https,
            "quic" => Scheme::Quic,
            _ => return Err(ServerSyntax::Address),
        };
        if scheme == Scheme::Dns {
            let address = node::socket_address(rest, scheme.port()).ok_or(ServerSyntax::Address)?;
            return Ok(Self { address, scheme, server_name: None });
        }
        if rest.contains('/') {
            return Err(ServerSyntax::Path);
        }
        // In `IP%NAME:PORT`, NAME is the server's; no encrypted server has a link-local address.
        if let Some((host, name)) = rest.split_once('%') {
            let (name, port) = node::host_and_port(name, scheme.port()).ok_or(ServerSyntax::Name)?;
            let host: IpAddr = host.parse().map_err(|_| ServerSyntax::Name)?;
            if name.is_empty() {
                return Err(ServerSyntax::Name);
            }
            let address = SocketAddr::new(host.to_canonical(), port);
            return Ok(Self { address, scheme, server_name: Some(name.to_owned()) });
        }
        let Some(address) = node::socket_address(rest, scheme.port()) else {
            let is_name = rest.contains(|c: char| c.is_ascii_alphabetic()) && !rest.contains("::");
            return Err(if is_name { ServerSyntax::HostName } else { ServerSyntax::Address });
        };
        if scheme == Scheme::Https && address.is_ipv6() && !named {
            return Err(ServerSyntax::NamelessIpv6);
        }
        Ok(Self { address, scheme, server_name: None })
    }

    /// Whether it is asked over TLS or QUIC.
    pub fn is_encrypted(&self) -> bool {
        self.scheme != Scheme::Dns
    }
}

impl Scheme {
    fn port(self) -> u16 {
        match self {
            Self::Dns => 53,
            Self::Tls | Self::Quic => 853,
            Self::Https => 443,
        }
    }
}

impl fmt::Display for WrittenServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Dns => "",
            Scheme::Tls => "tls://",
            Scheme::Https => "https://",
            Scheme::Quic => "quic://",
        };
        write!(f, "{scheme}{}", self.address)
    }
}

impl From<SocketAddr> for WrittenServer {
    fn from(address: SocketAddr) -> Self {
        Self { address, scheme: Scheme::Dns, server_name: None }
    }
}

impl Via {
    /// Loads the settings of encrypted servers, and returns all servers with theirs. Blocks while files are read, if one is
    /// encrypted.
    ///
    /// # Errors
    /// [`TlsError`], with the file or the name.
    pub fn load(&self) -> Result<Vec<Server>, TlsError> {
        let is_encrypted = self.servers.iter().any(WrittenServer::is_encrypted);
        let common = is_encrypted.then(|| TlsSettings::load(&self.tls)).transpose()?;
        let server = |server: &WrittenServer| {
            let name = server.server_name.as_ref().or(self.tls.server_name.as_ref());
            // hickory writes the name into the URI, where an IPv6 address would need brackets.
            if let Some(name) = name.filter(|name| server.scheme == Scheme::Https && is_ipv6(name)) {
                return Err(TlsError::ServerName(name.clone()));
            }
            let settings = match (&common, &server.server_name) {
                (Some(common), Some(name)) => Some(common.named(name)?),
                (common, _) => common.clone(),
            };
            let transport = match (server.scheme, settings) {
                (Scheme::Tls, Some(settings)) => Transport::Tls(settings),
                (Scheme::Https, Some(settings)) => Transport::Https(settings),
                (Scheme::Quic, Some(settings)) => Transport::Quic(settings),
                _ => Transport::Dns,
            };
            Ok(Server { address: server.address, transport })
        };
        self.servers.iter().map(server).collect()
    }
}

fn is_ipv6(name: &str) -> bool {
    name.parse::<Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn https_needs_a_host_name() {
        for (text, name) in
            [("https://192.0.2.1%[2001:db8::1]", None), ("https://192.0.2.1", Some("2001:db8::1"))]
        {
            let servers = vec![WrittenServer::parse(text, true).unwrap()];
            let tls = UpstreamTlsSpec { server_name: name.map(str::to_owned), ..UpstreamTlsSpec::default() };
            let error = Via { servers, tls }.load().map(drop).unwrap_err();
            assert!(matches!(&error, TlsError::ServerName(name) if name == "2001:db8::1"), "{text}: {error}");
        }
    }

    #[test]
    fn servers_as_they_are_written() {
        for (text, address, scheme, name) in [
            ("192.0.2.1", "192.0.2.1:53", Scheme::Dns, None),
            ("dns://192.0.2.1:54", "192.0.2.1:54", Scheme::Dns, None),
            ("tls://192.0.2.1", "192.0.2.1:853", Scheme::Tls, None),
            ("tls://192.0.2.1%dns.example:8853", "192.0.2.1:8853", Scheme::Tls, Some("dns.example")),
            ("tls://2001:db8::1%dns.example", "[2001:db8::1]:853", Scheme::Tls, Some("dns.example")),
            ("https://192.0.2.1", "192.0.2.1:443", Scheme::Https, None),
            ("https://[2001:db8::1]%dns.example", "", Scheme::Https, None),
            ("quic://[2001:db8::1]:8853", "[2001:db8::1]:8853", Scheme::Quic, None),
        ] {
            let found = WrittenServer::parse(text, false).ok();
            let expected = address.parse().ok().map(|address| WrittenServer {
                address,
                scheme,
                server_name: name.map(str::to_owned),
            });
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn wrong_words_have_a_reason() {
        use ServerSyntax::*;
        for (text, named, error) in [
            ("dns.example", true, Address),
            ("udp://192.0.2.1", true, Address),
            ("tls://192.0.2.1:0", true, Address),
            ("tls://dns.example", true, HostName),
            ("https://dns.example/dns-query", true, Path),
            ("https://192.0.2.1/dns-query", true, Path),
            ("quic://192.0.2.1%", true, Name),
            ("tls://dns.example%dns.example", true, Name),
            ("https://[2001:db8::1]", false, NamelessIpv6),
        ] {
            assert_eq!(WrittenServer::parse(text, named), Err(error), "{text}");
        }
        assert!(WrittenServer::parse("https://[2001:db8::1]", true).is_ok());
    }
}
