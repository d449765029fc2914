use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, SOA};
use hickory_proto::rr::{DNSClass, Name as HickoryName, RData, Record};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use wire::Name;

use super::*;

/// The transport of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Udp,
    Tcp,
}

/// The server's replies to a query; none means silence.
type Script = fn(&Message, Over) -> Option<Message>;

/// A name server on a loopback address, the same port over UDP and TCP.
struct NameServer {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<(String, Over)>>>,
}

impl NameServer {
    async fn start(script: Script) -> Self {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let server = Self { address: udp.local_addr().unwrap(), asked: Arc::default() };
        let asked = server.asked.clone();
        tokio::spawn(async move {
            let mut octets = [0; 4096];
            while let Ok((length, from)) = udp.recv_from(&mut octets).await {
                if let Some(reply) = react(&octets[..length], Over::Udp, script, &asked) {
                    udp.send_to(&reply, from).await.unwrap();
                }
            }
        });
        let asked = server.asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let asked = asked.clone();
                tokio::spawn(async move {
                    while let Ok(length) = stream.read_u16().await {
                        let mut octets = vec![0; length.into()];
                        stream.read_exact(&mut octets).await.unwrap();
                        if let Some(reply) = react(&octets, Over::Tcp, script, &asked) {
                            stream.write_u16(reply.len() as u16).await.unwrap();
                            stream.write_all(&reply).await.unwrap();
                        }
                    }
                });
            }
        });
        server
    }

    fn asked(&self) -> Vec<(String, Over)> {
        self.asked.lock().unwrap().clone()
    }
}

fn react(octets: &[u8], over: Over, script: Script, asked: &Mutex<Vec<(String, Over)>>) -> Option<Vec<u8>> {
    let query = Message::from_vec(octets).unwrap();
    asked.lock().unwrap().push((query.queries[0].name().to_string(), over));
    script(&query, over).map(|reply| reply.to_vec().unwrap())
}

fn reply(query: &Message, code: ResponseCode, answers: &[Record]) -> Option<Message> {
    let mut reply = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    reply.add_query(query.queries[0].clone());
    reply.metadata.response_code = code;
    (reply.metadata.recursion_desired, reply.metadata.recursion_available) = (true, true);
    reply.add_answers(answers.iter().cloned());
    Some(reply)
}

fn host(name: &str) -> HickoryName {
    HickoryName::from_ascii(name).unwrap()
}

fn record(owner: &str, ttl: u32, data: impl Into<RData>) -> Record {
    let mut record = Record::from_rdata(host(owner), ttl, data.into());
    record.dns_class = DNSClass::IN;
    record
}

fn a(owner: &str, ttl: u32, last: u8) -> Record {
    record(owner, ttl, RData::A(A::new(192, 0, 2, last)))
}

fn alias(owner: &str, ttl: u32, target: &str) -> Record {
    record(owner, ttl, RData::CNAME(CNAME(host(target))))
}

fn soa() -> Record {
    record("test.", 60, RData::SOA(SOA::new(host("ns.test."), host("h.test."), 1, 2, 3, 4, 5)))
}

fn question(name: &str) -> Question {
    Question { name: Name::from_text(name).unwrap(), family: Family::Ipv4 }
}

fn four(lasts: &[u8], ttl: u32) -> LookupOutcome {
    LookupOutcome::Addresses { addresses: lasts.iter().map(|last| [192, 0, 2, *last].into()).collect(), ttl }
}

async fn outcome(servers: &[&NameServer], name: &str) -> LookupOutcome {
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    Resolver::new(&addresses).lookup(question(name), Duration::from_secs(15)).await
}

