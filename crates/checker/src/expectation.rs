//! The expected bytes of a tensor in memory.
//!
//! Data movement changes no value, so an element of a concatenation, rearrangement, gather or padding *is* an element of its
//! operand. [`Expectation::step`] goes from one to the other; [`Expectation::origin`] goes on to the layer that computed the
//! element (or to a constant or a fill). That makes the checker indifferent to whether a program copies, aliases or produces in
//! place.
//!
//! Two elements are the same value where their ways meet. In a chain of moves what is found lies a step or two behind what is
//! expected, however long the chain is:
//!
//! ```text
//!  x --move--> a --move--> b --move--> c      found: byte 3 of b; expected: byte 7 of c
//!                          ^-----------'      one step from c shows byte 3 of b, and nobody asks what that is
//! ```

use tpuflow_ir::{Graph, Op, PadMode, TensorId};

use crate::contents::{Element, Value};

/// The graph with its producers.
pub(crate) struct Expectation<'a> {
    pub(crate) graph: &'a Graph,
    producers: Vec<Option<usize>>,
    /// By layer, of a concatenation where its operands end along the axis.
    ends: Vec<Vec<u64>>,
}

impl<'a> Expectation<'a> {
    pub(crate) fn new(graph: &'a Graph) -> Self {
        let mut producers = vec![None; graph.tensors.len()];
        for (i, layer) in graph.layers.iter().enumerate() {
            producers[layer.output.index()] = Some(i);
        }
        let ends = |op: &Op| match op {
            Op::Concat { inputs, axis, .. } => {
                let extents =
                    inputs.iter().map(|&t| graph.tensor(t).shape.get(*axis as usize).map_or(0, |&n| n as u64));
                let mut end = 0u64;
                extents
                    .map(|extent| {
                        end = end.saturating_add(extent);
                        end
                    })
                    .collect()
            }
            _ => Vec::new(),
        };
        let ends = graph.layers.iter().map(|layer| ends(&layer.op)).collect();
        Self { graph, producers, ends }
    }

    /// The source of byte `byte` of a tensor's dense elements by the layer that computes it, an operand's byte or a fill
    /// (`None` if the layer computes it, or none makes it), and for how many bytes that goes on consecutively.
    fn step(&self, tensor: u32, byte: u64) -> (Option<Value>, u64) {
        let info = self.graph.tensor(TensorId(tensor));
        let own = (None, (info.bytes() as u64).saturating_sub(byte));
        let Some(layer) = self.producers[tensor as usize] else { return own };
        let size = info.dtype.bytes() as u64;
        let (element, within) = (byte / size, byte % size);
        let follow = |input: TensorId, element: u64, run: u64| {
            (Some(Value::Element(Element::dense(input.0, element * size + within))), run * size - within)
        };
        match &self.graph.layers[layer].op {
            Op::Concat { inputs, axis, requants } => {
                let inner: u64 = info.shape[*axis as usize + 1..].iter().map(|&n| n as u64).product();
                let along = info.shape[*axis as usize] as u64 * inner;
                let (outer, at) = (element / along, element % along);
                let ends = &self.ends[layer];
                let operand = ends.partition_point(|end| end.saturating_mul(inner) <= at);
                let (Some(end), Some(&input)) = (ends.get(operand), inputs.get(operand)) else { return own };
                let start = operand.checked_sub(1).map_or(0, |before| ends[before] * inner);
                let (part, at) = (end * inner - start, at - start);
                if requants.get(operand).is_some_and(Option::is_none) {
                    follow(input, outer * part + at, part - at)
                } else {
                    (None, (part - at) * size - within)
                }
            }
            Op::Rearrange { input, dims, strides, offset } => {
                let (mut rest, mut source) = (element, *offset);
                for (&extent, &stride) in dims.iter().zip(strides).rev() {
                    source += (rest % u64::from(extent)).cast_signed() * stride;
                    rest /= u64::from(extent);
                }
                follow(*input, source.cast_unsigned(), consecutive(element, dims, strides))
            }
            Op::Gather { input, axis, indices } => {
                let shape = &self.graph.tensor(*input).shape;
                let inner: u64 = shape[*axis as usize + 1..].iter().map(|&n| n as u64).product();
                let (block, at) = (element / inner, element % inner);
                let count = indices.len() as u64;
                let index = u64::from(indices[(block % count) as usize]);
                let source = (block / count * shape[*axis as usize] as u64 + index) * inner + at;
                follow(*input, source, inner - at)
            }
            Op::Pad { input, before, mode, .. } => {
                let from = &self.graph.tensor(*input).shape;
                match padded_element(element, &info.shape, from, before, *mode) {
                    (Some(source), run) => follow(*input, source, run),
                    (None, run) => {
                        let value = match mode {
                            PadMode::Constant(code) => Value::code(*code, info.dtype, within),
                            PadMode::Value(number) => Value::number(*number, info.dtype, within),
                            PadMode::Reflect | PadMode::Edge => return own,
                        };
                        (Some(value), run * size - within)
                    }
                }
            }
            Op::InsertZeros { input, stride } => {
                let from = self.graph.tensor(*input);
                let &[_, h, w, c] = &from.shape[..] else { return own };
                let [h, w, c] = [h, w, c].map(|n| n as u64);
                let [sh, sw] = stride.map(u64::from);
                let (rows, columns) = ((h - 1) * sh + 1, (w - 1) * sw + 1);
                let (pixel, channel) = (element / c, element % c);
                let (image, y, x) = (pixel / (rows * columns), pixel / columns % rows, pixel % columns);
                if y % sh == 0 && x % sw == 0 {
                    follow(*input, ((image * h + y / sh) * w + x / sw) * c + channel, c - channel)
                } else {
                    (Some(Value::code(from.zero_point(), info.dtype, within)), (c - channel) * size - within)
                }
            }
            _ => own,
        }
    }

