use thiserror::Error;
use wire::{NameError, RType};

/// Why a text is no record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// A quote without a closing one.
    #[error("a quoted string does not end")]
    Quote,
    /// Unbalanced parentheses.
    #[error("the parentheses do not match")]
    Parentheses,
    /// Neither a record nor a directive.
    #[error("it is empty")]
    Empty,
    /// More than one record.
    #[error("it is more than one record")]
    Several,
    /// Neither `$ORIGIN NAME` nor `$TTL TTL`.
    #[error("the directive {0} is not `$ORIGIN NAME` or `$TTL TTL`, and no other may stand here")]
    Directive(String),
    /// Not `$INCLUDE FILE [ORIGIN]`.
    #[error("the directive is not `$INCLUDE FILE [ORIGIN]`")]
    Include,
    /// An invalid word of `$GENERATE`.
    #[error(
        "{0:?} in $GENERATE is not START-STOP[/STEP] with at most 65536 numbers below 2147483648 and a text behind it, \
         or ${{OFFSET[,WIDTH[,BASE]]}} with a base d, o, x or X"
    )]
    Generate(String),
    /// A record of a zone without a TTL.
    #[error("the record has no TTL, and there is none before it; write `$TTL 3600` at the start of the file")]
    NoTtl,
    /// A record that begins with a blank, without a record before it.
    #[error("it begins with a blank, and there is no record before it that has the same owner")]
    NoOwner,
    /// The text ends before the type.
    #[error("its type is missing")]
    NoType,
    /// A word that is neither class nor TTL nor type.
    #[error("{0:?} is no class, no TTL and no record type")]
    Head(String),
    /// A type without records, such as ANY.
    #[error("{0} is no type of a record in a zone")]
    NoRecord(RType),
    /// A type with data in generic form only.
    #[error("data of the type {0} are written as `\\# LENGTH HEX` (RFC 3597, section 5)")]
    Generic(RType),
    /// An invalid name.
    #[error("{name:?} is not a name: {why}")]
    Name {
        /// The beginning of the word.
        name: String,
        /// Why.
        why: NameError,
    },
    /// Quotes around a name.
    #[error("the name {0:?} stands in quotes; remove them")]
    QuotedName(String),
    /// The data end too early.
    #[error("the data of {rtype} end before {wanted}")]
    Missing {
        /// The type.
        rtype: RType,
        /// The expected word.
        wanted: &'static str,
    },
    /// An invalid word in the data.
    #[error("{found:?} in the data of {rtype} is not {wanted}")]
    Data {
        /// The type.
        rtype: RType,
        /// The beginning of the word.
        found: String,
        /// The expected word.
        wanted: &'static str,
    },
    /// A word after the data.
    #[error("{found:?} is too much for the data of {rtype}")]
    Rest {
        /// The type.
        rtype: RType,
        /// The beginning of the word.
        found: String,
    },
    /// The data are invalid for the type.
    #[error("the data are not what the type {0} has")]
    Shape(RType),
    /// More data than fit a record.
    #[error("the data are longer than 65535 bytes")]
    Long,
}
