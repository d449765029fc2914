//! A scripted API: over HTTP/1.1 or HTTPS, each connection on its own thread.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use super::forms::Form;
use crate::lock::lock;
use crate::upstream::Authority;

/// A request as passed to a script.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Without parameters, such as `/api/v1/services`.
    pub path: String,
    /// Decoded.
    pub parameters: BTreeMap<String, String>,
    /// By name in lower case.
    pub headers: BTreeMap<String, String>,
    /// The number of earlier requests for the same path.
    pub earlier: usize,
}

impl Request {
    /// A parameter, empty where it is missing.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }

    /// Whether the request is a watch.
    pub fn is_watch(&self) -> bool {
        self.parameter("watch") == "true"
    }

    /// Whether the request is a watch that begins with a list.
    pub fn is_watch_list(&self) -> bool {
        self.parameter("sendInitialEvents") == "true"
    }
}

/// A reply in several parts.
pub struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    parts: Vec<Part>,
}

enum Part {
    Octets(Vec<u8>),
    /// Sent byte by byte.
    Dribble(Vec<u8>),
    /// Bytes that the test sends, until it drops the sender.
    Live(Receiver<Vec<u8>>),
    /// Nothing more until the test is over; the connection stays open.
    Stall,
    /// Ends the connection in the middle of the reply.
    Cut,
    /// Closes the sending direction but still reads from the client.
    HalfClose,
}

impl Reply {
    /// A reply with this status and content type.
    pub fn new(status: u16, content_type: &str) -> Self {
        Self { status, headers: vec![("Content-Type", content_type.to_owned())], parts: Vec::new() }
    }

    /// One page of a list of `kind`, such as `Service`.
    pub fn list(form: Form, kind: &str, version: &str, next: &str, items: &[Value]) -> Self {
        Self::new(200, form.content_type(false)).octets(form.list(kind, version, next, items))
    }

    /// A reply to a watch.
    pub fn watch(form: Form) -> Self {
        Self::new(200, form.content_type(true))
    }

    /// A `Status` object of failure.
    pub fn failure(form: Form, code: u16, reason: &str) -> Self {
        let status = json!({"status": "Failure", "code": code, "reason": reason, "message": format!("scripted: {reason}")});
        Self::new(code, form.content_type(false)).octets(form.status(&status))
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Adds bytes to the body.
    #[must_use]
    pub fn octets(self, octets: Vec<u8>) -> Self {
        self.part(Part::Octets(octets))
    }

    /// Adds bytes to the body, sent one by one.
    #[must_use]
    pub fn dribble(self, octets: Vec<u8>) -> Self {
        self.part(Part::Dribble(octets))
    }

    /// Adds the bytes that the test supplies later to the reply.
    #[must_use]
    pub fn live(self, parts: Receiver<Vec<u8>>) -> Self {
        self.part(Part::Live(parts))
    }

    /// Ends the reply's data, but keeps the connection open.
    #[must_use]
    pub fn stall(self) -> Self {
        self.part(Part::Stall)
    }

    /// Ends the connection at this point, in the middle of the reply.
    #[must_use]
    pub fn cut(self) -> Self {
        self.part(Part::Cut)
    }

    /// Closes the sending direction at this point, in the middle of the reply, but not the
    /// receiving one.
    #[must_use]
    pub fn half_close(self) -> Self {
        self.part(Part::HalfClose)
    }

    fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }
}

type Script = dyn Fn(&Request) -> Reply + Send + Sync;

/// A running scripted API; dropping it stops it and ends its connections.
pub struct Api {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    script: Box<Script>,
    tls: Option<Arc<ServerConfig>>,
    over: AtomicBool,
    requests: Mutex<Vec<Request>>,
    connections: Mutex<Vec<TcpStream>>,
}

impl Api {
    /// Listens, and replies as `script` decides.
    ///
    /// # Panics
    /// When it cannot listen.
    pub fn start(script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at((crate::fresh_ip(), 0).into(), script)
    }

    /// Like [`Self::start`], over TLS: the API presents a certificate of `authority` and requires a
    /// client certificate of the same authority.
    ///
    /// # Panics
    /// When it cannot listen.
    pub fn start_tls(
        authority: &Authority,
        script: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let ip = crate::fresh_ip();
        let tls = authority.server_of_its_clients(&ip.to_string());
        Self::listen((ip, 0).into(), Some(tls), Box::new(script))
    }

