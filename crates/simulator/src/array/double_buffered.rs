//! Registers of the double-buffered weight-stationary array; picture and example in [`super`].

use super::accumulators::Accumulators;
use super::arithmetic::{Datapath, Precision};
use super::registers::Slot;
use super::skew::Skew;
use super::{ArrayError, ArraySpec, Outcome, Plan};

/// Control bits that travel down a column with the wavefront, in one byte: a row of them is compared at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Control(u8);

impl Control {
    /// Byte product of this cycle, of at most 16.
    const PHASE: u8 = 0x0f;
    const SECOND: u8 = 0x10;
    const LOAD: u8 = 0x20;
    /// The bits a PE obeys; the slot only rides along.
    const COMMANDS: u8 = Self::PHASE | Self::SECOND | Self::LOAD;
    const BUBBLE: u8 = 0x40;
    const ROW: u8 = 0x80;

    fn new(second: bool, load: bool, phase: u8, slot: Slot) -> Self {
        let slot = match slot {
            Slot::Empty => 0,
            Slot::Bubble => Self::BUBBLE,
            Slot::Row => Self::ROW,
        };
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        Self(phase & Self::PHASE | flag(second, Self::SECOND) | flag(load, Self::LOAD) | slot)
    }

    /// Which weight register computes; the other one loads.
    fn second(self) -> bool {
        self.0 & Self::SECOND != 0
    }

    /// The loading register takes what comes from above.
    fn load(self) -> bool {
        self.0 & Self::LOAD != 0
    }

    fn phase(self) -> u8 {
        self.0 & Self::PHASE
    }

    fn slot(self) -> Slot {
        match self.0 & !Self::COMMANDS {
            Self::BUBBLE => Slot::Bubble,
            Self::ROW => Slot::Row,
            _ => Slot::Empty,
        }
    }

    fn differs(self, other: Self) -> bool {
        (self.0 ^ other.0) & Self::COMMANDS != 0
    }

    /// How many from the first of a row on command the same, found sixteen at a time.
    fn run(row: &[Self]) -> usize {
        let first = row[0];
        let (blocks, _) = row.as_chunks::<16>();
        let alike = |block: &&[Self; 16]| {
            block.iter().fold(0, |bits, control| bits | (control.0 ^ first.0)) & Self::COMMANDS == 0
        };
        let whole = 16 * blocks.iter().take_while(alike).count();
        whole + row[whole..].iter().take_while(|control| !control.differs(first)).count()
    }
}

/// The values at the edge in one cycle, and the latch behind the edge.
#[derive(Clone)]
struct Port<D: Datapath> {
    activations: Vec<D::Word>,
    weights: Vec<D::Word>,
    sums: Vec<D::Sum>,
    control: Control,
}

impl<D: Datapath> Port<D> {
    fn new(spec: &ArraySpec) -> Self {
        Self {
            activations: vec![D::Word::default(); spec.rows],
            weights: vec![D::Word::default(); spec.columns],
            sums: vec![D::Sum::default(); spec.columns],
            control: Control::default(),
        }
    }
}

/// One row of PEs, one element per column.
#[derive(Clone)]
struct PeRow<D: Datapath> {
    activation: Vec<D::Word>,
    first: Vec<D::Word>,
    second: Vec<D::Word>,
    /// The former value of the loading register, for the row below.
    chain: Vec<D::Word>,
    product: Vec<D::Product>,
    sum: Vec<D::Sum>,
    control: Vec<Control>,
}

impl<D: Datapath> PeRow<D> {
    fn new(columns: usize) -> Self {
        Self {
            activation: vec![D::Word::default(); columns],
            first: vec![D::Word::default(); columns],
            second: vec![D::Word::default(); columns],
            chain: vec![D::Word::default(); columns],
            product: vec![D::Product::default(); columns],
            sum: vec![D::Sum::default(); columns],
            control: vec![Control::default(); columns],
        }
    }

    /// One cycle. `chain`, `sum`, `control` are the registers above, as the last cycle left them.
    ///
    /// Goes by runs of PEs under equal control, mostly the whole row, so that the inner loops have no decision to make.
    fn step(&mut self, datapath: D, activation: D::Word, chain: &[D::Word], sum: &[D::Sum], control: &[Control]) {
        let columns = self.activation.len();
        self.activation.copy_within(..columns - 1, 1);
        self.activation[0] = activation;
        self.control.copy_from_slice(control);
        let mut start = 0;
        while start < columns {
            let end = start + Control::run(&control[start..]);
            self.step_run(datapath, start..end, control[start], &chain[start..], &sum[start..]);
            start = end;
        }
    }

