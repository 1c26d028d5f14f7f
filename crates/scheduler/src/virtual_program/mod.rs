//! A program before anything has an address: instructions over numbered buffers.
//!
//! Until buffers have addresses, the address fields of a virtual instruction hold a [`VirtualAddress`], a [`BufferId`] and an
//! offset in it; no other code knows how. Buffers in the parameter cache, whose fields are too narrow for
//! that, stand beside the instruction. Lifetimes follow from which virtual instructions touch which buffers; [`addresses`] puts
//! addresses in once every buffer has one.

pub(crate) mod addresses;
pub(crate) mod bank_traffic;
pub(crate) mod dependence;
mod feeder;
pub(crate) mod unit_work;

use std::ops::Range;
use std::sync::Arc;

use indexmap::IndexSet;
use smallvec::SmallVec;
use tpuflow_ir::isa::{Direction, Expand, PackedForm, Transfer};
use tpuflow_ir::{
    Descriptor, DescriptorId, InstructionId, LayerId, Machine, Packed, Space, TensorId, Unit, View, Work, define_index,
};

define_index! {
    /// A buffer of a virtual program.
    BufferId
}

/// A byte of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VirtualAddress {
    pub buffer: BufferId,
    pub offset: u64,
}

impl VirtualAddress {
    /// Offsets are below 2 to this power, and numbers of buffers below 2 to the power of what is left of 64.
    const OFFSET_BITS: u32 = 40;

    /// Contents of an address field of a virtual instruction.
    pub fn to_field(self) -> u64 {
        debug_assert!(self.offset >> Self::OFFSET_BITS == 0, "an offset is inside its buffer");
        u64::from(self.buffer.0) << Self::OFFSET_BITS | self.offset
    }

    /// Meaning of an address field.
    pub fn of_field(field: u64) -> Self {
        let buffer = BufferId((field >> Self::OFFSET_BITS) as u32);
        Self { buffer, offset: field & ((1 << Self::OFFSET_BITS) - 1) }
    }
}

impl BufferId {
    /// The address field of a byte of the buffer.
    pub fn at(self, offset: u64) -> u64 {
        VirtualAddress { buffer: self, offset }.to_field()
    }
}

/// Which memory a buffer is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Memory {
    Cache,
    Ewp,
    Ddr,
}

/// Contents of a buffer in DDR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Written by the program.
    Computed,
    /// Packed while compiling.
    Constant(Packing),
    /// Written before the start.
    Input,
    /// Read after the end.
    Output,
}

/// Columns of a linear operator: leading index of the right operand, first column, number of columns.
pub(crate) type Tile = (u32, u32, u32);

/// How the bytes of a constant are made from those of the graph; `step` is a position in the network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Packing {
    /// Weight tiles one after the other.
    Weights { step: usize, tiles: Vec<Tile> },
    /// Packed weights, as one [`Expand`](tpuflow_ir::isa::Expand) reads them.
    Expand(PackedPart),
    /// Those of all entries of a table that lie in an address space, in the order of [`PackedTable::entries`].
    Entries(PackedTable),
    /// Channel parameters.
    Parameters { step: usize, first: u32, count: u32 },
    /// Depthwise weights `[tap][channel]`, then channel parameters on the next word.
    Depthwise { step: usize, first: u32, count: u32 },
    /// Parameters of an elementwise operator.
    Vector { step: usize },
    /// Entries of a table.
    Table { tensor: TensorId },
    /// A tensor as activations lie.
    Activation { tensor: TensorId },
    /// Several, each at its offset.
    Bundle(Vec<(u64, Packing)>),
}

/// Rows and columns of a packed constant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PackedPart {
    pub tensor: TensorId,
    /// First row, and how many.
    pub rows: [u32; 2],
    /// First column, and how many.
    pub columns: [u32; 2],
    /// Elements of a row in the shared cache.
    pub row_bytes: u32,
    /// Whether it lies by column.
    pub is_by_column: bool,
}

impl PackedPart {
    /// How it is loaded, without addresses.
    pub fn expand(&self, packed: &Packed) -> Expand {
        Expand {
            ddr_space: 0,
            ddr_address: 0,
            local_address: 0,
            rows: self.rows[1],
            row_bytes: self.row_bytes,
            block: packed.block,
            codes: if self.is_by_column {
                PackedForm::ByColumn(packed.kind())
            } else {
                PackedForm::by_row(packed.kind())
            },
        }
    }
}

