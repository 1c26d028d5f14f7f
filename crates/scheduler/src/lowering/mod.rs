//! From steps to virtual instructions: every operator cut into instructions over buffers, with the transfers that feed and drain it.
//!
//! A tensor that lives in the cache is read and written where it lies. One that lives in the DDR is *staged*: the step runs in
//! slices of output rows, each of which loads the input rows it needs (halo included) into a buffer of its own, computes, and
//! stores its output rows. Constants are loaded into buffers of their own as well. Nothing here knows an address.

mod blocks;
mod chunk;
mod cut;
mod matrix;
mod movement;
mod pool;
mod ports;
mod reduce;
mod staging;
mod table;
pub(crate) mod vector;

use crate::context::PlanningContext;
use crate::network::stages::stages;
use crate::network::{Linear, is_depthwise};
use crate::options::PlanOptions;
use crate::options::granularity::TileGranularity;
pub(crate) use staging::{piece_bytes, staged, staged_bytes};

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tpuflow_ir::isa::{Codes, Scaling, TableShape};
use tpuflow_ir::layout::image;
use tpuflow_ir::{Descriptor, LayerId, Op, Requant, Space, Table, TableEntry, TensorId, View, Window, Work};

use crate::virtual_program::{BufferId, Content, Memory, Packing, VirtualInstruction, VirtualProgram};

/// A step does not fit what is free of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage(pub Memory);

/// Where a root tensor lives from its production to its last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorSpace {
    Cache,
    Ddr,
}

/// Lengths of the lists of a virtual program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checkpoint {
    buffers: usize,
    descriptors: usize,
    instructions: usize,
}

/// Lowers one step after the other into a virtual program.
pub(crate) struct Lowering<'a> {
    pub context: &'a PlanningContext<'a>,
    pub options: PlanOptions,
    /// By tensor; what counts is the entry of a root.
    pub tensor_spaces: Vec<TensorSpace>,
    pub code: VirtualProgram,
    /// Cache and DDR buffers of root tensors.
    cached: BTreeMap<TensorId, BufferId>,
    external: BTreeMap<TensorId, BufferId>,
    /// DDR buffers of outputs that live in the cache.
    results: BTreeMap<TensorId, BufferId>,
    /// Cache buffers of tensors in blocks of channels.
    blocks: BTreeMap<TensorId, Vec<BufferId>>,
    /// By tensor, rows that windows reach over the edges of what they are computed for, since images last changed their size.
    halos: Vec<u32>,
    /// By tensor, whether its rows are tokens, between any two of which it may be cut.
    sequences: Vec<bool>,
    /// By step.
    stages: Vec<u8>,
    /// The last step with constants for weights.
    last_weights: Option<usize>,
    /// Bytes of the cache the current step may use for staging and weights.
    free: u64,
    index: usize,
    layer: LayerId,
}

impl<'a> Lowering<'a> {
    pub fn new(context: &'a PlanningContext<'a>, options: PlanOptions, tensor_spaces: Vec<TensorSpace>) -> Self {
        let network = &context.network;
        let mut lowering = Self {
            context,
            options,
            tensor_spaces,
            code: VirtualProgram::default(),
            cached: BTreeMap::new(),
            external: BTreeMap::new(),
            results: BTreeMap::new(),
            blocks: BTreeMap::new(),
            halos: chunk::halos(network),
            sequences: chunk::sequences(network),
            stages: stages(network),
            last_weights: staging::last_weights(network),
            free: 0,
            index: 0,
            layer: LayerId(0),
        };
        // Ports exist whether or not a step touches them.
        for &input in &context.graph.inputs {
            lowering.external_buffer(input);
        }
        lowering
    }

