//! Which elements somebody needs: a program may leave out all others.
//!
//! From the outputs upwards, every layer says which elements of its operands the needed elements of its result are made of. Of an
//! element it is only said to be needed where every program needs it.

use tpuflow_ir::shape::result_shape;
use tpuflow_ir::{Graph, Layer, LinearTap, Op, PadMode, TensorId, Window};

use crate::linear::is_permutation;
use crate::moves;

/// Some elements of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Elements {
    /// None of them.
    #[default]
    None,
    /// All of them.
    All,
    /// Those that are true, in row-major order.
    Some(Vec<bool>),
}

impl Elements {
    fn join(&mut self, other: Self) {
        *self = match (std::mem::take(self), other) {
            (Self::None, one) | (one, Self::None) => one,
            (Self::Some(mut mine), Self::Some(theirs)) => {
                mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine |= theirs);
                if mine.iter().all(|&there| there) { Self::All } else { Self::Some(mine) }
            }
            _ => Self::All,
        };
    }

    /// How many of `all` elements.
    pub fn count(&self, all: usize) -> u64 {
        match self {
            Self::None => 0,
            Self::All => all as u64,
            Self::Some(there) => there.iter().filter(|&&there| there).count() as u64,
        }
    }

    fn has(&self, element: usize) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Some(there) => there[element],
        }
    }
}

/// The needed elements of every tensor.
pub(super) struct Live {
    /// By tensor, what some output is made of.
    needed: Vec<Elements>,
    /// By tensor, what some layer that computes reads, be it through layers that only move.
    read: Vec<Elements>,
}

impl Live {
    pub fn of(graph: &Graph) -> Self {
        let mut live =
            Self { needed: vec![Elements::None; graph.tensors.len()], read: vec![Elements::None; graph.tensors.len()] };
        for output in &graph.outputs {
            live.needed[output.index()] = Elements::All;
        }
        for layer in graph.layers.iter().rev() {
            let result = layer.output.index();
            for (operand, elements) in operands(graph, layer, &live.needed[result]) {
                if !moves(&layer.op) {
                    live.read[operand.index()].join(elements.clone());
                }
                live.needed[operand.index()].join(elements);
            }
            if moves(&layer.op) {
                for (operand, elements) in operands(graph, layer, &live.read[result]) {
                    live.read[operand.index()].join(elements);
                }
            }
        }
        live
    }

    /// The elements of a tensor that every program computes.
    pub fn needed(&self, tensor: TensorId) -> &Elements {
        &self.needed[tensor.index()]
    }

    /// Whether every program makes all of a tensor.
    pub fn whole(&self, tensor: TensorId) -> bool {
        self.needed[tensor.index()] == Elements::All
    }

    /// How many elements of a tensor are computed with.
    pub fn read(&self, graph: &Graph, tensor: TensorId) -> u64 {
        self.read[tensor.index()].count(graph.tensor(tensor).elements())
    }
}

