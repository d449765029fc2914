//! From one process to the next, over a unix socket.
//!
//! ```text
//! the one that serves                 the one that starts
//!   sockets, some in each message  ->
//!                                  <- ready      it has read its configuration, and bound what it was not given
//!   yours                          ->            nobody reads the sockets any more: what comes meanwhile waits in them
//!                                  <- serving    it answers on every address
//!   done                           ->            it speaks for the service
//! ```
//! Whatever fails before `serving`, the first one goes on as before, and says so (`back`). Where its end of the line closes without
//! a word, once all sockets are over, it is gone: the one that starts goes on alone.

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

use crate::{Inherited, message};

/// The side of the one that serves.
#[derive(Debug)]
pub struct Giver(OwnedFd);

/// The side of the one that starts.
#[derive(Debug)]
pub struct Taker(OwnedFd);

/// Where successors come to.
#[derive(Debug)]
pub struct HandoverSocket(OwnedFd);

impl HandoverSocket {
    /// Opens it at a path, for this user and root alone; a socket that stands there, and leads to nobody any more, is replaced.
    ///
    /// # Errors
    /// `AlreadyExists` where something else stands there; what the kernel says.
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

    /// Waits for a successor; whoever may not take over is sent away.
    pub fn wait(&self) -> Giver {
        loop {
            match accept_with(&self.0, SocketFlags::CLOEXEC) {
                Ok(socket) if may_hand_over(&socket) => return Giver(socket),
                Ok(_) => {}
                // No descriptors left, most likely: there may be some again.
                Err(_) => thread::sleep(AGAIN),
            }
        }
    }
}

/// Whether the other end is this user, or root.
fn may_hand_over(socket: &OwnedFd) -> bool {
    getsockopt(socket, PeerCredentials)
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw())
}

/// Both ends at once: the other one is a child's standard input.
///
/// # Errors
/// What the kernel says.
pub fn pair() -> io::Result<(Giver, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((Giver(ours), theirs))
}

impl Giver {
    /// Gives copies of sockets, by name.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn give(&self, sockets: &[(String, OwnedFd)]) -> io::Result<()> {
        self.give_within(sockets, ALL_SOCKETS)
    }

    fn give_within(&self, sockets: &[(String, OwnedFd)], patience: Duration) -> io::Result<()> {
        let until = clock::now() + patience;
        for some in sockets.chunks(message::MOST) {
            set_socket_timeout(&self.0, Timeout::Send, Some(left(until)?))?;
            let names: Vec<_> = some.iter().map(|(name, _)| name.as_str()).collect();
            let descriptors: Vec<_> = some.iter().map(|(_, descriptor)| descriptor.as_fd()).collect();
            self.say(&format!("{SOCKETS}{}", names.join("\n")), &descriptors)?;
        }
        self.say(ALL, &[])
    }

    /// Waits until the successor is ready to take over.
    ///
    /// # Errors
    /// Where it is gone, or takes longer than a start may.
    pub fn ready(&self) -> io::Result<()> {
        expect(&self.0, READY, START)
    }

    /// Says that nobody here reads the sockets any more, and waits until the successor answers on them.
    ///
    /// # Errors
    /// Where it is gone, or does not in time: then they are ours again.
    pub fn yours(&self) -> io::Result<()> {
        self.say(YOURS, &[])?;
        expect(&self.0, SERVING, SERVES)
    }

    /// Tells the successor that these sockets are ours again.
    pub fn take_back(self) {
        // A successor that does not read this has ended, or reads the end of the connection instead.
        let _ = self.say(BACK, &[]);
    }

    /// Tells the successor that it speaks for the service now.
    ///
    /// # Errors
    /// Where it is gone.
    pub fn done(self) -> io::Result<()> {
        self.say(DONE, &[])
    }

    fn say(&self, text: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        message::send(&self.0, text.as_bytes(), descriptors)
    }
}

impl Taker {
    /// Finds who serves at a path; `None` where nobody does.
    ///
    /// # Errors
    /// What the kernel says else.
    pub fn find(path: &Path) -> io::Result<Option<Self>> {
        Self::find_within(path, STEP)
    }

