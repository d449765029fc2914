//! Locations of words, and messages that print their location.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::kind::Kind;
use crate::source_text::SourceText;

/// A place in a Corefile or in a file that it imports. Cheap to clone.
#[derive(Clone)]
pub struct Location {
    /// The file as the user wrote its path, or the name given to [`read_text`](crate::read_text).
    pub file: Arc<str>,
    /// The line, from 1; 0 means the file as a whole.
    pub line: u32,
    /// The column in characters, from 1; 0 means the file as a whole.
    pub column: u32,
    /// The source text; `None` for the file as a whole.
    pub(crate) around: Option<Arc<Surroundings>>,
}

/// The source text of a place, for messages.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    pub(crate) source: Arc<SourceText>,
    /// The word as written, if it contains the value of an environment variable.
    written: Option<String>,
    /// The unset variable that the word here names; it may be the cause of the error.
    unset: Option<String>,
    /// Whether a word of the line has the value of an environment variable.
    is_private: bool,
}

impl Surroundings {
    pub(crate) fn new(source: Arc<SourceText>) -> Self {
        Self { source, written: None, unset: None, is_private: false }
    }
}

impl Location {
    /// Returns the location of the file `name` as a whole, which is printed without line and
    /// column.
    pub fn file_only(name: &str) -> Self {
        Self { file: name.into(), line: 0, column: 0, around: None }
    }

    /// Returns the text of the location's file; `None` for the file as a whole.
    pub(crate) fn source(&self) -> Option<&Arc<SourceText>> {
        Some(&self.around.as_ref()?.source)
    }

    /// Returns the location for a word with replaced variables. `written` is the word as written,
    /// if a variable in it has a value; `unset` is the first variable without one.
    pub(crate) fn replaced(mut self, written: Option<String>, unset: Option<String>) -> Self {
        if let Some(around) = self.around.as_mut().map(Arc::make_mut) {
            around.is_private = written.is_some();
            (around.written, around.unset) = (written, unset);
        }
        self
    }

    /// Marks the location as private, since a word of its line contains the value of an environment
    /// variable: an error at one word may print other words of the line. The words of a line share
    /// the mark in `shared`.
    pub(crate) fn beside_a_value(&mut self, shared: &mut Option<Arc<Surroundings>>) {
        let Some(around) = &mut self.around else { return };
        if around.written.is_some() || around.unset.is_some() {
            Arc::make_mut(around).is_private = true;
            return;
        }
        let private = || Arc::new(Surroundings { is_private: true, ..Surroundings::clone(around) });
        *around = shared.get_or_insert_with(private).clone();
    }

    /// Returns the word as written, if it contains the value of an environment variable.
    pub(crate) fn written(&self) -> Option<&str> {
        self.around.as_ref()?.written.as_deref()
    }

    /// Whether the location's line contains the value of an environment variable.
    pub(crate) fn is_private(&self) -> bool {
        self.around.as_ref().is_some_and(|around| around.is_private)
    }

    /// Whether the location is in an imported file.
    fn is_imported(&self) -> bool {
        self.source().is_some_and(|source| source.imported)
    }
}

impl PartialEq for Location {
    fn eq(&self, other: &Self) -> bool {
        (&self.file, self.line, self.column) == (&other.file, other.line, other.column)
    }
}

impl Eq for Location {}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file),
            line => write!(f, "{}:{line}:{}", self.file, self.column),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error, or another message, with its place.
///
/// Displays as `Corefile:12:9: <error>`, then the line and a caret under the column; `{:#}` prints
/// the first line alone. If the line contains the value of an environment variable, the error is
/// printed without words of the configuration; for an imported file, also without the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<E> {
    /// The place.
    pub at: Location,
    /// The message.
    pub error: E,
}

impl<E> Located<E> {
    /// Creates the message `error` about the place `at`.
    pub fn new(at: &Location, error: E) -> Self {
        Self { at: at.clone(), error }
    }

