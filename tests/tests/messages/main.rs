//! Rules for messages, independent of plugins: which are dropped, refused, truncated, echoed; the
//! same over UDP, TCP and TLS.

mod streams;

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Deref;
use std::time::Duration;

use tests::{
    Action, Ask, Asked, Connection, Message, Metrics, Says, Server, Transport, Transports, Upstream, ask,
    eventually, exchange_udp, free_port, fresh_ip, header,
};

const PATIENCE: Duration = Duration::from_secs(5);

/// A message that is no query gets no reply.
#[test]
fn non_queries_are_dropped() {
    let dns = Dns::start();
    let query = Ask::new("a.example", "A").bytes();
    let mut response = query.clone();
    response[2] |= 0x80;
    let rows: [(&str, &[u8]); 4] = [
        ("a response", &response),
        ("eleven octets", &query[..11]),
        ("one octet", &query[..1]),
        ("nothing", &[]),
    ];
    for (what, octets) in rows {
        let reply = exchange_udp(dns.at, octets, Duration::from_millis(200));
        assert!(reply.is_err(), "{what} was answered");
        for mut connection in dns.connections(PATIENCE) {
            assert!(connection.exchange(octets).is_err(), "{what} was answered over a stream");
            assert!(connection.is_closed_by_peer(), "{what} did not end its connection");
        }
    }
    dns.assert_serves();
}

#[test]
fn malformed_messages_get_standard_rcodes() {
    const QUERY: u16 = 0x0100;
    let question = b"\x01a\x07example\x00\x00\x01\x00\x01".as_slice();
    let opt = b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00".as_slice();
    let rr = b"\x01a\x07example\x00\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\xc0\x00\x02\x01".as_slice();
    let opcode = |code: u16| code << 11;
    // A description, flags, counts, the bytes behind the header, and the rcode.
    type Row<'r> = (&'r str, u16, [u16; 4], Vec<&'r [u8]>, u16);
    let rows: [Row<'_>; 16] = [
        ("no question", QUERY, [0, 0, 0, 0], vec![], 1),
        ("two questions", QUERY, [2, 0, 0, 0], vec![question, question], 1),
        ("65,535 questions", QUERY, [0xffff, 0, 0, 0], vec![question], 1),
        ("a question cut off", QUERY, [1, 0, 0, 0], vec![&question[..7]], 1),
        ("a pointer to itself", QUERY, [1, 0, 0, 0], vec![b"\xc0\x0c\x00\x01\x00\x01"], 1),
        ("a label of 64 octets", QUERY, [1, 0, 0, 0], vec![&[64; 65], &[0, 0, 1, 0, 1]], 1),
        ("two answers", QUERY, [1, 2, 0, 0], vec![question, rr, rr], 1),
        ("two authorities", QUERY, [1, 0, 2, 0], vec![question, rr, rr], 1),
        ("three additionals", QUERY, [1, 0, 0, 3], vec![question, rr, rr, rr], 1),
        ("two OPTs", QUERY, [1, 0, 0, 2], vec![question, opt, opt], 1),
        ("additionals promised", QUERY, [1, 0, 0, 1], vec![question], 1),
        ("STATUS", opcode(2), [1, 0, 0, 0], vec![question], 4),
        ("UPDATE", opcode(5), [1, 0, 0, 0], vec![question], 4),
        ("IQUERY", opcode(1), [1, 0, 0, 0], vec![question], 4),
        ("opcode 9", opcode(9), [1, 0, 0, 0], vec![question], 4),
        ("NOTIFY", opcode(4), [1, 0, 0, 0], vec![b"\x07example\x00\x00\x06\x00\x01"], 5),
    ];
    let dns = Dns::start();
    for (what, flags, counts, parts, rcode) in rows {
        let mut octets = header(0x1234, flags, counts);
        parts.iter().for_each(|part| octets.extend(*part));
        let replies = dns.exchange(&octets, PATIENCE).unwrap_or_else(|error| panic!("{what} {error:#}"));
        for reply in replies {
            let message = Message::decode(&reply).unwrap_or_else(|error| panic!("{what}: {error:#}"));
            assert_eq!((message.id, message.rcode()), (0x1234, rcode), "{what}");
            assert_eq!(
                message.flags & 0xf800,
                0x8000 | flags & 0x7800,
                "{what}: QR and the opcode come back"
            );
        }
    }
    assert_eq!(dns.upstream.total(), 0, "none of it goes upstream");
    dns.assert_serves();
}

