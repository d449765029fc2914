//! One file's text, which the places of its words point into.

use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// Whether it is imported: it may be no Corefile, and its lines are not shown.
    pub(crate) imported: bool,
}

impl SourceText {
    /// What these bytes say; `dir` is where relative imports start.
    pub(crate) fn new(name: &str, bytes: &[u8], dir: &Path) -> Self {
        let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
        let text = String::from_utf8_lossy(bytes);
        let lossy = matches!(&text, std::borrow::Cow::Owned(_));
        Self { name: name.into(), text: text.into_owned(), lossy, dir: dir.to_owned(), imported: false }
    }

    /// The line of that number, counted from 1, without its end.
    pub(crate) fn line(&self, number: u32) -> Option<&str> {
        let before = number.checked_sub(1)? as usize;
        self.text.split('\n').nth(before)
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
