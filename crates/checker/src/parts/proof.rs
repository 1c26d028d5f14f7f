//! Layers in parts: does the tiled graph compute the original?
//!
//! The tiling says of every tensor which box of which tensor of the original it holds. That is only a claim: here it is shown
//! tensor by tensor, from the inputs on. Constants are compared byte by byte. Slices and joins must carry boxes to boxes. Of
//! every other layer, each element of its box must be made by the original's operator from the same elements: along every axis,
//! position by position, tap by tap.

use tpuflow_ir::op::{FloatSlopes, Slopes};
use tpuflow_ir::{Arithmetic, Epilogue, Graph, Layer, LinearTap, Op, Requant, TensorId, Window};

use super::block_proof::Blocks;
use super::error::LayerProofError as Reason;
use super::view_proof::same_view;
use super::{Claim, ProofError, Span};

/// Shows that a tiled graph computes `graph`.
///
/// # Errors
/// The first tensor or layer of which that is not so.
pub(crate) fn prove(graph: &Graph, parts: &Graph, claims: &[Claim]) -> Result<(), ProofError> {
    if claims.len() != parts.tensors.len() || claims.iter().any(|claim| claim.0.index() >= graph.tensors.len()) {
        return Err(ProofError::Claims);
    }
    let (proof, mut blocks) = (Proof { graph, parts, claims }, Blocks::new(graph, parts, claims));
    proof.check_ports(&graph.inputs, &parts.inputs)?;
    let is_box = |(id, _): &(usize, _)| !blocks.is_between(TensorId::new(*id));
    for (id, tensor) in parts.tensors.iter().enumerate().filter(is_box) {
        let (of, spans) = &claims[id];
        let whole = graph.tensor(*of);
        let names = || (tensor.name.clone(), whole.name.clone());
        let inside = spans.len() == whole.shape.len()
            && spans.iter().zip(&whole.shape).all(|(&(from, to), &extent)| from < to && to <= extent);
        let shape: Vec<usize> = spans.iter().map(|(from, to)| to - from).collect();
        let alike = (tensor.dtype, tensor.zero_point()) == (whole.dtype, whole.zero_point());
        if !(inside && shape == tensor.shape && alike) {
            let (tensor, original) = names();
            return Err(ProofError::Box { tensor, original });
        }
        if let Some(bytes) = &tensor.constant {
            let size = tensor.dtype.bytes();
            let original = whole.constant.as_deref();
            let original = original.ok_or_else(|| ProofError::ComputedOriginal { tensor: tensor.name.clone() })?;
            // Whole rows of the last axis at a time.
            let row = shape.last().copied().unwrap_or(1);
            let same = (0..tensor.elements()).step_by(row.max(1)).all(|element| {
                let at = flat(&whole.shape, &index_of(spans, element)) * size;
                bytes.get(element * size..(element + row) * size) == original.get(at..at + row * size)
            });
            if !same {
                let (tensor, original) = names();
                return Err(ProofError::Constant { tensor, original });
            }
        }
    }
    for layer in &parts.layers {
        let found = if blocks.concerns(layer) { blocks.check_layer(layer) } else { proof.check_layer(layer) };
        found.map_err(|reason| ProofError::Layer { layer: layer.name.clone(), reason })?;
    }
    proof.check_ports(&graph.outputs, &parts.outputs)
}

struct Proof<'a> {
    graph: &'a Graph,
    parts: &'a Graph,
    claims: &'a [Claim],
}