#[test]
fn edns_of_another_version_is_badvers() {
    let dns = Dns::start();
    for reply in
        [1, 255].into_iter().flat_map(|version| dns.of(&Ask::new("a.example", "A").edns_version(version)))
    {
        assert_eq!(reply.status(), "BADVERS");
        // RFC 6891 section 6.1.3: the reply contains the highest supported version.
        assert_eq!(reply.edns.as_ref().unwrap().version, 0);
        assert_eq!(reply.answers.len(), 0);
    }
}

/// A query with an OPT gets one back, whatever the upstream's reply has.
#[test]
fn opt_is_answered_with_an_opt() {
    const QUERY: u16 = 0x0100;
    let question = b"\x01a\x07example\x00\x00\x01\x00\x01".as_slice();
    let axfr = b"\x01a\x07example\x00\x00\xfc\x00\x01".as_slice();
    let elsewhere = b"\x01a\x05other\x00\x00\x01\x00\x01".as_slice();
    let opt = b"\x00\x00\x29\x04\xd0\x00\x00\x80\x00\x00\x00".as_slice();
    let opt_v1 = b"\x00\x00\x29\x04\xd0\x00\x01\x80\x00\x00\x00".as_slice();
    // RFC 7871, 7.1.2: the scope of a query is 0; section 6: so are the bits beyond the prefix.
    let scope = b"\0\0\x29\x04\xd0\0\0\x80\0\0\x0b\0\x08\0\x07\0\x01\x18\x18\xc0\0\x02".as_slice();
    let bits = b"\0\0\x29\x04\xd0\0\0\x80\0\0\x0b\0\x08\0\x07\0\x01\x14\0\xc0\0\xff".as_slice();
    let cut = b"\0\0\x29\x04\xd0\0\0\x80\0\0\x03\0\x08\0".as_slice();
    type Row<'r> = (&'r str, u16, [u16; 4], Vec<&'r [u8]>, u16);
    let rows: [Row<'_>; 11] = [
        ("two questions", QUERY, [2, 0, 0, 1], vec![question, question, opt], 1),
        ("no question", QUERY, [0, 0, 0, 1], vec![opt], 1),
        ("two OPTs", QUERY, [1, 0, 0, 2], vec![question, opt, opt], 1),
        ("an option cut off", QUERY, [1, 0, 0, 1], vec![question, cut], 1),
        ("a client subnet with a scope", QUERY, [1, 0, 0, 1], vec![question, scope], 1),
        ("a client subnet with bits beyond its prefix", QUERY, [1, 0, 0, 1], vec![question, bits], 1),
        ("UPDATE", 5 << 11, [1, 0, 0, 1], vec![question, opt], 4),
        ("NOTIFY", 4 << 11, [1, 0, 0, 1], vec![question, opt], 5),
        ("AXFR", QUERY, [1, 0, 0, 1], vec![axfr, opt], 5),
        ("no zone", QUERY, [1, 0, 0, 1], vec![elsewhere, opt], 5),
        ("EDNS 1", QUERY, [1, 0, 0, 1], vec![question, opt_v1], 16),
    ];
    let upstream = Upstream::start(fresh_ip(), good);
    let over = Transports::fresh();
    let _server = Server::start(&over.block("example", &format!("forward . {}", upstream.word())));
    for (what, flags, counts, parts, rcode) in rows {
        let mut octets = header(0x1234, flags, counts);
        parts.iter().for_each(|part| octets.extend(*part));
        let replies = over.exchange(&octets, PATIENCE).unwrap_or_else(|error| panic!("{what} {error:#}"));
        for reply in replies {
            let message = Message::decode(&reply).unwrap_or_else(|error| panic!("{what}: {error:#}"));
            assert_eq!((message.id, message.rcode()), (0x1234, rcode), "{what}");
            let edns = message.edns.as_ref().unwrap_or_else(|| panic!("{what}: no OPT"));
            assert_eq!((edns.version, edns.dnssec_ok), (0, true), "{what}");
        }
    }
    assert_eq!(upstream.total(), 0, "none of it goes upstream");
}

/// Zone transfers are refused and never forwarded.
#[test]
fn zone_transfers_are_refused() {
    let dns = Dns::start();
    for rtype in ["AXFR", "IXFR"] {
        for reply in dns.of(&Ask::new("example", rtype)) {
            assert_eq!(reply.status(), "REFUSED", "{rtype}");
        }
    }
    assert_eq!(dns.upstream.total(), 0);
}

