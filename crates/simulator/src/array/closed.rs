//! The same values and cycles without registers: a plain matrix product and the timing laws.

use super::arithmetic::{Passes, Precision};
use super::{ArrayError, ArraySpec, Dataflow, Extent, Outcome, Plan, Tile, TileTiming};

/// [`super::registers::run`] in closed form: equal in values, cycles and errors.
///
/// # Errors
/// As [`super::registers::run`].
pub fn run<P: Precision>(
    spec: &ArraySpec,
    precision: P,
    tiles: &[Tile<'_, P::Operand>],
) -> Result<Outcome<P::Sum>, ArrayError> {
    let plan = Plan::new(spec, precision, tiles)?;
    let extents = || plan.steps.iter().map(|step| step.extent);
    for (tile, step) in plan.steps.iter().enumerate() {
        if step.tile.accumulate && early(spec, precision.passes(), step.extent.m) {
            return Err(ArrayError::Turnaround { tile, row: 0 });
        }
    }
    let mut outputs = plan.zeros(spec.columns);
    for (tile, step) in plan.steps.iter().enumerate() {
        let block = &mut outputs[step.block];
        matmul(precision, step.extent, step.tile, block);
        if let Some(at) = block.iter().position(|sum| !precision.fits(*sum)) {
            return Err(ArrayError::Overflow { tile, row: at / spec.columns, column: at % spec.columns });
        }
    }
    Ok(Outcome {
        outputs,
        cycles: cycles(spec, precision.passes(), extents()),
        tiles: timings(spec, precision.passes(), extents()).collect(),
    })
}

/// `block[m, C] += rows[m, k] · weights[k, C]`, k ascending, in the accumulator's arithmetic.
///
/// The tile must have the extent. Complexity m·k·C.
fn matmul<P: Precision>(precision: P, extent: Extent, tile: &Tile<'_, P::Operand>, block: &mut [P::Sum]) {
    let columns = block.len() / extent.m;
    for (row, sums) in tile.rows.chunks(extent.k).zip(block.chunks_mut(columns)) {
        for (activation, weights) in row.iter().zip(tile.weights.chunks(columns)) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = precision.mac(*sum, *activation, *weight);
            }
        }
    }
}

/// Whether a float tile of `m` rows is too short for the next block of K to follow at once: its sums
/// are `R + C + 1` cycles under way and one more in the accumulators.
///
/// Always false for integers and for the other dataflows; never true for a square array.
#[must_use]
pub fn early(spec: &ArraySpec, passes: Passes, m: usize) -> bool {
    spec.dataflow == Dataflow::DoubleBuffered
        && matches!(passes, Passes::Phases(_))
        && slots(spec, passes, m) < spec.latency() + 1
}

/// Cycles from the first operand to the last output slot, both counted; 0 without tiles.
#[must_use]
pub fn cycles(spec: &ArraySpec, passes: Passes, tiles: impl IntoIterator<Item = Extent>) -> u64 {
    match timings(spec, passes, tiles).last() {
        None => 0,
        Some(last) => last.end + if spec.dataflow == Dataflow::DoubleBuffered { spec.latency() } else { 0 },
    }
}

/// The timing of each of the tiles, run one after the other from an empty array.
pub fn timings(
    spec: &ArraySpec,
    passes: Passes,
    tiles: impl IntoIterator<Item = Extent>,
) -> impl Iterator<Item = TileTiming> {
    let mut at = first(spec);
    tiles.into_iter().map(move |extent| {
        let timing = timing(spec, passes, extent, at);
        at = timing.end;
        timing
    })
}

/// Where [`timing`] of the first tile begins: after R weight rows when double-buffered, else at once.
#[must_use]
pub fn first(spec: &ArraySpec) -> u64 {
    if spec.dataflow == Dataflow::DoubleBuffered { spec.rows as u64 } else { 0 }
}

/// Cycles the feeder spends on a double-buffered tile of `m` rows: `passes * max(m, R)`.
#[must_use]
pub fn slots(spec: &ArraySpec, passes: Passes, m: usize) -> u64 {
    passes.count() * m.max(spec.rows) as u64
}

/// The timing of one tile that begins in cycle `at`, the [`TileTiming::end`] of the tile before.
#[must_use]
pub fn timing(spec: &ArraySpec, passes: Passes, extent: Extent, at: u64) -> TileTiming {
    let (rows, columns) = (spec.rows as u64, spec.columns as u64);
    let (m, k) = (extent.m as u64, extent.k as u64);
    // The passes of an operand are streams of the whole tile (integers) or cycles of a slot (floats).
    let (streams, phases) = (passes.streams(), passes.phases());
    let (start, first_row, end) = match spec.dataflow {
        Dataflow::DoubleBuffered => {
            let end = at + slots(spec, passes, extent.m);
            let last_stream = end - (end - at) / streams;
            (at, last_stream + phases - 1 + spec.latency(), end)
        }
        Dataflow::SingleBuffered { pipeline } => {
            let hop = pipeline as u64 + 1;
            let pass = rows + (rows - 1) * hop + (hop + 1) + (phases * m - 1) + (columns - 1);
            let end = at + streams * pass;
            (at + rows, end - 1 - phases * (m - 1), end)
        }
        Dataflow::OutputStationary => {
            let whole = passes.count() * k;
            (at, at + whole + columns - 2 + 4, at + whole + rows + columns - 2 + 4)
        }
    };
    let per_row = if spec.dataflow == Dataflow::OutputStationary { 1 } else { phases };
    TileTiming { start, first_row, last_row: first_row + per_row * (m - 1), end }
}
