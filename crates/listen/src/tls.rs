//! TLS on a client's connection: decrypts and encrypts. No I/O: the caller reads and writes the
//! socket. Incomplete records, which rustls would buffer, are kept here, and counted.

use std::iter;
use std::sync::Arc;

use plugins::tls::Handshakes;
use rustls::ServerConfig;
use rustls::server::{Acceptor, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};

/// The TLS state of one connection.
pub(crate) struct Tls {
    stage: Stage,
    /// Incomplete records, or messages of the handshake.
    received: Vec<u8>,
    progress: Progress,
    /// Bytes of the client's certificates, which rustls keeps.
    certificates: usize,
}

#[allow(clippy::large_enum_variant, reason = "nearly every connection becomes the larger one")]
enum Stage {
    /// The ClientHello, by which the configuration is chosen, is incomplete.
    Hello(Handshakes),
    Chosen(UnbufferedServerConnection),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Nothing was received.
    New,
    Handshake,
    Established,
    /// The client has sent close_notify.
    Finished,
    /// The client broke the protocol. rustls must not be called again, as its state refers to bytes
    /// that were discarded.
    Broken,
}

/// The error when the client broke the protocol, or was refused; the alert was written.
#[derive(Debug)]
pub(crate) struct TlsBroken;

impl Tls {
    pub(crate) fn new(handshakes: Handshakes) -> Self {
        Self {
            stage: Stage::Hello(handshakes),
            received: Vec::new(),
            progress: Progress::New,
            certificates: 0,
        }
    }

    /// Decrypts bytes of the socket. Appends the client's bytes to `plain`, and TLS's own messages
    /// to `out`.
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
            (self.received, self.progress) = (Vec::new(), Progress::Broken);
        }
        opened
    }

    fn take(&mut self, octets: &[u8], plain: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<(), TlsBroken> {
        let mut received = std::mem::take(&mut self.received);
        received.reserve_exact(octets.len());
        received.extend_from_slice(octets);
        if let Stage::Hello(handshakes) = &self.stage {
            let Some(config) = choose(handshakes, &received) else {
                self.received = received;
                return Ok(());
            };
            let connection = UnbufferedServerConnection::new(config).map_err(|_| TlsBroken)?;
            self.stage = Stage::Chosen(connection);
        }
        let Stage::Chosen(connection) = &mut self.stage else { return Err(TlsBroken) };
        let (mut from, mut result) = (0, Ok(()));
        loop {
            let UnbufferedStatus { mut discard, state, .. } =
                connection.process_tls_records(&mut received[from..]);
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
            // After a failure the loop writes the queued records, the alert last. The failed record
            // is not read again.
            if !goes_on || result.is_err() && !connection.wants_write() {
                break;
            }
        }
        if self.progress == Progress::Finished {
            received = Vec::new();
        } else if from > 0 {
            received = received[from..].to_vec();
        }
        self.received = received;
        if self.certificates == 0
            && let Some(certificates) = connection.peer_certificates()
        {
            self.certificates = certificates.iter().map(|certificate| certificate.len()).sum();
        }
        result
    }

    /// Encrypts bytes for the client, appending to `out`.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsBroken> {
        self.write(out, |traffic, room| traffic.encrypt(plain, room))
    }

    /// Appends close_notify to `out`.
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
            // Without a chosen configuration the handshake has not begun.
            let Stage::Chosen(connection) = &mut self.stage else { return Err(TlsBroken) };
            let UnbufferedStatus { discard, state, .. } = connection.process_tls_records(&mut self.received);
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
            self.received.drain(..discard);
            if written {
                return Ok(());
            }
        }
    }

    /// Whether the handshake has begun and is not complete.
    pub(crate) fn is_in_handshake(&self) -> bool {
        self.progress == Progress::Handshake
    }

    /// Whether the handshake is not complete.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.progress, Progress::New | Progress::Handshake)
    }

    /// Whether part of a record was received.
    pub(crate) fn is_half(&self) -> bool {
        self.is_in_handshake() || !self.received.is_empty()
    }

    /// Whether the client sends no more.
    pub(crate) fn is_finished(&self) -> bool {
        self.progress == Progress::Finished
    }

    /// Returns the bytes held for this client, without those that every connection has.
    pub(crate) fn held(&self) -> usize {
        self.received.capacity() + self.certificates
    }
}

/// Chooses the configuration by the ClientHello at the start of these bytes; `None` while it is
/// incomplete. Anything else is refused by the connection.
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

/// The content type of handshake messages (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// The most bytes of a record's content, encrypted or not.
const LARGEST_RECORD: usize = (1 << 14) + 2048;

type WriteTraffic<'c> = rustls::unbuffered::WriteTraffic<'c, rustls::server::ServerConnectionData>;

/// Calls `write` to append to `out`, with as much room as it needs.
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
