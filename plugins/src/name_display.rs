//! Formats a name as text without an allocation.

use std::fmt::{self, Write};

use wire::Name;

/// Buffer for the longest presentation form: 255 bytes, each at most four characters.
pub(crate) struct NameText {
    len: usize,
    bytes: [u8; 1020],
}

impl NameText {
    /// Creates an empty buffer.
    pub(crate) fn new() -> Self {
        Self { len: 0, bytes: [0; 1020] }
    }

    /// Returns `name` in presentation form, with its final dot.
    pub(crate) fn of(&mut self, name: &Name) -> &str {
        self.len = 0;
        // The write cannot fail: the buffer is large enough for every name.
        let _ = write!(self, "{name}");
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or(".")
    }
}

impl Default for NameText {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for NameText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}
