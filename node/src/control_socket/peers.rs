//! The client side: finds the servers in this network namespace, and sends commands.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::crowd::Peer;
use super::proof::{nonce, table_of};
use super::{BUSY, PREFIX, PROVE, SHOWN, is_trusted};
use crate::escaped;
use crate::nft::{NftError, Socket};

/// Processes that listen on a server's control socket, grouped by their proof.
#[derive(Debug, Default)]
pub struct Peers {
    /// Processes that have proven CAP_NET_ADMIN. If the proof cannot be checked, since the kernel
    /// has no nftables or this process may not list its tables, all processes of a trusted user.
    pub servers: Vec<RunningServer>,
    /// Processes that have not proven CAP_NET_ADMIN: servers without it, servers that hang, or
    /// other programs.
    pub unproven: Vec<Unproven>,
    /// Number of sockets that were not queried, since their process or user exceeded its limit.
    pub unasked: usize,
}

/// A server in this network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningServer {
    /// The server's process id, in the server's pid namespace.
    pub pid: u32,
    /// The name of the server's socket without [`PREFIX`].
    name: String,
}

/// A process that listens on a server's control socket and has not proven to be a server.
#[derive(Debug, Clone)]
pub struct Unproven {
    /// The process id in the socket's name, and that name.
    pub running: RunningServer,
    /// The process id in this pid namespace; 0 if the process is not visible here.
    process: u32,
    /// The reason.
    pub doubt: Doubt,
}

/// Why a process is not known to be a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// The process has not answered in time.
    Silent,
    /// The process has not created the requested table; the value is the reason in its answer, if
    /// any.
    NotShown(Option<String>),
    /// This command could not list the tables.
    NotSeen(String),
}

impl Unproven {
    /// Returns the process id in this pid namespace or, if the process is not visible here, the id
    /// in the socket's name.
    pub fn pid(&self) -> u32 {
        if self.process == 0 { self.running.pid } else { self.process }
    }

    /// Whether the process may be a server that hangs: it has not answered, and has CAP_NET_ADMIN
    /// as far as that is visible.
    pub fn may_hang(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process)).unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        self.doubt == Doubt::Silent && effective.is_none_or(|all| all & CAP_NET_ADMIN != 0)
    }
}

impl Peers {
    /// Finds all listening processes and challenges them concurrently, for one second in total.
    /// Skips sockets of untrusted users, and sockets that accept no connection: a working server
    /// accepts each connection, and a server that hangs is known by its leases. A name with a line
    /// feed can forge a line of the kernel's list, but a forged line leads to no socket.
    pub fn find() -> Self {
        // Another user's socket may have a name that is not UTF-8.
        let table = std::fs::read("/proc/net/unix").unwrap_or_default();
        let running = parse(&String::from_utf8_lossy(&table));
        let is_seen = tables().map(drop);
        on_runtime(async || {
            let (until, few) = (Instant::now() + ALL, RefCell::default());
            let judged = running.iter().map(async |one| {
                // A process that accepts slowly must not delay the check of the others.
                let (peer, stream) = one.connect(until, Some(&few)).await.ok()?;
                Some((one.clone(), peer, judge(one, stream, &is_seen, until).await))
            });
            let mut peers = Self::default();
            for (running, Peer { process, .. }, doubt) in join_all(judged).await.into_iter().flatten() {
                match doubt {
                    None => peers.servers.push(running),
                    Some(doubt) => peers.unproven.push(Unproven { running, process, doubt }),
                }
            }
            Self { unasked: few.into_inner().unasked, ..peers }
        })
        .unwrap_or_default()
    }
}

/// Returns the reason for not trusting the process; `None` if it is trusted.
async fn judge(
    running: &RunningServer,
    mut stream: UnixStream,
    is_seen: &Result<(), NftError>,
    until: Instant,
) -> Option<Doubt> {
    match is_seen {
        Ok(()) => {}
        Err(NftError::NotSupported { .. } | NftError::NotPermitted { .. }) => return None,
        Err(error) => return Some(Doubt::NotSeen(error.to_string())),
    }
    let doubt = timeout_at(until, doubt_of(running, &mut stream)).await.unwrap_or(Some(Doubt::Silent));
    if doubt.is_none() {
        // Waits until the server has deleted its table.
        let _ = stream.shutdown().await;
        let _ = timeout(GONE, stream.read(&mut [0])).await;
    }
    doubt
}

