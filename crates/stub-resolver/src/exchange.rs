//! One query to one server, and its reply. Has no timeout: the caller sets it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UdpSocket;

use crate::is_reply;

/// A UDP socket on an ephemeral port, connected to `server`, with the address `source` or the machine's choice.
///
/// # Errors
/// The kernel's: no route to the server, or no such source address.
pub async fn udp_socket(server: SocketAddr, source: Option<IpAddr>) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((source.unwrap_or_else(|| unspecified(server)), 0)).await?;
    socket.connect(server).await?;
    Ok(socket)
}

/// Sends `query` and waits for its reply; other datagrams are ignored.
///
/// # Errors
/// The kernel's, usually that no process listens there.
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

/// Sends `query` over TCP or TLS, where a message is preceded by its length (RFC 1035, section
/// 4.2.2), and waits for its reply.
///
/// # Errors
/// The kernel's, the end of the stream, or [`io::ErrorKind::InvalidData`] for a reply to another query.
pub async fn over_stream(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    query: &[u8],
) -> io::Result<Vec<u8>> {
    // In one write: some servers treat a separate length as a message of two bytes.
    let framed = [&(query.len() as u16).to_be_bytes(), query].concat();
    stream.write_all(&framed).await?;
    stream.flush().await?;
    let mut reply = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut reply).await?;
    if is_reply(&reply, query) { Ok(reply) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Returns the unspecified address of the family of `server`.
pub fn unspecified(server: SocketAddr) -> IpAddr {
    if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Maximum size of a reply in bytes: 512 without EDNS, [`wire::UDP_SIZE`] with it.
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
    async fn udp_ignores_other_datagrams() {
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
    async fn udp_port_unreachable() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let socket = udp_socket(server.local_addr().unwrap(), None).await.unwrap();
        drop(server);
        let refused = over_udp(&socket, &asked()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn stream_length_prefix() {
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
            let (result, ()) = tokio::join!(over_stream(&mut client, &query), answering);
            assert_eq!(result.map_err(|error| error.kind()), heard);
        }
        let (mut client, server) = duplex(512);
        drop(server);
        assert!(over_stream(&mut client, &asked()).await.is_err(), "it ended");
    }
}
