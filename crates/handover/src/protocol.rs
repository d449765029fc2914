//! The handover protocol between two processes, over a unix socket.
//!
//! ```text
//! predecessor                         successor
//!   sockets, some in each message  ->
//!                                  <- ready      has read its configuration, and bound the addresses without a socket
//!   yours                          ->            no longer reads the sockets: new queries wait in them
//!                                  <- serving    answers on every address
//!   done                           ->            the successor is the service's main process
//! ```
//! If a step before `serving` fails, the predecessor continues to serve, and sends `back`. If its connection closes without a
//! message after all sockets were sent, it has ended, and the successor serves.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recv, socket_with, socketpair,
};

use crate::{InheritedSockets, scm_rights};

/// The connection's end in the predecessor, the process that serves.
#[derive(Debug)]
pub struct PredecessorEnd(OwnedFd);

/// The connection's end in the successor, the process that starts.
#[derive(Debug)]
pub struct SuccessorEnd(OwnedFd);

/// The unix socket that successors connect to.
#[derive(Debug)]
pub struct HandoverSocket(OwnedFd);

impl HandoverSocket {
    /// Opens it at a path, for this user and root only (mode 0600). A socket file at the path is replaced.
    ///
    /// # Errors
    /// `AlreadyExists` if another kind of file is there; the kernel's.
    pub fn open(path: &Path) -> io::Result<Self> {
        match std::fs::symlink_metadata(path) {
            Ok(there) if there.file_type().is_socket() => std::fs::remove_file(path)?,
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "a file is there that is no socket",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let socket = unix()?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listen(&socket, 1)?;
        Ok(Self(socket))
    }

    /// Waits for a successor; closes connections of other users' processes.
    pub fn accept(&self) -> PredecessorEnd {
        loop {
            match accept_with(&self.0, SocketFlags::CLOEXEC) {
                Ok(socket) if may_hand_over(&socket) => return PredecessorEnd(socket),
                Ok(_) => {}
                // Most likely no descriptors are left: there may be some later.
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    }
}

/// Whether the peer is of this user, or root.
fn may_hand_over(socket: &OwnedFd) -> bool {
    getsockopt(socket, PeerCredentials)
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw())
}

/// Makes a connection: the predecessor's end, and the successor's, which becomes a child's standard input.
///
/// # Errors
/// The kernel's.
pub fn pair() -> io::Result<(PredecessorEnd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((PredecessorEnd(ours), theirs))
}

impl PredecessorEnd {
    /// Sends copies of sockets with their names.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send_sockets(&self, sockets: &[(String, OwnedFd)]) -> io::Result<()> {
        self.send_sockets_within(sockets, ALL_SOCKETS)
    }

    fn send_sockets_within(&self, sockets: &[(String, OwnedFd)], timeout: Duration) -> io::Result<()> {
        let until = clock::now() + timeout;
        for some in sockets.chunks(scm_rights::MAX_DESCRIPTORS) {
            set_socket_timeout(&self.0, Timeout::Send, Some(left(until)?))?;
            let names: Vec<_> = some.iter().map(|(name, _)| name.as_str()).collect();
            let descriptors: Vec<_> = some.iter().map(|(_, descriptor)| descriptor.as_fd()).collect();
            self.send(&format!("{SOCKETS}{}", names.join("\n")), &descriptors)?;
        }
        self.send(ALL, &[])
    }

    /// Waits until the successor is ready to take over.
    ///
    /// # Errors
    /// The successor has ended, or takes longer than a start may.
    pub fn wait_ready(&self) -> io::Result<()> {
        expect(&self.0, READY, START)
    }

    /// Reports that this process no longer reads the sockets, and waits until the successor answers on them.
    ///
    /// # Errors
    /// The successor has ended, or does not answer in time: this process must serve again.
    pub fn release(&self) -> io::Result<()> {
        self.send(YOURS, &[])?;
        expect(&self.0, SERVING, SERVES)
    }

    /// Reports that this process serves again.
    pub fn take_back(self) {
        // A successor that does not read this has ended, or reads the end of the connection instead.
        let _ = self.send(BACK, &[]);
    }

    /// Reports that the successor is now the service's main process.
    ///
    /// # Errors
    /// The successor has ended.
    pub fn done(self) -> io::Result<()> {
        self.send(DONE, &[])
    }

    fn send(&self, text: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        scm_rights::send(&self.0, text.as_bytes(), descriptors)
    }
}

impl SuccessorEnd {
    /// Connects to the predecessor at a path; `None` if no process listens there.
    ///
    /// # Errors
    /// Another error of the kernel; `PermissionDenied` if the peer is of another user.
    pub fn connect(path: &Path) -> io::Result<Option<Self>> {
        Self::connect_within(path, CONNECT)
    }

