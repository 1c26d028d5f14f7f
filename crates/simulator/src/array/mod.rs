//! The systolic array: every register of it, one step per cycle, and the closed form that equals it.
//!
//! [`registers`] is the definition. It holds the operand, weight, sum and control registers of all
//! processing elements (PEs), and its cycle counts are counted, never computed. [`closed`] says the
//! same in a few formulas and a plain matrix product, and is what a simulator of whole programs uses.
//! [`folds`] is the count of an array that overlaps nothing, for comparison with the literature.
//!
//! The array computes `rows[m,k] · weights[k,c]` for a list of [`Tile`]s. Weight-stationary, a tile's
//! `k` is the height R of the array and `m` is as long as one likes; output-stationary, `m` is at most
//! R and `k` is as long as one likes. Tiles along K follow each other with `accumulate` set.
//!
//! # Double-buffered, weight-stationary
//!
//! ```text
//!            weight row, start sums, control: one word per column, column c delayed by c cycles
//!                          |              |
//!  activation  +-------+   v   +------+   v   +------+
//!  row  ------>| input |--0--->|PE 0,0|------>|PE 0,1|      each PE: activation register (to the right),
//!  (row r      | latch |       +------+       +------+      two weight registers and the chain register
//!   delayed by |       |          |  sum         |          of the one being loaded, sum and control
//!   r cycles)  |       |--1--->+------+       +------+      registers (downwards)
//!              +-------+       |PE 1,0|------>|PE 1,1|
//!                              +------+       +------+
//!                                 | delay C-1-c  |
//!                             [     output register     ] --> accumulators
//! ```
//!
//! What enters the latch in one cycle is a *slot*: an activation row or a bubble, perhaps a weight row
//! for the register that is not computing, the sums to start from, and the control bits. PE (r, c) sees
//! slot s in cycle s + 1 + r + c, so all parts of a slot meet as one diagonal wavefront. The control
//! bit `active` says which weight register computes: a new tile toggles it, and the flip runs through
//! the array with the first row of the tile, so no PE ever waits for another one to be ready (as in
//! the mesh of Gemmini, Genc et al., DAC 2021). From the first slot of a tile on, the
//! other register receives R weight rows, last row first, one per slot. A tile therefore holds
//! the array for `max(m, R)` slots, filled up with bubbles; **this includes the last tile**, behind
//! which the chain shifts in R rows of zeros. With S slots in all, the last slot leaves the output
//! register R + C + 1 cycles after it was offered: one latch, R + C - 1 PEs, the output register.
//!
//! ```text
//! cycles = R + sum_t max(m_t, R) + (R + C + 1)        first weight row .. last output slot, both counted
//! ```
//!
//! Worked example, R = C = 2, weights `[1 2; 3 4]`, rows `[5 6; 7 8]`, 2 + 2 + 5 = 9 cycles:
//!
//! ```text
//! cycle           0      1      2      3      4      5      6       7        8
//! offered       w 3 4  w 1 2  a 5 6  a 7 8
//! sum of PE 0,0                       5·1    7·1                                   computed in that cycle
//! sum of PE 1,0                            5+6·3  7+8·3
//! sum of PE 0,1                             5·2    7·2
//! sum of PE 1,1                                  10+6·4 14+8·4
//! output register                                              23 34    31 46
//! ```
//!
//! # Single-buffered, weight-stationary
//!
//! One weight register: R cycles of loading, then the rows, then the array runs empty before the next
//! load. A PE has `pipeline` = p stages and an output register, so a sum takes p + 1 cycles per row
//! and row r of the array is fed r·(p + 1) cycles later; columns are one cycle apart. There is neither
//! latch nor output register at the edges.
//!
//! ```text
//! cycles = sum_t ( R + (R-1)(p+1) + (p+2) + (m_t - 1) + (C-1) )                    p + 2 = 5 for p = 3
//! ```
//!
//! # Output-stationary
//!
//! Activation rows enter at the left, weights at the top, both skewed by one cycle per lane and both
//! moving on; every PE keeps one sum. A PE has four registers in a row: operands, product, sum,
//! result. The tile is complete when the last PE's result is, `K + R + C - 2 + 4` cycles after the
//! first operands came (always counted to row R, bubbles included). Presetting and reading the
//! results is not part of the law; several tiles follow each other without overlap.
//!
//! # Precisions
//!
//! The multiplier of a PE takes 9-bit signed operands: an 8-bit value minus its zero point. Wider ones
//! are cut into bytes, see [`Integer`] and [`Float`]; the number of byte products is the number of
//! *passes*. Weight-stationary integers go through the array once per pass, as a tile of
//! byte slices, and the accumulators below shift and add; this multiplies the number of streamed
//! tiles. A float product must be whole before it is rounded, so its passes are consecutive
//! cycles of one PE: every slot lasts `passes` cycles, which gives the double-buffered array the same
//! total. A float weight row enters whole, in one cycle before the first tile and in one slot behind
//! another. A float sum starts at the top of the array from what the accumulator holds, so the
//! stretches of K continue one running sum ([`closed::early`] says when a tile is too short for that).
//!
//! ```
//! use tpuflow_simulator::array::{ArraySpec, Dataflow, Integer, Tile, closed, registers};
//!
//! let spec = ArraySpec { rows: 2, columns: 2, dataflow: Dataflow::DoubleBuffered };
//! let tiles = [Tile { weights: &[1, 2, 3, 4], rows: &[5, 6, 7, 8], accumulate: false }];
//! let outcome = registers::run(&spec, Integer::I8, &tiles)?;
//! assert_eq!(outcome.outputs, [[23, 34, 31, 46]]);
//! assert_eq!(outcome.cycles, 9);
//! assert_eq!(outcome, closed::run(&spec, Integer::I8, &tiles)?);
//! # Ok::<(), tpuflow_simulator::array::ArrayError>(())
//! ```

