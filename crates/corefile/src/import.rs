//! The stream of words that the parser reads: files and snippets with their imports expanded,
//! within bounds.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::path::{Path, PathBuf};
use std::vec;

use crate::env::{self, Env, TooLong};
use crate::error::{SyntaxError, Warning};
use crate::glob;
use crate::lexer::{self, Token};
use crate::loader;
use crate::location::{Located, Location};
use crate::source_text::SourceText;
use crate::token::Word;

/// The words of a Corefile in the order in which they take effect, with imports expanded. The
/// parser decides where an `import` is valid.
pub(crate) struct Stream<'e> {
    env: Env<'e>,
    /// The files and snippets being read, the innermost last. A frame without unread words stays
    /// until the next word is requested, since an `import` in its last line is nested in it.
    frames: Vec<Frame>,
    snippets: HashMap<String, Snippet>,
    budget: Budget,
    pub(crate) warnings: Vec<Located<Warning>>,
    pub(crate) files: BTreeSet<PathBuf>,
}

enum Frame {
    /// The unread words of a file or snippet, and whether its first word has been read.
    Words { origin: Origin, tokens: vec::IntoIter<Token>, begun: bool },
    /// The files of one `import`, each opened after all words of the one before.
    Files { import: Location, written: Option<PathBuf>, paths: vec::IntoIter<PathBuf> },
}

#[derive(PartialEq, Eq)]
enum Origin {
    Text,
    File(PathBuf),
    Snippet(String),
}

struct Snippet {
    at: Location,
    tokens: Vec<Token>,
}

impl<'e> Stream<'e> {
    pub(crate) fn new(env: Env<'e>) -> Self {
        Self {
            env,
            frames: Vec::new(),
            snippets: HashMap::new(),
            budget: Budget::default(),
            warnings: Vec::new(),
            files: BTreeSet::new(),
        }
    }

    /// Starts with the words of `source`, read from `path` if it is a file.
    ///
    /// # Errors
    /// Errors of the lexer.
    pub(crate) fn open_root(
        &mut self,
        source: SourceText,
        path: Option<&Path>,
    ) -> Result<(), Located<SyntaxError>> {
        let whole = Location::file_only(&source.name);
        let origin = path.map_or(Origin::Text, |path| Origin::File(identity(path)));
        self.files.extend(path.map(Path::to_owned));
        self.push_source(source, origin, &whole)
    }

    /// Returns the next word, before variables are replaced; `None` at the end.
    ///
    /// # Errors
    /// A file of an earlier `import` cannot be read or split into words.
    pub(crate) fn token(&mut self) -> Result<Option<Token>, Located<SyntaxError>> {
        while let Some(frame) = self.frames.last_mut() {
            match frame {
                Frame::Words { tokens, begun, .. } => {
                    // The first word of a snippet counts as the start of a line, even directly
                    // after its `{`.
                    let first = !mem::replace(begun, true);
                    if let Some(token) = tokens.next() {
                        return Ok(Some(Token { starts_line: token.starts_line || first, ..token }));
                    }
                    self.frames.pop();
                }
                Frame::Files { import, written, paths } => match paths.next() {
                    Some(path) => {
                        let (import, written) = (import.clone(), written.clone());
                        self.push_file(path, written, &import)?;
                    }
                    None => {
                        self.frames.pop();
                    }
                },
            }
        }
        Ok(None)
    }

    /// Returns the next word if it is in the same line as the last one. The end of a file or
    /// snippet ends a line.
    pub(crate) fn token_in_line(&mut self) -> Option<Token> {
        let Some(Frame::Words { tokens, begun: true, .. }) = self.frames.last_mut() else { return None };
        if tokens.as_slice().first()?.starts_line {
            return None;
        }
        tokens.next()
    }

