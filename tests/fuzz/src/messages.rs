//! Targets: messages of clients and upstreams, and the cache.

use std::time::Duration;

use cache::{BlockCache, Cache, CacheResult, CacheSpec, ServeStale, StoreResult};
use hickory_proto::op::Message;
use wire::{
    Answer, Class, Flags, HEADER, Owner, Query, RType, Rcode, Reply, Section, Verdict, ZoneRequest, accept,
};

/// Checks that any packet is dropped, refused with a reply within limits, or passed with its
/// question unchanged.
pub fn packet_gate(packet: &[u8]) {
    let mut out = Vec::new();
    match accept(packet) {
        Verdict::Drop => assert!(packet.len() < HEADER || packet[2] & 0x80 != 0, "dropped in silence"),
        Verdict::Refuse(refusal) => {
            refusal.write(&mut out);
            assert_eq!(out[..2], packet[..2], "the client's id");
            assert!(out.len() <= packet.len() + OPT, "a refusal is no amplifier: {}", out.len());
            assert!(Message::from_vec(&out).is_ok(), "a refusal can be read: {out:x?}");
        }
        Verdict::Pass(query) => {
            let name = &query.question[..query.question.len() - 4];
            assert!(name.eq_ignore_ascii_case(query.name.as_wire()));
            assert_eq!(query.name.labels().count(), query.name.label_count());
            for limit in [512, query.udp_limit(), 65_535] {
                let mut reply = Reply::start(&mut out, &query);
                for last in 0..100 {
                    reply.push(Section::Answer, Owner::Question, RType::A, Class::IN, 60, &[192, 0, 2, last]);
                }
                let (flags, size) = reply.finish(&query, limit);
                assert!(size <= limit && size == out.len(), "{size} octets of {limit}");
                let message = Message::from_vec(&out).expect("a reply can be read");
                assert_eq!(message.truncation, message.answers.len() < 100);
                assert_eq!(flags.has(Flags::TC), message.truncation);
                assert_eq!(message.edns.is_some(), query.edns.is_some());
            }
            let held = query.owned();
            assert_eq!(held.query().question, query.question);
            assert_eq!(held.query().name, query.name);
        }
        Verdict::Zone(request) => {
            assert_eq!(request.query.owned().question(), request.query.question);
            assert!(request.serial().is_none() || request.query.rtype == RType::IXFR);
        }
    }
}

/// Checks that hickory-proto and this parser agree on messages that both read, and that what
/// hickory-proto reads as a plain query is not refused as malformed.
pub fn differential(packet: &[u8]) {
    let Ok(theirs) = Message::from_vec(packet) else { return };
    let gate = accept(packet);
    match &gate {
        Verdict::Pass(query) | Verdict::Zone(ZoneRequest { query, .. }) => {
            assert_eq!(theirs.queries.len(), 1);
            let question = &theirs.queries[0];
            assert_eq!(u16::from(question.query_type()), query.rtype.0);
            assert_eq!(u16::from(question.query_class()), query.class.0);
            let labels: Vec<Vec<u8>> = question.name().iter().map(<[u8]>::to_ascii_lowercase).collect();
            assert_eq!(labels, query.name.labels().map(<[u8]>::to_vec).collect::<Vec<_>>());
            assert_eq!((theirs.id, theirs.recursion_desired), (query.id, query.flags.has(Flags::RD)));
            if let (Some(theirs), Some(ours)) = (&theirs.edns, &query.edns) {
                assert_eq!(theirs.flags().dnssec_ok, ours.dnssec_ok);
                assert_eq!(theirs.version(), ours.version);
            }
        }
        Verdict::Refuse(refusal) if refusal.rcode == Rcode::FORMERR => {
            let counts = [theirs.answers.len(), theirs.authorities.len(), theirs.additionals.len()];
            let plain = theirs.queries.len() == 1 && counts == [0; 3] && theirs.edns.is_none();
            // The question's name may not be compressed: nothing precedes it.
            let pointer = packet[HEADER..].iter().any(|&octet| octet >= 0xc0);
            // An OPT for an undefined version, and types that no question may have.
            let odd_type =
                theirs.queries.first().is_some_and(|query| u16::from(query.query_type()) == RType::OPT.0);
            assert!(!plain || pointer || odd_type || packet[6..12] != [0; 6], "refused: {packet:x?}");
        }
        Verdict::Refuse(_) | Verdict::Drop => {}
    }
    // Parses the same bytes as an upstream's reply to the question that they contain.
    let (Some(question), true) = (own_question(packet), packet[2] & 0x80 != 0) else { return };
    let mut answer = Answer::default();
    if answer.read(packet, question).is_err() || theirs.queries.len() != 1 {
        return;
    }
    let ours: Vec<(u16, u32)> = answer
        .records()
        .filter(|record| record.section == Section::Answer)
        .map(|record| (record.rtype.0, record.ttl))
        .collect();
    let theirs: Vec<(u16, u32)> =
        theirs.answers.iter().map(|record| (u16::from(record.record_type()), record.ttl)).collect();
    if ours.len() == theirs.len() {
        assert_eq!(ours, theirs);
    }
}

