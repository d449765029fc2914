//! Send batch (sendmmsg): a reused set of replies, and the loop that sends messages.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{iovec, mmsghdr};

use crate::after_error::AfterError;
use crate::sockaddr::{ControlBuffer, Local, Peer, SockAddr, empty_message};

/// A batch of replies with their destinations. All memory but the slots' bytes is allocated in
/// [`SendBatch::new`]; a slot keeps its capacity, up to a limit.
///
/// A reply is written into [`SendBatch::slot`] and added to the batch by [`SendBatch::commit`]; a
/// slot that is not committed is returned again.
pub struct SendBatch {
    count: usize,
    slots: Vec<Vec<u8>>,
    /// Maximum capacity in bytes that a slot keeps.
    kept_bytes: usize,
    /// Once `headers` point to these three, they are accessed through raw pointers only: another
    /// borrow, such as indexing, would invalidate the pointers (Stacked Borrows), although the
    /// addresses are the same.
    peers: Vec<Peer>,
    controls: Vec<ControlBuffer>,
    slices: Vec<iovec>,
    headers: Vec<mmsghdr>,
}

impl SendBatch {
    /// Allocates space for `slots` replies (at least 1), each with `slot_bytes` allocated at once
    /// and more when needed. Capacity beyond `kept_bytes` is freed when a reply is committed.
    pub fn new(slots: usize, slot_bytes: usize, kept_bytes: usize) -> Self {
        let slots = slots.max(1);
        let mut peers = vec![Peer(SockAddr::empty()); slots];
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
            controls: vec![ControlBuffer::empty(); slots],
            slices,
            headers,
        }
    }

    /// Whether no reply is committed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the batch must be sent before the next reply fits.
    pub fn is_full(&self) -> bool {
        self.count == self.slots.len()
    }

    /// Returns the next free slot, empty, for a reply; `None` if the batch is full.
    #[inline]
    pub fn slot(&mut self) -> Option<&mut Vec<u8>> {
        let slot = self.slots.get_mut(self.count)?;
        slot.clear();
        Some(slot)
    }

    /// Adds the content of [`SendBatch::slot`] as a reply to `peer`, from `local` if given. Without
    /// a preceding slot it adds an empty datagram; on a full batch it does nothing.
    #[inline(always)]
    pub fn commit(&mut self, peer: &Peer, local: Option<Local>) {
        let index = self.count;
        let (Some(slot), Some(header)) = (self.slots.get_mut(index), self.headers.get_mut(index)) else {
            return;
        };
        // A large answer is written whole before it is truncated to the client's limit.
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
    /// Waits for a full send buffer once, at most [`SEND_WAIT_MS`]. A full buffer means that the
    /// network is briefly slower than this process: a client that gets no reply retries only after
    /// seconds, so a short wait is worth it. More than one wait would delay clients of all other
    /// addresses.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> Sent {
        let count = self.count;
        let (mut refused, mut waited, mut first_error) = (0, false, None);
        // SAFETY: the headers of committed replies point to peers, controls and slots of ours,
        // which stay in place: a slot is reused only when the batch is empty.
        let sent = unsafe {
            send_messages(socket, &mut self.headers[..count], |_, error| {
                let full = error.kind() == io::ErrorKind::WouldBlock;
                let next = match full {
                    true if !waited && wait_writable(socket) => {
                        waited = true;
                        return AfterError::Retry;
                    }
                    true => AfterError::Stop,
                    false => {
                        refused += 1;
                        AfterError::Skip
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

// SAFETY: the raw pointers in slices and headers point only into vectors that the same value owns.
unsafe impl Send for SendBatch {}

/// Result of sending a batch.
#[derive(Debug, Default)]
pub struct Sent {
    /// Replies that the kernel accepted.
    pub sent: usize,
    /// Replies that the kernel refused individually, such as one to port 0.
    pub refused: usize,
    /// Replies dropped because the send buffer stayed full.
    pub dropped: usize,
    /// The first error, for the log; `None` if all were sent.
    pub error: Option<io::Error>,
}

#[cfg(miri)]
pub(crate) use crate::miri_shim::send_messages;

/// Sends messages in as few calls as possible; returns how many were sent.
///
/// The kernel stops at the first message that it cannot send and reports the error only when that
/// message is tried again: `failed` then gets its index and decides. (A reply to a forged port 0
/// fails with EINVAL; without the skip, the rest of its batch would be lost.)
///
/// # Safety
/// Every pointer in `headers` points to memory of the size beside it that is live and not written
/// during the call.
#[cfg(not(miri))]
pub(crate) unsafe fn send_messages(
    socket: BorrowedFd<'_>,
    headers: &mut [mmsghdr],
    mut failed: impl FnMut(usize, io::Error) -> AfterError,
) -> usize {
    let (mut next, mut sent) = (0, 0);
    while next < headers.len() {
        let rest = &mut headers[next..];
        // The raw system call: musl's function of that name sends one by one where pointers have 64
        // bits.
        // SAFETY: `rest` is a live slice, its headers have the kernel's layout and zeroed padding,
        // and the caller vouches for the pointers.
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
            AfterError::Retry => {}
            AfterError::Skip => next += 1,
            AfterError::Stop => break,
        }
    }
    sent
}

/// Waits until the socket is writable; false after [`SEND_WAIT_MS`].
fn wait_writable(socket: BorrowedFd<'_>) -> bool {
    let mut waiting = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one live pollfd is passed, with the count 1.
    unsafe { libc::poll(&raw mut waiting, 1, SEND_WAIT_MS) == 1 }
}

/// Longest wait for a full send buffer in milliseconds: a default buffer (208 KiB) drains in 2 ms
/// at 1 Gbit/s.
const SEND_WAIT_MS: libc::c_int = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn slot_capacity_is_limited() {
        let (slots, slot_bytes, kept_bytes) = (3, 100, 1_000);
        let mut replies = SendBatch::new(slots, slot_bytes, kept_bytes);
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
        // The content of a committed reply stays, however long.
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
