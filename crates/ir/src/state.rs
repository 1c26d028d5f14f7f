//! State: an input whose rows stay in DDR from run to run, and the output whose rows a run appends to them.
//!
//! ```text
//!            rows before `position`       zero points           position         position + new
//! past  (input)   |r r r r r r r r r|. . . . . . . . . . . .|      |                  |
//! DDR             |r r r r r r r r r|n n n|                 |new|      `n` are stored at `position`
//!                 ^ start                                   ^ border   ^ end
//! ```
//!
//! Rows of the input (the past) are followed in DDR by space for those of the output, so the state has as many rows as both. The
//! addresses of a program are those of its last position, at which all rows of the past count and the output follows them. At
//! any other position a DMA line translates addresses of the state:
//!
//! | transfer | at a position |
//! |---|---|
//! | of the past | bytes from row `position` on are not loaded: the line writes the zero point in their place |
//! | of the output | addresses move down by `past - position` rows |
//!
//! What is loaded ends where what is stored begins, at every position: neither waits for the other.

use serde::{Deserialize, Serialize};

use crate::isa::{Direction, Transfer, Work};
use crate::program::Port;
use crate::{DType, Graph, Program, Space, View};

/// An input whose rows stay in DDR, and the output that is appended to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Which of the inputs.
    pub input: u32,
    /// Which of the outputs.
    pub output: u32,
    /// The axis along which rows follow each other; axes before it have one element.
    pub axis: u32,
}

/// Where a state lies in DDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRegion {
    /// Address space.
    pub space: u8,
    /// First byte of the past.
    pub start: u64,
    /// First byte of the output at the last position.
    pub border: u64,
    /// First byte behind the output there.
    pub end: u64,
    /// Bytes of a row.
    pub stride: u64,
    /// Rows of the past, the last position.
    pub past: u32,
    /// Rows a run appends.
    pub new: u32,
    /// An element of the value 0, little endian, repeated to four bytes.
    pub zero: [u8; 4],
}

/// A transfer at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionedTransfer {
    /// With the addresses of the position.
    pub transfer: Transfer,
    /// From which DDR address on a load writes zero points, and of which state.
    pub limit: Option<(u64, StateRegion)>,
}

impl PositionedTransfer {
    /// Bytes of a run that begins at a DDR address which are loaded or stored.
    #[must_use]
    pub fn transferred_bytes(&self, address: u64) -> u32 {
        let bytes = self.transfer.bytes;
        self.limit.map_or(bytes, |(limit, _)| limit.saturating_sub(address).min(bytes.into()) as u32)
    }

    /// Bytes loaded or stored by all runs.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        match self.limit {
            None => self.transfer.total_bytes(),
            Some(_) => self.transfer.runs().map(|(address, _)| u64::from(self.transferred_bytes(address))).sum(),
        }
    }
}

/// Whether a state of these shapes can be told apart into rows along an axis.
fn fits(past: &[usize], new: &[usize], axis: usize) -> bool {
    past.len() == new.len()
        && axis + 1 < past.len()
        && past[..axis].iter().all(|&extent| extent == 1)
        && past.iter().zip(new).enumerate().all(|(at, (a, b))| at == axis || a == b)
}

impl State {
    /// Whether it is one of a graph: ports of the same rows on the same grid.
    #[must_use]
    pub fn fits(&self, graph: &Graph) -> bool {
        let tensor =
            |ids: &[crate::TensorId], port: u32| ids.get(port as usize).and_then(|id| graph.tensors.get(id.index()));
        let Some((past, new)) = tensor(&graph.inputs, self.input).zip(tensor(&graph.outputs, self.output)) else {
            return false;
        };
        past.dtype == new.dtype && past.quant == new.quant && fits(&past.shape, &new.shape, self.axis as usize)
    }

    /// Bytes from row to row of the input or output of this shape at this view. A row is a pixel, of which words may hold several, or
    /// image rows, which begin on a word.
    #[must_use]
    pub fn stride(&self, shape: &[usize], view: &View, word: usize) -> Option<u64> {
        let axis = self.axis as usize;
        let rows = *shape.get(axis)? as u64;
        if axis + 2 == shape.len() {
            return Some(view.pixel_bytes.into());
        }
        let bytes = view.bytes(word);
        let stride = bytes.checked_div(rows)?;
        (bytes == stride * rows && stride.is_multiple_of(word as u64)).then_some(stride)
    }

    /// Where it lies, if its ports are those of a state that lie as one.
    #[must_use]
    pub fn region(&self, program: &Program) -> Option<StateRegion> {
        let (input, output) = (program.inputs.get(self.input as usize)?, program.outputs.get(self.output as usize)?);
        let (axis, word) = (self.axis as usize, program.machine.word());
        let in_one = input.parts.is_empty() && output.parts.is_empty();
        let alike = in_one && input.dtype == output.dtype && input.quant == output.quant;
        if !alike || !fits(&input.shape, &output.shape, axis) {
            return None;
        }
        let (past, new) = (u32::try_from(input.shape[axis]).ok()?, u32::try_from(output.shape[axis]).ok()?);
        let (Space::Ddr(space), Space::Ddr(other)) = (input.view.space, output.view.space) else { return None };
        let stride = self.stride(&input.shape, &input.view, word).filter(|&stride| stride > 0)?;
        let alike = self.stride(&output.shape, &output.view, word) == Some(stride);
        let border = input.view.address.checked_add(stride * u64::from(past))?;
        let placed = space == other && output.view.address == border;
        (alike && placed).then_some(StateRegion {
            space,
            start: input.view.address,
            border,
            end: border.checked_add(stride * u64::from(new))?,
            stride,
            past,
            new,
            zero: zero(input),
        })
    }
}

