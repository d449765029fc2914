//! Errors and warnings about a Corefile's text.

use std::io;
use std::path::PathBuf;

use crate::kind::Kind;
use crate::location::Location;

/// A syntax error. [`Located`](crate::Located) adds its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// The file cannot be read.
    #[error("cannot read {}: {}", path.display(), io_error_text(*.reason))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::ErrorKind,
    },
    /// A directory instead of a file.
    #[error("cannot read {}: expected a file, found a directory; name the file in it", path.display())]
    IsDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A pipe, socket or device instead of a file.
    #[error("cannot read {}: expected a file, found {found}", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind of file found.
        found: &'static str,
    },
    /// One file exceeds the bound.
    #[error("{file} is too large: expected at most {limit_bytes} bytes")]
    FileTooLarge {
        /// The file.
        file: String,
        /// The maximum number of bytes.
        limit_bytes: usize,
    },
    /// All files, snippets and variables together exceed the bound.
    #[error(
        "the configuration is too large: expected at most {limit_bytes} bytes with its imports and variables"
    )]
    TooManyBytes {
        /// The maximum number of bytes.
        limit_bytes: usize,
    },
    /// All files and snippets together exceed the bound.
    #[error("the configuration is too large: expected at most {limit_words} words with its imports")]
    TooManyWords {
        /// The maximum number of words.
        limit_words: usize,
    },
    /// A byte outside comments that is no UTF-8.
    #[error("found a byte that is not UTF-8")]
    NotUtf8,
    /// A NUL outside comments, or in the value of a variable.
    #[error("found a NUL byte, expected text")]
    Nul,
    /// A quoted word that is open at the end of the file.
    #[error("this `\"` is never closed")]
    UnclosedQuote,

    /// A body or block that is open at the end of the file.
    #[error("this `{{` is never closed, expected `}}` before the end of the file")]
    UnclosedBrace,
    /// `}` without an open brace.
    #[error("found `}}`, but no `{{` is open")]
    ExtraClose,
    /// `}` in the line of a directive.
    #[error("found `}}` after `{after:.120}`, expected it on a line of its own")]
    CloseInLine {
        /// The word before the brace.
        after: String,
    },
    /// Words after the `}` of a directive.
    #[error("found `{found:.120}` after `}}`, expected the end of the line")]
    TextAfterClose {
        /// The first of these words.
        found: String,
    },
    /// `{` without a directive before it in its line.
    #[error("found `{{` at the start of a line, expected it at the end of its directive's line")]
    StrayOpen,
    /// `zone{`, `forward . 1.1.1.1{`, `{}`, `}}`: a brace is a word of its own.
    #[error("found `{word:.120}`, expected the brace as a word of its own")]
    GluedBrace {
        /// The word with its brace.
        word: String,
    },
    /// Nested braces beyond the bound.
    #[error("expected at most {limit} open braces")]
    NestedTooDeep {
        /// The maximum number.
        limit: usize,
    },
    /// A directive's or property's name that is empty.
    #[error("expected a directive or property, found an empty word")]
    EmptyName,

    /// `{` without a server block's key before it.
    #[error("found `{{`, expected a server block's key such as `.:53` before it")]
    NoKey,
    /// A key that is empty.
    #[error("expected a server block's key such as `.:53`, found an empty word")]
    EmptyKey,
    /// A comma without a key after it.
    #[error("expected another key after the comma, found {found:.120}")]
    NoKeyAfterComma {
        /// The text after it.
        found: &'static str,
    },
    /// A key instead of a directive.
    #[error(
        "found the key `{found}`, expected a directive or `}}`: the block begun at {begun} is not closed"
    )]
    KeyInsideBlock {
        /// The key.
        found: String,
        /// Location of the block's `{`.
        begun: Location,
    },
    /// A key after words that can only be a directive.
    #[error("found the key `{found:.120}`, expected a directive: the line at {begun} is in no server block")]
    DirectiveBeforeBlock {
        /// The key.
        found: String,
        /// Location of the first of these words.
        begun: Location,
    },
    /// An unknown scheme.
    #[error("unknown scheme `{found:.120}`, expected dns, tls, grpc, https, https3 or quic")]
    UnknownScheme {
        /// The scheme.
        found: String,
    },
    /// An invalid port after the last colon of a key.
    #[error("bad port `{found:.120}`, expected a number from 0 to 65535")]
    BadPort {
        /// The text found.
        found: String,
    },
    /// An IPv6 address instead of a zone.
    #[error("found the address `{found:.120}`, expected a zone or a network such as `{found:.120}/128`")]
    AddressAsZone {
        /// The address.
        found: String,
    },
    /// An invalid mask after the slash of a network.
    #[error("bad network mask `{found:.120}`, expected a number from 0 to {max}")]
    BadMask {
        /// The text found.
        found: String,
        /// 32 or 128.
        max: u32,
    },
    /// A key without a zone.
    #[error("expected a zone such as `.` before the port in `{key:.120}`")]
    NoZone {
        /// The key.
        key: String,
    },
    /// Two dots in a row, or one at the start.
    #[error("the zone `{zone:.120}` has an empty label")]
    EmptyLabel {
        /// The zone.
        zone: String,
    },
    /// A label longer than RFC 1035, section 2.3.4, allows.
    #[error("the zone `{zone:.120}` has a label of {octets} octets, expected at most 63")]
    LabelTooLong {
        /// The zone.
        zone: String,
        /// The label's length.
        octets: usize,
    },
    /// A name longer than RFC 1035, section 2.3.4, allows.
    #[error("the zone `{zone:.120}` is {octets} octets long, expected at most 255")]
    ZoneTooLong {
        /// The zone.
        zone: String,
        /// The zone's length, counted as in RFC 1035.
        octets: usize,
    },
    /// An invalid escape: a backslash at the end of the zone, or before a number above 255 or of
    /// fewer than three digits.
    #[error(
        "the zone `{zone:.120}` has a bad escape, expected `\\` and a character or three digits up to 255"
    )]
    BadEscape {
        /// The zone.
        zone: String,
    },

    /// `(name)` without a body.
    #[error("expected `{{` after the snippet `({name:.120})`")]
    SnippetWithoutBody {
        /// The snippet.
        name: String,
    },
    /// Two snippets of one name.
    #[error("the snippet `({name:.120})` is already defined at {first}")]
    SnippetRedefined {
        /// The snippet.
        name: String,
        /// Location of the first snippet.
        first: Location,
    },
    /// `import` alone, or with an empty word.
    #[error("expected a snippet, a file or a pattern after `import`")]
    ImportWithoutTarget,
    /// `import a b`.
    #[error("found `{found:.120}`, expected one snippet, file or pattern after `import`")]
    ImportExtraWord {
        /// The second word.
        found: String,
    },
    /// No snippet above and no file with that name.
    #[error("found no snippet above and no file for this import: {}; define it above, or put the file there", path.display())]
    ImportNotFound {
        /// The path of the file.
        path: PathBuf,
    },
    /// A pattern that may be slow to search.
    #[error("bad pattern `{pattern}`, expected at most one `*` and one `?`, and no `[`")]
    PatternTooWide {
        /// The pattern.
        pattern: String,
    },
    /// A file or snippet that imports itself.
    #[error("`{target}` imports itself")]
    ImportCycle {
        /// The snippet or file.
        target: String,
    },
    /// Snippet imports beyond the bound.
    #[error("expected at most {limit} imports of snippets")]
    TooManySnippetImports {
        /// The maximum number.
        limit: u32,
    },
    /// File imports beyond the bound.
    #[error("expected at most {limit} imported files")]
    TooManyFileImports {
        /// The maximum number.
        limit: u32,
    },
}

