//! Sends queries as fast as the server answers: at most a window of queries is in flight, and each
//! reply admits the next.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::ask::Ask;
use crate::clock::now;
use crate::message::Message;
use crate::stream::StreamCounts;

/// Sends `count` queries from one port, at most `window` in flight, and waits up to 6 s for each
/// reply. Query `n` is `query(n)`, and `right` checks its reply.
///
/// # Panics
/// When the socket cannot be made, or the window is above 1,000.
pub fn flood(
    server: SocketAddr,
    count: usize,
    window: usize,
    query: impl Fn(usize) -> Ask,
    right: impl Fn(usize, &Message) -> bool,
) -> StreamCounts {
    assert!((1..=1_000).contains(&window), "a window of 1 to 1,000");
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a client socket can be made");
    socket.connect(server).expect("a UDP socket always connects");
    socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout can be set");
    SockRef::from(&socket).set_recv_buffer_size(4 << 20).ok();
    let mut counts = StreamCounts::default();
    let mut out = HashMap::<u16, (usize, Instant)>::new();
    let mut looked = now();
    let mut buffer = [0; 4096];
    while counts.sent < count || !out.is_empty() {
        while out.len() < window && counts.sent < count {
            let n = counts.sent;
            // IDs wrap after 65,536 queries; one that still waits for its reply then is skipped.
            let id = n as u16;
            counts.sent += 1;
            if out.insert(id, (n, now())).is_some() {
                counts.lost += 1;
            }
            // A refused send counts as a lost query.
            drop(socket.send(&query(n).id(id).bytes()));
        }
        if let Ok(length) = socket.recv(&mut buffer) {
            judge(&buffer[..length], &mut out, &mut counts, &right);
        }
        if looked.elapsed() > Duration::from_millis(100) {
            looked = now();
            let before = out.len();
            out.retain(|_, (_, sent)| sent.elapsed() < PATIENCE);
            counts.lost += before - out.len();
        }
    }
    counts
}

fn judge(
    bytes: &[u8],
    out: &mut HashMap<u16, (usize, Instant)>,
    counts: &mut StreamCounts,
    right: &impl Fn(usize, &Message) -> bool,
) {
    let message = Message::decode(bytes);
    let found = message.as_ref().ok().and_then(|message| out.remove(&message.id));
    match (found, message) {
        (Some((n, sent)), Ok(message)) if right(n, &message) => {
            counts.answered += 1;
            counts.slowest = counts.slowest.max(sent.elapsed());
        }
        (Some((n, _)), message) => {
            counts.wrong += 1;
            if counts.samples.len() < 10 {
                counts.samples.push(format!("query {n}: {message:?}"));
            }
        }
        (None, Ok(_)) => counts.duplicate += 1,
        (None, Err(_)) => counts.wrong += 1,
    }
}

const PATIENCE: Duration = Duration::from_secs(6);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Upstream, fresh_ip};

    #[test]
    fn it_counts_every_query_once() {
        let upstream = Upstream::start(fresh_ip(), |asked| match asked.name.as_str() {
            "7.example." => Action::Silent,
            "8.example." => Action::rcode(2),
            _ => Action::answer(&format!("{} 30 IN A 192.0.2.1", asked.name)),
        });
        let query = |n| Ask::new(&format!("{n}.example"), "A");
        let counts = flood(upstream.address(), 1_000, 50, query, |_, message| message.rcode() == 0);
        assert_eq!(
            (counts.sent, counts.answered, counts.wrong, counts.lost),
            (1_000, 998, 1, 1),
            "{counts:?}"
        );
        assert_eq!(counts.duplicate, 0);
    }
}
