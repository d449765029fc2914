//! The text of one file, for the locations of its words.

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The text of one file, shared by the places of its words.
#[derive(Debug)]
pub(crate) struct SourceText {
    pub(crate) name: Arc<str>,
    /// The text without byte order mark, with U+FFFD for bytes that are no UTF-8.
    pub(crate) text: String,
    /// Whether `text` has a U+FFFD for bytes that are no UTF-8.
    pub(crate) lossy: bool,
    /// The directory at which relative imports of this file start.
    pub(crate) dir: PathBuf,
    /// Whether the file is imported. An imported file may be no Corefile, so its lines are not
    /// printed.
    pub(crate) imported: bool,
}

impl SourceText {
    /// Decodes `bytes`; relative imports start at the directory `dir`.
    pub(crate) fn new(name: &str, bytes: &[u8], dir: &Path) -> Self {
        let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
        let text = String::from_utf8_lossy(bytes);
        let lossy = matches!(&text, std::borrow::Cow::Owned(_));
        Self { name: name.into(), text: text.into_owned(), lossy, dir: dir.to_owned(), imported: false }
    }

    /// Returns line `number`, counted from 1, without its newline.
    pub(crate) fn line(&self, number: u32) -> Option<&str> {
        let before = number.checked_sub(1)? as usize;
        self.text.split('\n').nth(before)
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