/// The outcome for each reply, by name.
fn replies(query: &Message, _: Over) -> Option<Message> {
    let name = query.queries[0].name().to_string();
    let ok = |answers: &[Record]| reply(query, ResponseCode::NoError, answers);
    match name.as_str() {
        "two.test." => ok(&[a("two.test.", 300, 9), a("two.test.", 60, 8), a("two.test.", 60, 9)]),
        "case.test." => ok(&[a("CASE.test.", 300, 1)]),
        "alias.test." => ok(&[alias("alias.test.", 20, "b.test."), a("b.test.", 300, 1)]),
        "reversed.test." => ok(&[a("b.test.", 300, 1), alias("reversed.test.", 20, "b.test.")]),
        "far.test." => ok(&[alias("far.test.", 30, "two.test.")]),
        "gone.test." => reply(query, ResponseCode::NXDomain, &[alias("gone.test.", 20, "no.test.")]),
        "circle.test." => ok(&[alias("circle.test.", 20, "circle.test.")]),
        "ping.test." => ok(&[alias("ping.test.", 20, "pong.test.")]),
        "pong.test." => ok(&[alias("pong.test.", 20, "ping.test.")]),
        "other.test." => ok(&[a("victim.test.", 300, 1)]),
        "mixed.test." => ok(&[a("victim.test.", 300, 1), a("mixed.test.", 300, 2)]),
        "six.test." => ok(&[record("six.test.", 9, RData::AAAA(AAAA::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)))]),
        "old.test." => ok(&[a("old.test.", 0x8000_0000, 1)]),
        "empty.test." => ok(&[]),
        "denied.test." | "to-denied.test." => {
            let answers = [alias("to-denied.test.", 20, "denied.test.")];
            let mut reply = ok(if name == "denied.test." { &[] } else { &answers })?;
            reply.authorities.push(soa());
            Some(reply)
        }
        "lame.test." => {
            let mut reply = ok(&[])?;
            reply.authorities.push(record("test.", 60, RData::NS(NS(host("ns.test.")))));
            Some(reply)
        }
        "noedns.test." if query.edns.is_some() => reply(query, ResponseCode::FormErr, &[]),
        "noedns.test." => ok(&[a("noedns.test.", 300, 1)]),
        "no.test." => reply(query, ResponseCode::NXDomain, &[]),
        "refused.test." => reply(query, ResponseCode::Refused, &[]),
        _ => reply(query, ResponseCode::ServFail, &[]),
    }
}

#[tokio::test]
async fn outcomes_of_replies() {
    let server = NameServer::start(replies).await;
    for (name, expected) in [
        ("two.test", four(&[8, 9], 60)),
        ("case.test", four(&[1], 300)),
        ("alias.test", four(&[1], 20)),
        ("reversed.test", four(&[1], 20)),
        ("far.test", four(&[8, 9], 30)),
        ("mixed.test", four(&[2], 300)),
        ("old.test", four(&[1], 0)),
        ("noedns.test", four(&[1], 300)),
        ("no.test", LookupOutcome::NoSuchName),
        ("gone.test", LookupOutcome::NoSuchName),
        ("empty.test", LookupOutcome::NoData),
        ("denied.test", LookupOutcome::NoData),
        ("to-denied.test", LookupOutcome::NoData),
        ("lame.test", LookupOutcome::Failed(LookupError::Referral)),
        ("circle.test", LookupOutcome::Failed(LookupError::Aliases)),
        ("ping.test", LookupOutcome::Failed(LookupError::Aliases)),
        ("other.test", LookupOutcome::Failed(LookupError::Unasked)),
        ("six.test", LookupOutcome::Failed(LookupError::Unasked)),
        ("refused.test", LookupOutcome::Failed(LookupError::Rcode(5))),
        ("anything", LookupOutcome::Failed(LookupError::Rcode(2))),
    ] {
        assert_eq!(outcome(&[&server], name).await, expected, "{name}");
    }
    assert!(server.asked().iter().all(|(_, over)| *over == Over::Udp));
    assert!(server.asked().iter().any(|(name, _)| name == "anything."), "absolute, no search list");
}

#[tokio::test]
async fn without_aliases() {
    let server = NameServer::start(replies).await;
    let unused = NameServer::start(replies).await;
    let resolver = Resolver::new(&[server.address, unused.address]).without_aliases();
    for (name, expected) in [
        ("two.test", four(&[8, 9], 60)),
        ("no.test", LookupOutcome::NoSuchName),
        ("alias.test", LookupOutcome::Failed(LookupError::Alias)),
        ("reversed.test", LookupOutcome::Failed(LookupError::Alias)),
        ("far.test", LookupOutcome::Failed(LookupError::Alias)),
        ("circle.test", LookupOutcome::Failed(LookupError::Alias)),
    ] {
        assert_eq!(resolver.lookup(question(name), Duration::from_secs(15)).await, expected, "{name}");
    }
    assert!(unused.asked().is_empty(), "an alias is an answer");
}

