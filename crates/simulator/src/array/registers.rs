//! The definition: all registers of the array, advanced one cycle at a time.
//!
//! One cycle reads the registers as the previous cycle left them and writes each once. Where the code
//! updates in place it goes from the bottom right PE to the top left one, against the flow, so a PE
//! still sees what its neighbours held. Every cycle costs time in proportion to R·C.

use super::arithmetic::Precision;
use super::{ArrayError, ArraySpec, Dataflow, Outcome, Plan, Tile};
use super::{double_buffered, output_stationary, single_buffered};

/// Runs the tiles, in order, through an array that starts empty.
///
/// Values and cycles equal [`super::closed::run`]. Integer sums are exact; float sums are f32, in the
/// order k = 0, 1, .. of each tile and tiles in the order given, product and sum rounded separately.
///
/// # Errors
/// [`ArrayError`]: malformed tiles or operands; a sum too wide for the accumulator; a float sum needed
/// before it is delivered.
pub fn run<P: Precision>(
    spec: &ArraySpec,
    precision: P,
    tiles: &[Tile<'_, P::Operand>],
) -> Result<Outcome<P::Sum>, ArrayError> {
    let plan = Plan::new(spec, precision, tiles)?;
    match spec.dataflow {
        Dataflow::DoubleBuffered => double_buffered::run(spec, &plan),
        Dataflow::SingleBuffered { pipeline } => single_buffered::run(spec, pipeline, &plan),
        Dataflow::OutputStationary => output_stationary::run(spec, &plan),
    }
}

/// The meaning of a token on its way through the array.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Slot {
    /// Nothing: the array is loading or running empty.
    #[default]
    Empty,
    /// Part of a tile but without a row; or a row whose product is not whole yet.
    Bubble,
    /// A row with its last byte product.
    Row,
}
