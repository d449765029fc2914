//! One query, one reply.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Deref;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::clock::now;
use crate::message::{Message, header};
use crate::records::{name, rtype_number};
use crate::tcp::Connection;

/// Sends a query for `name` and `rtype` to `server` over UDP, with RD set and without EDNS.
///
/// # Panics
/// When no valid reply arrives within 5 s.
pub fn ask(server: SocketAddr, name: &str, rtype: &str) -> Reply {
    Ask::new(name, rtype).of(server)
}

/// A query to send; by default RD is set and there is no EDNS.
#[derive(Debug, Clone)]
pub struct Ask {
    name: String,
    rtype: u16,
    class: u16,
    id: u16,
    flags: u16,
    edns: Option<(u16, u8, u16)>,
    options: Vec<(u16, Vec<u8>)>,
    tcp: bool,
    pub(crate) timeout: Duration,
}

impl Ask {
    /// A query for `name` (its case is kept) and a type such as `AAAA` or `TYPE65400`.
    pub fn new(name: &str, rtype: &str) -> Self {
        Self {
            name: name.to_owned(),
            rtype: rtype_number(rtype),
            class: 1,
            id: NEXT_ID.fetch_add(0x3a7, Ordering::Relaxed),
            flags: RD,
            edns: None,
            options: Vec::new(),
            tcp: false,
            timeout: Duration::from_secs(5),
        }
    }

    /// The class; default 1 (IN).
    pub fn class(self, class: u16) -> Self {
        Self { class, ..self }
    }

    /// The message ID.
    pub fn id(self, id: u16) -> Self {
        Self { id, ..self }
    }

    /// The opcode; default 0 (QUERY).
    pub fn opcode(self, opcode: u16) -> Self {
        Self { flags: self.flags & !0x7800 | opcode << 11, ..self }
    }

    /// The RD flag (recursion desired); default true.
    pub fn rd(self, on: bool) -> Self {
        self.flag(RD, on)
    }

    /// Sets CD (checking disabled).
    pub fn cd(self) -> Self {
        self.flag(0x0010, true)
    }

    /// Sets AD: the client understands authentic data.
    pub fn ad(self) -> Self {
        self.flag(0x0020, true)
    }

    /// EDNS with this UDP payload size.
    pub fn edns(mut self, size: u16) -> Self {
        self.edns.get_or_insert((size, 0, 0)).0 = size;
        self
    }

    /// EDNS with this version.
    pub fn edns_version(mut self, version: u8) -> Self {
        self.edns.get_or_insert(DEFAULT_EDNS).1 = version;
        self
    }

    /// EDNS with DO.
    pub fn dnssec_ok(mut self) -> Self {
        self.edns.get_or_insert(DEFAULT_EDNS).2 |= 0x8000;
        self
    }

    /// EDNS with an empty NSID option (RFC 5001).
    pub fn nsid(self) -> Self {
        self.option(3, &[])
    }

    /// EDNS with this option.
    pub fn option(mut self, code: u16, data: &[u8]) -> Self {
        self.edns.get_or_insert(DEFAULT_EDNS);
        self.options.push((code, data.to_vec()));
        self
    }

    /// Uses TCP instead of UDP.
    pub fn tcp(self) -> Self {
        Self { tcp: true, ..self }
    }