/// Zone messages are logged and counted by the zone's server block.
#[test]
fn zone_messages_belong_to_a_block() {
    let over = Transports::fresh();
    let pages = SocketAddr::new(over.at.ip(), 9153);
    let directives = format!("log\nerrors\nprometheus {pages}\nacl {{\ndrop type IXFR net *\n}}\nwhoami");
    let server = Server::start(&over.block("example", &directives));
    for (rtype, opcode, status, rsize) in
        [("AXFR", 0, "REFUSED", 25), ("SOA", 4, "REFUSED", 25), ("SOA", 5, "NOTIMP", 12)]
    {
        let query = Ask::new("example", rtype).opcode(opcode).rd(false);
        for reply in over.of(&query) {
            assert_eq!(reply.status(), status, "{query:?}");
        }
        for (proto, size, lines) in [("udp", 512, 1), ("tcp", 65_535, 2)] {
            let line = format!(" example. {proto} 25 false {size}\" {status} qr {rsize} ");
            server.wait_for_lines(&format!("\"{rtype} IN{line}"), lines, PATIENCE);
        }
    }
    let dropped = Ask::new("example", "IXFR").timeout(Duration::from_millis(300));
    assert!(dropped.try_of(over.at).is_err());
    for mut connection in over.connections(Duration::from_millis(300)) {
        assert!(dropped.over(&mut connection).is_err());
    }
    let metrics = Metrics::after_queries(pages, 9);
    let zone = ("zone", "example.");
    for (rtype, count) in [("AXFR", 1.0), ("SOA", 2.0)] {
        let udp_and_tcp = ["udp", "tcp"].map(|proto| {
            metrics.count("coredns_dns_requests_total", &[zone, ("type", rtype), ("proto", proto)])
        });
        assert_eq!(udp_and_tcp, [count, 2.0 * count], "{rtype}: queries over TLS count as TCP");
    }
    for (rcode, count) in [("REFUSED", 6.0), ("NOTIMP", 3.0)] {
        let labels = [zone, ("rcode", rcode), ("plugin", "")];
        assert_eq!(metrics.count("coredns_dns_responses_total", &labels), count, "{rcode}");
    }
    assert!(!server.log_text().contains("[ERROR]"), "{}", server.log_text());
}

#[test]
fn foreign_names_and_classes_are_refused() {
    let over = Transports::fresh();
    let _server = Server::start(&over.block("example", "whoami"));
    for query in [
        Ask::new("a.other", "A"),
        Ask::new("a.example", "TXT").class(3),
        Ask::new("version.bind", "TXT").class(3),
    ] {
        for reply in over.of(&query) {
            assert_eq!((reply.status(), reply.answers.len()), ("REFUSED", 0), "{query:?}");
        }
    }
    for reply in over.of(&Ask::new("a.example", "A")) {
        assert_eq!(reply.status(), "NOERROR");
    }
}

#[test]
fn the_longest_zone_answers() {
    let over = Transports::fresh();
    let names = "x.sub.example x.example x.other xsub.example";
    let zone = |zone: &str, last: u8| over.block(zone, &format!("hosts {{\n192.0.2.{last} {names}\n}}"));
    let _server = Server::start(&format!("{}{}{}", zone("example", 1), zone("sub.example", 2), zone(".", 3)));
    for (name, last) in
        [("x.sub.example", 2), ("X.SUB.EXAMPLE", 2), ("x.example", 1), ("xsub.example", 1), ("x.other", 3)]
    {
        for reply in over.of(&Ask::new(name, "A")) {
            assert_eq!(reply.short(), [format!("192.0.2.{last}")], "{name}");
        }
    }
}

/// Answers of every source have the case of the query.
#[test]
fn question_case_from_every_source() {
    let dns = Dns::start();
    for name in ["wWw.HoStS.eXaMpLe", "fOrWaRd.ExAmPlE", "FoRwArD.eXaMpLe", "x.TeMpLaTe"] {
        // `Ask` refuses a question in another case.
        dns.of(&Ask::new(name, "A"));
    }
}

#[test]
fn owner_names_are_compressed() {
    let dns = Dns::start();
    // The upstream of the second name does not compress its replies: first a miss, then a hit.
    for name in ["many.hosts.example", "many.forward.example"] {
        let query = Ask::new(name, "A");
        let first = query.clone().tcp().of(dns.at);
        let [_, tcp, tls] = dns.of(&query);
        for reply in [first, tcp, tls] {
            let question = 12 + name.len() + 2 + 4;
            assert_eq!(reply.answers.len(), 100);
            assert_eq!(reply.bytes.len(), question + 100 * 16, "each record is a pointer and 14 octets");
        }
    }
}