impl Proof<'_> {
    fn claim(&self, id: TensorId) -> &Claim {
        &self.claims[id.index()]
    }

    /// Inputs or outputs: the same tensors, whole.
    fn check_ports(&self, original: &[TensorId], found: &[TensorId]) -> Result<(), ProofError> {
        let same = original.len() == found.len()
            && original.iter().zip(found).all(|(&a, &b)| {
                let (whole, part) = (self.graph.tensor(a), self.parts.tensor(b));
                self.claim(b) == &(a, spans(&whole.shape)) && (&whole.name, &whole.quant) == (&part.name, &part.quant)
            });
        if same { Ok(()) } else { Err(ProofError::Ports) }
    }

    fn check_layer(&self, layer: &Layer) -> Result<(), Reason> {
        let (of, out) = self.claim(layer.output);
        let operands: Vec<&Claim> = layer.op.operands().into_iter().map(|id| self.claim(id)).collect();
        if operands.iter().all(|claim| claim.0 == *of) {
            return self.check_same_tensor(&layer.op, &operands, out);
        }
        let made = self.graph.layers.iter().find(|made| made.output == *of).ok_or(Reason::NoOriginal)?;
        let ids = made.op.operands();
        // A concatenation may do with some of its operands, in their order.
        let named = operands.len() == ids.len() && operands.iter().zip(&ids).all(|(claim, id)| claim.0 == *id);
        require(named || matches!(made.op, Op::Concat { .. }), Reason::Operands)?;
        let spans: Vec<&[Span]> = operands.iter().map(|claim| claim.1.as_slice()).collect();
        self.check_operator(made, &layer.op, &operands, &spans, out)
    }

    fn shape(&self, id: TensorId) -> &[usize] {
        &self.graph.tensor(id).shape
    }

    /// Boxes of one tensor cut out or joined.
    fn check_same_tensor(&self, op: &Op, operands: &[&Claim], out: &[Span]) -> Result<(), Reason> {
        match op {
            Op::Rearrange { dims, strides, offset, .. } => {
                let [(_, from)] = operands else { return Err(Reason::SliceOperands) };
                let shape: Vec<usize> = from.iter().map(|(a, b)| b - a).collect();
                let extents: Vec<u32> = out.iter().map(|(a, b)| (b - a) as u32).collect();
                let start: Option<Vec<usize>> = out.iter().zip(from).map(|(o, f)| o.0.checked_sub(f.0)).collect();
                let inside = out.iter().zip(from).all(|(o, f)| o.1 <= f.1);
                let steps: Vec<i64> =
                    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product::<usize>() as i64).collect();
                let cut = start.is_some_and(|start| flat(&shape, &start) as i64 == *offset);
                require(inside && cut && *dims == extents && *strides == steps, Reason::SliceBox)
            }
            Op::Concat { axis, requants, .. } => {
                let axis = *axis as usize;
                let mut at = out.get(axis).ok_or(Reason::ConcatAxis)?.0;
                for (_, part) in operands {
                    let same = part.len() == out.len() && (0..out.len()).all(|a| a == axis || part[a] == out[a]);
                    require(same && part[axis].0 == at, Reason::ConcatGap)?;
                    at = part[axis].1;
                }
                require(at == out[axis].1 && requants.iter().all(Option::is_none), Reason::ConcatEnd)
            }
            _ => Err(Reason::SameTensor),
        }
    }

    /// Whether `own` makes the box `out` of what a layer makes, from the boxes `from` of its operands.
    fn check_operator(
        &self,
        made: &Layer,
        own: &Op,
        operands: &[&Claim],
        from: &[&[Span]],
        out: &[Span],
    ) -> Result<(), Reason> {
        let op = &made.op;
        let whole = |id: TensorId, span: &[Span]| self.is_whole(id, span);
        let same_attributes = || own.with_operands(&op.operands()) == *op;
        match (op, own) {
            (Op::Conv { .. }, Op::Conv { .. }) => self.check_convolution(op, own, from, out),
            (Op::MatMul { .. }, Op::MatMul { .. }) => self.check_product(op, own, from, out),
            (Op::MaxPool { input, window }, Op::MaxPool { window: w, .. }) => {
                elements(from[0][3] == out[3])?;
                self.check_window(*input, window, w, from[0], out, None)
            }
            (
                Op::AveragePool { input, window, beyond, count_include_pad, average },
                Op::AveragePool { window: w, beyond: b, count_include_pad: c, average: a, .. },
            ) => {
                attributes(count_include_pad == c && average == a)?;
                elements(from[0][3] == out[3])?;
                self.check_window(*input, window, w, from[0], out, Some((*beyond, *b)))
            }
            (Op::PRelu { slopes, .. }, Op::PRelu { slopes: own, .. }) => {
                elements(from[0] == out)?;
                channel_parameters(same_slopes(slopes, own, *out.last().unwrap_or(&(0, 1))))
            }
            (Op::ArgMax { input, .. }, Op::ArgMax { .. }) => {
                let lead = self.shape(*input).len() - 1;
                let last = from[0][lead] == spans(self.shape(*input))[lead];
                attributes(same_attributes())?;
                elements(last && from[0][..lead] == out[..lead])
            }
            (Op::Reduce { input, axes, .. }, Op::Reduce { .. }) => {
                attributes(same_attributes())?;
                elements(self.reads_all_terms(*input, axes, from[0], out))
            }
            (Op::LayerNorm { input, gamma, beta, .. }, Op::LayerNorm { .. }) => {
                let last = out.last() == spans(self.shape(*input)).last();
                let constants = whole(*gamma, from[1]) && whole(*beta, from[2]);
                attributes(same_attributes())?;
                elements(last && from[0] == out && constants)
            }
            (Op::Softmax { input, .. }, Op::Softmax { .. }) => {
                elements(out.last() == spans(self.shape(*input)).last())?;
                self.check_pointwise(op, own, from, out)
            }
            (Op::Unary { .. } | Op::Rescale { .. } | Op::Quantize { .. } | Op::Dequantize { .. }, _) => {
                let tables = from[1..].iter().zip(&op.operands()[1..]).all(|(span, &id)| whole(id, span));
                attributes(same_attributes())?;
                elements(from[0] == out && tables)
            }
            (Op::Binary { .. } | Op::Select { .. }, _) => self.check_pointwise(op, own, from, out),
            _ => self.check_movement(made, own, operands, from, out),
        }
    }

    /// As [`Self::check_operator`], of operators whose elements are read at positions that the operator states.
    fn check_movement(
        &self,
        made: &Layer,
        own: &Op,
        operands: &[&Claim],
        from: &[&[Span]],
        out: &[Span],
    ) -> Result<(), Reason> {
        let op = &made.op;
        match (op, own) {
            (Op::ResizeLinear { rows, columns, .. }, Op::ResizeLinear { rows: r, columns: c, .. }) => {
                let [n, y, x, depth] = from[0] else { return Err(Reason::Elements) };
                let rows = same_taps(rows, r, out[1], *y);
                elements((*n, *depth) == (out[0], out[3]) && rows && same_taps(columns, c, out[2], *x))
            }
            (Op::Concat { inputs, axis, requants }, Op::Concat { axis: own_axis, requants: own_requants, .. }) => {
                attributes(axis == own_axis)?;
                self.check_concatenation((inputs, *axis as usize, requants), (operands, own_requants), out)
            }
            (Op::Pad { input, before, mode, .. }, Op::Pad { before: own, mode: own_mode, .. }) => {
                let shape = self.shape(*input);
                attributes(mode == own_mode)?;
                elements(same_padding((shape, before), (from[0], own), out))
            }
            (Op::Gather { axis, indices, .. }, Op::Gather { axis: own_axis, indices: own, .. }) => {
                let along = *axis as usize;
                let picks = out[along].0..out[along].1;
                let same = own.len() == picks.len()
                    && own
                        .iter()
                        .zip(&indices[picks])
                        .all(|(own, index)| *own as usize + from[0][along].0 == *index as usize);
                let others = (0..out.len()).all(|other| other == along || from[0][other] == out[other]);
                attributes(axis == own_axis)?;
                elements(same && others)
            }
            (Op::InsertZeros { stride, .. }, Op::InsertZeros { stride: own, .. }) => {
                attributes(stride == own)?;
                elements(same_zeros(*stride, from[0], out) && (from[0][0], from[0][3]) == (out[0], out[3]))
            }
            (Op::Rearrange { .. }, Op::Rearrange { dims: d, strides: s, offset: o, .. }) => {
                self.check_view(made, (d, s, *o), from[0], out)
            }
            (Op::Embedding { table, entry, .. }, Op::Embedding { entry: own, .. }) => {
                attributes(entry == own)?;
                let lead = out.len() - 1;
                let table_shape = self.shape(*table);
                let row = out[lead] == (0, entry.count([table_shape[0], table_shape[1]])[1]);
                elements(self.is_whole(*table, from[0]) && *from[1] == out[..lead] && row)
            }
            _ => Err(Reason::Operator),
        }
    }

    /// Some channels of a convolution read the filters and the groups of theirs.
    fn check_convolution(&self, op: &Op, own: &Op, from: &[&[Span]], out: &[Span]) -> Result<(), Reason> {
        let (
            Op::Conv { input, weights, window, groups, epilogue, .. },
            Op::Conv { window: w, groups: g, epilogue: e, .. },
        ) = (op, own)
        else {
            return Err(Reason::Operator);
        };
        let shape = self.shape(*weights);
        let (depth, channels) = (shape[3], out[3]);
        let (wide, narrow) = (shape[0] / *groups as usize, (channels.1 - channels.0) / *g as usize);
        let reads = (channels.0..channels.1).all(|channel| {
            let own = from[0][3].0 + (channel - channels.0) / narrow.max(1) * depth;
            channel / wide * depth == own && own + depth <= from[0][3].1
        });
        let mut rows = spans(shape);
        rows[0] = channels;
        elements(reads && from[1] == rows.as_slice() && *from[2] == [channels])?;
        elements(from[3..].iter().zip(&op.operands()[3..]).all(|(span, &id)| self.is_whole(id, span)))?;
        channel_parameters(same_epilogue(epilogue, e, channels))?;
        self.check_window(*input, window, w, from[0], out, None)
    }

    /// Rows and columns of a product read all of the axis it sums over.
    fn check_product(&self, op: &Op, own: &Op, from: &[&[Span]], out: &[Span]) -> Result<(), Reason> {
        let (Op::MatMul { a, b, epilogue, bias, .. }, Op::MatMul { epilogue: e, .. }) = (op, own) else {
            return Err(Reason::Operator);
        };
        let (rank, right) = (out.len(), self.shape(*b).len());
        let columns = *out.last().ok_or(Reason::Elements)?;
        elements(from[0][..rank - 1] == out[..rank - 1] && from[0][rank - 1] == spans(self.shape(*a))[rank - 1])?;
        let (k, n) = (from[1][right - 2], from[1][right - 1]);
        elements(k == spans(self.shape(*b))[right - 2] && n == columns)?;
        elements(right == 2 || from[1][..right - 2] == out[..right - 2])?;
        elements(bias.is_none() || *from[2] == [columns])?;
        let tables = 2 + usize::from(bias.is_some());
        elements(from[tables..].iter().zip(&op.operands()[tables..]).all(|(span, &id)| self.is_whole(id, span)))?;
        channel_parameters(same_epilogue(epilogue, e, columns))
    }

    /// Position by position along the axis, an operand joined is the one of the whole, and rescaled as that is.
    fn check_concatenation(
        &self,
        (inputs, along, requants): (&[TensorId], usize, &[Option<Requant>]),
        (operands, own_requants): (&[&Claim], &[Option<Requant>]),
        out: &[Span],
    ) -> Result<(), Reason> {
        // By position, the operand, the position in it, and what becomes of it.
        let mut all: Vec<(TensorId, usize, &Option<Requant>)> = Vec::new();
        for (&id, requant) in inputs.iter().zip(requants) {
            all.extend((0..self.shape(id)[along]).map(|position| (id, position, requant)));
        }
        let mut found: Vec<(TensorId, usize, &Option<Requant>)> = Vec::new();
        for ((id, part), requant) in operands.iter().copied().zip(own_requants) {
            let same = (0..out.len()).all(|other| other == along || part[other] == out[other]);
            elements(same)?;
            found.extend((part[along].0..part[along].1).map(|position| (*id, position, requant)));
        }
        elements(all.get(out[along].0..out[along].1) == Some(&found[..]))
    }

    /// Element by element, a view takes what the whole view takes.
    fn check_view(
        &self,
        made: &Layer,
        (d, s, o): (&[u32], &[i64], i64),
        from: &[Span],
        out: &[Span],
    ) -> Result<(), Reason> {
        let Op::Rearrange { input, dims, strides, offset } = &made.op else { return Err(Reason::Operator) };
        let (shape, whole) = (self.shape(*input), self.shape(made.output));
        elements(same_view(shape, whole, (dims, strides, *offset), (d, s, o), from, out))
    }

    /// All along the axes of a reduction, and of the others what the result has.
    fn reads_all_terms(&self, input: TensorId, axes: &[u32], from: &[Span], out: &[Span]) -> bool {
        let all = spans(self.shape(input));
        let kept = (0..all.len()).filter(|axis| !axes.contains(&(*axis as u32)));
        let reduced = axes.iter().all(|&axis| from[axis as usize] == all[axis as usize]);
        let left: Vec<Span> = kept.map(|axis| from[axis]).collect();
        let out: Vec<Span> = if out.len() == all.len() {
            (0..all.len()).filter(|axis| !axes.contains(&(*axis as u32))).map(|axis| out[axis]).collect()
        } else {
            out.to_vec()
        };
        reduced && left == out
    }

    fn is_whole(&self, id: TensorId, span: &[Span]) -> bool {
        span == spans(self.shape(id)).as_slice()
    }

    /// Element by element; extents of one serve all.
    fn check_pointwise(&self, op: &Op, own: &Op, from: &[&[Span]], out: &[Span]) -> Result<(), Reason> {
        let ids = op.operands();
        let fits = |(&id, span): (&TensorId, &&[Span])| {
            let shape = self.shape(id);
            let lead = out.len() - shape.len();
            shape
                .iter()
                .enumerate()
                .all(|(axis, &extent)| span[axis] == if extent == 1 { (0, 1) } else { out[lead + axis] })
        };
        attributes(own.with_operands(&ids) == *op)?;
        elements(ids.iter().zip(from).all(fits))
    }

    /// Every tap of every window of the box sees the same cell as in the original, or padding of the same kind.
    fn check_window(
        &self,
        input: TensorId,
        window: &Window,
        own: &Window,
        from: &[Span],
        out: &[Span],
        beyond: Option<([u32; 2], [u32; 2])>,
    ) -> Result<(), Reason> {
        let alike = (window.kernel, window.stride, window.dilation) == (own.kernel, own.stride, own.dilation)
            && from[0] == out[0];
        require(alike, Reason::Window)?;
        for axis in 0..2 {
            let (size, near) = (self.shape(input)[axis + 1] as i64, (from[axis + 1].1 - from[axis + 1].0) as i64);
            let (over, own_over) = beyond.map_or((0, 0), |(a, b)| (i64::from(a[axis]), i64::from(b[axis])));
            let (end, own_end) =
                (size + i64::from(window.pads[axis + 2]) - over, near + i64::from(own.pads[axis + 2]) - own_over);
            for position in out[axis + 1].0..out[axis + 1].1 {
                for tap in 0..window.kernel[axis] {
                    let reach = i64::from(tap * window.dilation[axis]);
                    let at = |position: usize, pad: u32| {
                        position as i64 * i64::from(window.stride[axis]) - i64::from(pad) + reach
                    };
                    let cell = at(position, window.pads[axis]);
                    let local = at(position - out[axis + 1].0, own.pads[axis]);
                    let (inside, seen) = ((0..size).contains(&cell), (0..near).contains(&local));
                    let same = if inside { seen && local + from[axis + 1].0 as i64 == cell } else { !seen };
                    // Cells beyond the declared padding never count.
                    require(same && (cell < end) == (local < own_end), Reason::Cells)?;
                }
            }
        }
        Ok(())
    }
}