#[tokio::test]
async fn truncated_reply_retries_over_tcp() {
    let server = NameServer::start(|query, over| {
        let mut reply = reply(query, ResponseCode::NoError, &[a("big.test.", 300, 1)])?;
        if over == Over::Udp {
            reply.answers.clear();
            reply.metadata.truncation = true;
        }
        Some(reply)
    })
    .await;
    assert_eq!(outcome(&[&server], "big.test").await, four(&[1], 300));
    let over: Vec<_> = server.asked().into_iter().map(|(_, over)| over).collect();
    assert_eq!(over, [Over::Udp, Over::Tcp]);
}

#[tokio::test]
async fn first_answer_wins() {
    let failing = NameServer::start(|query, _| reply(query, ResponseCode::ServFail, &[])).await;
    let denying = NameServer::start(|query, _| reply(query, ResponseCode::NXDomain, &[])).await;
    let unused = NameServer::start(replies).await;
    assert_eq!(outcome(&[&failing, &denying, &unused], "two.test").await, LookupOutcome::NoSuchName);
    assert_eq!(failing.asked(), [("two.test.".to_owned(), Over::Udp)], "an rcode is an answer of its server");
    assert!(unused.asked().is_empty());
    assert_eq!(outcome(&[], "two.test").await, LookupOutcome::Failed(LookupError::NoServer));
}

#[tokio::test]
async fn silent_server_is_tried_last() {
    let silent = NameServer::start(|_, _| None).await;
    let good = NameServer::start(replies).await;
    let resolver = Resolver::new(&[silent.address, good.address]);
    let within = Duration::from_secs(4);
    assert_eq!(resolver.lookup(question("two.test"), within).await, four(&[8, 9], 60));
    let asked = silent.asked().len();
    assert!(asked > 0, "in order");
    assert_eq!(resolver.lookup(question("case.test"), within).await, four(&[1], 300));
    assert_eq!(silent.asked().len(), asked, "not waited for again");
}

#[tokio::test]
async fn tcp_where_udp_is_dropped() {
    let server =
        NameServer::start(|query, over| if over == Over::Tcp { replies(query, over) } else { None }).await;
    let resolver = Resolver::new(&[server.address]);
    let outcome = resolver.lookup(question("two.test"), Duration::from_secs(4)).await;
    assert_eq!(outcome, four(&[8, 9], 60));
}

#[tokio::test]
async fn round_timeout() {
    let silent = NameServer::start(|_, _| None).await;
    let resolver = Arc::new(Resolver::new(&[silent.address, silent.address]));
    let questions: Vec<_> = (0..CONCURRENT * 3).map(|n| question(&format!("n{n}.test"))).collect();
    let outcomes = resolver.round(&questions, Duration::from_millis(300)).await;
    assert_eq!(outcomes.len(), questions.len());
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, LookupOutcome::Failed(_))));
    let late =
        outcomes.iter().filter(|(_, outcome)| *outcome == LookupOutcome::Failed(LookupError::OutOfTime));
    assert!(late.count() >= CONCURRENT, "lookups that were not begun report it");
}

