//! Messages with file descriptors (SCM_RIGHTS) over unix sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors in a message; the kernel accepts 253 (SCM_MAX_FD).
pub(crate) const MAX_DESCRIPTORS: usize = 64;
/// Maximum size of a message, in bytes.
const MAX_BYTES: usize = 32 * 1024;

/// Sends one message with at most [`MAX_DESCRIPTORS`] descriptors.
pub(crate) fn send(to: impl AsFd, text: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match sendmsg(&to, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == text.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(explain(error)),
        }
    }
}

/// Converts an error; a socket's timeout is reported as EAGAIN.
pub(crate) fn explain(error: Errno) -> io::Error {
    match error {
        Errno::AGAIN => io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time"),
        error => error.into(),
    }
}

/// Receives one message with its descriptors; an empty message is the end of the connection.
pub(crate) fn receive(from: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut text = vec![0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&from, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received.map_err(explain)?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    text.truncate(received.bytes);
    Ok((text, descriptors))
}