#[test]
fn udp_replies_fit_or_are_truncated() {
    let dns = Dns::start();
    // 100 A records: more than 1,600 bytes.
    for name in ["many.hosts.example", "many.forward.example"] {
        for (client, limit) in [
            (None, 512),
            (Some(100), 512),
            (Some(512), 512),
            (Some(1000), 1000),
            (Some(1232), 1232),
            (Some(4096), 1232),
        ] {
            let query = Ask::new(name, "A");
            let query = match client {
                None => query,
                Some(size) => query.edns(size),
            };
            let reply = query.of(dns.at);
            assert!(reply.bytes.len() <= limit, "{name} {client:?}: {} octets", reply.bytes.len());
            assert!(reply.flag_names().contains("tc"), "{name} {client:?}");
            assert_eq!(
                reply.edns.is_some(),
                client.is_some(),
                "{name} {client:?}: OPT stays, also when truncated"
            );
        }
        let [_, tcp, tls] = dns.of(&Ask::new(name, "A").edns(1232));
        for whole in [tcp, tls] {
            assert!(!whole.flag_names().contains("tc"));
            assert_eq!(whole.answers.len(), 100);
        }
    }
}

#[test]
fn our_opt_is_our_own() {
    let dns = Dns::start();
    for name in ["www.hosts.example", "forward.example", "forward.example", "x.template"] {
        let query = Ask::new(name, "A");
        let options = query.clone().edns(4096).option(10, &[1; 8]).option(12, &[0; 9]).option(65_001, b"x");
        for reply in dns.of(&options) {
            let edns =
                reply.edns.as_ref().unwrap_or_else(|| panic!("{name}: an EDNS query gets an EDNS reply"));
            assert_eq!((edns.size, edns.version, edns.dnssec_ok), (1232, 0, false), "{name}");
            assert_eq!(edns.options, [], "{name}: nothing is echoed");
        }
        for reply in dns.of(&query.clone().dnssec_ok()) {
            let dnssec_ok = reply.edns.as_ref().is_some_and(|edns| edns.dnssec_ok);
            assert!(dnssec_ok, "{name}: the reply has DO (RFC 3225 section 3)");
        }
        for reply in dns.of(&query) {
            assert!(reply.edns.is_none(), "{name}: no OPT for a client without");
        }
    }
}

#[test]
fn rd_and_cd_are_returned() {
    let dns = Dns::start();
    for name in ["www.hosts.example", "x.template"] {
        for rd in [true, false] {
            for reply in dns.of(&Ask::new(name, "A").rd(rd).cd()) {
                assert_eq!((reply.flags & 0x0100 != 0, reply.flags & 0x0010 != 0), (rd, true), "{name}");
            }
        }
    }
}

#[test]
fn queries_above_512_octets_are_served() {
    let dns = Dns::start();
    for reply in dns.of(&Ask::new("www.hosts.example", "A").option(12, &[0; 700])) {
        assert_eq!(reply.short(), ["192.0.2.80"]);
    }
}

#[test]
fn garbage_ends_nothing() {
    let dns = Dns::start();
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    let mut octet = || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise as u8
    };
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    for n in 0..20_000 {
        let mut packet: Vec<u8> = (0..n % 120).map(|_| octet()).collect();
        if n % 2 == 0 && packet.len() > 12 {
            // A valid header, so that the rest is parsed.
            packet[2..12].copy_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, n as u8 & 1]);
        }
        drop(socket.send_to(&packet, dns.at));
    }
    for n in 0..200_usize {
        // Over TCP, within TLS, and instead of a handshake.
        let [tcp, tls] = dns.connections(PATIENCE);
        for connection in [Ok(tcp), Ok(tls), Connection::open(dns.tls, PATIENCE)] {
            let octets: Vec<u8> = (0..n).map(|_| octet()).collect();
            drop(connection.and_then(|mut connection| connection.send_octets(&octets)));
        }
    }
    // A query may be lost behind 20,000 packets; that is no failure.
    eventually("an answer", Duration::from_secs(10), || {
        Ask::new("www.hosts.example", "A").timeout(Duration::from_millis(500)).try_of(dns.at).ok()
    });
    dns.assert_serves();
    assert!(!dns.server.log_text().contains("panic"), "{}", dns.server.log_text());
}

