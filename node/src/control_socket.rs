//! Receives commands to a running server, over an abstract unix socket, which, like links and
//! rules, belongs to the network namespace, not to a file system.
//!
//! A server accepts commands of root and of its own user. `down` also requires a
//! [`NetAdminProof`](crate::NetAdminProof), and a client trusts only a server that has proven
//! CAP_NET_ADMIN (`proof`), since root of a container in this network namespace may lack that
//! capability.

mod crowd;
mod peers;
mod proof;

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crowd::{Crowd, Peer};
pub use peers::{Doubt, Peers, RunningServer, Unproven};
pub use proof::remove_left_proofs;
use proof::{Prover, is_nonce};

/// A server's listening socket.
pub struct ControlSocket {
    listener: UnixListener,
    /// The socket's name without [`PREFIX`].
    name: String,
    over: oneshot::Receiver<()>,
}

/// Ends the listener on drop.
pub struct ListenGuard(#[expect(dead_code, reason = "its end is what counts")] oneshot::Sender<()>);

/// A command, and the connection of the client that waits for its result.
pub struct ControlCommand {
    /// The command.
    pub word: String,
    /// The client's process; 0 if it is not visible from here.
    pub process: u32,
    stream: UnixStream,
}

impl ControlSocket {
    /// Begins to listen.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn listen() -> io::Result<(Self, ListenGuard)> {
        let pid = std::process::id();
        let mut refused = io::Error::from(io::ErrorKind::AddrInUse);
        // The first processes of several containers have the same id, and another process may have
        // taken the next names.
        for n in (0..SAME_PID).chain([rand::random()]) {
            let name = format!("{pid}-{n}");
            match UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("{PREFIX}{name}"))?) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
                bound => {
                    let (hearing, over) = oneshot::channel();
                    return Ok((Self { listener: bound?, name, over }, ListenGuard(hearing)));
                }
            }
        }
        Err(refused)
    }

    /// Accepts commands and passes them to `take`, until [`ListenGuard`] is dropped. Connections
    /// are read concurrently; a connection that is not trusted, or on which no command arrives in
    /// time, is closed.
    ///
    /// # Errors
    /// Errors of the kernel when creating a runtime.
    pub fn hear(self, take: impl Fn(ControlCommand) + Send + Sync + 'static) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        runtime.block_on(self.accept(Arc::new(take)))
    }

    async fn accept(self, take: Arc<impl Fn(ControlCommand) + Send + Sync + 'static>) -> io::Result<()> {
        let Self { listener, name, mut over } = self;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let (prover, mut crowd) = (Prover::start(name), Crowd::default());
        loop {
            let accepted = tokio::select! {
                _ = &mut over => return Ok(()),
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let Some(peer) = trusted(&stream) else { continue };
                    let heard = hear(stream, peer, take.clone(), prover.clone());
                    crowd.enter(peer, tokio::spawn(heard).abort_handle());
                    // Each connection is polled once before another may take its place.
                    yield_now().await;
                }
                // Probably out of file descriptors: retry after a pause.
                Err(_) => sleep(AGAIN).await,
            }
        }
    }
}

async fn hear(
    mut stream: tokio::net::UnixStream,
    peer: Peer,
    take: Arc<impl Fn(ControlCommand)>,
    prover: Prover,
) -> io::Result<()> {
    let word = timeout(WORD, read_word(&mut stream)).await??;
    if let Some(nonce) = word.strip_prefix(PROVE).filter(|nonce| is_nonce(nonce)) {
        return prove(stream, nonce, &prover).await;
    }
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WORD))?;
    take(ControlCommand { word, process: peer.process, stream });
    Ok(())
}

/// Creates the nonce's table, and keeps it until the client has closed its side of the connection;
/// closes this side once the table is deleted.
async fn prove(mut stream: tokio::net::UnixStream, nonce: &str, prover: &Prover) -> io::Result<()> {
    match prover.show(nonce).await {
        Ok(shown) => {
            stream.write_all(SHOWN.as_bytes()).await?;
            let _ = timeout(WORD, stream.read(&mut [0])).await;
            shown.hide().await;
            Ok(())
        }
        Err(error) => stream.write_all(format!("{error}\n").as_bytes()).await,
    }
}