    fn connect_within(path: &Path, timeout: Duration) -> io::Result<Option<Self>> {
        let socket = unix()?;
        // A server that hangs accepts no connection, and `connect` blocks while its queue is full.
        set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
        match connect(&socket, &SocketAddrUnix::new(path)?).map_err(scm_rights::explain) {
            Ok(()) => {}
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        match may_hand_over(&socket) {
            true => Ok(Some(Self(socket))),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// The connection to the parent that made it with [`pair`]: standard input, which reads /dev/null afterwards.
    ///
    /// # Errors
    /// Standard input is no socket.
    pub fn of_parent() -> io::Result<Self> {
        let socket = rustix::stdio::stdin().try_clone_to_owned()?;
        // Where standard input is no socket, it is left as it is.
        rustix::net::sockopt::socket_type(&socket)?;
        let nowhere = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nowhere)?;
        Ok(Self(socket))
    }

    /// Receives the sockets.
    ///
    /// # Errors
    /// The predecessor ends, or sends messages of another protocol; timeout.
    pub fn receive_sockets(&self) -> io::Result<InheritedSockets> {
        self.receive_sockets_within(ALL_SOCKETS, MAX_SOCKETS)
    }

    fn receive_sockets_within(&self, timeout: Duration, most: usize) -> io::Result<InheritedSockets> {
        let until = clock::now() + timeout;
        let mut sockets = Vec::new();
        while sockets.len() < most {
            set_socket_timeout(&self.0, Timeout::Recv, Some(left(until)?))?;
            let (text, descriptors) = scm_rights::receive(&self.0)?;
            if text == ALL.as_bytes() {
                return Ok(sockets.into_iter().collect());
            }
            if text.is_empty() {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it hands over to another one, or is gone",
                ));
            }
            let text = String::from_utf8(text).map_err(|_| unknown())?;
            let names = text.strip_prefix(SOCKETS).ok_or_else(unknown)?;
            let names: Vec<_> = names.split('\n').map(str::to_owned).collect();
            if names.len() != descriptors.len() || names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
                return Err(unknown());
            }
            sockets.extend(names.into_iter().zip(descriptors));
        }
        Err(unknown())
    }

