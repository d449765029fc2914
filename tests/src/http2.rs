//! A client of HTTP/2 that sends and receives single frames (RFC 9113), also wrong ones.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use crate::tcp::Connection;

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The type.
    pub kind: u8,
    /// The flags.
    pub flags: u8,
    /// The stream; 0 for the connection.
    pub stream: u32,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame with this payload.
    pub fn new(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    /// The frame in wire format.
    pub fn octets(&self) -> Vec<u8> {
        let length = (self.payload.len() as u32).to_be_bytes();
        let mut octets = length[1..].to_vec();
        octets.extend_from_slice(&[self.kind, self.flags]);
        octets.extend_from_slice(&self.stream.to_be_bytes());
        octets.extend_from_slice(&self.payload);
        octets
    }
}

/// A connection after its preface.
#[derive(Debug)]
pub struct Http2 {
    connection: Connection,
    /// The server's settings, by number.
    pub settings: BTreeMap<u16, u32>,
    /// The next stream.
    next: u32,
    /// The bodies received so far.
    bodies: BTreeMap<u32, Vec<u8>>,
    /// Streams that have ended, with the error code of a reset.
    ended: BTreeMap<u32, Option<u32>>,
}

impl Http2 {
    /// Sends the preface with these settings, and reads the server's.
    ///
    /// # Errors
    /// The connection's end, or another first frame.
    pub fn begin(mut connection: Connection, settings: &[(u16, u32)]) -> Result<Self> {
        connection.send_octets(&[PREFACE, &settings_frame(settings).octets()[..]].concat())?;
        let (settings, bodies, ended) = Default::default();
        let mut client = Self { connection, settings, next: 1, bodies, ended };
        let first = client.frame()?;
        ensure!(first.kind == SETTINGS && first.flags == 0, "{first:?}");
        for setting in first.payload.chunks_exact(6) {
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            client.settings.insert(u16::from_be_bytes([setting[0], setting[1]]), value);
        }
        client.send(&Frame::new(SETTINGS, ACK, 0, &[]))?;
        Ok(client)
    }

    /// The connection, for what is no frame.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The connection's end.
    pub fn send(&mut self, frame: &Frame) -> Result<()> {
        self.connection.send_octets(&frame.octets())
    }

    /// The next frame.
    ///
    /// # Errors
    /// The connection's end, or a timeout.
    pub fn frame(&mut self) -> Result<Frame> {
        let head = self.connection.receive_octets(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let payload = self.connection.receive_octets(length as usize)?;
        Ok(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Begins a POST of this body, and returns its stream. With `ends`, the body is complete.
    ///
    /// # Errors
    /// The connection's end.
    pub fn post(&mut self, body: &[u8], ends: bool) -> Result<u32> {
        let stream = self.next;
        self.next += 2;
        let mut octets = Frame::new(HEADERS, END_HEADERS, stream, &post_fields()).octets();
        octets.extend(Frame::new(DATA, u8::from(ends), stream, body).octets());
        self.connection.send_octets(&octets)?;
        Ok(stream)
    }

    /// Waits for the end of a stream; returns its body, and the error code of a reset.
    ///
    /// # Errors
    /// The connection's end, or a timeout.
    pub fn end_of(&mut self, stream: u32) -> Result<(Vec<u8>, Option<u32>)> {
        loop {
            if let Some(reset) = self.ended.remove(&stream) {
                return Ok((self.bodies.remove(&stream).unwrap_or_default(), reset));
            }
            let Frame { kind, flags, stream: of, payload } = self.frame()?;
            match kind {
                DATA => self.bodies.entry(of).or_default().extend_from_slice(&payload),
                RST_STREAM => {
                    let code = payload.first_chunk().map(|code| u32::from_be_bytes(*code));
                    self.ended.insert(of, code);
                }
                _ => {}
            }
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                self.ended.insert(of, None);
            }
        }
    }

    /// Waits for a frame of this type.
    ///
    /// # Errors
    /// The connection's end, or a timeout.
    pub fn wait_for(&mut self, kind: u8) -> Result<Frame> {
        loop {
            let frame = self.frame()?;
            if frame.kind == kind {
                return Ok(frame);
            }
        }
    }
}

/// A SETTINGS frame.
pub fn settings_frame(settings: &[(u16, u32)]) -> Frame {
    let setting = |&(number, value): &(u16, u32)| [&number.to_be_bytes()[..], &value.to_be_bytes()].concat();
    Frame::new(SETTINGS, 0, 0, &settings.iter().flat_map(setting).collect::<Vec<_>>())
}

/// The header block of a POST to `/dns-query`: `:method`, `:scheme`, `:path` and `:authority`
/// (RFC 7541, without Huffman codes).
pub fn post_fields() -> Vec<u8> {
    [&[0x83, 0x87, 0x04, 10][..], b"/dns-query", &[0x01, 1], b"x"].concat()
}

/// The client's first bytes.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames.
pub const DATA: u8 = 0;
/// A header block.
pub const HEADERS: u8 = 1;
/// The end of a stream by an error.
pub const RST_STREAM: u8 = 3;
/// The settings of a connection.
pub const SETTINGS: u8 = 4;
/// A question whether the peer lives.
pub const PING: u8 = 6;
/// The end of a connection.
pub const GOAWAY: u8 = 7;
/// More of a header block.
pub const CONTINUATION: u8 = 9;
/// The flag of a body's end.
pub const END_STREAM: u8 = 1;
/// The flag of an acknowledgement.
pub const ACK: u8 = 1;
/// The flag of a header block's end.
pub const END_HEADERS: u8 = 4;
