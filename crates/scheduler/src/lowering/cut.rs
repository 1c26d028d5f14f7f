//! How a linear step is cut where not everything fits: column tiles, groups of them whose weights are in the cache at a time,
//! slices of output rows, and which of both is the outer loop.

use std::ops::Range;

use tpuflow_ir::isa::ChannelParameters;
use tpuflow_ir::{DType, Table, TensorId, View};

use super::{Lowering, Shortage, slice_rows, slices, staged_bytes, window_rows};
use crate::network::Linear;
use crate::virtual_program::Memory;

/// Column tiles whose results are soon stored, and how many times as many may be before them: a tile of weights takes longer
/// than its results.
const LITTLE: usize = 4;
const GROWTH: usize = 3;

/// How a step is cut.
pub(super) struct Cut {
    /// Column tiles `(first, count)`.
    pub(super) tiles: Vec<(u32, u32)>,
    /// Ranges of tiles whose weights are present together.
    pub(super) groups: Vec<Range<usize>>,
    /// Output rows per slice.
    pub(super) height: u32,
    /// Slices are the outer loop.
    pub(super) rows_outside: bool,
}

/// Views and sizes of a step.
#[derive(Clone)]
pub(super) struct Shape {
    pub(super) linear: Linear,
    pub(super) input: View,
    pub(super) output: View,
    pub(super) right: Option<View>,
    pub(super) weight_dtype: DType,
    pub(super) wide: bool,
    /// Output rows of one product.
    pub(super) rows: u32,
    /// Pixels of an image row of the output.
    pub(super) line: u32,
}

impl Shape {
    pub(super) fn input_rows(&self, rows: Range<u32>) -> Range<u32> {
        if self.linear.is_plain() {
            rows
        } else {
            window_rows(&self.linear.window, &self.input, self.output.height, rows)
        }
    }

    /// Bytes of staged input and output (of `columns`) for a slice.
    pub(super) fn staging(&self, rows: Range<u32>, columns: u32, word: usize) -> u64 {
        let output = View { channels: columns, ..self.output };
        staged_bytes(&self.input, self.input_rows(rows.clone()), word) + staged_bytes(&output, rows, word)
    }

    /// Bytes of cache a group's right operand takes.
    pub(super) fn group_bytes(&self, tiles: &[(u32, u32)], word: usize) -> u64 {
        match &self.right {
            None => tiles.iter().map(|&(_, n)| self.linear.tile_bytes(n, self.weight_dtype, word)).sum(),
            Some(view) => {
                let columns = tiles.iter().map(|t| t.1).sum();
                staged_bytes(&View { channels: columns, ..*view }, 0..1, word)
            }
        }
    }
}