    /// Like [`Self::start`], on the address of an API that has ended.
    ///
    /// # Panics
    /// When the address is in use.
    pub fn start_at(address: SocketAddr, script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(address, None, Box::new(script))
    }

    fn listen(address: SocketAddr, tls: Option<Arc<ServerConfig>>, script: Box<Script>) -> Self {
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            script,
            tls,
            over: AtomicBool::new(false),
            requests: Mutex::default(),
            connections: Mutex::default(),
        });
        let of = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if of.over.load(Ordering::Acquire) {
                    break;
                }
                let (Ok(()), Ok(second)) = (stream.set_nodelay(true), stream.try_clone()) else { continue };
                lock(&of.connections).push(second);
                let of = of.clone();
                thread::spawn(move || of.serve(stream));
            }
        });
        Self { address, shared }
    }

    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The value for `endpoint`.
    pub fn url(&self) -> String {
        format!("http{}://{}", if self.shared.tls.is_some() { "s" } else { "" }, self.address)
    }

    /// The requests received, in order.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// Ends all open connections.
    pub fn cut(&self) {
        for connection in lock(&self.shared.connections).drain(..) {
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        // Wakes the thread that waits for the next connection.
        drop(TcpStream::connect(self.address));
        self.cut();
    }
}

impl Shared {
    /// Serves one connection until it ends.
    fn serve(&self, socket: TcpStream) {
        let Ok(stream) = socket.try_clone() else { return };
        match &self.tls {
            None => self.exchange(&socket, stream),
            Some(tls) => {
                let connection = ServerConnection::new(tls.clone()).expect("what was configured is good");
                self.exchange(&socket, StreamOwned::new(connection, stream));
            }
        }
        drop(socket.shutdown(Shutdown::Both));
    }

    fn exchange(&self, socket: &TcpStream, stream: impl Read + Write) {
        let mut stream = BufReader::new(stream);
        while let Some(mut request) = read(&mut stream) {
            let mut requests = lock(&self.requests);
            request.earlier = requests.iter().filter(|earlier| earlier.path == request.path).count();
            requests.push(request.clone());
            drop(requests);
            if reply(socket, stream.get_mut(), (self.script)(&request)).is_err() {
                break;
            }
        }
    }
}

fn reply(socket: &TcpStream, stream: &mut (impl Read + Write), reply: Reply) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Scripted\r\nTransfer-Encoding: chunked\r\n", reply.status);
    for (name, value) in reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    for part in reply.parts {
        match part {
            Part::Octets(octets) => chunk(stream, &octets)?,
            Part::Dribble(octets) => octets.chunks(1).try_for_each(|octet| chunk(stream, octet))?,
            Part::Live(parts) => parts.iter().try_for_each(|octets| chunk(stream, &octets))?,
            // Until the client or the test ends the connection.
            Part::Stall => {
                return stream.read(&mut [0]).and_then(|_| Err(io::ErrorKind::ConnectionAborted.into()));
            }
            Part::HalfClose => {
                socket.shutdown(Shutdown::Write)?;
                return stream.read(&mut [0]).and_then(|_| Err(io::ErrorKind::ConnectionAborted.into()));
            }
            Part::Cut => return Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
    stream.write_all(b"0\r\n\r\n")
}

fn chunk(stream: &mut impl Write, octets: &[u8]) -> io::Result<()> {
    if octets.is_empty() {
        return Ok(());
    }
    stream.write_all(&[format!("{:x}\r\n", octets.len()).as_bytes(), octets, b"\r\n"].concat())
}

/// Reads the head of a request; `None` when the connection has ended.
fn read(reading: &mut impl BufRead) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reading.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let target = lines.first()?.split(' ').nth(1)?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let headers = lines.iter().skip(1).filter_map(|line| line.split_once(": "));
    Some(Request {
        path: path.to_owned(),
        parameters: pairs.map(|(name, value)| (name.to_owned(), decoded(value))).collect(),
        headers: headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect(),
        earlier: 0,
    })
}

fn decoded(text: &str) -> String {
    let mut octets = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| after.get(..2)).flatten();
        let value = escaped.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        octets.push(value.unwrap_or(*first));
        rest = if value.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&octets).into_owned()
}
