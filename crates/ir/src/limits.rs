//! How large the numbers of a program may be.
//!
//! A program from outside may state any number in any field. What is proven here, once and before anything else is computed
//! from them, is that sums and products of the fields stay inside the types they are computed in, that every index resolves,
//! and that nothing is enumerated that has more than a few million entries. It says nothing of whether the program is right:
//! that is the checker's and the simulator's business.

mod descriptor;

use std::fmt;

use crate::error::{LimitError, Place};
use crate::exchange::MOST_DEVICES;
use crate::isa::{
    Expand, FloatFunction, Lookup, Matrix, MatrixDescriptor, PackedLookup, Pool, PoolDescriptor, Transfer, Vector,
    VectorOp,
};
use crate::state::StateRegion;
use crate::{Descriptor, Exchange, Instruction, Machine, Port, Program, Space, View, Window, Work};
use descriptor::check_descriptor;

/// Bytes of a memory, and highest address.
pub const ADDRESS: u64 = 1 << 42;
/// Pixels, rows, channels and whatever else is counted in 32 bits.
pub const COUNT: u64 = (1 << 31) - 1;
/// Elements of a tensor in a cache.
const ELEMENTS: u64 = (1 << 32) - 1;
/// Runs of a transfer, cut at the borders of DDR pages.
pub const RUNS: u64 = 1 << 22;
/// Cells of a window.
pub const TAPS: u64 = 1 << 20;
/// Height or width of a window, dilation and padding included.
const EXTENT: u64 = 1 << 30;
/// Cycles and multiply-accumulates.
const WORK: u64 = 1 << 56;
/// Entries of a table: one per 16-bit code, and one.
const ENTRIES: u64 = (1 << 16) + 1;
/// Largest magnitude of a zero point: of 16-bit codes that count from 0.
const ZERO_POINT: u64 = 1 << 16;

/// A field that is too large, as one line.
type LimitCheck = Result<(), LimitError>;

fn at_most(field: impl fmt::Display, value: impl Into<u128>, limit: u64) -> LimitCheck {
    let value = value.into();
    if value > u128::from(limit) {
        return Err(LimitError::TooLarge { field: field.to_string(), value, limit });
    }
    Ok(())
}

fn at_least(field: impl fmt::Display, value: impl Into<u64>) -> LimitCheck {
    if value.into() == 0 { Err(LimitError::Zero { field: field.to_string() }) } else { Ok(()) }
}

fn product(factors: impl IntoIterator<Item = u64>) -> u128 {
    factors.into_iter().fold(1, |all: u128, factor| all.saturating_mul(factor.into()))
}

impl Program {
    /// Proves that every number of the program is of a size that can be computed with.
    ///
    /// # Errors
    /// One line with the place, the field, its value and what it may be.
    pub fn check_limits(&self) -> Result<(), LimitError> {
        self.check_header_limits()?;
        self.check_instruction_limits()
    }

    /// [`Self::check_limits`] of everything but instructions and descriptors.
    ///
    /// # Errors
    /// As [`Self::check_limits`].
    pub fn check_header_limits(&self) -> Result<(), LimitError> {
        let word = self.machine.word();
        self.machine.validate().map_err(LimitError::Machine)?;
        at_most("the number of instructions", self.instructions.len() as u64, COUNT)?;
        for (space, &bytes) in self.ddr_bytes.iter().enumerate() {
            at_most(format_args!("ddr_bytes[{space}]"), bytes, ADDRESS)?;
        }
        at_most("spill_bytes", self.spill_bytes, ADDRESS)?;
        at_most("cache_peak_bytes", self.cache_peak_bytes, ADDRESS)?;
        at_most("predicted_cycles", self.predicted_cycles, WORK)?;
        self.bounds
            .by_name()
            .iter()
            .try_for_each(|(name, cycles)| at_most(format_args!("bound {name}"), *cycles, WORK))?;
        for layer in &self.layers {
            at_most("macs", layer.macs, WORK)
                .and_then(|()| at_most("bound", layer.bound, WORK))
                .map_err(|error| error.at(Place::Layer(layer.name.clone())))?;
        }
        for allocation in &self.allocations {
            at_most("address", allocation.address, ADDRESS)
                .and_then(|()| at_most("bytes", allocation.bytes, ADDRESS))
                .map_err(|error| error.at(Place::Allocation(allocation.name.clone())))?;
        }
        for port in self.inputs.iter().chain(&self.outputs) {
            port.check_limits(word)?;
        }
        if let Some(stream) = &self.stream {
            at_most("predicted_interval", stream.predicted_interval, WORK)?;
            let bounds = stream.bounds.by_name();
            bounds.iter().try_for_each(|(name, cycles)| at_most(format_args!("bound {name}"), *cycles, WORK))?;
        }
        self.check_states()?;
        self.check_exchanges()
    }

