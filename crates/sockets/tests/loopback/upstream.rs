//! Upstream sockets over loopback.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::support::{PATIENCE, events_within, wait_for};
use sockets::{BATCH, RecvBatch, UpstreamSocket};

#[test]
fn upstream_roundtrip() -> io::Result<()> {
    const MESSAGES: usize = 2 * BATCH + 22;
    for loopback in ["127.0.0.1", "::1"] {
        let server = upstream(loopback)?;
        let socket = UpstreamSocket::connect(server.local_addr()?, std::iter::empty(), None)?;
        let messages: Vec<_> = (0..MESSAGES).map(|i| format!("message {i}")).collect();
        let sent =
            socket.send_batch(messages.iter().map(|text| text.as_bytes()), |i, error| panic!("{i}: {error}"));
        assert_eq!(sent.sent, MESSAGES);
        assert!(sent.upstream_error.is_none());
        let mut buffer = [0; 64];
        for message in &messages {
            let (len, peer) = server.recv_from(&mut buffer)?;
            assert_eq!((&buffer[..len], peer), (message.as_bytes(), socket.local_addr()));
            server.send_to(&buffer[..len], peer)?;
        }
        let mut batch = RecvBatch::new(BATCH, 65_535);
        let mut heard = Vec::new();
        while heard.len() < MESSAGES {
            wait_for(&socket)?;
            socket.receive(&mut batch)?;
            heard.extend(batch.iter().map(|reply| reply.bytes.to_vec()));
        }
        assert!(heard.iter().map(Vec::as_slice).eq(messages.iter().map(|text| text.as_bytes())));
        assert_eq!(socket.receive(&mut batch)?, 0);
    }
    Ok(())
}

#[test]
fn other_senders_are_ignored() -> io::Result<()> {
    let server = upstream("127.0.0.1")?;
    let socket = UpstreamSocket::connect(server.local_addr()?, std::iter::empty(), None)?;
    upstream("127.0.0.1")?.send_to(b"forged", socket.local_addr())?;
    server.send_to(b"genuine", socket.local_addr())?;
    wait_for(&socket)?;
    let mut batch = RecvBatch::new(BATCH, 512);
    assert_eq!(socket.receive(&mut batch)?, 1);
    assert_eq!(batch.get(0).bytes, b"genuine");
    Ok(())
}

#[test]
fn first_free_candidate_is_the_port() -> io::Result<()> {
    let server = upstream("127.0.0.31")?;
    let source: IpAddr = "127.0.0.32".parse().expect("an address");
    let held: Vec<_> = (0..8).map(|_| UdpSocket::bind((source, 0))).collect::<io::Result<_>>()?;
    let taken: Vec<_> = held.iter().map(UdpSocket::local_addr).collect::<io::Result<_>>()?;
    let taken: Vec<_> = taken.iter().map(SocketAddr::port).collect();
    let free = free_port("127.0.0.32")?;
    let connect = |candidates: &[u16]| {
        UpstreamSocket::connect(server.local_addr()?, candidates.iter().copied(), Some(source))
    };

    let rows = [vec![free], vec![taken[0], free], vec![53, 0, 1023, taken[3], free]];
    for candidates in rows {
        assert_eq!(connect(&candidates)?.local_addr(), SocketAddr::new(source, free), "{candidates:?}");
    }
    // Eight collisions: the kernel chooses, and the ninth candidate is not tried.
    let mut candidates = taken;
    candidates.push(free);
    let chosen = connect(&candidates)?.local_addr();
    assert_eq!(chosen.ip(), source);
    assert!(chosen.port() >= 1024 && !candidates[..8].contains(&chosen.port()), "{chosen}");
    Ok(())
}

