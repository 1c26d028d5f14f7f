//! Stretches of pixels for the array's instructions.
//!
//! Small images are cut in two though each half costs the array a tile, unless that is more than it loses where it drains
//! between two layers. Halves move up by a row with every window on the
//! way, so that the first half of a layer finds all it needs in the first half of the layer before:
//!
//! ```text
//!  rows   expand      depthwise 3x3   project   expand      depthwise 3x3   project
//!  0..    ########    #######         #######   #######     ######          ######
//!  ..14   ......      .......         .......   .......     ........        ........
//! ```

use std::ops::Range;

use tpuflow_ir::{Op, TensorId, View, layout, timing};

use super::{Lowering, slices};
use crate::network::{Linear, Network, Step, is_depthwise};
use crate::options::granularity::TileGranularity;

impl Lowering<'_> {
    /// The pixels `all`, `line` to an image row, in stretches for an instruction each: as many as the accumulators take, or, finely cut, the fewest
    /// image rows that hide the next instruction's weights and waste no slots. The layer has `blocks` K blocks in all its column tiles.
    pub(super) fn chunks(&self, line: u32, wide: bool, all: Range<u32>, blocks: u64) -> Vec<Range<u32>> {
        let (machine, pixels) = (self.context.machine, all.end - all.start);
        let most = machine.matrix_rows(wide) as u32;
        let by = |chunk: u32| -> Vec<Range<u32>> { slices(all.clone(), chunk).collect() };
        let even = pixels.div_ceil(pixels.div_ceil(most));
        if !self.options.mode.paired() || self.granularity() == TileGranularity::Coarse {
            return by(even);
        }
        let least = self.least(pixels / line, line);
        if self.is_halved(pixels / line, line) && self.is_worth_halves(pixels, blocks) {
            let fits = |&first: &u32| (first * line).max(pixels - first * line) <= most;
            if let Some(first) = self.shrunk(pixels / line, line).filter(fits) {
                let middle = all.start + first * line;
                return vec![all.start..middle, middle..all.end];
            }
            return by(((pixels / line).div_ceil(2).max(1) * line).min(even));
        }
        let slots = |chunk: u32| {
            let rest = u64::from(pixels % chunk);
            let last = if rest > 0 { timing::tile_slots(rest, machine) } else { 0 };
            u64::from(pixels / chunk) * timing::tile_slots(chunk.into(), machine) + last
        };
        let rows = (least..=most / line).map(|lines| lines * line);
        by(rows.chain([even]).min_by_key(|&chunk| (slots(chunk), chunk)).unwrap_or(even))
    }

    /// The fewest of `rows` image rows that hide the next instruction's weights.
    fn least(&self, rows: u32, line: u32) -> u32 {
        let least = (self.context.machine.array.rows + self.context.machine.control.issue as u32).div_ceil(line);
        least.max((u64::from(rows) / self.context.parameters.pieces()) as u32)
    }

    /// Whether an image is cut in two though each half costs the array a tile.
    fn is_halved(&self, rows: u32, line: u32) -> bool {
        let least = match self.granularity() {
            TileGranularity::Finest(_) | TileGranularity::Shortest => self.context.machine.array.rows,
            TileGranularity::Halves => 2,
            _ => return false,
        };
        let may_be_cut = self.options.mode.paired() && self.context.parameters.pieces() > 1;
        may_be_cut && rows < 2 * self.least(rows, line) && rows * line >= least
    }

    /// Whether two halves of so many pixels cost the array less than to wait for its last results, for those of the elementwise
    /// unit after them, and to be set up anew. Of an image that one tile takes, second halves must fit into the time in which the
    /// next layer waits for the first ones.
    fn is_worth_halves(&self, pixels: u32, blocks: u64) -> bool {
        let machine = self.context.machine;
        let rows = u64::from(machine.array.rows);
        if u64::from(pixels) < rows {
            let step = &self.context.network.steps[self.index];
            let matrices = Linear::of(&step.op, &self.context.network).map_or(1, |linear| linear.leads);
            return rows * blocks * u64::from(matrices) <= timing::array_depth(machine) + machine.control.issue + rows;
        }
        let lost = (2 * rows).saturating_sub(rows.max(pixels.into())) * blocks;
        let results = timing::array_depth(machine) + machine.ewp.start + machine.ewp.latency;
        lost <= results + machine.control.issue_cold + machine.array.setup + rows
    }

    /// Rows `rows` of a view of the current result that has `count` of them, in pieces of about `piece` rows for the other
    /// units: whole rows of the image where they are that long. They begin anew where the array's halves of a small image meet.
    pub(super) fn pieces(&self, rows: Range<u32>, count: u32, piece: u32) -> Vec<Range<u32>> {
        let (lines, _, line, _) = layout::image(&self.context.network.tensor(self.output()).shape);
        let (lines, line) = (lines.max(1) as u32, line.max(1) as u32);
        if self.sequences[self.output().index()] && count > 0 && (lines * line).is_multiple_of(count) {
            // Tokens of a line that share a word are a row.
            let tokens = lines * line / count;
            if tokens == 1 || lines == 1 && tokens < line && line.is_multiple_of(tokens) {
                return self.pieces_of_tokens(rows, line / tokens, tokens, piece.max(1));
            }
        }
        let whole = if count.is_multiple_of(lines) { count / lines } else { 1 };
        let piece = if piece < whole { piece } else { self.suited(lines, line, piece.div_ceil(whole)) * whole };
        let middle = self.shrunk(lines, line).filter(|_| self.is_halved(lines, line) && count.is_multiple_of(lines));
        let middle = middle.map(|first| first * (count / lines)).filter(|middle| rows.contains(middle));
        let ends = [rows.start, middle.unwrap_or(rows.end), rows.end];
        // About as many pieces in all.
        let number = |part: u32| ((2 * part + piece) / (2 * piece.max(1))).max(1);
        let even = |part: u32| if middle.is_some() { part.div_ceil(number(part)) } else { piece };
        ends.windows(2).flat_map(|ends| slices(ends[0]..ends[1], even(ends[1] - ends[0]))).collect()
    }

    /// Pixels of a result that the array's instructions hold together: a row of the image, or of tokens as many as fill a word.
    pub(super) fn line(&self, output: TensorId, views: &[View; 2], leads: u32) -> u32 {
        let to = &views[1];
        let is_one_row = to.rows == leads && self.sequences[output.index()];
        let smallest = views.iter().map(|view| view.pixel_bytes).min().unwrap_or(1).max(1);
        let few = self.context.machine.cache.word_bytes.div_ceil(smallest);
        if is_one_row { few.min(to.width).max(1) } else { to.width.max(1) }
    }

    /// The same for tokens, `length` rows of `tokens` for each matrix of a stack: pieces begin anew with each matrix and where the
    /// array's halves or tiles of it meet. First halves of all matrices come first, so that what follows can begin with the first
    /// tokens.
    fn pieces_of_tokens(&self, rows: Range<u32>, length: u32, tokens: u32, piece: u32) -> Vec<Range<u32>> {
        let middle = self.shrunk(length, tokens).filter(|_| self.is_halved(length, tokens));
        if piece >= length && middle.is_none() {
            return slices(rows, piece / length * length).collect();
        }
        let of_matrix = |matrix: u32, tokens: &Range<u32>, piece: u32| {
            let at = |token: u32| (matrix * length + token).clamp(rows.start, rows.end);
            let part = at(tokens.start)..at(tokens.end);
            // About as long, and even.
            let even = part.len() as u32;
            slices(part, even.div_ceil(even.div_ceil(piece).max(1)).max(1)).collect::<Vec<_>>()
        };
        let matrices = rows.start / length..rows.end.div_ceil(length);
        if let Some(middle) = middle {
            let halves = [0..middle, middle..length];
            return halves.iter().flat_map(|half| matrices.clone().flat_map(|m| of_matrix(m, half, piece))).collect();
        }
        let tile = self.tile(length, tokens);
        let tiles: Vec<Range<u32>> = slices(0..length, piece.next_multiple_of(tile)).collect();
        let piece = if piece < tile { piece } else { length };
        matrices.flat_map(|matrix| tiles.iter().flat_map(move |tile| of_matrix(matrix, tile, piece))).collect()
    }

    /// At least `piece` of `rows` image rows, such that pieces end where the array's do, if that is not much more.
    fn suited(&self, rows: u32, line: u32, piece: u32) -> u32 {
        let tile = self.tile(rows, line);
        if piece >= tile {
            return piece.next_multiple_of(tile);
        }
        (piece..=tile.min(2 * piece)).find(|part| tile.is_multiple_of(*part)).unwrap_or(piece)
    }

    /// Image rows of the array's first instruction, of `rows` in all.
    fn tile(&self, rows: u32, line: u32) -> u32 {
        let tile = self.chunks(line, false, 0..rows * line, 1)[0].clone();
        ((tile.end - tile.start) / line).max(1)
    }

    /// Of `rows` image rows that two tiles just take, those of the first: fewer with every window on the way, so that what is
    /// needed of them for the same part of the next layer is there. Where one tile takes all, either part has a quarter or more.
    fn shrunk(&self, rows: u32, line: u32) -> Option<u32> {
        let tile = self.context.machine.array.rows;
        let most = if rows * line < tile { rows.saturating_sub((rows / 4).max(1)) } else { (tile / line).min(rows) };
        let least = rows - most;
        if 2 * most < rows || least == 0 {
            return None;
        }
        // Tokens need nothing of each other: the other units have as much to do for either half.
        let is_even = self.sequences[self.output().index()] && self.granularity() == TileGranularity::Halves;
        let halo = self.halos[self.output().index()];
        Some(if is_even { rows.div_ceil(2) } else { most - halo % (most - least + 1) })
    }
}

