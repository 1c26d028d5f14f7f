//! Staging of tensors that live in DDR and pass through the cache: buffers for rows of tensors and for weights, and the transfers
//! that fill and empty them. A transfer should be long enough for its start-up to be lost, and short enough for others to begin
//! with what has come.

use std::ops::Range;

use tpuflow_ir::isa::Direction;
use tpuflow_ir::{Machine, Space, View, timing};

use super::{Linear, Lowering};
use crate::network::Network;
use crate::options::granularity::TileGranularity;
use crate::virtual_program::{Content, Memory, VirtualAddress};

/// Transfers of more than twice so many start-ups of a DMA line are cut.
const LONG: u64 = 64;

/// Start-ups of a DMA line that a prompt transfer takes.
const PROMPT: u64 = 2;

impl Lowering<'_> {
    /// Rows of a tensor in DDR to move at a time: few where the other units work meanwhile.
    pub(super) fn transfer_rows(&self, view: &View) -> u32 {
        let row = view.row_bytes(self.context.machine.word()).max(1);
        let few = ((self.piece_bytes() / 4 / row) as u32).clamp(1, view.rows.max(1));
        if self.options.mode.paired() { few } else { view.rows.max(1) }
    }

    /// Rows of an input in parts to be loaded by a transfer each. Nothing can begin before the first is there, so a prompt one
    /// takes little longer than its start-up; each of the next takes twice as long, up to where start-ups are lost in the noise.
    pub(super) fn arrivals(&self, view: &View) -> Vec<Range<u32>> {
        let most = self.transfer_rows(view);
        let mut rows = if self.options.early_first_rows { self.prompt_rows(view).min(most) } else { most };
        let mut parts: Vec<Range<u32>> = Vec::new();
        let mut first = 0;
        while first < view.rows {
            parts.push(first..(first + rows).min(view.rows));
            first += rows;
            rows = (2 * rows).min(most);
        }
        parts
    }

    /// Rows whose transfer takes little longer than its start-up.
    fn prompt_rows(&self, view: &View) -> u32 {
        let machine = self.context.machine;
        let line = machine.ddr_cycles(view.row_bytes(machine.word())).max(1);
        let start = (PROMPT * (machine.dma.start + machine.dma.latency)).div_ceil(line);
        (start as u32).max(1)
    }

    /// Rows of an output in parts to be stored by a transfer each, `most` rows at once. The first are stored as soon as they are there,
    /// and nothing goes on behind the last, so both are short; each further from these takes twice as long, up to where start-ups
    /// are lost in the noise.
    pub(super) fn departures(&self, view: &View, most: u32) -> Vec<Range<u32>> {
        let usual = self.transfer_rows(view).min(most);
        let row = view.row_bytes(self.context.machine.word()).max(1);
        let long = ((self.piece_bytes() / row) as u32).clamp(usual, most);
        let few = if self.options.mode.paired() { self.prompt_rows(view).min(usual) } else { usual };
        let mut ends = [Vec::new(), Vec::new()];
        let (mut left, mut rows) = (view.rows, few);
        while left > 2 * rows {
            ends.iter_mut().for_each(|end| end.push(rows));
            left -= 2 * rows;
            rows = (2 * rows).min(long);
        }
        let [front, behind] = ends;
        let middle = [left.saturating_sub(rows), rows.min(left)].into_iter().filter(|&rows| rows > 0);
        let mut first = 0;
        let parts = front.into_iter().chain(middle).chain(behind.into_iter().rev());
        parts.map(|rows| (first..first + rows, first += rows).0).collect()
    }

    /// The rows of `view` in a buffer that a slice may use: the view itself when it is in the cache.
    pub(super) fn stage_in(&mut self, view: &View, rows: Range<u32>) -> View {
        if view.space == Space::Cache {
            return *view;
        }
        let word = self.context.machine.word();
        let local = self.stage(view, rows.clone());
        let alone = tpuflow_ir::layout::pixel_bytes(view.payload(), word) == view.pixel_bytes as usize;
        for part in self.transfers(view, rows) {
            self.code.copy_rows(self.layer, Direction::Load, view, &local, part, alone, word);
        }
        local
    }

    /// Rows in parts to be moved by a transfer each: what takes long begins with the first rows made, and lets who reads begin
    /// with the first rows there.
    fn transfers(&self, view: &View, rows: Range<u32>) -> Vec<Range<u32>> {
        let machine = self.context.machine;
        // Of some columns of a tensor these alone.
        let pixel = tpuflow_ir::layout::pixel_bytes(view.payload(), machine.word()) as u64;
        let cycles = machine.ddr_cycles(u64::from(rows.end - rows.start) * u64::from(view.width) * pixel);
        let step = (rows.end - rows.start).div_ceil(self.transfer_count(cycles) as u32);
        rows.clone().step_by(step as usize).map(|first| first..(first + step).min(rows.end)).collect()
    }

    /// Transfers to cut one of so many cycles into.
    fn transfer_count(&self, cycles: u64) -> u64 {
        let start = (LONG * self.context.machine.dma.start).max(1);
        if self.granularity() == TileGranularity::Coarse { 1 } else { (cycles / start).max(1) }
    }

    /// A buffer for rows of `view` that lives in the DDR; the view itself when it is in the cache.
    pub(super) fn stage_out(&mut self, view: &View, rows: Range<u32>) -> View {
        if view.space == Space::Cache { *view } else { self.stage(view, rows) }
    }

    pub(super) fn stage(&mut self, view: &View, rows: Range<u32>) -> View {
        let word = self.context.machine.word();
        let mut local = staged(view, rows, word);
        let stored = VirtualAddress::of_field(view.address).buffer;
        let name = self.code.buffers[stored.index()].name.clone();
        local.address = self.code.buffer(name, local.bytes(word), Memory::Cache, Content::Computed).at(0);
        local
    }

    /// Stores the rows of a slice to where `view` lives, if that is the DDR. `alone` as for copies of rows.
    pub(super) fn store(&mut self, view: &View, local: &View, rows: Range<u32>, alone: bool) {
        if view.space == Space::Cache {
            return;
        }
        let word = self.context.machine.word();
        for part in self.transfers(view, rows) {
            self.code.copy_rows(self.layer, Direction::Store, view, local, part, alone, word);
        }
    }

    /// A buffer of weights in parts to be loaded by a transfer each. Nothing is loaded behind those of the last step that has
    /// any: in parts those of its `last` tile keep both lines busy to the end.
    pub(super) fn weight_parts(&self, bytes: u64, last: bool) -> Vec<Range<u64>> {
        let machine = self.context.machine;
        let last = last && self.options.mode.paired() && self.last_weights == Some(self.index);
        let parts = if last { self.transfer_count(machine.ddr_cycles(bytes)) } else { 1 };
        let step = bytes.div_ceil(parts).next_multiple_of(machine.page_bytes().max(machine.word() as u64));
        (0..bytes).step_by(step as usize).map(|first| first..(first + step).min(bytes)).collect()
    }

    /// Size of transfers at which start-up is lost in the noise.
    pub(super) fn piece_bytes(&self) -> u64 {
        piece_bytes(self.context.machine)
    }
}

