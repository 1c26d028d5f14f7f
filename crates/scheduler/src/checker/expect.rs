//! What a tensor's bytes should look like in memory.
//!
//! Data movement changes no value, so an element of a concatenation, rearrangement, gather or padding *is* an element of its
//! operand. [`Expectation::resolve`] follows such elements to the layer that computed them (or to a constant or a fill),
//! which makes the checker indifferent to whether a program copies, aliases or produces in place.

use tpuflow_ir::{Graph, Op, PadMode, TensorId};

use super::contents::{Element, Value};

/// The graph with its producers.
pub(super) struct Expectation<'a> {
    pub(super) graph: &'a Graph,
    producers: Vec<Option<usize>>,
}

impl<'a> Expectation<'a> {
    pub(super) fn new(graph: &'a Graph) -> Self {
        let mut producers = vec![None; graph.tensors.len()];
        for (i, layer) in graph.layers.iter().enumerate() {
            producers[layer.output.index()] = Some(i);
        }
        Self { graph, producers }
    }

    /// The value of byte `byte` of a tensor's dense elements, and for how many bytes it goes on consecutively.
    pub(super) fn resolve(&self, tensor: TensorId, byte: u64) -> (Value, u64) {
        let info = self.graph.tensor(tensor);
        let own = (Value::Element(Element::dense(tensor.0, byte)), info.bytes() as u64 - byte);
        let Some(layer) = self.producers[tensor.index()] else { return own };
        let size = info.dtype.bytes() as u64;
        let (element, within) = (byte / size, byte % size);
        let follow = |input: TensorId, element: u64, run: u64| {
            let (value, bytes) = self.resolve(input, element * size + within);
            (value, bytes.min(run * size - within))
        };
        match &self.graph.layers[layer].op {
            Op::Concat { inputs, axis, requants } => {
                let inner: u64 = info.shape[*axis as usize + 1..].iter().map(|&n| n as u64).product();
                let along = info.shape[*axis as usize] as u64 * inner;
                let (outer, mut at) = (element / along, element % along);
                for (&input, requant) in inputs.iter().zip(requants) {
                    let part = self.graph.tensor(input).shape[*axis as usize] as u64 * inner;
                    if at < part {
                        return if requant.is_none() {
                            follow(input, outer * part + at, part - at)
                        } else {
                            (own.0, (part - at) * size - within)
                        };
                    }
                    at -= part;
                }
                own
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
                match padded(element, &info.shape, from, before, *mode) {
                    (Some(source), run) => follow(*input, source, run),
                    (None, run) => {
                        let value = match mode {
                            PadMode::Constant(code) => Value::Code(*code),
                            PadMode::Value(number) => Value::Number(*number),
                            PadMode::Reflect | PadMode::Edge => return own,
                        };
                        (value, run * size - within)
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
                    (Value::Code(from.zero_point()), (c - channel) * size - within)
                }
            }
            _ => own,
        }
    }

    /// What an element is in the end: a computed element, a constant's, or a fill; and for how many bytes it goes on
    /// consecutively. `None` in padding.
    pub(super) fn origin(&self, element: Element) -> (Option<Value>, u64) {
        match element.place() {
            (Some(byte), run) => {
                let (value, bytes) = self.resolve(TensorId(element.tensor), byte);
                (Some(value), run.min(bytes))
            }
            (None, run) => (None, run),
        }
    }

    /// Bytes of a constant, if the tensor is one.
    pub(super) fn constant(&self, tensor: u32) -> Option<&[u8]> {
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
fn padded(element: u64, shape: &[usize], from: &[usize], before: &[u32], mode: PadMode) -> (Option<u64>, u64) {
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
pub(super) fn same(image: Option<&[u8]>, at: u64, constant: &[u8], byte: u64, len: u64) -> bool {
    let found = image.and_then(|image| image.get(at as usize..(at + len) as usize));
    found.is_some() && found == constant.get(byte as usize..(byte + len) as usize)
}
