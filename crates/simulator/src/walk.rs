//! The cache words a stream of the elementwise or pooling unit visits, in order.

use smallvec::SmallVec;
use tpuflow_ir::access;
use tpuflow_ir::isa::{Descriptor, Pool, PoolDescriptor, VectorOp};
use tpuflow_ir::timing::{self, Streams};
use tpuflow_ir::{Instruction, Program, Space, View, Work};

/// `accesses` accesses spread evenly over a list of words: access `i` visits word `floor(i * words / accesses)` of the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// First word and number of words.
    pieces: SmallVec<[(u64, u64); 4]>,
    words: u64,
    accesses: u64,
    next: u64,
    /// Piece of the next access, and words in the pieces before it.
    piece: usize,
    before: u64,
}

impl Walk {
    fn new(pieces: impl IntoIterator<Item = (u64, u64)>, accesses: u64) -> Self {
        let mut walk = Self { accesses, ..Self::default() };
        for (first, words) in pieces {
            match walk.pieces.last_mut() {
                Some((start, length)) if *start + *length == first => *length += words,
                _ => walk.pieces.push((first, words)),
            }
            walk.words += words;
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
        while position >= self.before + self.pieces[self.piece].1 {
            self.before += self.pieces[self.piece].1;
            self.piece += 1;
        }
        self.pieces[self.piece].0 + position - self.before
    }

    /// The access was granted.
    pub(crate) fn advance(&mut self) {
        self.next += 1;
    }

    /// Pieces, their words in all, and the number of accesses.
    pub(crate) fn into_parts(self) -> (SmallVec<[(u64, u64); 4]>, u64, u64) {
        (self.pieces, self.words, self.accesses)
    }

    /// Number of accesses in all.
    pub(crate) fn accesses(&self) -> u64 {
        self.accesses
    }
}

/// Words of `count` rows from `first` on, around the ring if they wrap; of pixels of several words those with the view's channels.
fn rows(view: &View, first: u32, count: u32, word: usize) -> impl Iterator<Item = (u64, u64)> + use<> {
    let view = *view;
    let size = u64::from(view.pixel_bytes);
    let (offset, own) = timing::pixel_words(&view, word);
    let in_part = size > word as u64 && own * (word as u64) < size;
    let (pieces, step, words) =
        if in_part { (view.width, size / word as u64, own) } else { (1, 0, view.row_bytes(word) / word as u64) };
    let offset = if in_part { offset } else { 0 };
    (first..first + count).flat_map(move |row| {
        let start = view.row_address(row, word) / word as u64 + offset;
        (0..u64::from(pieces)).map(move |piece| (start + piece * step, words))
    })
}

/// Read walks and the write walk of a pool or vector instruction, with its unit cycles.
pub(crate) fn walks(program: &Program, instruction: &Instruction) -> Option<(u64, SmallVec<[Walk; 3]>, Walk)> {
    let Streams { cycles, reads, writes } = timing::streams(&instruction.work, &program.descriptors, &program.machine)?;
    let cycles = cycles.max(1);
    let word = program.machine.word();
    match &instruction.work {
        Work::Pool(p) => {
            let Descriptor::Pool(d) = program.descriptor(p.descriptor) else { return None };
            let read = Walk::new(lines(p, d, word), reads[0]);
            let write = Walk::new(rows(&p.output, p.first_row, p.rows, word), writes);
            Some((cycles, SmallVec::from_iter([read]), write))
        }
        Work::Vector(v) => {
            let Descriptor::Vector(op) = program.descriptor(v.descriptor) else { return None };
            // Stretches of the cache in the order of `access`: operands first, then parameters (in the other cache).
            let touched = access::accesses(instruction, &program.descriptors, &program.machine);
            let stretch = |s: &access::Stretch| (s.start / word as u64, (s.end - s.start) / word as u64);
            let row_wise = !op.reduces() && !matches!(op, VectorOp::Move { .. } | VectorOp::Gather { .. });
            let in_cache = touched.reads.iter().filter(|s| s.space == Space::Cache);
            let reads = v.inputs.iter().zip(in_cache).zip(reads).map(|((view, s), count)| {
                if row_wise && view.rows == v.output.rows {
                    Walk::new(rows(view, v.first_row, v.rows, word), count)
                } else {
                    Walk::new([stretch(s)], count)
                }
            });
            let write = if row_wise {
                Walk::new(rows(&v.output, v.first_row, v.rows, word), writes)
            } else {
                Walk::new(touched.writes.iter().map(stretch), writes)
            };
            Some((cycles, reads.collect(), write))
        }
        _ => None,
    }
}

/// The input rows under the window of each output row in turn.
fn lines(pool: &Pool, descriptor: &PoolDescriptor, word: usize) -> Vec<(u64, u64)> {
    let window = &descriptor.window;
    let mut found = Vec::new();
    for row in pool.first_row..pool.first_row + pool.rows {
        let (image, line) = (row / pool.output.height, row % pool.output.height);
        let top = i64::from(line) * i64::from(window.stride[0]) - i64::from(window.pads[0]);
        for tap in 0..window.kernel[0] {
            let line = top + i64::from(tap * window.dilation[0]);
            if (0..i64::from(pool.input.height)).contains(&line) {
                found.extend(rows(&pool.input, image * pool.input.height + line as u32, 1, word));
            }
        }
    }
    found
}