    /// [`Self::check_limits`] of instructions and descriptors, of a program whose header is within them.
    ///
    /// # Errors
    /// As [`Self::check_limits`].
    pub fn check_instruction_limits(&self) -> Result<(), LimitError> {
        let word = self.machine.word();
        for (number, descriptor) in self.descriptors.iter().enumerate() {
            check_descriptor(descriptor).map_err(|error| error.at(Place::Descriptor(number)))?;
        }
        for (number, instruction) in self.instructions.iter().enumerate() {
            self.check_work(&instruction.work, word).map_err(|error| error.at(Place::Instruction(number)))?;
        }
        self.check_stream_references()
    }

    /// Proves that states lie as such, and that the position is one of theirs.
    fn check_states(&self) -> LimitCheck {
        let last = self.last_position().unwrap_or(0);
        let sound = |region: Option<StateRegion>| {
            region.is_some_and(|region| region.past == last && u128::from(region.end) <= u128::from(ADDRESS))
        };
        if let Some(state) = self.state_regions().position(|region| !sound(region)) {
            return Err(LimitError::State { state });
        }
        at_most("the position of the run", self.position.unwrap_or(0), last.into())
    }

    /// Proves that exchanges are of one number of devices and name ports there are, which lie at one place.
    fn check_exchanges(&self) -> LimitCheck {
        let devices = self.devices();
        let sound = |exchange: &Exchange| {
            let Some(own) = self.outputs.get(exchange.output as usize) else { return false };
            let is_own = |view: View| matches!(view.space, Space::Ddr(s) if usize::from(s) < self.machine.ddr_spaces());
            let is_there = |(rank, input): (usize, &u32)| {
                let expected = own.views().map(|view| self.machine.view_of_rank(view, rank));
                self.inputs.get(*input as usize).is_some_and(|port| port.views().eq(expected))
            };
            own.views().all(is_own)
                && exchange.inputs.len() == devices
                && (2..=MOST_DEVICES).contains(&devices)
                && exchange.inputs.iter().enumerate().all(is_there)
        };
        match self.exchanges.iter().position(|exchange| !sound(exchange)) {
            Some(exchange) => Err(LimitError::Exchange { exchange }),
            None => Ok(()),
        }
    }

    /// Proves that instructions name layers and descriptors there are, of the right kind.
    ///
    /// # Errors
    /// One line with the instruction, the field and its value.
    pub fn check_references(&self) -> Result<(), LimitError> {
        self.instructions.iter().enumerate().try_for_each(|(number, instruction)| {
            self.check_reference(instruction).map_err(|error| error.at(Place::Instruction(number)))
        })
    }

    fn check_reference(&self, instruction: &Instruction) -> LimitCheck {
        let (layer, layers) = (instruction.layer.index(), self.layers.len());
        if layer >= layers {
            return Err(LimitError::Layer { layer, layers });
        }
        let (id, kind) = match &instruction.work {
            Work::Transfer(_) | Work::Lookup(_) | Work::Expand(_) | Work::PackedLookup(_) => return Ok(()),
            Work::Matrix(m) => (m.descriptor, "matrix"),
            Work::Pool(p) => (p.descriptor, "pool"),
            Work::Vector(v) => (v.descriptor, "vector"),
        };
        let (descriptor, descriptors) = (id.index(), self.descriptors.len());
        let fits = match self.descriptors.get(descriptor) {
            None => return Err(LimitError::Descriptor { descriptor, descriptors }),
            Some(Descriptor::Matrix(_)) => kind == "matrix",
            Some(Descriptor::Pool(_)) => kind == "pool",
            Some(Descriptor::Vector(_)) => kind == "vector",
        };
        if fits { Ok(()) } else { Err(LimitError::DescriptorKind { descriptor, kind }) }
    }

