//! Clients that behave like stub resolvers: they repeat a query each second and give up after five.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{Scope, sleep};
use std::time::{Duration, Instant};

use tests::{Ask, Message, now};

use super::UPSTREAMS;
use crate::clients::at;
use crate::lab::{NAME, US, within_scope};

/// Results of the queries of all clients.
#[derive(Debug, Default)]
pub(super) struct Questions {
    pub(super) asked: AtomicUsize,
    /// The part sent over UDP, at the requested rate.
    pub(super) over_udp: AtomicUsize,
    pub(super) over: AtomicBool,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Number of queries answered within the n-th second.
    answered: BTreeMap<u64, usize>,
    slowest: Duration,
    /// Error replies by rcode; the query stays open.
    refused: BTreeMap<u16, usize>,
    /// Answers that neither the server nor an upstream gives.
    strange: Vec<String>,
    /// Queries without an answer: client, and time of the first attempt.
    unanswered: Vec<(String, Instant)>,
}

/// One client.
#[derive(Clone, Copy)]
struct Client {
    place: Option<&'static str>,
    ip: &'static str,
    way: Way,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Each query from its own port, like glibc.
    Udp,
    /// All queries from one port, like c-ares and Netty.
    OnePort,
    /// A connection for each query.
    Tcp,
}

impl Questions {
    /// Starts clients in each place for each address: over UDP at `rate` queries a second in total,
    /// and over TCP.
    pub(super) fn ask<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        places: &[Option<&'static str>],
        ips: &[&'static str],
        rate: f64,
    ) {
        let rate = rate / (places.len() * ips.len() * 2) as f64;
        for &place in places {
            for &ip in ips {
                for way in [Way::Udp, Way::OnePort, Way::Tcp] {
                    let client = Client { place, ip, way };
                    within_scope(scope, place, move || match way {
                        Way::Tcp => client.over_tcp(self),
                        _ => client.over_udp(self, rate),
                    });
                }
            }
        }
    }

    /// Counts an answer, or a failure where the client has given up by then.
    fn answer(&self, client: Client, first: Instant) {
        let after = first.elapsed();
        if after > PATIENCE {
            return self.give_up(client, first);
        }
        let mut counts = self.counts.lock().expect("no thread panics with it");
        *counts.answered.entry(after.as_secs()).or_default() += 1;
        counts.slowest = counts.slowest.max(after);
    }

    fn refuse(&self, rcode: u16) {
        *self.counts.lock().expect("no thread panics with it").refused.entry(rcode).or_default() += 1;
    }

    /// Whether the server or one of its upstreams gives this answer for the name.
    fn is_right(&self, client: Client, name: &str, data: &str) -> bool {
        let ours = name == NAME && data == US;
        let is_right = ours || UPSTREAMS.iter().any(|(_, responder)| data == *responder);
        if !is_right {
            let strange = format!("{}: {name} is {data}", client.label());
            self.counts.lock().expect("no thread panics with it").strange.push(strange);
        }
        is_right
    }

    fn give_up(&self, client: Client, first: Instant) {
        let client = client.label();
        self.counts.lock().expect("no thread panics with it").unanswered.push((client, first));
    }

    /// Describes the results.
    pub(super) fn summary(&self) -> String {
        let counts = self.counts.lock().expect("no thread panics with it");
        let seconds: Vec<_> = counts
            .answered
            .iter()
            .map(|(second, count)| format!("{count} in second {}", second + 1))
            .collect();
        format!(
            "{} questions, answered {}, at most after {:.2?}; refused by rcode {:?}; unanswered {}",
            self.asked.load(Relaxed),
            seconds.join(", "),
            counts.slowest,
            counts.refused,
            counts.unanswered.len()
        )
    }

    /// Queries without an answer within 5 s, with the time since `began`; error replies; answers of
    /// unknown origin.
    pub(super) fn failed(&self, began: Instant) -> Vec<String> {
        let counts = self.counts.lock().expect("no thread panics with it");
        let unanswered = counts.unanswered.iter().map(|(client, first)| {
            format!("{client}, asked at {:.2} s", first.saturating_duration_since(began).as_secs_f64())
        });
        let refused =
            counts.refused.iter().map(|(rcode, count)| format!("{count} replies with rcode {rcode}"));
        unanswered.chain(refused).chain(counts.strange.iter().cloned()).collect()
    }
}

/// A query without an answer so far.
struct Open {
    id: u16,
    name: String,
    first: Instant,
    again: Instant,
    socket: Rc<Port>,
}

/// A socket that is created once there is a route.
#[derive(Default)]
struct Port(RefCell<Option<UdpSocket>>);

impl Port {
    fn send(&self, to: SocketAddr, bytes: &[u8]) {
        let mut socket = self.0.borrow_mut();
        if socket.is_none() {
            let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
            let made = UdpSocket::bind((any, 0)).expect("there are ports");
            made.set_nonblocking(true).expect("it can be set");
            *socket = made.connect(to).is_ok().then_some(made);
        }
        // Refused or unreachable: the client sends the query again.
        let _ = socket.as_ref().map(|socket| socket.send(bytes));
    }

