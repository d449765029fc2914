//! Serves packets without a socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use query::serve::{Observed, Outcome, count, log};
use std::time::Duration;
use wire::{Proto, RType, Rcode, Verdict};

use scene::{Scene, Sent, packet};

const AT: &str = "127.0.0.1:53";
const NSID: &[u8] = b"\0\x03\0\0";

fn reply(scene: &Scene, packet: &[u8]) -> (Vec<u8>, Outcome) {
    match scene.send(AT, packet) {
        Sent::Reply(reply) => (reply.1, reply.2),
        other => panic!("{other}"),
    }
}

#[test]
fn refusals_reach_no_server_block() {
    let scene = Scene::new(". {\nbind 127.0.0.1\nprometheus\nwhoami\n}\n");
    let query = packet("a.example.org", RType::A, None);
    let with = |at: usize, octet: u8| {
        let mut packet = query.clone();
        packet[at] = octet;
        packet
    };
    for (sent, expected) in [
        (query[..11].to_vec(), "nothing"),
        (with(2, 0x81), "nothing"),
        (with(2, 0x11), "NOTIMP"),
        (with(5, 0), "FORMERR"),
        (with(5, 2), "FORMERR"),
        (query[..20].to_vec(), "FORMERR"),
    ] {
        let back = scene.send(AT, &sent);
        assert_eq!(back.to_string(), expected, "{sent:?}");
        if let Sent::Reply(reply) = &back {
            assert_eq!((reply.2.counted, reply.2.zone), (false, None), "{sent:?}");
        }
    }
}

/// Nothing is forwarded.
#[test]
fn zone_requests_are_refused() {
    const COREFILE: &str = "example.org {\nbind 127.0.0.1\nprometheus\ntemplate ANY ANY {\nrcode NOERROR\n}\nforward . 192.0.2.53\n}\n";
    let with_opcode = |opcode: u8, name: &str| {
        let mut packet = packet(name, RType::SOA, Some(&[]));
        packet[2] |= opcode << 3;
        packet
    };
    let of = |rtype| packet("a.example.org", rtype, Some(&[]));
    let elsewhere = packet("example.net", RType::AXFR, None);
    for proto in [Proto::Udp, Proto::Tcp] {
        let mut scene = Scene::new(COREFILE);
        scene.proto = proto;
        for (what, sent, rcode, zone, ede) in [
            ("AXFR", of(RType::AXFR), Rcode::REFUSED, Some(0), Some(21)),
            ("IXFR", of(RType::IXFR), Rcode::REFUSED, Some(0), Some(21)),
            ("NOTIFY", with_opcode(4, "a.example.org"), Rcode::REFUSED, Some(0), Some(21)),
            ("UPDATE", with_opcode(5, "a.example.org"), Rcode::NOTIMP, Some(0), None),
            ("AXFR of no zone", elsewhere.clone(), Rcode::REFUSED, None, None),
            ("UPDATE of no zone", with_opcode(5, "example.net"), Rcode::NOTIMP, None, None),
        ] {
            let (bytes, outcome) = reply(&scene, &sent);
            assert_eq!((outcome.rcode, outcome.zone, outcome.counted), (rcode, zone, true), "{what}");
            assert_eq!(outcome.response_size as usize, bytes.len(), "{what}");
            assert_eq!(bytes[2] & 0xf8, 0x80 | sent[2] & 0x78, "{what}: QR and the opcode are returned");
            let ede_code = bytes.windows(6).find_map(|at| at.strip_prefix(b"\0\x0f\0\x02\0")?.first());
            assert_eq!(ede_code.copied(), ede, "{what}");
            // Not logged as an error: any client can cause it.
            assert!(outcome.failure.is_none_or(|failure| zone.is_none() || !failure.is_error()), "{what}");
        }
    }
}