    /// Lowers step `index` with `free` bytes of cache beside the tensors that live there.
    pub fn step(&mut self, index: usize, free: u64) -> Result<(), Shortage> {
        let step = &self.context.network.steps[index];
        (self.index, self.layer, self.free) = (index, step.layer, free);
        if !self.context.placement.is_free(index) {
            for tensor in self.context.network.streams(&step.op) {
                self.fetch_input(tensor)?;
            }
            self.operator(&step.op, step.output)?;
        }
        self.deliver(step.output)
    }

    /// How far lowering has come.
    pub fn mark(&self) -> Checkpoint {
        let code = &self.code;
        Checkpoint {
            buffers: code.buffers.len(),
            descriptors: code.descriptors.len(),
            instructions: code.instructions.len(),
        }
    }

    /// Goes back to where it had come to then. What was lowered by then must not depend on memory spaces that have changed since.
    pub fn rewind(&mut self, mark: Checkpoint) {
        self.code.buffers_mut().truncate(mark.buffers);
        Arc::make_mut(&mut self.code.descriptors).truncate(mark.descriptors);
        self.code.instructions.truncate(mark.instructions);
        let old = |buffer: &BufferId| buffer.index() < mark.buffers;
        for known in [&mut self.cached, &mut self.external, &mut self.results] {
            known.retain(|_, buffer| old(buffer));
        }
        self.blocks.retain(|_, buffers| buffers.iter().all(old));
    }

    fn operator(&mut self, op: &'a Op, output: TensorId) -> Result<(), Shortage> {
        match op {
            Op::Conv { groups, input, window, .. } if is_depthwise(&self.context.network, op) => {
                debug_assert!(*groups > 0);
                self.depthwise(op, *input, window, output)
            }
            Op::Conv { .. } | Op::MatMul { .. } => self.matrix(op, output),
            Op::MaxPool { .. } | Op::AveragePool { .. } => self.pooling(op, output),
            Op::Concat { .. } | Op::Pad { .. } | Op::Rearrange { .. } | Op::InsertZeros { .. } => {
                self.movement(op, output)
            }
            Op::Gather { input, axis, indices } => self.gather(*input, *axis, indices, output),
            Op::Embedding { table, indices, entry: TableEntry::Row } => self.embedding(*table, *indices, output),
            Op::Embedding { table, indices, entry } => self.packed_embedding(*table, *indices, *entry, output),
            Op::Reduce { input, kind, axes, requant } => self.reduction(*input, *kind, axes, requant, output),
            _ => self.elementwise(op, output),
        }
    }

    /// The tensor where it lives.
    fn operand(&mut self, tensor: TensorId) -> View {
        let (space, address) = self.storage(tensor);
        self.context.placement.view(&self.context.network, tensor, space, address)
    }

    /// A part of a matrix of a stack where it lives, of so many; the only matrix of a single one.
    fn matrix_of(&mut self, tensor: TensorId, index: u32, part: [u32; 2]) -> View {
        let storage = self.storage(tensor);
        let last = image(&self.context.network.tensor(tensor).shape).0.saturating_sub(1) as u32;
        self.context.placement.matrix(&self.context.network, tensor, index.min(last), part, storage)
    }

    /// Where a tensor's root begins.
    fn storage(&mut self, tensor: TensorId) -> (Space, u64) {
        let root = self.context.placement.of(tensor).root;
        match self.memory_space(root) {
            TensorSpace::Cache => (Space::Cache, self.cache_buffer(root).at(0)),
            TensorSpace::Ddr => (Space::Ddr(0), self.external_buffer(root).at(0)),
        }
    }

    /// Where a root lives; constants always live in DDR.
    fn memory_space(&self, root: TensorId) -> TensorSpace {
        if self.context.network.is_constant(root) { TensorSpace::Ddr } else { self.tensor_spaces[root.index()] }
    }

    fn cache_buffer(&mut self, root: TensorId) -> BufferId {
        if let Some(&buffer) = self.cached.get(&root) {
            return buffer;
        }
        let name = self.context.network.tensor(root).name.clone();
        let bytes = self.context.placement.bytes(&self.context.network, root);
        let buffer = self.code.buffer(name, bytes, Memory::Cache, Content::Computed);
        self.cached.insert(root, buffer);
        buffer
    }