/// By tensor, whether its rows are tokens: operands and results of products of a single row of pixels or of stacks, and of
/// convolutions along a single line, and what is computed row by row of such or for such. Lines on the way to or from the pooling
/// unit, which takes whole rows, are none.
pub(super) fn sequences(network: &Network) -> Vec<bool> {
    let rows = |tensor: TensorId| layout::image(&network.tensor(tensor).shape).0;
    let tensors = |step: &Step| network.streams(&step.op).into_iter().chain([step.output]).collect::<Vec<_>>();
    let is_line = |step: &Step| tensors(step).into_iter().all(|tensor| rows(tensor) == 1);
    let convolves = |step: &&Step| matches!(step.op, Op::Conv { .. }) && is_line(step);
    let mut pooled = vec![false; network.tensors.len()];
    let pools = |op: &Op| matches!(op, Op::MaxPool { .. } | Op::AveragePool { .. }) || is_depthwise(network, op);
    for step in network.steps.iter().filter(|step| pools(&step.op)) {
        tensors(step).into_iter().for_each(|tensor| pooled[tensor.index()] = true);
    }
    spread(network, &mut pooled, |step| if convolves(&step) { tensors(step) } else { rowwise(network, step) });
    let mut found = vec![false; network.tensors.len()];
    for step in network.steps.iter().filter(|step| matches!(step.op, Op::MatMul { .. }) || convolves(step)) {
        let Some(linear) = Linear::of(&step.op, network).filter(|_| !pooled[step.output.index()]) else { continue };
        for tensor in tensors(step) {
            found[tensor.index()] |= rows(tensor) == linear.leads as usize;
        }
    }
    spread(network, &mut found, |step| rowwise(network, step));
    found
}