    /// Returns the place and the kind of the error, for readers without access to the
    /// configuration.
    pub fn without_words(&self) -> String
    where
        E: Kind,
    {
        format!("{}: {}", self.at, self.error.kind())
    }

    /// Returns the same place with another error, to wrap one crate's error in another's.
    pub fn map<F>(self, wrap: impl FnOnce(E) -> F) -> Located<F> {
        Located { at: self.at, error: wrap(self.error) }
    }
}

impl<E: fmt::Display + Kind> fmt::Display for Located<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = match self.at.is_private() || self.at.is_imported() {
            true => self.error.kind(),
            false => without_user_info(&self.error.to_string()),
        };
        // An error about the file itself already contains the file's name.
        match self.at.line == 0 && error.starts_with(&format!("cannot read {}: ", self.at.file)) {
            true => f.write_str(&error)?,
            false => write!(f, "{}: {error}", self.at)?,
        }
        if let Some(name) = self.at.around.as_ref().and_then(|around| around.unset.as_ref()) {
            write!(
                f,
                "; the environment variable {name} is not set here: set it, or give it a value by {{${name}:VALUE}}"
            )?;
        }
        if let Some(written) = self.at.written().filter(|_| !self.at.is_imported()) {
            write!(f, "; the Corefile has {written:?} here, and values of variables are not shown")?;
        }
        let source = self.at.source().filter(|source| !source.imported);
        let line = source.and_then(|source| source.line(self.at.line));
        let (Some(line), false) = (line, f.alternate()) else { return Ok(()) };
        let excerpt = Excerpt::around(&without_user_info(line), self.at.column);
        let number = self.at.line.to_string();
        write!(f, "\n  {number} | {}", excerpt.text)?;
        write!(f, "\n  {:width$} | {}^", "", excerpt.indent, width = number.len())
    }
}

impl<E: Error + Kind> Error for Located<E> {
    /// Returns the cause of the error; `Display` prints the error itself.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Replaces the user information of URLs (`https://USER:PASSWORD@HOST`), which is a secret, with
/// asterisks. The user information ends at the last `@` of a word, since a password may contain
/// `@`.
fn without_user_info(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, url)) = rest.split_once("://") {
        let word = url.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(url.len());
        let secret = url[..word].rfind('@').unwrap_or(0);
        out.push_str(before);
        out.push_str("://");
        out.extend(url[..secret].chars().map(|_| '*'));
        rest = &url[secret..];
    }
    out.push_str(rest);
    out
}

/// The printed part of a line, and the text before the caret under it.
struct Excerpt {
    text: String,
    indent: String,
}

impl Excerpt {
    /// Cuts a window of `EXCERPT_CHARS` out of a long line, so that `column` is inside it. Control
    /// characters other than tabs are replaced: the line may be hostile and is printed to a
    /// terminal.
    fn around(line: &str, column: u32) -> Self {
        let before = column.saturating_sub(1) as usize;
        let skipped = if before < EXCERPT_CHARS { 0 } else { before - EXCERPT_CHARS / 2 };
        let text: String = line
            .trim_end()
            .chars()
            .skip(skipped)
            .take(EXCERPT_CHARS)
            .map(|c| if c.is_control() && c != '\t' { char::REPLACEMENT_CHARACTER } else { c })
            .collect();
        let shown = text.chars().chain(std::iter::repeat(' ')).take(before - skipped);
        let indent = shown.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        Self { text, indent }
    }
}