mod accumulators;
mod arithmetic;
pub mod closed;
mod double_buffered;
pub mod folds;
mod output_stationary;
pub mod registers;
mod single_buffered;
mod skew;

pub use arithmetic::{Float, Integer, Passes, Precision};

/// How operands and sums move through the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dataflow {
    /// Weight-stationary, two weight registers per PE: loading hides behind the previous tile.
    DoubleBuffered,
    /// Weight-stationary, one weight register per PE: load, stream and drain in turn.
    SingleBuffered {
        /// Pipeline stages of a PE before its output register; a sum takes `pipeline + 1` cycles per row.
        pipeline: usize,
    },
    /// Each PE keeps one output; activations and weights stream.
    OutputStationary,
}

/// Size and kind of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArraySpec {
    /// R: rows of PEs (K of a weight-stationary tile, M of an output-stationary one).
    pub rows: usize,
    /// C: columns of PEs (N of a tile).
    pub columns: usize,
    /// Which operand stays.
    pub dataflow: Dataflow,
}

impl ArraySpec {
    /// Most rows an array may have: the sums of 2^14 products of two 9-bit numbers fit 32 bits.
    pub const MAX_ROWS: usize = 1 << 14;

    /// Cycles from offering a slot at the edge to its row in the output register, `R + C + 1`,
    /// of the double-buffered array.
    #[must_use]
    pub fn latency(&self) -> u64 {
        (self.rows + self.columns + 1) as u64
    }
}

/// One product `rows[m,k] · weights[k,C]`, operands row-major, values minus their zero points.
///
/// Weight-stationary: `k` = R (pad weights and rows with zeros), any `m >= 1`. Output-stationary:
/// any `k >= 1`, `1 <= m <= R`. Columns beyond the layer's N are zeros.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a, T> {
    /// `[k, C]`.
    pub weights: &'a [T],
    /// `[m, k]`.
    pub rows: &'a [T],
    /// Adds to the block of the previous tile (the next stretch of K) instead of beginning a new one.
    pub accumulate: bool,
}

/// Extent of a tile: `m` activation rows of `k` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Activation rows.
    pub m: usize,
    /// Length of the sums; weight-stationary always R.
    pub k: usize,
}

/// When one tile used the array. All values are cycle numbers, the first operand's being 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TileTiming {
    /// The first activation row is offered (weight-stationary: the weights are in).
    pub start: u64,
    /// Row 0 of the result, all passes added, is readable.
    pub first_row: u64,
    /// Row m - 1 of the result is readable.
    pub last_row: u64,
    /// First cycle that is free for the next tile: for its first activation row when double-buffered,
    /// else for its first weight row (single-buffered) or operands (output-stationary).
    pub end: u64,
}

/// Values and cycles of a list of tiles.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome<S> {
    /// One `[m, C]` row-major block per tile without `accumulate`.
    pub outputs: Vec<Vec<S>>,
    /// Cycles from the first operand (weight row) to the last output slot, both counted; 0 without tiles.
    pub cycles: u64,
    /// One per tile.
    pub tiles: Vec<TileTiming>,
}