pub(super) fn require(holds: bool, otherwise: Reason) -> Result<(), Reason> {
    if holds { Ok(()) } else { Err(otherwise) }
}

pub(super) fn attributes(same: bool) -> Result<(), Reason> {
    require(same, Reason::Attributes)
}

fn channel_parameters(same: bool) -> Result<(), Reason> {
    require(same, Reason::ChannelParameters)
}

pub(super) fn elements(same: bool) -> Result<(), Reason> {
    require(same, Reason::Elements)
}

fn spans(shape: &[usize]) -> Vec<Span> {
    shape.iter().map(|&extent| (0, extent)).collect()
}

pub(super) fn spans_of(spans: &[Span]) -> Vec<usize> {
    spans.iter().map(|(from, to)| to - from).collect()
}

/// Where the row-major element of a box lies in the whole.
pub(super) fn index_of(spans: &[Span], mut element: usize) -> Vec<usize> {
    let mut index = vec![0; spans.len()];
    for (axis, &(from, to)) in spans.iter().enumerate().rev() {
        index[axis] = from + element % (to - from);
        element /= to - from;
    }
    index
}

pub(super) fn flat(shape: &[usize], index: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |element, (&i, &extent)| element * extent + i)
}

/// The same epilogue for some columns.
pub(super) fn same_epilogue(whole: &Arithmetic<Epilogue>, own: &Arithmetic<Epilogue>, columns: Span) -> bool {
    match (whole, own) {
        (Arithmetic::Fixed(a), Arithmetic::Fixed(b)) => {
            let limits = |e: &Epilogue| (e.requant.zero_point, e.requant.lo, e.requant.hi);
            let tables = |e: &Epilogue| e.table.as_ref().map(|table| (table.lo, table.hi));
            limits(a) == limits(b)
                && a.first_shift == b.first_shift
                && tables(a) == tables(b)
                && (columns.0..columns.1).all(|column| a.requant.of(column) == b.requant.of(column - columns.0))
        }
        (Arithmetic::Float(a), Arithmetic::Float(b)) => a == b,
        _ => false,
    }
}