    /// The origin of byte `byte` of a tensor's dense elements: a computed element, a constant's, or a fill; and for how
    /// many bytes it goes on consecutively.
    pub(crate) fn origin(&self, tensor: u32, byte: u64) -> (Value, u64) {
        let (mut value, mut run) = (Value::Element(Element::dense(tensor, byte)), u64::MAX);
        while let Some((tensor, byte)) = value.dense() {
            let (next, bytes) = self.step(tensor, byte);
            run = run.min(bytes);
            let Some(next) = next else { break };
            value = next;
        }
        (value, run)
    }

    /// For how many bytes, at most `run`, what is found is what is expected: dense bytes of tensors, or fills.
    pub(crate) fn common(&self, found: Value, expected: Value, mut run: u64) -> u64 {
        let (mut one, mut other) = (found, expected);
        while one != other {
            // Layers read what is made before them: the way from the tensor made later cannot have met the other yet.
            if self.definition(one) < self.definition(other) {
                (one, other) = (other, one);
            }
            let Some((tensor, byte)) = one.dense() else { return 0 };
            let (Some(next), bytes) = self.step(tensor, byte) else { return 0 };
            (one, run) = (next, run.min(bytes));
        }
        run
    }

    /// When a value is made: the number of its layer, from 1.
    fn definition(&self, value: Value) -> usize {
        value.dense().and_then(|(tensor, _)| self.producers[tensor as usize]).map_or(0, |layer| layer + 1)
    }

    /// Bytes of a constant, if the tensor is one.
    pub(crate) fn constant(&self, tensor: u32) -> Option<&[u8]> {
        self.graph.tensors.get(tensor as usize)?.constant.as_deref()
    }
}

/// How many elements from `element` on are consecutive in the source of a strided view.
fn consecutive(element: u64, dims: &[u32], strides: &[i64]) -> u64 {
    let mut run = 1;
    for (&extent, &stride) in dims.iter().zip(strides).rev() {
        if extent > 1 && stride != i64::try_from(run).unwrap_or(i64::MAX) {
            break;
        }
        run *= u64::from(extent);
    }
    run - element % run
}