/// A packed constant cut into the entries of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PackedTable {
    pub tensor: TensorId,
    /// Rows and columns of the constant.
    pub shape: [u32; 2],
    /// Rows and columns of an entry, of which one covers the constant's.
    pub entry: [u32; 2],
    /// Elements of a row of an entry in the shared cache.
    pub row_bytes: u32,
    /// Whether entries lie by column.
    pub is_by_column: bool,
    /// Address spaces that entries lie in, in turn.
    pub spaces: u32,
}

impl PackedTable {
    /// Its entries by number: rows before columns.
    pub fn entries(&self) -> impl Iterator<Item = PackedPart> + use<> {
        let Self { tensor, shape, entry, row_bytes, is_by_column, .. } = *self;
        let starts = move |axis: usize| (0..shape[axis]).step_by(entry[axis].max(1) as usize);
        starts(0).flat_map(move |row| {
            starts(1).map(move |column| PackedPart {
                tensor,
                rows: [row, entry[0].min(shape[0] - row)],
                columns: [column, entry[1].min(shape[1] - column)],
                row_bytes,
                is_by_column,
            })
        })
    }
}

/// A stretch of memory with a lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub name: String,
    pub bytes: u64,
    pub memory: Memory,
    pub content: Content,
    /// Of a part of an exchange: the buffer of this device's part, and the rank of the device whose part it is.
    pub peer: Option<(BufferId, u8)>,
}

impl Buffer {
    /// Whether its contents are there before the program starts, or stay when it has ended; parts of other devices are neither.
    pub fn is_given(&self) -> bool {
        self.content != Content::Computed && self.peer.is_none()
    }
}

/// An instruction without addresses and tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VirtualInstruction {
    pub layer: LayerId,
    pub work: Work,
    /// In the parameter cache: parameters, table, depthwise weights.
    pub ewp: [Option<(BufferId, u32)>; 3],
}

impl VirtualInstruction {
    pub fn new(layer: LayerId, work: Work) -> Self {
        Self { layer, work, ewp: [None; 3] }
    }

    /// The unit of the machine that executes it; where that is a DMA line, the first.
    pub fn unit(&self, descriptors: &[Descriptor], machine: &Machine) -> Unit {
        Unit::executing(self.work.kind(descriptors), machine)
    }

    /// The transfer, if it is one.
    pub fn transfer(&self) -> Option<&Transfer> {
        match &self.work {
            Work::Transfer(t) => Some(t),
            _ => None,
        }
    }

    /// Destination and source buffer of a load.
    pub fn load(&self) -> Option<(BufferId, BufferId)> {
        let buffer = |field| VirtualAddress::of_field(field).buffer;
        let (to, from) = match &self.work {
            Work::Transfer(t) if t.direction == Direction::Load => (t.local_address, t.ddr_address),
            Work::Expand(e) => (e.local_address, e.ddr_address),
            _ => return None,
        };
        Some((buffer(to), buffer(from)))
    }

    /// Where a lookup puts rows of a table, and the buffers of table and indices.
    pub fn lookup(&self) -> Option<(BufferId, [BufferId; 2])> {
        let [output, table, indices] = match &self.work {
            Work::Lookup(l) => [l.output.address, l.table.address, l.indices.address],
            Work::PackedLookup(l) => [l.output.address, l.ddr_address, l.indices.address],
            _ => return None,
        }
        .map(|field| VirtualAddress::of_field(field).buffer);
        Some((output, [table, indices]))
    }

    /// Buffer of the result of a unit that computes.
    pub fn result(&self) -> Option<BufferId> {
        let output = match &self.work {
            Work::Matrix(m) => &m.output,
            Work::Vector(v) => &v.output,
            Work::Pool(p) => &p.output,
            Work::Transfer(_) | Work::Expand(_) | Work::Lookup(_) | Work::PackedLookup(_) => return None,
        };
        Some(VirtualAddress::of_field(output.address).buffer)
    }