/// Challenges the process; returns `None` if it has proven to be a server, else the reason.
async fn doubt_of(running: &RunningServer, stream: &mut UnixStream) -> Option<Doubt> {
    let nonce = nonce();
    let challenged = async {
        stream.write_all(format!("{PROVE}{nonce}\n").as_bytes()).await?;
        let mut line = Vec::new();
        while line.len() < LONGEST_REASON && line.last() != Some(&b'\n') {
            line.push(stream.read_u8().await?);
        }
        io::Result::Ok(String::from_utf8_lossy(&line).into_owned())
    };
    let answer = challenged.await.ok();
    if answer.as_deref() != Some(SHOWN) {
        return Some(Doubt::NotShown(answer.map(|answer| escaped(answer.trim_end()))));
    }
    let table = table_of(&running.name, &nonce);
    match tables() {
        Ok(tables) if tables.contains(&table) => None,
        Ok(_) => Some(Doubt::NotShown(None)),
        Err(error) => Some(Doubt::NotSeen(error.to_string())),
    }
}

fn tables() -> Result<Vec<String>, NftError> {
    Ok(Socket::open()?.tables()?.into_iter().map(|table| table.name).collect())
}

/// The number of accepted connections for each process and user.
#[derive(Default)]
struct Few {
    of: HashMap<(u32, Option<u32>), usize>,
    unasked: usize,
}

impl Few {
    fn admits(&mut self, peer: Peer) -> bool {
        let mut count = |process| {
            let count = self.of.entry((peer.uid, process)).or_default();
            *count += 1;
            *count
        };
        // Processes that are not visible share number 0.
        let admits = (peer.process == 0 || count(Some(peer.process)) <= OF_PROCESS) && count(None) <= OF_USER;
        self.unasked += usize::from(!admits);
        admits
    }
}

/// A connection, and its peer.
type Connected = (Peer, UnixStream);

impl RunningServer {
    /// Connects, unless the peer's user is not trusted, or its process or user exceeds the limit.
    /// Retries while the server's queue is full: any process may fill it, but the server soon
    /// closes connections that it does not trust.
    async fn connect(&self, until: Instant, few: Option<&RefCell<Few>>) -> io::Result<Connected> {
        loop {
            match self.connect_now() {
                Ok((peer, _)) if few.is_some_and(|few| !few.borrow_mut().admits(peer)) => {
                    return Err(io::ErrorKind::QuotaExceeded.into());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                    sleep(ROOM).await;
                }
                connected => return connected,
            }
        }
    }

    fn connect_now(&self) -> io::Result<Connected> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        let name = format!("{PREFIX}{}", self.name);
        connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        let peer = getsockopt(&socket, PeerCredentials)?;
        if !is_trusted(peer.uid()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let process = u32::try_from(peer.pid()).unwrap_or_default();
        let stream = UnixStream::from_std(std::os::unix::net::UnixStream::from(socket))?;
        Ok((Peer { uid: peer.uid(), process }, stream))
    }

    /// Sends a command, and returns the answer.
    ///
    /// # Errors
    /// The errors of [`send_all`](Self::send_all).
    pub fn send(&self, word: &str, patience: Duration) -> io::Result<String> {
        let mut answers = Self::send_all(std::slice::from_ref(self), word, patience);
        answers.pop().unwrap_or_else(|| Err(io::ErrorKind::NotConnected.into()))
    }

    /// Sends a command to all these servers concurrently, and returns the answers in the same
    /// order.
    ///
    /// # Errors
    /// For each server: it has ended, does not accept, has too many queued commands, or has not
    /// answered completely within `patience`.
    pub fn send_all(all: &[Self], word: &str, patience: Duration) -> Vec<io::Result<String>> {
        let until = Instant::now() + patience;
        let answers = on_runtime(async || join_all(all.iter().map(|one| one.send_until(word, until))).await);
        answers.unwrap_or_else(|error| all.iter().map(|_| Err(error.kind().into())).collect())
    }

