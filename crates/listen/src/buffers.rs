//! Buffers that the connections of one thread share.

use std::cell::RefCell;

/// Buffers for one turn of a connection.
pub(crate) struct Buffers {
    pub(crate) received: Box<[u8]>,
    /// Received bytes, decrypted, and bytes to send, encrypted.
    pub(crate) plain: Vec<u8>,
    pub(crate) sealed: Vec<u8>,
    pub(crate) reply: Vec<u8>,
    pub(crate) replies: Vec<u8>,
}

impl Buffers {
    /// Appends the reply, if there is one, with its length prefix to the replies.
    pub(super) fn send_reply(&mut self) {
        if let (Ok(length), false) = (u16::try_from(self.reply.len()), self.reply.is_empty()) {
            self.replies.extend_from_slice(&length.to_be_bytes());
            self.replies.extend_from_slice(&self.reply);
        }
    }

    /// Frees the memory of uncommonly large replies.
    pub(crate) fn shrink(&mut self) {
        self.replies.clear();
        self.replies.shrink_to(4 * TOGETHER);
        self.sealed.clear();
        self.sealed.shrink_to(4 * TOGETHER);
    }
}

thread_local! {
    pub(crate) static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers {
        received: vec![0; 8192].into(),
        plain: Vec::new(),
        sealed: Vec::new(),
        reply: Vec::new(),
        replies: Vec::new(),
    });
}

/// Bytes of replies that are written together. Nothing more is read until the kernel has accepted
/// them.
pub(crate) const TOGETHER: usize = 16 * 1024;
