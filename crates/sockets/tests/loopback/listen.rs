//! Listen sockets over loopback.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use crate::support::{PATIENCE, client, reply, wait_for};
use sockets::{BATCH, ListenOptions, ListenSocket, Local, RecvBatch, SendBatch, tcp_listener};

#[test]
fn batch_roundtrip() -> io::Result<()> {
    for loopback in ["127.0.0.1", "::1"] {
        let server = listen(loopback)?;
        let clients = clients(loopback, server.local_addr(), BATCH)?;
        for (i, client) in clients.iter().enumerate() {
            client.send(format!("question {i}").as_bytes())?;
        }
        let (mut batch, mut replies) = (RecvBatch::new(BATCH, 4096), SendBatch::new(BATCH, 512, 4096));
        let mut seen = 0;
        while seen < BATCH {
            wait_for(&server)?;
            seen += server.receive(&mut batch)?;
            for datagram in batch.iter() {
                assert_eq!((datagram.local, datagram.truncated), (None, false));
                let reply = replies.slot().expect("as many slots as datagrams");
                assert!(reply.is_empty());
                reply.extend_from_slice(datagram.bytes);
                reply.extend_from_slice(b", answered");
                replies.commit(datagram.peer, datagram.local);
            }
            let sent = server.send(&mut replies);
            assert_eq!((sent.sent, sent.refused, sent.dropped), (batch.len(), 0, 0), "{sent:?}");
            assert!(replies.is_empty());
        }
        for (i, client) in clients.iter().enumerate() {
            assert_eq!(hear(client)?, format!("question {i}, answered").as_bytes());
        }
        assert_eq!(server.receive(&mut batch)?, 0);
        assert!(batch.is_empty() && batch.iter().next().is_none());
    }
    Ok(())
}

#[test]
fn bad_destination_is_skipped() -> io::Result<()> {
    let server = listen("127.0.0.1")?;
    let clients = clients("127.0.0.1", server.local_addr(), BATCH)?;
    let mut replies = SendBatch::new(BATCH, 512, 4096);
    for bad in [vec![0], vec![31], vec![63], vec![0, 1, 2, 62, 63], (0..BATCH).collect()] {
        for (i, client) in clients.iter().enumerate() {
            let peer = match bad.contains(&i) {
                true if i % 2 == 0 => SocketAddr::from(([127, 0, 0, 1], 0)),
                true => "[::1]:53".parse().expect("the other family"),
                false => client.local_addr()?,
            };
            assert!(reply(&mut replies, &peer, None, &[i as u8]));
        }
        assert!(replies.is_full());
        assert!(!reply(&mut replies, &server.local_addr(), None, b"one too many"));
        assert!(replies.slot().is_none());
        let sent = server.send(&mut replies);
        assert_eq!((sent.sent, sent.refused, sent.dropped), (BATCH - bad.len(), bad.len(), 0), "{bad:?}");
        assert!(sent.error.is_some());
        for (i, client) in clients.iter().enumerate().filter(|(i, _)| !bad.contains(i)) {
            assert_eq!(hear(client)?, [i as u8], "{bad:?}");
        }
    }
    Ok(())
}

#[test]
fn uncommitted_slot_is_reused() -> io::Result<()> {
    let server = listen("127.0.0.1")?;
    let client = client("127.0.0.1", server.local_addr())?;
    let mut replies = SendBatch::new(2, 512, 4096);
    replies.slot().expect("free").extend_from_slice(b"thought better of");
    replies.slot().expect("free").extend_from_slice(b"reply");
    replies.commit(&client.local_addr()?.into(), None);
    assert!(!replies.is_empty());
    assert_eq!(server.send(&mut replies).sent, 1);
    assert_eq!(hear(&client)?, b"reply");
    Ok(())
}

#[test]
fn long_datagram_is_truncated() -> io::Result<()> {
    let server = listen("127.0.0.1")?;
    let client = client("127.0.0.1", server.local_addr())?;
    let mut batch = RecvBatch::new(4, 512);
    for (bytes, kept, truncated) in
        [(0, 0, false), (511, 511, false), (512, 512, false), (513, 512, true), (9000, 512, true)]
    {
        client.send(&vec![7; bytes])?;
        wait_for(&server)?;
        assert_eq!(server.receive(&mut batch)?, 1);
        let datagram = batch.get(0);
        assert_eq!((datagram.bytes.len(), datagram.truncated), (kept, truncated), "{bytes} bytes");
        assert_eq!(datagram.peer.address(), client.local_addr()?);
    }
    Ok(())
}

