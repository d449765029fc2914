//! A minimal client of the API: TLS, HTTP/1.1, one request at a time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

/// Address, trusted authority and credentials of an API.
#[derive(Clone, Debug)]
pub(super) struct Access {
    /// The API's address.
    pub(super) address: SocketAddr,
    /// The value of the Authorization header.
    pub(super) authorization: String,
    config: Arc<ClientConfig>,
}

impl Access {
    /// Trusts certificates signed by the authority in the file `authority`.
    ///
    /// # Errors
    /// When the file has no certificate.
    pub(super) fn new(address: SocketAddr, authority: &Path, token: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(authority);
        let certificate = certificate.with_context(|| authority.display().to_string())?;
        roots.add(certificate).context("an authority")?;
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Self { address, authorization: format!("Bearer {token}"), config: Arc::new(config) })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// When no server listens, or its certificate is not trusted.
    pub(super) fn open(&self) -> Result<Connection> {
        let tcp = TcpStream::connect(self.address).with_context(|| self.address.to_string())?;
        tcp.set_nodelay(true).context("TCP_NODELAY")?;
        tcp.set_read_timeout(Some(PATIENCE)).context("SO_RCVTIMEO")?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let tls = ClientConnection::new(self.config.clone(), name).context("TLS")?;
        let stream = BufReader::with_capacity(ROOM, StreamOwned::new(tls, tcp));
        Ok(Connection { host: self.address.to_string(), authorization: self.authorization.clone(), stream })
    }
}

/// A connection for one request at a time.
pub(super) struct Connection {
    host: String,
    authorization: String,
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

/// The head of a reply.
struct Head {
    status: u16,
    /// `None` for a chunked body.
    length: Option<usize>,
}

impl Connection {
    /// Sends a request and reads its reply; returns status and body.
    ///
    /// # Errors
    /// When the connection breaks, or the bytes are no HTTP reply.
    pub(super) fn request(
        &mut self,
        method: &str,
        path: &str,
        form: &str,
        body: &Value,
    ) -> Result<(u16, Vec<u8>)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(&format!("{method} {path}"), &format!("Content-Type: {form}\r\n"), &body)?;
        let head = self.head()?;
        let mut read = Vec::new();
        match head.length {
            Some(length) => self.take(length, &mut read)?,
            None => while self.chunk(&mut read)? {},
        }
        Ok((head.status, read))
    }

    /// Requests a watch that begins with a list, and reads until the list is complete. Returns the
    /// number of bytes, which are not parsed.
    ///
    /// # Errors
    /// When the connection breaks, or the API refuses.
    pub(super) fn throw_away(&mut self, path: &str) -> Result<u64> {
        let path = format!(
            "{path}?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=600"
        );
        self.send(&format!("GET {path}"), &format!("Accept: {PROTOBUF}\r\n"), "")?;
        let head = self.head()?;
        ensure!(head.status == 200, "{path}: {}", head.status);
        let (mut octets, mut end) = (0, Vec::new());
        loop {
            let chunk = self.stream.fill_buf().context("a watch")?;
            ensure!(!chunk.is_empty(), "{path}: it ended before its list");
            octets += chunk.len() as u64;
            end.extend_from_slice(chunk);
            let length = chunk.len();
            self.stream.consume(length);
            if memchr::memmem::find(&end, LISTED).is_some() {
                return Ok(octets);
            }
            end.drain(..end.len().saturating_sub(LISTED.len()));
        }
    }

    fn send(&mut self, line: &str, headers: &str, body: &str) -> Result<()> {
        let Self { host, authorization, stream } = self;
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {authorization}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        let stream = stream.get_mut();
        stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).context("a request")
    }

    fn head(&mut self) -> Result<Head> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("{first:?} is no reply"))?;
        let mut length = None;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(Head { status, length });
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = Some(value.trim().parse().context("Content-Length")?);
            }
        }
    }

    /// Reads one chunk; returns false for the last one.
    fn chunk(&mut self, body: &mut Vec<u8>) -> Result<bool> {
        let line = self.line()?;
        let length = usize::from_str_radix(&line, 16).with_context(|| format!("{line:?} is no length"))?;
        self.take(length, body)?;
        self.line()?;
        Ok(length > 0)
    }

    fn take(&mut self, length: usize, body: &mut Vec<u8>) -> Result<()> {
        if length > MOST_BODY {
            bail!("a reply of {length} octets");
        }
        let start = body.len();
        body.resize(start + length, 0);
        self.stream.read_exact(&mut body[start..]).context("a reply's body")
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.by_ref().take(ROOM as u64).read_line(&mut line).context("a reply")?;
        ensure!(line.ends_with('\n'), "a reply ended in its midst");
        Ok(line.trim_end().to_owned())
    }
}

/// The media type of the measured streams.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// A part of the last event of a list.
const LISTED: &[u8] = b"k8s.io/initial-events-end";
const PATIENCE: Duration = Duration::from_secs(60);
const ROOM: usize = 64 << 10;
const MOST_BODY: usize = 64 << 20;
