//! The cache words a stream of the elementwise or pooling unit visits, in order.

use smallvec::SmallVec;
use tpuflow_ir::access;
use tpuflow_ir::isa::{Descriptor, Pool, PoolDescriptor, VectorOp};
use tpuflow_ir::timing::{self, Streams};
use tpuflow_ir::{Instruction, Program, Space, View, Work};

/// Words of the cache: `count` stretches of `words` words, each beginning `step` words after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    first: u64,
    words: u64,
    step: u64,
    count: u64,
}

impl Piece {
    /// One stretch.
    fn new(first: u64, words: u64) -> Self {
        Self { first, words, step: words, count: 1 }
    }

    /// Number of words.
    pub(crate) fn len(&self) -> u64 {
        self.words * self.count
    }

    /// Word `position` of the piece.
    pub(crate) fn word(&self, position: u64) -> u64 {
        if self.count == 1 {
            return self.first + position;
        }
        self.first + position / self.words * self.step + position % self.words
    }

    /// How many from word `position` on surely lie before `limit`, behind that word; at least one.
    pub(crate) fn before(&self, position: u64, limit: u64) -> u64 {
        if self.count == 1 {
            return (self.words - position).min(limit - self.first - position);
        }
        let (stretch, within) = (position / self.words, position % self.words);
        let (start, here) = (self.first + stretch * self.step, self.words - within);
        if start + self.words > limit {
            return limit - start - within;
        }
        here + self.words * ((limit - self.words - start) / self.step).min(self.count - 1 - stretch)
    }

    /// Itself and what follows it as one piece, where that is one.
    fn merge(self, next: Self) -> Option<Self> {
        let one = self.count == 1 && next.count == 1 && self.first + self.words == next.first;
        if one {
            return Some(Self::new(self.first, self.words + next.words));
        }
        let alike = self.count > 1 && (self.words, self.step) == (next.words, next.step);
        (alike && self.first + self.count * self.step == next.first)
            .then(|| Self { count: self.count + next.count, ..self })
    }
}

/// `accesses` accesses spread evenly over a list of words: access `i` visits word `floor(i * words / accesses)` of the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpreadAccesses {
    pieces: SmallVec<[Piece; 2]>,
    words: u64,
    accesses: u64,
    next: u64,
    /// Piece of the next access, and words in the pieces before it.
    piece: usize,
    before: u64,
}

impl SpreadAccesses {
    fn new(pieces: impl IntoIterator<Item = Piece>, accesses: u64) -> Self {
        let mut walk = Self { accesses, ..Self::default() };
        for piece in pieces {
            match walk.pieces.last_mut().and_then(|last| Some((last.merge(piece)?, last))) {
                Some((merged, last)) => *last = merged,
                None => walk.pieces.push(piece),
            }
            walk.words += piece.len();
        }
        if walk.words == 0 {
            walk.accesses = 0;
        }
        walk
    }

    /// Number of the next access, if there is one.
    pub(crate) fn next(&self) -> Option<u64> {
        (self.next < self.accesses).then_some(self.next)
    }

    /// Word of the next access.
    pub(crate) fn word(&mut self) -> u64 {
        let position = (u128::from(self.next) * u128::from(self.words) / u128::from(self.accesses)) as u64;
        while position >= self.before + self.pieces[self.piece].len() {
            self.before += self.pieces[self.piece].len();
            self.piece += 1;
        }
        self.pieces[self.piece].word(position - self.before)
    }

    /// The access was granted.
    pub(crate) fn advance(&mut self) {
        self.next += 1;
    }

    /// Pieces, their words in all, and the number of accesses.
    pub(crate) fn into_parts(self) -> (SmallVec<[Piece; 2]>, u64, u64) {
        (self.pieces, self.words, self.accesses)
    }

    /// Number of accesses in all.
    pub(crate) fn accesses(&self) -> u64 {
        self.accesses
    }
}

/// Words of `count` rows from `first` on, around the ring if they wrap; of pixels of several words those with the view's channels.
fn rows(view: &View, first: u32, count: u32, word: usize) -> impl Iterator<Item = Piece> + use<> {
    let view = *view;
    let size = u64::from(view.pixel_bytes);
    let (offset, own) = timing::pixel_words(&view, word);
    let in_part = size > word as u64 && own * (word as u64) < size;
    let row_words = view.row_bytes(word) / word as u64;
    let stored = view.stored_rows.max(1);
    let mut row = first;
    std::iter::from_fn(move || {
        // Rows up to the end of the ring are one.
        let slot = row.wrapping_sub(view.first_row) % stored;
        let together = (stored - slot).min(first + count - row);
        let start = view.row_address(row, word) / word as u64;
        row += together;
        (together > 0).then(|| match (in_part, u64::from(together)) {
            (true, rows) => Piece {
                first: start + offset,
                words: own,
                step: size / word as u64,
                count: rows * u64::from(view.width),
            },
            (false, rows) => Piece::new(start, rows * row_words),
        })
    })
}