#[test]
fn the_same_rules_hold_over_ipv6() {
    let ip = Ipv6Addr::LOCALHOST;
    if UdpSocket::bind((ip, 0)).is_err() {
        return tests::skip("the_same_rules_hold_over_ipv6", "::1 is not there");
    }
    let ports = [free_port(ip.into()), free_port(ip.into())];
    let over = Transports::new((ip, ports[0]).into(), ports[1]);
    let _server = Server::start(&over.block(".", "whoami"));
    for reply in over.of(&Ask::new("a.example", "A")) {
        let client = reply
            .additionals
            .iter()
            .find(|record| record.rtype == 28)
            .expect("whoami answers an IPv6 client with AAAA");
        assert_eq!(client.data, "::1");
    }
    for reply in over.exchange(&header(9, 0x0100, [0; 4]), PATIENCE).unwrap() {
        let reply = Message::decode(&reply).unwrap();
        assert_eq!((reply.id, reply.rcode()), (9, 1));
    }
}

/// The source address of a reply from a wildcard listener is the queried address.
#[test]
fn wildcard_listener_source_address() {
    // A connected socket receives replies from this address alone. The port is below those that the
    // kernel gives to clients, one of which is always in use on some address.
    let everywhere = IpAddr::from([0; 4]);
    let first = 10_000 + (std::process::id() % 10_000) as u16;
    let mut ports = (first..first + 10_000).filter(|port| {
        TcpListener::bind((everywhere, *port)).is_ok() && UdpSocket::bind((everywhere, *port)).is_ok()
    });
    let port = ports.next().expect("not all of them are taken");
    let _server = Server::start(&format!(".:{port} {{\nwhoami\n}}"));
    for _ in 0..3 {
        let at = SocketAddr::from((fresh_ip(), port));
        assert_eq!(ask(at, "a.example", "A").status(), "NOERROR");
        assert_eq!(Ask::new("a.example", "A").tcp().of(at).status(), "NOERROR");
    }
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        assert_eq!(ask((Ipv6Addr::LOCALHOST, port).into(), "a.example", "A").status(), "NOERROR");
    }
}

#[test]
fn bufsize_limits_udp_replies() {
    let over = Transports::fresh();
    let hosts: String = (0..60).map(|n| format!("192.0.2.{n} many.example\n")).collect();
    let _server = Server::start(&over.block(".", &format!("bufsize 700\nhosts {{\n{hosts}}}")));
    let [udp, tcp, tls] = over.of(&Ask::new("many.example", "A").edns(4096));
    assert!(udp.bytes.len() <= 700 && udp.flag_names().contains("tc"), "{} octets", udp.bytes.len());
    for stream in [tcp, tls] {
        assert_eq!((stream.answers.len(), stream.flag_names().contains("tc")), (60, false));
    }
}

/// A server with names in every kind of source.
struct Dns {
    over: Transports,
    server: Server,
    upstream: Upstream,
}

impl Dns {
    fn start() -> Self {
        let upstream = Upstream::start(fresh_ip(), good);
        let hosts: String = (0..100).map(|n| format!("192.0.2.{n} many.hosts.example\n")).collect();
        let directives = format!(
            "hosts {{\n192.0.2.80 www.hosts.example\n{hosts}fallthrough\n}}\n\
             template ANY ANY template {{\nrcode NXDOMAIN\n}}\ncache\nforward . {}",
            upstream.word()
        );
        let over = Transports::fresh();
        let server = Server::start(&over.block(".", &directives));
        Self { over, server, upstream }
    }

    fn assert_serves(&self) {
        for reply in self.of(&Ask::new("www.hosts.example", "A")) {
            assert_eq!(reply.short(), ["192.0.2.80"]);
        }
    }
}

impl Deref for Dns {
    type Target = Transports;

    fn deref(&self) -> &Transports {
        &self.over
    }
}

fn good(asked: &Asked) -> Action {
    match (&asked.name[..], asked.rtype) {
        ("many.forward.example.", 1) => {
            let lines: String =
                (0..100).map(|n| format!("{} 300 IN A 198.51.100.{n}\n", asked.name)).collect();
            match asked.transport {
                Transport::Udp => Action::Truncate(Says::answer(&lines)),
                _ => Action::answer(&lines),
            }
        }
        (_, 1) => Action::answer(&format!("{} 300 IN A 192.0.2.1", asked.name)),
        _ => Action::rcode(0),
    }
}
