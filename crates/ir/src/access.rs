//! Which bytes an instruction reads and writes: what tokens must order, and what the simulator watches.
//!
//! Stretches are whole words and may include bytes between the ones really touched (a narrow tensor inside wider pixels), so
//! two instructions whose stretches are apart never disturb each other.

use smallvec::SmallVec;

use crate::isa::{
    ChannelParameters, Descriptor, Direction, Expand, FLOAT_NORM_BYTES, FloatFunction, Instruction, NormParameters,
    PoolKind, Slope, TableShape, Transfer, VectorOp, Work,
};
use crate::{DType, Machine, Space, View, timing};

/// A stretch of bytes `start .. end` in a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch {
    /// Memory.
    pub space: Space,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl Stretch {
    /// Whether two stretches share a byte.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.space == other.space && self.start < other.end && other.start < self.end
    }
}

/// Everything an instruction touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Read.
    pub reads: SmallVec<[Stretch; 6]>,
    /// Written.
    pub writes: SmallVec<[Stretch; 2]>,
}

/// Runs of a transfer that are told apart: several buffers of one transfer may have others between them.
const APART: u32 = 16;

/// The runs of a transfer of few that are whole words, else all of it.
fn parts(transfer: &Transfer, word: usize) -> impl Iterator<Item = Transfer> {
    let strides = [transfer.ddr_strides[0], transfer.local_strides[0]];
    let is_whole = |bytes: u64| bytes.is_multiple_of(word as u64);
    let is_apart = is_whole(transfer.local_address)
        && is_whole(transfer.bytes.into())
        && strides.into_iter().all(|stride| stride >= transfer.bytes.into() && is_whole(stride));
    let is_few = transfer.counts[1] == 1 && transfer.counts[0] <= APART && is_apart;
    let outer = if is_few { 0..u64::from(transfer.counts[0]) } else { 0..1 };
    let transfer = *transfer;
    outer.map(move |run| Transfer {
        ddr_address: transfer.ddr_address + run * transfer.ddr_strides[0],
        local_address: transfer.local_address + run * transfer.local_strides[0],
        counts: if is_few { [1, 1] } else { transfer.counts },
        ..transfer
    })
}

/// Packed weights and the elements they become.
fn expanded(e: &Expand, word: usize, found: &mut Accesses) {
    let end = e.ddr_address + e.packed_bytes();
    found.reads.push(Stretch { space: Space::Ddr(e.ddr_space), start: e.ddr_address, end });
    found.writes.push(whole_words(Space::Cache, e.local_address, e.local_address + e.bytes(), word));
}

/// All indices, and the pixels of some.
fn looked_up(indices: &View, output: &View, first: u32, count: u32, word: usize, found: &mut Accesses) {
    found.reads.push(rows(indices, indices.first_row, indices.stored_rows, word));
    found.writes.extend(pixels(output, first, count, word));
}