/// The last step with constants for weights.
pub(super) fn last_weights(network: &Network) -> Option<usize> {
    let has_weights = |op| Linear::of(op, network).is_some_and(|linear| network.is_constant(linear.right));
    network.steps.iter().rposition(|step| has_weights(&step.op))
}

/// Bytes of a transfer whose start-up is less than two per cent of it, in whole pages.
pub(crate) fn piece_bytes(machine: &Machine) -> u64 {
    let start = machine.dma.start + machine.dma.latency;
    let per_page = timing::run_cycles(machine.page_bytes(), 0, true, machine);
    (64 * start).div_ceil(per_page.max(1)).max(4) * machine.page_bytes()
}

/// A view of some rows in their natural layout, still without an address.
pub(crate) fn staged(view: &View, rows: Range<u32>, word: usize) -> View {
    View {
        space: Space::Cache,
        address: 0,
        pixel_bytes: tpuflow_ir::layout::pixel_bytes(view.payload(), word) as u32,
        channel_offset: 0,
        first_row: rows.start,
        stored_rows: rows.end - rows.start,
        ..*view
    }
}

/// Bytes needed to stage rows of a view: nothing when it is in the cache.
pub(crate) fn staged_bytes(view: &View, rows: Range<u32>, word: usize) -> u64 {
    if view.space == Space::Cache { 0 } else { staged(view, rows, word).bytes(word) }
}
