//! TLS on a client's connection: records of the socket in, the client's octets out, and back. No I/O: who reads and writes
//! the socket drives it. What rustls would keep of records that have not come whole is kept here, and counted.

use std::iter;
use std::sync::Arc;

use plugins::tls::Handshakes;
use rustls::ServerConfig;
use rustls::server::{Acceptor, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};

/// One connection's TLS.
pub(crate) struct Tls {
    stage: Stage,
    /// Records, or messages of the handshake, that have not come whole.
    came: Vec<u8>,
    progress: Progress,
    /// Octets of the client's certificates, which are kept.
    certificates: usize,
}

#[allow(clippy::large_enum_variant, reason = "nearly every connection becomes the larger one")]
enum Stage {
    /// The ClientHello, which decides what the handshake uses, is incomplete.
    Hello(Handshakes),
    Chosen(UnbufferedServerConnection),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Nothing has come.
    New,
    Handshake,
    Established,
    /// The client has said that it sends no more.
    Finished,
    /// It broke the protocol. What rustls has noted of octets that are thrown away leads nowhere: it is not asked again.
    Broken,
}

/// The client broke the protocol, or is not let in; what it is told was written.
#[derive(Debug)]
pub(crate) struct TlsBroken;

impl Tls {
    pub(crate) fn new(handshakes: Handshakes) -> Self {
        Self { stage: Stage::Hello(handshakes), came: Vec::new(), progress: Progress::New, certificates: 0 }
    }

    /// Takes octets of the socket. What the client says goes to the end of `plain`, what TLS itself has to say to the end of
    /// `out`.
    pub(crate) fn open(
        &mut self,
        octets: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), TlsBroken> {
        if self.progress == Progress::New {
            self.progress = Progress::Handshake;
        }
        let opened = self.take(octets, plain, out);
        if opened.is_err() {
            (self.came, self.progress) = (Vec::new(), Progress::Broken);
        }
        opened
    }