/// The bytes `instruction` touches. A descriptor of the wrong kind gives nothing.
#[must_use]
pub fn accesses(instruction: &Instruction, descriptors: &[Descriptor], machine: &Machine) -> Accesses {
    let word = machine.word();
    let mut found = Accesses::default();
    match &instruction.work {
        Work::Transfer(t) => {
            for part in parts(t, word) {
                if let Some((last_ddr, last_local)) = part.last_run() {
                    let bytes = u64::from(t.bytes);
                    // Every device computes its part when this one does, at the same address.
                    let space = Space::Ddr(machine.own_space(t.ddr_space));
                    let ddr = Stretch { space, start: part.ddr_address, end: last_ddr + bytes };
                    let local = whole_words(t.local_space, part.local_address, last_local + bytes, word);
                    let (from, to) = if t.direction == Direction::Load { (ddr, local) } else { (local, ddr) };
                    found.reads.push(from);
                    found.writes.push(to);
                }
            }
        }
        Work::Expand(e) => expanded(e, word, &mut found),
        Work::PackedLookup(l) => {
            let stretch = |(space, start, end)| Stretch { space: Space::Ddr(space), start, end };
            found.reads.extend(l.stretches(word).map(stretch));
            looked_up(&l.indices, &l.output, l.first, l.count, word, &mut found);
        }
        Work::Lookup(l) => {
            found.reads.push(rows(&l.table, 0, 1, word));
            looked_up(&l.indices, &l.output, l.first, l.count, word, &mut found);
        }
        Work::Matrix(m) => {
            let Descriptor::Matrix(d) = &descriptors[m.descriptor.index()] else { return found };
            found.writes.extend(pixels(&m.output, m.first_pixel, m.pixels, word));
            let plain = d.window.kernel == [1, 1] && d.window.stride == [1, 1] && d.window.pads == [0; 4];
            if plain {
                found.reads.extend(pixels(&m.input, m.first_pixel, m.pixels, word));
            } else {
                window_pixels(&m.input, &d.window, &m.output, m.first_pixel, m.pixels, word, &mut found);
            }
            let k = u64::from(d.window.kernel[0] * d.window.kernel[1] * d.group_in);
            let columns = u64::from(m.columns);
            let inner = if m.weights.plane_bytes > 0 { columns } else { columns * d.weight_dtype.bytes() as u64 };
            let span = (k - 1) * u64::from(m.weights.row_bytes) + inner;
            found.reads.push(whole_words(Space::Cache, m.weights.address, m.weights.address + span, word));
            if m.weights.plane_bytes > 0 {
                let high = m.weights.address + u64::from(m.weights.plane_bytes);
                found.reads.push(whole_words(Space::Cache, high, high + span, word));
            }
            let wide = timing::has_wide_sums(m.input.dtype, d.weight_dtype);
            parameters(m.parameters, ChannelParameters::bytes(wide) * m.columns as usize, word, &mut found);
            table(d.table, m.table, word, &mut found);
        }
        Work::Pool(p) => {
            let Descriptor::Pool(d) = &descriptors[p.descriptor.index()] else { return found };
            found.writes.push(rows(&p.output, p.first_row, p.rows, word));
            let last = p.first_row + p.rows - 1;
            window_rows(&p.input, &d.window, p.output.height, p.first_row, last, word, &mut found);
            let depthwise = match &d.kind {
                PoolKind::Depthwise { weight_dtype, table, .. } => Some((weight_dtype, *table)),
                PoolKind::FloatDepthwise { weight_dtype, .. } => Some((weight_dtype, None)),
                _ => None,
            };
            if let Some((weight_dtype, t)) = depthwise {
                let channels = p.input.channels as usize;
                let taps = (d.window.kernel[0] * d.window.kernel[1]) as usize;
                parameters(p.weights, taps * channels * weight_dtype.bytes(), word, &mut found);
                let wide = timing::has_wide_sums(p.input.dtype, *weight_dtype);
                parameters(p.parameters, ChannelParameters::bytes(wide) * channels, word, &mut found);
                table(t, p.table, word, &mut found);
            }
        }
        Work::Vector(v) => {
            let Descriptor::Vector(op) = &descriptors[v.descriptor.index()] else { return found };
            vector(v, op, word, &mut found);
        }
    }
    found
}

fn vector(v: &crate::isa::Vector, op: &VectorOp, word: usize, found: &mut Accesses) {
    let stored = |view: &View| rows(view, view.first_row, view.stored_rows, word);
    match op {
        _ if op.reduces() => found.writes.push(stored(&v.output)),
        VectorOp::Move { dims, output_strides, output_offset, .. } => {
            found.writes.push(elements(&v.output, dims, output_strides, *output_offset, v.first_row, v.rows, word));
        }
        VectorOp::Gather { inner, .. } => {
            let (dims, strides) = ([v.first_row + v.rows, *inner], [i64::from(*inner), 1]);
            found.writes.push(elements(&v.output, &dims, &strides, 0, v.first_row, v.rows, word));
        }
        _ => found.writes.push(rows(&v.output, v.first_row, v.rows, word)),
    }
    for view in &v.inputs {
        let same_rows = view.rows == v.output.rows;
        match op {
            VectorOp::Move { dims, input_strides, input_offset, .. } => {
                found.reads.push(elements(view, dims, input_strides, *input_offset, v.first_row, v.rows, word));
            }
            VectorOp::Gather { .. } | VectorOp::ResizeLinear { .. } => {
                found.reads.push(stored(view));
            }
            _ if op.reduces() => found.reads.push(stored(view)),
            _ if same_rows => found.reads.push(rows(view, v.first_row, v.rows, word)),
            _ => found.reads.push(stored(view)),
        }
    }
    let channels = v.output.channels as usize;
    match op {
        VectorOp::Table(shape) => parameters(v.parameters, shape.entries as usize * 4, word, found),
        VectorOp::PRelu { per_channel, .. } => {
            parameters(v.parameters, Slope::BYTES * if *per_channel { channels } else { 1 }, word, found);
        }
        VectorOp::LayerNorm { .. } => parameters(v.parameters, NormParameters::BYTES * channels, word, found),
        VectorOp::SharedLayerNorm { .. } => parameters(v.parameters, NormParameters::BYTES, word, found),
        VectorOp::Float { function: FloatFunction::PRelu { per_channel }, .. } => {
            let slopes = if *per_channel { channels } else { 1 };
            parameters(v.parameters, DType::F32.bytes() * slopes, word, found);
        }
        VectorOp::Float { function: FloatFunction::LayerNorm { .. }, .. } => {
            parameters(v.parameters, FLOAT_NORM_BYTES * channels, word, found);
        }
        _ => {}
    }
}