    /// Reports that this process can serve, and waits until the predecessor no longer reads the sockets.
    ///
    /// # Errors
    /// The predecessor continues to serve, or does not answer.
    pub fn ready(&self) -> io::Result<()> {
        match self.exchange(READY, YOURS) {
            // This process may have been stopped in between.
            Ok(true) if !self.is_taken_back() => Ok(()),
            Ok(_) => Err(io::Error::other("it continues itself")),
            // The predecessor has ended, so it no longer reads the sockets.
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reports that this process serves, and waits until it is the service's main process. Returns
    /// `false` if the predecessor serves again, and `true` also if it has ended or hangs.
    pub fn serving(self) -> bool {
        self.exchange(SERVING, DONE).unwrap_or(true)
    }

    fn is_taken_back(&self) -> bool {
        let mut text = [0; BACK.len()];
        let next = recv(&self.0, &mut text, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        next.is_ok_and(|(length, _)| text.get(..length) == Some(BACK.as_bytes()))
    }

    /// Sends a message, and returns whether the reply is `answer`, or [`BACK`].
    fn exchange(&self, word: &str, answer: &str) -> io::Result<bool> {
        // Sending fails where the peer has closed its end, but its earlier messages can still be read.
        let _ = scm_rights::send(&self.0, word.as_bytes(), &[]);
        receive_word(&self.0, answer, PREDECESSOR_STEP)
    }
}

fn unix() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn expect(socket: &OwnedFd, word: &str, timeout: Duration) -> io::Result<()> {
    if receive_word(socket, word, timeout)? { Ok(()) } else { Err(unknown()) }
}

/// Receives a message: `true` for `word`, `false` for [`BACK`].
fn receive_word(socket: &OwnedFd, word: &str, timeout: Duration) -> io::Result<bool> {
    set_socket_timeout(socket, Timeout::Recv, Some(timeout))?;
    let received = scm_rights::receive(socket);
    let (text, _) = match received {
        // The kernel reports that the peer closed with unread data before it returns the peer's last messages.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => scm_rights::receive(socket)?,
        received => received?,
    };
    match text {
        text if text == word.as_bytes() => Ok(true),
        text if text == BACK.as_bytes() => Ok(false),
        text if text.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(unknown()),
    }
}

/// The time left until a deadline.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(clock::now());
    // A socket's timeout of zero means to wait without end, so no time left is an error here.
    if left.is_zero() { Err(scm_rights::explain(Errno::AGAIN)) } else { Ok(left) }
}

fn unknown() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it hands over in a way that this version does not know")
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof)
}

