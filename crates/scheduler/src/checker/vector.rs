//! Elementwise instructions. Those that compute are compared with their layer; moves, gathers and fills carry symbols along,
//! and whoever reads the result finds out whether they went to the right place.

use tpuflow_ir::isa::{NormParameters, Scaling, Slope, Vector, VectorOp};
use tpuflow_ir::{Descriptor, Layer, Op, Requant, TensorId, View};

use super::contents::{Piece, Value};
use super::walk::{Fault, Walk, defined};

/// Loop nest of a move: extents with input and output strides.
type Nest = Vec<(u64, i64, i64)>;

impl Walk<'_> {
    pub(super) fn vector(&mut self, v: &Vector, layer: Option<&Layer>) -> Result<(), Fault> {
        let program = self.program;
        let Some(Descriptor::Vector(op)) = program.descriptors.get(v.descriptor.index()) else {
            return Err(("descriptor", "not a vector descriptor".to_owned()));
        };
        match op {
            VectorOp::Move { dims, input_strides, input_offset, output_strides, output_offset, rescale } => {
                if dims.len() != input_strides.len() || dims.len() != output_strides.len() || dims.is_empty() {
                    return Err(("descriptor", "a move with uneven loops".to_owned()));
                }
                if v.first_row + v.rows > dims[0] {
                    return Err(("range", "a move beyond its outermost loop".to_owned()));
                }
                let mut nest: Nest = dims
                    .iter()
                    .zip(input_strides.iter().zip(output_strides))
                    .map(|(&d, (&i, &o))| (u64::from(d), i, o))
                    .collect();
                nest[0].0 = u64::from(v.rows);
                let first = i64::from(v.first_row);
                let from = input_offset + first * nest[0].1;
                let to = output_offset + first * nest[0].2;
                self.transport(v, &nest, from, to, rescale.as_ref(), layer)
            }
            VectorOp::Gather { outer, extent, inner, indices } => {
                let count = indices.len() as u32;
                if v.first_row + v.rows > outer * count {
                    return Err(("range", "a gather beyond its loops".to_owned()));
                }
                for row in v.first_row..v.first_row + v.rows {
                    let source = (row / count) * extent + indices[(row % count) as usize];
                    let (from, to) = (i64::from(source) * i64::from(*inner), i64::from(row) * i64::from(*inner));
                    self.transport(v, &vec![(u64::from(*inner), 1, 1)], from, to, None, layer)?;
                }
                Ok(())
            }
            VectorOp::Fill { code } => {
                let word = self.machine().word();
                for row in v.first_row..v.first_row + v.rows {
                    self.holds(&v.output, row)?;
                    let start = v.output.pixel_address(row, 0, word);
                    if v.output.payload() == v.output.pixel_bytes as usize {
                        let bytes = u64::from(v.output.width) * u64::from(v.output.pixel_bytes);
                        self.store(v.output.space, start, start + bytes, Value::Code(*code))?;
                        continue;
                    }
                    for column in 0..v.output.width {
                        let start = v.output.pixel_address(row, column, word);
                        self.store(v.output.space, start, start + v.output.payload() as u64, Value::Code(*code))?;
                    }
                }
                Ok(())
            }
            _ => {
                let operands = match layer {
                    Some(layer) => Some(self.computed(op, v, layer)?),
                    None => None,
                };
                self.operands(op, v, operands.as_deref(), layer.map(|l| l.output))?;
                let rows = match op {
                    VectorOp::Reduce { .. } => 0..v.output.rows,
                    _ => v.first_row..v.first_row + v.rows,
                };
                let (width, channels) = (0..v.output.width, 0..v.output.channels);
                self.produce_or_any(&v.output, layer.map(|l| l.output), rows, width, channels)
            }
        }
    }

    /// The operands of the layer, in the order of the instruction, after comparing descriptor and parameters with it.
    fn computed(&mut self, op: &VectorOp, v: &Vector, layer: &Layer) -> Result<Vec<TensorId>, Fault> {
        let Some(graph) = self.expectation.as_ref().map(|e| e.graph) else { return Ok(vec![]) };
        let zero = |id: TensorId| graph.tensor(id).zero_point();
        let (agrees, operands) = match (op, &layer.op) {
            (VectorOp::Binary { kind, zeros, factors, scaling }, Op::Binary { kind: k, a, b, ka, kb, requant }) => (
                kind == k && *zeros == [zero(*a), zero(*b)] && *factors == [*ka, *kb] && scales(scaling, requant),
                vec![*a, *b],
            ),
            (VectorOp::Table(shape), Op::Unary { input, table }) => {
                let bytes = self.parameters(v.parameters, shape.entries as usize * 4)?;
                let entries = graph.tensor(table.entries).constant.as_deref();
                ((shape.lo, shape.hi) == (table.lo, table.hi) && entries == Some(&bytes[..]), vec![*input])
            }
            (VectorOp::Rescale { input_zero, scaling }, Op::Rescale { input, requant }) => {
                (*input_zero == zero(*input) && scales(scaling, requant), vec![*input])
            }
            (
                VectorOp::PRelu { input_zero, positive, per_channel },
                Op::PRelu { input, positive: requant, negative_multiplier, negative_shift },
            ) => {
                let count = if *per_channel { v.output.channels as usize } else { 1 };
                let first = if *per_channel { v.output.origin[1] as usize } else { 0 };
                let bytes = self.parameters(v.parameters, Slope::BYTES * count)?;
                let slopes = bytes.chunks_exact(Slope::BYTES).map(Slope::decode).enumerate().all(|(i, s)| {
                    negative_multiplier.get(first + i) == Some(&i32::from(s.multiplier))
                        && negative_shift.get(first + i) == Some(&s.shift)
                });
                let agrees = *per_channel == (negative_multiplier.len() > 1) || negative_multiplier.len() == 1;
                (agrees && slopes && *input_zero == zero(*input) && scales(positive, requant), vec![*input])
            }
            (
                VectorOp::Softmax { coefficient, scaling },
                Op::Softmax { input, coefficient: c, multiplier, shift, zero_point, lo, hi, mask },
            ) => {
                let agrees = coefficient == c
                    && (scaling.multiplier, scaling.shift) == (*multiplier, *shift)
                    && (scaling.codes.zero_point, scaling.codes.lo, scaling.codes.hi) == (*zero_point, *lo, *hi);
                (agrees, std::iter::once(*input).chain(*mask).collect())
            }
            (VectorOp::LayerNorm { .. }, Op::LayerNorm { input, .. }) => {
                (self.norm_agrees(op, v, &layer.op)?, vec![*input])
            }
            (
                VectorOp::Reduce { kind, shape, axes, input_zero, scaling },
                Op::Reduce { input, kind: k, axes: a, requant },
            ) => {
                let info = graph.tensor(*input);
                let same_shape = info.shape.iter().copied().eq(shape.iter().map(|&n| n as usize));
                let agrees = kind == k && axes == a && same_shape && *input_zero == info.zero_point();
                (agrees && scales(scaling, requant), vec![*input])
            }
            (VectorOp::ArgMax { largest, select_last }, Op::ArgMax { input, largest: l, select_last: s }) => {
                ((largest, select_last) == (l, s), vec![*input])
            }
            (VectorOp::ResizeLinear { rows, columns }, Op::ResizeLinear { input, rows: r, columns: c }) => {
                ((rows, columns) == (r, c), vec![*input])
            }
            (VectorOp::Select, Op::Select { condition, a, b }) => (true, vec![*condition, *a, *b]),
            _ => (false, vec![]),
        };
        if agrees && operands.len() == v.inputs.len() {
            Ok(operands)
        } else {
            Err(("descriptor", format!("differs from layer \"{}\" ({})", layer.name, layer.op.name())))
        }
    }

    fn norm_agrees(&mut self, op: &VectorOp, v: &Vector, layer: &Op) -> Result<bool, Fault> {
        let bytes = self.parameters(v.parameters, NormParameters::BYTES * v.output.channels as usize)?;
        let Some(graph) = self.expectation.as_ref().map(|e| e.graph) else { return Ok(true) };
        let (
            VectorOp::LayerNorm { center, input_zero, epsilon, normalise, codes },
            Op::LayerNorm { input, gamma, beta, center: c, epsilon: e, multiplier, shift, requant },
        ) = (op, layer)
        else {
            return Ok(false);
        };
        let (gammas, betas) = (graph.tensor(*gamma).integers(), graph.tensor(*beta).integers());
        let parameters =
            bytes.chunks_exact(NormParameters::BYTES).map(NormParameters::decode).enumerate().all(|(i, p)| {
                let (m, n) = requant.of(i);
                gammas.get(i) == Some(&i64::from(p.gamma))
                    && betas.get(i) == Some(&p.beta)
                    && (i32::from(p.multiplier), p.shift) == (m, n)
            });
        Ok(parameters
            && (center, epsilon, *normalise) == (c, e, (*multiplier, *shift))
            && *input_zero == graph.tensor(*input).zero_point()
            && (codes.zero_point, codes.lo, codes.hi) == (requant.zero_point, requant.lo, requant.hi))
    }

    /// Reads what a computing instruction needs, row by row.
    fn operands(
        &mut self,
        op: &VectorOp,
        v: &Vector,
        operands: Option<&[TensorId]>,
        output: Option<TensorId>,
    ) -> Result<(), Fault> {
        for (i, view) in v.inputs.iter().enumerate() {
            let tensor = operands.map(|o| o[i]);
            match op {
                VectorOp::ArgMax { .. } => {
                    if (view.rows, view.width, v.output.channels) != (v.output.rows, v.output.width, 1) {
                        return Err(("descriptor", "not one index per pixel".to_owned()));
                    }
                    for row in v.first_row..v.first_row + v.rows {
                        self.consume(view, tensor, row..row + 1, 0..view.width, 0..view.channels)?;
                    }
                }
                VectorOp::Reduce { .. } => {
                    self.true_geometry(view, tensor)?;
                    let (rows, columns) = (0..view.rows, 0..view.width);
                    self.consume(view, tensor, rows, columns, 0..view.channels)?;
                }
                VectorOp::ResizeLinear { rows, .. } => {
                    self.true_geometry(view, tensor)?;
                    self.true_geometry(&v.output, output)?;
                    for row in v.first_row..v.first_row + v.rows {
                        let (image, y) = (row / v.output.height, row % v.output.height);
                        let tap = rows.get(y as usize).ok_or(("range", format!("row {y} has no tap")))?;
                        for line in [tap.first, tap.second] {
                            let line = image * view.height + line;
                            self.consume(view, tensor, line..line + 1, 0..view.width, 0..view.channels)?;
                        }
                    }
                }
                _ => {
                    for row in v.first_row..v.first_row + v.rows {
                        let line = self.same_row(view, &v.output, row, tensor.zip(output))?;
                        self.consume(view, tensor, line..line + 1, 0..view.width, 0..view.channels)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The operand's row that an output row reads, after checking that it shows the pixels broadcasting asks for.
    fn same_row(
        &self,
        view: &View,
        output: &View,
        row: u32,
        tensors: Option<(TensorId, TensorId)>,
    ) -> Result<u32, Fault> {
        let (image, y) = (row / output.height.max(1), row % output.height.max(1));
        let fits = |mine: u32, theirs: u32| mine == theirs || mine == 1;
        let (images, out_images) = (view.rows / view.height.max(1), output.rows / output.height.max(1));
        if !fits(view.width, output.width)
            || !fits(view.channels, output.channels)
            || !fits(view.height, output.height)
            || !fits(images, out_images)
        {
            return Err(("descriptor", "an operand does not broadcast to the result".to_owned()));
        }
        let line = (if images == 1 { 0 } else { image }) * view.height + if view.height == 1 { 0 } else { y };
        if let Some((graph, (tensor, result))) = self.expectation.as_ref().map(|e| e.graph).zip(tensors) {
            let (from, to) = (&graph.tensor(tensor).shape, &graph.tensor(result).shape);
            for column in [0, output.width - 1] {
                let pixel = u64::from(output.origin[0]) + u64::from(row) * u64::from(output.width) + u64::from(column);
                let x = if view.width == 1 { 0 } else { column };
                let shown = u64::from(view.origin[0]) + u64::from(line) * u64::from(view.width) + u64::from(x);
                if broadcast_pixel(to, from, pixel) != shown {
                    return Err(("value", format!("operand \"{}\" shows other pixels", graph.tensor(tensor).name)));
                }
            }
        }
        Ok(line)
    }

    /// Carries symbols from `from` to `to` through a loop nest; with a rescaling the result is the layer's own.
    fn transport(
        &mut self,
        v: &Vector,
        nest: &Nest,
        from: i64,
        to: i64,
        rescale: Option<&(i32, Scaling)>,
        layer: Option<&Layer>,
    ) -> Result<(), Fault> {
        let [input] = v.inputs.as_slice() else { return Err(("descriptor", "a move has one operand".to_owned())) };
        let (size, out_size) = (input.dtype.bytes() as u64, v.output.dtype.bytes() as u64);
        if rescale.is_none() && size != out_size {
            return Err(("descriptor", "a move changes the element size".to_owned()));
        }
        let (inner, outer) = match nest.split_last() {
            Some((&(extent, 1, 1), outer)) => (extent, outer),
            _ => (1, nest.as_slice()),
        };
        let mut index = vec![0u64; outer.len()];
        loop {
            let at = |start: i64, pick: fn(&(u64, i64, i64)) -> i64| {
                start + index.iter().zip(outer).map(|(&i, n)| i.cast_signed() * pick(n)).sum::<i64>()
            };
            let (mut source, mut target, mut left) = (at(from, |n| n.1), at(to, |n| n.2), inner);
            while left > 0 {
                let (start, a) = self.place(input, source, left)?;
                let (end, b) = self.place(&v.output, target, left)?;
                let count = a.min(b);
                let pieces = self.load(input.space, start, start + count * size)?;
                defined(&pieces, input.space, start, start + count * size)?;
                match rescale {
                    None => {
                        for piece in &pieces {
                            let shift = end + (piece.start - start);
                            self.store(v.output.space, shift, shift + (piece.end - piece.start), piece.value)?;
                        }
                    }
                    Some(rescale) => {
                        let value = self.rescaled(&pieces, start, count, v, target, rescale, layer)?;
                        self.store(v.output.space, end, end + count * out_size, value)?;
                    }
                }
                source += count.cast_signed();
                target += count.cast_signed();
                left -= count;
            }
            let Some(axis) = (0..outer.len()).rev().find(|&axis| index[axis] + 1 < outer[axis].0) else {
                return Ok(());
            };
            index[axis] += 1;
            index[axis + 1..].fill(0);
        }
    }

    /// A rescaled stretch of a concatenation (or of a rescaling done as a move).
    #[expect(clippy::too_many_arguments, reason = "one stretch of one instruction")]
    fn rescaled(
        &self,
        pieces: &[Piece],
        start: u64,
        count: u64,
        v: &Vector,
        target: i64,
        (input_zero, scaling): &(i32, Scaling),
        layer: Option<&Layer>,
    ) -> Result<Value, Fault> {
        let Some((graph, layer)) = self.expectation.as_ref().map(|e| e.graph).zip(layer) else { return Ok(Value::Any) };
        let whole = graph.tensor(layer.output).shape.last().copied().unwrap_or(1) as u64;
        let channels = u64::from(v.output.channels);
        let target = target.cast_unsigned();
        let pixel = u64::from(v.output.origin[0]) + target / channels;
        let element = pixel * whole + u64::from(v.output.origin[1]) + target % channels;
        let (source, requant, at) = match &layer.op {
            Op::Rescale { input, requant } => (*input, requant, element),
            Op::Concat { inputs, axis, requants } => {
                let shape = &graph.tensor(layer.output).shape;
                let inner: u64 = shape[*axis as usize + 1..].iter().map(|&n| n as u64).product();
                let along = shape[*axis as usize] as u64 * inner;
                let (outer, mut at) = (element / along, element % along);
                let mut found = None;
                for (&input, requant) in inputs.iter().zip(requants) {
                    let part = graph.tensor(input).shape[*axis as usize] as u64 * inner;
                    if at < part {
                        found = requant.as_ref().map(|r| (input, r, outer * part + at));
                        break;
                    }
                    at -= part;
                }
                found.ok_or_else(|| ("descriptor", "rescales a branch that needs none".to_owned()))?
            }
            other => return Err(("descriptor", format!("a rescaling move for {}", other.name()))),
        };
        if !scales(scaling, requant) || *input_zero != graph.tensor(source).zero_point() {
            return Err(("descriptor", format!("rescaling differs from layer \"{}\"", layer.name)));
        }
        let size = graph.tensor(source).dtype.bytes() as u64;
        self.same_values(pieces, start, count * size, source, at * size)?;
        Ok(Value::Element { tensor: layer.output.0, byte: element * v.output.dtype.bytes() as u64 })
    }

    /// Address of a view's row-major element, and for how many of at most `limit` elements the bytes go on.
    fn place(&self, view: &View, element: i64, limit: u64) -> Result<(u64, u64), Fault> {
        let (channels, width) = (u64::from(view.channels), u64::from(view.width));
        let element = u64::try_from(element).map_err(|_| ("range", "a move before its operand".to_owned()))?;
        let (pixel, channel) = (element / channels, element % channels);
        let (row, column) = (pixel / width, pixel % width);
        if row >= u64::from(view.rows) {
            return Err(("range", format!("element {element} leaves a view of {} rows", view.rows)));
        }
        let row = row as u32;
        self.holds(view, row)?;
        let address =
            view.pixel_address(row, column as u32, self.machine().word()) + channel * view.dtype.bytes() as u64;
        let dense = view.payload() == view.pixel_bytes as usize;
        let run = if dense { (width - column) * channels - channel } else { channels - channel };
        Ok((address, run.min(limit)))
    }
}

fn scales(scaling: &Scaling, requant: &Requant) -> bool {
    requant.of(0) == (scaling.multiplier, scaling.shift)
        && (scaling.codes.zero_point, scaling.codes.lo, scaling.codes.hi)
            == (requant.zero_point, requant.lo, requant.hi)
}

/// The pixel (all axes but the last, row-major) of `from` that pixel `pixel` of `to` reads under broadcasting.
fn broadcast_pixel(to: &[usize], from: &[usize], pixel: u64) -> u64 {
    let lead = |shape: &[usize]| shape[..shape.len().saturating_sub(1)].to_vec();
    let (to, from) = (lead(to), lead(from));
    let (mut rest, mut source, mut step) = (pixel, 0, 1);
    for (i, &extent) in to.iter().rev().enumerate() {
        let index = rest % extent as u64;
        rest /= extent as u64;
        if let Some(&mine) = from.len().checked_sub(i + 1).and_then(|at| from.get(at)) {
            source += if mine == 1 { 0 } else { index * step };
            step *= mine as u64;
        }
    }
    source
}