impl Lowering<'_> {
    /// Chooses tiles, groups and slices that fit, moving the fewest bytes.
    pub(super) fn cut(&self, shape: &Shape, table: Option<&Table>) -> Result<Cut, Shortage> {
        let machine = self.context.machine;
        let table = table.map_or(0, |t| self.context.network.tensor(t.entries).bytes() as u64);
        let table = table.next_multiple_of(machine.word() as u64);
        let packed = shape.linear.packing(&shape.input, machine);
        let widest = self.widest(shape);
        let tiles = |width: u32| {
            let most = if width == machine.array.columns { packed } else { packed.min(width / shape.linear.group_out) };
            shape.linear.tiles(width, most.max(1))
        };
        let behind = self.behind(shape).filter(|_| widest == machine.array.columns);
        let whole = behind.unwrap_or_else(|| tiles(widest));
        if self.parameter_space() < table + self.tile_parameters(shape, &[(0, 1)]) {
            return Err(Shortage(Memory::Ewp));
        }
        let parameters = self.parameter_space() - table;
        // Everything at once, else half of what is free so that the next piece can be loaded meanwhile, else all of it.
        let budgets = [self.piece_space(), self.free];
        let once = shape.staging(0..shape.output.rows, shape.linear.columns(), machine.word());
        if once == 0
            && shape.group_bytes(&whole, machine.word()) <= self.free
            && self.tile_parameters(shape, &whole) <= parameters
        {
            let groups = std::iter::once(0..whole.len()).collect();
            return Ok(Cut { tiles: whole, groups, height: shape.rows, rows_outside: false });
        }
        for budget in budgets {
            let mut width = widest;
            while width > 0 {
                let tiles = if width == widest { whole.clone() } else { tiles(width) };
                let found = [1, 2, 4, u64::MAX]
                    .into_iter()
                    .flat_map(|share| self.cuts(shape, &tiles, budget, budget / share, parameters))
                    .min_by_key(|(traffic, _)| *traffic);
                if let Some((_, cut)) = found {
                    return Ok(cut);
                }
                width /= 2;
            }
        }
        Err(Shortage(Memory::Cache))
    }

    /// The last store is to be small, and those before are to be finished when it begins: the groups of the last
    /// step that has weights become smaller to the end.
    pub(super) fn taper(&self, cut: &mut Cut, output: TensorId) {
        let is_last = self.options.write_through && self.last_weights == Some(self.index);
        if is_last && !cut.rows_outside && cut.groups.len() > 1 && self.context.graph.outputs.contains(&output) {
            cut.groups = tapered(cut.tiles.len(), cut.groups.iter().map(ExactSizeIterator::len).max().unwrap_or(1));
        }
    }

    /// Tiles of a result whose channels begin inside a word of wider pixels.
    fn behind(&self, shape: &Shape) -> Option<Vec<(u32, u32)>> {
        let (word, size) = (self.context.machine.cache.word_bytes, shape.output.dtype.bytes() as u32);
        let lead = (word - shape.output.channel_offset % word) / size;
        let inside = lead * size < word && lead < shape.output.channels;
        if inside { shape.linear.tiles_behind(self.context.machine.array.columns, lead) } else { None }
    }

    /// Columns of a tile: as many as the array has, unless tiles are to be narrow. Then those that take much of the cache are
    /// halved as long as the array takes less time than their weights to arrive.
    fn widest(&self, shape: &Shape) -> u32 {
        let machine = self.context.machine;
        let columns = shape.linear.table_columns.unwrap_or(machine.array.columns);
        if shape.linear.table_columns.is_some() {
            return columns;
        }
        if !self.options.narrow_weight_tiles || shape.right.is_some() || shape.linear.groups > 1 {
            return columns;
        }
        let bytes = |width: u32| shape.linear.tile_bytes(width, shape.weight_dtype, machine.word());
        let count = |width: u32| u64::from(shape.linear.columns().div_ceil(width));
        let arrival = machine.ddr_cycles(bytes(columns) * count(columns)) / machine.channels() as u64;
        let blocks = bytes(columns) / u64::from(columns * machine.array.rows * shape.weight_dtype.bytes() as u32) + 1;
        let pixels = u64::from(shape.rows) * u64::from(shape.output.width);
        let busy = |width: u32| count(width) * blocks * pixels.max(machine.array.rows.into());
        let mut width = columns;
        while width > 8 && bytes(width) > machine.cache_bytes() / 16 && busy(width / 2) < arrival {
            width /= 2;
        }
        width
    }

    fn tile_parameters(&self, shape: &Shape, tiles: &[(u32, u32)]) -> u64 {
        let columns: u32 = tiles.iter().map(|t| t.1).sum();
        let bytes = columns as usize * ChannelParameters::bytes(shape.wide);
        bytes.next_multiple_of(self.context.machine.word()) as u64
    }

    /// Both loop orders with groups of at most `weights` bytes (at least one tile), and the bytes they move.
    fn cuts(&self, shape: &Shape, tiles: &[(u32, u32)], free: u64, weights: u64, parameters: u64) -> Vec<(u64, Cut)> {
        let word = self.context.machine.word();
        let mut groups: Vec<Range<usize>> = Vec::new();
        for index in 0..tiles.len() {
            let start = groups.last().map_or(0, |g| g.start);
            let fits = |range: Range<usize>| {
                let part = &tiles[range];
                shape.group_bytes(part, word) <= weights && self.tile_parameters(shape, part) <= parameters
            };
            match groups.last_mut() {
                Some(last) if fits(start..index + 1) => last.end = index + 1,
                _ => groups.push(index..index + 1),
            }
        }
        let most = groups.iter().map(|g| shape.group_bytes(&tiles[g.clone()], word)).max().unwrap_or(0);
        if most > free || groups.iter().any(|g| self.tile_parameters(shape, &tiles[g.clone()]) > parameters) {
            return Vec::new();
        }
        let widest = groups.iter().map(|g| tiles[g.clone()].iter().map(|t| t.1).sum()).max().unwrap_or(0);
        let total: u64 = shape.group_bytes(tiles, word) * u64::from(shape.linear.leads);
        let mut found = Vec::new();
        for rows_outside in [false, true] {
            let columns = if rows_outside { shape.linear.columns() } else { widest };
            let need = |rows: Range<u32>| shape.staging(rows, columns, word);
            let Some(height) = slice_rows(0..shape.rows, free - most, need) else { continue };
            let count = slices(0..shape.rows, height).count() as u64;
            let input: u64 = slices(0..shape.rows, height)
                .map(|rows| staged_bytes(&shape.input, shape.input_rows(rows), word))
                .sum::<u64>()
                * u64::from(shape.linear.leads);
            let passes = groups.len() as u64;
            let traffic = match (rows_outside, passes) {
                (_, 1) => total + input,
                (false, _) if count == 1 => total + input,
                (false, _) => total + input * passes,
                (true, _) => total * count + input,
            };
            let cut = Cut { tiles: tiles.to_vec(), groups: groups.clone(), height, rows_outside };
            // Equal traffic: the fewer the pieces the better.
            found.push((traffic * 1024 + passes * count, cut));
        }
        found
    }
}

/// Groups of at most `most` of `count` tiles: as many in each, but fewer and fewer to the end.
fn tapered(count: usize, most: usize) -> Vec<Range<usize>> {
    let (mut ends, mut end, mut size) = (vec![count], count, LITTLE);
    while size < most && size < end {
        end -= size;
        ends.push(end);
        size *= GROWTH;
    }
    let groups = end.div_ceil(most.max(1)).max(1);
    ends.extend((0..groups).rev().map(|group| end * group / groups));
    ends.windows(2).rev().map(|pair| pair[1]..pair[0]).filter(|group| !group.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::tapered;

    #[test]
    fn groups_become_smaller_to_the_end() {
        for count in 1..500 {
            for most in 1..60 {
                let groups = tapered(count, most);
                assert_eq!((groups[0].start, groups[groups.len() - 1].end), (0, count));
                assert!(groups.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(groups.iter().all(|group| (1..=most).contains(&group.len())), "{count} {most}: {groups:?}");
            }
        }
        let sizes = |count, most| tapered(count, most).iter().map(ExactSizeIterator::len).collect::<Vec<_>>();
        assert_eq!(sizes(393, 42), [37, 38, 38, 38, 38, 38, 38, 38, 38, 36, 12, 4]);
        assert_eq!(sizes(3, 42), [3]);
    }
}