/// The result of a step, and operands of its shape from which it is computed row by row.
fn rowwise(network: &Network, step: &Step) -> Vec<TensorId> {
    let is_rowwise = matches!(
        step.op,
        Op::Binary { .. } | Op::Unary { .. } | Op::Rescale { .. } | Op::Softmax { .. } | Op::LayerNorm { .. }
    );
    let shape = &network.tensor(step.output).shape;
    let same = network.streams(&step.op).into_iter().filter(|t| is_rowwise && network.tensor(*t).shape == *shape);
    same.chain([step.output]).collect()
}

/// Marks what is alike of something marked, downstream and upstream.
fn spread(network: &Network, marks: &mut [bool], alike: impl Fn(&Step) -> Vec<TensorId>) {
    let mut join = |step: &Step| {
        let all = alike(step);
        let any = all.iter().any(|tensor| marks[tensor.index()]);
        all.iter().for_each(|tensor| marks[tensor.index()] |= any);
    };
    network.steps.iter().for_each(&mut join);
    network.steps.iter().rev().for_each(&mut join);
}

/// By tensor, the rows below a row of it that it needs of the first tensor of its size upstream.
pub(super) fn halos(network: &Network) -> Vec<u32> {
    let mut halos = vec![0; network.tensors.len()];
    let image = |tensor: TensorId| {
        let (_, height, width, _) = layout::image(&network.tensor(tensor).shape);
        (height, width)
    };
    for step in &network.steps {
        let own = match &step.op {
            Op::Conv { window, .. } | Op::MaxPool { window, .. } | Op::AveragePool { window, .. } => {
                ((window.kernel[0] - 1) * window.dilation[0]).saturating_sub(window.pads[0])
            }
            _ => 0,
        };
        let alike = network.streams(&step.op).into_iter().filter(|&t| image(t) == image(step.output));
        halos[step.output.index()] = alike.map(|t| halos[t.index()] + own).max().unwrap_or(0);
    }
    halos
}

