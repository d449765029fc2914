//! Files, read within bounds.

use std::io;
use std::path::Path;

use files::ReadError;

use crate::error::SyntaxError;
use crate::source_text::SourceText;

/// What the bytes of a file of that name say; `dir` is where its relative imports start.
///
/// # Errors
/// More than [`MAX_FILE_BYTES`].
pub(crate) fn text(name: &str, bytes: &[u8], dir: &Path) -> Result<SourceText, SyntaxError> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(SyntaxError::FileTooLarge { file: name.to_owned(), limit_bytes: MAX_FILE_BYTES });
    }
    Ok(SourceText::new(name, bytes, dir))
}

/// Reads a whole regular file, at most [`MAX_FILE_BYTES`].
///
/// # Errors
/// Anything else in its place, or whatever the system says.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, SyntaxError> {
    // One that hangs is given up by its own name: a Corefile that names it no more can be read.
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