    /// Rules on sizes together with those of a descriptor apply where there is one of the right kind.
    fn check_work(&self, work: &Work, word: usize) -> LimitCheck {
        let descriptor = |id: crate::DescriptorId| self.descriptors.get(id.index());
        match work {
            Work::Transfer(t) => check_transfer(t, &self.machine),
            Work::Lookup(l) => check_lookup(l, word),
            Work::Expand(e) => check_expand(e, &self.machine),
            Work::PackedLookup(l) => check_packed_lookup(l, &self.machine),
            Work::Matrix(m) => match descriptor(m.descriptor) {
                Some(Descriptor::Matrix(d)) => check_matrix(m, d, word),
                _ => Ok(()),
            },
            Work::Pool(p) => match descriptor(p.descriptor) {
                Some(Descriptor::Pool(d)) => check_pool(p, d, word),
                _ => Ok(()),
            },
            Work::Vector(v) => match descriptor(v.descriptor) {
                Some(Descriptor::Vector(op)) => check_vector(v, op, word),
                _ => Ok(()),
            },
        }
    }
}

impl Port {
    /// Proves that shape and place are of sizes that can be computed with.
    ///
    /// # Errors
    /// One line with the port, the field, its value and what it may be.
    pub fn check_limits(&self, word: usize) -> Result<(), LimitError> {
        let bytes = |shape: &[usize]| product(shape.iter().map(|&n| n as u64).chain([word as u64]));
        let mut fine = at_most("shape, as bytes in whole words,", bytes(&self.shape), ADDRESS);
        if let Some(source) = &self.source {
            fine = fine.and_then(|()| at_most("the model's shape, in bytes,", bytes(&source.shape), ADDRESS));
        }
        // A size of 0 hides the others in a product.
        let sizes = self.shape.iter().chain(self.source.iter().flat_map(|source| &source.shape));
        sizes
            .fold(fine, |fine, &size| fine.and_then(|()| at_most("a size of its shape", size as u64, COUNT)))
            .and_then(|()| check_view("view", &self.view, word))
            .and_then(|()| {
                self.parts.iter().try_for_each(|part| {
                    at_most("the first pixel of a part", part.first_pixel, COUNT)?;
                    let view = View { space: part.space, address: part.address, ..self.view };
                    check_view("part", &view, word)
                })
            })
            .map_err(|error| error.at(Place::Port(self.name.clone())))
    }
}

fn check_view(name: impl fmt::Display, v: &View, word: usize) -> LimitCheck {
    for (what, value) in [
        ("rows", v.rows),
        ("height", v.height),
        ("width", v.width),
        ("channels", v.channels),
        ("pixel_bytes", v.pixel_bytes),
        ("channel_offset", v.channel_offset),
        ("first_row", v.first_row),
        ("stored_rows", v.stored_rows),
        ("origin[0]", v.origin[0]),
        ("origin[1]", v.origin[1]),
    ] {
        at_most(format_args!("{name}.{what}"), value, COUNT)?;
    }
    at_most(format_args!("{name}.address"), v.address, ADDRESS)?;
    for (what, value) in [("rows", v.rows), ("height", v.height), ("width", v.width), ("channels", v.channels)] {
        at_least(format_args!("{name}.{what}"), value)?;
    }
    at_least(format_args!("{name}.stored_rows"), v.stored_rows)?;
    let [rows, width, channels] = [v.rows, v.width, v.channels].map(u64::from);
    at_most(format_args!("{name}.rows * width"), product([rows, width]), COUNT)?;
    at_most(format_args!("{name}.width * channels"), product([width, channels]), COUNT)?;
    if !matches!(v.space, Space::Ddr(_)) {
        at_most(format_args!("{name}.rows * width * channels"), product([rows, width, channels]), ELEMENTS)?;
    }
    let stored = rows.max(v.stored_rows.into());
    at_most(
        format_args!("{name}.address + rows * row_bytes"),
        u128::from(v.address) + product([stored, v.row_bytes(word)]),
        ADDRESS,
    )
}

fn check_transfer(t: &Transfer, machine: &Machine) -> LimitCheck {
    let runs = t.counts.map(u64::from);
    at_least("bytes", t.bytes)?;
    t.counts.iter().try_for_each(|&count| at_least("counts", count))?;
    at_most("counts[0] * counts[1]", product(runs), RUNS)?;
    let pages = u64::from(t.bytes).div_ceil(machine.page_bytes()) + 1;
    at_most("counts[0] * counts[1] * the pages of a run", product(runs) * u128::from(pages), RUNS)?;
    for (end, address, strides) in [("ddr", t.ddr_address, t.ddr_strides), ("local", t.local_address, t.local_strides)]
    {
        let reach = |n: usize| product([runs[n] - 1, strides[n]]);
        let last = u128::from(address) + reach(0) + reach(1) + u128::from(t.bytes);
        at_most(format_args!("{end}_address + (counts - 1) * {end}_strides + bytes"), last, ADDRESS)?;
        // Strides of loops that run once reach nowhere, but are multiplied.
        strides.iter().try_for_each(|&stride| at_most(format_args!("{end}_strides"), stride, ADDRESS))?;
    }
    Ok(())
}