    async fn send_until(&self, word: &str, until: Instant) -> io::Result<String> {
        let mut is_busy = false;
        loop {
            let answer = match timeout_at(until, self.ask(word, until)).await {
                Err(_) if is_busy => {
                    return Err(io::Error::other("too many commands wait for it; try again"));
                }
                answer => answer??,
            };
            is_busy = answer == BUSY;
            match answer.as_str() {
                "" => return Err(io::Error::other("it closed the connection")),
                BUSY => sleep(ROOM).await,
                _ => return Ok(answer),
            }
        }
    }

    async fn ask(&self, word: &str, until: Instant) -> io::Result<String> {
        let (_, mut stream) = self.connect(until.min(Instant::now() + ALL), None).await?;
        stream.write_all(format!("{word}\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.take(LONGEST_ANSWER).read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

/// Runs `work` on a new thread with its own runtime: the caller's thread may already run one, and
/// runtimes cannot be nested.
fn on_runtime<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || runtime.block_on(work()))?;
        thread.join().map_err(|_| io::Error::other("a panic"))
    })
}

/// Returns the listeners (flag 0x10000) in /proc/net/unix with our prefix in their name, the last
/// column after an `@`.
fn parse(table: &str) -> Vec<RunningServer> {
    let running = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let name = words.get(7)?.strip_prefix('@')?.strip_prefix(PREFIX)?;
        let listens = u32::from_str_radix(words.get(3)?, 16).ok()? & LISTENS != 0;
        let pid = name.split_once('-')?.0.parse().ok()?;
        listens.then(|| RunningServer { pid, name: name.to_owned() })
    };
    table.lines().filter_map(running).collect()
}

