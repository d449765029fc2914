//! A server that serves the same zone over UDP, TCP and TLS.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::ask::{Ask, Reply, exchange_udp};
use crate::place::{fresh_ip, port, tempdir};
use crate::tcp::{Connection, TlsClient};
use crate::upstream::Authority;

/// A server's address for UDP and TCP, and its port and certificate for TLS.
#[derive(Debug)]
pub struct Transports {
    /// Over UDP and TCP.
    pub at: SocketAddr,
    /// Over TLS.
    pub tls: SocketAddr,
    client: TlsClient,
    files: TempDir,
}

impl Transports {
    /// Reserves a fresh address.
    pub fn fresh() -> Self {
        Self::new((fresh_ip(), port()).into(), port() + 1)
    }

    /// Uses this address, with the TLS endpoint on `tls_port`.
    pub fn new(at: SocketAddr, tls_port: u16) -> Self {
        let (files, authority) = (tempdir(), Authority::new());
        authority.certify(files.path(), HOST);
        let tls = SocketAddr::new(at.ip(), tls_port);
        Self { at, tls, client: authority.client(HOST, None), files }
    }

    /// A server block that serves `zone` over all three with these directives.
    pub fn block(&self, zone: &str, directives: &str) -> String {
        let Self { at, tls, files, .. } = self;
        let (ip, files) = (at.ip(), files.path().display());
        let keys = format!("{zone}:{} tls://{zone}:{}", at.port(), tls.port());
        format!("{keys} {{\nbind {ip}\nroot {files}\ntls cert.pem key.pem\n{directives}\n}}\n")
    }

    /// One connection over TCP, and one over TLS.
    ///
    /// # Panics
    /// When the server does not accept them.
    pub fn connections(&self, timeout: Duration) -> [Connection; 2] {
        [Connection::open(self.at, timeout), Connection::open_tls(self.tls, &self.client, timeout)]
            .map(|connection| connection.expect("the server takes connections"))
    }

    /// The replies to `ask` over UDP, TCP and TLS.
    ///
    /// # Panics
    /// When no valid reply arrives in time.
    pub fn of(&self, ask: &Ask) -> [Reply; 3] {
        let [mut tcp, mut tls] = self.connections(ask.timeout);
        let right = |over: &str, reply: Result<Reply>| {
            reply.unwrap_or_else(|error| panic!("{ask:?} over {over}: {error:#}"))
        };
        [ask.of(self.at), right("TCP", ask.over(&mut tcp)), right("TLS", ask.over(&mut tls))]
    }

    /// The replies to `octets`, sent over UDP, TCP and TLS.
    ///
    /// # Errors
    /// No reply in time over one of them.
    pub fn exchange(&self, octets: &[u8], timeout: Duration) -> Result<[Vec<u8>; 3]> {
        let udp = exchange_udp(self.at, octets, timeout).context("over UDP")?;
        let [mut tcp, mut tls] = self.connections(timeout);
        Ok([udp, tcp.exchange(octets).context("over TCP")?, tls.exchange(octets).context("over TLS")?])
    }
}

const HOST: &str = "dns.example";
