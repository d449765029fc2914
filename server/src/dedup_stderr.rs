//! Deduplicated standard error of a command: several server blocks may find the same fault in the
//! same file.

use std::collections::HashSet;
use std::io::{self, Write};

/// Standard error that prints each line once.
#[derive(Default)]
pub(crate) struct DedupStderr {
    line: Vec<u8>,
    printed: HashSet<Vec<u8>>,
}

impl Write for DedupStderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        for piece in text.split_inclusive(|octet| *octet == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                if !self.printed.contains(&line) {
                    io::stderr().write_all(&line)?;
                    self.printed.insert(line);
                }
            }
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
