//! A DNS server of another make, hickory-server, over TLS, HTTPS and QUIC: an independent peer of lookups.

use std::iter;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hickory_server::Server;
use hickory_server::net::quic::QuicServer;
use hickory_server::net::runtime::Time;
use hickory_server::proto::op::{Header, HeaderCounts, LowerQuery, Metadata, Query};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::{MessageResponseBuilder, Queries};
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use crate::lock::lock;
use crate::upstream::Authority;

/// How queries of an [`EncryptedPeer`] are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encrypted {
    /// DNS over TLS.
    Tls,
    /// DNS over HTTPS, path /dns-query.
    Https,
    /// DNS over QUIC.
    Quic,
}

impl Encrypted {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tls, Self::Https, Self::Quic];

    /// What stands before the address in a configuration.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Tls => "tls://",
            Self::Https => "https://",
            Self::Quic => "quic://",
        }
    }
}

/// The reply of an [`EncryptedPeer`] to a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerReply {
    /// This address to A, NODATA to other types.
    Address(Ipv4Addr),
    /// No reply.
    Silent,
    /// The address, with another question.
    OtherQuestion(Ipv4Addr),
}

/// A running server; it ends when dropped.
pub struct EncryptedPeer {
    /// Its word in a configuration.
    pub word: String,
    seen: Arc<Seen>,
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Seen {
    certificate: Arc<CertifiedKey>,
    names: Mutex<Vec<Option<String>>>,
}

impl EncryptedPeer {
    /// Serves on `address` with a certificate of `authority` for `host`.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub fn start(
        over: Encrypted,
        address: SocketAddr,
        (authority, host): (&Authority, &str),
        reply: PeerReply,
    ) -> Self {
        let (seen, config) = tls(authority, host, over);
        let runtime = runtime();
        runtime.spawn(async move {
            let mut server = Server::new(Handler(reply));
            match over {
                Encrypted::Tls => {
                    let listener = TcpListener::bind(address).await.expect("the address is free");
                    server
                        .register_tls_listener_with_tls_config(listener, PATIENCE, config)
                        .expect("it serves");
                }
                Encrypted::Https => {
                    let listener = TcpListener::bind(address).await.expect("the address is free");
                    let path = "/dns-query".to_owned();
                    server
                        .register_https_listener_with_tls_config(listener, PATIENCE, config, None, path)
                        .expect("it serves");
                }
                Encrypted::Quic => {
                    let socket = UdpSocket::bind(address).await.expect("the address is free");
                    server
                        .register_quic_listener_and_tls_config(socket, PATIENCE, config)
                        .expect("it serves");
                }
            }
            // Ends with the runtime.
            let _ = server.block_until_done().await;
        });
        Self { word: format!("{}{address}", over.scheme()), seen, runtime: Some(runtime) }
    }

    /// Serves QUIC on `address`, and replies to each query with these bytes.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub fn garbage_over_quic(address: SocketAddr, of: (&Authority, &str), bytes: &'static [u8]) -> Self {
        let (seen, config) = tls(of.0, of.1, Encrypted::Quic);
        let runtime = runtime();
        runtime.spawn(async move {
            let socket = UdpSocket::bind(address).await.expect("the address is free");
            let mut server = QuicServer::with_socket_and_tls_config(socket, config).expect("it serves");
            while let Ok(Some((mut streams, _))) = server.next().await {
                tokio::spawn(async move {
                    while let Some(Ok(mut stream)) = streams.next().await {
                        let _ = stream.receive_bytes().await;
                        let _ = stream.send_bytes(bytes.into()).await;
                        let _ = stream.finish().await;
                    }
                });
            }
        });
        Self { word: format!("{}{address}", Encrypted::Quic.scheme()), seen, runtime: Some(runtime) }
    }

    /// Serves HTTPS on `address`, and replies to each request with this status and body.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub fn http(address: SocketAddr, of: (&Authority, &str), status: u16, body: &'static [u8]) -> Self {
        let (seen, config) = tls(of.0, of.1, Encrypted::Https);
        let runtime = runtime();
        runtime.spawn(async move {
            let listener = TcpListener::bind(address).await.expect("the address is free");
            let acceptor = TlsAcceptor::from(config);
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(|_| async move {
                        Response::builder()
                            .status(status)
                            .header("content-type", "application/dns-message")
                            .body(Full::new(Bytes::from_static(body)))
                    });
                    let server = http2::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { word: format!("{}{address}", Encrypted::Https.scheme()), seen, runtime: Some(runtime) }
    }

    /// The server names (SNI) of all handshakes, in order.
    pub fn server_names(&self) -> Vec<Option<String>> {
        lock(&self.seen.names).clone()
    }
}

impl Drop for EncryptedPeer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(PATIENCE);
        }
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().expect("threads can be made")
}

fn tls(authority: &Authority, host: &str, over: Encrypted) -> (Arc<Seen>, Arc<ServerConfig>) {
    let certificate = Arc::new(authority.certified(host));
    let seen = Arc::new(Seen { certificate, names: Mutex::default() });
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring knows the default versions")
        .with_no_client_auth()
        .with_cert_resolver(seen.clone());
    let protocol: &[u8] = match over {
        Encrypted::Tls => b"dot",
        Encrypted::Https => b"h2",
        Encrypted::Quic => b"doq",
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    (seen, Arc::new(config))
}

impl ResolvesServerCert for Seen {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        lock(&self.names).push(hello.server_name().map(str::to_owned));
        Some(self.certificate.clone())
    }
}

struct Handler(PeerReply);

#[async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut out: R,
    ) -> ResponseInfo {
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.recursion_available = true;
        let (name, rtype) = match request.request_info() {
            Ok(info) => (Name::from(info.query.name()), info.query.query_type()),
            Err(_) => (Name::root(), RecordType::ZERO),
        };
        let other = Queries::new(vec![LowerQuery::query(Query::query(
            Name::from_ascii("other.test.").expect("a name"),
            rtype,
        ))]);
        let (address, builder) = match self.0 {
            PeerReply::Silent => std::future::pending().await,
            PeerReply::Address(address) => (address, MessageResponseBuilder::from_message_request(request)),
            PeerReply::OtherQuestion(address) => (address, MessageResponseBuilder::new(&other, None)),
        };
        let record = Record::from_rdata(name, 60, RData::A(address.into()));
        let answers = (rtype == RecordType::A).then_some(&record);
        let (authorities, soa, additionals) = (iter::empty(), iter::empty(), iter::empty());
        let response = builder.build(metadata, answers, authorities, soa, additionals);
        match out.send_response(response).await {
            Ok(info) => info,
            Err(_) => Header { metadata, counts: HeaderCounts::default() }.into(),
        }
    }
}

/// Maximum duration of handshakes, and of pauses in a connection.
const PATIENCE: Duration = Duration::from_secs(20);
