//! Buffers that the connections of one thread share, turn by turn.

use std::cell::RefCell;

/// What one thread needs for as long as a turn of one connection takes.
pub(crate) struct Scratch {
    pub(crate) came: Box<[u8]>,
    /// What came, decrypted, and what leaves, encrypted.
    pub(crate) plain: Vec<u8>,
    pub(crate) sealed: Vec<u8>,
    pub(crate) reply: Vec<u8>,
    pub(crate) replies: Vec<u8>,
}

impl Scratch {
    /// Puts the reply, if there is one, behind those that leave, its length in front.
    pub(super) fn send_reply(&mut self) {
        if let (Ok(length), false) = (u16::try_from(self.reply.len()), self.reply.is_empty()) {
            self.replies.extend_from_slice(&length.to_be_bytes());
            self.replies.extend_from_slice(&self.reply);
        }
    }

    /// Gives back what replies of uncommon size have made it.
    pub(crate) fn shrink(&mut self) {
        self.replies.clear();
        self.replies.shrink_to(4 * TOGETHER);
        self.sealed.clear();
        self.sealed.shrink_to(4 * TOGETHER);
    }
}

thread_local! {
    pub(crate) static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        came: vec![0; 8192].into(),
        plain: Vec::new(),
        sealed: Vec::new(),
        reply: Vec::new(),
        replies: Vec::new(),
    });
}

/// Octets of replies that leave together; while the kernel does not take them, nothing more is read.
pub(crate) const TOGETHER: usize = 16 * 1024;
