//! A client that sends its queries over one TCP connection, several in flight (RFC 7766, 6.2): when
//! the server ends the connection, the client repeats the unanswered queries over a new one.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use crate::ask::Ask;
use crate::clock::now;
use crate::message::Message;

/// The results of a [`Persistent`] client.
#[derive(Debug, Clone, Default)]
pub struct PersistentCounts {
    /// Queries, each counted once even if repeated.
    pub asked: usize,
    /// Valid replies.
    pub answered: usize,
    /// How many queries were repeated over another connection.
    pub again: usize,
    /// How often the server ended a connection by FIN.
    pub ends: usize,
    /// Failures: a reset, a refusal, a wrong, duplicate or missing reply.
    pub failed: Vec<String>,
}

impl PersistentCounts {
    /// Asserts that every query got exactly one valid reply, and that every connection ended by
    /// FIN.
    ///
    /// # Panics
    /// When one did not.
    pub fn assert_clean(&self) {
        assert!(self.asked > 0 && self.answered == self.asked && self.failed.is_empty(), "{self:?}");
    }
}

/// A running client.
pub struct Persistent {
    asked: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<PersistentCounts>,
}

impl Persistent {
    /// Sends `server` four queries at once, and four more 10 ms after their replies, until
    /// [`Self::finish`]; query `n` is `query(n)`, and `right` checks its reply.
    pub fn start(
        server: SocketAddr,
        query: impl Fn(usize) -> Ask + Send + 'static,
        right: impl Fn(usize, &Message) -> bool + Send + 'static,
    ) -> Self {
        let (asked, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, over) = (asked.clone(), stop.clone());
        let thread = thread::spawn(move || {
            let mut client =
                Client { server, open: None, out: BTreeMap::new(), counts: PersistentCounts::default() };
            while !over.load(Relaxed) && client.counts.failed.len() < ENOUGH {
                let next = now() + PAUSE;
                client.ask(&query);
                client.receive(&query, &right);
                count.store(client.counts.asked, Relaxed);
                // The server may end the connection during this: the next queries are then
                // unanswered at the FIN.
                sleep(next.saturating_duration_since(now()));
            }
            client.counts
        });
        Self { asked, stop, thread }
    }

    /// How many queries were sent so far.
    pub fn asked(&self) -> usize {
        self.asked.load(Relaxed)
    }

    /// Stops the client and returns its results.
    ///
    /// # Panics
    /// When a check panicked.
    pub fn finish(self) -> PersistentCounts {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("the check does not panic")
    }
}

struct Client {
    server: SocketAddr,
    open: Option<Open>,
    /// Unanswered queries by their ID.
    out: BTreeMap<u16, usize>,
    counts: PersistentCounts,
}

struct Open {
    stream: TcpStream,
    received: Vec<u8>,
}

/// How a connection ended.
enum End {
    /// By FIN, which a client sees as the end of its input, or as EPIPE when it writes.
    Fin,
    Otherwise(String),
}

impl Client {
    /// Sends the next queries.
    fn ask(&mut self, query: &impl Fn(usize) -> Ask) {
        let next = self.counts.asked..self.counts.asked + TOGETHER;
        self.counts.asked = next.end;
        self.out.extend(next.map(|n| (n as u16, n)));
        self.send(query);
    }