/// Checks that an upstream's reply is read whole or refused, and fits the clients' limits.
pub fn upstream_reply(octets: &[u8]) {
    let (packet, reply) = query_and_reply(octets);
    let query = passed(&packet);
    let mut answer = Answer::default();
    if answer.read(&reply, query.question).is_err() {
        return;
    }
    merged(&query, &reply);
    let total: u16 = answer.counts.iter().sum();
    assert_eq!(answer.records().count(), usize::from(total), "every record can be read");
    assert_eq!(answer.ttls.len(), usize::from(total), "every TTL is known");
    answer.clamp_ttls(5, 300);
    assert!(answer.records().all(|record| (5..=300).contains(&record.ttl)));
    assert!(answer.records().all(|record| record.rtype != RType::OPT), "their OPT stays on its hop");
    let mut out = Vec::new();
    let mut whole = Reply::start(&mut out, &query);
    whole.push_answer(&query, &answer);
    whole.finish(&query, 65_535);
    for record in wire::Records::new(&out, HEADER + query.question.len(), answer.counts) {
        let record = record.expect("a record can be read");
        wire::Name::read(&out, record.owner).expect("an owner is a name");
        assert!(record.rtype != RType::TSIG && (record.rtype != RType::A || record.data.len() == 4));
        if matches!(record.rtype, RType::NS | RType::CNAME | RType::PTR | RType::SOA) {
            wire::Name::read(&out, record.data.start).expect("a target is a name");
        }
    }
    for limit in [512, 1232, 65_535] {
        let mut to_client = Reply::start(&mut out, &query);
        to_client.push_answer(&query, &answer);
        let (_, size) = to_client.finish(&query, limit);
        assert!(size <= limit && out.len() == size, "{size} of {limit}");
    }
}

/// Writes decoded records behind another question, as many as fit.
fn merged(query: &Query<'_>, reply: &[u8]) {
    let counts = [6, 8, 10].map(|at| u16::from_be_bytes([reply[at], reply[at + 1]]));
    let mut body = Vec::new();
    let Ok(mut merge) = wire::CompressingWriter::new(query.question, &mut body) else {
        panic!("a question has a name")
    };
    for record in wire::Records::new(reply, HEADER + query.question.len(), counts) {
        let record = record.expect("it was read before");
        if record.rtype != RType::OPT && merge.push(record.section, reply, &record).is_err() {
            break;
        }
    }
}