fn check_expand(e: &Expand, machine: &Machine) -> LimitCheck {
    for (what, value) in [("rows", e.rows), ("row_bytes", e.row_bytes), ("block", e.block)] {
        at_least(what, value)?;
        at_most(what, value, COUNT)?;
    }
    at_most("rows * row_bytes", product([e.rows.into(), e.row_bytes.into()]), ELEMENTS)?;
    at_most("local_address", e.local_address, ADDRESS)?;
    at_most("the bytes of codes, scales and zero points", e.packed_bytes(), u32::MAX.into())?;
    check_transfer(&e.run(), machine)
}

fn check_packed_lookup(l: &PackedLookup, machine: &Machine) -> LimitCheck {
    let word = machine.word();
    check_expand(&l.form(), machine)?;
    check_view("indices", &l.indices, word)?;
    check_view("output", &l.output, word)?;
    at_most("first + count", u64::from(l.first) + u64::from(l.count), COUNT)?;
    at_least("size", l.size)?;
    at_most("size", l.size, COUNT)?;
    l.columns.map_or(Ok(()), |columns| at_least("columns", columns))?;
    at_least("spaces", l.spaces)?;
    let last = u128::from(l.ddr_address) + product([l.entries().into(), l.stride(word)]);
    at_most("the end of the last entry", last, ADDRESS)
}

fn check_lookup(l: &Lookup, word: usize) -> LimitCheck {
    check_view("table", &l.table, word)?;
    check_view("indices", &l.indices, word)?;
    check_view("output", &l.output, word)?;
    at_most("first + count", u64::from(l.first) + u64::from(l.count), COUNT)
}

fn check_matrix(m: &Matrix, d: &MatrixDescriptor, word: usize) -> LimitCheck {
    check_view("input", &m.input, word)?;
    check_view("output", &m.output, word)?;
    check_steps(&d.window, &m.output)?;
    at_most("first_pixel + pixels", u64::from(m.first_pixel) + u64::from(m.pixels), COUNT)?;
    at_least("pixels", m.pixels)?;
    at_least("columns", m.columns)?;
    let end = u64::from(m.first_column) + u64::from(m.columns);
    at_most("first_column + columns", end, COUNT)?;
    at_most("output_channel + columns", u64::from(m.output_channel) + u64::from(m.columns), COUNT)?;
    let channels = product([(end - 1) / u64::from(d.group_out) + 1, d.group_in.into()]);
    at_most("the last channel of its groups", channels, m.input.channels.into())?;
    let k = product([d.window.kernel[0].into(), d.window.kernel[1].into(), d.group_in.into()]);
    at_most("window.kernel * group_in", k, COUNT)?;
    if k > 1 && m.weights.row_bytes < m.columns {
        return Err(LimitError::WeightRow { row_bytes: m.weights.row_bytes, columns: m.columns });
    }
    at_most("weights.address", m.weights.address, ADDRESS)
}

fn check_pool(p: &Pool, d: &PoolDescriptor, word: usize) -> LimitCheck {
    check_view("input", &p.input, word)?;
    check_view("output", &p.output, word)?;
    check_steps(&d.window, &p.output)?;
    let (window, columns) = (&d.window, u64::from(p.output.width));
    let reach = (columns - 1) * u64::from(window.stride[1])
        + u64::from(window.kernel[1] - 1) * u64::from(window.dilation[1])
        + 1;
    // Padding behind is negative, modulo 2^32, where the windows end before the operand.
    let padding = i64::from(window.pads[1]) + i64::from(window.pads[3].cast_signed());
    let padded = u64::from(p.input.width).saturating_add_signed(padding);
    at_most("the last column under window", reach, padded)?;
    at_least("rows", p.rows)?;
    at_most("first_row + rows", u64::from(p.first_row) + u64::from(p.rows), p.output.rows.into())
}