    /// The time to wait for the reply; default 5 s.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The query in wire format.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = header(self.id, self.flags, [1, 0, 0, u16::from(self.edns.is_some())]);
        bytes.extend(name(&self.name));
        bytes.extend(self.rtype.to_be_bytes());
        bytes.extend(self.class.to_be_bytes());
        if let Some((size, version, bits)) = self.edns {
            let options: Vec<u8> = self
                .options
                .iter()
                .flat_map(|(code, data)| {
                    let length = u16::try_from(data.len()).expect("an option fits its length");
                    [&code.to_be_bytes()[..], &length.to_be_bytes(), data].concat()
                })
                .collect();
            bytes.extend([0, 0, 41]);
            bytes.extend(size.to_be_bytes());
            bytes.extend([0, version]);
            bytes.extend(bits.to_be_bytes());
            bytes.extend(u16::try_from(options.len()).expect("the options fit OPT").to_be_bytes());
            bytes.extend(options);
        }
        bytes
    }

    /// Sends the query to `server` and returns the reply.
    ///
    /// # Panics
    /// When no valid reply arrives in time.
    pub fn of(&self, server: SocketAddr) -> Reply {
        self.try_of(server).unwrap_or_else(|error| panic!("{} of {server}: {error:#}", self.name))
    }

    /// Sends the query to `server` and returns the reply.
    ///
    /// # Errors
    /// No reply in time, or a reply that is malformed or has another ID or question.
    pub fn try_of(&self, server: SocketAddr) -> Result<Reply> {
        if self.tcp {
            return self.over(&mut Connection::open(server, self.timeout)?);
        }
        let started = now();
        let bytes = exchange_udp(server, &self.bytes(), self.timeout)?;
        self.reply(started, bytes)
    }

    /// Sends the query over a connection and returns the next message as its reply.
    ///
    /// # Errors
    /// As [`Self::try_of`].
    pub fn over(&self, connection: &mut Connection) -> Result<Reply> {
        let started = now();
        let bytes = connection.exchange(&self.bytes())?;
        self.reply(started, bytes)
    }

    fn reply(&self, started: Instant, bytes: Vec<u8>) -> Result<Reply> {
        let reply = Reply { elapsed: started.elapsed(), message: Message::decode(&bytes)?, bytes };
        ensure!(reply.id == self.id, "another id: {reply:?}");
        ensure!(reply.flags & 0x8000 != 0, "QR is not set: {reply:?}");
        if let Some(question) = &reply.question {
            // The reply must repeat the case of the question (draft-vixie-dnsext-dns0x20).
            let asked = format!("{}.", self.name.trim_end_matches('.'));
            let same = question.name == asked && question.rtype == self.rtype && question.class == self.class;
            ensure!(same, "another question: {reply:?}");
        }
        hickory_proto::op::Message::from_vec(&reply.bytes).context("a strict reader refuses the reply")?;
        Ok(reply)
    }
}

/// A decoded reply that matches its query.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Measured from before the query was sent.
    pub elapsed: Duration,
    /// The reply in wire format.
    pub bytes: Vec<u8>,
    message: Message,
}

impl Reply {
    /// The name that IANA registers for the rcode.
    pub fn status(&self) -> &'static str {
        RCODES.iter().find(|(code, _)| *code == self.rcode()).map_or("other", |(_, name)| name)
    }

    /// The answer section in zone file format, sorted: a server may return any order.
    pub fn rows(&self) -> Vec<String> {
        let mut rows: Vec<String> = self.answers.iter().map(ToString::to_string).collect();
        rows.sort();
        rows
    }

    /// The data of the answers, sorted, as `dig +short` prints it.
    pub fn short(&self) -> Vec<&str> {
        let mut rows: Vec<&str> = self.answers.iter().map(|record| record.data.as_str()).collect();
        rows.sort_unstable();
        rows
    }

    /// The flags that are set, as dig prints them: `qr aa tc rd ra ad cd`.
    pub fn flag_names(&self) -> String {
        let set = FLAGS.iter().filter(|(bit, _)| self.flags & bit != 0);
        set.map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
    }

    /// The info code and text of an Extended DNS Error (RFC 8914).
    pub fn extended_error(&self) -> Option<(u16, String)> {
        let data = self.option(15)?;
        let code = u16::from_be_bytes([*data.first()?, *data.get(1)?]);
        Some((code, String::from_utf8_lossy(&data[2..]).into_owned()))
    }
}

impl Deref for Reply {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

/// Sends `query` in one datagram from a fresh port and returns the first datagram from `server`.
///
/// # Errors
/// Those of the socket, such as a refusal by a closed port or a timeout.
pub fn exchange_udp(server: SocketAddr, query: &[u8], timeout: Duration) -> Result<Vec<u8>> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.send(query)?;
    let mut buffer = vec![0; 65_535];
    // A signal interrupts the wait; that is no failure of the server.
    let received = loop {
        match socket.recv(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => break other,
        }
    };
    buffer.truncate(received.with_context(|| format!("no reply within {timeout:?}"))?);
    Ok(buffer)
}

impl Ask {
    fn flag(self, bit: u16, on: bool) -> Self {
        Self { flags: if on { self.flags | bit } else { self.flags & !bit }, ..self }
    }
}

static NEXT_ID: AtomicU16 = AtomicU16::new(1);
const RD: u16 = 0x0100;
const DEFAULT_EDNS: (u16, u8, u16) = (1232, 0, 0);
const FLAGS: &[(u16, &str)] = &[
    (0x8000, "qr"),
    (0x0400, "aa"),
    (0x0200, "tc"),
    (0x0100, "rd"),
    (0x0080, "ra"),
    (0x0020, "ad"),
    (0x0010, "cd"),
];
const RCODES: &[(u16, &str)] = &[
    (0, "NOERROR"),
    (1, "FORMERR"),
    (2, "SERVFAIL"),
    (3, "NXDOMAIN"),
    (4, "NOTIMP"),
    (5, "REFUSED"),
    (9, "NOTAUTH"),
    (16, "BADVERS"),
];
