//! Fields of a query.

use tests::{Edns, Message, question_end};

use crate::run::Case;

impl Case<'_> {
    /// The server block that the query is for, or the whole Corefile.
    pub(crate) fn text(&self) -> &str {
        self.query.block.as_deref().unwrap_or(&self.setup.text)
    }

    pub(crate) fn flags(&self) -> u16 {
        self.message.get(2..4).map_or(0, |octets| u16::from_be_bytes([octets[0], octets[1]]))
    }

    pub(crate) fn opcode(&self) -> u16 {
        self.flags() >> 11 & 0xf
    }

    pub(crate) fn rtype(&self) -> u16 {
        self.before_end(4)
    }

    pub(crate) fn class(&self) -> u16 {
        self.before_end(2)
    }

    /// The 16-bit value that begins `octets` bytes before the question's end.
    fn before_end(&self, octets: usize) -> u16 {
        let Some(at) = question_end(self.message).map(|end| end - octets) else { return 0 };
        u16::from_be_bytes([self.message[at], self.message[at + 1]])
    }

    /// The name in the query's case, with the final dot.
    pub(crate) fn name(&self) -> String {
        self.decoded().question.map_or_else(String::new, |question| question.name)
    }

    pub(super) fn edns(&self) -> Option<Edns> {
        self.decoded().edns
    }

    /// The maximum size of a UDP reply.
    pub(super) fn size(&self) -> u16 {
        self.edns().map_or(512, |opt| opt.size)
    }

    fn decoded(&self) -> Message {
        Message::decode(self.message).unwrap_or_default()
    }
}
