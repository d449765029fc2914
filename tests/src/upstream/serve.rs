//! The mock upstream's threads: one for datagrams, one that accepts, one per connection, one for
//! delayed actions.

use std::collections::BinaryHeap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use socket2::SockRef;

use super::{Action, Asked, Shared, Transport};
use crate::clock::now;
use crate::lock::lock;

/// Binds `address` and serves it until `stopped`.
pub(super) fn spawn(
    address: SocketAddr,
    shared: &Arc<Shared>,
    tls: Option<&Arc<ServerConfig>>,
    stopped: &Arc<AtomicBool>,
) -> Vec<JoinHandle<()>> {
    let mut threads = Vec::new();
    if tls.is_none() {
        let socket =
            UdpSocket::bind(address).unwrap_or_else(|error| panic!("mock upstream: udp {address}: {error}"));
        socket.set_read_timeout(Some(POLL)).expect("a timeout can be set");
        // Above the default, so that the mock loses no burst.
        SockRef::from(&socket).set_recv_buffer_size(4 << 20).ok();
        let (shared, stopped) = (Arc::clone(shared), Arc::clone(stopped));
        threads.push(thread::spawn(move || datagrams(&Arc::new(socket), &shared, &stopped)));
    }
    let listener =
        TcpListener::bind(address).unwrap_or_else(|error| panic!("mock upstream: tcp {address}: {error}"));
    listener.set_nonblocking(true).expect("a listener can be polled");
    let (shared, tls, stopped) = (Arc::clone(shared), tls.cloned(), Arc::clone(stopped));
    threads.push(thread::spawn(move || connections(&listener, &shared, tls.as_ref(), &stopped)));
    threads
}

fn datagrams(socket: &Arc<UdpSocket>, shared: &Arc<Shared>, stopped: &AtomicBool) {
    let mut buffer = [0; 4096];
    while !stopped.load(Ordering::Relaxed) {
        // The error of an earlier reply (ICMP) is returned here and is ignored.
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        let Some((asked, action)) = shared.decide(&buffer[..length], Transport::Udp, from) else { continue };
        say_by_datagram(socket, shared, asked, action);
    }
}

/// Acts on a query over UDP. Send errors are ignored: the client is gone or the buffer is full.
fn say_by_datagram(socket: &Arc<UdpSocket>, shared: &Arc<Shared>, asked: Asked, action: Action) {
    let send = |bytes: &[u8]| drop(socket.send_to(bytes, asked.from));
    match action {
        Action::Reply(answer) => send(&answer.reply(&asked)),
        Action::Silent | Action::Close | Action::Reset => {}
        Action::Delay(delay, then) => {
            // A weak reference, so that a pending delay does not keep the port in use.
            let (socket, shared) = (Arc::downgrade(socket), Arc::clone(shared));
            let later = Arc::clone(&shared);
            later.later.run(delay, move || {
                if let Some(socket) = socket.upgrade() {
                    say_by_datagram(&socket, &shared, asked, *then);
                }
            });
        }
        Action::Truncate(answer) => send(&answer.truncated().reply(&asked)),
        Action::WrongId(answer) => send(&other_id(answer.reply(&asked))),
        Action::WrongQuestion(name, answer) => send(&answer.reply(&asked_for(&asked, &name))),
        Action::WrongPort(answer) => {
            let other = socket.local_addr().and_then(|own| UdpSocket::bind((own.ip(), 0)));
            drop(other.and_then(|other| other.send_to(&answer.reply(&asked), asked.from)));
        }
        Action::Octets(octets) => send(&octets),
        Action::Forge(times, answer, then) => {
            let mut reply = answer.reply(&asked);
            for _ in 0..times {
                reply = other_id(reply);
                send(&reply);
            }
            say_by_datagram(socket, shared, asked, *then);
        }
        Action::Half(answer) => {
            let reply = answer.reply(&asked);
            send(&reply[..reply.len() / 2]);
        }
        Action::Both(first, second) => {
            say_by_datagram(socket, shared, asked.clone(), *first);
            say_by_datagram(socket, shared, asked, *second);
        }
    }
}

fn connections(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    tls: Option<&Arc<ServerConfig>>,
    stopped: &Arc<AtomicBool>,
) {
    while !stopped.load(Ordering::Relaxed) {
        let Ok((stream, from)) = listener.accept() else {
            sleep(POLL);
            continue;
        };
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let (shared, tls, stopped) = (Arc::clone(shared), tls.cloned(), Arc::clone(stopped));
        thread::spawn(move || connection(stream, from, &shared, tls, &stopped));
    }
}