/// Maximum characters of a printed line; of a longer line only a part is printed.
const EXCERPT_CHARS: usize = 160;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    impl Kind for &str {
        fn kind(&self) -> String {
            "odd".to_owned()
        }
    }

    fn place(source: SourceText, line: u32, column: u32) -> Location {
        let around = Some(Arc::new(Surroundings::new(Arc::new(source))));
        Location { file: "Corefile".into(), line, column, around }
    }

    fn shown(text: &str, line: u32, column: u32) -> String {
        let source = SourceText::new("Corefile", text.as_bytes(), Path::new(""));
        let at = place(source, line, column);
        Located::new(&at, "unknown word").to_string()
    }

    #[test]
    fn error_line_and_caret() {
        for (text, line, column, expected) in [
            (".\nforward . x\n", 2, 9, "Corefile:2:9: unknown word\n  2 | forward . x\n    |         ^"),
            ("\tlog\r\n", 1, 2, "Corefile:1:2: unknown word\n  1 | \tlog\n    | \t^"),
            ("a\x1b[2Jb", 1, 1, "Corefile:1:1: unknown word\n  1 | a\u{fffd}[2Jb\n    | ^"),
            ("log", 1, 4, "Corefile:1:4: unknown word\n  1 | log\n    |    ^"),
            ("log", 9, 1, "Corefile:9:1: unknown word"),
        ] {
            assert_eq!(shown(text, line, column), expected, "{text:?}");
        }
    }

    #[test]
    fn secret_lines_show_the_kind() {
        let source = || SourceText::new("Corefile", b"log {$A} x", Path::new(""));
        let at = place(source(), 1, 5).replaced(Some("{$A}".to_owned()), None);
        assert_eq!(
            Located::new(&at, "hunter2").to_string(),
            "Corefile:1:5: odd; the Corefile has \"{$A}\" here, and values of variables are not shown\n  1 | log {$A} x\n    |     ^"
        );
        let mut beside = place(source(), 1, 10);
        beside.beside_a_value(&mut None);
        assert_eq!(format!("{:#}", Located::new(&beside, "hunter2")), "Corefile:1:10: odd");
        let imported = place(SourceText { imported: true, ..source() }, 1, 5);
        assert_eq!(Located::new(&imported, "hunter2").to_string(), "Corefile:1:5: odd");
        let own = Located::new(&place(source(), 1, 1), "hunter2");
        assert_eq!(
            (format!("{own:#}"), own.without_words()),
            ("Corefile:1:1: hunter2".into(), "Corefile:1:1: odd".into())
        );
    }

    #[test]
    fn user_info_of_urls_is_not_shown() {
        for (text, shown) in [
            ("endpoint https://u:p@192.0.2.1:6443 x", "endpoint https://***@192.0.2.1:6443 x"),
            ("\"https://u:p@d@h\" is no x@y", "\"https://*****@h\" is no x@y"),
            ("https://h http://\u{fc}:p@h", "https://h http://***@h"),
            ("a://b://u@h ://@ @", "a://*****@h ://@ @"),
            ("forward . tls://192.0.2.1 mail@example.org", "forward . tls://192.0.2.1 mail@example.org"),
        ] {
            assert_eq!(without_user_info(text), shown);
        }
        let source = SourceText::new("Corefile", b"a https://u:p@h x", Path::new(""));
        assert_eq!(
            Located::new(&place(source, 1, 17), "no https://u:p@h").to_string(),
            "Corefile:1:17: no https://***@h\n  1 | a https://***@h x\n    |                 ^"
        );
    }

    #[test]
    fn wide_line_number() {
        let text = "\n".repeat(99) + "log";
        assert!(shown(&text, 100, 1).ends_with("\n  100 | log\n      | ^"));
    }

    #[test]
    fn long_line_is_cut() {
        let text = "a".repeat(5000) + "!" + &"b".repeat(5000);
        let shown = shown(&text, 1, 5001);
        let mut lines = shown.lines().skip(1);
        let (line, caret) = (lines.next().unwrap(), lines.next().unwrap());
        assert!(line.len() < 200);
        assert_eq!(line.find('!'), caret.find('^'));
    }

    #[test]
    fn file_error_without_line() {
        let error = Located::new(&Location::file_only("Corefile"), "gone");
        assert_eq!(error.to_string(), "Corefile: gone");
    }

    #[test]
    fn alternate_form() {
        let source = SourceText::new("Corefile", b"log", Path::new(""));
        let at = place(source, 1, 1);
        assert_eq!(format!("{:#}", Located::new(&at, "odd")), "Corefile:1:1: odd");
    }
}
