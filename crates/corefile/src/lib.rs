//! Parses Corefile text to server blocks and directives; every word has its file, line and column.
//!
//! This crate reads the language of CoreDNS's configuration and nothing else: it knows no plugin,
//! opens no socket and uses no other crate of the workspace than `files`. The caller decides what a
//! directive means, which directives exist and which zones clash.
//!
//! # The language
//! ```text
//! (common) {                      # a snippet: named here, used by `import common` below
//!     errors
//!     cache 30
//! }
//! example.org, dns://10.0.0.0/25:1053 {
//!     import common               # a snippet, else a file or pattern relative to this file
//!     forward . {$UPSTREAM:/etc/resolv.conf} {
//!         max_concurrent 1000     # a property
//!     }
//! }
//! ```
//! - **Words** are split at white space. `#` starts a comment anywhere outside quotes, even inside
//!   a word. `"` quotes only at the start of a word; inside, `\"` is the only escape, and a quoted
//!   word may span lines. Carriage returns outside quotes and a byte order mark are ignored. A
//!   quoted brace is text.
//! - **Blocks**: keys separated by blanks; a comma after a key allows a line break. The last block
//!   needs no braces. The `{` of a directive is in the directive's line; `}` is on its own line or
//!   directly after `{`.
//! - **Variables**: `{$NAME}` and `{%NAME%}` are replaced inside each word, after splitting: a
//!   value with blanks stays one word, an unset variable is empty. `{$NAME:default}` gives an unset
//!   variable a value (not in CoreDNS). Go templates such as `{{$x}}` lose their `{$x}` here, as in
//!   CoreDNS.
//! - **Imports**: `import` takes one snippet, file or pattern with at most one `*` and one `?`. A missing file and a
//!   directory are errors, a pattern without matches is a warning.
//! - **Keys**: `[scheme://]zone[:port]`; a network (`10.0.0.0/24`) stands for its reverse zones.
//!
//! # Contents of errors
//! An error prints its location, the word in question and the line. If a word of the line contains
//! the value of an environment variable, the error is described without words ([`Kind`]), and the
//! line is printed as written. For an imported file, which may be no Corefile, the line is not
//! printed at all.
//!
//! # Stricter than CoreDNS
//! Text that CoreDNS accepts though it can only be a mistake is an error here: a `}` without its
//! `{`, a block without key (CoreDNS drops it without a message), an empty key, a brace glued to a
//! word, an unknown scheme or a port that is no number (CoreDNS takes either as part of the zone's
//! name), a mask longer than the address, invalid UTF-8 outside comments. A comment inside a word
//! (`a#b c`) lasts to the end of the line; in CoreDNS it ends at the next blank.
//!
//! # Bounds
//! 16 MiB a file, 64 MiB and 1,000,000 words in all, 64 open braces, 10,000 snippets and 100,000 files imported.

mod aks_environment;
mod ast;
mod env;
mod error;
mod glob;
pub mod go_values;
mod import;
mod kind;
mod lexer;
mod loader;
mod location;
mod parser;
mod server_block_key;
mod source_text;
mod suggest;
mod token;

use std::path::Path;

pub use aks_environment::{VariantError, corefile_of};
pub use ast::{Corefile, Directive, ServerBlock};
pub use error::{SyntaxError, Warning};
pub use kind::Kind;
pub use location::{Located, Location};
pub use server_block_key::{BlockKey, Scheme, zones_of};
pub use suggest::nearest;
pub use token::Word;

use crate::import::Stream;
use crate::source_text::SourceText;

/// Reads the Corefile at `path` with its imports. `env` returns the value of an environment
/// variable.
///
/// # Errors
/// The first error, with its place. An unreadable file is an error at line 0 if it is `path`
/// itself, else at the word that imports it.
pub fn read_file(
    path: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Corefile, Located<SyntaxError>> {
    let name = path.display().to_string();
    let base_dir = path.parent().unwrap_or_else(|| Path::new(""));
    let source = loader::read(path).and_then(|bytes| loader::text(&name, &bytes, base_dir));
    parse(&name, source, Some(path), env)
}

/// Reads a Corefile from memory: standard input, a test, a built-in default. `name` is its name in
/// messages; imports are relative to `base_dir`; `env` returns the value of an environment
/// variable.
///
/// # Errors
/// The first error, with its place.
pub fn read_text(
    name: &str,
    text: &[u8],
    base_dir: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Corefile, Located<SyntaxError>> {
    parse(name, loader::text(name, text, base_dir), None, env)
}

fn parse(
    name: &str,
    source: Result<SourceText, SyntaxError>,
    path: Option<&Path>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Corefile, Located<SyntaxError>> {
    let source = source.map_err(|error| Located::new(&Location::file_only(name), error))?;
    let mut stream = Stream::new(env);
    stream.open_root(source, path)?;
    parser::parse(stream)
}
