//! One file's text, read within bounds.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use readfile::ReadError;

use crate::error::SyntaxError;

/// One file's text, kept as long as a word points into it.
#[derive(Debug)]
pub(crate) struct SourceText {
    pub(crate) name: Arc<str>,
    /// Without byte order mark. Bytes that are no UTF-8 are U+FFFD here.
    pub(crate) text: String,
    /// Whether `text` holds a U+FFFD for bytes that are no UTF-8.
    pub(crate) lossy: bool,
    /// Where its relative imports start.
    pub(crate) dir: PathBuf,
}

impl SourceText {
    /// # Errors
    /// More than [`MAX_FILE_BYTES`].
    pub(crate) fn new(name: &str, bytes: &[u8], dir: &Path) -> Result<Self, SyntaxError> {
        if bytes.len() > MAX_FILE_BYTES {
            return Err(SyntaxError::FileTooLarge { file: name.to_owned(), limit_bytes: MAX_FILE_BYTES });
        }
        let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
        let text = String::from_utf8_lossy(bytes);
        let lossy = matches!(&text, std::borrow::Cow::Owned(_));
        Ok(Self { name: name.into(), text: text.into_owned(), lossy, dir: dir.to_owned() })
    }

    /// The line of that number, counted from 1, without its end.
    pub(crate) fn line(&self, number: u32) -> Option<&str> {
        let before = number.checked_sub(1)? as usize;
        self.text.split('\n').nth(before)
    }
}

/// Reads a whole regular file, at most [`MAX_FILE_BYTES`].
///
/// # Errors
/// Anything else in its place, or whatever the system says.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, SyntaxError> {
    // One that hangs is given up by its own name: a Corefile that names it no more can be read.
    readfile::read_in_time(path, MAX_FILE_BYTES as u64).map_err(|error| match error {
        ReadError::NotAFile("a directory") => SyntaxError::IsDirectory { path: path.to_owned() },
        ReadError::NotAFile(found) => SyntaxError::NotAFile { path: path.to_owned(), found },
        ReadError::TooLarge(_) => {
            SyntaxError::FileTooLarge { file: path.display().to_string(), limit_bytes: MAX_FILE_BYTES }
        }
        error => SyntaxError::Unreadable { path: path.to_owned(), reason: io::Error::from(error).kind() },
    })
}

/// Reads an imported file as [`read`] does.
///
/// # Errors
/// As [`read`]; a missing file.
pub(crate) fn read_import(path: &Path) -> Result<Vec<u8>, SyntaxError> {
    read(path).map_err(|error| match error {
        SyntaxError::Unreadable { path, reason: io::ErrorKind::NotFound } => {
            SyntaxError::ImportNotFound { path }
        }
        error => error,
    })
}

/// A Corefile beyond this is a mistake: the largest ConfigMap holds 1 MiB.
pub(crate) const MAX_FILE_BYTES: usize = 16 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
