//! Encodes messages of clients and upstreams.

use std::time::Duration;

use wire::{Flags, Name, Rcode};

/// A client's query.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub name: &'a str,
    pub rtype: u16,
    pub recursion: bool,
    pub checking_disabled: bool,
    /// Some: with an OPT; true: with DO.
    pub dnssec_ok: Option<bool>,
    /// The last byte of a client subnet of 24 bits.
    pub subnet: Option<u8>,
    pub tcp: bool,
    pub block: u64,
    pub patience: Option<Duration>,
    pub asker: u128,
}

impl<'a> Question<'a> {
    pub fn new(name: &'a str) -> Self {
        Self {
            name,
            rtype: 1,
            recursion: true,
            checking_disabled: false,
            dnssec_ok: None,
            subnet: None,
            tcp: false,
            block: 0,
            patience: None,
            asker: 1,
        }
    }
}

pub fn query(question: &Question<'_>) -> Vec<u8> {
    let mut flags = 0;
    if question.recursion {
        flags |= Flags::RD;
    }
    if question.checking_disabled {
        flags |= Flags::CD;
    }
    let opt = question.dnssec_ok.is_some() || question.subnet.is_some();
    let mut bytes = header(0x1234, flags, [1, 0, 0, u16::from(opt)]);
    bytes.extend_from_slice(Name::from_text(question.name).unwrap().as_wire());
    bytes.extend_from_slice(&question.rtype.to_be_bytes());
    bytes.extend_from_slice(&[0, 1]);
    if opt {
        let dnssec_ok = if question.dnssec_ok == Some(true) { 0x80 } else { 0 };
        bytes.extend_from_slice(&[0, 0, 41, 16, 0, 0, 0, dnssec_ok, 0]);
        match question.subnet {
            Some(last) => bytes.extend_from_slice(&[0, 11, 0, 8, 0, 7, 0, 1, 24, 0, 192, 0, last]),
            None => bytes.extend_from_slice(&[0, 0]),
        }
    }
    bytes
}

/// Returns a reply with one address, 192.0.2.1.
pub fn answer(query: &[u8]) -> Vec<u8> {
    let mut reply = with_rcode(query, Rcode::NOERROR);
    reply[7] = 1;
    reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 0, 0, 4, 192, 0, 2, 1]);
    reply
}

/// Returns a reply without records and without OPT.
pub fn with_rcode(query: &[u8], rcode: Rcode) -> Vec<u8> {
    let id = u16::from_be_bytes([query[0], query[1]]);
    let mut reply = header(id, Flags::QR | Flags::RD | Flags::RA | rcode.0, [1, 0, 0, 0]);
    reply.extend_from_slice(question_of(query));
    reply
}

/// Returns a reply without records and with TC.
pub fn truncated(query: &[u8]) -> Vec<u8> {
    let mut reply = with_rcode(query, Rcode::NOERROR);
    reply[2] |= 0x02;
    reply
}

/// Returns the question section of a query or reply.
pub fn question_of(message: &[u8]) -> &[u8] {
    let (_, end) = Name::read_plain(message, 12).unwrap();
    &message[12..end + 4]
}

pub fn has_opt(query: &[u8]) -> bool {
    query[11] == 1
}

fn header(id: u16, flags: u16, counts: [u16; 4]) -> Vec<u8> {
    [id, flags].into_iter().chain(counts).flat_map(u16::to_be_bytes).collect()
}

/// Adds an OPT to a reply; `upper` are the upper bits of the rcode.
pub fn with_opt(mut reply: Vec<u8>, upper: u8) -> Vec<u8> {
    reply[11] += 1;
    reply.extend_from_slice(&[0, 0, 41, 4, 208, upper, 0, 0, 0, 0, 0]);
    reply
}

/// Returns the data of a query's client subnet option, the only option that the forwarder sends.
pub fn subnet_of(query: &[u8]) -> Option<&[u8]> {
    let options = query.get(12 + question_of(query).len() + 11..)?;
    options.get(4..)
}

/// Adds an OPT with this client subnet to a reply.
pub fn with_subnet(mut reply: Vec<u8>, subnet: &[u8]) -> Vec<u8> {
    let length = subnet.len() as u8;
    reply[11] += 1;
    reply.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, length + 4, 0, 8, 0, length]);
    reply.extend_from_slice(subnet);
    reply
}
