//! The reused batch of replies, and the loop that gives messages to the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{iovec, mmsghdr};

use crate::sockaddr::{Control, Local, Name, Peer, empty_message};

/// A batch of replies, each with where it goes. All memory but the slots' own bytes is taken in
/// [`Outgoing::new`]; a slot keeps what it grew to, up to a bound.
///
/// A reply is written straight into [`Outgoing::slot`] and becomes part of the batch by [`Outgoing::commit`];
/// a slot that is not committed is handed out again.
pub struct Outgoing {
    count: usize,
    slots: Vec<Vec<u8>>,
    /// Most octets that a slot keeps.
    kept_bytes: usize,
    /// These three are written by way of pointers alone once `headers` point to them: another borrow, such as an index
    /// makes, would end what the earlier pointers may be used for (Stacked Borrows), although the addresses are the same.
    peers: Vec<Peer>,
    controls: Vec<Control>,
    slices: Vec<iovec>,
    headers: Vec<mmsghdr>,
}

impl Outgoing {
    /// Room for `slots` replies (at least 1), each with `slot_bytes` taken at once and more only when written. What a slot
    /// has beyond `kept_bytes` it gives back when its reply is complete.
    pub fn new(slots: usize, slot_bytes: usize, kept_bytes: usize) -> Self {
        let slots = slots.max(1);
        let mut peers = vec![Peer(Name::empty()); slots];
        let mut slices = vec![iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; slots];
        let (first_peer, first_slice) = (peers.as_mut_ptr(), slices.as_mut_ptr());
        let headers = (0..slots)
            .map(|index| {
                let mut header = empty_message();
                header.msg_hdr.msg_name = first_peer.wrapping_add(index).cast();
                header.msg_hdr.msg_iov = first_slice.wrapping_add(index);
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Self {
            count: 0,
            kept_bytes,
            slots: (0..slots).map(|_| Vec::with_capacity(slot_bytes)).collect(),
            peers,
            controls: vec![Control::empty(); slots],
            slices,
            headers,
        }
    }

    /// Whether none is committed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether it must be sent before the next reply fits.
    pub fn is_full(&self) -> bool {
        self.count == self.slots.len()
    }

    /// The next free slot, empty, to write a reply into; `None` when the batch is full.
    #[inline]
    pub fn slot(&mut self) -> Option<&mut Vec<u8>> {
        let slot = self.slots.get_mut(self.count)?;
        slot.clear();
        Some(slot)
    }

    /// Adds what was written into [`Outgoing::slot`] as a reply to `peer`, from `local` where one is given.
    /// Without a slot taken before it adds an empty datagram; on a full batch it does nothing.
    #[inline(always)]
    pub fn commit(&mut self, peer: &Peer, local: Option<Local>) {
        let index = self.count;
        let (Some(slot), Some(header)) = (self.slots.get_mut(index), self.headers.get_mut(index)) else {
            return;
        };
        // A large answer is written whole before it is cut to what the client takes.
        if slot.capacity() > self.kept_bytes {
            slot.shrink_to(self.kept_bytes);
        }
        let header = &mut header.msg_hdr;
        // SAFETY: there are as many peers, slices and controls as slots, and `self` is borrowed for writing.
        unsafe {
            self.peers.as_mut_ptr().add(index).write(*peer);
            let slice = iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            self.slices.as_mut_ptr().add(index).write(slice);
            (header.msg_control, header.msg_controllen) = match &local {
                None => (std::ptr::null_mut(), 0),
                Some(local) => {
                    let control = self.controls.as_mut_ptr().add(index);
                    let length = (*control).write_source(local);
                    (control.cast(), length as _)
                }
            };
        }
        header.msg_namelen = peer.length();
        self.count += 1;
    }

    /// Sends every reply that can be sent and empties the batch.
    ///
    /// A full send buffer is waited for once, and not longer than [`SEND_WAIT_MS`]. It means that the way out is
    /// slower than we are for a moment: a client whose reply is dropped asks again only after seconds, so a short
    /// wait saves it much. More than one would make the clients of every other address wait for this one.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> Sent {
        let count = self.count;
        let (mut refused, mut waited, mut first_error) = (0, false, None);
        // SAFETY: the headers of what was committed point to peers, controls and slots of ours, which stay put meanwhile: a
        // slot is handed out again only when the batch is empty.
        let sent = unsafe {
            send_messages(socket, &mut self.headers[..count], |_, error| {
                let full = error.kind() == io::ErrorKind::WouldBlock;
                let next = match full {
                    true if !waited && wait_writable(socket) => {
                        waited = true;
                        return Next::Retry;
                    }
                    true => Next::Stop,
                    false => {
                        refused += 1;
                        Next::Skip
                    }
                };
                first_error.get_or_insert(error);
                next
            })
        };
        self.count = 0;
        Sent { sent, refused, dropped: count - sent - refused, error: first_error }
    }
}

// SAFETY: the raw pointers in slices and headers lead only into vectors that the same value owns.
unsafe impl Send for Outgoing {}

/// What became of a batch.
#[derive(Debug, Default)]
pub struct Sent {
    /// Replies that the kernel took.
    pub sent: usize,
    /// Replies that the kernel refused for their own sake, such as one to port 0.
    pub refused: usize,
    /// Replies given up because the send buffer stayed full.
    pub dropped: usize,
    /// The first error met, for the log; `None` when all were sent.
    pub error: Option<io::Error>,
}

#[cfg(miri)]
pub(crate) use crate::miri_shim::send_messages;

/// Sends messages by as few calls as it takes and returns how many were sent.
///
/// The kernel stops at the first message it cannot send and names the error only when asked for that message
/// again: `failed` is then told its index and decides. (A reply to a forged port 0 fails with EINVAL; without the
/// skip it would cost the others in its batch theirs.)
///
/// # Safety
/// Every pointer in `headers` leads to memory that is alive and not written during the call, of the size that
/// stands beside it.
#[cfg(not(miri))]
pub(crate) unsafe fn send_messages(
    socket: BorrowedFd<'_>,
    headers: &mut [mmsghdr],
    mut failed: impl FnMut(usize, io::Error) -> Next,
) -> usize {
    let (mut next, mut sent) = (0, 0);
    while next < headers.len() {
        let rest = &mut headers[next..];
        // The system call itself: musl's function of that name sends one by one where pointers have 64 bits.
        // SAFETY: `rest` is a live slice, whose headers have the kernel's shape and nothing in their padding, and the
        // caller vouches for what they point to.
        let taken = unsafe {
            libc::syscall(
                libc::SYS_sendmmsg,
                socket.as_raw_fd(),
                rest.as_mut_ptr(),
                rest.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if taken > 0 {
            next += taken as usize;
            sent += taken as usize;
            continue;
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::Interrupted {
            continue;
        }
        match failed(next, error) {
            Next::Retry => {}
            Next::Skip => next += 1,
            Next::Stop => break,
        }
    }
    sent
}

/// Waits until the socket can be written to; false when that takes too long.
fn wait_writable(socket: BorrowedFd<'_>) -> bool {
    let mut waiting = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one live pollfd is passed, with the count 1.
    unsafe { libc::poll(&raw mut waiting, 1, SEND_WAIT_MS) == 1 }
}

/// Longest wait for a full send buffer, in milliseconds: a default buffer (208 KiB) drains in 2 ms at 1 Gbit/s.
const SEND_WAIT_MS: libc::c_int = 2;

/// What to do about a message that the kernel did not take.
pub(crate) enum Next {
    /// Try it again.
    Retry,
    /// Go on with the one after it.
    Skip,
    /// Give up the rest.
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn a_slot_that_grew_gives_back_what_is_beyond_the_bound_and_keeps_the_rest() {
        let (slots, slot_bytes, kept_bytes) = (3, 100, 1_000);
        let mut replies = Outgoing::new(slots, slot_bytes, kept_bytes);
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let peer = Peer::from(address);
        for (written, left) in [(50_000, 400), (900, 900), (5_000, 2_000)] {
            let slot = replies.slot().unwrap();
            slot.resize(written, 7);
            slot.truncate(left);
            replies.commit(&peer, None);
        }
        assert!(replies.is_full());
        let held: Vec<usize> = replies.slots.iter().map(Vec::capacity).collect();
        assert!(held[0] <= kept_bytes && (900..=kept_bytes).contains(&held[1]), "{held:?}");
        // What is to be sent stays, however long.
        assert!((2_000..5_000).contains(&held[2]), "{held:?}");
        assert!(replies.slots.iter().zip([400, 900, 2_000]).all(|(slot, left)| slot[..] == vec![7; left]));
        replies.count = 0;
        let before = replies.slots[1].as_ptr();
        replies.slot().unwrap().extend_from_slice(b"first");
        replies.commit(&peer, None);
        replies.slot().unwrap().resize(kept_bytes - 100, 8);
        assert_eq!(replies.slots[1].as_ptr(), before, "what fits takes no memory again");
    }
}
