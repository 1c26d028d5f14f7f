//! Ports: inputs are brought to the cache, outputs are stored where they are read after a run.
//!
//! An output of pixels that leave much of their words empty lies in DDR without padding, pixel behind pixel, where that takes its
//! channel less time: a run for every pixel, but fewer bytes.

use std::ops::Range;

use tpuflow_ir::isa::Direction;
use tpuflow_ir::{Space, TensorId, View, timing};

use super::{Lowering, Shortage, TensorSpace, refine, slice_rows, slices, staged_bytes};
use crate::network::placement::natural;
use crate::virtual_program::{Content, Memory};

impl Lowering<'_> {
    /// Brings a network input that lives in the cache there, once; one that belongs into a concatenation to its place there.
    pub(super) fn fetch_input(&mut self, tensor: TensorId) -> Result<(), Shortage> {
        let (inputs, root) = (&self.context.graph.inputs, self.context.placement.of(tensor).root);
        let input = if inputs.contains(&tensor) { tensor } else { root };
        let is_there = self.memory_space(root) == TensorSpace::Ddr || self.cached.contains_key(&root);
        if !inputs.contains(&input) || input == root && is_there {
            return Ok(());
        }
        let word = self.context.machine.word();
        let view = natural(&self.context.network, input, word);
        let mut ddr = View { address: self.external_buffer(input).at(0), space: Space::Ddr(0), ..view };
        let mut to = self.operand(input);
        if to.space == Space::Cache {
            for rows in self.arrivals(&view) {
                self.code.copy_rows(self.layer, Direction::Load, &ddr, &to, rows, true, word);
            }
            return Ok(());
        }
        let mut views = [ddr, to];
        refine(&mut views, word);
        [ddr, to] = views;
        let need = |rows: Range<u32>| staged_bytes(&ddr, rows, word);
        let height = slice_rows(0..ddr.rows, self.free, need).ok_or(Shortage(Memory::Cache))?;
        for rows in slices(0..ddr.rows, height) {
            let staged = self.stage_in(&ddr, rows.clone());
            self.code.copy_rows(self.layer, Direction::Store, &to, &staged, rows, true, word);
        }
        Ok(())
    }

    /// Stores a network output where its port can show it: in a buffer of its own unless it lives in one.
    pub(super) fn deliver(&mut self, tensor: TensorId) -> Result<(), Shortage> {
        let wanted = self.context.graph.outputs.contains(&tensor);
        if !wanted || self.results.contains_key(&tensor) || self.is_in_place(tensor) {
            return Ok(());
        }
        self.fetch_input(tensor)?;
        let word = self.context.machine.word();
        let mut views = [self.operand(tensor), self.result_view(tensor)];
        if self.options.mode.paired() && views[0].space == Space::Cache {
            refine(&mut views, word);
        }
        let [from, to] = views;
        let pixels = self.pixels_per_store(&from, &to);
        if pixels < to.width {
            for row in 0..to.rows {
                for first in (0..to.width).step_by(pixels as usize) {
                    let columns = first..(first + pixels).min(to.width);
                    self.code.store_pixels(self.layer, &to, &from, row, columns, word);
                }
            }
            return Ok(());
        }
        let need = |rows: Range<u32>| staged_bytes(&from, rows, word);
        let height = slice_rows(0..to.rows, self.free, need).ok_or(Shortage(Memory::Cache))?;
        for rows in self.departures(&to, height) {
            let local = self.stage_in(&from, rows.clone());
            self.code.copy_rows(self.layer, Direction::Store, &to, &local, rows, true, word);
        }
        Ok(())
    }

    /// Pixels of a row that a store takes at a time: all of them unless the row is long and lies without padding, in pixels that
    /// no cut into shorter rows keeps on words.
    fn pixels_per_store(&self, from: &View, to: &View) -> u32 {
        let piece = (self.piece_bytes() / 4 / to.payload().max(1) as u64) as u32;
        let whole = (from.rows, from.width) == (to.rows, to.width) && from.space == Space::Cache;
        if !whole || !self.options.mode.paired() || to.pixel_bytes == from.pixel_bytes {
            return to.width;
        }
        // Whole words of the cache, which no two stores read.
        let in_word = (self.context.machine.word() as u32 / from.pixel_bytes).max(1);
        (piece / in_word * in_word).max(in_word)
    }

    /// Where a port of its own lies.
    pub(super) fn result_view(&mut self, tensor: TensorId) -> View {
        let layout = self.result_layout(tensor);
        let word = self.context.machine.word();
        let name = self.context.network.tensor(tensor).name.clone();
        let new = || self.code.buffer(name, layout.bytes(word), Memory::Ddr, Content::Output);
        let buffer = *self.results.entry(tensor).or_insert_with(new);
        View { address: buffer.at(0), space: Space::Ddr(0), ..layout }
    }

    /// How a port of its own lies in DDR: like a tensor in the cache, or pixel behind pixel where that takes a channel less time
    /// by more than a start-up and a twentieth. Of one address space over all channels, both lines would store at a time, and
    /// open a page for every pixel; rows of a state lie behind those of the past.
    pub(super) fn result_layout(&self, tensor: TensorId) -> View {
        let machine = self.context.machine;
        let word = machine.word();
        let padded = natural(&self.context.network, tensor, word);
        let tight = padded.without_padding();
        if self.is_new_rows(tensor)
            || self.is_exchanged(tensor)
            || machine.ddr.interleave_bytes > 0
            || padded.pixel_bytes == tight.pixel_bytes
        {
            return padded;
        }
        let pages = |view: &View| view.bytes(word).div_ceil(machine.page_bytes()) * machine.page_miss();
        let payload = tight.payload() as u64;
        let pixels = u64::from(tight.rows) * u64::from(tight.width);
        let run = timing::run_cycles(payload, payload.div_ceil(word as u64), false, machine);
        let cycles = pixels * run + pages(&tight);
        let usual = machine.ddr_cycles(padded.bytes(word)) + pages(&padded);
        let start = machine.dma.start + machine.dma.latency;
        if cycles + start.max(usual / 20) < usual { tight } else { padded }
    }

    /// Whether a tensor is the output of a state, which lies behind the rows of the past.
    fn is_new_rows(&self, tensor: TensorId) -> bool {
        let graph = self.context.graph;
        graph.states.iter().any(|state| graph.outputs[state.output as usize] == tensor)
    }

    /// Whether a tensor is a part of an exchange, which lies alike on all devices.
    fn is_exchanged(&self, tensor: TensorId) -> bool {
        let graph = self.context.graph;
        graph.exchanges.iter().any(|exchange| graph.outputs[exchange.output as usize] == tensor)
    }

    /// Whether a port can show the tensor where it lives in DDR.
    fn is_in_place(&self, tensor: TensorId) -> bool {
        let place = self.context.placement.of(tensor);
        if place.root != tensor && (self.is_new_rows(tensor) || self.is_exchanged(tensor)) {
            return false;
        }
        let word = self.context.machine.word();
        let external =
            self.memory_space(place.root) == TensorSpace::Ddr || self.context.graph.inputs.contains(&place.root);
        let view = natural(&self.context.network, tensor, word);
        external
            && (place.pixel_bytes, place.channel_offset) == (view.pixel_bytes, 0)
            && place.offset.is_multiple_of(word as u64)
    }

    /// Where a network's port lies.
    pub fn port(&mut self, tensor: TensorId) -> View {
        if self.results.contains_key(&tensor) {
            return self.result_view(tensor);
        }
        if self.context.graph.inputs.contains(&tensor) {
            let buffer = self.external_buffer(tensor);
            let view = natural(&self.context.network, tensor, self.context.machine.word());
            return View { address: buffer.at(0), space: Space::Ddr(0), ..view };
        }
        let root = self.context.placement.of(tensor).root;
        let buffer = self.external_buffer(root);
        self.context.placement.view(&self.context.network, tensor, Space::Ddr(0), buffer.at(0))
    }
}