/// The element of the value 0 of a port, repeated.
fn zero(port: &Port) -> [u8; 4] {
    let code = port.quant.as_ref().map_or(0, |quant| quant.zero_point);
    match port.dtype {
        DType::I8 => [code as i8 as u8; 4],
        DType::I16 => {
            let [low, high] = (code as i16).to_le_bytes();
            [low, high, low, high]
        }
        _ => [0; 4],
    }
}

impl StateRegion {
    /// The byte at an address of it where all elements are 0.
    #[must_use]
    pub fn zero_byte(&self, address: u64) -> u8 {
        self.zero[((address - self.start) % 4) as usize]
    }

    /// Whether a stretch of an address space has bytes of it.
    #[must_use]
    pub fn overlaps(&self, space: u8, start: u64, end: u64) -> bool {
        space == self.space && start < self.end && self.start < end
    }

    /// Whether a transfer is one the region has a meaning for: loads inside the past, or anything inside the output.
    #[must_use]
    pub fn holds(&self, transfer: &Transfer) -> bool {
        let Some((last, _)) = transfer.last_run() else { return false };
        let (start, end) = (transfer.ddr_address, last + u64::from(transfer.bytes));
        let past = transfer.direction == Direction::Load && self.start <= start && end <= self.border;
        transfer.local_space == Space::Cache && (past || (self.border <= start && end <= self.end))
    }
}

impl Program {
    /// Where its states lie; `None` for those whose ports do not lie as a state.
    pub fn state_regions(&self) -> impl Iterator<Item = Option<StateRegion>> + '_ {
        self.states.iter().map(|state| state.region(self))
    }

    /// The last position a run may have: that of the shortest past. `None`: the program has no state.
    #[must_use]
    pub fn last_position(&self) -> Option<u32> {
        self.state_regions().flatten().map(|region| region.past).min()
    }

    /// The same program for a run at a position.
    #[must_use]
    pub fn at(&self, position: u32) -> Self {
        Self { position: Some(position), ..self.clone() }
    }

    /// Bytes an input takes in DDR: those of a state end where its output lies.
    #[must_use]
    pub fn input_bytes(&self, input: usize) -> u64 {
        let state = self.states.iter().find(|state| state.input as usize == input);
        let region = state.and_then(|state| state.region(self));
        region.map_or_else(|| self.inputs[input].view.bytes(self.machine.word()), |region| region.border - region.start)
    }

    /// Bytes by which the output of a region lies lower at the position of the run than its port says.
    fn missing_bytes(&self, region: &StateRegion) -> u64 {
        self.position.map_or(0, |position| u64::from(region.past.saturating_sub(position)) * region.stride)
    }

    /// Where an output lies at the position of the run, stretch by stretch.
    pub fn output_views(&self, output: usize) -> impl Iterator<Item = View> + '_ {
        let state = self.states.iter().find(|state| state.output as usize == output);
        let absent = state.and_then(|state| state.region(self)).map_or(0, |region| self.missing_bytes(&region));
        self.outputs[output].views().map(move |view| View { address: view.address - absent, ..view })
    }

    /// The transfer at the position of the run.
    #[must_use]
    pub fn positioned_transfer(&self, transfer: &Transfer) -> PositionedTransfer {
        let plain = PositionedTransfer { transfer: *transfer, limit: None };
        if self.position.is_none() {
            return plain;
        }
        let of =
            |region: &StateRegion| region.overlaps(transfer.ddr_space, transfer.ddr_address, transfer.ddr_address + 1);
        let Some(region) = self.state_regions().flatten().find(of) else { return plain };
        let absent = self.missing_bytes(&region);
        if transfer.ddr_address < region.border {
            return PositionedTransfer { limit: Some((region.border - absent, region)), ..plain };
        }
        PositionedTransfer { transfer: Transfer { ddr_address: transfer.ddr_address - absent, ..*transfer }, ..plain }
    }
}

/// Whether an instruction moves bytes of a state in a way that has no meaning, or uses them other than by a transfer.
#[must_use]
pub fn is_misused(regions: &[StateRegion], work: &Work, word: usize) -> bool {
    let touches = |space: Space, start: u64, bytes: u64| match space {
        Space::Ddr(space) => regions.iter().any(|region| region.overlaps(space, start, start.saturating_add(bytes))),
        _ => false,
    };
    match work {
        Work::Transfer(t) => {
            let end = t.last_run().map_or(t.ddr_address, |(last, _)| last + u64::from(t.bytes));
            regions.iter().any(|region| region.overlaps(t.ddr_space, t.ddr_address, end) && !region.holds(t))
        }
        Work::Expand(e) => touches(Space::Ddr(e.ddr_space), e.ddr_address, e.packed_bytes()),
        Work::PackedLookup(l) => {
            l.stretches(word).any(|(space, start, end)| touches(Space::Ddr(space), start, end - start))
        }
        Work::Lookup(l) => touches(l.table.space, l.table.address, l.table.bytes(word)),
        Work::Matrix(_) | Work::Pool(_) | Work::Vector(_) => false,
    }
}