/// Read walks and the write walk of a pool or vector instruction, with its unit cycles.
pub(crate) fn access_patterns(
    program: &Program,
    instruction: &Instruction,
) -> Option<(u64, SmallVec<[SpreadAccesses; 3]>, SpreadAccesses)> {
    let Streams { cycles, reads, writes } = timing::streams(&instruction.work, &program.descriptors, &program.machine)?;
    let cycles = cycles.max(1);
    let word = program.machine.word();
    match &instruction.work {
        Work::Pool(p) => {
            let Descriptor::Pool(d) = program.descriptor(p.descriptor) else { return None };
            let read = SpreadAccesses::new(lines(p, d, word), reads[0]);
            let write = SpreadAccesses::new(rows(&p.output, p.first_row, p.rows, word), writes);
            Some((cycles, SmallVec::from_iter([read]), write))
        }
        Work::Vector(v) => {
            let Descriptor::Vector(op) = program.descriptor(v.descriptor) else { return None };
            // Stretches of the cache in the order of `access`: operands first, then parameters (in the other cache).
            let touched = access::accesses(instruction, &program.descriptors, &program.machine);
            let stretch = |s: &access::Stretch| Piece::new(s.start / word as u64, (s.end - s.start) / word as u64);
            let row_wise = !op.reduces() && !matches!(op, VectorOp::Move { .. } | VectorOp::Gather { .. });
            let in_cache = touched.reads.iter().filter(|s| s.space == Space::Cache);
            let reads = v.inputs.iter().zip(in_cache).zip(reads).map(|((view, s), count)| {
                if row_wise && view.rows == v.output.rows {
                    SpreadAccesses::new(rows(view, v.first_row, v.rows, word), count)
                } else {
                    SpreadAccesses::new([stretch(s)], count)
                }
            });
            let write = if row_wise {
                SpreadAccesses::new(rows(&v.output, v.first_row, v.rows, word), writes)
            } else {
                SpreadAccesses::new(touched.writes.iter().map(stretch), writes)
            };
            Some((cycles, reads.collect(), write))
        }
        _ => None,
    }
}

/// The input rows under the window of each output row in turn.
fn lines(pool: &Pool, descriptor: &PoolDescriptor, word: usize) -> Vec<Piece> {
    let window = &descriptor.window;
    let mut found = Vec::new();
    for row in pool.first_row..pool.first_row + pool.rows {
        let (image, line) = (row / pool.output.height, row % pool.output.height);
        let top = i64::from(line) * i64::from(window.stride[0]) - i64::from(window.pads[0]);
        let first = image * pool.input.height;
        if window.dilation[0] == 1 {
            let end = (top + i64::from(window.kernel[0])).min(pool.input.height.into());
            let count = (end - top.max(0)).max(0) as u32;
            found.extend(rows(&pool.input, first + top.max(0) as u32, count, word));
            continue;
        }
        for tap in 0..window.kernel[0] {
            let line = top + i64::from(tap * window.dilation[0]);
            if (0..i64::from(pool.input.height)).contains(&line) {
                found.extend(rows(&pool.input, first + line as u32, 1, word));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tpuflow_ir::DType;

    const WORD: usize = 16;

    /// Rows word by word, one below the other.
    fn slow(view: &View, first: u32, count: u32) -> Vec<u64> {
        let size = u64::from(view.pixel_bytes);
        let (offset, own) = timing::pixel_words(view, WORD);
        let row = |row: u32| {
            let start = view.row_address(row, WORD) / WORD as u64;
            if size > WORD as u64 && own * (WORD as u64) < size {
                let pixels = 0..u64::from(view.width);
                pixels.flat_map(|n| (0..own).map(move |i| start + n * (size / WORD as u64) + offset + i)).collect()
            } else {
                (start..start + view.row_bytes(WORD) / WORD as u64).collect::<Vec<_>>()
            }
        };
        (first..first + count).flat_map(row).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Pieces are the rows' words in their order, each word found by its place, and stretches of one bank end where they say.
        #[test]
        fn pieces_are_rows(
            [rows, width, channels, offset] in [1u32..9, 1u32..5, 1u32..40, 0u32..40],
            [first_row, stored_rows, first] in [0u32..4, 1u32..9, 0u32..8],
            [more, bank] in [0u32..4, 1u32..9],
        ) {
            let pixel_bytes = tpuflow_ir::layout::pixel_bytes((channels + offset) as usize, WORD) as u32;
            let view = View {
                space: Space::Cache, address: 64, dtype: DType::I8, rows, height: rows, width, channels, pixel_bytes,
                channel_offset: offset, first_row, stored_rows, origin: [0, 0],
            };
            let (first, bank) = (first_row + first, u64::from(bank));
            // Twice, so that pieces may join.
            let pieces = super::rows(&view, first, more + 1, WORD).chain(super::rows(&view, first + more + 1, 1, WORD));
            let expected = slow(&view, first, more + 2);
            let walk = SpreadAccesses::new(pieces, 1);
            prop_assert_eq!(walk.words, expected.len() as u64);
            let mut rest = &expected[..];
            for piece in walk.pieces {
                for position in 0..piece.len() {
                    let word = piece.word(position);
                    prop_assert_eq!(word, rest[0]);
                    let end = (word / bank + 1) * bank;
                    let count = piece.before(position, end);
                    let behind = piece.len() - position;
                    prop_assert!(count >= 1 && count <= behind);
                    prop_assert!(rest[..count as usize].iter().all(|word| (end - bank..end).contains(word)));
                    rest = &rest[1..];
                }
            }
            prop_assert!(rest.is_empty());
        }
    }
}
