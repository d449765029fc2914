//! A client that reads transfers, as slowly as a test wants, and checks every record.

use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};
use testkit::{Ask, Connection};
use wire::{HEADER, Name, RType, Records, Section};

use super::zone::owner;

/// The received part of a transfer.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) rcode: u16,
    /// Number of records other than SOA.
    pub(crate) records: u32,
    /// The serial of each SOA.
    pub(crate) serials: Vec<u32>,
    pub(crate) octets: usize,
}

impl Received {
    /// Parses one message.
    pub(crate) fn of(message: &[u8]) -> Self {
        let mut received = Self::default();
        received.add(message);
        received
    }

    fn add(&mut self, message: &[u8]) {
        let number = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
        self.rcode = number(2) & 15;
        self.octets += message.len();
        let start = if number(4) == 0 { HEADER } else { Name::read(message, HEADER).unwrap().1 + 4 };
        for record in Records::new(message, start, [number(6), number(8), number(10)]) {
            let record = record.unwrap();
            if record.section != Section::Answer {
                continue;
            }
            let data = record.data(message);
            if record.rtype == RType::SOA {
                let numbers = data.len() - 20;
                self.serials.push(u32::from_be_bytes(data[numbers..numbers + 4].try_into().unwrap()));
                continue;
            }
            self.records += 1;
            assert_eq!(Name::read(message, record.owner).unwrap().0, owner(self.records));
            match record.rtype {
                RType::A => assert_eq!(data, self.records.to_be_bytes()),
                _ => assert_eq!((record.rtype, data.len()), (RType::TXT, 60_000)),
            }
        }
    }
}

/// A reader of one transfer.
pub(crate) struct TransferReader {
    id: u16,
    expected: u32,
    received: Received,
}

impl TransferReader {
    /// Creates a reader that expects `expected` records between the SOAs.
    pub(crate) fn new(id: u16, expected: u32) -> Self {
        Self { id, expected, received: Received::default() }
    }

    /// Reads one message; returns whether it was the last.
    pub(crate) fn step(&mut self, client: &mut Connection) -> bool {
        let message = client.receive().unwrap();
        assert_eq!(message[..2], self.id.to_be_bytes());
        assert_eq!(message[2] & 0x84, 0x84, "an authoritative reply");
        let before = self.received.records;
        self.received.add(&message);
        assert!(message.len() <= 16 * 1024 || self.received.records - before <= 1, "{}", message.len());
        assert_eq!(self.received.rcode, 0);
        self.received.serials.len() == 2 && self.received.records == self.expected
    }

    /// Reads to the end.
    pub(crate) fn read(mut self, client: &mut Connection) -> Received {
        while !self.step(client) {}
        self.received
    }
}

/// Opens a connection with a small receive buffer.
pub(crate) fn narrow(server: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&server.into()).unwrap();
    socket.into()
}

/// Returns an IXFR query for `example` from a client that has this version (RFC 1995, section 3).
pub(crate) fn ixfr(serial: u32) -> Vec<u8> {
    let mut message = Ask::new("example", "IXFR").bytes();
    message[9] = 1;
    message.extend_from_slice(b"\xc0\x0c\0\x06\0\x01\0\0\0\0\0\x16\0\0");
    message.extend_from_slice(&serial.to_be_bytes());
    message.extend_from_slice(&[0; 16]);
    message
}