    fn find_within(path: &Path, patience: Duration) -> io::Result<Option<Self>> {
        let socket = unix()?;
        // A server that hangs accepts no connection, and `connect` blocks while its queue is full.
        set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        match connect(&socket, &SocketAddrUnix::new(path)?).map_err(message::explain) {
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

    /// The parent's end of a [`pair`], which is standard input; that leads nowhere afterwards.
    ///
    /// # Errors
    /// Where it is no such socket.
    pub fn of_parent() -> io::Result<Self> {
        let socket = rustix::stdio::stdin().try_clone_to_owned()?;
        // Where standard input is no socket, it is left as it is.
        rustix::net::sockopt::socket_type(&socket)?;
        let nowhere = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nowhere)?;
        Ok(Self(socket))
    }

    /// Takes the sockets.
    ///
    /// # Errors
    /// Where what comes is not what a server of ours says.
    pub fn sockets(&self) -> io::Result<Inherited> {
        self.sockets_within(ALL_SOCKETS, MOST)
    }

    fn sockets_within(&self, patience: Duration, most: usize) -> io::Result<Inherited> {
        let until = clock::now() + patience;
        let mut sockets = Vec::new();
        while sockets.len() < most {
            set_socket_timeout(&self.0, Timeout::Recv, Some(left(until)?))?;
            let (text, descriptors) = message::receive(&self.0)?;
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
            if names.len() != descriptors.len() || names.iter().any(|name| name.len() > LONGEST_NAME) {
                return Err(unknown());
            }
            sockets.extend(names.into_iter().zip(descriptors));
        }
        Err(unknown())
    }

    /// Says that this process can serve, and waits until it is to: nobody else reads the sockets from then on.
    ///
    /// # Errors
    /// Where the other one goes on, or does not answer.
    pub fn ready(&self) -> io::Result<()> {
        match self.say(READY, YOURS) {
            // This process may have stood still meanwhile.
            Ok(true) if !self.is_taken_back() => Ok(()),
            Ok(_) => Err(io::Error::other("it goes on itself")),
            // Nobody else reads them, either.
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Says that this process serves, and waits until it speaks for the service; false where the other one has taken its sockets
    /// back. One that is gone, or hangs, will not.
    pub fn serving(self) -> bool {
        self.say(SERVING, DONE).unwrap_or(true)
    }

    fn is_taken_back(&self) -> bool {
        let mut text = [0; BACK.len()];
        let next = recv(&self.0, &mut text, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        next.is_ok_and(|(length, _)| text.get(..length) == Some(BACK.as_bytes()))
    }

    /// Says one word, and whether the other one comes in turn, or [`BACK`].
    fn say(&self, word: &str, answer: &str) -> io::Result<bool> {
        // Sending fails where the other end is closed, but what it sent before can still be read.
        let _ = message::send(&self.0, word.as_bytes(), &[]);
        hear(&self.0, answer, ITS_TURN)
    }
}

fn unix() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn expect(socket: &OwnedFd, word: &str, patience: Duration) -> io::Result<()> {
    if hear(socket, word, patience)? { Ok(()) } else { Err(unknown()) }
}

/// Whether the word comes, or [`BACK`].
fn hear(socket: &OwnedFd, word: &str, patience: Duration) -> io::Result<bool> {
    set_socket_timeout(socket, Timeout::Recv, Some(patience))?;
    let received = message::receive(socket);
    let (text, _) = match received {
        // That its end was closed on what we said comes before what it said.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => message::receive(socket)?,
        received => received?,
    };
    match text {
        text if text == word.as_bytes() => Ok(true),
        text if text == BACK.as_bytes() => Ok(false),
        text if text.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(unknown()),
    }
}

/// What is left of a patience.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(clock::now());
    // A socket's timeout of zero means to wait without end, so no time left is an error here.
    if left.is_zero() { Err(message::explain(Errno::AGAIN)) } else { Ok(left) }
}

fn unknown() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it hands over in a way that this version does not know")
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof)
}

/// The number is that of this way to speak.
const SOCKETS: &str = "localdns 1: sockets\n";
const ALL: &str = "localdns 1: all";
const READY: &str = "ready";
const YOURS: &str = "yours";
const SERVING: &str = "serving";
const DONE: &str = "done";
const BACK: &str = "back";
/// How long a successor may take to read its configuration and to build what serves it.
const START: Duration = Duration::from_secs(60);
/// How long a server may take to accept who comes.
const STEP: Duration = Duration::from_secs(5);
/// How long a successor that is ready may take to answer: nobody does meanwhile.
const SERVES: Duration = Duration::from_secs(2);
/// How long the one that serves may take for its turn: it sends clients nowhere else first, and tells systemd, which hears nobody
/// while it reads its units.
const ITS_TURN: Duration = Duration::from_secs(20);
/// How long all sockets together may take, however often a message comes.
const ALL_SOCKETS: Duration = Duration::from_secs(10);
/// When a socket is tried again that nobody can be let in by.
const AGAIN: Duration = Duration::from_millis(100);
/// More than any server has.
const MOST: usize = 4096;
/// The longest name of a socket, as systemd has it (FDNAME=).
const LONGEST_NAME: usize = 255;

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread;