    /// Sends all unanswered queries at once, over a new connection if there is none.
    fn send(&mut self, query: &impl Fn(usize) -> Ask) {
        if self.open.is_none() {
            match TcpStream::connect_timeout(&self.server, PATIENCE) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE)).expect("it can be set");
                    stream.set_nodelay(true).expect("it can be set");
                    self.open = Some(Open { stream, received: Vec::new() });
                }
                Err(error) => return self.give_up(&format!("connect: {error}")),
            }
        }
        let framed = self.out.iter().flat_map(|(id, n)| {
            let bytes = query(*n).id(*id).bytes();
            let length = u16::try_from(bytes.len()).expect("a short query");
            [&length.to_be_bytes()[..], &bytes].concat()
        });
        let framed: Vec<u8> = framed.collect();
        let sent = self.open.as_mut().map(|open| open.stream.write_all(&framed));
        match sent {
            // The server has already ended the connection; the end is read below.
            Some(Err(error)) if error.kind() != ErrorKind::BrokenPipe => {
                self.give_up(&format!("write: {error}"))
            }
            _ => {}
        }
    }

    /// Reads until no query is unanswered, over as many connections as needed.
    fn receive(&mut self, query: &impl Fn(usize) -> Ask, right: &impl Fn(usize, &Message) -> bool) {
        while !self.out.is_empty() {
            match self.open.as_mut().map(Open::message) {
                None => return,
                Some(Ok(reply)) => self.judge(&reply, right),
                Some(Err(End::Fin)) => {
                    self.counts.ends += 1;
                    self.counts.again += self.out.len();
                    self.open = None;
                    self.send(query);
                }
                Some(Err(End::Otherwise(why))) => self.give_up(&why),
            }
        }
    }

    fn judge(&mut self, reply: &[u8], right: &impl Fn(usize, &Message) -> bool) {
        let message = Message::decode(reply);
        let n = message.as_ref().ok().and_then(|message| self.out.remove(&message.id));
        match (n, message) {
            (Some(n), Ok(message)) if right(n, &message) => self.counts.answered += 1,
            (n, message) => self.counts.failed.push(format!("query {n:?}: {message:?}")),
        }
    }

    /// Counts the unanswered queries as failed.
    fn give_up(&mut self, why: &str) {
        self.counts.failed.push(format!(
            "{} of {} queries unanswered: {why}",
            self.out.len(),
            self.counts.asked
        ));
        self.out.clear();
        self.open = None;
    }
}

impl Open {
    fn message(&mut self) -> Result<Vec<u8>, End> {
        let mut buffer = [0; 4096];
        loop {
            let length = self.received.first_chunk().map(|octets| usize::from(u16::from_be_bytes(*octets)));
            if let Some(length) = length.filter(|length| self.received.len() >= 2 + length) {
                let rest = self.received.split_off(2 + length);
                return Ok(std::mem::replace(&mut self.received, rest).split_off(2));
            }
            match self.stream.read(&mut buffer) {
                Ok(0) if self.received.is_empty() => return Err(End::Fin),
                Ok(0) => return Err(End::Otherwise("the end in the midst of a reply".to_owned())),
                Ok(count) => self.received.extend(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(End::Otherwise(format!("read: {error}"))),
            }
        }
    }
}

/// The number of queries sent at once.
const TOGETHER: usize = 4;
const PAUSE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of failures after which the client stops.
const ENOUGH: usize = 10;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::eventually;

    /// Answers `answers` queries of each connection, then ends it: by RST with unread data, or by
    /// FIN.
    fn server(answers: usize, resets: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("it has one");
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                for _ in 0..answers {
                    let mut length = [0; 2];
                    if stream.read_exact(&mut length).is_err() {
                        break;
                    }
                    let mut query = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut query).expect("a whole query");
                    query[2] |= 0x80;
                    stream.write_all(&[&length[..], &query].concat()).expect("it is read");
                }
                if !resets {
                    stream.shutdown(std::net::Shutdown::Write).expect("it is open");
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                }
            }
        });
        at
    }

    /// Unanswered queries are sent again after a FIN; a reset is reported.
    #[test]
    fn fin_repeats_and_reset_reports() {
        let run = |answers, resets| {
            let query = |n| Ask::new(&format!("n{n}.example"), "A");
            let client = Persistent::start(server(answers, resets), query, |_, message| message.rcode() == 0);
            eventually("queries", PATIENCE, || {
                (client.asked() >= 40 || client.thread.is_finished()).then_some(())
            });
            client.finish()
        };
        let counts = run(6, false);
        counts.assert_clean();
        // Of eight queries the last two are repeated, of the next ones none, and so on.
        assert!(counts.ends >= counts.asked / 6 - 1 && counts.again > 0, "{counts:?}");
        let counts = run(6, true);
        assert!(counts.failed.iter().any(|failure| failure.contains("reset")), "{counts:?}");
    }
}