/// Elements of the operands that elements of the result are made of.
fn operands(graph: &Graph, layer: &Layer, result: &Elements) -> Vec<(TensorId, Elements)> {
    if *result == Elements::None {
        return Vec::new();
    }
    let all = *result == Elements::All;
    let shape = |tensor: TensorId| &graph.tensor(tensor).shape[..];
    // A result may be declared with other axes of as many elements.
    let computed = result_shape(&layer.op, &graph.tensors);
    let output = computed.as_deref().unwrap_or_else(|| shape(layer.output));
    match &layer.op {
        Op::Conv { input, window, .. } | Op::MaxPool { input, window } | Op::AveragePool { input, window, .. } => {
            vec![(*input, under_windows(shape(*input), output, window, &layer.op, result))]
        }
        Op::Rearrange { input, .. }
        | Op::Gather { input, .. }
        | Op::Pad { input, .. }
        | Op::InsertZeros { input, .. } => {
            vec![(*input, copied_operand(graph, layer, *input, output, result))]
        }
        Op::ResizeLinear { input, rows, columns } => {
            let &[_, height, width, channels] = shape(*input) else { return Vec::new() };
            let (rows, columns) = (cells_read(rows, height), cells_read(columns, width));
            let there = |element: usize| {
                let pixel = element / channels;
                all && rows[pixel / width % height] && columns[pixel % width]
            };
            vec![(*input, made_elements(graph, *input, there))]
        }
        _ if all => layer.op.operands().into_iter().map(|operand| (operand, Elements::All)).collect(),
        Op::Unary { input, .. }
        | Op::Rescale { input, .. }
        | Op::Quantize { input, .. }
        | Op::Dequantize { input, .. }
        | Op::PRelu { input, .. } => vec![(*input, result.clone())],
        Op::Binary { a, b, .. } => [*a, *b].map(|t| (t, broadcast(graph, t, output, result))).into(),
        Op::Select { condition, a, b } => [*condition, *a, *b].map(|t| (t, broadcast(graph, t, output, result))).into(),
        Op::Softmax { input, .. } | Op::LayerNorm { input, .. } => {
            let row = output.last().copied().unwrap_or(1);
            vec![(*input, rows(graph, *input, row, row, result))]
        }
        Op::ArgMax { input, .. } => {
            vec![(*input, rows(graph, *input, shape(*input).last().copied().unwrap_or(1), 1, result))]
        }
        Op::Reduce { input, axes, .. } => vec![(*input, summands(graph, *input, axes, result))],
        Op::MatMul { a, b, .. } => factors(graph, [*a, *b], result),
        Op::Concat { inputs, axis, .. } => {
            let inner: usize = output[*axis as usize + 1..].iter().product();
            let along = output[*axis as usize] * inner;
            let mut before = 0;
            let part = |&input: &TensorId| {
                let own = shape(input)[*axis as usize] * inner;
                let start = before;
                before += own;
                (
                    input,
                    made_elements(graph, input, |element| result.has(element / own * along + start + element % own)),
                )
            };
            inputs.iter().map(part).collect()
        }
        // Of the others it is not said what their operands are needed for.
        _ => Vec::new(),
    }
}

/// Elements of what a layer only copies elsewhere.
fn copied_operand(graph: &Graph, layer: &Layer, input: TensorId, output: &[usize], result: &Elements) -> Elements {
    let all = *result == Elements::All;
    let own = &graph.tensor(input).shape[..];
    let tensors = [input, layer.output];
    match &layer.op {
        Op::Rearrange { dims, strides, offset, .. } => {
            if all && is_permutation(dims, strides, *offset, graph.tensor(input).elements()) {
                return Elements::All;
            }
            walked_elements(graph, input, result, (dims, strides, *offset))
        }
        Op::Gather { axis, indices, .. } => {
            let inner: usize = own[*axis as usize + 1..].iter().product();
            let (extent, count) = (own[*axis as usize], indices.len());
            copied_elements(graph, tensors, result, |element| {
                let (block, at) = (element / inner, element % inner);
                Some((block / count * extent + indices[block % count] as usize) * inner + at)
            })
        }
        Op::Pad { before, mode, .. } if !all => {
            let along = |axis: usize, at| padded_source(at, before[axis] as usize, own[axis], *mode);
            copied_elements(graph, tensors, result, |element| source_by_axis(element, own, output, along))
        }
        Op::InsertZeros { stride, .. } if !all => {
            let step = [1, stride[0] as usize, stride[1] as usize, 1];
            let along = |axis: usize, at: usize| at.is_multiple_of(step[axis]).then_some(at / step[axis]);
            copied_elements(graph, tensors, result, |element| source_by_axis(element, own, output, along))
        }
        _ => Elements::All,
    }
}

/// Elements that sums, or other results over some axes, are made of.
fn summands(graph: &Graph, input: TensorId, axes: &[u32], result: &Elements) -> Elements {
    let own = &graph.tensor(input).shape;
    let dims: Vec<u32> = own.iter().map(|&extent| extent as u32).collect();
    let mut kept = own.clone();
    axes.iter().for_each(|&axis| kept[axis as usize] = 1);
    let strides = broadcast_strides(&kept, own);
    made_elements(graph, input, |element| result.has(view_source(element, &dims, &strides, 0)))
}