/// The same slopes for some channels.
fn same_slopes(whole: &Arithmetic<Slopes, FloatSlopes>, own: &Arithmetic<Slopes, FloatSlopes>, channels: Span) -> bool {
    let of = |count: usize, channel: usize| if count == 1 { 0 } else { channel };
    let mut all = channels.0..channels.1;
    match (whole, own) {
        (Arithmetic::Fixed(a), Arithmetic::Fixed(b)) => {
            let slope = |s: &Slopes, channel: usize| {
                let at = of(s.negative_multiplier.len(), channel);
                (s.negative_multiplier[at], s.negative_shift[at])
            };
            a.positive == b.positive && all.all(|channel| slope(a, channel) == slope(b, channel - channels.0))
        }
        (Arithmetic::Float(a), Arithmetic::Float(b)) => {
            let slope = |s: &FloatSlopes, channel: usize| s.negative[of(s.negative.len(), channel)];
            a.finish == b.finish && all.all(|channel| slope(a, channel) == slope(b, channel - channels.0))
        }
        _ => false,
    }
}

/// Whether taps of a part read the cells that those of the whole do.
fn same_taps(all: &[LinearTap], own: &[LinearTap], o: Span, f: Span) -> bool {
    own.len() == o.1 - o.0
        && own.iter().zip(&all[o.0..o.1]).all(|(own, tap)| {
            let cell = |own: u32, tap: u32| own as usize + f.0 == tap as usize && (tap as usize) < f.1;
            cell(own.first, tap.first) && cell(own.second, tap.second) && own.weight == tap.weight
        })
}

/// Whether a part has its cells, and padding, where the whole has them.
fn same_padding((shape, before): (&[usize], &[u32]), (from, own): (&[Span], &[u32]), out: &[Span]) -> bool {
    let axis = |axis: usize| {
        let (from, span) = (from[axis], out[axis]);
        (span.0..span.1).all(|position| {
            let cell = position.checked_sub(before[axis] as usize).filter(|&cell| cell < shape[axis]);
            let near = (position - span.0).checked_sub(own[axis] as usize).map(|cell| cell + from.0);
            cell == near.filter(|&cell| cell < from.1)
        })
    };
    (0..out.len()).all(axis)
}

/// Whether a part has its pixels, and the zeros between them, where the whole has them.
fn same_zeros(stride: [u32; 2], from: &[Span], out: &[Span]) -> bool {
    let axis = |axis: usize| {
        let (from, span, step) = (from[axis], out[axis], stride[axis - 1] as usize);
        (span.0..span.1).all(|position| {
            let near = position - span.0;
            let cell = position.is_multiple_of(step).then_some(position / step);
            cell == near.is_multiple_of(step).then_some(from.0 + near / step) && cell.is_none_or(|c| c < from.1)
        })
    };
    axis(1) && axis(2)
}