const LISTENS: u32 = 0x1_0000;
/// Total time limit for connections and proofs of all servers.
const ALL: Duration = Duration::from_secs(1);
/// Time limit of a server for deleting the table of its proof.
const GONE: Duration = Duration::from_millis(500);
/// Maximum number of queried sockets of each process, and of each user; a server has one socket.
const OF_PROCESS: usize = 16;
const OF_USER: usize = 256;
/// Pause before retrying a full queue or a busy server.
const ROOM: Duration = Duration::from_millis(5);
/// Maximum number of bytes of a process's answer to a challenge.
const LONGEST_REASON: usize = 256;
const LONGEST_ANSWER: u64 = 1 << 20;
/// The bit of this capability in the capability sets of /proc/PID/status.
const CAP_NET_ADMIN: u64 = 1 << 12;

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::sync::mpsc;

    use super::super::{ControlCommand, ControlSocket, ListenGuard};
    use super::*;

    /// Starts a server that passes its commands to the test.
    fn serve() -> (RunningServer, mpsc::Receiver<ControlCommand>, ListenGuard) {
        let (server, hearing) = ControlSocket::listen().expect("bound");
        let running = RunningServer { pid: std::process::id(), name: server.name.clone() };
        let (sender, orders) = mpsc::channel();
        thread::spawn(move || server.hear(move |order| drop(sender.send(order))));
        (running, orders, hearing)
    }

    fn listen(name: &str) -> UnixListener {
        let name = SocketAddr::from_abstract_name(format!("{PREFIX}{name}")).expect("it is short");
        UnixListener::bind_addr(&name).expect("bound")
    }

    /// Whether the server is found, with or without proof.
    fn is_found(running: &RunningServer) -> bool {
        let peers = Peers::find();
        let unproven = peers.unproven.iter().map(|one| &one.running);
        peers.servers.iter().chain(unproven).any(|found| found == running)
    }

    #[test]
    fn commands_servers_concurrently() {
        let (first, first_orders, hearing) = serve();
        let (second, second_orders, _hearing) = serve();
        assert!(is_found(&first) && is_found(&second));
        let asked = [first.clone(), second];
        let asks = thread::spawn(move || RunningServer::send_all(&asked, "status", PATIENCE));
        // The first server queried answers last.
        let (first_order, second_order) = (first_orders.recv(), second_orders.recv());
        second_order.expect("a word").answer("second");
        first_order.expect("a word").answer("first");
        let answers: Vec<_> = asks.join().expect("no panic").into_iter().map(Result::ok).collect();
        assert_eq!(answers, [Some("first".to_owned()), Some("second".to_owned())]);
        drop((hearing, first_orders));
        while is_found(&first) {}
        assert!(first.send("status", PATIENCE).is_err());
    }

    #[test]
    fn full_queue_is_retried() {
        let (server, hearing) = ControlSocket::listen().expect("bound");
        let running = RunningServer { pid: std::process::id(), name: server.name.clone() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("built");
        let entered = runtime.enter();
        // Each connection is closed once it is accepted.
        let refused = std::iter::repeat_with(|| running.connect_now()).find_map(Result::err);
        assert_eq!(refused.expect("it has an end").kind(), io::ErrorKind::WouldBlock);
        drop(entered);
        let hears = thread::spawn(move || server.hear(|_| {}));
        assert!(is_found(&running));
        drop(hearing);
        hears.join().expect("no panic").expect("it ends");
    }

    #[test]
    fn trickling_answer_times_out() {
        let listener = listen("4000002-0");
        let running = RunningServer { pid: 4_000_002, name: "4000002-0".to_owned() };
        let patience = Duration::from_millis(300);
        let asks = thread::spawn(move || running.send("status", patience));
        let (mut stream, _) = listener.accept().expect("it is asked");
        while io::Write::write_all(&mut stream, b"{").is_ok() {
            thread::sleep(patience / 10);
        }
        assert_eq!(asks.join().expect("no panic").expect_err("no end").kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_busy_server_is_asked_again() {
        let (running, orders, _hearing) = serve();
        let asks = thread::spawn(move || running.send("status", PATIENCE));
        orders.recv().expect("a word").reject_busy();
        orders.recv().expect("the same").answer("well");
        assert_eq!(asks.join().expect("no panic").expect("an answer"), "well");
        let (running, orders, _hearing) = serve();
        thread::spawn(move || orders.iter().for_each(|order| order.reject_busy()));
        let error = running.send("status", Duration::from_millis(300)).expect_err("it is busy");
        assert_eq!(error.to_string(), "too many commands wait for it; try again");
    }

    #[test]
    fn limits_sockets_of_process_and_user() {
        let mut few = Few::default();
        let mut admitted = |uid, process| usize::from(few.admits(Peer { uid, process }));
        assert_eq!((0..100).map(|_| admitted(0, 7)).sum::<usize>(), OF_PROCESS);
        assert_eq!(admitted(0, 8) + admitted(7, 7), 2, "another process, and another user");
        assert_eq!((0..1000).map(|_| admitted(7, 0)).sum::<usize>(), OF_USER - 1);
        assert_eq!(few.unasked, 100 - OF_PROCESS + 1000 - (OF_USER - 1));
    }

    /// A name with a line feed adds a line to /proc/net/unix.
    #[test]
    fn forged_socket_name_is_no_server() {
        // The kernel prints the name without escapes.
        let forged = format!("x\n0: 00000002 00000000 00010000 0001 01 1 @{PREFIX}4000001-0");
        let forged = SocketAddr::from_abstract_name(forged).expect("short enough");
        let _forged = UnixListener::bind_addr(&forged).expect("bound");
        let table = std::fs::read_to_string("/proc/net/unix").expect("a table");
        assert!(parse(&table).iter().any(|running| running.pid == 4_000_001), "{table}");
        assert!(!is_found(&RunningServer { pid: 4_000_001, name: "4000001-0".to_owned() }));
    }

    #[test]
    fn finds_only_listeners_of_our_name() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 1 @localdns-node-4711-0\n\
            0: 00000003 00000000 00000000 0001 03 2 @localdns-node-4711-0\n\
            0: 00000002 00000000 00010000 0001 01 3 @localdns-node-me-0\n\
            0: 00000002 00000000 00010000 0001 01 4 /run/localdns-node-1-0\n\
            0: 00000002 00000000 00010000 0001 01 5\n";
        assert_eq!(parse(table), [RunningServer { pid: 4711, name: "4711-0".to_owned() }]);
    }

    const PATIENCE: Duration = Duration::from_secs(10);
}