/// Reads a line, or the text before the end of the connection.
async fn read_word(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> io::Result<String> {
    let mut word = Vec::new();
    while word.len() < LONGEST_WORD && word.last() != Some(&b'\n') {
        let mut some = [0; LONGEST_WORD];
        let room = LONGEST_WORD - word.len();
        match stream.read(&mut some[..room]).await? {
            // A client that closes without a word only checked which process listens.
            0 if word.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            n => word.extend(&some[..n]),
        }
    }
    let line = word.split(|octet| *octet == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).trim_end().to_owned())
}

/// Returns the peer if it is root or this process's user; any process can connect to an abstract
/// socket.
fn trusted(stream: &tokio::net::UnixStream) -> Option<Peer> {
    let peer = stream.peer_cred().ok()?;
    let process = peer.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default();
    is_trusted(peer.uid()).then_some(Peer { uid: peer.uid(), process })
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

impl ControlCommand {
    /// Sends the result.
    pub fn answer(&self, text: &str) {
        // The client may have closed the connection, so errors are ignored.
        let _ = io::Write::write_all(&mut &self.stream, text.as_bytes());
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Answers that too many commands are queued.
    pub fn reject_busy(&self) {
        self.answer(BUSY);
    }
}

const PREFIX: &str = "localdns-node-";
const SAME_PID: u32 = 16;
/// Prefix of a request for a proof; the nonce follows.
const PROVE: &str = "prove ";
/// The answer to a request for a proof once the table exists.
const SHOWN: &str = "shown\n";
/// The answer of a server with too many queued commands.
const BUSY: &str = "busy\n";
/// Time limit for a connection's command, and for the client's check of a proof.
const WORD: Duration = Duration::from_secs(1);
/// Pause before `accept` is retried.
const AGAIN: Duration = Duration::from_millis(100);
const LONGEST_WORD: usize = 64;

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Starts a server that passes its commands to the test.
    fn serve() -> (String, mpsc::Receiver<ControlCommand>, ListenGuard) {
        let (server, hearing) = ControlSocket::listen().expect("bound");
        let name = server.name.clone();
        let (sender, orders) = mpsc::channel();
        thread::spawn(move || server.hear(move |order| drop(sender.send(order))));
        (name, orders, hearing)
    }

    fn connect(name: &str) -> UnixStream {
        let name = SocketAddr::from_abstract_name(format!("{PREFIX}{name}")).expect("it is short");
        UnixStream::connect_addr(&name).expect("it listens")
    }

    #[test]
    fn command_passes_silent_connections() {
        let (name, orders, _hearing) = serve();
        let _silent: Vec<_> = (0..100).map(|_| connect(&name)).collect();
        let mut slow = connect(&name);
        slow.write_all(b"sta").expect("sent");
        let mut asks = connect(&name);
        asks.write_all(b"status\n").expect("sent");
        // Earlier connections are closed after a second each.
        let order = orders.recv_timeout(Duration::from_secs(20)).expect("a word");
        assert_eq!((order.word.as_str(), order.process), ("status", std::process::id()));
        order.answer("well");
        let mut answer = String::new();
        asks.read_to_string(&mut answer).expect("it is closed");
        assert_eq!(answer, "well");
        slow.read_to_string(&mut answer).expect("it is closed");
        assert!(orders.try_recv().is_err());
    }

    #[test]
    fn busy_server_answers() {
        let (name, orders, _hearing) = serve();
        let mut asks = connect(&name);
        asks.write_all(b"status").expect("sent");
        asks.shutdown(std::net::Shutdown::Write).expect("it is open");
        orders.recv().expect("a word").reject_busy();
        let mut answer = String::new();
        asks.read_to_string(&mut answer).expect("it is closed");
        assert_eq!(answer, BUSY);
    }

    #[test]
    fn no_command_after_guard_is_dropped() {
        let (server, hearing) = ControlSocket::listen().expect("bound");
        let hears = thread::spawn(move || server.hear(|_| {}));
        drop(hearing);
        hears.join().expect("no panic").expect("it ends");
    }

    #[tokio::test]
    async fn a_word_is_what_stands_before_the_line_or_the_connection_ends() {
        for (sent, word) in [
            ("status\n", Some("status")),
            ("status", Some("status")),
            ("down \nmore", Some("down")),
            ("\n", Some("")),
            ("", None),
        ] {
            assert_eq!(read_word(&mut sent.as_bytes()).await.ok().as_deref(), word, "{sent:?}");
        }
        let long = [b'x'; 2 * LONGEST_WORD];
        assert_eq!(read_word(&mut &long[..]).await.expect("cut off").len(), LONGEST_WORD);
    }
}