    fn take(&mut self, octets: &[u8], plain: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<(), TlsBroken> {
        let mut came = std::mem::take(&mut self.came);
        came.reserve_exact(octets.len());
        came.extend_from_slice(octets);
        if let Stage::Hello(handshakes) = &self.stage {
            let Some(config) = choose(handshakes, &came) else {
                self.came = came;
                return Ok(());
            };
            let connection = UnbufferedServerConnection::new(config).map_err(|_| TlsBroken)?;
            self.stage = Stage::Chosen(connection);
        }
        let Stage::Chosen(connection) = &mut self.stage else { return Err(TlsBroken) };
        let (mut from, mut result) = (0, Ok(()));
        loop {
            let UnbufferedStatus { mut discard, state, .. } =
                connection.process_tls_records(&mut came[from..]);
            let goes_on = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        plain.extend_from_slice(record.payload);
                        discard += record.discard;
                    }
                    true
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    grow(out, |room| match data.encode(room) {
                        Err(EncodeError::InsufficientSize(more)) => Err(Some(more)),
                        other => other.map_err(|_| None),
                    })?;
                    true
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    true
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.progress = Progress::Finished;
                    true
                }
                Ok(ConnectionState::WriteTraffic(_)) => {
                    if self.progress == Progress::Handshake {
                        self.progress = Progress::Established;
                    }
                    false
                }
                Ok(_) => false,
                Err(_) => {
                    result = Err(TlsBroken);
                    true
                }
            };
            from += discard;
            // After a failure the loop writes what is queued, the alert last. The failed record is
            // not read again.
            if !goes_on || result.is_err() && !connection.wants_write() {
                break;
            }
        }
        if self.progress == Progress::Finished {
            came = Vec::new();
        } else if from > 0 {
            came = came[from..].to_vec();
        }
        self.came = came;
        if self.certificates == 0
            && let Some(certificates) = connection.peer_certificates()
        {
            self.certificates = certificates.iter().map(|certificate| certificate.len()).sum();
        }
        result
    }

    /// Encrypts what the client is told, to the end of `out`.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsBroken> {
        self.write(out, |traffic, room| traffic.encrypt(plain, room))
    }

    /// Tells the client that nothing more comes.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) -> Result<(), TlsBroken> {
        self.write(out, |traffic, room| traffic.queue_close_notify(room))
    }

    fn write(
        &mut self,
        out: &mut Vec<u8>,
        mut write: impl FnMut(&mut WriteTraffic<'_>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> Result<(), TlsBroken> {
        loop {
            if self.progress == Progress::Broken {
                return Err(TlsBroken);
            }
            // The handshake has not begun.
            let Stage::Chosen(connection) = &mut self.stage else { return Err(TlsBroken) };
            let UnbufferedStatus { discard, state, .. } = connection.process_tls_records(&mut self.came);
            let written = match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    grow(out, |room| match data.encode(room) {
                        Err(EncodeError::InsufficientSize(more)) => Err(Some(more)),
                        other => other.map_err(|_| None),
                    })?;
                    false
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    false
                }
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    grow(out, |room| match write(&mut traffic, room) {
                        Err(EncryptError::InsufficientSize(more)) => Err(Some(more)),
                        other => other.map_err(|_| None),
                    })?;
                    true
                }
                // The handshake is not over, or the connection is.
                Ok(_) => return Err(TlsBroken),
                Err(_) => {
                    self.progress = Progress::Broken;
                    return Err(TlsBroken);
                }
            };
            self.came.drain(..discard);
            if written {
                return Ok(());
            }
        }
    }

    /// Whether the client has begun to speak and messages cannot be exchanged yet.
    pub(crate) fn is_in_handshake(&self) -> bool {
        self.progress == Progress::Handshake
    }

    /// Whether messages cannot be exchanged yet.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.progress, Progress::New | Progress::Handshake)
    }

    /// Whether part of a record has come.
    pub(crate) fn is_half(&self) -> bool {
        self.is_in_handshake() || !self.came.is_empty()
    }

    /// Whether the client sends no more.
    pub(crate) fn is_finished(&self) -> bool {
        self.progress == Progress::Finished
    }

    /// Octets that the client makes us hold, beside what every connection has.
    pub(crate) fn held(&self) -> usize {
        self.came.capacity() + self.certificates
    }
}

/// Chooses what the handshake uses by the ClientHello at the start of these bytes; `None` while it
/// is incomplete. Anything else is refused by the connection.
fn choose(handshakes: &Handshakes, octets: &[u8]) -> Option<Arc<ServerConfig>> {
    // Parses once a record is complete, not at each byte of it.
    let &[kind, _, _, high, low, ref content @ ..] = octets else { return None };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if kind == HANDSHAKE && length <= LARGEST_RECORD && content.len() < length {
        return None;
    }
    let none = || Some(handshakes.of(iter::empty()).clone());
    let (mut acceptor, mut rest) = (Acceptor::default(), octets);
    while !rest.is_empty() {
        if acceptor.read_tls(&mut rest).is_err() {
            return none();
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                return Some(handshakes.of(hello.alpn().into_iter().flatten()).clone());
            }
            Err(_) => return none(),
        }
    }
    None
}

/// The content type of messages of the handshake (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// Octets of a record's content at most, encrypted or not.
const LARGEST_RECORD: usize = (1 << 14) + 2048;

type WriteTraffic<'c> = rustls::unbuffered::WriteTraffic<'c, rustls::server::ServerConnectionData>;

/// Has `write` write to the end of `out`, with as much room as it needs.
fn grow(
    out: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
) -> Result<(), TlsBroken> {
    let (start, mut room) = (out.len(), 0);
    loop {
        out.resize(start + room, 0);
        match write(&mut out[start..]) {
            Ok(written) => {
                out.truncate(start + written);
                return Ok(());
            }
            Err(Some(more)) if more.required_size > room => room = more.required_size,
            Err(_) => {
                out.truncate(start);
                return Err(TlsBroken);
            }
        }
    }
}
