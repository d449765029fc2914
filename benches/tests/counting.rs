//! The load against servers with scripted faults: every fault is counted once, as its kind.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use benches::responder::upstream;
use load::counts::{RunCounts, Window};
use load::flood::{self, Edge, FloodPlan, Pace, Transport};
use load::workload::Workload;

#[test]
fn every_fault_of_a_udp_server_is_counted_once() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let addr = socket.local_addr().expect("bound");
    // Sends one faulty reply of each kind in ten queries; the thread ends with the test.
    thread::spawn(move || {
        let mut bytes = [0; 512];
        for number in 0.. {
            let Ok((length, peer)) = socket.recv_from(&mut bytes) else { return };
            let mut reply = Vec::new();
            assert!(upstream(&bytes[..length], &mut reply));
            let last = reply.len() - 1;
            match number % 10 {
                0 => continue,
                1 => drop(socket.send_to(&reply, peer)),
                2 => reply[3] = 0x82,
                3 => reply[14] ^= 1,
                4 => reply[last] ^= 1,
                // An id that no query had.
                5 => drop(socket.send_to(&[&[0x80, 0], &reply[2..]].concat(), peer)),
                // A message that is a query, not a reply.
                6 => drop(socket.send_to(&bytes[..length], peer)),
                _ => {}
            }
            drop(socket.send_to(&reply, peer));
        }
    });
    let (counts, window) = load(addr, Transport::Udp, Pace::Closed(32), 400);
    assert_eq!((counts.sent, counts.answered, counts.lost), (400, 360, 40));
    assert_eq!((counts.replies, counts.latency.len(), counts.late, counts.unsent), (360, 360, 0, 0));
    assert_eq!((counts.duplicates, counts.strays), (40, 80));
    assert_eq!((counts.wrong_rcode, counts.wrong_question, counts.wrong_address), (40, 40, 40));
    assert!(counts.latency.max_ns() < 2_000_000_000 && window.seconds() > 0.0);
}

#[test]
fn an_open_loop_charges_a_stalled_server_for_every_query_it_held_up() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let addr = socket.local_addr().expect("bound");
    // The server sends no answer until it has received the last query, then all answers.
    thread::spawn(move || {
        let mut held = Vec::new();
        let mut bytes = [0; 512];
        for number in 1.. {
            let Ok((length, peer)) = socket.recv_from(&mut bytes) else { return };
            let mut reply = Vec::new();
            assert!(upstream(&bytes[..length], &mut reply));
            held.push((reply, peer));
            if number == 200 {
                for (reply, peer) in held.drain(..) {
                    drop(socket.send_to(&reply, peer));
                }
            }
        }
    });
    // 200 queries in 200 ms: the first waits 199 ms, the one in the middle 100 ms, the last not at all.
    let (counts, _) = load(addr, Transport::Udp, Pace::Open(1000), 200);
    assert_eq!((counts.sent, counts.answered, counts.wrong()), (200, 200, 0));
    assert!(counts.latency.max_ns() >= 199_000_000, "{}", counts.latency.max_ns());
    assert!(counts.latency.quantile_ns(0.5) >= 99_000_000, "{}", counts.latency.quantile_ns(0.5));
}

#[test]
fn pipelined_replies_find_their_queries_in_any_order_and_a_lost_connection_is_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("bound");
    // Answers pairs of queries in reverse order and disconnects after 20 queries, once; then
    // answers each.
    thread::spawn(move || {
        for (connection, stream) in (0..).zip(listener.incoming()) {
            let Ok(mut stream) = stream else { return };
            let mut before: Option<Vec<u8>> = None;
            for number in 1.. {
                let mut length = [0; 2];
                if stream.read_exact(&mut length).is_err() {
                    break;
                }
                let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
                if stream.read_exact(&mut query).is_err() {
                    break;
                }
                let mut reply = Vec::new();
                assert!(upstream(&query, &mut reply));
                let framed = [&(reply.len() as u16).to_be_bytes()[..], &reply].concat();
                match before.take() {
                    None if connection == 0 => before = Some(framed),
                    before => drop(stream.write_all(&[framed, before.unwrap_or_default()].concat())),
                }
                if connection == 0 && number == 20 {
                    break;
                }
            }
        }
    });
    let (counts, _) = load(addr, Transport::Tcp, Pace::Closed(8), 400);
    assert_eq!((counts.sent, counts.answered + counts.lost), (400, 400));
    // Only queries that were in flight when the connection ended are lost.
    assert!((1..=8).contains(&counts.lost), "{}", counts.lost);
    assert!(counts.network_errors >= 1);
    assert_eq!((counts.wrong(), counts.strays, counts.duplicates), (0, 0, 0));
}

/// Without a server every query is lost, and the load ends.
#[test]
fn absent_server_loses_every_query() {
    let addr = UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let (counts, _) = load(addr, Transport::Udp, Pace::Closed(40), 40);
    assert_eq!((counts.answered, counts.replies), (0, 0));
    assert_eq!(counts.sent + counts.unsent, 40);
    assert!(counts.network_errors > 0);
}

/// Runs a load with one lane, no warm-up, 1.5 s of patience and `queries_max` queries.
fn load(target: SocketAddr, transport: Transport, pace: Pace, queries_max: u64) -> (RunCounts, Window) {
    let plan = FloodPlan {
        transport,
        pace,
        lanes: 1,
        warmup: Duration::ZERO,
        window: Duration::from_secs(30),
        patience: Duration::from_millis(1500),
        queries_max,
        ..FloodPlan::closed(vec![target], vec![])
    };
    let workload = Workload::new(&["cached:100".parse().expect("a kind")], 1).expect("a workload");
    let mut edges = Vec::new();
    let outcome = flood::run(&plan, &workload, |edge| edges.push(edge)).expect("a load");
    assert_eq!(edges, [Edge::Begin, Edge::End]);
    outcome
}
