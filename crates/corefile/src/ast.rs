//! The syntax tree of a Corefile: blocks, directives, words.

use std::path::PathBuf;

use crate::error::Warning;
use crate::location::{Located, Location};
use crate::server_block_key::BlockKey;
use crate::token::Word;

/// The syntax tree of one Corefile with all its imports.
#[derive(Debug, Clone, Default)]
pub struct Corefile {
    /// The server blocks, in file order. Empty if the file has no block.
    pub blocks: Vec<ServerBlock>,
    /// Warnings, in file order.
    pub warnings: Vec<Located<Warning>>,
    /// Every file that was read, sorted, without duplicates, to watch for changes. A
    /// Corefile read from memory is not listed.
    pub files: Vec<PathBuf>,
}

impl Corefile {
    /// Returns the configuration as a stream of words: without comments and layout, with imports
    /// expanded and variables replaced.
    ///
    /// Two Corefiles have the same stream if they have the same blocks with the same words. Marks
    /// between the words stand for braces and ends of directives; each mark begins with a NUL,
    /// which no word can contain.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        let mut tokens = Vec::new();
        for block in &self.blocks {
            tokens.extend(block.keys.iter().map(|key| key.written.text.as_str()));
            push_body(&block.directives, &mut tokens);
        }
        tokens.into_iter()
    }
}

/// One server block: zones with their directives.
#[derive(Debug, Clone)]
pub struct ServerBlock {
    /// The keys, at least one.
    pub keys: Vec<BlockKey>,
    /// The directives, in file order, duplicates included. May be empty.
    pub directives: Vec<Directive>,
    /// Location of the first key.
    pub at: Location,
}

/// A line of a block: a directive, or inside its braces a property.
#[derive(Debug, Clone)]
pub struct Directive {
    /// The first word, never empty.
    pub name: Word,
    /// The other words up to the end of the line or `{`.
    pub args: Vec<Word>,
    /// The lines inside the braces; `None` without braces.
    pub body: Option<Vec<Self>>,
}

fn push_body<'a>(directives: &'a [Directive], tokens: &mut Vec<&'a str>) {
    tokens.push(OPEN);
    for directive in directives {
        tokens.push(&directive.name.text);
        tokens.extend(directive.args.iter().map(|arg| arg.text.as_str()));
        match &directive.body {
            Some(body) => push_body(body, tokens),
            None => tokens.push(END),
        }
    }
    tokens.push(CLOSE);
}

const OPEN: &str = "\0{";
const CLOSE: &str = "\0}";
const END: &str = "\0;";
