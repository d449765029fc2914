//! Tokens of a template's text.

/// A token and where it starts.
#[derive(Debug)]
pub(crate) struct Token<'t> {
    pub(crate) kind: Kind<'t>,
    /// The byte of the text where the token starts, from 0.
    pub(crate) at: usize,
    /// Whether blanks precede the token inside its action.
    pub(crate) spaced: bool,
}

/// Kind of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'t> {
    /// Text outside actions.
    Text(&'t str),
    /// `{{`
    Open,
    /// `}}`
    Close,
    /// `(`
    OpenParenthesis,
    /// `)`
    CloseParenthesis,
    /// `|`
    Pipe,
    /// `:=`
    Declare,
    /// `=`
    Assign,
    /// `,`
    Comma,
    /// `.`
    Dot,
    /// `.name`, without the dot.
    Field(&'t str),
    /// `$name`, with the dollar; `$` alone too.
    Variable(&'t str),
    /// The name of a function, or an unknown name.
    Identifier(&'t str),
    /// A word of the language.
    Keyword(Keyword),
    /// `nil`
    Nil,
    /// `true` or `false`
    Bool(bool),
    /// An integer or a character.
    Int(i64),
    /// A string.
    String(String),
    /// An ASCII character without meaning.
    Other(char),
    /// The end of the text.
    End,
}

/// A word of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keyword {
    Block,
    Break,
    Continue,
    Define,
    Else,
    End,
    If,
    Range,
    Template,
    With,
}

impl Keyword {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Break => "break",
            Self::Continue => "continue",
            Self::Define => "define",
            Self::Else => "else",
            Self::End => "end",
            Self::If => "if",
            Self::Range => "range",
            Self::Template => "template",
            Self::With => "with",
        }
    }

    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|keyword| keyword.name() == word)
    }

    const ALL: [Self; 10] = [
        Self::Block,
        Self::Break,
        Self::Continue,
        Self::Define,
        Self::Else,
        Self::End,
        Self::If,
        Self::Range,
        Self::Template,
        Self::With,
    ];
}

/// Whether the character is valid in a name.
pub(crate) fn is_alphanumeric(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}
