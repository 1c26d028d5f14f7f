//! Convolutions and matrix products on the array: column tiles, pixel chunks, and what is streamed when not everything fits.
//!
//! Columns are cut into tiles of the array's width, tiles gathered into *column groups* whose weights are in the cache at a
//! time, output rows into *slices* whose staged rows are. With one group and one slice (the usual case) everything is loaded
//! once. Otherwise either groups are the outer loop (weights pass once, staged inputs once per group) or slices are (inputs
//! pass once, weights once per slice), whichever moves fewer bytes.

use std::ops::Range;

use tpuflow_ir::isa::{ChannelParameters, Codes, Direction, Expand, FloatOutput, Matrix, MatrixDescriptor, Weights};
use tpuflow_ir::{DType, Descriptor, Op, Packed, Space, Table, TensorId, View, Work, timing};

use super::cut::{Cut, Shape};
use super::reduce::cut_out;
use super::{Lowering, Shortage, codes, refine, slices};
use crate::network::Linear;
use crate::virtual_program::{BufferId, Content, Memory, Packing, Tile, VirtualInstruction};

/// Weights and channel parameters of a group in the caches.
struct Loaded {
    /// By tile of the group.
    weights: Vec<Weights>,
    /// By tile, its loads if they are still to be made: as late as possible, for a buffer lives from its load on.
    pending: Vec<Vec<VirtualInstruction>>,
    parameters: BufferId,
    first_column: u32,
}

