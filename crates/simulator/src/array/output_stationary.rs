//! Registers of the output-stationary array: both operands move, sums stay.
//!
//! A PE is four registers deep: operands (which are also what its neighbours receive next), product,
//! sum, result. The result register is written once, with the last byte product of the last k.

use super::arithmetic::{Datapath, Precision};
use super::skew::Skew;
use super::{ArrayError, ArraySpec, Outcome, Plan, Step, TileTiming};

/// Control bits that travel with an operand.
#[derive(Debug, Clone, Copy, Default)]
struct Control {
    /// There is a byte product to add in this cycle.
    valid: bool,
    /// Byte product of this cycle.
    phase: u8,
    /// The last byte product of the last k.
    last: bool,
}

/// A value that moves: an operand, and control with the activations.
#[derive(Debug, Clone, Copy, Default)]
struct Token<W> {
    word: W,
    control: Control,
}

#[derive(Clone, Copy)]
struct Pe<D: Datapath> {
    activation: Token<D::Word>,
    weight: D::Word,
    product: D::Product,
    product_control: Control,
    sum: D::Sum,
    sum_control: Control,
    result: Option<D::Sum>,
}

impl<D: Datapath> Pe<D> {
    fn new() -> Self {
        Self {
            activation: Token::default(),
            weight: D::Word::default(),
            product: D::Product::default(),
            product_control: Control::default(),
            sum: D::Sum::default(),
            sum_control: Control::default(),
            result: None,
        }
    }

    /// One cycle, from the result back to the operands.
    fn step(&mut self, datapath: D, activation: Token<D::Word>, weight: D::Word) {
        if self.sum_control.last {
            self.result = Some(self.sum);
        }
        if self.product_control.valid && self.product_control.phase + 1 == datapath.phases() {
            self.sum = datapath.add(self.sum, self.product);
        }
        self.sum_control = self.product_control;
        let control = self.activation.control;
        if control.valid {
            self.product = datapath.multiply(self.product, self.activation.word, self.weight, control.phase);
        }
        self.product_control = control;
        (self.activation, self.weight) = (activation, weight);
    }
}

struct Mesh<D: Datapath> {
    datapath: D,
    columns: usize,
    pes: Vec<Pe<D>>,
    activations: Skew<Token<D::Word>>,
    weights: Skew<D::Word>,
}

impl<D: Datapath> Mesh<D> {
    fn step(&mut self, activations: impl Iterator<Item = Token<D::Word>>, weights: impl Iterator<Item = D::Word>) {
        let left = self.activations.push(activations);
        let top = self.weights.push(weights);
        for r in (0..left.len()).rev() {
            for c in (0..self.columns).rev() {
                let pe = r * self.columns + c;
                let activation = if c == 0 { left[r] } else { self.pes[pe - 1].activation };
                let weight = if r == 0 { top[c] } else { self.pes[pe - self.columns].weight };
                self.pes[pe].step(self.datapath, activation, weight);
            }
        }
    }
}

/// Steps the array through all tiles, each to its last result.
pub(super) fn run<P: Precision>(spec: &ArraySpec, plan: &Plan<'_, P>) -> Result<Outcome<P::Sum>, ArrayError> {
    let mut outputs = plan.zeros(spec.columns);
    let mut tiles = Vec::with_capacity(plan.steps.len());
    let mut cycle = 0;
    for (index, step) in plan.steps.iter().enumerate() {
        let block = &mut outputs[step.block];
        let timing = tile(spec, plan.precision, step, block, cycle);
        if let Some(at) = block.iter().position(|sum| !plan.precision.fits(*sum)) {
            return Err(ArrayError::Overflow { tile: index, row: at / spec.columns, column: at % spec.columns });
        }
        cycle = timing.end;
        tiles.push(timing);
    }
    Ok(Outcome { outputs, cycles: cycle, tiles })
}

/// One tile; its sums are preset from `block` and read back to it.
fn tile<P: Precision>(
    spec: &ArraySpec,
    precision: P,
    step: &Step<'_, P>,
    block: &mut [P::Sum],
    start: u64,
) -> TileTiming {
    let (datapath, k) = (precision.whole(), step.extent.k);
    let mut mesh = Mesh::<P::Whole> {
        datapath,
        columns: spec.columns,
        pes: vec![Pe::new(); spec.rows * spec.columns],
        activations: Skew::rising(spec.rows, 1),
        weights: Skew::rising(spec.columns, 1),
    };
    for (pe, sum) in mesh.pes.iter_mut().zip(block.iter()) {
        pe.sum = *sum;
    }
    let mut timing = TileTiming { start, ..TileTiming::default() };
    let (mut t, mut phase) = (0, 0);
    for cycle in start.. {
        let complete = |row: usize| mesh.pes[row * spec.columns..][..spec.columns].iter().all(|pe| pe.result.is_some());
        if timing.first_row == 0 && complete(0) {
            timing.first_row = cycle;
        }
        if timing.last_row == 0 && complete(step.extent.m - 1) {
            timing.last_row = cycle;
        }
        if complete(spec.rows - 1) {
            timing.end = cycle + 1;
            break;
        }
        let last_phase = phase + 1 == datapath.phases();
        let control = Control { valid: t < k, phase, last: last_phase && t + 1 == k };
        let activation =
            |row: usize| if t < k && row < step.extent.m { step.tile.rows[row * k + t] } else { Default::default() };
        let weight =
            |column: usize| if t < k { step.tile.weights[t * spec.columns + column] } else { Default::default() };
        mesh.step((0..spec.rows).map(|row| Token { word: activation(row), control }), (0..spec.columns).map(weight));
        (t, phase) = if last_phase { (t + 1, 0) } else { (t, phase + 1) };
    }
    for (sum, pe) in block.iter_mut().zip(&mesh.pes) {
        *sum = pe.result.unwrap_or_default();
    }
    timing
}
