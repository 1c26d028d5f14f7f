//! Why a program cannot be written as text or bytes, or read from text.

use super::{LimitError, MachineError};

/// Errors of a program or its text.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum ProgramError {
    /// Fields that JSON cannot hold.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Instructions that cannot be encoded.
    #[error(transparent)]
    Encoding(#[from] postcard::Error),
    /// A program that is no record.
    #[error("a program is a record")]
    Record,
    /// A text of something else.
    #[error("line 1: not the text of a program, which begins with \"{expected}\" here: {found:.20?}")]
    OtherText { expected: &'static str, found: String },
    /// A text of another version.
    #[error("line 1: another version of the text of a program, which begins with \"{expected}\" here: {found:.20?}")]
    Version { expected: &'static str, found: String },
    /// A line that cannot be read.
    #[error("line {line}: {source}")]
    Line { line: usize, source: SyntaxError },
    /// A line that is not there.
    #[error("the line \"{0}\" is missing")]
    Missing(&'static str),
    /// Fields of other types.
    #[error("not a program: {0}")]
    Fields(serde_json::Error),
    /// The machine cannot be.
    #[error("its machine: {0}")]
    Machine(MachineError),
    /// Constants that were cut.
    #[error("constants {space}: {announced} bytes announced, {found} found")]
    ConstantBytes { space: usize, announced: usize, found: usize },
    /// Constants that are missing.
    #[error("constants of {found} address spaces, the program has {expected}: the text is incomplete")]
    Constants { found: usize, expected: usize },
    /// Numbers that cannot be computed with.
    #[error(transparent)]
    Limits(#[from] LimitError),
}

/// Errors of a line of a program's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum SyntaxError {
    /// Constants out of order.
    #[error("constants {found}, expected {expected}")]
    Space { found: u64, expected: usize },
    /// A number that no size holds.
    #[error(transparent)]
    Size(#[from] std::num::TryFromIntError),
    /// A value that is no record.
    #[error("{0}: expected a record (key=value ...)")]
    Record(String),
    /// Constants that are too long.
    #[error("{0} bytes more than announced")]
    Bytes(usize),
    /// The text that is no byte.
    #[error("not a word of the text form, nor hexadecimal bytes")]
    Hexadecimal,
    /// Half a byte.
    #[error("an odd number of hexadecimal digits")]
    OddDigits,
    /// More than there should be.
    #[error("\"{0}\" is too much")]
    Rest(String),
    /// Something else than what must stand here.
    #[error("expected {expected} before \"{before}\"")]
    Expected { expected: String, before: String },
    /// A name that must stand here.
    #[error("expected {0}")]
    Name(&'static str),
    /// A word that begins nothing.
    #[error("\"{0}\" begins no line of the text form")]
    Word(String),
    /// Values within values within values.
    #[error("values are nested too deep")]
    Depth,
    /// A key that was there before.
    #[error("key \"{0}\" occurs twice")]
    Twice(String),
    /// A string without end.
    #[error("a string is not closed")]
    String,
    /// Digits that are no number.
    #[error("\"{0}\" is not a number")]
    Number(String),
}