    fn receive(&self) -> Option<Message> {
        let mut buffer = [0; 512];
        let socket = self.0.borrow();
        loop {
            match socket.as_ref()?.recv(&mut buffer) {
                Ok(length) => return Message::decode(&buffer[..length]).ok(),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
                // The refusal (ICMP) of an earlier query.
                Err(_) => {}
            }
        }
    }
}

impl Client {
    /// Describes the client.
    fn label(self) -> String {
        format!("{} over {:?} at {}", self.place.unwrap_or("host"), self.way, self.ip)
    }

    /// Nine of ten queries are for a name in `hosts`, the tenth for one that is forwarded.
    fn name(self, n: usize) -> String {
        match n % 10 {
            0 => format!("n{n}.{:?}.{}.test", self.way, self.place.unwrap_or("host")),
            _ => NAME.to_owned(),
        }
    }

    fn over_udp(self, questions: &Questions, rate: f64) {
        let (to, began, one) = (at(self.ip), now(), Rc::<Port>::default());
        let (mut n, mut open) = (0, Vec::<Open>::new());
        loop {
            let over = questions.over.load(Relaxed);
            let due = (began.elapsed().as_secs_f64() * rate) as usize;
            while n < due && !over {
                n += 1;
                questions.asked.fetch_add(1, Relaxed);
                questions.over_udp.fetch_add(1, Relaxed);
                let socket = if self.way == Way::OnePort { one.clone() } else { Rc::default() };
                let first = now();
                open.push(Open { id: n as u16, name: self.name(n), first, again: first, socket });
            }
            for question in open.iter_mut().filter(|question| question.again <= now()) {
                question.again += Duration::from_secs(1);
                question.socket.send(to, &Ask::new(&question.name, "A").id(question.id).bytes());
            }
            let sockets: Vec<_> = open.iter().map(|question| question.socket.clone()).collect();
            for socket in sockets {
                while let Some(reply) = socket.receive() {
                    self.judge(questions, &mut open, &socket, &reply);
                }
            }
            open.retain(|question| {
                let is_open = question.first.elapsed() < PATIENCE;
                if !is_open {
                    questions.give_up(self, question.first);
                }
                is_open
            });
            if over && open.is_empty() {
                return;
            }
            sleep(Duration::from_millis(2));
        }
    }

    fn over_tcp(self, questions: &Questions) {
        let mut n = 0;
        while !questions.over.load(Relaxed) {
            n += 1;
            questions.asked.fetch_add(1, Relaxed);
            let (first, name) = (now(), self.name(n));
            let answered = (1..=PATIENCE.as_secs() as u32).any(|second| {
                let asked = Ask::new(&name, "A").tcp().timeout(Duration::from_secs(1)).try_of(at(self.ip));
                match asked.as_ref().map(|reply| (reply.rcode(), &reply.answers[..])) {
                    Ok((0, [one])) if questions.is_right(self, &name, &one.data) => return true,
                    Ok((0, [_])) | Err(_) => {}
                    Ok((rcode, _)) => questions.refuse(rcode),
                }
                sleep((first + Duration::from_secs(1) * second).saturating_duration_since(now()));
                false
            });
            match answered {
                true => questions.answer(self, first),
                false => questions.give_up(self, first),
            }
            sleep((first + Duration::from_millis(200)).saturating_duration_since(now()));
        }
    }

    fn judge(self, questions: &Questions, open: &mut Vec<Open>, socket: &Rc<Port>, reply: &Message) {
        let is_its = |one: &Open| Rc::ptr_eq(&one.socket, socket) && one.id == reply.id;
        // A repeated query may get two replies.
        let Some(index) = open.iter().position(is_its) else { return };
        match (reply.rcode(), &reply.answers[..]) {
            (0, [one]) if questions.is_right(self, &open[index].name, &one.data) => {
                questions.answer(self, open.swap_remove(index).first);
            }
            (0, [_]) => {}
            (rcode, _) => questions.refuse(rcode),
        }
    }
}

/// Time after which a stub resolver gives up.
const PATIENCE: Duration = Duration::from_secs(5);