/// Source element of an element of a padded tensor (`None` where a constant stands), and how many elements behave alike.
fn padded_element(element: u64, shape: &[usize], from: &[usize], before: &[u32], mode: PadMode) -> (Option<u64>, u64) {
    let mut rest = element;
    let mut index = vec![0i64; shape.len()];
    for axis in (0..shape.len()).rev() {
        index[axis] = (rest % shape[axis] as u64).cast_signed() - i64::from(before[axis]);
        rest /= shape[axis] as u64;
    }
    let last = shape.len() - 1;
    let extent = |axis: usize| from[axis] as i64;
    let inside = |axis: usize| (0..extent(axis)).contains(&index[axis]);
    let row_end = shape[last] as i64 - i64::from(before[last]) - index[last];
    if !(0..last).all(inside) && matches!(mode, PadMode::Constant(_) | PadMode::Value(_)) {
        return (None, row_end.cast_unsigned());
    }
    let run = match index[last] {
        i if i < 0 => -i,
        i if i < extent(last) => extent(last) - i,
        _ => row_end,
    };
    if !inside(last) && matches!(mode, PadMode::Constant(_) | PadMode::Value(_)) {
        return (None, run.cast_unsigned());
    }
    let exact = inside(last);
    let mut source = 0u64;
    for axis in 0..shape.len() {
        let (i, n) = (index[axis], extent(axis));
        let mapped = match mode {
            PadMode::Edge => i.clamp(0, n - 1),
            _ if i < 0 => -i,
            _ if i >= n => 2 * (n - 1) - i,
            _ => i,
        };
        source = source * from[axis] as u64 + mapped.cast_unsigned();
    }
    (Some(source), if exact { run.cast_unsigned() } else { 1 })
}

/// Whether the bytes of an image hold the constant's, both from the given offsets on.
pub(crate) fn same(image: Option<&[u8]>, at: u64, constant: &[u8], byte: u64, len: u64) -> bool {
    let found = image.and_then(|image| image.get(at as usize..(at + len) as usize));
    found.is_some() && found == constant.get(byte as usize..(byte + len) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Net;

    /// Moves of all kinds, one after the other.
    fn moves(seed: u64) -> Graph {
        let mut net = Net::new(seed);
        let mut last = net.input(&[1, 4, 6, 2]);
        for _ in 0..14 {
            let shape = net.shape(last);
            let (axis, rescaled) = (1 + net.random.below(3), net.random.below(4));
            last = match net.random.below(if shape.iter().product::<usize>() > 150 { 3 } else { 7 }) {
                0 => net.transpose(last, &[0, 2, 1, 3]),
                1 => net.reshape(last, &[1, shape[3], shape[1], shape[2]]),
                2 => {
                    let indices: Vec<u32> = (0..3).map(|_| net.random.below(shape[axis]) as u32).collect();
                    net.gather(last, axis, &indices)
                }
                3 => net.concat(&[last, last], axis, rescaled),
                4 => net.pad(last, &[0, 1, 0, 1], &[0, 0, 1, 0], PadMode::Constant(5)),
                5 => net.pad(last, &[0, 1, 1, 0], &[0, 1, 1, 0], PadMode::Edge),
                _ => net.insert_zeros(last, [2, 1]),
            };
        }
        net.finish(&[last])
    }

    #[test]
    fn ways_meet_where_the_origins_are_equal() {
        const RUN: u64 = 6;
        let (mut met, mut apart) = (0, 0);
        for seed in 0..20 {
            let graph = moves(seed);
            let expectation = Expectation::new(&graph);
            let mut random = crate::common::Random(seed);
            // Byte by byte, every way to its end.
            let origin = |tensor: u32, byte: u64| expectation.origin(tensor, byte).0;
            for _ in 0..1500 {
                let [(a, i), (b, j)] = [(); 2].map(|()| {
                    let tensor = random.below(graph.tensors.len());
                    (tensor as u32, random.below(graph.tensors[tensor].bytes()) as u64)
                });
                let left = |tensor: u32, byte: u64| graph.tensors[tensor as usize].bytes() as u64 - byte;
                let run = RUN.min(left(a, i)).min(left(b, j));
                let equal = (0..run).take_while(|k| origin(a, i + k) == origin(b, j + k)).count() as u64;
                let element = |tensor, byte| Value::Element(Element::dense(tensor, byte));
                let found = expectation.common(element(a, i), element(b, j), run);
                assert!(
                    found <= equal && (found > 0) == (equal > 0),
                    "seed {seed}: {a}+{i}, {b}+{j}: {found}, {equal}"
                );
                assert_eq!(found, expectation.common(element(b, j), element(a, i), run));
                *if found > 0 { &mut met } else { &mut apart } += 1;
            }
        }
        assert!(met > 500 && apart > 500, "{met} and {apart}");
    }
}