/// Middleware may end such a request, and turns no other query into one.
#[test]
fn middleware_on_zone_requests() {
    let steps = "rewrite name exact old.example.org new.example.org\n\
                 acl example.org {\ndrop type IXFR net *\nfilter type AXFR net 192.0.2.0/24\n}";
    let scene = Scene::new(&format!("example.org {{\nbind 127.0.0.1\n{steps}\nforward . 192.0.2.53\n}}\n"));
    for (name, rtype, expected) in [
        ("example.org", RType::IXFR, "nothing"),
        ("example.org", RType::AXFR, "NOERROR"),
        ("old.example.org", RType::AXFR, "NOERROR"),
    ] {
        assert_eq!(scene.ask(AT, name, rtype), expected, "{name} {rtype}");
    }
    let mut notify = packet("old.example.org", RType::SOA, None);
    notify[2] |= 0x20;
    assert_eq!(scene.send(AT, &notify).to_string(), "REFUSED");
}

#[test]
fn no_zone_is_refused_with_ede() {
    let scene = Scene::new("example.org {\nbind 127.0.0.1\nprometheus\nwhoami\n}\n");
    for (options, ends) in [(None, &b"\0\x01\0\x01"[..]), (Some(&[][..]), b"\0\0\0\x06\0\x0f\0\x02\0\x14")] {
        let (bytes, outcome) = reply(&scene, &packet("example.net", RType::A, options));
        assert!(bytes.ends_with(ends), "{bytes:?}");
        assert_eq!((outcome.rcode, outcome.zone, outcome.counted), (Rcode::REFUSED, None, true));
    }
}

#[test]
fn nsid_on_request() {
    let scene = Scene::new(". {\nbind 127.0.0.1\nnsid node-1\nwhoami\n}\nb. {\nbind 127.0.0.1\nwhoami\n}\n");
    for (name, options, expected) in
        [("a", Some(NSID), true), ("a", Some(&[][..]), false), ("a", None, false), ("b", Some(NSID), false)]
    {
        let (bytes, _) = reply(&scene, &packet(name, RType::A, options));
        assert_eq!(bytes.ends_with(b"\0\x03\0\x06node-1"), expected, "{name} {options:?}");
    }
}

#[test]
fn reply_size_limits() {
    let names: String = (0..90).map(|last| format!("192.0.2.{last} many.example.org\n")).collect();
    let corefile =
        |bufsize: &str| format!(". {{\nbind 127.0.0.1\n{bufsize}\nhosts /nowhere/h {{\n{names}}}\n}}\n");
    let with_size = |size: u16| {
        let mut packet = packet("many.example.org", RType::A, Some(&[]));
        let at = packet.len() - 8;
        packet[at..at + 2].copy_from_slice(&size.to_be_bytes());
        packet
    };
    let plain = packet("many.example.org", RType::A, None);
    let full = 12 + 22 + 90 * 16;
    for (bufsize, proto, packet, limit) in [
        ("", Proto::Udp, plain.clone(), 512),
        ("", Proto::Udp, with_size(0), 512),
        ("", Proto::Udp, with_size(700), 700),
        ("", Proto::Udp, with_size(4096), 1232),
        ("bufsize 4096", Proto::Udp, with_size(4096), 4096),
        ("bufsize 4096", Proto::Udp, with_size(1232), 1232),
        ("bufsize 512", Proto::Udp, with_size(4096), 512),
        ("bufsize 4096", Proto::Udp, plain.clone(), 512),
        ("", Proto::Tcp, plain.clone(), 65_535),
        ("bufsize 512", Proto::Tcp, with_size(512), 65_535),
    ] {
        let mut scene = Scene::new(&corefile(bufsize));
        scene.proto = proto;
        let opt = if packet.len() > plain.len() { 11 } else { 0 };
        let sent = scene.send(AT, &packet);
        let Sent::Reply(reply) = &sent else { panic!("no reply") };
        let what = format!("{bufsize:?} {proto:?} {limit}");
        assert_eq!(usize::from(reply.2.response_size), reply.1.len(), "{what}");
        if limit >= full + opt {
            assert_eq!((reply.1.len(), reply.0.answers.len()), (full + opt, 90), "{what}");
            assert!(!reply.0.truncation, "{what}");
        } else {
            assert!(reply.1.len() <= limit && reply.1.len() + 16 > limit, "{what}: {}", reply.1.len());
            assert!(reply.0.truncation && reply.0.answers.len() < 90, "{what}");
            assert_eq!(reply.0.edns.is_some(), opt > 0, "{what}");
        }
    }
}