/// The number is the protocol's version.
const SOCKETS: &str = "localdns 1: sockets\n";
const ALL: &str = "localdns 1: all";
const READY: &str = "ready";
const YOURS: &str = "yours";
const SERVING: &str = "serving";
const DONE: &str = "done";
const BACK: &str = "back";
/// Timeout of the successor's start: reading and building its configuration.
const START: Duration = Duration::from_secs(60);
/// Timeout of the predecessor's accept.
const CONNECT: Duration = Duration::from_secs(5);
/// Timeout of a successor that is ready, until it answers: neither process answers queries in
/// between.
const SERVES: Duration = Duration::from_secs(2);
/// Timeout of the predecessor's steps: it stops sending queries elsewhere first, and notifies systemd, which reads no message while
/// it loads its units.
const PREDECESSOR_STEP: Duration = Duration::from_secs(20);
/// Timeout of all sockets together, whatever the number of messages.
const ALL_SOCKETS: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of sockets; servers have fewer.
const MAX_SOCKETS: usize = 4096;
/// Maximum length of a socket's name in bytes, as in systemd (FDNAME=).
const MAX_NAME_BYTES: usize = 255;

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread;

    use super::*;

    #[test]
    fn queued_datagrams_are_passed_with_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("handover");
        assert!(SuccessorEnd::connect(&path).unwrap().is_none());
        let path_socket = HandoverSocket::open(&path).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let all: Vec<_> =
            (0..130).map(|n| (format!("udp-{n}"), OwnedFd::from(socket.try_clone().unwrap()))).collect();
        socket.send_to(b"waits", at).unwrap();
        let giving = thread::spawn(move || {
            let predecessor = path_socket.accept();
            predecessor.send_sockets(&all).unwrap();
            predecessor.wait_ready().unwrap();
            predecessor.release().unwrap();
            predecessor.done().unwrap();
        });
        let successor = SuccessorEnd::connect(&path).unwrap().expect("a process serves");
        let mut inherited = successor.receive_sockets().unwrap();
        successor.ready().unwrap();
        assert!(successor.serving());
        giving.join().unwrap();
        let sockets = inherited.udp(at);
        assert_eq!(sockets.len(), 130);
        let first = UdpSocket::from(sockets.into_iter().next().unwrap());
        let mut buffer = [0; 16];
        assert_eq!(first.recv(&mut buffer).unwrap(), 5);
        // A socket file that no process listens on is replaced.
        assert!(SuccessorEnd::connect(&path).unwrap().is_none());
        drop(HandoverSocket::open(&path).unwrap());
    }

    #[test]
    fn unknown_messages_are_refused() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let long = format!("localdns 1: sockets\nudp-0-{}", "x".repeat(250));
        let rows: [(&[u8], &[BorrowedFd<'_>]); 6] = [
            (b"", &[]),
            (long.as_bytes(), &[file.as_fd()]),
            (b"localdns 2: sockets\nudp-0", &[file.as_fd()]),
            (b"localdns 1: sockets\nudp-0\nudp-1", &[file.as_fd()]),
            (b"localdns 1: sockets\n\xff", &[file.as_fd()]),
            (b"yours", &[]),
        ];
        for (text, descriptors) in rows {
            let (predecessor, theirs) = pair().unwrap();
            scm_rights::send(&predecessor.0, text, descriptors).unwrap();
            assert!(SuccessorEnd(theirs).receive_sockets().is_err(), "{text:?}");
        }
        // Gone at each step.
        for gone in
            [PredecessorEnd::wait_ready as fn(&PredecessorEnd) -> io::Result<()>, PredecessorEnd::release]
        {
            let (predecessor, theirs) = pair().unwrap();
            drop(theirs);
            assert!(gone(&predecessor).is_err());
        }
    }

    #[test]
    fn slow_or_endless_sockets_time_out() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let timeout = Duration::from_millis(300);
        // Sends until the peer closes, each message well within a timeout.
        let trickle = |pause: Duration| {
            let (predecessor, theirs) = pair().unwrap();
            let text = format!("{SOCKETS}udp-0");
            let descriptor = file.try_clone().unwrap();
            let giving = thread::spawn(move || {
                (0..1000)
                    .take_while(|_| {
                        thread::park_timeout(pause);
                        predecessor.send(&text, &[descriptor.as_fd()]).is_ok()
                    })
                    .count()
            });
            (giving, SuccessorEnd(theirs))
        };
        let (giving, successor) = trickle(timeout / 4);
        let error = successor.receive_sockets_within(timeout, 1000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        drop(successor);
        assert!(giving.join().unwrap() < 100, "it was not read to its end");
        let (giving, successor) = trickle(Duration::ZERO);
        let error = successor.receive_sockets_within(CONNECT, 10).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        drop(successor);
        giving.join().unwrap();
        // A peer that does not read times out.
        let (predecessor, _theirs) = pair().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&predecessor.0, 0).unwrap();
        let many: Vec<_> = (0..400).map(|_| ("udp-0".to_owned(), file.try_clone().unwrap())).collect();
        let error = predecessor.send_sockets_within(&many, timeout).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    #[test]
    fn successor_serves_only_if_predecessor_ended() {
        let step = |what: fn(PredecessorEnd)| {
            let (predecessor, theirs) = pair().unwrap();
            what(predecessor);
            SuccessorEnd(theirs)
        };
        assert!(step(drop).ready().is_ok());
        assert!(step(drop).serving());
        assert!(step(drop).receive_sockets().is_err(), "nothing was handed over");
        assert!(step(PredecessorEnd::take_back).ready().is_err());
        assert!(!step(PredecessorEnd::take_back).serving());
        // It was stopped for so long that the predecessor serves again.
        let (predecessor, theirs) = pair().unwrap();
        predecessor.send(YOURS, &[]).unwrap();
        predecessor.take_back();
        assert!(SuccessorEnd(theirs).ready().is_err());
        // The predecessor has not read our message.
        let (predecessor, theirs) = pair().unwrap();
        let successor = SuccessorEnd(theirs);
        scm_rights::send(&successor.0, READY.as_bytes(), &[]).unwrap();
        predecessor.take_back();
        assert!(successor.ready().is_err());
    }

    #[test]
    fn handover_path_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(HandoverSocket::open(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
        let _socket = HandoverSocket::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut successors = Vec::new();
        let full = loop {
            match SuccessorEnd::connect_within(&path, Duration::from_millis(20)) {
                Ok(successor) => successors.push(successor),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::TimedOut, "{full}");
    }
}
