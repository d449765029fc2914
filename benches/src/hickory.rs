//! A server built on hickory-server, to compare with localdns's own event loop and codec.
//!
//! Sockets, messages, a task for each query, resolver and cache are hickory's; the hosts table is a
//! map of ready records that is looked up before the resolver. No counters and no log.

use std::collections::HashMap;
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use hickory_server::Server;
use hickory_server::net::runtime::{Time, TokioRuntimeProvider};
use hickory_server::proto::op::{Header, HeaderCounts, Metadata, ResponseCode};
use hickory_server::proto::rr::rdata::{A, AAAA};
use hickory_server::proto::rr::{LowerName, Name, RData, Record};
use hickory_server::resolver::TokioResolver;
use hickory_server::resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::{Builder, Runtime};

/// Data sources of the server.
pub struct Sources<'s> {
    /// The hosts file, looked up first.
    pub hosts: &'s Path,
    /// The upstream for every other name.
    pub upstream: SocketAddr,
    /// Maximum number of cached answers.
    pub entries: u64,
}

/// Answers queries to `listen` over UDP and TCP on `threads` threads, pinned to `core` if given.
/// Returns after `lasting`.
///
/// # Errors
/// Errors of the kernel for addresses and cores, or an unreadable hosts file.
pub fn serve(
    listen: &[SocketAddr],
    sources: &Sources<'_>,
    threads: usize,
    core: Option<usize>,
    lasting: Duration,
) -> Result<()> {
    if let Some(core) = core {
        sockets::pin_to_core(core).with_context(|| format!("core {core}"))?;
    }
    let text = std::fs::read_to_string(sources.hosts).with_context(|| sources.hosts.display().to_string())?;
    let hosts = table(&text)?;
    runtime(threads)?.block_on(async {
        let resolver = resolver(sources.upstream, sources.entries).context("the resolver")?;
        let mut server = Server::new(Handler { hosts, resolver });
        for address in listen {
            server.register_socket(UdpSocket::bind(address).await.context("bind")?);
            server.register_listener(TcpListener::bind(address).await.context("bind")?, IDLE, TCP_REPLIES);
        }
        tokio::time::sleep(lasting).await;
        Ok(())
    })
}

fn runtime(threads: usize) -> Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).enable_all().build().context("the runtime")
}

fn resolver(upstream: SocketAddr, entries: u64) -> Result<TokioResolver> {
    let mut connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
    connections.iter_mut().for_each(|connection| connection.port = upstream.port());
    let server = NameServerConfig::new(upstream.ip(), true, connections.into());
    let config = ResolverConfig::from_name_servers(vec![server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let options = builder.options_mut();
    (options.use_hosts_file, options.cache_size) = (ResolveHosts::Never, entries);
    Ok(builder.build()?)
}

/// Returns the records of each name of a hosts file.
fn table(text: &str) -> Result<HashMap<LowerName, Vec<Record>>> {
    let mut table = HashMap::<LowerName, Vec<Record>>::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = words.next() else { continue };
        let data = match address.parse().with_context(|| line.to_owned())? {
            IpAddr::V4(address) => RData::A(A(address)),
            IpAddr::V6(address) => RData::AAAA(AAAA(address)),
        };
        for word in words {
            let mut name = Name::from_ascii(word).with_context(|| line.to_owned())?;
            name.set_fqdn(true);
            let record = Record::from_rdata(name.clone(), HOSTS_TTL, data.clone());
            table.entry(name.into()).or_default().push(record);
        }
    }
    Ok(table)
}

struct Handler {
    hosts: HashMap<LowerName, Vec<Record>>,
    resolver: TokioResolver,
}

#[async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, out: R) -> ResponseInfo {
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.recursion_available = true;
        let Ok(info) = request.request_info() else {
            metadata.response_code = ResponseCode::FormErr;
            return send(request, metadata, iter::empty(), out).await;
        };
        let rtype = info.query.query_type();
        if let Some(records) = self.hosts.get(info.query.name()) {
            metadata.authoritative = true;
            let answers = records.iter().filter(|record| record.record_type() == rtype);
            return send(request, metadata, answers, out).await;
        }
        match self.resolver.lookup(Name::from(info.query.name()), rtype).await {
            Ok(found) => send(request, metadata, found.answers().iter(), out).await,
            Err(error) => {
                metadata.response_code = match (error.is_nx_domain(), error.is_no_records_found()) {
                    (true, _) => ResponseCode::NXDomain,
                    (false, true) => ResponseCode::NoError,
                    (false, false) => ResponseCode::ServFail,
                };
                send(request, metadata, iter::empty(), out).await
            }
        }
    }
}

async fn send<'a>(
    request: &Request,
    metadata: Metadata,
    answers: impl Iterator<Item = &'a Record> + Send + 'a,
    mut out: impl ResponseHandler,
) -> ResponseInfo {
    let builder = MessageResponseBuilder::from_message_request(request);
    let (authorities, soa, additionals) = (iter::empty(), iter::empty(), iter::empty());
    match out.send_response(builder.build(metadata, answers, authorities, soa, additionals)).await {
        Ok(info) => info,
        // The client's connection is gone: no error can be sent.
        Err(_) => Header { metadata, counts: HeaderCounts::default() }.into(),
    }
}

/// TTL in seconds, as in localdns's `hosts`.
const HOSTS_TTL: u32 = 3600;
/// Maximum idle time of a TCP client.
const IDLE: Duration = Duration::from_secs(10);
/// Maximum number of queued replies of a TCP client.
const TCP_REPLIES: usize = 64;