    /// Returns the word of a token, with variables replaced.
    ///
    /// # Errors
    /// A variable's value contains a NUL; the bound of bytes is exceeded.
    pub(crate) fn word(&mut self, token: Token) -> Result<Word, Located<SyntaxError>> {
        let mut word = token.word;
        let before = word.text.len();
        let max_bytes = self.budget.bytes_left.saturating_add(before);
        match env::substitute(&word.text, self.env, max_bytes) {
            Ok(None) => return Ok(word),
            Ok(Some(with)) if with.text.contains('\0') => {
                return Err(Located::new(&word.at, SyntaxError::Nul));
            }
            Ok(Some(with)) => {
                let written = mem::replace(&mut word.text, with.text);
                if with.has_value || with.unset.is_some() {
                    word.at = word.at.replaced(with.has_value.then_some(written), with.unset);
                }
            }
            Err(TooLong) => return Err(Located::new(&word.at, Budget::TOO_MANY_BYTES)),
        }
        let grown = word.text.len().saturating_sub(before);
        self.budget.take_bytes(grown).map_err(|error| Located::new(&word.at, error))?;
        Ok(word)
    }

    /// Stores the words of a snippet for later imports.
    ///
    /// # Errors
    /// The name is already defined.
    pub(crate) fn define_snippet(
        &mut self,
        name: &str,
        at: &Location,
        tokens: Vec<Token>,
    ) -> Result<(), Located<SyntaxError>> {
        if let Some(snippet) = self.snippets.get(name) {
            let first = snippet.at.clone();
            return Err(Located::new(at, SyntaxError::SnippetRedefined { name: name.to_owned(), first }));
        }
        self.snippets.insert(name.to_owned(), Snippet { at: at.clone(), tokens });
        Ok(())
    }

    /// Reads the rest of an `import` line, and continues with the imported words.
    ///
    /// # Errors
    /// The line does not have exactly one word; the target is missing, is a directory, imports
    /// itself, or exceeds a bound.
    pub(crate) fn import(&mut self, import: &Location) -> Result<(), Located<SyntaxError>> {
        let target = match self.token_in_line() {
            Some(token) => self.word(token)?,
            None => return Err(Located::new(import, SyntaxError::ImportWithoutTarget)),
        };
        if target.text.is_empty() {
            return Err(Located::new(&target.at, SyntaxError::ImportWithoutTarget));
        }
        if let Some(extra) = self.token_in_line() {
            let error = SyntaxError::ImportExtraWord { found: extra.word.text };
            return Err(Located::new(&extra.word.at, error));
        }
        let imported = match self.snippets.get(&target.text) {
            Some(snippet) => {
                let tokens = self.budget.take_snippet(&snippet.tokens);
                tokens.and_then(|tokens| self.push_words(Origin::Snippet(target.text.clone()), tokens))
            }
            None => self.push_files(&target),
        };
        imported.map_err(|error| Located::new(&target.at, error))
    }

    fn push_files(&mut self, target: &Word) -> Result<(), SyntaxError> {
        let dir = target.at.source().map_or_else(|| Path::new(""), |source| &source.dir);
        let paths = if glob::is_pattern(&target.text) {
            if !glob::is_bounded(&target.text) {
                return Err(SyntaxError::PatternTooWide { pattern: target.text.clone() });
            }
            glob::expand(dir, &target.text)
        } else {
            vec![dir.join(&target.text)]
        };
        if paths.is_empty() {
            let warning = Warning::NoMatch { pattern: target.text.clone() };
            self.warnings.push(Located::new(&target.at, warning));
        }
        let written = target.at.written().map(|written| dir.join(written));
        self.frames.push(Frame::Files { import: target.at.clone(), written, paths: paths.into_iter() });
        Ok(())
    }

    /// Opens an imported file. `written` is its name for messages if its path contains a variable's
    /// value.
    fn push_file(
        &mut self,
        path: PathBuf,
        written: Option<PathBuf>,
        import: &Location,
    ) -> Result<(), Located<SyntaxError>> {
        let located = |error| Located::new(import, error);
        self.budget.take_file().map_err(located)?;
        let bytes = loader::read_import(&path).map_err(located)?;
        let dir = path.parent().unwrap_or_else(|| Path::new(""));
        let name = written.as_ref().unwrap_or(&path).display().to_string();
        let source = loader::text(&name, &bytes, dir).map_err(located)?;
        let source = SourceText { imported: true, ..source };
        let origin = Origin::File(identity(&path));
        self.files.insert(path);
        self.push_source(source, origin, import)
    }