fn whole_words(space: Space, start: u64, end: u64, word: usize) -> Stretch {
    let word = word as u64;
    Stretch { space, start: start / word * word, end: end.next_multiple_of(word) }
}

fn parameters(address: u32, bytes: usize, word: usize, found: &mut Accesses) {
    found.reads.push(whole_words(Space::EwpCache, address.into(), u64::from(address) + bytes as u64, word));
}

fn table(shape: Option<TableShape>, address: u32, word: usize, found: &mut Accesses) {
    if let Some(shape) = shape {
        parameters(address, shape.entries as usize * DType::I32.bytes(), word, found);
    }
}

/// Rows `first .. first + count`; the whole store when they wrap around a ring.
fn rows(view: &View, first: u32, count: u32, word: usize) -> Stretch {
    let start = view.row_address(first, word);
    let end = start + u64::from(count) * view.row_bytes(word);
    let limit = view.address + view.bytes(word);
    if end > limit && view.stored_rows > 0 {
        Stretch { space: view.space, start: view.address, end: limit }
    } else {
        Stretch { space: view.space, start, end }
    }
}

/// The words of pixels `first .. first + count`, row-major over the tensor.
fn pixels(view: &View, first: u32, count: u32, word: usize) -> SmallVec<[Stretch; 2]> {
    let width = view.width;
    let (row, last) = (first / width, (first + count - 1) / width);
    let slot = |row: u32| row.wrapping_sub(view.first_row) % view.stored_rows.max(1);
    let pixel = u64::from(view.pixel_bytes);
    if slot(last) < slot(row) || last - row >= view.stored_rows {
        return SmallVec::from_iter([rows(view, view.first_row, view.stored_rows, word)]);
    }
    let start = view.row_address(row, word) + u64::from(first % width) * pixel;
    let end = view.row_address(last, word) + u64::from((first + count - 1) % width + 1) * pixel;
    SmallVec::from_iter([whole_words(view.space, start, end, word)])
}

/// Words of the input under the windows of pixels `first .. first + count` of the output: those of some pixels of a row, else
/// whole rows.
fn window_pixels(
    input: &View,
    window: &crate::Window,
    output: &View,
    first: u32,
    count: u32,
    word: usize,
    found: &mut Accesses,
) {
    let (row, last) = (first / output.width, (first + count - 1) / output.width);
    let begin = found.reads.len();
    window_rows(input, window, output.height, row, last, word, found);
    if row != last || window.kernel[0] != 1 || found.reads.len() == begin {
        return;
    }
    found.reads.truncate(begin);
    let under = |column: u32| i64::from(column) * i64::from(window.stride[1]) - i64::from(window.pads[1]);
    let reach = i64::from((window.kernel[1] - 1) * window.dilation[1]) + 1;
    let column = |column: i64| column.clamp(0, i64::from(input.width)) as u32;
    let from = column(under(first % output.width));
    let to = column(under((first + count - 1) % output.width) + reach);
    if from < to {
        // A window of one row sees one of the input.
        let (image, row) = (row / output.height, row % output.height * window.stride[0] - window.pads[0]);
        found.reads.extend(pixels(input, (image * input.height + row) * input.width + from, to - from, word));
    }
}

/// Input rows that output rows `first ..= last` need through a window, image by image.
fn window_rows(
    input: &View,
    window: &crate::Window,
    out_height: u32,
    first: u32,
    last: u32,
    word: usize,
    found: &mut Accesses,
) {
    let height = i64::from(input.height);
    let top = |row: u32| i64::from(row % out_height) * i64::from(window.stride[0]) - i64::from(window.pads[0]);
    let reach = i64::from((window.kernel[0] - 1) * window.dilation[0]);
    for image in first / out_height..=last / out_height {
        let from = first.max(image * out_height);
        let to = last.min((image + 1) * out_height - 1);
        let low = top(from).clamp(0, height);
        let high = (top(to) + reach + 1).clamp(0, height);
        if low < high {
            let base = image * input.height;
            found.reads.push(rows(input, base + low as u32, (high - low) as u32, word));
        }
    }
}

