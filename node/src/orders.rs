//! Words between a server and the commands beside it: an abstract unix socket, which belongs to the network as links and rules
//! do, whatever file systems its programs see. Only root, or who runs either of them, is heard and believed; to let go takes
//! a [`Warrant`](crate::Warrant) besides, for this network may be that of containers whose root may do nothing to it.

use std::io::{self, Read, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, UnixAddr, connect, getsockopt, shutdown, socket,
};
use tokio::time::Instant;

/// Where a server hears.
pub struct Orders(UnixListener);

/// What ends the hearing when it is dropped.
pub struct Hearing(UnixListener);

impl Drop for Hearing {
    fn drop(&mut self) {
        // The thread in `accept` is woken, and new connections are refused.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

/// A word that came, and who waits for what comes of it.
pub struct Order {
    /// What is asked for.
    pub word: String,
    stream: UnixStream,
}

/// A server of this network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its process, in its own namespace of processes.
    pub pid: u32,
    name: String,
}

impl Orders {
    /// Begins to listen.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn listen() -> io::Result<Self> {
        let pid = std::process::id();
        let mut refused = io::Error::from(io::ErrorKind::AddrInUse);
        // The first process of each of several containers has the same number; and anybody may have taken the next names.
        for n in (0..SAME_PID).chain([rand::random()]) {
            let name = SocketAddr::from_abstract_name(format!("{PREFIX}{pid}-{n}"))?;
            match UnixListener::bind_addr(&name) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
                bound => return bound.map(Self),
            }
        }
        Err(refused)
    }

    /// What ends it.
    ///
    /// # Errors
    /// Where there are no more descriptors.
    pub fn hearing(&self) -> io::Result<Hearing> {
        self.0.try_clone().map(Hearing)
    }

    /// Waits for an order; a client that is not trusted, or sends none in time, is passed over.
    ///
    /// # Errors
    /// It is over: [`Hearing`] was dropped.
    pub fn next(&self) -> io::Result<Order> {
        loop {
            match self.0.accept() {
                Ok((stream, _)) => {
                    if let Ok(order) = hear(stream) {
                        return Ok(order);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
                // Most likely there are no file descriptors left: tried again after a pause.
                Err(_) => thread::sleep(AGAIN),
            }
        }
    }
}

fn hear(mut stream: UnixStream) -> io::Result<Order> {
    is_trusted(&stream)?;
    stream.set_write_timeout(Some(WORD))?;
    let word = read_word(&mut stream)?;
    Ok(Order { word, stream })
}

/// A line, or what comes before the end; however slowly it comes, the next client waits no longer than [`WORD`].
fn read_word(stream: &mut UnixStream) -> io::Result<String> {
    let (ends, mut word) = (Instant::now() + WORD, Vec::new());
    while word.len() < LONGEST_WORD && word.last() != Some(&b'\n') {
        let left = ends.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut some = [0; LONGEST_WORD];
        let room = LONGEST_WORD - word.len();
        match stream.read(&mut some[..room]) {
            // A client that closes without a word only wanted to know which process listens.
            Ok(0) if word.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => break,
            Ok(n) => word.extend(&some[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let line = word.split(|octet| *octet == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).trim_end().to_owned())
}

/// Whether the other end is root's, or of whoever runs this process: anybody may take a name like ours.
fn is_trusted(stream: &UnixStream) -> io::Result<()> {
    let of = getsockopt(stream, PeerCredentials)?.uid();
    match of == 0 || of == nix::unistd::geteuid().as_raw() {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

impl Order {
    /// Says what came of it.
    pub fn answer(&self, text: &str) {
        // A client that has gone needs no answer.
        let _ = (&self.stream).write_all(text.as_bytes());
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Says that too many wait before it.
    pub fn put_off(&self) {
        self.answer(BUSY);
    }
}

impl Running {
    /// Every server that hears words here. A socket of our name that is somebody else's is none; nor is one that takes nobody
    /// for a second, whosever it is: ours takes who comes, and who of ours hangs is known by its leases. Nor is a name that leads
    /// nowhere, as one with a line's end in it makes the table show.
    pub fn all() -> Vec<Self> {
        // Another user may have given one a name that is no text.
        let table = std::fs::read("/proc/net/unix").unwrap_or_default();
        let mut all = parse(&String::from_utf8_lossy(&table));
        let is_none = |error: io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::WouldBlock
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::NotFound
            )
        };
        // Together they wait no longer than one may.
        let until = Instant::now() + QUEUE;
        all.retain(|running| !running.connect(until).is_err_and(is_none));
        all
    }

    /// Anybody may fill a server's queue, which takes who comes and hangs up on who is not trusted: there is room again soon.
    fn connect(&self, until: Instant) -> io::Result<UnixStream> {
        loop {
            match self.connect_now() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                    thread::sleep(ROOM);
                }
                connected => return connected,
            }
        }
    }

    fn connect_now(&self) -> io::Result<UnixStream> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let stream: UnixStream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?.into();
        connect(stream.as_raw_fd(), &UnixAddr::new_abstract(self.name.as_bytes())?)?;
        is_trusted(&stream)?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// Says a word, and returns what comes of it.
    ///
    /// # Errors
    /// The server is gone, does not accept, has too many others to answer, or sends nothing within `patience`.
    pub fn tell(&self, word: &str, patience: Duration) -> io::Result<String> {
        let mut stream = self.connect(Instant::now() + QUEUE)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(WORD))?;
        stream.write_all(format!("{word}\n").as_bytes())?;
        let mut answer = String::new();
        stream.take(LONGEST_ANSWER).read_to_string(&mut answer)?;
        match answer.as_str() {
            "" => Err(io::Error::other("it hung up")),
            BUSY => Err(io::Error::other("too many others ask it; ask again")),
            _ => Ok(answer),
        }
    }
}

/// The lines of /proc/net/unix that are listeners (flag 0x10000) of our name: the last column, behind an `@`.
fn parse(table: &str) -> Vec<Running> {
    let running = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let name = words.get(7)?.strip_prefix('@')?;
        let listens = u32::from_str_radix(words.get(3)?, 16).ok()? & LISTENS != 0;
        let pid = name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()?;
        listens.then(|| Running { pid, name: name.to_owned() })
    };
    table.lines().filter_map(running).collect()
}

const PREFIX: &str = "localdns-node-";
const SAME_PID: u32 = 16;
const LISTENS: u32 = 0x1_0000;
/// How long who asks may take to say what.
const WORD: Duration = Duration::from_secs(1);
/// What a server says that has too many to answer.
const BUSY: &str = "busy\n";
/// How long who asks waits for room in a queue.
const QUEUE: Duration = Duration::from_secs(1);
/// The pause before a full queue is tried again.
const ROOM: Duration = Duration::from_millis(1);
/// The pause before `accept` is tried again.
const AGAIN: Duration = Duration::from_millis(100);
const LONGEST_WORD: usize = 64;
const LONGEST_ANSWER: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_heard_and_answered_among_several_servers_of_one_process() {
        let servers = [Orders::listen().expect("bound"), Orders::listen().expect("bound")];
        let names: Vec<_> = servers.iter().map(name_of).collect();
        let here = || -> Vec<_> {
            Running::all().into_iter().filter(|running| names.contains(&running.name)).collect()
        };
        let found = here();
        assert_eq!(found.len(), 2, "{found:?}");
        let asks = found.clone().into_iter().map(|asked| thread::spawn(move || asked.tell("status", WORD)));
        let asks: Vec<_> = asks.collect();
        for server in &servers {
            let order = server.next().expect("a word");
            assert_eq!(order.word, "status");
            order.answer("well");
        }
        for ask in asks {
            assert_eq!(ask.join().expect("no panic").expect("an answer"), "well");
        }
        drop(servers);
        assert!(here().is_empty());
        assert!(found[0].tell("status", WORD).is_err());
    }

    #[test]
    fn a_server_whose_queue_is_full_is_found_once_there_is_room() {
        let server = Orders::listen().expect("bound");
        let running = Running { pid: std::process::id(), name: name_of(&server) };
        // Each has hung up when its turn comes.
        let refused = std::iter::repeat_with(|| running.connect_now()).find_map(Result::err);
        assert_eq!(refused.expect("it has an end").kind(), io::ErrorKind::WouldBlock);
        let hearing = server.hearing().expect("there are descriptors");
        let hears = thread::spawn(move || server.next().is_err());
        assert!(Running::all().contains(&running));
        drop(hearing);
        assert!(hears.join().expect("no panic"));
    }

    #[test]
    fn who_says_a_word_slowly_keeps_nobody_waiting_longer_than_who_says_none() {
        let server = Orders::listen().expect("bound");
        let name = SocketAddr::from_abstract_name(name_of(&server)).expect("it has one");
        let mut slow = UnixStream::connect_addr(&name).expect("taken");
        let mut next = UnixStream::connect_addr(&name).expect("taken");
        next.write_all(b"status\n").expect("sent");
        let drips = thread::spawn(move || {
            while slow.write_all(b"s").is_ok() {
                thread::sleep(WORD / 5);
            }
        });
        let began = Instant::now();
        assert_eq!(server.next().expect("a word").word, "status");
        assert!(began.elapsed() < WORD * 3, "{:?}", began.elapsed());
        drips.join().expect("it was hung up on");
    }

    #[test]
    fn a_word_is_what_comes_before_the_line_or_the_connection_ends() {
        for (sent, word) in [
            ("status\n", Some("status")),
            ("status", Some("status")),
            ("down \nmore", Some("down")),
            ("\n", Some("")),
            ("", None),
        ] {
            let (mut client, mut server) = UnixStream::pair().expect("a pair");
            client.write_all(sent.as_bytes()).expect("sent");
            drop(client);
            assert_eq!(read_word(&mut server).ok().as_deref(), word, "{sent:?}");
        }
        let (mut client, mut server) = UnixStream::pair().expect("a pair");
        client.write_all(&[b'x'; 2 * LONGEST_WORD]).expect("sent");
        assert_eq!(read_word(&mut server).expect("cut off").len(), LONGEST_WORD);
    }

    #[test]
    fn who_is_put_off_hears_it() {
        let server = Orders::listen().expect("bound");
        let name = name_of(&server);
        let asked = Running { pid: std::process::id(), name };
        let asks = thread::spawn(move || asked.tell("status", WORD));
        server.next().expect("a word").put_off();
        let error = asks.join().expect("no panic").expect_err("it is busy");
        assert_eq!(error.to_string(), "too many others ask it; ask again");
    }

    fn name_of(server: &Orders) -> String {
        let address = server.0.local_addr().expect("it is bound");
        String::from_utf8(address.as_abstract_name().expect("it is abstract").into()).expect("it is text")
    }

    #[test]
    fn nobody_is_heard_any_more_once_that_is_over() {
        let server = Orders::listen().expect("bound");
        let hearing = server.hearing().expect("there are descriptors");
        let waits = thread::spawn(move || server.next().is_err());
        drop(hearing);
        assert!(waits.join().expect("no panic"));
    }

    #[test]
    fn a_name_that_makes_the_table_show_another_socket_is_no_server() {
        // The kernel writes it as it is.
        let forged = format!("x\n0: 00000002 00000000 00010000 0001 01 1 @{PREFIX}4000001-0");
        let forged = SocketAddr::from_abstract_name(forged).expect("short enough");
        let _forged = UnixListener::bind_addr(&forged).expect("bound");
        let table = std::fs::read_to_string("/proc/net/unix").expect("a table");
        assert!(parse(&table).iter().any(|running| running.pid == 4_000_001), "{table}");
        let all = Running::all();
        assert!(all.iter().all(|running| running.pid != 4_000_001), "{all:?}");
    }

    #[test]
    fn only_listeners_of_our_name_are_found() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 1 @localdns-node-4711-0\n\
            0: 00000003 00000000 00000000 0001 03 2 @localdns-node-4711-0\n\
            0: 00000002 00000000 00010000 0001 01 3 @localdns-node-me-0\n\
            0: 00000002 00000000 00010000 0001 01 4 /run/localdns-node-1-0\n\
            0: 00000002 00000000 00010000 0001 01 5\n";
        assert_eq!(parse(table), [Running { pid: 4711, name: "localdns-node-4711-0".to_owned() }]);
    }
}