#[test]
fn invalid_source_is_an_error() -> io::Result<()> {
    let server = upstream("127.0.0.1")?.local_addr()?;
    for (source, kind) in [("::1", ErrorKind::InvalidInput), ("192.0.2.1", ErrorKind::AddrNotAvailable)] {
        let source = source.parse().expect("an address");
        let error = UpstreamSocket::connect(server, [20_000].into_iter(), Some(source)).expect_err("unfit");
        assert_eq!(error.kind(), kind, "{source}");
    }
    Ok(())
}

#[test]
fn refusal_is_reported_once() -> io::Result<()> {
    for (loopback, unbound) in [("127.0.0.41", "127.0.0.41"), ("::1", "::1")] {
        let addr = SocketAddr::new(unbound.parse().expect("an address"), free_port(unbound)?);
        let socket = UpstreamSocket::connect(addr, std::iter::empty(), None)?;
        assert_eq!(socket.send_batch([b"hello".as_slice()], |i, error| panic!("{i}: {error}")).sent, 1);
        assert!(wait_for(&socket)?.error, "{loopback}");
        let mut batch = RecvBatch::new(BATCH, 512);
        let error = socket.receive(&mut batch).expect_err("no socket is bound there");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(batch.is_empty());
        assert_eq!(events_within(&socket, Duration::ZERO)?, None, "epoll would spin");
        assert_eq!(socket.receive(&mut batch)?, 0);

        let server = UdpSocket::bind(addr)?;
        assert_eq!(socket.send_batch([b"again".as_slice()], |i, error| panic!("{i}: {error}")).sent, 1);
        server.set_read_timeout(Some(PATIENCE))?;
        let mut buffer = [0; 16];
        assert_eq!(server.recv(&mut buffer)?, 5);
    }
    Ok(())
}

#[test]
fn refusal_while_sending_loses_no_message() -> io::Result<()> {
    const MESSAGES: usize = 40;
    let addr = SocketAddr::new("127.0.0.42".parse().expect("an address"), free_port("127.0.0.42")?);
    let socket = UpstreamSocket::connect(addr, std::iter::empty(), None)?;
    socket.send_batch([b"first".as_slice()], |i, error| panic!("{i}: {error}"));
    wait_for(&socket)?;
    let sent = socket.send_batch([b"more".as_slice(); MESSAGES], |i, error| panic!("{i}: {error}"));
    assert_eq!(sent.sent, MESSAGES);
    assert_eq!(sent.upstream_error.map(|error| error.kind()), Some(ErrorKind::ConnectionRefused));
    // Whatever else was refused meanwhile, epoll becomes quiet.
    let mut batch = RecvBatch::new(BATCH, 512);
    let mut looks = 0;
    while events_within(&socket, Duration::from_millis(1))?.is_some() {
        assert_eq!(socket.receive(&mut batch).expect_err("refused").kind(), ErrorKind::ConnectionRefused);
        looks += 1;
        assert!(looks <= MESSAGES, "epoll spins");
    }
    Ok(())
}

#[test]
fn oversized_message_fails_alone() -> io::Result<()> {
    let server = upstream("127.0.0.1")?;
    let socket = UpstreamSocket::connect(server.local_addr()?, std::iter::empty(), None)?;
    let long = vec![0; 70_000];
    for position in 0..3 {
        let mut messages = [b"fits".as_slice(); 3];
        messages[position] = &long;
        let mut failed = Vec::new();
        let sent = socket.send_batch(messages, |index, error| failed.push((index, error.raw_os_error())));
        assert_eq!(failed, [(position, Some(libc::EMSGSIZE))]);
        assert_eq!(sent.sent, 2);
        assert!(sent.upstream_error.is_none(), "{sent:?}");
        assert_eq!(events_within(&socket, Duration::ZERO)?, None, "epoll would spin");
    }
    Ok(())
}

fn upstream(address: &str) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// A free port on `address`, which no other test uses.
fn free_port(address: &str) -> io::Result<u16> {
    Ok(UdpSocket::bind((address, 0))?.local_addr()?.port())
}