    /// Continues with the words of `source`. `at` is the location of errors about bounds and
    /// cycles; the lexer adds its own location to its errors.
    fn push_source(
        &mut self,
        source: SourceText,
        origin: Origin,
        at: &Location,
    ) -> Result<(), Located<SyntaxError>> {
        let located = |error| Located::new(at, error);
        self.budget.take_bytes(source.text.len()).map_err(located)?;
        let tokens =
            lexer::lex(source, self.budget.words_left)?.ok_or(Budget::TOO_MANY_WORDS).map_err(located)?;
        self.budget.take_words(tokens.len()).map_err(located)?;
        self.push_words(origin, tokens).map_err(located)
    }

    fn push_words(&mut self, origin: Origin, tokens: Vec<Token>) -> Result<(), SyntaxError> {
        let open = self.frames.iter().any(|frame| match frame {
            Frame::Words { origin: open, .. } => *open == origin,
            Frame::Files { .. } => false,
        });
        match origin {
            Origin::File(path) if open => {
                Err(SyntaxError::ImportCycle { target: path.display().to_string() })
            }
            Origin::Snippet(name) if open => Err(SyntaxError::ImportCycle { target: name }),
            origin => {
                self.frames.push(Frame::Words { origin, tokens: tokens.into_iter(), begun: false });
                Ok(())
            }
        }
    }
}

/// Returns the canonical path of a file, to detect a file that imports itself by another path.
fn identity(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The snippets, files, words and bytes that may still be read.
struct Budget {
    snippets_left: u32,
    files_left: u32,
    words_left: usize,
    bytes_left: usize,
}

impl Budget {
    const TOO_MANY_WORDS: SyntaxError = SyntaxError::TooManyWords { limit_words: MAX_WORDS };
    const TOO_MANY_BYTES: SyntaxError = SyntaxError::TooManyBytes { limit_bytes: MAX_BYTES };

    /// Copies a snippet's words, counted against the bounds.
    fn take_snippet(&mut self, tokens: &[Token]) -> Result<Vec<Token>, SyntaxError> {
        let error = SyntaxError::TooManySnippetImports { limit: MAX_SNIPPET_IMPORTS };
        self.snippets_left = self.snippets_left.checked_sub(1).ok_or(error)?;
        self.take_words(tokens.len())?;
        self.take_bytes(tokens.iter().map(|token| token.word.text.len()).sum())?;
        Ok(tokens.to_vec())
    }

    fn take_file(&mut self) -> Result<(), SyntaxError> {
        let error = SyntaxError::TooManyFileImports { limit: MAX_FILE_IMPORTS };
        self.files_left = self.files_left.checked_sub(1).ok_or(error)?;
        Ok(())
    }

    fn take_words(&mut self, words: usize) -> Result<(), SyntaxError> {
        self.words_left = self.words_left.checked_sub(words).ok_or(Self::TOO_MANY_WORDS)?;
        Ok(())
    }

    fn take_bytes(&mut self, bytes: usize) -> Result<(), SyntaxError> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(Self::TOO_MANY_BYTES)?;
        Ok(())
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            snippets_left: MAX_SNIPPET_IMPORTS,
            files_left: MAX_FILE_IMPORTS,
            words_left: MAX_WORDS,
            bytes_left: MAX_BYTES,
        }
    }
}

/// As in CoreDNS.
const MAX_SNIPPET_IMPORTS: u32 = 10_000;
/// As in CoreDNS.
const MAX_FILE_IMPORTS: u32 = 100_000;
/// So many words take 300 MB of memory, measured with inline hosts. A ConfigMap, at most 1 MiB,
/// holds some 100,000 words.
const MAX_WORDS: usize = 1_000_000;
const MAX_BYTES: usize = 64 << 20;
