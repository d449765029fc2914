//! Resolves host names among a stanza's upstreams: when the configuration is built and when their
//! TTL ends, never for a client's query.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use stub_resolver::{Family, LookupError, LookupOutcome, Question, Resolver};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use wire::Name;

use crate::MAX_UPSTREAMS;

/// Why a host name could not be resolved.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResolveError {
    /// There is no server to query: none is configured, or all of them are our own listeners.
    #[error("no server to look up {0} with, other than ourselves")]
    NoServer(Name),
    /// No name server answered with an address.
    #[error("cannot look up {0}: {1}")]
    Lookup(Name, LookupError),
    /// NXDOMAIN.
    #[error("{0} does not exist")]
    NoSuchName(Name),
    /// NODATA: the name exists, but has no address.
    #[error("{0} has no address")]
    NoAddress(Name),
}

/// The addresses of a host name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// IPv4 first, at most [`MAX_UPSTREAMS`], at least one.
    pub addresses: Vec<IpAddr>,
    /// The lowest TTL of the records.
    pub ttl: Duration,
}

/// Resolves `name`, as an absolute name.
///
/// Queries `servers`, except those in `refuse`: our own listeners, which do not answer yet and
/// would forward to us. The first answer wins; each server is queried a quarter of a second after
/// the one before, so that the first one decides unless it is slow. Takes at most 4 s. Must run
/// inside a tokio runtime.
///
/// # Errors
/// [`ResolveError`], of the server that failed last.
pub async fn resolve(
    name: &Name,
    servers: &[SocketAddr],
    refuse: &[SocketAddr],
) -> Result<Addresses, ResolveError> {
    let mut lookups = JoinSet::new();
    for (at, &server) in servers.iter().filter(|server| !refuse.contains(server)).enumerate() {
        let name = *name;
        lookups.spawn(async move {
            sleep(STAGGER * at as u32).await;
            ask(name, server).await
        });
    }
    let mut last = ResolveError::NoServer(*name);
    let first = async {
        while let Some(ended) = lookups.join_next().await {
            match ended {
                Ok(Ok(addresses)) => return Some(addresses),
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
        }
        None
    };
    match timeout(LOOKUP, first).await {
        Ok(Some(addresses)) => Ok(addresses),
        Ok(None) => Err(last),
        Err(_) => Err(ResolveError::Lookup(*name, LookupError::Silent)),
    }
}

/// Looks up A and AAAA at one server; one of them is enough.
async fn ask(name: Name, server: SocketAddr) -> Result<Addresses, ResolveError> {
    let resolver = Resolver::new(&[server]);
    let lookup = |family| resolver.lookup(Question { name, family }, LOOKUP);
    let (four, six) = tokio::join!(lookup(Family::Ipv4), lookup(Family::Ipv6));
    let (mut found, mut least) = (Vec::new(), u32::MAX);
    let mut failed = ResolveError::NoAddress(name);
    for outcome in [four, six] {
        match outcome {
            LookupOutcome::Addresses { addresses, ttl } => {
                found.extend(addresses);
                least = least.min(ttl);
            }
            LookupOutcome::NoData => {}
            LookupOutcome::NoSuchName => failed = ResolveError::NoSuchName(name),
            LookupOutcome::Failed(error) => failed = ResolveError::Lookup(name, error),
        }
    }
    found.truncate(MAX_UPSTREAMS);
    match found.is_empty() {
        true => Err(failed),
        false => Ok(Addresses { addresses: found, ttl: Duration::from_secs(least.into()) }),
    }
}

/// Timeout of a lookup over all servers: a start must not hang on a name.
const LOOKUP: Duration = Duration::from_secs(4);
/// How long after one server the next one is queried.
const STAGGER: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test]
    async fn our_own_listeners_are_never_asked() {
        let own: SocketAddr = "169.254.10.10:53".parse().unwrap();
        let name = Name::from_text("dns.example.org").unwrap();
        let error = resolve(&name, &[own], &[own]).await.unwrap_err();
        assert!(matches!(error, ResolveError::NoServer(_)), "{error}");
    }

    /// Starts a name server that answers A with 192.0.2.7 and everything else with NODATA; returns
    /// its address and the queried names.
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
        let found = resolve(&name, &[own, server], &[own]).await.unwrap();
        assert_eq!(found.addresses, ["192.0.2.7".parse::<IpAddr>().unwrap()]);
        assert!(
            found.ttl <= Duration::from_secs(256) && found.ttl > Duration::from_secs(200),
            "{:?}",
            found.ttl
        );
        while let Ok(question) = asked.try_recv() {
            assert_eq!(question, name, "no search list");
        }
    }

    #[tokio::test]
    async fn silent_servers_cost_no_more_than_one_bound_for_all() {
        let (server, _asked) = name_server().await;
        let name = Name::from_text("dns.example.org").unwrap();
        let mut silent = Vec::new();
        for _ in 0..5 {
            silent.push(tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap());
        }
        let mut servers: Vec<SocketAddr> = silent.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let began = Instant::now();
        resolve(&name, &servers, &[]).await.unwrap_err();
        assert!(began.elapsed() < LOOKUP + Duration::from_secs(1), "{:?}", began.elapsed());
        servers.push(server);
        let began = Instant::now();
        resolve(&name, &servers, &[]).await.unwrap();
        assert!(began.elapsed() < LOOKUP, "{:?}", began.elapsed());
    }
}