#[test]
fn wildcard_answers_from_the_asked_address() -> io::Result<()> {
    let rows: [(&str, &[(&str, &str)]); 2] =
        [("0.0.0.0", &[("127.0.0.5", "127.0.0.1"), ("127.0.0.6", "127.0.0.9")]), ("::", &[("::1", "::1")])];
    for (wildcard, asked) in rows {
        let server = listen(wildcard)?;
        let port = server.local_addr().port();
        let (mut batch, mut replies) = (RecvBatch::new(BATCH, 512), SendBatch::new(BATCH, 512, 4096));
        for (address, source) in asked {
            let address: IpAddr = address.parse().expect("an address");
            // Connected: it receives from `address` only.
            let client = client(source, SocketAddr::new(address, port))?;
            client.send(b"query")?;
            wait_for(&server)?;
            assert_eq!(server.receive(&mut batch)?, 1);
            let datagram = batch.get(0);
            assert_eq!(datagram.local.map(|local| local.address), Some(address));
            reply(&mut replies, &datagram.peer.address(), datagram.local, b"the one you asked");
            assert_eq!(server.send(&mut replies).sent, 1);
            assert_eq!(hear(&client)?, b"the one you asked");
        }
    }
    Ok(())
}

#[test]
fn foreign_source_address_fails() -> io::Result<()> {
    let server = listen("0.0.0.0")?;
    let client = client("127.0.0.1", SocketAddr::from(([127, 0, 0, 1], server.local_addr().port())))?;
    let mut replies = SendBatch::new(2, 512, 4096);
    let foreign = Local { address: IpAddr::from([192, 0, 2, 1]), interface: 0 };
    reply(&mut replies, &client.local_addr()?, Some(foreign), b"forged");
    reply(&mut replies, &client.local_addr()?, None, b"honest");
    let sent = server.send(&mut replies);
    assert_eq!((sent.sent, sent.refused), (1, 1), "{sent:?}");
    assert_eq!(hear(&client)?, b"honest");
    Ok(())
}

/// Siblings share an address, another process cannot bind it.
#[test]
fn bind_first_is_exclusive() -> io::Result<()> {
    for loopback in ["127.0.0.1", "::1", "0.0.0.0", "::"] {
        let options = ListenOptions::default();
        let first = listen(loopback)?;
        let addr = first.local_addr();
        assert_ne!(addr.port(), 0);
        let refused = || ListenSocket::bind_first(addr, &options).expect_err("taken").kind();
        assert_eq!(refused(), ErrorKind::AddrInUse, "{loopback}");
        let second = first.bind_sibling()?;
        assert_eq!(second.local_addr(), addr);
        assert_eq!(refused(), ErrorKind::AddrInUse, "{loopback}");
        drop(first);
        assert_eq!(refused(), ErrorKind::AddrInUse, "{loopback}");
        let third = second.bind_sibling()?;
        drop((second, third));
        ListenSocket::bind_first(addr, &options)?;
    }
    Ok(())
}

#[test]
fn siblings_share_the_clients() -> io::Result<()> {
    let first = listen("127.0.0.1")?;
    let second = first.bind_sibling()?;
    for client in clients("127.0.0.1", first.local_addr(), BATCH)? {
        client.send(b"anybody")?;
    }
    let mut batch = RecvBatch::new(BATCH, 512);
    let mut counts = [0, 0];
    while counts[0] + counts[1] < BATCH {
        for (socket, count) in [&first, &second].into_iter().zip(&mut counts) {
            *count += socket.receive(&mut batch)?;
        }
    }
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
    Ok(())
}

