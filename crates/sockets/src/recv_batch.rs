//! Receive batch (recvmmsg): a reused set of buffers for datagrams.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

use libc::{iovec, mmsghdr};

use crate::sockaddr::{
    CONTROL_BYTES, ControlBuffer, Local, Peer, SockAddr, control_message, empty_message, local_of,
};

/// A batch of received datagrams. All memory is allocated in [`RecvBatch::new`]. One batch may serve
/// many sockets in turn; each `receive` discards the datagrams before.
pub struct RecvBatch {
    count: usize,
    slot_bytes: usize,
    /// Distance between slots in bytes.
    stride: usize,
    bytes: Vec<u8>,
    peers: Vec<Peer>,
    /// Accessed through `headers` only, as the slices.
    _controls: Vec<ControlBuffer>,
    _slices: Vec<iovec>,
    /// Headers that point into the four fields above, which never grow or move their contents.
    headers: Vec<mmsghdr>,
}

impl RecvBatch {
    /// Allocates space for `slots` datagrams of at most `slot_bytes` each; longer ones are
    /// truncated and marked. Both are at least 1. Pages are touched only as datagrams fill them.
    pub fn new(slots: usize, slot_bytes: usize) -> Self {
        let (slots, slot_bytes) = (slots.max(1), slot_bytes.max(1));
        let stride = (slot_bytes.div_ceil(CACHE_LINE) | 1) * CACHE_LINE;
        let mut bytes = vec![0u8; slots * stride];
        let mut peers = vec![Peer(SockAddr::empty()); slots];
        let mut controls = vec![ControlBuffer::empty(); slots];
        let first_byte = bytes.as_mut_ptr();
        let mut slices: Vec<_> = (0..slots)
            .map(|i| iovec { iov_base: first_byte.wrapping_add(i * stride).cast(), iov_len: slot_bytes })
            .collect();
        let (first_peer, first_slice) = (peers.as_mut_ptr(), slices.as_mut_ptr());
        let first_control = controls.as_mut_ptr();
        let headers = (0..slots)
            .map(|i| {
                let mut header = empty_message();
                header.msg_hdr.msg_name = first_peer.wrapping_add(i).cast();
                header.msg_hdr.msg_iov = first_slice.wrapping_add(i);
                header.msg_hdr.msg_iovlen = 1;
                header.msg_hdr.msg_control = first_control.wrapping_add(i).cast();
                reset(&mut header);
                header
            })
            .collect();
        Self { count: 0, slot_bytes, stride, bytes, peers, _controls: controls, _slices: slices, headers }
    }

    /// Number of datagrams.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no datagrams.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Maximum number of datagrams. A `receive` that returned fewer has emptied its socket.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Returns the datagram at `index`.
    ///
    /// # Panics
    /// As a slice does, when `index` is not below [`RecvBatch::len`].
    #[inline(always)]
    pub fn get(&self, index: usize) -> Datagram<'_> {
        let header = &self.headers[..self.count][index];
        let start = index * self.stride;
        let len = (header.msg_len as usize).min(self.slot_bytes);
        Datagram {
            bytes: &self.bytes[start..start + len],
            peer: &self.peers[index],
            // SAFETY: the kernel filled this header, its control buffer belongs to `self`, and
            // `self` is borrowed.
            local: unsafe { local_of(&header.msg_hdr) },
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }

    /// Returns the datagrams, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> {
        (0..self.count).map(|index| self.get(index))
    }

    /// Returns the number of datagrams that the kernel had dropped on this socket since it was
    /// opened, as the receive buffer was full, when it received the newest of the batch. Wraps at
    /// `u32::MAX`. `None` if the batch is empty or nothing was ever dropped.
    pub fn kernel_drops(&self) -> Option<u32> {
        let newest = self.headers[..self.count].last()?;
        // SAFETY: the kernel filled this header, its control buffer belongs to `self`, and `self`
        // is borrowed.
        unsafe { control_message(&newest.msg_hdr, libc::SOL_SOCKET, libc::SO_RXQ_OVFL) }
    }

    /// Receives the datagrams in the socket's queue, without blocking.
    #[inline]
    pub(crate) fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // The kernel overwrote the lengths in the headers that it filled in the last call.
        for header in &mut self.headers[..self.count] {
            reset(header);
        }
        self.count = 0;
        #[cfg(miri)]
        {
            let _ = socket;
            // SAFETY: as below.
            self.count = unsafe { crate::miri_shim::receive_messages(&mut self.headers) };
            return Ok(self.count);
        }
        #[cfg_attr(miri, allow(unreachable_code, reason = "Miri has no such call"))]
        loop {
            // The raw system call: musl's function of that name first writes to every header.
            // SAFETY: each header points to one name, one control buffer and one slice of ours,
            // with their sizes; none of them has moved since `new`, and `self` is borrowed for
            // writing. The headers have the kernel's layout and zeroed padding.
            let received = unsafe {
                libc::syscall(
                    libc::SYS_recvmmsg,
                    socket.as_raw_fd(),
                    self.headers.as_mut_ptr(),
                    self.headers.len(),
                    libc::MSG_DONTWAIT,
                    null_mut::<libc::timespec>(),
                )
            };
            if received >= 0 {
                self.count = received as usize;
                return Ok(self.count);
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock => return Ok(0),
                _ => return Err(error),
            }
        }
    }
}

/// The size of a cache line in bytes. The distance between slots is an odd number of lines: most
/// queries fit a slot's first lines, which with a power of two would compete for the same cache
/// sets.
const CACHE_LINE: usize = 64;

// SAFETY: the raw pointers in the headers point only into vectors that the same value owns.
unsafe impl Send for RecvBatch {}

/// A datagram, borrowed from its batch.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The datagram's content, at most a slot long.
    pub bytes: &'a [u8],
    /// The sender. Forged packets may have port 0, which cannot be answered.
    pub peer: &'a Peer,
    /// The datagram's destination; reported by wildcard sockets only.
    pub local: Option<Local>,
    /// The datagram was longer than its slot and is truncated.
    pub truncated: bool,
}

/// Resets the fields that the kernel overwrites with each datagram.
#[inline]
fn reset(header: &mut mmsghdr) {
    header.msg_hdr.msg_namelen = size_of::<SockAddr>() as _;
    header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
}