    /// The PEs `run` of the row under one control. `chain`, `sum`: what is above the first of them and those behind it.
    fn step_run(
        &mut self,
        datapath: D,
        run: std::ops::Range<usize>,
        control: Control,
        chain: &[D::Word],
        sum: &[D::Sum],
    ) {
        let count = run.len();
        let (first, second) = (&mut self.first[run.clone()], &mut self.second[run.clone()]);
        let (computing, loading) = if control.second() { (second, first) } else { (first, second) };
        let (activation, own) = (&self.activation[run.clone()], &mut self.sum[run.clone()]);
        let (above, computing) = (&sum[..count], &computing[..count]);
        if datapath.phases() == 1 {
            // The product goes into the sum in the cycle it is made in: nobody sees its register.
            for (((own, above), activation), weight) in own.iter_mut().zip(above).zip(activation).zip(computing) {
                *own = datapath.add(*above, datapath.multiply(D::Product::default(), *activation, *weight, 0));
            }
        } else {
            let product = &mut self.product[run.clone()];
            for ((product, activation), weight) in product.iter_mut().zip(activation).zip(computing) {
                *product = datapath.multiply(*product, *activation, *weight, control.phase());
            }
            if control.phase() + 1 == datapath.phases() {
                for ((own, above), product) in own.iter_mut().zip(above).zip(product) {
                    *own = datapath.add(*above, *product);
                }
            }
        }
        if control.load() {
            self.chain[run].copy_from_slice(loading);
            loading.copy_from_slice(&chain[..count]);
        }
    }
}

/// All registers of the array, and the delay triangles at its edges.
struct Mesh<D: Datapath> {
    datapath: D,
    latch: Port<D>,
    activations: Skew<D::Word>,
    weights: Skew<D::Word>,
    sums: Skew<D::Sum>,
    controls: Skew<Control>,
    rows: Vec<PeRow<D>>,
    deskew: Skew<D::Sum>,
    output: Vec<D::Sum>,
    output_slot: Slot,
}

impl<D: Datapath> Mesh<D> {
    fn new(spec: &ArraySpec, datapath: D) -> Self {
        Self {
            datapath,
            latch: Port::new(spec),
            activations: Skew::rising(spec.rows, 1),
            weights: Skew::rising(spec.columns, 1),
            sums: Skew::rising(spec.columns, 1),
            controls: Skew::rising(spec.columns, 1),
            rows: vec![PeRow::new(spec.columns); spec.rows],
            deskew: Skew::falling(spec.columns),
            output: vec![D::Sum::default(); spec.columns],
            output_slot: Slot::Empty,
        }
    }

    /// One cycle, from the output back to the edge.
    fn step(&mut self, port: &Port<D>) {
        let bottom = &self.rows[self.rows.len() - 1];
        self.output.copy_from_slice(self.deskew.push(bottom.sum.iter().copied()));
        self.output_slot = bottom.control.last().map_or(Slot::Empty, |control| control.slot());

        let latch = &self.latch;
        let left = self.activations.push(latch.activations.iter().copied());
        let weights = self.weights.push(latch.weights.iter().copied());
        let sums = self.sums.push(latch.sums.iter().copied());
        let controls = self.controls.push(std::iter::repeat_n(latch.control, latch.sums.len()));
        for r in (1..self.rows.len()).rev() {
            let (above, row) = self.rows.split_at_mut(r);
            let above = &above[r - 1];
            row[0].step(self.datapath, left[r], &above.chain, &above.sum, &above.control);
        }
        self.rows[0].step(self.datapath, left[0], weights, sums, controls);

        self.latch.clone_from(port);
    }
}

/// Decides what is offered in each cycle. It streams one pass while loading the next one's weights.
struct Feeder<'p, 'a, P: Precision> {
    plan: &'p Plan<'a, P>,
    rows: usize,
    columns: usize,
    streams: usize,
    /// Pass being streamed (tile-major); before the first one `None`: only weights move.
    pass: Option<usize>,
    row: usize,
    phase: u8,
    /// Rows of the next pass's weights that are in the array.
    loaded: usize,
    second: bool,
}