#[cfg(test)]
mod tests {
    use tpuflow_ir::{Graph, Machine, Window, Work};

    use crate::budget::SearchBudget;
    use crate::common::{Net, window};
    use crate::context::PlanningContext;
    use crate::options::granularity::{StageGranularities, TileGranularity};
    use crate::options::{PipelineMode, PlanOptions};
    use crate::parameters::Parameters;

    /// Instructions of a plan that cuts all layers alike.
    fn works(graph: &Graph, granularity: TileGranularity) -> Vec<Work> {
        let (machine, parameters) = (Machine::preset("128x128_asic").expect("known"), Parameters::o5());
        let budget = SearchBudget { seed: 0, steps: 1, deadline: None };
        let context = PlanningContext::new(graph, &machine, budget, &parameters).expect("a sound graph");
        let mode = PipelineMode::Interleaved { granularities: StageGranularities::even(granularity) };
        let plan = context.plan(PlanOptions::new(mode), &|_| None).expect("a plan that fits");
        let program = plan.program(&context);
        assert_eq!(tpuflow_checker::check(graph, &program), Ok(()));
        program.instructions.into_iter().map(|instruction| instruction.work).collect()
    }

    /// Pixels of the array's instructions, by channels of their results.
    fn pieces(graph: &Graph, granularity: TileGranularity, channels: u32) -> Vec<u32> {
        let works = works(graph, granularity).into_iter();
        let matrices = works.filter_map(|work| if let Work::Matrix(m) = work { Some(m) } else { None });
        matrices.filter(|m| m.output.channels == channels).map(|m| m.pixels).collect()
    }

    #[test]
    fn small_images_are_halved_where_that_costs_less_than_to_drain() {
        // 169 pixels: a half more costs 87 slots a K block, of which the second layer has four and the third 18.
        let mut net = Net::new(7);
        let x = net.input(&[1, 13, 13, 64]);
        let y = net.conv(x, 512, window(1, 1, 0), 1);
        let y = net.conv(y, 96, window(1, 1, 0), 1);
        let y = net.conv(y, 256, window(3, 1, 1), 1);
        let graph = net.finish(&[y]);
        assert_eq!(pieces(&graph, TileGranularity::Finest(2), 96).len(), 2);
        assert_eq!(pieces(&graph, TileGranularity::Finest(2), 256), [169, 169]);
    }

