//! Registers of the single-buffered weight-stationary array: load, stream, drain, one pass at a time.
//!
//! A PE multiplies at the entry of its pipeline and adds in front of its output register; the sum from
//! above travels with the product, so row r + 1 must be fed `pipeline + 1` cycles after row r.
//! Weights are loaded while nothing else moves: all rows shift down together, last row first.

use super::accumulators::Accumulators;
use super::arithmetic::{Datapath, Precision};
use super::registers::Slot;
use super::skew::Skew;
use super::{ArrayError, ArraySpec, Outcome, Plan};

/// A value that moves to the right: an activation with its phase.
#[derive(Debug, Clone, Copy, Default)]
struct Token<W> {
    word: W,
    phase: u8,
    slot: Slot,
}

/// One register of a PE's pipeline.
#[derive(Debug, Clone, Copy, Default)]
struct Stage<P, S> {
    product: P,
    sum: S,
    slot: Slot,
}

/// One PE.
#[derive(Clone)]
struct Pe<D: Datapath> {
    weight: D::Word,
    token: Token<D::Word>,
    /// Product being gathered by a multiplication of several cycles.
    product: D::Product,
    pipeline: Vec<Stage<D::Product, D::Sum>>,
    sum: D::Sum,
    slot: Slot,
}

impl<D: Datapath> Pe<D> {
    fn step(&mut self, datapath: D, token: Token<D::Word>, above: D::Sum) {
        self.token = token;
        self.product = datapath.multiply(self.product, token.word, self.weight, token.phase);
        let entry = Stage { product: self.product, sum: above, slot: token.slot };
        let last = match self.pipeline.last().copied() {
            Some(last) => {
                self.pipeline.rotate_right(1);
                self.pipeline[0] = entry;
                last
            }
            None => entry,
        };
        self.sum = datapath.add(last.sum, last.product);
        self.slot = last.slot;
    }
}

struct Mesh<D: Datapath> {
    datapath: D,
    columns: usize,
    pes: Vec<Pe<D>>,
    tokens: Skew<Token<D::Word>>,
    sums: Skew<D::Sum>,
    deskew: Skew<D::Sum>,
}

impl<D: Datapath> Mesh<D> {
    fn new(spec: &ArraySpec, pipeline: usize, datapath: D) -> Self {
        let pe = Pe {
            weight: D::Word::default(),
            token: Token::default(),
            product: D::Product::default(),
            pipeline: vec![Stage::default(); pipeline],
            sum: D::Sum::default(),
            slot: Slot::Empty,
        };
        Self {
            datapath,
            columns: spec.columns,
            pes: vec![pe; spec.rows * spec.columns],
            tokens: Skew::rising(spec.rows, pipeline + 1),
            sums: Skew::rising(spec.columns, 1),
            deskew: Skew::falling(spec.columns),
        }
    }

    /// One cycle of loading.
    fn load(&mut self, weights: &[D::Word]) {
        for pe in (self.columns..self.pes.len()).rev() {
            self.pes[pe].weight = self.pes[pe - self.columns].weight;
        }
        for (pe, weight) in self.pes.iter_mut().zip(weights) {
            pe.weight = *weight;
        }
    }

    /// The row at the bottom in this cycle, if one is complete.
    fn output(&mut self) -> (&[D::Sum], Slot) {
        let bottom = &self.pes[self.pes.len() - self.columns..];
        let slot = bottom[self.columns - 1].slot;
        (self.deskew.push(bottom.iter().map(|pe| pe.sum)), slot)
    }

    /// One cycle of streaming or draining.
    fn step(&mut self, row: &[Token<D::Word>], sums: &[D::Sum]) {
        let left = self.tokens.push(row.iter().copied());
        let top = self.sums.push(sums.iter().copied());
        for r in (0..left.len()).rev() {
            for c in (0..self.columns).rev() {
                let pe = r * self.columns + c;
                let token = if c == 0 { left[r] } else { self.pes[pe - 1].token };
                let above = if r == 0 { top[c] } else { self.pes[pe - self.columns].sum };
                self.pes[pe].step(self.datapath, token, above);
            }
        }
    }
}

/// Steps the array through all passes, each to its last row.
pub(super) fn run<P: Precision>(
    spec: &ArraySpec,
    pipeline: usize,
    plan: &Plan<'_, P>,
) -> Result<Outcome<P::Sum>, ArrayError> {
    let precision = plan.precision;
    let phases = precision.streaming().phases();
    let mut accumulators = Accumulators::new(plan, spec.columns);
    let mut mesh = Mesh::new(spec, pipeline, precision.streaming());
    let mut sums = vec![Default::default(); spec.columns];
    let mut cycle = 0u64;
    for (tile, step) in plan.steps.iter().enumerate() {
        for stream in 0..precision.passes().streams() as usize {
            for row in step.tile.weights.chunks(spec.columns).rev() {
                let words: Vec<_> = row.iter().map(|w| precision.weight_word(*w, stream)).collect();
                mesh.load(&words);
                cycle += 1;
            }
            if stream == 0 {
                accumulators.timing(tile).start = cycle;
            }
            let (mut row, mut phase, mut arrived) = (0, 0, 0);
            while arrived < step.extent.m {
                let mut tokens = vec![Token::default(); spec.rows];
                if row < step.extent.m {
                    let last = phase + 1 == phases;
                    let slot = if last { Slot::Row } else { Slot::Bubble };
                    for (token, value) in tokens.iter_mut().zip(&step.tile.rows[row * spec.rows..]) {
                        *token = Token { word: precision.activation_word(*value, stream), phase, slot };
                    }
                    if last {
                        accumulators.start(tile, row, &mut sums)?;
                    }
                    (row, phase) = if last { (row + 1, 0) } else { (row, phase + 1) };
                }
                if let (output, Slot::Row) = mesh.output() {
                    accumulators.collect(output, cycle)?;
                    arrived += 1;
                }
                mesh.step(&tokens, &sums);
                cycle += 1;
            }
        }
        accumulators.timing(tile).end = cycle;
    }
    Ok(accumulators.into_outcome(cycle))
}
