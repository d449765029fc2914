//! Clients of every kind that send queries at a steady rate and record the result of each.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::thread::{Scope, sleep};
use std::time::{Duration, Instant};

use tests::{Ask, Message, eventually, now, run};

use super::figures::Query;
use super::line::Line;
use crate::clients::at;
use crate::lab::{CLUSTER, NAME, PLAIN, POD, US, within_scope};

/// How a client sends its queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Each query from its own port, like glibc.
    Udp,
    /// All queries from one port, like c-ares, Netty and dnsdist.
    OnePort,
    /// A connection for each query.
    Tcp,
    /// One connection for all queries, reopened when it ends or has been silent for a query's
    /// timeout.
    Connection,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Udp, Self::OnePort, Self::Tcp, Self::Connection];

    pub(super) fn over_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::Connection)
    }
}

/// One client.
pub(super) struct Client {
    pub(super) place: Option<&'static str>,
    pub(super) way: Way,
    pub(super) ip: &'static str,
    /// The upstream that answers while the server does not.
    pub(super) upstream: &'static str,
    queries: Mutex<Vec<Query>>,
}

impl Client {
    /// Describes the client.
    pub(super) fn name(&self) -> String {
        format!("{} over {:?} at {}", self.place.unwrap_or("host"), self.way, self.ip)
    }

    /// Its queries, from the first on.
    pub(super) fn queries(&self) -> MutexGuard<'_, Vec<Query>> {
        self.queries.lock().expect("no thread panics with it")
    }

    /// Its latest answers, and conntrack's entries for its address.
    fn summary(&self) -> String {
        let responder: Vec<_> = self.queries().iter().rev().take(100).map(|query| query.responder).collect();
        let tracked = run("sh", &["-c", &format!("conntrack -L -d {} 2>&1 | tail -n 20", self.ip)]);
        format!("{responder:?}\n{tracked}")
    }

    /// Whether the last few answers to queries since then are the expected ones.
    fn is_answered(&self, since: Instant, is_expected: impl Fn(&str) -> bool) -> bool {
        let queries = self.queries();
        let asked_since = queries.iter().rev().take_while(|query| query.asked >= since);
        let answers: Vec<_> = asked_since.filter_map(|query| query.responder).take(SETTLED).collect();
        answers.len() == SETTLED && answers.into_iter().all(is_expected)
    }
}

/// All clients: from the pod and the host, to each address.
pub(super) struct Load {
    pub(super) clients: Vec<Client>,
    over: AtomicBool,
}

impl Load {
    pub(super) fn new() -> Self {
        let client =
            |place, way, (ip, upstream)| Client { place, way, ip, upstream, queries: Mutex::default() };
        let ways =
            |place| Way::ALL.map(|way| WAYS_OUT.map(|to| client(place, way, to))).into_iter().flatten();
        Self { clients: PLACES.into_iter().flat_map(ways).collect(), over: AtomicBool::new(false) }
    }

    /// Sends `rate` queries a second over UDP, and as many over TCP, of all clients together, until
    /// [`Load::end`].
    pub(super) fn start<'s>(&'s self, scope: &'s Scope<'s, '_>, rate: f64) {
        for place in PLACES {
            for over_tcp in [false, true] {
                let of_these = |client: &&Client| client.place == place && client.way.over_tcp() == over_tcp;
                let clients: Vec<_> = self.clients.iter().filter(of_these).collect();
                let each = rate / (clients.len() * PLACES.len()) as f64;
                within_scope(scope, place, move || {
                    let mut asking: Vec<_> = clients.iter().copied().map(Asking::new).collect();
                    let began = now();
                    while !self.over.load(Relaxed) {
                        let due = began.elapsed().as_secs_f64() * each;
                        for (n, asking) in asking.iter_mut().enumerate() {
                            // Staggered.
                            asking.turn((due + n as f64 / clients.len() as f64) as usize);
                        }
                        // The clock decides which queries are due.
                        sleep(Duration::from_millis(1));
                    }
                });
            }
        }
    }

    pub(super) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// Waits until each client has several expected answers in a row.
    pub(super) fn settle(&self, what: &str, is_expected: impl Fn(&Client, &str) -> bool) {
        self.settle_where(|_| true, what, is_expected);
    }

    /// Like [`Self::settle`], for some clients.
    pub(super) fn settle_where(
        &self,
        of: impl Fn(&Client) -> bool,
        what: &str,
        is_expected: impl Fn(&Client, &str) -> bool,
    ) {
        let since = now();
        for client in self.clients.iter().filter(|client| of(client)) {
            let until = now() + LONG;
            while !client.is_answered(since, |responder| is_expected(client, responder)) {
                assert!(now() < until, "{what}: {} is answered by {}", client.name(), client.summary());
                sleep(Duration::from_millis(2));
            }
        }
    }

    /// Waits until each query before `end` is answered or has timed out.
    pub(super) fn decide(&self, end: Instant) {
        eventually("the time of the last queries", LONG, || {
            let is_over =
                |query: &Query| query.responder.is_some() || query.asked.elapsed() > PATIENCE + A_TURN;
            let decided = |client: &Client| {
                let queries = client.queries();
                queries.iter().rev().skip_while(|query| query.asked >= end).take_while(recent).all(is_over)
            };
            self.clients.iter().all(decided).then_some(())
        });
    }
}

