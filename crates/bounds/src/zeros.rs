//! Products that are zero because lowering put a zero there: cells between neighbours of a transposed convolution, padding.
//!
//! A convolution over them may as well be made of smaller ones, one for each place of the window between the zeros, or of one with a
//! column for each; so of its products those count that are none with such a zero, whatever tiles they come in.

use tpuflow_ir::{Graph, Layer, Op, PadMode, TensorId, Window};

/// Where a tensor `[n, h, w, c]` is not zero from its making: in these rows, columns and channels.
struct NonzeroRegion {
    rows: Vec<bool>,
    columns: Vec<bool>,
    channels: Vec<bool>,
}

impl NonzeroRegion {
    fn of(graph: &Graph, producer: &[Option<usize>], tensor: TensorId) -> Option<Self> {
        let &[_, height, width, channels] = &graph.tensor(tensor).shape[..] else { return None };
        let all = || Self { rows: vec![true; height], columns: vec![true; width], channels: vec![true; channels] };
        let zero = graph.tensor(tensor).zero_point();
        let op = producer[tensor.index()].map(|layer: usize| &graph.layers[layer].op);
        let own = |input: &TensorId| Self::of(graph, producer, *input);
        match op {
            Some(Op::InsertZeros { input, stride }) => {
                let mut filled = own(input)?;
                for (line, stride) in [(&mut filled.rows, stride[0]), (&mut filled.columns, stride[1])] {
                    let stride = stride as usize;
                    let apart = (line.len() - 1) * stride + 1;
                    *line = (0..apart).map(|at| at % stride == 0 && line[at / stride]).collect();
                }
                Some(filled)
            }
            Some(Op::Pad { input, before, after, mode }) if before.first() == Some(&0) && after.first() == Some(&0) => {
                let is_zero = match mode {
                    PadMode::Constant(code) => *code == zero,
                    PadMode::Value(number) => number.get() == 0.0,
                    PadMode::Reflect | PadMode::Edge => false,
                };
                let Some(mut filled) = own(input).filter(|_| is_zero) else { return Some(all()) };
                for (axis, line) in
                    [&mut filled.rows, &mut filled.columns, &mut filled.channels].into_iter().enumerate()
                {
                    let mut longer = vec![false; before[axis + 1] as usize];
                    longer.append(line);
                    longer.resize(longer.len() + after[axis + 1] as usize, false);
                    *line = longer;
                }
                Some(filled)
            }
            _ => Some(all()),
        }
    }

    fn is_all(&self) -> bool {
        [&self.rows, &self.columns, &self.channels].into_iter().flatten().all(|&filled| filled)
    }
}

/// The rest of a convolution whose operand holds such zeros.
pub(super) struct Sparse {
    /// Products of all results.
    pub products: u64,
    /// Elements of the operand.
    pub elements: u64,
}

/// That of a layer, if it is one.
pub(super) fn sparse(graph: &Graph, producer: &[Option<usize>], layer: &Layer) -> Option<Sparse> {
    let Op::Conv { input, weights, window, groups, .. } = &layer.op else { return None };
    let filled = NonzeroRegion::of(graph, producer, *input).filter(|filled| !filled.is_all())?;
    let &[images, height, width, channels] = &graph.tensor(*input).shape[..] else { return None };
    let [rows, columns] = window.output(height, width)?;
    let taps = taps(window, 0, rows, &filled.rows) * taps(window, 1, columns, &filled.columns);
    let count = |line: &[bool]| line.iter().filter(|&&filled| filled).count() as u64;
    // Of each channel the columns of its group.
    let results = graph.tensor(*weights).shape[0] as u64 / u64::from(*groups).max(1);
    debug_assert_eq!(filled.channels.len(), channels);
    let channels = count(&filled.channels);
    let elements = images as u64 * count(&filled.rows) * count(&filled.columns) * channels;
    Some(Sparse { products: images as u64 * taps * channels * results, elements })
}

/// Along an axis, the taps of all windows that meet something.
fn taps(window: &Window, axis: usize, results: usize, filled: &[bool]) -> u64 {
    let of = |at: usize| {
        let start = at as i64 * i64::from(window.stride[axis]) - i64::from(window.pads[axis]);
        let inside = window.inside(axis, start, filled.len() as u32);
        inside.filter(|tap| filled[(start + i64::from(tap * window.dilation[axis])) as usize]).count() as u64
    };
    (0..results).map(of).sum()
}