impl Lowering<'_> {
    pub(super) fn matrix(&mut self, op: &Op, output: TensorId) -> Result<(), Shortage> {
        let network = &self.context.network;
        let Some(linear) = Linear::of(op, network) else { return Ok(()) };
        let (Op::Conv { epilogue, .. } | Op::MatMul { epilogue, .. }) = op else { return Ok(()) };
        let fixed = epilogue.fixed();
        let (x, w) = (network.tensor(linear.input), network.tensor(linear.right));
        let (input_zero, weight_zero, weight_dtype) = (x.zero_point(), w.zero_point(), w.dtype);
        let fused = fixed.and_then(|e| e.table.as_ref());
        // Small pixels of the last tile are dense in rows of the image alone.
        let is_packed = self.tail(output).is_some() && self.is_in_blocks(output);
        let mut whole = None;
        let mut pieces = Vec::new();
        for (linear, mut views, right) in self.matrices(linear, output) {
            let line = self.line(output, &views, linear.leads);
            if linear.is_plain() && !is_packed {
                refine(&mut views, self.context.machine.word());
            }
            whole = whole.or(Some(views[1]));
            let shape = Shape {
                rows: views[1].rows / linear.leads,
                line,
                wide: timing::has_wide_sums(x.dtype, w.dtype),
                input: views[0],
                output: views[1],
                right,
                weight_dtype,
                linear,
            };
            match self.cut(&shape, fused) {
                Ok(mut cut) => {
                    self.taper(&mut cut, output);
                    pieces.push((shape, cut));
                }
                Err(shortage) => pieces.extend(self.along_the_line(&shape, fused).ok_or(shortage)?),
            }
        }
        let Some(whole) = whole else { return Ok(()) };
        let table = fused.map(|t| self.table(t));
        let blocks = self.blocks(output, &whole);
        let mut parameters = None;
        let begin = self.code.instructions.len();
        for (shape, cut) in pieces {
            let descriptor = self.descriptor(Descriptor::Matrix(MatrixDescriptor {
                input_zero,
                weight_zero,
                first_shift: fixed.and_then(|e| e.first_shift),
                codes: fixed.map_or(Codes { zero_point: 0, lo: 0, hi: 0 }, |e| codes(&e.requant)),
                table: table.map(|t| t.0),
                float: epilogue.float().map(FloatOutput::from),
                ..shape.linear.descriptor(weight_dtype)
            }));
            let row = shape.output.width as usize * shape.output.pixel_bytes as usize;
            let alone = self.alone(output)
                && (shape.output.width == whole.width || row.is_multiple_of(self.context.machine.word()));
            let blocks = blocks.clone();
            let mut state = Nest { shape, cut, descriptor, table: table.map(|t| t.1), blocks, alone };
            self.nest(&mut state, &mut parameters);
        }
        self.first_tokens_first(begin);
        Ok(())
    }

    /// Puts the products of a stack from `begin` on in the order of their tokens, where nothing is loaded or stored between: what
    /// follows can begin with the first tokens of all matrices.
    fn first_tokens_first(&mut self, begin: usize) {
        let layer = &mut self.code.instructions[begin..];
        let loads = layer.iter().take_while(|each| !matches!(each.work, Work::Matrix(_))).count();
        let pixel =
            |each: &VirtualInstruction| if let Work::Matrix(m) = &each.work { Some(m.first_pixel) } else { None };
        if layer[loads..].iter().all(|each| pixel(each).is_some()) {
            layer[loads..].sort_by_key(pixel);
        }
    }

    /// A product with the views of its operands and its result: one for each matrix where those of a stack lie side by side.
    fn matrices(&mut self, linear: Linear, output: TensorId) -> Vec<(Linear, [View; 2], Option<View>)> {
        let tensors = [linear.input, output, linear.right];
        let is_apart = |tensor: &TensorId| self.context.placement.of(*tensor).beside.is_some();
        if !tensors.iter().any(is_apart) {
            let computed = !self.context.network.is_constant(linear.right);
            let views = [self.operand(linear.input), self.operand(output)];
            let right = computed.then(|| self.operand(linear.right));
            return vec![(linear, views, right)];
        }
        let [input, output, right] = tensors;
        let [mine, theirs] = [input, output].map(|tensor| self.context.placement.stretches(tensor));
        // Either is one, as a rule.
        let parts = if mine.is_multiple_of(theirs) { mine } else { mine * theirs };
        let single = Linear { leads: 1, ..linear };
        let pieces = (0..linear.leads).flat_map(|index| (0..parts).map(move |part| (index, part)));
        let piece = |(index, part): (u32, u32)| {
            let rows = [input, output].map(|tensor| self.matrix_of(tensor, index, [part, parts]));
            (single.clone(), rows, Some(self.matrix_of(right, index, [0, 1])))
        };
        pieces.map(piece).collect()
    }

    /// A convolution along one axis whose lines are too long: stretches of each line, as convolutions of their own with what
    /// is left of the padding.
    fn along_the_line(&self, shape: &Shape, table: Option<&Table>) -> Option<Vec<(Shape, Cut)>> {
        let (window, word) = (shape.linear.window, self.context.machine.word());
        let (from, to) = (&shape.input, &shape.output);
        let is_line = window.kernel[0] == 1 && from.height == 1 && to.height == 1;
        let apart = [from, to].iter().all(|view| view.space != Space::Cache);
        if !is_line || window.pads[0] + window.pads[2] != 0 || !apart || shape.right.is_some() || shape.linear.leads > 1
        {
            return None;
        }
        let width = i64::from(from.width);
        // From the first pixel under the windows of some columns to behind the last, padding included.
        let under = |columns: &Range<u32>| {
            let (stride, left) = (i64::from(window.stride[1]), i64::from(window.pads[1]));
            let reach = i64::from((window.kernel[1] - 1) * window.dilation[1]) + 1;
            (i64::from(columns.start) * stride - left, i64::from(columns.end - 1) * stride - left + reach)
        };
        let sees_pixels = |columns: &Range<u32>| {
            let (start, end) = under(columns);
            start < width && end > 0
        };
        // Stretches that see nothing but padding are part of their neighbour.
        let stretches = |step: u32| {
            let mut found: Vec<Range<u32>> = Vec::new();
            for columns in slices(0..to.width, step) {
                match found.last_mut() {
                    Some(last) if !sees_pixels(last) || !sees_pixels(&columns) => last.end = columns.end,
                    _ => found.push(columns),
                }
            }
            found
        };
        let piece = |image: u32, columns: Range<u32>| -> Option<Shape> {
            if !sees_pixels(&columns) {
                return None;
            }
            let (start, end) = under(&columns);
            let (first, last) = (start.max(0), end.min(width));
            let pads = [0, (first - start) as u32, 0, (end - last) as u32];
            let at = |view: &View, column: u32, count: u32| {
                let channels = view.channels as usize;
                let start = (image as usize * view.width as usize + column as usize) * channels;
                cut_out(view, start, count as usize * channels, word)
            };
            let mut piece = shape.clone();
            piece.linear.window.pads = pads;
            piece.input = at(from, first as u32, (last - first) as u32)?;
            piece.output = at(to, columns.start, columns.end - columns.start)?;
            piece.rows = 1;
            piece.line = piece.output.width.max(1);
            Some(piece)
        };
        let mut step = to.width.div_ceil(2);
        while step > 0 {
            let pieces: Option<Vec<(Shape, Cut)>> = (0..to.rows)
                .flat_map(|image| stretches(step).into_iter().map(move |columns| (image, columns)))
                .map(|(image, columns)| {
                    let shape = piece(image, columns)?;
                    let cut = self.cut(&shape, table).ok()?;
                    Some((shape, cut))
                })
                .collect();
            if pieces.is_some() {
                return pieces;
            }
            step /= 2;
        }
        None
    }

    /// The loops of a piece; `parameters`: those of all columns, once a piece has loaded them.
    fn nest(&mut self, nest: &mut Nest, parameters: &mut Option<BufferId>) {
        let once =
            (nest.cut.groups.len() == 1).then(|| *parameters.get_or_insert_with(|| self.group_parameters(nest, 0)));
        for lead in 0..nest.shape.linear.leads {
            let rows = lead * nest.shape.rows..(lead + 1) * nest.shape.rows;
            let all: Vec<Range<u32>> = slices(rows, nest.cut.height).collect();
            if nest.cut.rows_outside && nest.cut.groups.len() > 1 {
                for rows in all {
                    let input = self.stage_in(&nest.shape.input.clone(), nest.shape.input_rows(rows.clone()));
                    let output = self.stage_out(&nest.shape.output.clone(), rows.clone());
                    for group in 0..nest.cut.groups.len() {
                        let mut loaded = self.group(nest, lead, group, once);
                        self.multiply(nest, group, &mut loaded, &input, &output, 0, rows.clone());
                    }
                    self.store(&nest.shape.output.clone(), &output, rows, nest.alone);
                }
            } else {
                let single = (all.len() == 1)
                    .then(|| self.stage_in(&nest.shape.input.clone(), nest.shape.input_rows(all[0].clone())));
                for group in 0..nest.cut.groups.len() {
                    let mut loaded = self.group(nest, lead, group, once);
                    for rows in &all {
                        let input = single.unwrap_or_else(|| {
                            self.stage_in(&nest.shape.input.clone(), nest.shape.input_rows(rows.clone()))
                        });
                        let part = nest.group_output(group);
                        let output = self.stage_out(&part, rows.clone());
                        let (output, shift) = if part.space == Space::Cache {
                            (nest.shape.output, 0)
                        } else {
                            (output, nest.first_column(group))
                        };
                        self.multiply(nest, group, &mut loaded, &input, &output, shift, rows.clone());
                        let alone = nest.alone && nest.cut.groups.len() == 1;
                        if self.options.write_through && !alone && part.space != Space::Cache {
                            // A run for every pixel, and no pixel is done before all.
                            let (layer, word) = (self.layer, self.context.machine.word());
                            let to = Direction::Store;
                            self.code.copy_rows(layer, to, &part, &output, rows.clone(), false, word);
                        } else {
                            self.store(&part, &output, rows.clone(), alone);
                        }
                    }
                    self.deliver_columns(nest, lead, group);
                }
            }
        }
    }

    /// Stores a large network output group by group, while the next groups are computed.
    fn deliver_columns(&mut self, nest: &Nest, lead: u32, group: usize) {
        let (tensor, word) = (self.output(), self.context.machine.word());
        let mut to = [self.result_layout(tensor)];
        if nest.shape.linear.is_plain() {
            refine(&mut to, word);
        }
        let from = nest.shape.output;
        let worth = self.options.mode.paired() && to[0].bytes(word) > 4 * self.piece_bytes();
        let wanted = self.context.graph.outputs.contains(&tensor) && from.space == Space::Cache;
        if !worth || !wanted || nest.cut.groups.len() == 1 || (to[0].rows, to[0].width) != (from.rows, from.width) {
            return;
        }
        let to = View { address: self.result_view(tensor).address, space: Space::Ddr(0), ..to[0] };
        let rows = lead * nest.shape.rows..(lead + 1) * nest.shape.rows;
        let (to, from) = (nest.columns(&to, group), nest.columns(&from, group));
        self.code.copy_rows(self.layer, Direction::Store, &to, &from, rows, false, word);
    }

    /// Loads what a group needs beside its staged rows.
    fn group(&mut self, nest: &Nest, lead: u32, group: usize, parameters: Option<BufferId>) -> Loaded {
        let parameters = parameters.unwrap_or_else(|| self.group_parameters(nest, group));
        let range = nest.cut.groups[group].clone();
        let tiles = &nest.cut.tiles[range];
        let (weights, pending) = match nest.shape.right {
            Some(view) => (self.streamed_weights(nest, &view, lead, tiles), vec![Vec::new(); tiles.len()]),
            None => self.packed_weights(nest, lead, tiles),
        };
        Loaded { weights, pending, parameters, first_column: nest.first_column(group) }
    }

    fn group_parameters(&mut self, nest: &Nest, group: usize) -> BufferId {
        let tiles = &nest.cut.tiles[nest.cut.groups[group].clone()];
        let count: u32 = tiles.iter().map(|t| t.1).sum();
        let bytes = count as usize * ChannelParameters::bytes(nest.shape.wide);
        let step = self.context.network.parameters_of(self.index);
        let packing = Packing::Parameters { step, first: nest.first_column(group), count };
        self.parameters("parameters", bytes, packing)
    }

    /// Weights of constant right operands, a buffer for all tiles at once or one for each.
    fn packed_weights(
        &mut self,
        nest: &Nest,
        lead: u32,
        tiles: &[(u32, u32)],
    ) -> (Vec<Weights>, Vec<Vec<VirtualInstruction>>) {
        let word = self.context.machine.word();
        let (linear, dtype) = (&nest.shape.linear, nest.shape.weight_dtype);
        let packed = linear.packed(&self.context.network).cloned();
        let packed = packed.as_ref();
        let name = format!("weights of {}", self.context.network.layer_name(self.index));
        let at_once = if self.options.mode.paired() { 1 } else { tiles.len() };
        let mut weights = Vec::with_capacity(tiles.len());
        let mut pending = Vec::with_capacity(tiles.len());
        for part in tiles.chunks(at_once.max(1)) {
            let bytes = part.iter().map(|&(_, n)| linear.tile_bytes(n, dtype, word)).sum();
            let sources: Vec<(BufferId, Option<Expand>)> = match packed {
                Some(packed) => part.iter().map(|&tile| self.packed_tile(linear, packed, tile, &name)).collect(),
                None => {
                    let step = self.context.network.weights_of(self.index);
                    let list: Vec<Tile> = part.iter().map(|&(first, count)| (lead, first, count)).collect();
                    let content = Content::Constant(Packing::Weights { step, tiles: list });
                    vec![(self.code.buffer(name.clone(), bytes, Memory::Ddr, content), None)]
                }
            };
            let to = self.code.buffer(name.clone(), bytes, Memory::Cache, Content::Computed);
            let loads = self.code.instructions.len();
            let last = part.last() == nest.cut.tiles.last();
            let mut local = 0;
            for (from, tile) in sources {
                if let Some(tile) = tile {
                    self.expand(&tile, from, to.at(local), last);
                    local += tile.bytes().next_multiple_of(word as u64);
                    continue;
                }
                for bytes in self.weight_parts(bytes, last) {
                    self.code.load(self.layer, from, to, Memory::Cache, bytes);
                }
            }
            pending.push(if self.options.mode.paired() { self.code.instructions.split_off(loads) } else { Vec::new() });
            pending.resize(weights.len() + part.len(), Vec::new());
            let mut offset = 0;
            for &(_, columns) in part {
                let size = linear.tile_bytes(columns, dtype, word);
                weights.push(Weights {
                    address: to.at(offset),
                    row_bytes: linear.row_bytes(columns, dtype, word) as u32,
                    plane_bytes: if dtype == DType::I16 { (size / 2) as u32 } else { 0 },
                });
                offset += size;
            }
        }
        (weights, pending)
    }

    /// A tile of packed weights in DDR, and how it is loaded.
    fn packed_tile(
        &mut self,
        linear: &Linear,
        packed: &Packed,
        tile: (u32, u32),
        name: &str,
    ) -> (BufferId, Option<Expand>) {
        let part = linear.packed_tile(&self.context.network, tile, self.context.machine.word());
        let expand = part.expand(packed);
        let content = Content::Constant(Packing::Expand(part));
        (self.code.buffer(name.to_owned(), expand.packed_bytes(), Memory::Ddr, content), Some(expand))
    }

    /// Loads a tile of packed weights in as many parts as it would be loaded in otherwise.
    fn expand(&mut self, tile: &Expand, from: BufferId, to: u64, last: bool) {
        let parts = self.weight_parts(tile.packed_bytes(), last).len() as u32;
        let step = tile.rows.div_ceil(parts.max(1)).next_multiple_of(tile.block);
        for first in (0..tile.rows).step_by(step as usize) {
            let before = Expand { rows: first, ..*tile };
            let part = Expand {
                ddr_address: from.at(before.packed_bytes()),
                local_address: to + before.bytes(),
                rows: step.min(tile.rows - first),
                ..*tile
            };
            self.code.instructions.push(VirtualInstruction::new(self.layer, Work::Expand(part)));
        }
    }

    /// Weights that are an activation: where it lies, or the group's columns of it staged.
    fn streamed_weights(&mut self, nest: &Nest, view: &View, lead: u32, tiles: &[(u32, u32)]) -> Vec<Weights> {
        let (word, size) = (self.context.machine.word(), view.dtype.bytes() as u32);
        let row = if view.rows == nest.shape.linear.leads { lead } else { 0 };
        let first = tiles[0].0;
        let columns: u32 = tiles.iter().map(|t| t.1).sum();
        let part = View {
            channels: columns,
            channel_offset: view.channel_offset + first * size,
            origin: [view.origin[0], view.origin[1] + first],
            ..*view
        };
        let local = self.stage_in(&part, row..row + 1);
        let base = local.pixel_address(row, 0, word);
        let weights = |&(column, _): &(u32, u32)| Weights {
            address: base + u64::from((column - first) * size),
            row_bytes: local.pixel_bytes,
            plane_bytes: 0,
        };
        tiles.iter().map(weights).collect()
    }

    /// K blocks of all column tiles of a layer.
    fn blocks_in_all(&self, nest: &Nest) -> u64 {
        let (shape, machine) = (&nest.shape, self.context.machine);
        let descriptor = shape.linear.descriptor(shape.weight_dtype);
        let blocks = |&(first, count): &(u32, u32)| timing::blocks(&descriptor, &shape.input, first, count, machine);
        let passes = timing::passes(shape.input.dtype, shape.weight_dtype);
        nest.cut.tiles.iter().map(|tile| blocks(tile).len() as u64).sum::<u64>() * passes
    }

    /// The instructions of a group for output rows `rows`; `output` holds columns from `shift` on.
    #[expect(clippy::too_many_arguments, reason = "one call site's loop variables")]
    fn multiply(
        &mut self,
        nest: &Nest,
        group: usize,
        loaded: &mut Loaded,
        input: &View,
        output: &View,
        shift: u32,
        rows: Range<u32>,
    ) {
        let (start, end) = (rows.start * output.width, rows.end * output.width);
        let chunks = self.chunks(nest.shape.line, nest.shape.wide, start..end, self.blocks_in_all(nest));
        let entry = ChannelParameters::bytes(nest.shape.wide) as u32;
        for chunk in chunks {
            for (index, tile) in nest.cut.groups[group].clone().enumerate() {
                let weights = loaded.weights[index];
                self.code.instructions.append(&mut loaded.pending[index]);
                let (first_column, columns) = nest.cut.tiles[tile];
                let block = first_column / self.context.machine.array.columns;
                let block = nest.blocks.as_ref().and_then(|blocks| blocks.get(block as usize));
                let (output, shift) = block.map_or((*output, shift), |block| (*block, block.origin[1]));
                let matrix = Matrix {
                    descriptor: nest.descriptor,
                    input: *input,
                    output,
                    first_pixel: chunk.start,
                    pixels: chunk.end - chunk.start,
                    first_column,
                    columns,
                    output_channel: first_column - shift,
                    weights,
                    parameters: 0,
                    table: 0,
                };
                let parameters = (loaded.parameters, (first_column - loaded.first_column) * entry);
                self.instruction(Work::Matrix(matrix), [Some(parameters), nest.table.map(|t| (t, 0)), None]);
            }
        }
    }
}

/// Everything the loop nest of a step needs.
struct Nest {
    shape: Shape,
    cut: Cut,
    descriptor: tpuflow_ir::DescriptorId,
    table: Option<BufferId>,
    /// Views of the output by column tile, where these lie apart.
    blocks: Option<Vec<View>>,
    alone: bool,
}

impl Nest {
    fn first_column(&self, group: usize) -> u32 {
        self.cut.tiles[self.cut.groups[group].start].0
    }

    /// The output narrowed to a group's columns when it lives in the DDR.
    fn group_output(&self, group: usize) -> View {
        let view = self.shape.output;
        if view.space == Space::Cache || self.cut.groups.len() == 1 { view } else { self.columns(&view, group) }
    }

    /// A view of a group's columns alone.
    fn columns(&self, view: &View, group: usize) -> View {
        let channels = self.cut.tiles[self.cut.groups[group].clone()].iter().map(|t| t.1).sum();
        let first = self.first_column(group);
        let channel_offset = view.channel_offset + first * view.dtype.bytes() as u32;
        View { channels, channel_offset, origin: [view.origin[0], view.origin[1] + first], ..*view }
    }
}
