//! The two forms of a function's table, as `docs/arithmetic.md` section 5 defines them.
//!
//! A table is a constant of int32 words. An odd number of words is one entry for each of `2^k` equal steps over all codes,
//! and the last one's end. An even number begins with a header that says how a code becomes a position (an affine map modulo
//! one period, which also reduces the argument of a periodic function) and how wide the steps are in each of `2^p` equal
//! segments of all positions:
//!
//! ```text
//! word 0      p + 256 g                       2^p segments; entries have g fraction bits
//! words 1, 2  M, low 32 bits then high 8      position = floor(((code * M + A) mod 2^40) / 2^16)
//! words 3, 4  A, likewise
//! 2^p words   r of each segment               steps of 2^r positions
//! the rest    entries of all segments in order, the end of the last one, then a zero where the number would be odd
//! ```

/// Bits of a position.
pub const POSITION_BITS: u32 = 24;
/// Bits of a position and what is cut off below it: M and A are below `2^PHASE_BITS`.
pub const PHASE_BITS: u32 = 40;
/// Largest p.
pub const SEGMENT_BITS: u32 = 6;
/// Largest g.
pub const FRACTION_BITS: u32 = 8;
/// Words of a header before the segments.
const HEADER: usize = 5;

/// How the words of a table are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Equal steps over all codes.
    Equal {
        /// Bits of a code below the index of its step.
        step_bits: u32,
    },
    /// Steps by segment.
    Segmented(Segmented),
}

/// The header of a table with steps by segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segmented {
    /// M.
    pub multiplier: u64,
    /// A.
    pub offset: u64,
    /// g.
    pub fraction_bits: u32,
    /// p.
    pub segment_bits: u32,
    /// The `2^p` segments.
    pub segments: Vec<Segment>,
}

/// A segment of positions with one width of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of the word that holds the entry at its start.
    pub first: u32,
    /// r.
    pub step_bits: u32,
}

/// Why words are no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum TableError {
    /// Another number of entries than one for each step and one.
    #[error("{entries} entries are no table of {bits}-bit codes (2^k + 1, k <= {bits})")]
    Entries { entries: usize, bits: u32 },
    /// A header that was cut.
    #[error("{0} words are too few for a table with segments")]
    Short(usize),
    /// Too many segments or fraction bits.
    #[error(
        "a table of 2^{segment_bits} segments and {fraction_bits} fraction bits \
         (at most 2^{SEGMENT_BITS} and {FRACTION_BITS})"
    )]
    Header { segment_bits: u32, fraction_bits: u32 },
    /// A map from codes to positions that is too large.
    #[error("a table's multiplier {multiplier} or offset {offset} exceeds {PHASE_BITS} bits")]
    Phase { multiplier: u64, offset: u64 },
    /// Steps longer than their segment.
    #[error("a table's steps exceed a segment of {extent} bits")]
    Steps { extent: u32 },
    /// More or fewer words than the segments take.
    #[error("a table of {words} words whose segments take {end}")]
    Words { words: usize, end: u64 },
}

impl Form {
    /// The form of the words of a table for codes of `bits` bits.
    ///
    /// # Errors
    /// Why they are no table.
    pub fn new(words: &[i32], bits: u32) -> Result<Self, TableError> {
        let steps = words.len().saturating_sub(1);
        if !words.is_empty() && words.len().is_multiple_of(2) {
            return Segmented::new(words).map(Self::Segmented);
        }
        if !steps.is_power_of_two() || steps < 2 || steps > 1 << bits {
            return Err(TableError::Entries { entries: words.len(), bits });
        }
        Ok(Self::Equal { step_bits: bits - steps.trailing_zeros() })
    }
}