impl<'p, 'a, P: Precision> Feeder<'p, 'a, P> {
    fn new(spec: &ArraySpec, plan: &'p Plan<'a, P>) -> Self {
        let (rows, columns) = (spec.rows, spec.columns);
        let streams = plan.precision.passes().streams() as usize;
        Self { plan, rows, columns, streams, pass: None, row: 0, phase: 0, loaded: 0, second: false }
    }

    fn passes(&self) -> usize {
        self.plan.steps.len() * self.streams
    }

    /// Tile and stream of a pass.
    fn locate(&self, pass: usize) -> (usize, usize) {
        (pass / self.streams, pass % self.streams)
    }

    /// Fills the port for `cycle`; an empty slot when all passes are through.
    fn offer(
        &mut self,
        cycle: u64,
        port: &mut Port<P::Streaming>,
        accumulators: &mut Accumulators<'p, 'a, P>,
    ) -> Result<(), ArrayError> {
        self.advance(cycle, accumulators);
        let precision = self.plan.precision;
        let last_phase = self.phase + 1 == precision.streaming().phases();
        let (second, phase, mut slot) = (self.second, self.phase, Slot::Empty);
        port.control = Control::new(second, false, phase, slot);
        port.activations.fill(Default::default());
        let next = self.pass.map_or(0, |pass| pass + 1);
        if next > self.passes() {
            return Ok(());
        }

        let load = self.loaded < self.rows && (last_phase || self.pass.is_none());
        if load {
            self.offer_weights(next, port);
        }
        if let Some(pass) = self.pass {
            let (tile, stream) = self.locate(pass);
            let step = &self.plan.steps[tile];
            slot = Slot::Bubble;
            if self.row < step.extent.m {
                let row = &step.tile.rows[self.row * self.rows..][..self.rows];
                for (word, value) in port.activations.iter_mut().zip(row) {
                    *word = precision.activation_word(*value, stream);
                }
                if last_phase {
                    slot = Slot::Row;
                    accumulators.start(tile, self.row, &mut port.sums)?;
                }
            }
            self.phase = if last_phase { 0 } else { self.phase + 1 };
            self.row += usize::from(last_phase);
        }
        port.control = Control::new(second, load, phase, slot);
        Ok(())
    }

    /// The next weight row of pass `next`, last row first; zeros behind the last pass.
    fn offer_weights(&mut self, next: usize, port: &mut Port<P::Streaming>) {
        self.loaded += 1;
        if next == self.passes() {
            return port.weights.fill(Default::default());
        }
        let (tile, stream) = self.locate(next);
        let row = &self.plan.steps[tile].tile.weights[(self.rows - self.loaded) * self.columns..][..self.columns];
        for (word, value) in port.weights.iter_mut().zip(row) {
            *word = self.plan.precision.weight_word(*value, stream);
        }
    }

    /// Goes on to the next pass once the rows of this one are out and the next weights are in.
    fn advance(&mut self, cycle: u64, accumulators: &mut Accumulators<'p, 'a, P>) {
        let rows_left = match self.pass {
            None => false,
            Some(pass) if pass == self.passes() => return,
            Some(pass) => self.row < self.plan.steps[self.locate(pass).0].extent.m,
        };
        if rows_left || self.loaded < self.rows {
            return;
        }
        let pass = self.pass.map_or(0, |pass| pass + 1);
        (self.pass, self.row, self.loaded, self.second) = (Some(pass), 0, 0, !self.second);
        let (tile, stream) = self.locate(pass);
        if stream == 0 {
            if tile > 0 {
                accumulators.timing(tile - 1).end = cycle;
            }
            if pass < self.passes() {
                accumulators.timing(tile).start = cycle;
            }
        }
    }
}