    /// Replaces buffers, each by a stretch of a buffer: by buffer, which one and from where on.
    pub fn redirect(&mut self, places: &[(BufferId, u64)]) {
        for place in self.ewp.iter_mut().flatten() {
            let (buffer, base) = places[place.0.index()];
            *place = (buffer, base as u32 + place.1);
        }
        let shift = |address: &mut u64| {
            let VirtualAddress { buffer, offset } = VirtualAddress::of_field(*address);
            let (buffer, base) = places[buffer.index()];
            *address = buffer.at(base + offset);
        };
        match &mut self.work {
            Work::Transfer(t) => [&mut t.local_address, &mut t.ddr_address].into_iter().for_each(shift),
            Work::Expand(e) => [&mut e.local_address, &mut e.ddr_address].into_iter().for_each(shift),
            Work::Lookup(l) => {
                [&mut l.table, &mut l.indices, &mut l.output].into_iter().for_each(|view| shift(&mut view.address));
            }
            Work::PackedLookup(l) => {
                [&mut l.ddr_address, &mut l.indices.address, &mut l.output.address].into_iter().for_each(shift);
            }
            Work::Matrix(m) => {
                [&mut m.input.address, &mut m.output.address, &mut m.weights.address].into_iter().for_each(shift);
            }
            Work::Pool(p) => [&mut p.input.address, &mut p.output.address].into_iter().for_each(shift),
            Work::Vector(v) => v.inputs.iter_mut().chain([&mut v.output]).for_each(|view| shift(&mut view.address)),
        }
    }

    /// Every buffer it touches, repeated if touched twice.
    pub fn touches(&self) -> SmallVec<[BufferId; 6]> {
        let mut found: SmallVec<[BufferId; 6]> = self.ewp.iter().flatten().map(|(buffer, _)| *buffer).collect();
        let mut add = |field: u64| found.push(VirtualAddress::of_field(field).buffer);
        match &self.work {
            Work::Transfer(t) => {
                add(t.local_address);
                add(t.ddr_address);
            }
            Work::Expand(e) => {
                add(e.local_address);
                add(e.ddr_address);
            }
            Work::Lookup(l) => [&l.table, &l.indices, &l.output].into_iter().for_each(|v| add(v.address)),
            Work::PackedLookup(l) => [l.ddr_address, l.indices.address, l.output.address].into_iter().for_each(add),
            Work::Matrix(m) => [m.input.address, m.output.address, m.weights.address].into_iter().for_each(add),
            Work::Pool(p) => [p.input.address, p.output.address].into_iter().for_each(add),
            Work::Vector(v) => v.inputs.iter().chain([&v.output]).for_each(|v| add(v.address)),
        }
        found
    }
}

/// A program without addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct VirtualProgram {
    /// Shared by all orders of the same instructions.
    pub buffers: Arc<Vec<Buffer>>,
    /// Shared as well.
    pub descriptors: Arc<IndexSet<Descriptor>>,
    pub instructions: Vec<VirtualInstruction>,
}

impl VirtualProgram {
    pub fn buffer(&mut self, name: String, bytes: u64, memory: Memory, content: Content) -> BufferId {
        self.buffers_mut().push(Buffer { name, bytes, memory, content, peer: None });
        BufferId::new(self.buffers.len() - 1)
    }

    /// The buffers, to be changed.
    pub fn buffers_mut(&mut self) -> &mut Vec<Buffer> {
        Arc::make_mut(&mut self.buffers)
    }

    /// All instructions in the order they are in.
    pub fn ids(&self) -> impl Iterator<Item = InstructionId> + use<> {
        (0..self.instructions.len()).map(InstructionId::new)
    }

    /// The same virtual instructions in another order.
    pub fn reordered(&self, order: &[InstructionId]) -> Self {
        let instructions = order.iter().map(|id| self.instructions[id.index()].clone()).collect();
        Self { buffers: self.buffers.clone(), descriptors: self.descriptors.clone(), instructions }
    }