/// Rows of the one factor and columns of the other that elements of a product are made of.
fn factors(graph: &Graph, [a, b]: [TensorId; 2], result: &Elements) -> Vec<(TensorId, Elements)> {
    let shape = |tensor: TensorId| &graph.tensor(tensor).shape[..];
    let (Some(&depth), Some(&columns)) = (shape(a).last(), shape(b).last()) else { return Vec::new() };
    let left = rows(graph, a, depth, columns, result);
    let height = shape(a).iter().rev().nth(1).copied().unwrap_or(1);
    let batch = shape(b).len() > 2;
    let column = |element: usize| {
        let (lead, column) = (element / (depth * columns), element % columns);
        (0..height).any(|row| batch && result.has((lead * height + row) * columns + column))
    };
    vec![(a, left), (b, made_elements(graph, b, column))]
}

/// Along an axis, the cells that taps read with any weight: an end of a line between two cells has weight on one of them alone.
fn cells_read(taps: &[LinearTap], extent: usize) -> Vec<bool> {
    let hit = |cell: usize| taps.iter().any(|tap| tap.first == tap.second && tap.first as usize == cell);
    let between = |cell: usize| {
        let inside = |w: f64| w > 0.0 && w < 1.0;
        let is = |tap: &&LinearTap| [tap.first, tap.second].contains(&(cell as u32));
        taps.iter().filter(is).any(|tap| inside(tap.weight.get()))
    };
    (0..extent).map(|cell| hit(cell) || between(cell)).collect()
}

/// The elements for which that is said.
fn made_elements(graph: &Graph, tensor: TensorId, is_needed: impl Fn(usize) -> bool) -> Elements {
    normalized(Elements::Some((0..graph.tensor(tensor).elements()).map(is_needed).collect()))
}

fn normalized(elements: Elements) -> Elements {
    match elements {
        Elements::Some(there) if there.iter().all(|&there| there) => Elements::All,
        Elements::Some(there) if !there.iter().any(|&there| there) => Elements::None,
        other => other,
    }
}

/// The elements of an operand that those of a result are copies of; some are copies of none.
fn copied_elements(
    graph: &Graph,
    [operand, output]: [TensorId; 2],
    result: &Elements,
    from: impl Fn(usize) -> Option<usize>,
) -> Elements {
    let mut there = vec![false; graph.tensor(operand).elements()];
    for element in (0..graph.tensor(output).elements()).filter(|&element| result.has(element)) {
        if let Some(source) = from(element) {
            there[source] = true;
        }
    }
    normalized(Elements::Some(there))
}

/// As [`copied_elements`], where the elements of the result are those that loops (extents, strides, offset) come past in turn.
fn walked_elements(
    graph: &Graph,
    operand: TensorId,
    result: &Elements,
    (dims, strides, offset): (&[u32], &[i64], i64),
) -> Elements {
    let mut there = vec![false; graph.tensor(operand).elements()];
    let (inner, outer) = dims.split_last().map_or((1, dims), |(&inner, outer)| (inner as usize, outer));
    let step = strides.get(outer.len()).copied().unwrap_or(0);
    let rows = outer.iter().map(|&extent| extent as usize).product::<usize>();
    let (mut index, mut start) = (vec![0u32; outer.len()], offset);
    for row in 0..rows {
        for at in (0..inner).filter(|at| result.has(row * inner + at)) {
            there[(start + at as i64 * step) as usize] = true;
        }
        for axis in (0..outer.len()).rev() {
            index[axis] += 1;
            start += strides[axis];
            if index[axis] < outer[axis] {
                break;
            }
            start -= i64::from(outer[axis]) * strides[axis];
            index[axis] = 0;
        }
    }
    normalized(Elements::Some(there))
}

fn view_source(mut element: usize, dims: &[u32], strides: &[i64], offset: i64) -> usize {
    let mut source = offset;
    for (&extent, &stride) in dims.iter().zip(strides).rev() {
        source += (element % extent as usize) as i64 * stride;
        element /= extent as usize;
    }
    source as usize
}

/// Whole rows of `row` elements of an operand, by rows of `of` elements of the result of which some are needed.
fn rows(graph: &Graph, operand: TensorId, row: usize, of: usize, result: &Elements) -> Elements {
    let count = graph.tensor(operand).elements() / row.max(1);
    let some: Vec<bool> = (0..count).map(|i| (i * of..(i + 1) * of).any(|element| result.has(element))).collect();
    made_elements(graph, operand, |element| some[element / row])
}