#[test]
fn extended_rcode_needs_opt() {
    let scene = Scene::new(". {\nbind 127.0.0.1\ntemplate ANY ANY {\nrcode BADCOOKIE\n}\n}\n");
    for (options, sent) in [(None, "SERVFAIL aa"), (Some(&[][..]), "BADCOOKIE aa")] {
        let reply = scene.send(AT, &packet("a", RType::A, options));
        let message = reply.message();
        let rcode = u16::from(message.response_code);
        assert_eq!(format!("{} aa", Rcode(rcode)), sent);
        // Hooks see the intended rcode.
        let Sent::Reply(reply) = &reply else { panic!("no reply") };
        assert_eq!(reply.2.rcode, Rcode::BADCOOKIE);
    }
}

#[test]
fn failure_clears_the_reply() {
    let scene = Scene::new(
        ". {\nbind 127.0.0.1\nerrors\ntemplate ANY ANY {\nanswer \"a. A 192.0.2.1\" \"bad\"\nederror 15 x\n}\n}\n",
    );
    let sent = scene.send(AT, &packet("a", RType::A, Some(&[])));
    assert_eq!(sent.to_string(), "SERVFAIL");
    let Sent::Reply(reply) = &sent else { panic!("no reply") };
    let option = b"\0\x0f\0\x2c\0\0a plugin of the server block has no answer";
    assert!(reply.1.ends_with(option), "{:?}", reply.1);
}

#[test]
fn log_and_metrics_see_the_reply() {
    let mut scene = Scene::new(
        ". {\nbind 127.0.0.1\nlog\nerrors\nprometheus\nhosts /nowhere/h {\n192.0.2.1 a\nfallthrough c\n}\n}\n",
    );
    scene.now += Duration::from_secs(1);
    // The hosts file is missing.
    assert!(scene.log.read(&scene.shared.logger).starts_with("[WARNING] plugin/hosts: Cannot read"));
    let client = "192.0.2.200:40000".parse().unwrap();
    let seen =
        Observed { client, local: None, proto: Proto::Udp, nanos: 1_500_000, now: scene.now, upstream: None };
    let mut lines = scene.shared.logger.ring(4096);
    for (name, line) in [
        ("a", "[INFO] 192.0.2.200:40000 - 4660 \"A IN a. udp 19 false 512\" NOERROR qr,aa,rd 35 0.0015s\n"),
        // A name that is not in hosts is no error, as in CoreDNS.
        ("b", "[INFO] 192.0.2.200:40000 - 4660 \"A IN b. udp 19 false 512\" SERVFAIL qr,rd 19 0.0015s\n"),
        (
            "c",
            "[ERROR] plugin/errors: 2 c. A: plugin/hosts: no next plugin found\n\
             [INFO] 192.0.2.200:40000 - 4660 \"A IN c. udp 19 false 512\" SERVFAIL qr,rd 19 0.0015s\n",
        ),
    ] {
        let packet = packet(name, RType::A, None);
        let (_, outcome) = reply(&scene, &packet);
        let Verdict::Pass(query) = wire::accept(&packet) else { panic!("refused") };
        let zone = &scene.configuration.zones[outcome.zone.unwrap() as usize];
        count(
            zone.counters(0),
            std::slice::from_ref(&outcome),
            seen.proto,
            seen.client.is_ipv6(),
            seen.nanos,
        );
        log(zone, &outcome, &seen, &query, &mut lines);
        let mut logged_lines: Vec<String> =
            scene.log.read(&scene.shared.logger).lines().map(|line| format!("{line}\n")).collect();
        logged_lines.sort();
        assert_eq!(logged_lines.concat(), line);
    }
    let zone = &scene.configuration.zones[0].counters.as_ref().unwrap()[0];
    let requests: u64 = zone.requests.iter().flatten().flatten().map(|counter| counter.get()).sum();
    assert_eq!(requests, 3);
}
