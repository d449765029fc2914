//! One query to one server, and its reply. Waits for as long as it is let: the time is the caller's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UdpSocket;

use crate::is_reply;

/// A socket at a port of its own that hears `server` alone, from `source` or wherever the machine sends from.
///
/// # Errors
/// What the kernel said: there is no way to that server, or no such address here.
pub async fn udp_socket(server: SocketAddr, source: Option<IpAddr>) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((source.unwrap_or_else(|| unspecified(server)), 0)).await?;
    socket.connect(server).await?;
    Ok(socket)
}

/// Sends `query` and waits for the reply to it; other datagrams are passed over.
///
/// # Errors
/// What the kernel said: as a rule that nobody is there.
pub async fn over_udp(socket: &UdpSocket, query: &[u8]) -> io::Result<Vec<u8>> {
    socket.send(query).await?;
    let mut reply = vec![0; LONGEST];
    loop {
        let length = socket.recv(&mut reply).await?;
        if is_reply(&reply[..length], query) {
            reply.truncate(length);
            return Ok(reply);
        }
    }
}

/// The same over TCP or TLS, with the length before the message (RFC 1035, section 4.2.2).
///
/// # Errors
/// What the kernel said, that the stream ended, or [`io::ErrorKind::InvalidData`] for a reply to something else.
pub async fn over_stream(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    query: &[u8],
) -> io::Result<Vec<u8>> {
    // In one piece: some servers take the length for a message of two octets.
    let framed = [&(query.len() as u16).to_be_bytes(), query].concat();
    stream.write_all(&framed).await?;
    stream.flush().await?;
    let mut reply = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut reply).await?;
    if is_reply(&reply, query) { Ok(reply) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// The address that a socket for this one is bound to where none is asked for.
pub fn unspecified(server: SocketAddr) -> IpAddr {
    if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// No datagram is longer that answers what we ask for: 512 octets without EDNS, [`wire::UDP_SIZE`] with it.
const LONGEST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query;
    use tokio::io::duplex;
    use wire::{Class, Flags, Name, RType};

    fn asked() -> Vec<u8> {
        query(7, Flags::RD, &Name::from_text("example.org").unwrap(), RType::A, Class::IN)
    }

    fn reply(id: u8) -> Vec<u8> {
        let mut reply = asked();
        (reply[1], reply[2]) = (id, 0x80);
        reply
    }

    #[tokio::test]
    async fn over_udp_other_datagrams_are_passed_over() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let socket = udp_socket(server.local_addr().unwrap(), None).await.unwrap();
        let answering = async {
            let mut octets = [0; 512];
            let (length, from) = server.recv_from(&mut octets).await.unwrap();
            assert_eq!(octets[..length], asked());
            for datagram in [&[][..], &reply(8), &asked(), &reply(7)] {
                server.send_to(datagram, from).await.unwrap();
            }
        };
        let query = asked();
        let (heard, ()) = tokio::join!(over_udp(&socket, &query), answering);
        assert_eq!(heard.unwrap(), reply(7));
    }

    #[tokio::test]
    async fn over_udp_it_is_known_that_nobody_is_there() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let socket = udp_socket(server.local_addr().unwrap(), None).await.unwrap();
        drop(server);
        let refused = over_udp(&socket, &asked()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn over_a_stream_messages_have_their_length_before_them() {
        for (id, heard) in [(7, Ok(reply(7))), (8, Err(io::ErrorKind::InvalidData))] {
            let (mut client, mut server) = duplex(512);
            let answering = async {
                let mut octets = vec![0; usize::from(server.read_u16().await.unwrap())];
                server.read_exact(&mut octets).await.unwrap();
                assert_eq!(octets, asked());
                server.write_u16(reply(id).len() as u16).await.unwrap();
                server.write_all(&reply(id)).await.unwrap();
            };
            let query = asked();
            let (said, ()) = tokio::join!(over_stream(&mut client, &query), answering);
            assert_eq!(said.map_err(|error| error.kind()), heard);
        }
        let (mut client, server) = duplex(512);
        drop(server);
        assert!(over_stream(&mut client, &asked()).await.is_err(), "it ended");
    }
}
