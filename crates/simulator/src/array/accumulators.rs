//! The memory below a weight-stationary array: adds passes and blocks of K, or hands float sums back.

use super::arithmetic::{Datapath, Passes, Precision};
use super::{ArrayError, Outcome, Plan, TileTiming};

/// Sum register content of a precision's weight-stationary PE.
type ArraySum<P> = <<P as Precision>::Streaming as Datapath>::Sum;

/// Accumulator blocks, and where the next row out of the array belongs: rows arrive in the order they
/// went in, so a counter is enough.
pub(super) struct Accumulators<'p, 'a, P: Precision> {
    plan: &'p Plan<'a, P>,
    columns: usize,
    blocks: Vec<Vec<P::Sum>>,
    timings: Vec<TileTiming>,
    /// Times each tile comes through.
    streams: usize,
    /// Sums start from the accumulators at the top of the array instead of being added below it.
    hands_on: bool,
    tile: usize,
    stream: usize,
    row: usize,
}

impl<'p, 'a, P: Precision> Accumulators<'p, 'a, P> {
    pub(super) fn new(plan: &'p Plan<'a, P>, columns: usize) -> Self {
        Self {
            plan,
            columns,
            blocks: plan.zeros(columns),
            timings: vec![TileTiming::default(); plan.steps.len()],
            streams: plan.precision.passes().streams() as usize,
            hands_on: matches!(plan.precision.passes(), Passes::Phases(_)),
            tile: 0,
            stream: 0,
            row: 0,
        }
    }

    /// The sums row `row` of `tile` starts from at the top of the array.
    ///
    /// # Errors
    /// [`ArrayError::Turnaround`] if they depend on a row that is still in the array.
    pub(super) fn start(&self, tile: usize, row: usize, sums: &mut [ArraySum<P>]) -> Result<(), ArrayError> {
        let step = &self.plan.steps[tile];
        if step.tile.accumulate && self.hands_on && (self.tile, self.row) <= (tile - 1, row) {
            return Err(ArrayError::Turnaround { tile, row });
        }
        let entry = &self.blocks[step.block][row * self.columns..][..self.columns];
        for (sum, accumulator) in sums.iter_mut().zip(entry) {
            *sum = self.plan.precision.start(*accumulator);
        }
        Ok(())
    }

    /// Takes the next row that leaves the array, readable in `cycle`.
    ///
    /// # Errors
    /// [`ArrayError::Overflow`] if a sum is too wide after the last pass of its tile.
    pub(super) fn collect(&mut self, sums: &[ArraySum<P>], cycle: u64) -> Result<(), ArrayError> {
        let precision = self.plan.precision;
        let (tile, row) = (self.tile, self.row);
        let step = &self.plan.steps[tile];
        let last_pass = self.stream + 1 == self.streams;
        let entry = &mut self.blocks[step.block][row * self.columns..][..self.columns];
        for (column, (accumulator, sum)) in entry.iter_mut().zip(sums).enumerate() {
            *accumulator = precision.collect(*accumulator, *sum, self.stream);
            if last_pass && !precision.fits(*accumulator) {
                return Err(ArrayError::Overflow { tile, row, column });
            }
        }
        if last_pass && row == 0 {
            self.timings[tile].first_row = cycle;
        }
        self.row += 1;
        if self.row == step.extent.m {
            self.timings[tile].last_row = cycle;
            (self.row, self.stream) = (0, self.stream + 1);
        }
        if self.stream == self.streams {
            (self.stream, self.tile) = (0, self.tile + 1);
        }
        Ok(())
    }

    /// Notes the cycles in which a tile's first row was offered and the array was free again.
    pub(super) fn timing(&mut self, tile: usize) -> &mut TileTiming {
        &mut self.timings[tile]
    }

    pub(super) fn into_outcome(self, cycles: u64) -> Outcome<P::Sum> {
        Outcome { outputs: self.blocks, cycles, tiles: self.timings }
    }
}
