//! One file's text, read within bounds.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::SyntaxError;

/// One file's text, kept as long as a word points into it.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: Arc<str>,
    /// Without byte order mark. Bytes that are no UTF-8 are U+FFFD here.
    pub(crate) text: String,
    /// Whether `text` holds a U+FFFD for bytes that are no UTF-8.
    pub(crate) lossy: bool,
    /// Where its relative imports start.
    pub(crate) dir: PathBuf,
}

impl Source {
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

/// Reads a whole file, at most one byte more than [`MAX_FILE_BYTES`].
///
/// # Errors
/// A directory, or whatever the system says.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, SyntaxError> {
    let unreadable =
        |error: io::Error| SyntaxError::Unreadable { path: path.to_owned(), reason: error.kind() };
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(SyntaxError::IsDirectory { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Reads an imported file as [`read`] does, but no pipe: opening one waits for a writer, for ever if none comes.
///
/// # Errors
/// As [`read`]; a missing file and a pipe.
pub(crate) fn read_import(path: &Path) -> Result<Vec<u8>, SyntaxError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_fifo() => Err(SyntaxError::IsPipe { path: path.to_owned() }),
        Ok(_) => read(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(SyntaxError::ImportNotFound { path: path.to_owned() })
        }
        Err(error) => Err(SyntaxError::Unreadable { path: path.to_owned(), reason: error.kind() }),
    }
}

/// A Corefile beyond this is a mistake: the largest ConfigMap holds 1 MiB.
pub(crate) const MAX_FILE_BYTES: usize = 16 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