/// Answers the second query of each name, preceded by the replies of `forged`.
async fn careless(forged: fn(&mut Vec<u8>)) -> SocketAddr {
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = udp.local_addr().unwrap();
    tokio::spawn(async move {
        let mut octets = [0; 4096];
        udp.recv_from(&mut octets).await.unwrap();
        let (length, from) = udp.recv_from(&mut octets).await.unwrap();
        let reply = replies(&Message::from_vec(&octets[..length]).unwrap(), Over::Udp).unwrap();
        let good = reply.to_vec().unwrap();
        let mut bad = good.clone();
        forged(&mut bad);
        for reply in [bad, good] {
            udp.send_to(&reply, from).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn udp_rejects_forged_replies() {
    for (forged, expected) in [
        ((|reply| reply[0] ^= 1) as fn(&mut Vec<u8>), four(&[8, 9], 60)),
        (|reply| reply[2] &= 0x7f, four(&[8, 9], 60)),
        (|reply| reply[13] ^= 1, four(&[8, 9], 60)),
        (|reply| reply.truncate(11), four(&[8, 9], 60)),
        // Id and port match, so that it is the server's; the retry over TCP fails, where no process listens.
        (
            |reply| reply.truncate(40),
            LookupOutcome::Failed(LookupError::Io(io::ErrorKind::ConnectionRefused)),
        ),
    ] {
        let resolver = Resolver::new(&[careless(forged).await]);
        let outcome = resolver.lookup(question("two.test"), Duration::from_secs(8)).await;
        assert_eq!(outcome, expected);
    }
}

#[tokio::test]
async fn tcp_connection_reuse() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        // Two queries over the first connection, which the server then closes, and one over the next.
        for queries in [2, 1] {
            let (mut stream, _) = listener.accept().await.unwrap();
            for _ in 0..queries {
                let mut octets = vec![0; usize::from(stream.read_u16().await.unwrap())];
                stream.read_exact(&mut octets).await.unwrap();
                let reply = replies(&Message::from_vec(&octets).unwrap(), Over::Tcp).unwrap();
                let reply = reply.to_vec().unwrap();
                stream.write_u16(reply.len() as u16).await.unwrap();
                stream.write_all(&reply).await.unwrap();
            }
        }
    });
    // No process listens over UDP.
    let resolver = Resolver::new(&[address]);
    for _ in 0..3 {
        let outcome = resolver.lookup(question("two.test"), Duration::from_secs(8)).await;
        assert_eq!(outcome, four(&[8, 9], 60));
    }
    serving.await.unwrap();
}

/// Reads one query, and answers it.
async fn answer_one(stream: &mut tokio::net::TcpStream) {
    let mut octets = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut octets).await.unwrap();
    let reply = replies(&Message::from_vec(&octets).unwrap(), Over::Tcp).unwrap().to_vec().unwrap();
    stream.write_u16(reply.len() as u16).await.unwrap();
    stream.write_all(&reply).await.unwrap();
}

/// A server that answers one query on each connection answers concurrent lookups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_query_per_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let resolver = Arc::new(Resolver::new(&[listener.local_addr().unwrap()]));
    let serving = tokio::spawn(async move {
        loop {
            answer_one(&mut listener.accept().await.unwrap().0).await;
        }
    });
    let questions: Vec<_> = (0..10).map(|_| question("two.test")).collect();
    let outcomes = resolver.round(&questions, Duration::from_secs(8)).await;
    assert_eq!(outcomes.len(), questions.len());
    for (_, outcome) in outcomes {
        assert_eq!(outcome, four(&[8, 9], 60));
    }
    serving.abort();
}

/// A connection on which a query had no reply is not used again: the server may have forgotten it.
#[tokio::test]
async fn slow_name_delays_no_other() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let resolver = Arc::new(Resolver::new(&[listener.local_addr().unwrap()]));
    let serving = tokio::spawn(async move {
        loop {
            let mut stream = listener.accept().await.unwrap().0;
            tokio::spawn(async move {
                // In the order of the queries; one name has no answer.
                while let Ok(length) = stream.read_u16().await {
                    let mut octets = vec![0; length.into()];
                    stream.read_exact(&mut octets).await.unwrap();
                    let query = Message::from_vec(&octets).unwrap();
                    let is_silent = query.queries[0].name().to_string() == "silent.test.";
                    match replies(&query, Over::Tcp).filter(|_| !is_silent) {
                        Some(reply) => {
                            let reply = reply.to_vec().unwrap();
                            stream.write_u16(reply.len() as u16).await.unwrap();
                            stream.write_all(&reply).await.unwrap();
                        }
                        None => std::future::pending().await,
                    }
                }
            });
        }
    });
    let names = ["silent.test", "two.test", "far.test", "case.test"];
    let outcomes = resolver.round(&names.map(question), Duration::from_secs(8)).await;
    for (asked, outcome) in outcomes {
        let is_silent = outcome == LookupOutcome::Failed(LookupError::Silent);
        assert_eq!(is_silent, asked == question("silent.test"), "{asked:?}: {outcome:?}");
    }
    serving.abort();
}

/// A server that no longer knows the connection does not answer on it: it is replaced within the lookup.
#[tokio::test]
async fn silent_connection_is_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let resolver = Resolver::new(&[listener.local_addr().unwrap()]);
    let serving = tokio::spawn(async move {
        let mut first = listener.accept().await.unwrap().0;
        answer_one(&mut first).await;
        let mut second = listener.accept().await.unwrap().0;
        answer_one(&mut second).await;
        drop(first);
    });
    for _ in 0..2 {
        let outcome = resolver.lookup(question("two.test"), Duration::from_secs(8)).await;
        assert_eq!(outcome, four(&[8, 9], 60));
    }
    serving.await.unwrap();
}