    /// The DDR buffer of a root.
    fn external_buffer(&mut self, root: TensorId) -> BufferId {
        if let Some(&buffer) = self.external.get(&root) {
            return buffer;
        }
        let context = self.context;
        let tensor = context.network.tensor(root);
        let content = if context.graph.inputs.contains(&root) {
            Content::Input
        } else if tensor.constant.is_some() {
            Content::Constant(Packing::Activation { tensor: context.network.first_equal(root) })
        } else if context.graph.outputs.iter().any(|&t| context.placement.of(t).root == root) {
            Content::Output
        } else {
            Content::Computed
        };
        let bytes = context.placement.bytes(&context.network, root);
        let buffer = self.code.buffer(tensor.name.clone(), bytes, Memory::Ddr, content);
        self.external.insert(root, buffer);
        buffer
    }

    /// Whether nothing else lives in the pixels of `tensor`.
    fn alone(&self, tensor: TensorId) -> bool {
        let root = self.context.placement.of(tensor).root;
        let channels = |t: TensorId| self.context.network.tensor(t).shape.last().copied().unwrap_or(1);
        channels(tensor) == channels(root)
    }

    /// A constant in the parameter cache, loaded here.
    fn parameters(&mut self, what: &str, bytes: usize, packing: Packing) -> BufferId {
        let word = self.context.machine.word();
        let bytes = bytes.next_multiple_of(word) as u64;
        let name = format!("{what} of {}", self.context.network.layer_name(self.index));
        let from = self.code.buffer(name.clone(), bytes, Memory::Ddr, Content::Constant(packing));
        let to = self.code.buffer(name, bytes, Memory::Ewp, Content::Computed);
        self.code.load_whole(self.layer, from, to, Memory::Ewp, bytes);
        to
    }

    fn table(&mut self, table: &Table) -> (TableShape, BufferId) {
        let entries = self.context.network.tensor(table.entries).elements();
        let shape = TableShape { entries: entries as u32, lo: table.lo, hi: table.hi };
        (
            shape,
            self.parameters(
                "table",
                entries * 4,
                Packing::Table { tensor: self.context.network.first_equal(table.entries) },
            ),
        )
    }

    /// Bytes of the parameter cache a step may use at a time: half of it when the next step's may be loaded meanwhile.
    fn parameter_space(&self) -> u64 {
        self.context.machine.ewp_cache_bytes() / if self.options.mode.paired() { 2 } else { 1 }
    }

    /// How finely the current step is cut.
    fn granularity(&self) -> TileGranularity {
        self.options.mode.granularities().of(self.stages.get(self.index).copied().unwrap_or(0))
    }

    fn output(&self) -> TensorId {
        self.context.network.steps[self.index].output
    }

    fn instruction(&mut self, work: Work, ewp: [Option<(BufferId, u32)>; 3]) {
        self.code.instructions.push(VirtualInstruction { layer: self.layer, work, ewp });
    }

    fn descriptor(&mut self, descriptor: Descriptor) -> tpuflow_ir::DescriptorId {
        self.code.descriptor(descriptor)
    }

    /// Bytes of the cache a piece may take: a share of what is free, so that the next can be loaded meanwhile.
    fn piece_space(&self) -> u64 {
        (self.free as f64 * self.context.utilization(self.options.mode)) as u64
    }