    use super::*;

    #[test]
    fn sockets_go_over_with_what_waits_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("handover");
        assert!(Taker::find(&path).unwrap().is_none());
        let path_socket = HandoverSocket::open(&path).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let all: Vec<_> =
            (0..130).map(|n| (format!("udp-{n}"), OwnedFd::from(socket.try_clone().unwrap()))).collect();
        socket.send_to(b"waits", at).unwrap();
        let giving = thread::spawn(move || {
            let giver = path_socket.wait();
            giver.give(&all).unwrap();
            giver.ready().unwrap();
            giver.yours().unwrap();
            giver.done().unwrap();
        });
        let taker = Taker::find(&path).unwrap().expect("somebody serves");
        let mut inherited = taker.sockets().unwrap();
        taker.ready().unwrap();
        assert!(taker.serving());
        giving.join().unwrap();
        let sockets = inherited.udp(at);
        assert_eq!(sockets.len(), 130);
        let first = UdpSocket::from(sockets.into_iter().next().unwrap());
        let mut buffer = [0; 16];
        assert_eq!(first.recv(&mut buffer).unwrap(), 5);
        // A socket that nobody listens at is no obstacle.
        assert!(Taker::find(&path).unwrap().is_none());
        drop(HandoverSocket::open(&path).unwrap());
    }

    #[test]
    fn what_is_no_server_of_ours_is_refused() {
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
            let (giver, theirs) = pair().unwrap();
            message::send(&giver.0, text, descriptors).unwrap();
            assert!(Taker(theirs).sockets().is_err(), "{text:?}");
        }
        // Gone at each step.
        for gone in [Giver::ready as fn(&Giver) -> io::Result<()>, Giver::yours] {
            let (giver, theirs) = pair().unwrap();
            drop(theirs);
            assert!(gone(&giver).is_err());
        }
    }

    #[test]
    fn sockets_that_trickle_in_or_are_too_many_or_never_end_are_given_up() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let patience = Duration::from_millis(300);
        // As long as anybody listens, and each well within a step.
        let trickle = |pause: Duration| {
            let (giver, theirs) = pair().unwrap();
            let text = format!("{SOCKETS}udp-0");
            let descriptor = file.try_clone().unwrap();
            let giving = thread::spawn(move || {
                (0..1000)
                    .take_while(|_| {
                        thread::park_timeout(pause);
                        giver.say(&text, &[descriptor.as_fd()]).is_ok()
                    })
                    .count()
            });
            (giving, Taker(theirs))
        };
        let (giving, taker) = trickle(patience / 4);
        let error = taker.sockets_within(patience, 1000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        drop(taker);
        assert!(giving.join().unwrap() < 100, "it was not heard to its end");
        let (giving, taker) = trickle(Duration::ZERO);
        let error = taker.sockets_within(STEP, 10).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        drop(taker);
        giving.join().unwrap();
        // Nor is one waited for that takes nothing.
        let (giver, _theirs) = pair().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&giver.0, 0).unwrap();
        let many: Vec<_> = (0..400).map(|_| ("udp-0".to_owned(), file.try_clone().unwrap())).collect();
        let error = giver.give_within(&many, patience).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    #[test]
    fn one_that_is_gone_is_succeeded_and_one_that_goes_on_is_not() {
        let step = |what: fn(Giver)| {
            let (giver, theirs) = pair().unwrap();
            what(giver);
            Taker(theirs)
        };
        assert!(step(drop).ready().is_ok());
        assert!(step(drop).serving());
        assert!(step(drop).sockets().is_err(), "nothing was handed over");
        assert!(step(Giver::take_back).ready().is_err());
        assert!(!step(Giver::take_back).serving());
        // It stood still for so long that the other one goes on.
        let (giver, theirs) = pair().unwrap();
        giver.say(YOURS, &[]).unwrap();
        giver.take_back();
        assert!(Taker(theirs).ready().is_err());
        // It has not read what was said to it.
        let (giver, theirs) = pair().unwrap();
        let taker = Taker(theirs);
        message::send(&taker.0, READY.as_bytes(), &[]).unwrap();
        giver.take_back();
        assert!(taker.ready().is_err());
    }

    #[test]
    fn a_door_takes_no_files_place_and_one_that_hangs_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(HandoverSocket::open(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
        let _socket = HandoverSocket::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut came = Vec::new();
        let full = loop {
            match Taker::find_within(&path, Duration::from_millis(20)) {
                Ok(taker) => came.push(taker),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::TimedOut, "{full}");
    }
}