/// A suspicious part of a Corefile that CoreDNS accepts too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// A zone name outside RFC 1035's preferred syntax; it is served.
    #[error("the zone `{zone:.120}` does not follow RFC 1035's preferred syntax")]
    ZoneSyntax {
        /// The zone.
        zone: String,
    },
    /// An `import` with a pattern that matches no file.
    #[error("no file matches the pattern `{pattern}`")]
    NoMatch {
        /// The pattern.
        pattern: String,
    },
    /// A block without braces after other blocks: perhaps a directive that should be inside a
    /// block.
    #[error("`{first}` begins a server block without braces, expected them where a file has several blocks")]
    BlockWithoutBraces {
        /// The block's first key.
        first: String,
    },
}

impl Kind for SyntaxError {
    fn kind(&self) -> String {
        match self {
            Self::Unreadable { reason, .. } => format!("the file cannot be read: {}", io_error_text(*reason)),
            Self::IsDirectory { .. } => "expected a file, found a directory; name the file in it".to_owned(),
            Self::NotAFile { found, .. } => format!("expected a file, found {found}"),
            Self::FileTooLarge { limit_bytes, .. } => {
                format!("the file is too large: expected at most {limit_bytes} bytes")
            }
            Self::CloseInLine { .. } => "found `}` after a word, expected it on a line of its own".to_owned(),
            Self::TextAfterClose { .. } => "found a word after `}`, expected the end of the line".to_owned(),
            Self::GluedBrace { .. } => "expected the brace as a word of its own".to_owned(),
            Self::KeyInsideBlock { begun, .. } => {
                format!("found a key, expected a directive or `}}`: the block begun at {begun} is not closed")
            }
            Self::DirectiveBeforeBlock { begun, .. } => {
                format!("found a key, expected a directive: the line at {begun} is in no server block")
            }
            Self::UnknownScheme { .. } => {
                "unknown scheme, expected dns, tls, grpc, https, https3 or quic".to_owned()
            }
            Self::BadPort { .. } => "bad port, expected a number from 0 to 65535".to_owned(),
            Self::AddressAsZone { .. } => "found an address, expected a zone or a network".to_owned(),
            Self::BadMask { max, .. } => format!("bad network mask, expected a number from 0 to {max}"),
            Self::NoZone { .. } => "expected a zone such as `.` before the port".to_owned(),
            Self::EmptyLabel { .. } => "the zone has an empty label".to_owned(),
            Self::LabelTooLong { octets, .. } => {
                format!("the zone has a label of {octets} octets, expected at most 63")
            }
            Self::ZoneTooLong { octets, .. } => {
                format!("the zone is {octets} octets long, expected at most 255")
            }
            Self::BadEscape { .. } => {
                "the zone has a bad escape, expected `\\` and a character or three digits up to 255"
                    .to_owned()
            }
            Self::SnippetWithoutBody { .. } => "expected `{` after the snippet".to_owned(),
            Self::SnippetRedefined { first, .. } => format!("the snippet is already defined at {first}"),
            Self::ImportExtraWord { .. } => "expected one snippet, file or pattern after `import`".to_owned(),
            Self::ImportNotFound { .. } => {
                "found no snippet above and no file for this import; define it above, or put the file there"
                    .to_owned()
            }
            Self::PatternTooWide { .. } => {
                "bad pattern, expected at most one `*` and one `?`, and no `[`".to_owned()
            }
            Self::ImportCycle { .. } => "what is imported imports itself".to_owned(),
            Self::TooManyBytes { .. }
            | Self::TooManyWords { .. }
            | Self::NotUtf8
            | Self::Nul
            | Self::UnclosedQuote
            | Self::UnclosedBrace
            | Self::ExtraClose
            | Self::StrayOpen
            | Self::NestedTooDeep { .. }
            | Self::EmptyName
            | Self::NoKey
            | Self::EmptyKey
            | Self::NoKeyAfterComma { .. }
            | Self::ImportWithoutTarget
            | Self::TooManySnippetImports { .. }
            | Self::TooManyFileImports { .. } => self.to_string(),
        }
    }
}

impl Kind for Warning {
    fn kind(&self) -> String {
        match self {
            Self::ZoneSyntax { .. } => "the zone does not follow RFC 1035's preferred syntax",
            Self::NoMatch { .. } => "no file matches the pattern",
            Self::BlockWithoutBraces { .. } => {
                "a server block without braces begins here, expected them where a file has several blocks"
            }
        }
        .to_owned()
    }
}

/// Returns the text of a system error, with a remedy if one is known.
fn io_error_text(reason: io::ErrorKind) -> String {
    match reason {
        io::ErrorKind::NotFound => "there is no such file; put it there, or name another one".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "permission denied; let this user read it, or name another file".to_owned()
        }
        io::ErrorKind::TimedOut => "it was given up; does its disk or file server answer?".to_owned(),
        other => other.to_string(),
    }
}
