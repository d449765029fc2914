//! Sends headers of the PROXY protocol to both servers, which answer with the client's address.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use tests::{Ask, Message, Server, fresh_ip, port};

use crate::coredns::CoreDns;

/// The differences of the clients that both servers see, one line each.
pub(crate) fn differences(program: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for properties in [
        "",
        "default use",
        "default ignore",
        "default reject",
        "default skip",
        "allow 192.0.2.0/24",
        "allow 192.0.2.0/24\ndefault reject",
        "allow 127.0.0.0/8\ndefault reject",
    ] {
        let block = |ip| format!(".:{} {{\nbind {ip}\nproxyproto {{\n{properties}\n}}\nwhoami\n}}\n", port());
        let ips = [fresh_ip(), fresh_ip()];
        let _coredns = CoreDns::start(program, &block(ips[0]));
        let _ours = Server::start(&block(ips[1]));
        for (name, header) in headers() {
            for (transport, seen) in [("tcp", over_tcp as fn(Ipv4Addr, &[u8]) -> String), ("udp", over_udp)] {
                let [theirs, ours] = ips.map(|ip| seen(ip, &header));
                if theirs != ours {
                    found.push(format!(
                        "{properties:?} {name:?} over {transport}: CoreDNS {theirs}, localdns {ours}"
                    ));
                }
            }
        }
    }
    found
}

/// Headers of every kind, valid or not.
fn headers() -> Vec<(&'static str, Vec<u8>)> {
    let v2 = |command: u8, kind: u8, body: &[u8]| {
        let length = (body.len() as u16).to_be_bytes();
        [b"\r\n\r\n\0\r\nQUIT\n", &[command, kind][..], &length, body].concat()
    };
    let four = [198, 51, 100, 1, 192, 0, 2, 53, 0x0f, 0xa0, 0, 53];
    let six = [&[0x20, 0x01, 0x0d, 0xb8][..], &[0; 11], &[7], &[0; 16], &[0x0f, 0xa0, 0, 53]].concat();
    vec![
        ("none", Vec::new()),
        ("line", b"PROXY TCP4 198.51.100.1 192.0.2.53 4000 53\r\n".to_vec()),
        ("line of IPv6", b"PROXY TCP6 2001:db8::7 ::1 4000 53\r\n".to_vec()),
        ("line of nothing known", b"PROXY UNKNOWN\r\n".to_vec()),
        ("line with another family", b"PROXY TCP6 198.51.100.1 192.0.2.53 4000 53\r\n".to_vec()),
        ("line with a zero", b"PROXY TCP4 198.51.100.1 192.0.2.53 04000 53\r\n".to_vec()),
        ("line without CR", b"PROXY TCP4 198.51.100.1 192.0.2.53 4000 53\n".to_vec()),
        ("stream", v2(0x21, 0x11, &four)),
        ("datagram", v2(0x21, 0x12, &four)),
        ("stream of IPv6", v2(0x21, 0x21, &six)),
        ("datagram of IPv6", v2(0x21, 0x22, &six)),
        ("options", v2(0x21, 0x12, &[&four[..], b"\x05\0\x01x"].concat())),
        ("own datagram", v2(0x20, 0x12, &four)),
        ("own connection", v2(0x20, 0x00, b"")),
        ("own connection without addresses", v2(0x20, 0x11, b"")),
        ("no family", v2(0x21, 0x00, b"")),
        ("short", v2(0x21, 0x11, &four[1..])),
        ("unknown transport", v2(0x21, 0x13, &four)),
        ("unknown version", v2(0x31, 0x11, &four)),
    ]
}

fn query() -> Vec<u8> {
    Ask::new("a.test", "A").bytes()
}

/// The client that `whoami` names, without the port of a client that the test chose itself.
fn client(reply: &[u8]) -> String {
    let message = Message::decode(reply).expect("a reply can be read");
    let data = |rtype| {
        let found = message.additionals.iter().find(|record| record.rtype == rtype);
        found.map(|record| record.data.clone()).unwrap_or_default()
    };
    let from_header = data(33).contains(" 4000 ");
    format!("{}{}{}", data(1), data(28), if from_header { " port 4000" } else { "" })
}

fn over_tcp(ip: Ipv4Addr, header: &[u8]) -> String {
    let mut stream = TcpStream::connect((ip, port())).expect("it accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout is set");
    let query = query();
    let sent = [header, &(query.len() as u16).to_be_bytes(), &query].concat();
    let mut length = [0; 2];
    if stream.write_all(&sent).is_err() || stream.read_exact(&mut length).is_err() {
        return "no reply".to_owned();
    }
    let mut reply = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut reply).expect("the rest of the reply arrives");
    client(&reply)
}

fn over_udp(ip: Ipv4Addr, header: &[u8]) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout is set");
    socket.connect(SocketAddr::from((ip, port()))).expect("UDP connects");
    socket.send(&[header, &query()].concat()).expect("a query is sent");
    // A query without a header shows that the one before has no reply; it has another id.
    let bare = Ask::new("b.test", "A").id(9).bytes();
    socket.send(&bare).expect("a query is sent");
    let mut buffer = [0; 512];
    let (mut seen, mut is_bare_seen) = (String::from("no reply"), false);
    while let Ok(length) = socket.recv(&mut buffer) {
        if buffer[..2] == [0, 9] {
            is_bare_seen = true;
            // Replies of CoreDNS may change places.
            socket.set_read_timeout(Some(PATIENCE / 4)).expect("a timeout is set");
        } else {
            seen = client(&buffer[..length]);
        }
        if is_bare_seen && seen != "no reply" {
            break;
        }
    }
    assert!(is_bare_seen, "a query without a header is answered");
    seen
}

/// How long a server that keeps a connection open without a reply is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
