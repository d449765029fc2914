//! Parses words to server blocks.

use std::iter;

use crate::ast::{Corefile, Directive, ServerBlock};
use crate::error::{SyntaxError, Warning};
use crate::import::Stream;
use crate::lexer::Token;
use crate::location::{Located, Location};
use crate::server_block_key::{self, BlockKey};
use crate::token::Word;

/// Parses the whole stream.
///
/// # Errors
/// The first error, with its place.
pub(crate) fn parse(stream: Stream<'_>) -> Result<Corefile, Located<SyntaxError>> {
    let mut parser = Parser { stream, blocks: Vec::new(), open_braces: 0 };
    while let Some(token) = parser.stream.token()? {
        parser.block(token)?;
    }
    let Parser { stream, blocks, .. } = parser;
    Ok(Corefile { blocks, warnings: stream.warnings, files: stream.files.into_iter().collect() })
}

struct Parser<'e> {
    stream: Stream<'e>,
    blocks: Vec<ServerBlock>,
    open_braces: usize,
}

/// The token after the keys of a block.
enum AfterKeys {
    /// `{`, with its location.
    Brace(Location),
    /// A new line: the first directive of a block without braces.
    Line(Token),
    End,
}

impl Parser<'_> {
    /// Parses a server block, a snippet or an import that begins with `first`.
    fn block(&mut self, first: Token) -> Result<(), Located<SyntaxError>> {
        let (keys, after) = self.keys(first)?;
        let Some(first_key) = keys.first() else { return Ok(()) };
        let begun = first_key.at.clone();
        if let (Some(name), [_]) = (snippet_name(first_key), keys.as_slice()) {
            let AfterKeys::Brace(open) = after else {
                let error = SyntaxError::SnippetWithoutBody { name: name.to_owned() };
                return Err(Located::new(&begun, error));
            };
            let tokens = self.snippet_tokens(&open)?;
            return self.stream.define_snippet(name, &begun, tokens);
        }
        if !matches!(after, AfterKeys::Brace(_)) && !self.blocks.is_empty() {
            let warning = Warning::BlockWithoutBraces { first: first_key.text.clone() };
            self.stream.warnings.push(Located::new(&begun, warning));
        }
        let keys = keys.into_iter().map(BlockKey::parse).collect::<Result<Vec<_>, _>>()?;
        self.warn_of_zones(&keys);
        let directives = match after {
            AfterKeys::Brace(open) => self.body(&open, Inside::Block(&open))?,
            AfterKeys::Line(token) => self.unbraced(token, &begun)?,
            AfterKeys::End => Vec::new(),
        };
        self.blocks.push(ServerBlock { keys, directives, at: begun });
        Ok(())
    }

    /// Reads the keys of a block, of which `token` is the first or imports it. Returns no key if
    /// only imports without words are left in the file.
    fn keys(&mut self, mut token: Token) -> Result<(Vec<Word>, AfterKeys), Located<SyntaxError>> {
        let mut keys: Vec<Word> = Vec::new();
        let mut comma = None;
        loop {
            if token.is_open() {
                return match (keys.is_empty(), comma) {
                    (true, _) => Err(Located::new(&token.word.at, SyntaxError::NoKey)),
                    (false, Some(at)) => {
                        Err(Located::new(&at, SyntaxError::NoKeyAfterComma { found: "`{`" }))
                    }
                    (false, None) => Ok((keys, AfterKeys::Brace(token.word.at))),
                };
            }
            if token.is_close() {
                return Err(Located::new(&token.word.at, SyntaxError::ExtraClose));
            }
            if token.starts_line && !keys.is_empty() && comma.is_none() {
                return Ok((keys, AfterKeys::Line(token)));
            }
            if token.starts_line && token.is_import() {
                self.stream.import(&token.word.at)?;
            } else {
                let mut key = self.stream.word(token)?;
                comma = key.text.ends_with(',').then(|| key.at.clone());
                if comma.is_some() {
                    key.text.pop();
                }
                // A token `}` was handled above: here the key is `}` because of a comma after it or
                // a variable's value, so that it neither closes a block nor is a name.
                if !key.quoted && key.text == "}" {
                    let word = if comma.is_some() { "}," } else { "}" }.to_owned();
                    return Err(Located::new(&key.at, SyntaxError::GluedBrace { word }));
                }
                if key.text.is_empty() {
                    return Err(Located::new(&key.at, SyntaxError::EmptyKey));
                }
                keys.push(key);
            }
            token = match (self.stream.token()?, comma.as_ref()) {
                (Some(token), _) => token,
                (None, None) => return Ok((keys, AfterKeys::End)),
                (None, Some(at)) => {
                    let error = SyntaxError::NoKeyAfterComma { found: "the end of the file" };
                    return Err(Located::new(at, error));
                }
            };
        }
    }

    /// Returns the words of a snippet up to its `}`, without expanding imports or variables.
    fn snippet_tokens(&mut self, open: &Location) -> Result<Vec<Token>, Located<SyntaxError>> {
        let mut tokens = Vec::new();
        let mut open_braces = 1;
        while let Some(token) = self.stream.token()? {
            if token.is_open() {
                open_braces += 1;
            } else if token.is_close() {
                open_braces -= 1;
                if open_braces == 0 {
                    return Ok(tokens);
                }
            }
            tokens.push(token);
        }
        Err(Located::new(open, SyntaxError::UnclosedBrace))
    }

    fn warn_of_zones(&mut self, keys: &[BlockKey]) {
        for key in keys {
            let odd = key.zones.iter().filter(|zone| !server_block_key::is_preferred(zone));
            let warnings = odd.map(|zone| Warning::ZoneSyntax { zone: zone.clone() });
            self.stream.warnings.extend(warnings.map(|warning| Located::new(&key.written.at, warning)));
        }
    }

    /// Parses the directives of a block without braces, up to the end of the file.
    fn unbraced(&mut self, first: Token, begun: &Location) -> Result<Vec<Directive>, Located<SyntaxError>> {
        let mut directives = Vec::new();
        let mut next = Some(first);
        while let Some(token) = next {
            if token.is_close() {
                return Err(Located::new(&token.word.at, SyntaxError::ExtraClose));
            }
            directives.extend(self.directive(token, Inside::Unbraced(begun))?);
            next = self.stream.token()?;
        }
        Ok(directives)
    }

    /// Parses the lines up to the `}` that closes the brace at `open`.
    fn body(&mut self, open: &Location, inside: Inside<'_>) -> Result<Vec<Directive>, Located<SyntaxError>> {
        if self.open_braces == MAX_OPEN_BRACES {
            return Err(Located::new(open, SyntaxError::NestedTooDeep { limit: MAX_OPEN_BRACES }));
        }
        self.open_braces += 1;
        let mut directives = Vec::new();
        while let Some(token) = self.stream.token()? {
            if token.is_close() {
                self.open_braces -= 1;
                return Ok(directives);
            }
            directives.extend(self.directive(token, inside)?);
        }
        Err(Located::new(open, SyntaxError::UnclosedBrace))
    }

    /// Parses the directive or property that begins with `first`; `None` for an `import`.
    fn directive(
        &mut self,
        first: Token,
        inside: Inside<'_>,
    ) -> Result<Option<Directive>, Located<SyntaxError>> {
        if first.is_open() {
            return Err(Located::new(&first.word.at, SyntaxError::StrayOpen));
        }
        if first.is_import() {
            self.stream.import(&first.word.at)?;
            return Ok(None);
        }
        let name = self.stream.word(first)?;
        inside.check_name(&name)?;
        let mut args: Vec<Word> = Vec::new();
        while let Some(token) = self.stream.token_in_line() {
            if token.is_open() {
                let body = self.body(&token.word.at, Inside::Directive)?;
                self.line_ends_after_close()?;
                return Ok(Some(line(name, args, Some(body))));
            }
            if token.is_close() {
                let after = args.pop().unwrap_or(name).shown().to_owned();
                return Err(Located::new(&token.word.at, SyntaxError::CloseInLine { after }));
            }
            args.push(self.stream.word(token)?);
        }
        let last = args.last().unwrap_or(&name);
        if !last.quoted && (last.text.ends_with('{') || last.text == "{}") {
            return Err(Located::new(&last.at, SyntaxError::GluedBrace { word: last.text.clone() }));
        }
        Ok(Some(line(name, args, None)))
    }

    fn line_ends_after_close(&mut self) -> Result<(), Located<SyntaxError>> {
        match self.stream.token_in_line() {
            None => Ok(()),
            Some(token) if token.is_close() => {
                Err(Located::new(&token.word.at, SyntaxError::CloseInLine { after: "}".to_owned() }))
            }
            Some(token) => {
                let error = SyntaxError::TextAfterClose { found: token.word.text };
                Err(Located::new(&token.word.at, error))
            }
        }
    }
}