    /// Rows per instruction for `rows` rows that take `cycles` in all.
    fn rows_per_piece(&self, rows: u32, cycles: u64, start: u64) -> u32 {
        if !self.options.mode.paired() {
            return rows.max(1);
        }
        let pieces = self.granularity().pieces(cycles, start).min(self.context.parameters.pieces());
        // The array takes tokens by halves of an image at least: shorter pieces than hide a start-up bring it nothing.
        let is_limited = self.sequences[self.output().index()] && self.granularity() != TileGranularity::Shortest;
        let pieces = if is_limited { pieces.min(cycles / start.max(1)).max(1) } else { pieces };
        u64::from(rows).div_ceil(pieces).max(1) as u32
    }
}

/// Cuts the rows of a result, the last of `views`, and of its operands into more and shorter ones, if that changes no address:
/// rows of one pixel where pixels are whole words, else rows of one word of the smallest pixel. Operands may have a single row
/// or a single pixel per row for all of the result's.
pub(crate) fn refine(views: &mut [View], word: usize) {
    let Some(&to) = views.last() else { return };
    let (rows, width) = (to.rows, to.width);
    let fits = views.iter().all(|v| {
        let whole = v.stored_rows == v.rows && v.first_row == 0;
        whole && (v.rows == rows || v.rows == 1) && (v.width == width || v.width == 1)
    });
    let long = || views.iter().filter(|v| v.width > 1);
    let least = long().map(|v| v.pixel_bytes).min().unwrap_or(1);
    let short = (word as u32 / least.min(word as u32)).max(1);
    let dense = long().all(|v| (short * v.pixel_bytes).is_multiple_of(word as u32));
    if !fits || !dense || short >= width || !width.is_multiple_of(short) {
        return;
    }
    // Where nothing broadcasts there are no images to tell apart.
    let alike = long().all(|v| v.rows == rows) && (rows == 1 || views.iter().all(|v| v.width > 1 || v.rows == 1));
    for view in views.iter_mut() {
        let count = if view.width > 1 { width / short } else { 1 };
        view.rows *= count;
        view.stored_rows = view.rows;
        view.height = if alike { view.rows } else { count };
        view.width = if view.width > 1 { short } else { 1 };
    }
}

/// Input rows that output rows need through a window; at least one row.
pub(crate) fn window_rows(window: &Window, input: &View, out_height: u32, rows: Range<u32>) -> Range<u32> {
    let height = i64::from(input.height);
    let top = |row: u32| i64::from(row % out_height) * i64::from(window.stride[0]) - i64::from(window.pads[0]);
    let reach = i64::from((window.kernel[0] - 1) * window.dilation[0]);
    let last = rows.end - 1;
    let base = |row: u32| i64::from(row / out_height) * height;
    let low = base(rows.start) + top(rows.start).clamp(0, height);
    let high = base(last) + (top(last) + reach + 1).clamp(0, height);
    let low = low.clamp(0, i64::from(input.rows) - 1);
    (low as u32)..(high.max(low + 1) as u32)
}

/// Largest slice height for which every slice of `rows` fits; `None` when not even one row does.
pub(crate) fn slice_rows(rows: Range<u32>, budget: u64, need: impl Fn(Range<u32>) -> u64) -> Option<u32> {
    let count = rows.end - rows.start;
    let fits = |height: u32| slices(rows.clone(), height).all(|slice| need(slice) <= budget);
    if fits(count) {
        return Some(count.max(1));
    }
    let (mut good, mut bad) = (0, count);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) { good = middle } else { bad = middle }
    }
    (good > 0).then_some(good)
}

/// `rows` in slices of `height`.
pub(crate) fn slices(rows: Range<u32>, height: u32) -> impl Iterator<Item = Range<u32>> {
    let end = rows.end;
    rows.step_by(height.max(1) as usize).map(move |start| start..(start + height).min(end))
}

pub(crate) fn codes(requant: &Requant) -> Codes {
    Codes { zero_point: requant.zero_point, lo: requant.lo, hi: requant.hi }
}

pub(crate) fn scaling(requant: &Requant) -> Scaling {
    let (multiplier, shift) = requant.of(0);
    Scaling { multiplier, shift, codes: codes(requant) }
}