impl Segmented {
    fn new(words: &[i32]) -> Result<Self, TableError> {
        let short = || TableError::Short(words.len());
        let header = words.get(..HEADER).ok_or_else(short)?;
        let (segment_bits, fraction_bits) = (header[0].cast_unsigned() & 0xFF, header[0].cast_unsigned() >> 8);
        if segment_bits > SEGMENT_BITS || fraction_bits > FRACTION_BITS {
            return Err(TableError::Header { segment_bits, fraction_bits });
        }
        let wide = |low: i32, high: i32| u64::from(low.cast_unsigned()) | u64::from(high.cast_unsigned()) << 32;
        let (multiplier, offset) = (wide(header[1], header[2]), wide(header[3], header[4]));
        if (multiplier | offset) >> PHASE_BITS != 0 {
            return Err(TableError::Phase { multiplier, offset });
        }
        let entries = HEADER + (1 << segment_bits);
        let mut first = entries as u64;
        let mut segments = Vec::new();
        for &step_bits in words.get(HEADER..entries).ok_or_else(short)? {
            let extent = POSITION_BITS - segment_bits;
            let step_bits = u32::try_from(step_bits).ok().filter(|&step_bits| step_bits <= extent);
            let step_bits = step_bits.ok_or(TableError::Steps { extent })?;
            if first >= words.len() as u64 {
                return Err(short());
            }
            segments.push(Segment { first: first as u32, step_bits });
            first += 1 << (extent - step_bits);
        }
        let end = first + 1;
        if end.next_multiple_of(2) != words.len() as u64
            || words[end.min(words.len() as u64) as usize..].iter().any(|&w| w != 0)
        {
            return Err(TableError::Words { words: words.len(), end });
        }
        Ok(Self { multiplier, offset, fraction_bits, segment_bits, segments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(words: &[i32], expected: &str) {
        let found = Form::new(words, 16).expect_err("refused").to_string();
        assert!(found.contains(expected), "{found}");
    }

    #[test]
    fn forms() {
        assert_eq!(Form::new(&[0, 1, 2, 3, 4], 8), Ok(Form::Equal { step_bits: 6 }));
        // Two segments, of two steps and one.
        let words = [0x201, 7, 1, 5, 0, 22, 23, 10, 20, 30, 40, 0];
        let segments = vec![Segment { first: 7, step_bits: 22 }, Segment { first: 9, step_bits: 23 }];
        let (multiplier, offset) = (7 + (1 << 32), 5);
        let expected = Segmented { multiplier, offset, fraction_bits: 2, segment_bits: 1, segments };
        assert_eq!(Form::new(&words, 16), Ok(Form::Segmented(expected)));
    }

    #[test]
    fn what_is_no_table() {
        refused(&[], "0 entries");
        refused(&[0; 4], "too few");
        refused(&[0; 7], "7 entries");
        refused(&[7, 0, 0, 0, 0, 0, 0, 0], "2^7 segments");
        refused(&[9 << 8, 0, 0, 0, 0, 24, 0, 0], "9 fraction bits");
        refused(&[-1, 0, 0, 0, 0, 24, 0, 0], "2^255 segments");
        refused(&[0, 0, 256, 0, 0, 24, 0, 0], "exceeds 40 bits");
        refused(&[0, 0, 0, 0, -1, 24, 0, 0], "exceeds 40 bits");
        refused(&[0, 0, 0, 0, 0, 25, 0, 0], "segment of 24 bits");
        refused(&[0, 0, 0, 0, 0, -1, 0, 0], "segment of 24 bits");
        refused(&[6, 0, 0, 0, 0, 0], "too few");
        // A step more than there are words, a word more than there are steps, a last word that is not zero.
        refused(&[0, 0, 0, 0, 0, 23, 1, 2], "segments take 9");
        refused(&[0, 0, 0, 0, 0, 24, 1, 2, 0, 0], "segments take 8");
        refused(&[0, 0, 0, 0, 0, 23, 1, 2, 3, 4], "segments take 9");
        refused(&[1, 0, 0, 0, 0, 0, 23, 1], "too few");
    }
}
