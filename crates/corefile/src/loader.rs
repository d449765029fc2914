//! Bounded reads of files.

use std::io;
use std::path::Path;

use files::ReadError;

use crate::error::SyntaxError;
use crate::source_text::SourceText;

/// Decodes the text of the file `name`; relative imports in it start at `dir`.
///
/// # Errors
/// `bytes` exceeds [`MAX_FILE_BYTES`].
pub(crate) fn text(name: &str, bytes: &[u8], dir: &Path) -> Result<SourceText, SyntaxError> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(SyntaxError::FileTooLarge { file: name.to_owned(), limit_bytes: MAX_FILE_BYTES });
    }
    Ok(SourceText::new(name, bytes, dir))
}

/// Reads a whole regular file, at most [`MAX_FILE_BYTES`].
///
/// # Errors
/// A file of another type, or the system's error.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, SyntaxError> {
    // Each file has a timeout of its own: while one file hangs, a Corefile that does not name it
    // can still be read.
    files::read_with_timeout(path, MAX_FILE_BYTES as u64).map_err(|error| match error {
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
/// Those of [`read`]; [`SyntaxError::ImportNotFound`] for a missing file.
pub(crate) fn read_import(path: &Path) -> Result<Vec<u8>, SyntaxError> {
    read(path).map_err(|error| match error {
        SyntaxError::Unreadable { path, reason: io::ErrorKind::NotFound } => {
            SyntaxError::ImportNotFound { path }
        }
        error => error,
    })
}

/// Maximum bytes of a file. A larger Corefile is a mistake: a ConfigMap has at most 1 MiB.
pub(crate) const MAX_FILE_BYTES: usize = 16 << 20;