/// New datagrams reach only the first sockets; later sockets keep their queues.
#[test]
fn spread_over_the_first_sockets() -> io::Result<()> {
    for (bound, loopback) in
        [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1"), ("::", "::1")]
    {
        let mut all = vec![listen(bound)?];
        assert!(all[0].spread_over(1).is_err(), "{bound}: there is nothing to spread over");
        let at = SocketAddr::new(loopback.parse().expect("an address"), all[0].local_addr().port());
        let mut batch = RecvBatch::new(4 * BATCH, 512);
        let send = |n: usize, text: &str| -> io::Result<()> {
            for client in clients(loopback, at, n)? {
                client.send(text.as_bytes())?;
            }
            Ok(())
        };
        for _ in 1..4 {
            let sibling = all[0].bind_sibling()?;
            all.push(sibling);
        }
        send(BATCH, "before")?;
        // Any of them may be called.
        all[3].spread_over(2)?;
        send(BATCH, "after")?;
        let mut sum = 0;
        for (nth, socket) in all.iter().enumerate() {
            // Loopback delivers before `send` returns.
            sum += socket.receive(&mut batch)?;
            let after = batch.iter().filter(|datagram| datagram.bytes == b"after").count();
            assert_eq!(after > 0, nth < 2, "{bound}: {after} for socket {nth}");
        }
        assert_eq!(sum, 2 * BATCH, "{bound}: every datagram once");
        // In any order of closing and binding.
        all.remove(2);
        all.truncate(2);
        for _ in 0..3 {
            let sibling = all[0].bind_sibling()?;
            all.push(sibling);
        }
        all[4].spread_over(4)?;
        send(2 * BATCH, "again")?;
        let counts: Vec<usize> =
            all.iter().map(|socket| socket.receive(&mut batch)).collect::<io::Result<_>>()?;
        assert!(counts[..4].iter().all(|count| *count > 0) && counts[4] == 0, "{bound}: {counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), 2 * BATCH, "{bound}");
    }
    Ok(())
}

#[test]
fn ipv4_and_ipv6_wildcards() -> io::Result<()> {
    let v4 = listen("0.0.0.0")?;
    let v6 = SocketAddr::new(IpAddr::from([0u16; 8]), v4.local_addr().port());
    ListenSocket::bind_first(v6, &ListenOptions::default())?;
    let tcp = tcp_listener(SocketAddr::from(([0, 0, 0, 0], 0)), 8, true)?;
    tcp_listener(SocketAddr::new(IpAddr::from([0u16; 8]), tcp.local_addr()?.port()), 8, true)?;
    Ok(())
}

#[test]
fn handed_over_socket_keeps_its_queue() -> io::Result<()> {
    let server = listen("0.0.0.0")?;
    let port = server.local_addr().port();
    let client = client("127.0.0.1", SocketAddr::from(([127, 0, 0, 5], port)))?;
    client.send(b"waiting")?;
    wait_for(&server)?;
    let heir = ListenSocket::from_owned_fd(server.as_fd().try_clone_to_owned()?, &ListenOptions::default())?;
    drop(server);
    assert_eq!(heir.local_addr().port(), port);
    let mut batch = RecvBatch::new(BATCH, 512);
    assert_eq!(heir.receive(&mut batch)?, 1);
    assert_eq!(batch.get(0).bytes, b"waiting");
    assert_eq!(batch.get(0).local.map(|local| local.address), Some(IpAddr::from([127, 0, 0, 5])));
    heir.bind_sibling()?;
    Ok(())
}

/// With CAP_NET_ADMIN the receive buffer may exceed the kernel's limit.
#[test]
fn receive_buffer_size() -> io::Result<()> {
    let options = ListenOptions::default();
    // The kernel doubles the number for its overhead.
    let wanted = 2 * options.receive_buffer_bytes;
    if !may_force() {
        testkit::skip(
            "receive_buffer_size",
            "without CAP_NET_ADMIN the kernel gives at most net.core.rmem_max",
        );
        return Ok(());
    }
    let first = ListenSocket::bind_first(SocketAddr::from(([127, 0, 0, 1], 0)), &options)?;
    let sibling = first.bind_sibling()?;
    let wildcard = listen("0.0.0.0")?;
    let beside = SocketAddr::from(([127, 0, 0, 1], wildcard.local_addr().port()));
    let beside = ListenSocket::bind_beside(beside, &options)?;
    // An earlier process or a service manager may have set less.
    let left = UdpSocket::bind("127.0.0.1:0")?;
    assert!(socket2::SockRef::from(&left).recv_buffer_size()? < wanted);
    let heir = ListenSocket::from_owned_fd(left.into(), &options)?;
    for (what, socket) in
        [("first", first), ("sibling", sibling), ("wildcard", wildcard), ("beside", beside), ("heir", heir)]
    {
        let bytes = socket2::SockRef::from(&socket).recv_buffer_size()?;
        assert!(bytes >= wanted && bytes >= 8 << 20, "{what}: {bytes}");
    }
    Ok(())
}

/// Whether this process has CAP_NET_ADMIN, capability 12.
fn may_force() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("every process has one");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.is_some_and(|set| u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set >> 12 & 1 == 1))
}