/// Why a list of tiles cannot run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ArrayError {
    /// The array has no PE, or more rows than its sums can hold.
    #[error("array of {rows} x {columns} PEs: both must be at least 1 and rows at most {}", ArraySpec::MAX_ROWS)]
    Size {
        /// Rows of the spec.
        rows: usize,
        /// Columns of the spec.
        columns: usize,
    },
    /// Operand lengths do not form a tile of this array.
    #[error("tile {tile}: {weights} weights and {rows} activations do not form a tile of the array")]
    Shape {
        /// Index of the tile.
        tile: usize,
        /// Elements of its weights.
        weights: usize,
        /// Elements of its rows.
        rows: usize,
    },
    /// `accumulate` without a previous tile of as many rows.
    #[error("tile {tile} accumulates but no previous tile has {m} rows")]
    Accumulate {
        /// Index of the tile.
        tile: usize,
        /// Its rows.
        m: usize,
    },
    /// An operand is not a value of the precision.
    #[error("tile {tile}: {operand} element {index} is no value of this precision")]
    Operand {
        /// Index of the tile.
        tile: usize,
        /// `weight` or `activation`.
        operand: &'static str,
        /// Its position.
        index: usize,
    },
    /// A float sum would be handed to the next block of K before it has left the array.
    #[error("tile {tile}: the float sum of row {row} is needed before the array has delivered it")]
    Turnaround {
        /// Index of the tile that needs it.
        tile: usize,
        /// Row of the tile.
        row: usize,
    },
    /// A sum does not fit the accumulator.
    #[error("tile {tile}, row {row}, column {column}: the sum exceeds the accumulator")]
    Overflow {
        /// Index of the tile after which the sum is too large.
        tile: usize,
        /// Row of the tile.
        row: usize,
        /// Column of the array.
        column: usize,
    },
}

/// Tiles proven to fit array and precision, with the block each one adds to.
struct Plan<'a, P: Precision> {
    precision: P,
    steps: Vec<Step<'a, P>>,
    /// Rows of each block.
    blocks: Vec<usize>,
}

/// A checked tile.
struct Step<'a, P: Precision> {
    tile: &'a Tile<'a, P::Operand>,
    extent: Extent,
    block: usize,
}

impl<'a, P: Precision> Plan<'a, P> {
    fn new(spec: &ArraySpec, precision: P, tiles: &'a [Tile<'a, P::Operand>]) -> Result<Self, ArrayError> {
        if spec.rows == 0 || spec.columns == 0 || spec.rows > ArraySpec::MAX_ROWS {
            return Err(ArrayError::Size { rows: spec.rows, columns: spec.columns });
        }
        let mut plan = Self { precision, steps: Vec::with_capacity(tiles.len()), blocks: Vec::new() };
        for (index, tile) in tiles.iter().enumerate() {
            let extent = extent(spec, index, tile)?;
            let m = extent.m;
            if !tile.accumulate {
                plan.blocks.push(m);
            } else if plan.blocks.last() != Some(&m) {
                return Err(ArrayError::Accumulate { tile: index, m });
            }
            for (operand, values, accepts) in [
                ("weight", tile.weights, P::accepts_weight as fn(P, P::Operand) -> bool),
                ("activation", tile.rows, P::accepts_activation),
            ] {
                if let Some(index_of) = values.iter().position(|&v| !accepts(precision, v)) {
                    return Err(ArrayError::Operand { tile: index, operand, index: index_of });
                }
            }
            plan.steps.push(Step { tile, extent, block: plan.blocks.len() - 1 });
        }
        Ok(plan)
    }

    /// Fresh accumulators, one `[m, C]` block each.
    fn zeros(&self, columns: usize) -> Vec<Vec<P::Sum>> {
        self.blocks.iter().map(|m| vec![P::Sum::default(); m * columns]).collect()
    }
}

fn extent<T>(spec: &ArraySpec, index: usize, tile: &Tile<'_, T>) -> Result<Extent, ArrayError> {
    let k = tile.weights.len() / spec.columns;
    let m = tile.rows.len().checked_div(k).unwrap_or(0);
    let whole = tile.weights.len() == k * spec.columns && tile.rows.len() == m * k && m > 0;
    let fits = match spec.dataflow {
        Dataflow::DoubleBuffered | Dataflow::SingleBuffered { .. } => k == spec.rows,
        Dataflow::OutputStationary => m <= spec.rows,
    };
    if whole && fits {
        Ok(Extent { m, k })
    } else {
        Err(ArrayError::Shape { tile: index, weights: tile.weights.len(), rows: tile.rows.len() })
    }
}