/// Whether a client may still wait for it.
fn recent(query: &&Query) -> bool {
    query.asked.elapsed() < 2 * PATIENCE
}

/// A running client.
struct Asking<'c> {
    client: &'c Client,
    asked: usize,
    /// The persistent connection, or the fixed port.
    kept: Option<Line>,
    open: Vec<Open>,
}

/// A query without an answer so far.
struct Open {
    number: usize,
    asked: Instant,
    /// Its own socket; `None` if it uses the kept one.
    line: Option<Line>,
}

impl<'c> Asking<'c> {
    fn new(client: &'c Client) -> Self {
        Self { client, asked: 0, kept: None, open: Vec::new() }
    }

    /// Reads replies, sends due queries, and gives up late ones. Like an event loop, a client sees
    /// a connection's end before it sends over it.
    fn turn(&mut self, due: usize) {
        match self.client.way {
            Way::Udp | Way::Tcp => self.receive_each(),
            Way::OnePort | Way::Connection => self.receive_kept(),
        }
        while self.asked < due {
            self.asked += 1;
            self.ask();
        }
        let before = self.open.len();
        self.open.retain(|open| open.asked.elapsed() < PATIENCE);
        if self.client.way == Way::Connection && self.open.len() < before {
            self.hang_up();
        }
    }

    fn ask(&mut self) {
        let (to, asked) = (at(self.client.ip), now());
        let number = {
            let mut queries = self.client.queries();
            queries.push(Query { asked, responder: None });
            queries.len() - 1
        };
        let query = Ask::new(NAME, "A").id(number as u16).bytes();
        let own = matches!(self.client.way, Way::Udp | Way::Tcp);
        let line = if own { None } else { self.kept.take() };
        // No route: the query is lost.
        let Some(mut line) = line.or_else(|| Line::open(to, self.client.way)) else { return };
        match (line.send(&query), self.client.way) {
            (Ok(()), _) => {}
            // The client keeps its port.
            (Err(_), Way::OnePort) => return self.kept = Some(line),
            (Err(_), _) => return self.hang_up(),
        }
        let line = if own { Some(line) } else { self.kept.replace(line) };
        self.open.push(Open { number, asked, line });
    }

    fn receive_each(&mut self) {
        let client = self.client;
        self.open.retain_mut(|open| match open.line.as_mut().map(Line::receive) {
            Some(Ok(None)) => true,
            Some(Ok(Some(reply))) => {
                answered(client, open.number, &reply);
                false
            }
            None | Some(Err(_)) => false,
        });
    }

    fn receive_kept(&mut self) {
        while let Some(line) = &mut self.kept {
            match line.receive() {
                Ok(None) => return,
                Ok(Some(reply)) => {
                    let is_its = |open: &Open| reply[..2] == (open.number as u16).to_be_bytes();
                    if let Some(index) = self.open.iter().position(is_its) {
                        answered(self.client, self.open.swap_remove(index).number, &reply);
                    }
                }
                Err(_) => self.hang_up(),
            }
        }
    }

    /// Drops a connection that has ended, and the queries over it.
    fn hang_up(&mut self) {
        self.kept = None;
        self.open.retain(|open| open.line.is_some());
    }
}

fn answered(client: &Client, number: usize, reply: &[u8]) {
    let message = Message::decode(reply);
    let address = message.as_ref().ok().and_then(|message| message.answers.first());
    let responder = [US, CLUSTER, PLAIN]
        .into_iter()
        .find(|responder| address.is_some_and(|record| record.data == *responder));
    client.queries()[number].responder = Some(responder.unwrap_or(SOMETHING_ELSE));
}

/// Places of the clients.
pub(super) const PLACES: [Option<&str>; 2] = [None, Some(POD)];
/// The lab's addresses, and the upstream that answers there when the server does not.
pub(super) const WAYS_OUT: [(&str, &str); 4] =
    [("169.254.10.10", CLUSTER), ("169.254.10.11", PLAIN), ("fd10::11", PLAIN), ("10.96.0.20", CLUSTER)];
/// Stands for an answer that no known server gives.
const SOMETHING_ELSE: &str = "something else";
/// Answers in a row.
const SETTLED: usize = 5;
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum length of a turn, which gives up late queries.
const A_TURN: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(30);
