//! Bounds of connections, streams and bytes of clients over HTTPS.

use std::net::IpAddr;
use std::time::Duration;

use tests::http2::{Frame, Http2, PING};
use tests::{
    Action, Ask, Authority, Connection, Message, Metrics, Says, Server, Upstream, eventually, fresh_ip, port,
    tempdir,
};

use super::{Doh, HOST, PATIENCE, answer, h2_client, query, rcode, with_slow_upstream};

/// The settings of HTTP/2 that the tests use, by number.
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;

fn evicted(doh: &Doh) -> f64 {
    let metrics = Metrics::of((doh.at.ip(), 9153).into());
    let states = ["idle", "half_sent", "unread", "busy"];
    states.map(|was| metrics.count("localdns_connections_evicted_total", &[("was", was)])).iter().sum()
}

fn open_from(doh: &Doh, from: IpAddr) -> anyhow::Result<Http2> {
    let connection = Connection::open_from(from, doh.at, PATIENCE)?;
    Http2::begin(connection.encrypted(&doh.client())?, &[])
}

/// A connection beyond `max_connections` replaces one of the address with most.
#[test]
fn listener_bounds_its_connections() {
    let doh = Doh::start("whoami\nhttps {\nmax_connections 3\n}\nprometheus @IP@:9153");
    let [greedy, other] = [[127, 77, 0, 1], [127, 77, 0, 2]].map(IpAddr::from);
    let mut all: Vec<Http2> = (0..3).map(|_| open_from(&doh, greedy).unwrap()).collect();
    for client in &mut all {
        assert_eq!(rcode(client, "a.example").unwrap(), 0);
    }
    let mut new = open_from(&doh, other).unwrap();
    assert_eq!(rcode(&mut new, "a.example").unwrap(), 0);
    assert!(all[0].connection().is_closed_by_peer(), "the one that waited longest");
    for client in &mut all[1..] {
        assert_eq!(rcode(client, "a.example").unwrap(), 0);
    }
    // The greedy client replaces its own.
    let mut again = open_from(&doh, greedy).unwrap();
    for client in [&mut again, &mut new] {
        assert_eq!(rcode(client, "a.example").unwrap(), 0);
    }
    assert_eq!(evicted(&doh), 2.0);
}

/// Requests whose bodies are not complete make no connection keep its place.
#[test]
fn incomplete_bodies_give_way() {
    let doh = Doh::start("whoami\nhttps {\nmax_connections 4\n}\ntimeouts {\nread 20s\n}");
    let [first, second, third] = [1, 2, 3].map(|last| IpAddr::from([127, 77, 1, last]));
    let mut slow: Vec<Http2> =
        [first, second, first, second].iter().map(|from| open_from(&doh, *from).unwrap()).collect();
    for client in &mut slow {
        assert_eq!(rcode(client, "a.example").unwrap(), 0);
        client.post(&query("a.example")[..10], false).unwrap();
        // The reply to PING shows that the server has read the request.
        client.send(&Frame::new(PING, 0, 0, &[0; 8])).unwrap();
        client.wait_for(PING).unwrap();
    }
    let mut new = open_from(&doh, third).unwrap();
    assert_eq!(rcode(&mut new, "a.example").unwrap(), 0);
    assert!(slow[0].connection().is_closed_by_peer(), "the one that waited longest");
}

/// `max_streams` is advertised, and streams beyond it are refused.
#[test]
fn connection_bounds_its_streams() {
    let (doh, _upstream) = with_slow_upstream(Duration::from_secs(1), "https {\nmax_streams 5\n}");
    let mut client = doh.open().unwrap();
    assert_eq!(client.settings.get(&MAX_CONCURRENT_STREAMS), Some(&5));
    let streams: Vec<u32> =
        (0..8).map(|n| client.post(&query(&format!("slow{n}.example")), true).unwrap()).collect();
    for stream in &streams[5..] {
        let (_, reset) = client.end_of(*stream).unwrap();
        assert_eq!(reset, Some(7), "REFUSED_STREAM");
    }
    for stream in &streams[..5] {
        assert_eq!(answer(&mut client, *stream).unwrap(), 0);
    }
    assert_eq!(Doh::start("whoami").open().unwrap().settings.get(&MAX_CONCURRENT_STREAMS), Some(&250));
}

/// Blocks whose HTTPS listeners differ may have different `max_streams`, also if they share an endpoint
/// for plain DNS.
#[test]
fn bounds_are_of_https_listeners() {
    let (ip, authority, files) = (fresh_ip(), Authority::new(), tempdir());
    authority.certify(files.path(), HOST);
    let block = |at: u16, streams: u32| {
        let zone = format!("z{at}.example:{}", port());
        let directives = format!("tls cert.pem key.pem\nhttps {{\nmax_streams {streams}\n}}\nwhoami");
        format!("https://.:{at} {zone} {{\nbind {ip}\nroot {}\n{directives}\n}}\n", files.path().display())
    };
    let server = Server::start(&[block(8443, 10), block(9443, 20)].concat());
    for (at, streams) in [(8443, 10), (9443, 20)] {
        let doh = Connection::open_tls((ip, at).into(), &h2_client(&authority), PATIENCE);
        let client = Http2::begin(doh.unwrap(), &[]).unwrap();
        assert_eq!(client.settings.get(&MAX_CONCURRENT_STREAMS), Some(&streams), "{at}");
    }
    drop(server);
}

/// Large answers leave whole, and those that a client does not read hold a bounded number of bytes.
#[test]
fn unread_replies_are_bounded() {
    let ip = fresh_ip();
    let _upstream = Upstream::start(ip, |asked| {
        let lines: Vec<String> =
            (0..200).map(|n| format!("{} 60 IN TXT \"{n}{}\"", asked.name, "x".repeat(200))).collect();
        Action::Truncate(Says::answer(&lines.join("\n")))
    });
    let forward =
        format!("forward . {ip}:{}\ncache\nprometheus @IP@:9153\ntimeouts {{\nwrite 20s\n}}", port());
    let doh = Doh::start(&forward);
    let query = Ask::new("large.example", "TXT").bytes();
    let mut honest = doh.open().unwrap();
    let stream = honest.post(&query, true).unwrap();
    let (body, _) = honest.end_of(stream).unwrap();
    assert!(body.len() > 40_000, "{}", body.len());
    assert_eq!(Message::decode(&body).unwrap().answers.len(), 200);
    let before = doh.server.rss_kb();
    let mut unread: Vec<Http2> =
        (0..20).map(|_| doh.open_with(&[(INITIAL_WINDOW_SIZE, 0)]).unwrap()).collect();
    for client in &mut unread {
        for _ in 0..100 {
            if client.post(&query, true).is_err() {
                break;
            }
        }
    }
    eventually("connections that hold most to be closed", PATIENCE, || (evicted(&doh) > 0.0).then_some(()));
    let more = doh.server.rss_kb().saturating_sub(before);
    assert!(more < 40 * 1024, "{more} KiB more for 80 MB of replies");
    assert_eq!(rcode(&mut doh.open().unwrap(), "a.example").unwrap(), 0);
}