/// Where, if anywhere, an operand has an element of a result, by what is said of an axis and a place along it.
fn source_by_axis(
    mut element: usize,
    own: &[usize],
    result: &[usize],
    along: impl Fn(usize, usize) -> Option<usize>,
) -> Option<usize> {
    let (mut source, mut stride) = (0, 1);
    for axis in (0..own.len()).rev() {
        source += along(axis, element % result[axis])? * stride;
        element /= result[axis];
        stride *= own[axis];
    }
    Some(source)
}

/// Which of `extent` cells, if any, one of a line with `before` more in front is.
fn padded_source(at: usize, before: usize, extent: usize, mode: PadMode) -> Option<usize> {
    let last = extent.checked_sub(1)?;
    match (mode, at.checked_sub(before)) {
        (_, Some(inside)) if inside <= last => Some(inside),
        (PadMode::Constant(_) | PadMode::Value(_), _) => None,
        (PadMode::Edge, inside) => Some(inside.map_or(0, |_| last)),
        (PadMode::Reflect, None) => Some(before - at),
        (PadMode::Reflect, Some(beyond)) => Some(2 * last - beyond),
    }
}

/// Steps in a tensor, along the axes of a shape that it is broadcast to.
fn broadcast_strides(own: &[usize], whole: &[usize]) -> Vec<i64> {
    let lead = whole.len() - own.len();
    let mut strides = vec![0; whole.len()];
    let mut stride = 1;
    for axis in (0..own.len()).rev() {
        strides[lead + axis] = if own[axis] == 1 { 0 } else { stride };
        stride *= own[axis] as i64;
    }
    strides
}

/// Elements of an operand that is broadcast to a result of the shape `whole`.
fn broadcast(graph: &Graph, operand: TensorId, whole: &[usize], result: &Elements) -> Elements {
    let strides = broadcast_strides(&graph.tensor(operand).shape, whole);
    let dims: Vec<u32> = whole.iter().map(|&extent| extent as u32).collect();
    walked_elements(graph, operand, result, (&dims, &strides, 0))
}

/// Pixels under the windows of needed pixels: of pooling and depthwise convolutions channel by channel, else with the channels of
/// the group.
fn under_windows(input: &[usize], output: &[usize], window: &Window, op: &Op, result: &Elements) -> Elements {
    if *result == Elements::All && crate::covers(window, input) {
        return Elements::All;
    }
    let (&[images, height, width, channels], &[_, rows, columns, results]) = (input, output) else {
        return Elements::None;
    };
    let groups = if let Op::Conv { groups, .. } = op { *groups as usize } else { channels };
    let (group_in, group_out) = (channels / groups.max(1), results / groups.max(1));
    let lines = |at: usize, axis: usize, extent: usize| {
        let start = at as i64 * i64::from(window.stride[axis]) - i64::from(window.pads[axis]);
        let inside = window.inside(axis, start, extent as u32);
        inside.map(move |tap| (start + i64::from(tap * window.dilation[axis])) as usize)
    };
    let mut there = vec![false; images * height * width * channels];
    for pixel in 0..images * rows * columns {
        let (image, y, x) = (pixel / (rows * columns), pixel / columns % rows, pixel % columns);
        for group in 0..groups {
            let first = pixel * results + group * group_out;
            if !(first..first + group_out).any(|element| result.has(element)) {
                continue;
            }
            for line in lines(y, 0, height) {
                for column in lines(x, 1, width) {
                    let at = ((image * height + line) * width + column) * channels + group * group_in;
                    there[at..at + group_in].fill(true);
                }
            }
        }
    }
    normalized(Elements::Some(there))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tpuflow_ir::Real;

    #[test]
    fn cells_are_read_where_a_line_has_weight_on_both_of_its_ends() {
        let taps = [(0, 1, 0.5), (1, 2, 1.0), (2, 3, 0.0), (4, 4, 0.0)];
        let taps = taps.map(|(first, second, weight)| LinearTap { first, second, weight: Real::new(weight) });
        assert_eq!(cells_read(&taps, 6), [true, true, false, false, true, false]);
    }
}
