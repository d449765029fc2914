//! A client of DNS over QUIC (RFC 9250), also a wrong one.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, ReadError, ReadToEndError, RecvStream, SendStream,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::tcp::TlsClient;

/// A client's connection.
#[derive(Debug)]
pub struct Doq {
    runtime: Runtime,
    _endpoint: Endpoint,
    connection: Connection,
    patience: Duration,
}

/// A stream of a connection.
#[derive(Debug)]
pub struct DoqStream {
    send: SendStream,
    receive: RecvStream,
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DoqEnd {
    /// With these bytes.
    Octets(Vec<u8>),
    /// By a reset with this code.
    Reset(u64),
    /// By the end of its connection, with this code.
    Closed(u64),
}

impl Doq {
    /// Connects from an address of loopback; `patience` is for each step.
    ///
    /// # Errors
    /// No handshake in time, or a refusal.
    pub fn open(from: Ipv4Addr, at: SocketAddr, client: &TlsClient, patience: Duration) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut config = (*client.config).clone();
        config.alpn_protocols = vec![b"doq".to_vec()];
        let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(config)?));
        let name = client.name.to_str().into_owned();
        let (endpoint, connection) = runtime.block_on(async {
            let endpoint = Endpoint::client((IpAddr::from(from), 0).into())?;
            let connecting = endpoint.connect_with(config, at, &name)?;
            let connection = timeout(patience, connecting).await.context("no handshake in time")??;
            anyhow::Ok((endpoint, connection))
        })?;
        Ok(Self { runtime, _endpoint: endpoint, connection, patience })
    }

    /// Sends a query on a stream of its own, and returns the reply.
    ///
    /// # Errors
    /// No reply in time, a reset or the connection's end.
    pub fn ask(&self, message: &[u8]) -> Result<Vec<u8>> {
        let stream = self.send(&framed(message), true)?;
        match self.end_of(stream)? {
            DoqEnd::Octets(octets) => Ok(octets.get(2..).context("no length")?.to_vec()),
            other => bail!("{other:?}"),
        }
    }

    /// Opens a stream and sends bytes; with `ends`, ends its sending side.
    ///
    /// # Errors
    /// No stream in time, or the connection's end.
    pub fn send(&self, octets: &[u8], ends: bool) -> Result<DoqStream> {
        self.run(async {
            let (mut send, receive) = self.connection.open_bi().await?;
            send.write_all(octets).await?;
            if ends {
                send.finish()?;
            }
            Ok(DoqStream { send, receive })
        })
    }

    /// Waits for the end of a stream.
    ///
    /// # Errors
    /// No end in time.
    pub fn end_of(&self, mut stream: DoqStream) -> Result<DoqEnd> {
        self.run(async {
            Ok(match stream.receive.read_to_end(1 << 17).await {
                Ok(octets) => DoqEnd::Octets(octets),
                Err(ReadToEndError::Read(ReadError::Reset(code))) => DoqEnd::Reset(code.into_inner()),
                Err(ReadToEndError::Read(ReadError::ConnectionLost(error))) => {
                    DoqEnd::Closed(code_of(&error)?)
                }
                Err(error) => bail!("{error}"),
            })
        })
    }

    /// Waits for the end of the connection, and returns the server's code.
    ///
    /// # Errors
    /// No end in time, or one without a code.
    pub fn closed(&self) -> Result<u64> {
        self.run(async { code_of(&self.connection.closed().await) })
    }

    /// Whether the connection is open.
    pub fn is_open(&self) -> bool {
        self.connection.close_reason().is_none()
    }

    /// Lets the connection exchange packets for this long.
    pub fn run_for(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    fn run<T>(&self, step: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(async { timeout(self.patience, step).await.context("too late")? })
    }
}

impl DoqStream {
    /// The number of the stream among the client's.
    pub fn number(&self) -> u64 {
        self.send.id().index()
    }
}

fn code_of(error: &ConnectionError) -> Result<u64> {
    match error {
        ConnectionError::ApplicationClosed(close) => Ok(close.error_code.into_inner()),
        other => bail!("{other}"),
    }
}

/// A message behind its length.
pub fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes()[..], message].concat()
}
