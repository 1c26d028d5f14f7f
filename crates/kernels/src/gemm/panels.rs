//! How a packed right operand lies in memory.
//!
//! Columns are taken sixteen at a time (a panel), rows in steps of four bytes: four int8 or two int16 codes. One step of one
//! panel is a cache line, and panels are interleaved in blocks of `width` so that a kernel reads one stream.
//! ```text
//! line:   column 0: b[p] b[p+1] b[p+2] b[p+3] | column 1: ... | column 15
//! block:  step 0: panel 0, panel 1, .. width-1 | step 1: panel 0, ...
//! ```
//! Rows beyond `k` and columns beyond `n` are zero.

use crate::pages::{self, Addresses};

/// One step of one panel, on its own cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Line(pub [u8; 64]);

impl Default for Line {
    fn default() -> Self {
        Self([0; 64])
    }
}

/// Columns of a panel.
pub const COLUMNS: usize = 16;

/// A packed operand `[k, n]`.
#[derive(Clone, Debug)]
pub struct Panels {
    k: usize,
    n: usize,
    /// Codes per step.
    depth: usize,
    /// Panels per block.
    width: usize,
    lines: Vec<Line>,
}

impl Panels {
    /// Packs int8 codes, four per step.
    pub fn bytes(k: usize, n: usize, width: usize, at: impl Fn(usize, usize) -> i8) -> Self {
        Self::pack(k, n, 4, width, |p, j| [at(p, j).cast_unsigned()])
    }

    /// Packs int16 codes, two per step.
    pub fn pairs(k: usize, n: usize, width: usize, at: impl Fn(usize, usize) -> i16) -> Self {
        Self::pack(k, n, 2, width, |p, j| at(p, j).to_le_bytes())
    }

    fn pack<const BYTES: usize>(
        k: usize,
        n: usize,
        depth: usize,
        width: usize,
        at: impl Fn(usize, usize) -> [u8; BYTES],
    ) -> Self {
        let steps = k.div_ceil(depth);
        let mut lines = vec![Line([0; 64]); steps * n.div_ceil(COLUMNS)];
        let mut packed = Self { k, n, depth, width, lines: Vec::new() };
        for block in 0..packed.blocks() {
            let panels = packed.panels(block);
            let lines = &mut lines[block * width * steps..][..panels * steps];
            for (index, line) in lines.iter_mut().enumerate() {
                let (step, panel) = (index / panels, block * width + index % panels);
                let columns = panel * COLUMNS..n.min((panel + 1) * COLUMNS);
                for p in step * depth..k.min((step + 1) * depth) {
                    for (i, j) in columns.clone().enumerate() {
                        line.0[i * 4 + (p % depth) * BYTES..][..BYTES].copy_from_slice(&at(p, j));
                    }
                }
            }
        }
        packed.lines = lines;
        packed
    }

    /// Where it lies.
    #[must_use]
    pub fn memory(&self) -> Addresses {
        pages::of(&self.lines)
    }

    /// Rows.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Steps along `k`, the words of a left row.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.k.div_ceil(self.depth)
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.n.div_ceil(COLUMNS * self.width)
    }

    /// Panels of a block: `width`, fewer in the last.
    #[must_use]
    pub fn panels(&self, block: usize) -> usize {
        self.width.min(self.n.div_ceil(COLUMNS) - block * self.width)
    }

    /// Lines of a block, [`Self::panels`] per step.
    #[must_use]
    pub fn block(&self, block: usize) -> &[Line] {
        let steps = self.steps();
        &self.lines[block * self.width * steps..][..self.panels(block) * steps]
    }

    /// Columns of a block.
    #[must_use]
    pub fn columns(&self, block: usize) -> std::ops::Range<usize> {
        let first = block * self.width * COLUMNS;
        first..self.n.min(first + self.width * COLUMNS)
    }

    /// The bytes of code (`p`, `j`), as the reference reads them.
    #[must_use]
    pub fn code(&self, p: usize, j: usize) -> &[u8] {
        let (block, panel) = (j / (COLUMNS * self.width), j / COLUMNS % self.width);
        let line = &self.block(block)[p / self.depth * self.panels(block) + panel];
        let bytes = 4 / self.depth;
        &line.0[j % COLUMNS * 4 + p % self.depth * bytes..][..bytes]
    }

    /// Number of rows `m` of a product, from the lengths of `a` `[m, k]` and `c` `[m, n]`.
    ///
    /// # Panics
    /// When they do not belong together.
    #[must_use]
    pub fn check(&self, a: usize, c: usize) -> usize {
        let m = c.checked_div(self.n).unwrap_or(0);
        assert!(c == m * self.n && a == m * self.k, "the left operand is [m, k] and the result [m, n]");
        m
    }
}
