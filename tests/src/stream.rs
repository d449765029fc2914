//! Sends queries at a constant rate without waiting for replies: measures lost queries.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::ask::Ask;
use crate::clock::now;
use crate::lock::lock;
use crate::message::Message;

/// The results of a stream.
#[derive(Debug, Clone, Default)]
pub struct StreamCounts {
    /// Queries sent.
    pub sent: usize,
    /// Queries with a valid reply.
    pub answered: usize,
    /// Additional replies to a query, or replies to none.
    pub duplicate: usize,
    /// Replies that the check refused.
    pub wrong: usize,
    /// Queries without a reply.
    pub lost: usize,
    /// The time of the slowest valid reply.
    pub slowest: Duration,
    /// The first ten wrong replies.
    pub samples: Vec<String>,
}

impl StreamCounts {
    /// Asserts that every query got exactly one valid reply.
    ///
    /// # Panics
    /// When one did not.
    pub fn assert_clean(&self) {
        let clean =
            self.sent > 0 && self.answered == self.sent && self.duplicate + self.wrong + self.lost == 0;
        assert!(clean, "queries were lost or answered wrongly: {self:?}");
    }
}

/// A running stream.
pub struct Stream {
    shared: Arc<Shared>,
    threads: [JoinHandle<()>; 2],
}

impl Stream {
    /// Sends `rate` queries a second to `server` from one port until [`Self::finish`]; query `n` is
    /// `query(n)`, and `right` checks its reply.
    ///
    /// At most 10,000 a second: an ID may not be reused while its query may still be answered.
    ///
    /// # Panics
    /// When the socket cannot be made.
    pub fn start(
        server: SocketAddr,
        rate: u32,
        query: impl Fn(usize) -> Ask + Send + 'static,
        right: impl Fn(usize, &Message) -> bool + Send + 'static,
    ) -> Self {
        assert!((1..=10_000).contains(&rate), "1 to 10,000 queries a second");
        let any: SocketAddr =
            if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).expect("a client socket can be made");
        socket.connect(server).expect("a UDP socket always connects");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout can be set");
        SockRef::from(&socket).set_recv_buffer_size(4 << 20).ok();
        let shared = Arc::new(Shared { socket, asked: Mutex::default(), stop: AtomicBool::new(false) });
        let (sender, receiver) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = [
            thread::spawn(move || send(&sender, f64::from(rate), query)),
            thread::spawn(move || receive(&receiver, right)),
        ];
        Self { shared, threads }
    }

    /// How many queries were sent so far.
    pub fn sent(&self) -> usize {
        self.shared.lock().sent
    }

    /// Stops sending, waits up to `patience` for outstanding replies, and returns the results.
    ///
    /// # Panics
    /// When a check panicked.
    pub fn finish(self, patience: Duration) -> StreamCounts {
        let Self { shared, threads: [sender, receiver] } = self;
        shared.stop.store(true, Ordering::Relaxed);
        sender.join().expect("the sender does not panic");
        shared.lock().until = Some(now() + patience);
        receiver.join().expect("the check does not panic");
        let state = shared.lock();
        StreamCounts { sent: state.sent, lost: state.sent - state.replied, ..state.counts.clone() }
    }
}

struct Shared {
    socket: UdpSocket,
    asked: Mutex<State>,
    stop: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.asked)
    }
}

#[derive(Default)]
struct State {
    sent: usize,
    /// How many queries have a reply.
    replied: usize,
    /// The last query of each ID.
    last: Vec<Sent>,
    counts: StreamCounts,
    until: Option<Instant>,
}

impl State {
    fn push(&mut self) {
        let sent = Sent { at: now(), replied: false };
        match self.last.get_mut(self.sent % IDS) {
            Some(last) => *last = sent,
            None => self.last.push(sent),
        }
        self.sent += 1;
    }
}

struct Sent {
    at: Instant,
    replied: bool,
}

fn send(shared: &Shared, rate: f64, query: impl Fn(usize) -> Ask) {
    let started = now();
    let mut n = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let due = (started.elapsed().as_secs_f64() * rate) as usize;
        while n < due {
            let bytes = query(n).id(id(n)).bytes();
            shared.lock().push();
            n += 1;
            // The error of an earlier query (ICMP) is returned here once; this query is then not
            // sent.
            if shared.socket.send(&bytes).is_err() {
                drop(shared.socket.send(&bytes));
            }
        }
        sleep(Duration::from_millis(1));
    }
}

fn receive(shared: &Shared, right: impl Fn(usize, &Message) -> bool) {
    let mut buffer = [0; 4096];
    loop {
        let received = shared.socket.recv(&mut buffer);
        let at = now();
        if let Ok(length) = received {
            judge(shared, &buffer[..length], at, &right);
        }
        let state = shared.lock();
        let Some(until) = state.until else { continue };
        if at > until || state.replied == state.sent {
            // Replies that arrive shortly after are duplicates, and must be counted.
            drop(state);
            while let Ok(length) = shared.socket.recv(&mut buffer) {
                judge(shared, &buffer[..length], at, &right);
            }
            return;
        }
    }
}

fn judge(shared: &Shared, bytes: &[u8], at: Instant, right: &impl Fn(usize, &Message) -> bool) {
    let message = Message::decode(bytes);
    let mut state = shared.lock();
    let State { sent, replied, last, counts, .. } = &mut *state;
    let Some(n) = bytes.get(..2).and_then(|octets| index(u16::from_be_bytes([octets[0], octets[1]]), *sent))
    else {
        counts.wrong += 1;
        return;
    };
    let query = &mut last[n % IDS];
    if std::mem::replace(&mut query.replied, true) {
        counts.duplicate += 1;
        return;
    }
    *replied += 1;
    if message.as_ref().is_ok_and(|message| right(n, message)) {
        counts.answered += 1;
        counts.slowest = counts.slowest.max(at.duration_since(query.at));
    } else {
        counts.wrong += 1;
        if counts.samples.len() < 10 {
            counts.samples.push(format!("query {n}: {message:?}"));
        }
    }
}

fn id(n: usize) -> u16 {
    (n % IDS) as u16
}

/// The index of the last query sent with this ID.
fn index(id: u16, sent: usize) -> Option<usize> {
    let newest = (sent / IDS) * IDS + usize::from(id);
    if newest < sent { Some(newest) } else { newest.checked_sub(IDS) }
}

/// The number of IDs.
const IDS: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Upstream, fresh_ip};

    #[test]
    fn lost_wrong_and_duplicate_are_counted() {
        let reply = || Action::answer("x.example. 30 IN A 192.0.2.1");
        let upstream = Upstream::start(fresh_ip(), move |asked| match asked.id % 10 {
            3 => Action::Silent,
            4 => Action::Both(Box::new(reply()), Box::new(reply())),
            5 => Action::rcode(2),
            _ => reply(),
        });
        let right = |_, message: &Message| message.rcode() == 0;
        let stream = Stream::start(upstream.address(), 1000, |_| Ask::new("x.example", "A"), right);
        crate::eventually("100 queries", Duration::from_secs(5), || (stream.sent() >= 100).then_some(()));
        let counts = stream.finish(Duration::from_millis(300));
        let tens = counts.sent / 10;
        assert!(counts.lost.abs_diff(tens) <= 1 && counts.wrong.abs_diff(tens) <= 1, "{counts:?}");
        assert!(
            counts.duplicate.abs_diff(tens) <= 1 && counts.answered.abs_diff(8 * tens) <= 8,
            "{counts:?}"
        );
    }
}