fn check_vector(v: &Vector, op: &VectorOp, word: usize) -> LimitCheck {
    for (number, input) in v.inputs.iter().enumerate() {
        check_view(format_args!("inputs[{number}]"), input, word)?;
    }
    check_view("output", &v.output, word)?;
    at_least("rows", v.rows)?;
    let end = u64::from(v.first_row) + u64::from(v.rows);
    at_most("first_row + rows", end, COUNT)?;
    let operands = match op {
        VectorOp::Fill { .. } | VectorOp::Float { function: FloatFunction::Constant(_), .. } => 0,
        VectorOp::Binary { .. } | VectorOp::Float { function: FloatFunction::Binary(_), .. } => 2,
        VectorOp::Select => 3,
        _ => 1,
    };
    let given = v.inputs.len();
    if given < operands {
        return Err(LimitError::Operands { given, operands });
    }
    let size = |dims: &[u32]| product(dims.iter().map(|&n| n.into()));
    match op {
        VectorOp::Move { dims, .. } => {
            let inner = dims.get(1..).map_or(1, size);
            at_most("(first_row + rows) * the inner dims", u128::from(end) * inner, ELEMENTS)
        }
        VectorOp::Gather { inner, .. } => {
            at_most("(first_row + rows) * inner", product([end, (*inner).into()]), ELEMENTS)
        }
        _ if op.reduces() => Ok(()),
        _ => at_most("first_row + rows", end, v.output.rows.into()),
    }
}

/// Windows step over the result's pixels.
fn check_steps(window: &Window, output: &View) -> LimitCheck {
    for (axis, size) in [output.height, output.width].into_iter().enumerate() {
        let reach = product([size.into(), window.stride[axis].into()]);
        at_most(format_args!("window.stride[{axis}] over the result's {size}"), reach, EXTENT)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::descriptor::{check_clamp, check_loops, check_window};
    use super::*;
    use crate::DType;
    use crate::isa::PoolKind;

    fn view(height: u32, width: u32) -> View {
        View::whole(&[1, height as usize, width as usize, 8], DType::I8, 8, Space::Cache, 0)
    }

    fn pool(window: Window, input: View, output: View) -> LimitCheck {
        let descriptor = PoolDescriptor { kind: PoolKind::Max, window };
        check_window(&window)?;
        let zero = crate::DescriptorId(0);
        let pool = Pool { descriptor: zero, input, output, first_row: 0, rows: 1, weights: 0, parameters: 0, table: 0 };
        check_pool(&pool, &descriptor, 8)
    }

    #[test]
    fn windows_stay_on_their_operand_and_its_padding() {
        let window = Window { kernel: [3, 3], stride: [2, 2], dilation: [1, 1], pads: [1, 1, 1, 1] };
        assert_eq!(pool(window, view(5, 5), view(3, 3)), Ok(()));
        let message = pool(window, view(5, 5), view(3, 4)).expect_err("beyond the padding").to_string();
        assert_eq!(message, "the last column under window is 9, at most 7 is possible");
        let message = pool(Window { kernel: [1 << 16, 1 << 16], ..window }, view(5, 5), view(3, 3))
            .expect_err("huge")
            .to_string();
        assert!(message.starts_with("window.kernel, in cells,"), "{message}");
        let message =
            pool(Window { dilation: [0, 1], ..window }, view(5, 5), view(3, 3)).expect_err("no step").to_string();
        assert_eq!(message, "window.dilation[0] is 0, at least 1 is needed");
    }

    #[test]
    fn transfers_are_counted_by_arithmetic() {
        let machine = Machine::preset("128x128_asic").expect("known");
        let transfer = Transfer {
            direction: crate::isa::Direction::Load,
            ddr_space: 0,
            ddr_address: 0,
            local_space: Space::Cache,
            local_address: 0,
            bytes: 1,
            counts: [u32::MAX, u32::MAX],
            ddr_strides: [0, 0],
            local_strides: [0, 0],
        };
        let message = check_transfer(&transfer, &machine).expect_err("refused at once").to_string();
        assert!(message.starts_with("counts[0] * counts[1] is 18446744065119617025, at most"), "{message}");
        let far = Transfer { counts: [2, 1], ddr_strides: [u64::MAX, 0], ..transfer };
        assert!(check_transfer(&far, &machine).is_err());
        assert_eq!(check_transfer(&Transfer { counts: [2, 3], ddr_strides: [256, 1], ..transfer }, &machine), Ok(()));
    }

    #[test]
    fn clamps_are_not_empty_and_loops_end() {
        assert_eq!(check_clamp(3, 2), Err(LimitError::Clamp { lo: 3, hi: 2 }));
        assert!(check_loops("input", &[u32::MAX, u32::MAX], &[1, 1], 0).is_err());
        assert!(check_loops("input", &[2], &[i64::MIN], 0).is_err());
        assert!(check_loops("input", &[], &[], 0).is_err());
        assert_eq!(check_loops("input", &[2, 3], &[3, 1], -5), Ok(()));
    }
}