/// The words that hold row-major elements `offset + sum(i * strides)`, outermost index in `first .. first + count`.
fn elements(view: &View, dims: &[u32], strides: &[i64], offset: i64, first: u32, count: u32, word: usize) -> Stretch {
    let (mut low, mut high) = (offset, offset);
    for (i, (&extent, &stride)) in dims.iter().zip(strides).enumerate() {
        let (from, to) = if i == 0 { (first, first + count - 1) } else { (0, extent - 1) };
        let (a, b) = (stride * i64::from(from), stride * i64::from(to));
        low += a.min(b);
        high += a.max(b);
    }
    let row = i64::from(view.width) * i64::from(view.channels);
    let place = |element: i64| {
        let (r, within) = ((element / row) as u32, element % row);
        let column = (within / i64::from(view.channels)) as u32;
        (r, column)
    };
    let ((r0, c0), (r1, c1)) = (place(low), place(high));
    if !view.holds(r0) || !view.holds(r1) {
        return rows(view, view.first_row, view.stored_rows, word);
    }
    let start = view.pixel_address(r0, c0, word) - u64::from(view.channel_offset);
    let end = view.pixel_address(r1, c1, word) - u64::from(view.channel_offset) + u64::from(view.pixel_bytes);
    whole_words(view.space, start, end, word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Window;

    proptest! {
        /// Pixel by pixel: all that a tap of some pixel sees, with what lies between; of a window of several rows, or of pixels
        /// of several rows, whole rows.
        #[test]
        fn words_under_windows(
            (images, height, width, channels) in (1u32..3, 1u32..4, 1u32..12, 1u32..40),
            (kernel, stride, dilation) in (1u32..6, 1u32..4, 1u32..3),
            (left, right, tall) in (0u32..3, 0u32..3, 1u32..3),
            share in (0.0f64..1.0, 0.0f64..1.0),
        ) {
            let window = Window { kernel: [tall, kernel], stride: [1, stride], dilation: [1, dilation], pads: [0, left, 0, right] };
            let Some([out_height, out_width]) = window.output(height as usize, width as usize) else { return Ok(()) };
            let (word, space) = (16, Space::Cache);
            let view = |height: usize, width: usize, channels: u32| {
                View::whole(&[images as usize, height, width, channels as usize], DType::I8, word, space, 64)
            };
            let (input, output) = (view(height as usize, width as usize, channels), view(out_height, out_width, 1));
            let all = images * (out_height * out_width) as u32;
            let first = (share.0 * f64::from(all)) as u32;
            let count = 1 + (share.1 * f64::from(all - first)) as u32;
            let count = count.min(all - first);
            let mut found = Accesses::default();
            window_pixels(&input, &window, &output, first, count, word, &mut found);

            let one_row = tall == 1 && first / output.width == (first + count - 1) / output.width;
            let mut seen: Option<(u64, u64)> = None;
            for pixel in first..first + count {
                let (row, x) = (pixel / output.width, pixel % output.width);
                let (image, y) = (row / output.height, row % output.height);
                for (dy, dx) in (0..tall).flat_map(|dy| (0..kernel).map(move |dx| (dy, dx))) {
                    let column = i64::from(x * stride + dx * dilation) - i64::from(left);
                    let columns = if one_row { column..column + 1 } else { 0..i64::from(width) };
                    for column in columns.filter(|column| (0..i64::from(width)).contains(column)) {
                        let from = input.pixel_address(image * height + y + dy, column as u32, word);
                        let to = from + u64::from(input.pixel_bytes);
                        seen = Some(seen.map_or((from, to), |(low, high)| (low.min(from), high.max(to))));
                    }
                }
            }
            let hull = found.reads.iter().map(|stretch| (stretch.start, stretch.end));
            let hull = hull.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
            let words = seen.map(|(from, to)| whole_words(space, from, to, word)).map(|s| (s.start, s.end));
            // Windows with pixels between their taps or between each other may end further outside than a tap does.
            let is_dense = !one_row || dilation == 1 && stride <= kernel;
            let fits = |hull: (u64, u64), words: (u64, u64)| {
                if is_dense { hull == words } else { hull.0 <= words.0 && words.1 <= hull.1 }
            };
            prop_assert!(words.is_none_or(|words| hull.is_some_and(|hull| fits(hull, words))), "{hull:?} for {words:?}");
            prop_assert!(!is_dense || words.is_some() || hull.is_none(), "{hull:?} for no word");
        }
    }
}
