//! Why a machine cannot be.

/// Errors of a machine's description; its name is said elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum MachineError {
    /// No preset and no file.
    #[error("unknown; give a TOML file or one of {}", presets.join(", "))]
    Unknown { presets: Vec<String> },
    /// A text that is no machine.
    #[error("line {line}: {message}")]
    Syntax { line: usize, message: String },
    /// A field of 0.
    #[error("{0} must be positive")]
    Zero(&'static str),
    /// A field above its limit.
    #[error("{field} {found} must not exceed {limit}")]
    TooLarge { field: &'static str, found: u64, limit: u64 },
    /// A field above another one.
    #[error("{field} {found} must not exceed {other} {limit}")]
    Exceeds { field: &'static str, found: u32, other: &'static str, limit: u32 },
    /// A word of an impossible size.
    #[error("cache.word_bytes {0} must be a power of two in 8..=1024")]
    Word(u32),
    /// An array or a pooling unit of another width than a word.
    #[error("array.rows {rows} and pdp.lanes {lanes} must equal cache.word_bytes {word}: a word is one row vector")]
    RowVector { rows: u32, lanes: u32, word: u32 },
    /// Too few accumulators.
    #[error("array.accumulators must be at least 4")]
    Accumulators,
    /// Another number of DMA lines.
    #[error("dma.lines {0} must be 2")]
    Lines(u32),
    /// Another number of channels.
    #[error("ddr.channels {0} must be 1, 2, 4 or 8")]
    Channels(u32),
    /// A page of an impossible size.
    #[error("ddr.page_bytes {0} must be a power of two of at least a word")]
    Page(u64),
    /// Channels that alternate inside a page.
    #[error("ddr.interleave_bytes {0} must be a multiple of a page (of {1} bytes, over ganged channels)")]
    Interleave(u64, u64),
    /// Clocks too fast or too far apart.
    #[error(
        "clock_hz {clock} and ddr.clock_hz {ddr} must not exceed {fastest}, \
         and the first not be over {ratio} times the second"
    )]
    Clocks { clock: u64, ddr: u64, fastest: u64, ratio: u64 },
    /// A cache that addresses cannot reach.
    #[error("{cache}.banks {banks} times {cache}.words {words} must be at most {limit} bytes")]
    Cache { cache: &'static str, banks: u32, words: u32, limit: u64 },
    /// There is no preset of the name of the base.
    #[error("base: {name:?} is unknown; give one of {}", presets.join(", "))]
    UnknownBase { name: String, presets: Vec<String> },
    /// A machine with a base has no name of its own.
    #[error("name is missing: a machine based on {base:?} has a name of its own")]
    Unnamed { base: String },
    /// A value of another type than the base has there.
    #[error("{field}: {expected} is expected, not {value}")]
    Type { field: String, expected: &'static str, value: String },
    /// A key that the base does not have.
    #[error("{field} is unknown; there are {}", known.join(", "))]
    UnknownField { field: String, known: Vec<String> },
}