    /// By buffer, whether something is loaded or looked up there, and nothing else is written: a concatenation of inputs and
    /// results holds both.
    pub fn loaded_alone(&self) -> Vec<bool> {
        let mut loaded = vec![false; self.buffers.len()];
        for instruction in &self.instructions {
            let filled = instruction.load().map(|(to, _)| to).or(instruction.lookup().map(|(to, _)| to));
            filled.into_iter().for_each(|to| loaded[to.index()] = true);
        }
        for buffer in self.instructions.iter().filter_map(VirtualInstruction::result) {
            loaded[buffer.index()] = false;
        }
        loaded
    }

    pub fn descriptor(&mut self, descriptor: Descriptor) -> DescriptorId {
        DescriptorId::new(Arc::make_mut(&mut self.descriptors).insert_full(descriptor).0)
    }

    /// Copies a whole buffer of the DDR to the start of another memory's.
    pub fn load_whole(&mut self, layer: LayerId, from: BufferId, to: BufferId, memory: Memory, bytes: u64) {
        self.load(layer, from, to, memory, 0..bytes);
    }

    /// Loads bytes of a buffer in DDR to the same place in one of a cache.
    pub fn load(&mut self, layer: LayerId, from: BufferId, to: BufferId, memory: Memory, bytes: Range<u64>) {
        let local_space = if memory == Memory::Ewp { Space::EwpCache } else { Space::Cache };
        let transfer = Transfer {
            direction: Direction::Load,
            ddr_space: 0,
            ddr_address: from.at(bytes.start),
            local_space,
            local_address: to.at(bytes.start),
            bytes: (bytes.end - bytes.start) as u32,
            counts: [1, 1],
            ddr_strides: [0, 0],
            local_strides: [0, 0],
        };
        self.instructions.push(VirtualInstruction::new(layer, Work::Transfer(transfer)));
    }

    /// Stores some pixels of a row of a tensor that lie otherwise in DDR: a run for every pixel.
    pub fn store_pixels(
        &mut self,
        layer: LayerId,
        ddr: &View,
        local: &View,
        row: u32,
        columns: Range<u32>,
        word: usize,
    ) {
        let transfer = Transfer {
            direction: Direction::Store,
            ddr_space: 0,
            ddr_address: ddr.pixel_address(row, columns.start, word),
            local_space: Space::Cache,
            local_address: local.pixel_address(row, columns.start, word),
            bytes: ddr.payload() as u32,
            counts: [1, columns.end - columns.start],
            ddr_strides: [0, ddr.pixel_bytes.into()],
            local_strides: [0, local.pixel_bytes.into()],
        };
        self.instructions.push(VirtualInstruction::new(layer, Work::Transfer(transfer)));
    }

    /// Copies rows between a tensor in DDR and rows of the same tensor in the cache. `alone`: no other tensor lives in its
    /// pixels, so that whole rows may be copied.
    #[expect(clippy::too_many_arguments, reason = "two ends of a copy and how it is made")]
    pub fn copy_rows(
        &mut self,
        layer: LayerId,
        direction: Direction,
        ddr: &View,
        local: &View,
        rows: Range<u32>,
        alone: bool,
        word: usize,
    ) {
        let count = rows.end - rows.start;
        let same = ddr.pixel_bytes == local.pixel_bytes && ddr.channel_offset == local.channel_offset;
        let mut transfer = Transfer {
            direction,
            ddr_space: 0,
            ddr_address: ddr.row_address(rows.start, word),
            local_space: Space::Cache,
            local_address: local.row_address(rows.start, word),
            bytes: (u64::from(count) * ddr.row_bytes(word)) as u32,
            counts: [1, 1],
            ddr_strides: [0, 0],
            local_strides: [0, 0],
        };
        // A stretch of pixels that begins inside a word must not bring the rest of its last one.
        let aligned = transfer.ddr_address.is_multiple_of(word as u64);
        if !(same && alone && aligned) {
            transfer.ddr_address += u64::from(ddr.channel_offset);
            transfer.local_address += u64::from(local.channel_offset);
            transfer.bytes = ddr.payload() as u32;
            transfer.counts = [count, ddr.width];
            transfer.ddr_strides = [ddr.row_bytes(word), ddr.pixel_bytes.into()];
            transfer.local_strides = [local.row_bytes(word), local.pixel_bytes.into()];
        }
        self.instructions.push(VirtualInstruction::new(layer, Work::Transfer(transfer)));
    }
}