/// Creates a directive. If one of its words contains a variable's value, all of its words are
/// marked private.
fn line(mut name: Word, mut args: Vec<Word>, body: Option<Vec<Directive>>) -> Directive {
    if name.at.is_private() || args.iter().any(|arg| arg.at.is_private()) {
        let mut shared = None;
        iter::once(&mut name).chain(&mut args).for_each(|word| word.at.beside_a_value(&mut shared));
    }
    Directive { name, args, body }
}

/// Returns the name in `(name)`.
fn snippet_name(key: &Word) -> Option<&str> {
    key.text.strip_prefix('(')?.strip_suffix(')')
}

/// What encloses a line.
#[derive(Clone, Copy)]
enum Inside<'a> {
    /// A server block, with the location of its `{`.
    Block(&'a Location),
    /// A server block without braces, with the location of its first key.
    Unbraced(&'a Location),
    Directive,
}

impl Inside<'_> {
    /// Refuses words that cannot name a directive or property here. A directive's name has no dot,
    /// colon, slash or parenthesis; a word with one is taken for a server block's key, with a brace
    /// missing before it. A property may have them, such as an address of inline hosts.
    fn check_name(self, name: &Word) -> Result<(), Located<SyntaxError>> {
        let is_key = !name.quoted && name.text.contains(['.', ':', '/', '(']);
        let found = || name.text.clone();
        let error = match self {
            _ if name.text.is_empty() => SyntaxError::EmptyName,
            _ if !name.quoted && name.text.starts_with('}') => SyntaxError::GluedBrace { word: found() },
            Self::Block(begun) if is_key => {
                SyntaxError::KeyInsideBlock { found: found(), begun: begun.clone() }
            }
            Self::Unbraced(begun) if is_key => {
                SyntaxError::DirectiveBeforeBlock { found: found(), begun: begun.clone() }
            }
            Self::Block(_) | Self::Unbraced(_) | Self::Directive => return Ok(()),
        };
        Err(Located::new(&name.at, error))
    }
}

const MAX_OPEN_BRACES: usize = 64;
