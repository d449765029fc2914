//! The messages of one send call, in one buffer.

/// A buffer of messages, each preceded by its length in two bytes. TCP sends the whole buffer (RFC
/// 1035, section 4.2.2), UDP the single messages. The memory is reused.
#[derive(Debug, Default)]
pub struct Burst {
    bytes: Vec<u8>,
    /// The offset of each frame in `bytes`.
    starts: Vec<usize>,
}

impl Burst {
    /// Adds one message, which `write` appends; a message is truncated to 65,535 bytes.
    #[inline]
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.starts.push(start);
        self.bytes.extend_from_slice(&[0, 0]);
        write(&mut self.bytes);
        let length = u16::try_from(self.bytes.len() - start - 2).unwrap_or(u16::MAX);
        self.bytes.truncate(start + 2 + usize::from(length));
        self.bytes[start..start + 2].copy_from_slice(&length.to_be_bytes());
    }

    /// Removes all messages.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns all messages, each preceded by its length.
    pub fn framed(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the messages, in the order they were added.
    pub fn messages(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self.starts.iter().skip(1).copied().chain([self.bytes.len()]);
        self.starts.iter().zip(ends).map(|(start, end)| &self.bytes[start + 2..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_by_one_what_they_are_in_frames() {
        let mut burst = Burst::default();
        for message in [b"first".as_slice(), b"", b"third"] {
            burst.push(|out| out.extend_from_slice(message));
        }
        assert_eq!(burst.messages().collect::<Vec<_>>(), [b"first".as_slice(), b"", b"third"]);
        assert_eq!(burst.framed(), b"\0\x05first\0\0\0\x05third");
        burst.clear();
        assert!(burst.is_empty() && burst.messages().next().is_none());
    }

    #[test]
    fn a_message_beyond_its_length_field_is_cut() {
        let mut burst = Burst::default();
        burst.push(|out| out.resize(out.len() + 70_000, 7));
        burst.push(|out| out.push(8));
        assert_eq!(burst.messages().map(<[u8]>::len).collect::<Vec<_>>(), [65_535, 1]);
    }
}
