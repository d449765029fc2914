//! Host names among a stanza's upstreams: looked up once when the configuration is built, never for a client's query.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name as HickoryName;
use wire::Name;

use crate::MAX_UPSTREAMS;

/// Why a host name has no addresses for us.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// There is no server to ask: all of them are our own listeners, or there are none.
    #[error("no server to look up {0} with, other than ourselves")]
    NoServer(Name),
    /// The name servers did not give an address.
    #[error("cannot look up {0}: {1}")]
    Lookup(Name, Box<NetError>),
    /// The name exists, but has no address.
    #[error("{0} has no address")]
    NoAddress(Name),
}

/// The addresses of `name`, as an absolute name, IPv4 first, at most [`MAX_UPSTREAMS`].
///
/// `servers` are asked, without those in `refuse`: our own listeners, which do not answer yet and would ask us.
/// Takes at most 10 s. Must run inside a tokio runtime.
///
/// # Errors
/// [`ResolveError`].
pub async fn resolve(
    name: &Name,
    servers: &[SocketAddr],
    refuse: &[SocketAddr],
) -> Result<Vec<IpAddr>, ResolveError> {
    let servers: Vec<_> = servers
        .iter()
        .filter(|server| !refuse.contains(server))
        .map(|server| {
            let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()]
                .map(|connection| at_port(connection, server.port()))
                .into();
            NameServerConfig::new(server.ip(), true, connections)
        })
        .collect();
    if servers.is_empty() {
        return Err(ResolveError::NoServer(*name));
    }
    let failed = |error: NetError| ResolveError::Lookup(*name, Box::new(error));
    let config = ResolverConfig::from_name_servers(servers);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = ResolveHosts::Never;
    (options.timeout, options.attempts) = (Duration::from_secs(2), 2);
    let resolver = builder.build().map_err(failed)?;
    let mut absolute =
        HickoryName::from_labels(name.labels()).map_err(|error| failed(NetError::from(error)))?;
    absolute.set_fqdn(true);
    let addresses = match tokio::time::timeout(LOOKUP, resolver.lookup_ip(absolute)).await {
        Ok(addresses) => addresses.map_err(failed)?,
        Err(_) => return Err(failed(NetError::Timeout)),
    };
    let mut addresses: Vec<_> = addresses.iter().collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.dedup();
    addresses.truncate(MAX_UPSTREAMS);
    if addresses.is_empty() { Err(ResolveError::NoAddress(*name)) } else { Ok(addresses) }
}

fn at_port(mut connection: ConnectionConfig, port: u16) -> ConnectionConfig {
    connection.port = port;
    connection
}

/// A start must not hang on a name.
const LOOKUP: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn our_own_listeners_are_never_asked() {
        let own: SocketAddr = "169.254.10.10:53".parse().unwrap();
        let name = Name::from_text("dns.example.org").unwrap();
        let error = resolve(&name, &[own], &[own]).await.unwrap_err();
        assert!(matches!(error, ResolveError::NoServer(_)), "{error}");
    }

    /// Answers A with 192.0.2.7 and everything else with nothing; keeps the questions.
    async fn name_server() -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<Name>) {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let (names, asked) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((_, from)) = socket.recv_from(&mut query).await {
                let (name, end) = Name::read_plain(&query, wire::HEADER).unwrap();
                let mut reply = query[..end + 4].to_vec();
                (reply[2], reply[3]) = (0x81, 0x80);
                reply[6..12].fill(0);
                if reply[end + 1] == 1 {
                    reply[7] = 1;
                    reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 0, 0, 4, 192, 0, 2, 7]);
                }
                names.send(name).unwrap();
                socket.send_to(&reply, from).await.unwrap();
            }
        });
        (address, asked)
    }

    #[tokio::test]
    async fn names_are_looked_up_as_they_are_written() {
        let (server, mut asked) = name_server().await;
        let name = Name::from_text("dns").unwrap();
        let own = "127.0.0.1:1".parse().unwrap();
        let addresses = resolve(&name, &[own, server], &[own]).await.unwrap();
        assert_eq!(addresses, ["192.0.2.7".parse::<IpAddr>().unwrap()]);
        while let Ok(question) = asked.try_recv() {
            assert_eq!(question, name, "no search list");
        }
    }
}