/// Checks that the cache returns whole answers, with TTLs counted down, no longer than allowed.
pub fn cache_entry(octets: &[u8]) {
    let (packet, reply) = query_and_reply(octets);
    let query = passed(&packet);
    let now = crate::start();
    let cache = Cache::new(Cache::MIN_BYTES, now);
    for spec in [CacheSpec::default(), stale_spec()] {
        let serves_stale = spec.stale.is_some();
        let block = BlockCache::new(cache.partition("."), spec, Vec::new());
        let mut answer = Answer::default();
        if answer.read(&reply, query.question).is_err() {
            return;
        }
        let StoreResult::Kept(_) = block.store(&query, &mut answer, now) else { continue };
        let first = seen(&query, |reply| block.lookup(&query, now, reply)).expect("it was kept just now");
        assert_eq!(first.len(), answer.records().count());
        for seconds in [1, 4, 6, 300, 1801, 3601, 90_000] {
            let later = now + Duration::from_secs(seconds);
            let Some(ttls) = seen(&query, |reply| block.lookup(&query, later, reply)) else {
                continue;
            };
            assert_eq!(ttls.len(), first.len());
            let counted_down = ttls.iter().zip(&first).all(|(now, then)| now <= then);
            assert!(counted_down, "{ttls:?} after {first:?}, {seconds} s later");
            assert!(serves_stale || seconds <= 3600, "expired after {seconds} s");
        }
    }
}

fn stale_spec() -> CacheSpec {
    let stale = ServeStale {
        window: Duration::from_secs(3600),
        mode: cache::StaleMode::Immediate,
        ttl: None,
        recheck: None,
        prefer_positive: true,
    };
    CacheSpec { stale: Some(stale), ..CacheSpec::default() }
}

/// The TTLs of a lookup's reply; `None` for a miss.
fn seen(query: &Query<'_>, lookup: impl FnOnce(&mut Reply<'_>) -> CacheResult) -> Option<Vec<u32>> {
    let mut out = Vec::new();
    let mut reply = Reply::start(&mut out, query);
    let found = lookup(&mut reply);
    let ttls = reply.records().map(|record| record.ttl).collect();
    let (_, size) = reply.finish(query, 65_535);
    assert!(size <= 65_535);
    (!matches!(found, CacheResult::Miss | CacheResult::Verify { .. })).then_some(ttls)
}

/// Returns one of the fixed queries, selected by the first byte, and the rest of the input as its
/// reply. The reply's question is corrected, as hardly any input would pass otherwise.
fn query_and_reply(octets: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (&choice, rest) = octets.split_first().unwrap_or((&0, &[]));
    let (name, rtype): (&[u8], u8) = [
        (&b"\x07example\x03org\0"[..], 1),
        (b"\x01a\x07example\x03org\0", 28),
        (b"\0", 2),
        (b"\x03www\x01a\x07example\x03org\0", 5),
    ][usize::from(choice & 3)];
    let mut question = name.to_vec();
    question.extend_from_slice(&[0, rtype, 0, 1]);
    let mut packet = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\x01".to_vec();
    packet.extend_from_slice(&question);
    packet.extend_from_slice(&[0, 0, 41, 0x10, 0, 0, 0, choice & 0x80, 0, 0, 0]);
    let mut reply = b"\x12\x34".to_vec();
    reply.extend(rest.iter().take(2));
    if let Some(flags) = reply.get_mut(2) {
        *flags |= 0x80;
    }
    reply.extend_from_slice(&[0, 1]);
    let counts = rest.get(2..8).unwrap_or_default();
    // Few records per section: an input is short.
    reply.extend(counts.iter().enumerate().map(|(at, count)| if at % 2 == 0 { 0 } else { count & 0x1f }));
    reply.extend_from_slice(&question);
    reply.extend_from_slice(rest.get(8..).unwrap_or_default());
    (packet, reply)
}

fn passed(packet: &[u8]) -> Query<'_> {
    match accept(packet) {
        Verdict::Pass(query) => query,
        _ => panic!("the gate takes our own query"),
    }
}

/// The question of a message; its name must not be compressed.
fn own_question(message: &[u8]) -> Option<&[u8]> {
    let (_, end) = wire::Name::read_plain(message, HEADER).ok()?;
    message.get(HEADER..end + 4)
}

/// Bytes of an OPT without options.
const OPT: usize = 11;
