//! Stands in for the kernel under Miri, which has no calls for datagrams. It follows the pointers
//! of each header as the kernel does, and delivers sent datagrams to receives on the same thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use libc::mmsghdr;

use crate::after_error::AfterError;
use crate::sockaddr::SockAddr;

/// A datagram that was sent and not received.
struct Datagram {
    name: Vec<u8>,
    bytes: Vec<u8>,
    control: Vec<u8>,
}

thread_local! {
    static QUEUE: RefCell<VecDeque<Datagram>> = const { RefCell::new(VecDeque::new()) };
}

/// Like `send_batch::send_messages`; a message to port 0 fails with EINVAL.
///
/// # Safety
/// As there.
pub(crate) unsafe fn send_messages(
    _: BorrowedFd<'_>,
    headers: &mut [mmsghdr],
    mut failed: impl FnMut(usize, io::Error) -> AfterError,
) -> usize {
    let mut sent = 0;
    for (index, header) in headers.iter_mut().enumerate() {
        let message = &header.msg_hdr;
        assert_eq!(message.msg_iovlen, 1, "each message lies in one piece");
        // SAFETY: the caller vouches for pointers and sizes, which is what Miri checks.
        let datagram = unsafe {
            let slice = message.msg_iov.read();
            Datagram {
                name: octets(message.msg_name.cast(), message.msg_namelen as usize),
                bytes: octets(slice.iov_base.cast(), slice.iov_len),
                control: octets(message.msg_control.cast(), message.msg_controllen as usize),
            }
        };
        // The port has the same offset in both families.
        if datagram.name.get(2..4) == Some(&[0, 0]) {
            match failed(index, io::Error::from_raw_os_error(libc::EINVAL)) {
                AfterError::Skip => continue,
                AfterError::Retry | AfterError::Stop => break,
            }
        }
        header.msg_len = datagram.bytes.len() as u32;
        QUEUE.with_borrow_mut(|queue| queue.push_back(datagram));
        sent += 1;
    }
    sent
}

/// Like recvmmsg: fills the headers from the first one on, and returns how many were filled.
///
/// # Safety
/// Every pointer in `headers` points to live memory of the size beside it.
pub(crate) unsafe fn receive_messages(headers: &mut [mmsghdr]) -> usize {
    let waiting = QUEUE.with_borrow_mut(|queue| {
        let count = queue.len().min(headers.len());
        queue.drain(..count).collect::<Vec<_>>()
    });
    for (header, datagram) in headers.iter_mut().zip(&waiting) {
        let message = &mut header.msg_hdr;
        assert!(message.msg_namelen as usize >= size_of::<SockAddr>(), "a name of either family fits");
        assert!(message.msg_controllen as usize >= datagram.control.len(), "what was sent fits");
        // SAFETY: the caller vouches for the pointers, and no more is written than fits.
        unsafe {
            let slice = message.msg_iov.read();
            let length = datagram.bytes.len().min(slice.iov_len);
            slice.iov_base.cast::<u8>().copy_from_nonoverlapping(datagram.bytes.as_ptr(), length);
            message
                .msg_name
                .cast::<u8>()
                .copy_from_nonoverlapping(datagram.name.as_ptr(), datagram.name.len());
            let control = message.msg_control.cast::<u8>();
            control.copy_from_nonoverlapping(datagram.control.as_ptr(), datagram.control.len());
            header.msg_len = length as u32;
            message.msg_flags = if length < datagram.bytes.len() { libc::MSG_TRUNC } else { 0 };
        }
        message.msg_namelen = datagram.name.len() as _;
        message.msg_controllen = datagram.control.len() as _;
    }
    waiting.len()
}

/// # Safety
/// `at` is null or points to `length` bytes.
unsafe fn octets(at: *const u8, length: usize) -> Vec<u8> {
    if at.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { std::slice::from_raw_parts(at, length) }.to_vec()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::os::fd::AsFd;

    use crate::{Local, RecvBatch, SendBatch};

    #[test]
    fn batch_arrives_with_addresses() {
        let stdin = std::io::stdin();
        let (mut outgoing, mut received) = (SendBatch::new(4, 16, 4096), RecvBatch::new(3, 8));
        let local = |address: &str| Some(Local { address: address.parse().unwrap(), interface: 0 });
        let rows: [(&str, Option<Local>, &[u8]); 4] = [
            ("127.0.0.5:53", None, b"plain"),
            ("[::1]:5353", local("2001:db8::1"), b"from six"),
            ("127.0.0.6:0", None, b"forged"),
            ("192.0.2.7:1024", local("192.0.2.1"), b"longer than a slot"),
        ];
        // The second time all slots, names and control buffers are reused.
        for _ in 0..2 {
            for (peer, local, bytes) in rows {
                outgoing.slot().unwrap().extend_from_slice(bytes);
                outgoing.commit(&peer.parse::<SocketAddr>().unwrap().into(), local);
            }
            assert!(outgoing.is_full());
            let sent = outgoing.send(stdin.as_fd());
            assert_eq!((sent.sent, sent.refused, sent.dropped), (3, 1, 0));
            assert_eq!(received.fill(stdin.as_fd()).unwrap(), 3);
            let arrived = rows.iter().filter(|(_, _, bytes)| *bytes != b"forged");
            for (datagram, (peer, local, bytes)) in received.iter().zip(arrived) {
                assert_eq!(datagram.peer.address(), peer.parse::<SocketAddr>().unwrap());
                assert_eq!(datagram.local, *local);
                assert_eq!(datagram.bytes, &bytes[..bytes.len().min(8)]);
                assert_eq!(datagram.truncated, bytes.len() > 8);
            }
            assert_eq!(received.kernel_drops(), None);
            assert_eq!(received.fill(stdin.as_fd()).unwrap(), 0);
        }
    }
}