    #[test]
    fn images_of_one_tile_are_halved_where_second_halves_hide_in_the_wait_for_first_ones() {
        // 64 pixels: of the second layer a half is two tiles, of the third nine.
        let mut net = Net::new(7);
        let x = net.input(&[1, 8, 8, 64]);
        let y = net.conv(x, 96, window(1, 1, 0), 1);
        let y = net.conv(y, 256, window(1, 1, 0), 1);
        let y = net.conv(y, 32, window(3, 1, 1), 1);
        let graph = net.finish(&[y]);
        assert_eq!(pieces(&graph, TileGranularity::Finest(2), 256), [64, 64]);
        let mut halves = pieces(&graph, TileGranularity::Halves, 256);
        halves.sort_unstable();
        assert_eq!(halves, [16, 16, 48, 48]);
        assert_eq!(pieces(&graph, TileGranularity::Halves, 32), [64]);
    }

    #[test]
    fn tokens_are_halved_evenly() {
        let mut net = Net::new(7);
        let x = net.input(&[1, 198, 128]);
        let y = net.matmul(x, 128);
        let graph = net.finish(&[y]);
        assert_eq!(pieces(&graph, TileGranularity::Finest(2), 128), [128, 70]);
        assert_eq!(pieces(&graph, TileGranularity::Halves, 128), [99, 99]);
    }

    #[test]
    fn lines_are_cut_as_tokens_are_but_for_the_pooling_unit() {
        let of_line = |pooled: bool| {
            let mut net = Net::new(7);
            let x = net.input(&[1, 1, 200, 64]);
            let y = net.conv(x, 192, Window { kernel: [1, 3], pads: [0, 1, 0, 1], ..window(1, 1, 0) }, 1);
            let y = net.conv(y, 128, window(1, 1, 0), 1);
            let y = if pooled { net.max_pool(y, Window { kernel: [1, 2], ..window(1, 1, 0) }) } else { y };
            let graph = net.finish(&[y]);
            pieces(&graph, TileGranularity::Halves, 128)
        };
        assert_eq!(of_line(false), [100, 100]);
        assert_eq!(of_line(true), [200]);
    }

    /// Four pixels of 32 channels share a word of 128 bytes.
    #[test]
    fn tokens_of_a_line_that_share_a_word_stay_together() {
        let mut net = Net::new(7);
        let x = net.input(&[1, 1, 512, 32]);
        let y = net.conv(x, 32, window(1, 1, 0), 1);
        let y = net.conv(y, 32, Window { kernel: [1, 3], pads: [0, 1, 0, 1], ..window(1, 1, 0) }, 1);
        let graph = net.finish(&[y]);
        for granularity in [TileGranularity::Halves, TileGranularity::Shortest] {
            let found = pieces(&graph, granularity, 32);
            assert!(found.len() > 2 && found.iter().all(|pixels| pixels.is_multiple_of(4)), "{found:?}");
        }
    }

    /// Where a softmax goes on across the tokens of two instructions of the array, its result cannot be cut there: the array reads
    /// one part at the bank where the softmax writes the next.
    #[test]
    fn pieces_of_tokens_end_where_the_tiles_of_a_matrix_do() {
        let mut net = Net::new(7);
        let queries = net.input(&[1, 2, 257, 64]);
        let keys = net.input(&[1, 2, 64, 257]);
        let scores = net.product(queries, keys);
        let shares = net.softmax(scores, false);
        let values = net.input(&[1, 2, 257, 64]);
        let y = net.product(shares, values);
        let graph = net.finish(&[y]);
        assert_eq!(pieces(&graph, TileGranularity::Fine, 64), [257, 257]);
        for granularity in [TileGranularity::Finest(2), TileGranularity::Shortest] {
            let mut tiles = pieces(&graph, granularity, 64);
            tiles.sort_unstable();
            assert_eq!(tiles, [128, 128, 129, 129]);
            let works = works(&graph, granularity);
            let vectors = works.iter().filter_map(|work| if let Work::Vector(v) = work { Some(v) } else { None });
            let ranges: Vec<_> = vectors.map(|v| v.first_row..v.first_row + v.rows).collect();
            assert!(ranges.iter().filter(|rows| rows.len() < 129).count() >= 8, "{ranges:?}");
            for tile in [129, 257, 257 + 129] {
                assert!(!ranges.iter().any(|rows| rows.start < tile && tile < rows.end), "{tile} in {ranges:?}");
            }
        }
    }
}