/// Steps the array until the last slot is in the output register.
pub(super) fn run<P: Precision>(spec: &ArraySpec, plan: &Plan<'_, P>) -> Result<Outcome<P::Sum>, ArrayError> {
    let mut accumulators = Accumulators::new(plan, spec.columns);
    if plan.steps.is_empty() {
        return Ok(accumulators.into_outcome(0));
    }
    let mut mesh = Mesh::new(spec, plan.precision.streaming());
    let mut feeder = Feeder::new(spec, plan);
    let mut port = Port::new(spec);
    // Slots offered and not yet in the output register.
    let mut under_way = 0u64;
    for cycle in 0.. {
        feeder.offer(cycle, &mut port, &mut accumulators)?;
        under_way += u64::from(port.control.slot() != Slot::Empty);
        if mesh.output_slot != Slot::Empty {
            under_way -= 1;
        }
        if mesh.output_slot == Slot::Row {
            accumulators.collect(&mesh.output, cycle)?;
        }
        if under_way == 0 && feeder.pass == Some(feeder.passes()) {
            return Ok(accumulators.into_outcome(cycle + 1));
        }
        mesh.step(&port);
    }
    unreachable!("the feeder ends")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Dataflow, Integer, Tile};

    /// The worked example of the module documentation, register by register.
    #[test]
    fn two_by_two_example() {
        let spec = ArraySpec { rows: 2, columns: 2, dataflow: Dataflow::DoubleBuffered };
        let tiles = [Tile { weights: &[1, 2, 3, 4], rows: &[5, 6, 7, 8], accumulate: false }];
        let plan = Plan::new(&spec, Integer::I8, &tiles).expect("tiles fit");
        let (mut mesh, mut feeder) = (Mesh::new(&spec, Integer::I8.streaming()), Feeder::new(&spec, &plan));
        let (mut port, mut accumulators) = (Port::new(&spec), Accumulators::new(&plan, 2));
        let mut sums = Vec::new();
        let mut outputs = Vec::new();
        for cycle in 0..9 {
            feeder.offer(cycle, &mut port, &mut accumulators).expect("integers never wait");
            if mesh.output_slot != Slot::Empty {
                outputs.push((cycle, mesh.output.clone()));
            }
            mesh.step(&port);
            sums.push([mesh.rows[0].sum[0], mesh.rows[1].sum[0], mesh.rows[0].sum[1], mesh.rows[1].sum[1]]);
        }
        assert_eq!(sums[3], [5, 0, 0, 0]);
        assert_eq!(sums[4], [7, 5 + 6 * 3, 10, 0]);
        assert_eq!(sums[5], [0, 7 + 8 * 3, 14, 10 + 6 * 4]);
        assert_eq!(sums[6], [0, 0, 0, 14 + 8 * 4]);
        assert_eq!(outputs, [(7, vec![23, 34]), (8, vec![31, 46])]);
    }

    /// The flip reaches PE (r, c) r + c cycles after PE (0, 0), together with the tile's first row.
    #[test]
    fn the_flip_travels_with_the_wavefront() {
        let spec = ArraySpec { rows: 3, columns: 4, dataflow: Dataflow::DoubleBuffered };
        let (weights, rows) = ([1; 12], [1; 9]);
        let tiles = [Tile { weights: &weights, rows: &rows, accumulate: false }; 2];
        let plan = Plan::new(&spec, Integer::I8, &tiles).expect("tiles fit");
        let (mut mesh, mut feeder) = (Mesh::new(&spec, Integer::I8.streaming()), Feeder::new(&spec, &plan));
        let (mut port, mut accumulators) = (Port::new(&spec), Accumulators::new(&plan, 4));
        let mut flips = Vec::new();
        for cycle in 0..20 {
            let before: Vec<bool> = mesh.rows.iter().flat_map(|row| row.control.iter().map(|c| c.second())).collect();
            feeder.offer(cycle, &mut port, &mut accumulators).expect("integers never wait");
            mesh.step(&port);
            let after = mesh.rows.iter().flat_map(|row| row.control.iter().map(|c| c.second()));
            for (pe, (before, after)) in before.iter().zip(after).enumerate() {
                if *before != after {
                    flips.push((cycle as usize, pe / 4, pe % 4));
                }
            }
        }
        // Tiles start in cycles 3 and 6, a slot later the idle array flips once more.
        for start in [3, 6, 9] {
            for (r, c) in (0..12).map(|pe| (pe / 4, pe % 4)) {
                assert!(flips.contains(&(start + 1 + r + c, r, c)), "start {start} row {r} column {c}");
            }
        }
        assert_eq!(flips.len(), 36);
    }
}