fn connection(
    stream: TcpStream,
    from: SocketAddr,
    shared: &Arc<Shared>,
    tls: Option<Arc<ServerConfig>>,
    stopped: &AtomicBool,
) {
    // On Linux an accepted stream does not inherit the listener's non-blocking mode.
    let ready = stream.set_read_timeout(Some(POLL)).and_then(|()| stream.set_nodelay(true));
    let (Ok(()), Ok(raw)) = (ready, stream.try_clone()) else { return };
    let (transport, wire) = match tls {
        None => (Transport::Tcp, Wire::Plain(stream)),
        Some(config) => match ServerConnection::new(config) {
            Ok(session) => (Transport::Tls, Wire::Tls(Box::new(StreamOwned::new(session, stream)))),
            Err(_) => return,
        },
    };
    let line = Arc::new(Line { wire: Mutex::new(wire), raw });
    let mut received = Vec::new();
    let mut buffer = [0; 16_384];
    while !stopped.load(Ordering::Relaxed) {
        match line.receive(&mut buffer) {
            Ok(0) => return,
            Ok(length) => received.extend(&buffer[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => return,
        }
        while let Some(query) = next_message(&mut received) {
            let Some((asked, action)) = shared.decide(&query, transport, from) else { continue };
            line.say(shared, asked, action);
        }
    }
    drop(line.raw.shutdown(std::net::Shutdown::Both));
}

enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

/// A connection: its own thread reads it, and both this thread and the one for delayed actions
/// write to it.
struct Line {
    wire: Mutex<Wire>,
    raw: TcpStream,
}

impl Line {
    /// Waits for bytes without holding the lock, so that a write does not wait for the client.
    fn receive(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.raw.peek(&mut [0])? == 0 {
            return Ok(0);
        }
        match &mut *lock(&self.wire) {
            Wire::Plain(stream) => stream.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
        }
    }

    fn say(self: &Arc<Self>, shared: &Arc<Shared>, asked: Asked, action: Action) {
        match action {
            Action::Reply(answer) | Action::Truncate(answer) => self.send(&answer.reply(&asked)),
            Action::Silent => {}
            Action::Delay(delay, then) => {
                let (line, shared) = (Arc::clone(self), Arc::clone(shared));
                let later = Arc::clone(&shared);
                later.later.run(delay, move || line.say(&shared, asked, *then));
            }
            Action::WrongId(answer) | Action::WrongPort(answer) => self.send(&other_id(answer.reply(&asked))),
            Action::WrongQuestion(name, answer) => self.send(&answer.reply(&asked_for(&asked, &name))),
            Action::Octets(octets) => self.send(&octets),
            Action::Forge(times, answer, then) => {
                let mut reply = answer.reply(&asked);
                for _ in 0..times {
                    reply = other_id(reply);
                    self.send(&reply);
                }
                self.say(shared, asked, *then);
            }
            Action::Half(answer) => {
                let framed = framed(&answer.reply(&asked));
                self.write(&framed[..framed.len() / 2]);
                drop(self.raw.shutdown(std::net::Shutdown::Both));
            }
            Action::Close => drop(self.raw.shutdown(std::net::Shutdown::Both)),
            Action::Reset => {
                // RFC 9293 section 3.10.4: closing with unread data sends RST; with a linger of
                // zero every close does.
                SockRef::from(&self.raw).set_linger(Some(Duration::ZERO)).ok();
                drop(self.raw.shutdown(std::net::Shutdown::Read));
            }
            Action::Both(first, second) => {
                self.say(shared, asked.clone(), *first);
                self.say(shared, asked, *second);
            }
        }
    }

    fn send(&self, message: &[u8]) {
        self.write(&framed(message));
    }

    /// Write errors are ignored: the peer may be gone.
    fn write(&self, octets: &[u8]) {
        drop(match &mut *lock(&self.wire) {
            Wire::Plain(stream) => stream.write_all(octets),
            Wire::Tls(stream) => stream.write_all(octets).and_then(|()| stream.flush()),
        });
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).expect("a reply fits its length");
    [&length.to_be_bytes()[..], message].concat()
}

fn next_message(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = usize::from(u16::from_be_bytes([*received.first()?, *received.get(1)?]));
    if received.len() < 2 + length {
        return None;
    }
    let message = received[2..2 + length].to_vec();
    received.drain(..2 + length);
    Some(message)
}

fn other_id(mut reply: Vec<u8>) -> Vec<u8> {
    let id = u16::from_be_bytes([reply[0], reply[1]]).wrapping_add(0x1357);
    reply[..2].copy_from_slice(&id.to_be_bytes());
    reply
}

fn asked_for(asked: &Asked, name: &str) -> Asked {
    let mut bytes = asked.bytes[..12].to_vec();
    bytes.extend(crate::records::name(name));
    bytes.extend(asked.rtype.to_be_bytes());
    bytes.extend(1_u16.to_be_bytes());
    Asked { bytes, ..asked.clone() }
}

/// A thread that runs delayed actions.
pub(super) struct Later {
    tasks: Mutex<Sender<Task>>,
}

impl Later {
    pub(super) fn start() -> Self {
        let (tasks, due) = channel();
        thread::spawn(move || work_off(&due));
        Self { tasks: Mutex::new(tasks) }
    }

    fn run(&self, delay: Duration, what: impl FnOnce() + Send + 'static) {
        drop(lock(&self.tasks).send(Task { at: now() + delay, what: Box::new(what) }));
    }
}

struct Task {
    at: Instant,
    what: Box<dyn FnOnce() + Send>,
}

impl PartialEq for Task {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Task {}

impl PartialOrd for Task {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The order is reversed: the heap returns its greatest task, which is the earliest.
impl Ord for Task {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

fn work_off(due: &Receiver<Task>) {
    let mut waiting = BinaryHeap::<Task>::new();
    loop {
        let patience =
            waiting.peek().map_or(Duration::from_secs(1), |task| task.at.saturating_duration_since(now()));
        match due.recv_timeout(patience) {
            Ok(task) => waiting.push(task),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while waiting.peek().is_some_and(|task| task.at <= now()) {
            let task = waiting.pop().expect("seen a moment ago");
            (task.what)();
        }
    }
}

/// How often a waiting thread checks whether it must end.
const POLL: Duration = Duration::from_millis(10);