#[test]
fn takeover_needs_a_bound_udp_socket() -> io::Result<()> {
    let unbound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    let local = std::os::unix::net::UnixDatagram::unbound()?;
    let rows: [(&str, OwnedFd); 4] = [
        ("tcp", TcpListener::bind("127.0.0.1:0")?.into()),
        ("unbound", unbound.into()),
        ("unix", local.into()),
        ("file", std::fs::File::open("/dev/null")?.into()),
    ];
    for (what, fd) in rows {
        assert!(ListenSocket::from_owned_fd(fd, &ListenOptions::default()).is_err(), "{what}");
    }
    Ok(())
}

#[test]
fn kernel_drops_are_counted() -> io::Result<()> {
    const FLOOD: u32 = 500;
    let small = ListenOptions { receive_buffer_bytes: 1 };
    let server = ListenSocket::bind_first(SocketAddr::from(([127, 0, 0, 1], 0)), &small)?;
    let client = client("127.0.0.1", server.local_addr())?;
    let mut batch = RecvBatch::new(BATCH, 512);
    client.send(b"before")?;
    wait_for(&server)?;
    server.receive(&mut batch)?;
    assert_eq!(batch.kernel_drops(), None);
    for _ in 0..FLOOD {
        client.send(&[0; 400])?;
    }
    let mut received = 0;
    loop {
        // Each datagram carries the count at its arrival, so one more is needed to see the last
        // drops.
        client.send(b"after")?;
        wait_for(&server)?;
        while server.receive(&mut batch)? > 0 {
            received += batch.iter().filter(|datagram| datagram.bytes.len() == 400).count() as u32;
            if batch.get(batch.len() - 1).bytes == b"after" {
                let dropped = batch.kernel_drops().expect("a flood does not fit");
                assert!(dropped > 0 && received + dropped >= FLOOD, "{received} + {dropped}");
                return Ok(());
            }
        }
    }
}

#[test]
fn tcp_listener_is_exclusive() -> io::Result<()> {
    for loopback in ["127.0.0.1", "::1"] {
        let addr = SocketAddr::new(loopback.parse().expect("an address"), 0);
        let first = tcp_listener(addr, 128, true)?;
        let addr = first.local_addr()?;
        assert_eq!(tcp_listener(addr, 128, true).expect_err("taken").kind(), ErrorKind::AddrInUse);
        let second = tcp_listener(addr, 128, false)?;
        assert_eq!(tcp_listener(addr, 128, true).expect_err("taken").kind(), ErrorKind::AddrInUse);
        assert_eq!(first.accept().expect_err("no client has connected").kind(), ErrorKind::WouldBlock);

        let streams = (0..BATCH).map(|_| TcpStream::connect(addr)).collect::<io::Result<Vec<_>>>()?;
        let mut accepted = [Vec::new(), Vec::new()];
        while accepted[0].len() + accepted[1].len() < streams.len() {
            for (listener, accepted) in [&first, &second].into_iter().zip(&mut accepted) {
                accepted.extend(listener.accept().ok());
            }
        }
        assert!(accepted.iter().all(|accepted| !accepted.is_empty()), "one listener got them all");

        // The server's end closes first and lingers in TIME_WAIT; the next start is not delayed.
        drop((accepted, first, second));
        for mut stream in streams {
            assert_eq!(stream.read(&mut [0])?, 0);
        }
        tcp_listener(addr, 128, true)?;
    }
    Ok(())
}

fn listen(address: &str) -> io::Result<ListenSocket> {
    let addr = SocketAddr::new(address.parse().expect("an address"), 0);
    ListenSocket::bind_first(addr, &ListenOptions::default())
}

fn clients(source: &str, server: SocketAddr, count: usize) -> io::Result<Vec<UdpSocket>> {
    (0..count).map(|_| client(source, server)).collect()
}

fn hear(client: &UdpSocket) -> io::Result<Vec<u8>> {
    client.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = vec![0; 4096];
    let len = client.recv(&mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}
