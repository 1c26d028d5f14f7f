//! Elementwise instructions. Those that compute are compared with their layer; moves, gathers and fills carry symbols along,
//! and whoever reads the result finds out whether they went to the right place.

use tpuflow_ir::Arithmetic::{Fixed, Float};
use tpuflow_ir::isa::{
    Codes, FLOAT_NORM_BYTES, FloatFunction, FloatOutput, NormParameters, Scaling, Slope, Vector, VectorOp,
};
use tpuflow_ir::op::{Exponentials, Norm, Slopes};
use tpuflow_ir::{DType, Descriptor, Finish, Layer, Op, Requant, TensorId, View};

use crate::contents::{Element, Value};
use crate::matrix::same_finish;
use crate::rule::{Fault, Operand, Rule};
use crate::walk::Walk;

impl Walk<'_> {
    pub(crate) fn vector(&mut self, v: &Vector, layer: Option<&Layer>) -> Result<(), Fault> {
        let program = self.program;
        let Some(Descriptor::Vector(op)) = program.descriptors.get(v.descriptor.index()) else {
            return Err(Rule::DescriptorKind.violation("that of elements", v.descriptor.0));
        };
        match op {
            VectorOp::Move { dims, input_strides, input_offset, output_strides, output_offset, rescale } => {
                let mut nest: Vec<(u64, i64, i64)> = dims
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
            VectorOp::Gather { extent, inner, indices, .. } => {
                self.require_pixels_defined(&v.inputs[0]).map_err(|fault| fault.of_operand(Operand::Input(0)))?;
                let count = indices.len() as u32;
                let rows = (v.first_row..v.first_row + v.rows).map(|row| {
                    let source = (row / count) * extent + indices[(row % count) as usize];
                    [source, row].map(i64::from)
                });
                self.gather_rows(v, *inner, rows, layer)
            }
            VectorOp::Fill { .. } | VectorOp::Float { function: FloatFunction::Constant(_), .. } => {
                let value = match op {
                    VectorOp::Fill { code } => Value::code(*code, v.output.dtype, 0),
                    VectorOp::Float { function: FloatFunction::Constant(number), output }
                        if *output == FloatOutput::default() && v.output.dtype.is_float() =>
                    {
                        Value::number(*number, v.output.dtype, 0)
                    }
                    _ => {
                        return Err(Rule::ElementTypes.violation("a fill with floats as they are", "one that computes"));
                    }
                };
                let word = self.machine().word();
                for row in v.first_row..v.first_row + v.rows {
                    self.require_row(&v.output, row)?;
                    let start = v.output.pixel_address(row, 0, word);
                    if v.output.payload() == v.output.pixel_bytes as usize {
                        let bytes = u64::from(v.output.width) * u64::from(v.output.pixel_bytes);
                        self.store(v.output.space, start, start + bytes, value)?;
                        continue;
                    }
                    for column in 0..v.output.width {
                        let start = v.output.pixel_address(row, column, word);
                        self.store(v.output.space, start, start + v.output.payload() as u64, value)?;
                    }
                }
                Ok(())
            }
            _ if op.reduces() => self.reduction(op, v, layer),
            _ => {
                let operands = match layer {
                    Some(layer) => Some(self.check_layer(op, v, layer)?),
                    None => None,
                };
                self.operands(op, v, operands.as_deref(), layer.map(|l| l.output))?;
                self.in_place = elementwise(op)
                    && v.inputs
                        .iter()
                        .all(|view| is_disjoint(view, &v.output, self.machine().word()) || same_place(view, &v.output));
                let rows = v.first_row..v.first_row + v.rows;
                let (width, channels) = (0..v.output.width, 0..v.output.channels);
                self.produce(&v.output, layer.map(|l| l.output), rows, width, channels)
            }
        }
    }

    /// The operands of the layer, in the order of the instruction, after comparing descriptor and parameters with it.
    fn check_layer(&mut self, op: &VectorOp, v: &Vector, layer: &Layer) -> Result<Vec<TensorId>, Fault> {
        let Some(graph) = self.expectation.as_ref().map(|e| e.graph) else { return Ok(vec![]) };
        let zero = |id: TensorId| graph.tensor(id).zero_point();
        let (agrees, operands) = match (op, &layer.op) {
            (
                VectorOp::Binary { kind, zeros, factors, scaling },
                Op::Binary { kind: k, a, b, ka, kb, requant: Fixed(requant) },
            ) => (
                kind == k
                    && *zeros == [zero(*a), zero(*b)]
                    && *factors == [*ka, *kb]
                    && check_scaling(scaling, requant).is_ok(),
                vec![*a, *b],
            ),
            (VectorOp::Table(shape), Op::Unary { input, function: Fixed(table) }) => {
                let bytes = self.vector_parameters(v, shape.entries as usize * 4)?;
                let entries = graph.tensor(table.entries).constant.as_deref();
                Rule::Parameters.require_equal("entries", &entries, &Some(&bytes[..]))?;
                ((shape.lo, shape.hi) == (table.lo, table.hi), vec![*input])
            }
            (VectorOp::Rescale { input_zero, scaling }, Op::Rescale { input, requant: Fixed(requant) }) => {
                (*input_zero == zero(*input) && check_scaling(scaling, requant).is_ok(), vec![*input])
            }
            (VectorOp::PRelu { input_zero, positive, per_channel }, Op::PRelu { input, slopes: Fixed(slopes) }) => {
                let Slopes { positive: requant, negative_multiplier, negative_shift } = slopes;
                let count = if *per_channel { v.output.channels as usize } else { 1 };
                let first = if *per_channel { v.output.origin[1] as usize } else { 0 };
                // Slopes go by the tensor's channels.
                self.true_pixels(&v.output, Some(layer.output))?;
                let bytes = self.vector_parameters(v, Slope::BYTES * count)?;
                let slopes = bytes.chunks_exact(Slope::BYTES).map(Slope::decode).enumerate().all(|(i, s)| {
                    negative_multiplier.get(first + i) == Some(&i32::from(s.multiplier))
                        && negative_shift.get(first + i) == Some(&s.shift)
                });
                let agrees = *per_channel == (negative_multiplier.len() > 1) || negative_multiplier.len() == 1;
                Rule::Parameters.require(
                    slopes,
                    format_args!("slopes of {:?}", layer.op),
                    format_args!("{bytes:?}"),
                )?;
                (agrees && *input_zero == zero(*input) && check_scaling(positive, requant).is_ok(), vec![*input])
            }
            (VectorOp::Softmax { coefficient, scaling }, Op::Softmax { exponentials: Fixed(exponentials), .. }) => {
                let Exponentials { coefficient: c, multiplier, shift, zero_point, lo, hi } = exponentials;
                let agrees = coefficient == c
                    && (scaling.multiplier, scaling.shift) == (*multiplier, *shift)
                    && (scaling.codes.zero_point, scaling.codes.lo, scaling.codes.hi) == (*zero_point, *lo, *hi);
                (agrees, layer.op.operands())
            }
            (VectorOp::SoftmaxStatistics { measure }, Op::SoftmaxStatistics { measure: m, .. }) => {
                (measure == m, layer.op.operands())
            }
            (VectorOp::LayerNorm { .. } | VectorOp::SharedLayerNorm { .. }, Op::LayerNorm { input, .. }) => {
                (self.has_norm_parameters(op, v, &layer.op)?, vec![*input])
            }
            (VectorOp::ArgMax { largest, select_last }, Op::ArgMax { input, largest: l, select_last: s }) => {
                ((largest, select_last) == (l, s), vec![*input])
            }
            (VectorOp::ResizeLinear { rows, columns }, Op::ResizeLinear { input, rows: r, columns: c }) => {
                ((rows, columns) == (r, c), vec![*input])
            }
            (VectorOp::Select, Op::Select { condition, a, b }) => (true, vec![*condition, *a, *b]),
            (VectorOp::Float { function, output }, _) => {
                let Some((finish, operands)) = self.float(function, v, layer)? else {
                    return Err(Rule::Descriptor.violation(format_args!("{:?}", layer.op), format_args!("{op:?}")));
                };
                (same_finish(output, finish), operands)
            }
            (VectorOp::Quantize { scale, codes }, Op::Quantize { input, scale: s, zero_point, lo, hi }) => {
                (scale == s && (codes.zero_point, codes.lo, codes.hi) == (*zero_point, *lo, *hi), vec![*input])
            }
            _ => (false, vec![]),
        };
        Rule::Descriptor.require(agrees, format_args!("{:?}", layer.op), format_args!("{op:?}"))?;
        Rule::Operands.require_equal("operands,", &operands.len(), &v.inputs.len())?;
        self.require_vector_constants(op, v, &layer.op).map_err(|fault| fault.of_operand(Operand::Parameters))?;
        Ok(operands)
    }

    /// Requires the constants behind the parameters of a layer, once they are known to be its own.
    fn require_vector_constants(&mut self, vector: &VectorOp, v: &Vector, op: &Op) -> Result<(), Fault> {
        let channels = v.output.channels as usize;
        match op {
            Op::Unary { function: Fixed(table), .. } => {
                let Some(e) = &self.expectation else { return Ok(()) };
                let bytes = e.graph.tensor(table.entries).bytes();
                self.require_table(v.parameters, bytes, table.entries)
            }
            Op::PRelu { slopes, .. } => {
                let (count, size) = match slopes {
                    Fixed(slopes) => (slopes.negative_multiplier.len(), Slope::BYTES),
                    Float(slopes) => (slopes.negative.len(), 4),
                };
                let first = if count > 1 { v.output.origin[1] as usize * size } else { 0 };
                self.require_parameters(v.parameters, size * if count > 1 { channels } else { 1 }, first)
            }
            Op::LayerNorm { norm: Fixed(_), .. } => {
                let shared = matches!(vector, VectorOp::SharedLayerNorm { .. });
                self.require_parameters(v.parameters, NormParameters::BYTES * if shared { 1 } else { channels }, 0)
            }
            Op::LayerNorm { norm: Float(_), .. } => {
                self.require_parameters(v.parameters, FLOAT_NORM_BYTES * channels, 0)
            }
            _ => Ok(()),
        }
    }

    /// How the layer ends and what it reads, if a float instruction with its parameters computes it.
    fn float<'o>(
        &mut self,
        function: &FloatFunction,
        v: &Vector,
        layer: &'o Layer,
    ) -> Result<Option<(&'o Finish, Vec<TensorId>)>, Fault> {
        let Some(graph) = self.expectation.as_ref().map(|e| e.graph) else { return Ok(None) };
        let singles =
            |bytes: &[u8]| -> Vec<u32> { bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect() };
        Ok(match (function, &layer.op) {
            (
                FloatFunction::Identity,
                Op::Unary { input, function: Float(finish) } | Op::Rescale { input, requant: Float(finish) },
            ) => Some((finish, vec![*input])),
            (FloatFunction::Binary(kind), Op::Binary { kind: k, a, b, requant: Float(finish), .. }) => {
                (kind == k).then(|| (finish, vec![*a, *b]))
            }
            (FloatFunction::Dequantize { zero_point, scale }, Op::Dequantize { input, scale: s, finish }) => {
                let agrees = scale == s && *zero_point == graph.tensor(*input).zero_point();
                agrees.then(|| (finish, vec![*input]))
            }
            (FloatFunction::PRelu { per_channel }, Op::PRelu { input, slopes: Float(slopes) }) => {
                let (first, count) = if *per_channel { (v.output.origin[1], v.output.channels) } else { (0, 1) };
                self.true_pixels(&v.output, Some(layer.output))?;
                let found = singles(&self.vector_parameters(v, 4 * count as usize)?);
                let expected = slopes.negative.get(first as usize..(first + count) as usize);
                let same = expected.is_some_and(|expected| {
                    expected.iter().map(|slope| slope.get() as f32).map(f32::to_bits).eq(found.iter().copied())
                });
                Rule::Parameters.require(same, format_args!("slopes {expected:?}"), format_args!("{found:?}"))?;
                let agrees = *per_channel == (slopes.negative.len() > 1);
                agrees.then(|| (&slopes.finish, vec![*input]))
            }
            (FloatFunction::Softmax, Op::Softmax { input, exponentials: Float(finish), mask, .. }) => {
                Some((finish, std::iter::once(*input).chain(*mask).collect()))
            }
            (
                FloatFunction::LayerNorm { center, epsilon },
                Op::LayerNorm { input, gamma, beta, center: c, norm: Float(norm) },
            ) => {
                let found = singles(&self.vector_parameters(v, FLOAT_NORM_BYTES * v.output.channels as usize)?);
                let bits = |id: TensorId| graph.tensor(id).f32s().into_iter().map(f32::to_bits);
                let same = bits(*gamma).zip(bits(*beta)).flat_map(|(gamma, beta)| [gamma, beta]).eq(found);
                Rule::Parameters.require(same, "gamma and beta of the layer", "others")?;
                let agrees = center == c && *epsilon == norm.epsilon;
                agrees.then(|| (&norm.finish, vec![*input]))
            }
            _ => None,
        })
    }

    fn has_norm_parameters(&mut self, op: &VectorOp, v: &Vector, layer: &Op) -> Result<bool, Fault> {
        let shared = matches!(op, VectorOp::SharedLayerNorm { .. });
        let channels = v.output.channels as usize;
        let bytes = self.vector_parameters(v, NormParameters::BYTES * if shared { 1 } else { channels })?;
        let Some(graph) = self.expectation.as_ref().map(|e| e.graph) else { return Ok(true) };
        let (
            VectorOp::LayerNorm { center, input_zero, epsilon, normalize, codes }
            | VectorOp::SharedLayerNorm { center, input_zero, epsilon, normalize, codes },
            Op::LayerNorm { input, gamma, beta, center: c, norm: Fixed(norm) },
        ) = (op, layer)
        else {
            return Ok(false);
        };
        let Norm { epsilon: e, multiplier, shift, requant } = norm;
        let (gammas, betas) = (graph.tensor(*gamma).integers(), graph.tensor(*beta).integers());
        // One entry stands for every channel, so it is compared with every channel's.
        let entries = bytes.chunks_exact(NormParameters::BYTES).map(NormParameters::decode);
        let parameters = entries.cycle().take(channels).enumerate().all(|(i, p)| {
            gammas.get(i) == Some(&i64::from(p.gamma))
                && betas.get(i) == Some(&p.beta)
                && (i32::from(p.multiplier), p.shift) == requant.of(i)
        });
        Rule::Parameters.require(parameters, "gamma, beta and factors of the layer", "others")?;
        Ok((center, epsilon, *normalize) == (c, e, (*multiplier, *shift))
            && *input_zero == graph.tensor(*input).zero_point()
            && (codes.zero_point, codes.lo, codes.hi) == (requant.zero_point, requant.lo, requant.hi))
    }

    fn vector_parameters(&mut self, v: &Vector, bytes: usize) -> Result<Vec<u8>, Fault> {
        self.parameters(v.parameters, bytes).map_err(|fault| fault.of_operand(Operand::Parameters))
    }

    /// Reads what a computing instruction needs, row by row.
    fn operands(
        &mut self,
        op: &VectorOp,
        v: &Vector,
        operands: Option<&[TensorId]>,
        output: Option<TensorId>,
    ) -> Result<(), Fault> {
        // Statistics have pixels of their own, so the others go by the codes.
        let is_statistics = matches!(op, VectorOp::SoftmaxStatistics { .. });
        let Some(first) = v.inputs.first() else { return Ok(()) };
        let result = if is_statistics { (first, operands.map(|o| o[0])) } else { (&v.output, output) };
        let last = v.inputs.len() - 1;
        if is_statistics {
            self.statistics(v, &v.output, output, result).map_err(|fault| fault.of_operand(Operand::Output))?;
        }
        for (i, view) in v.inputs.iter().enumerate() {
            let tensor = operands.map(|o| o[i]);
            let found = if i == last && op.has_statistics(v) {
                self.statistics(v, view, tensor, result).and_then(|()| {
                    let rows = v.first_row..v.first_row + v.rows;
                    self.consume(view, tensor, rows, 0..view.width, 0..view.channels)
                })
            } else {
                self.operand(op, v, view, tensor, result)
            };
            found.map_err(|fault| fault.of_operand(Operand::Input(i)))?;
        }
        Ok(())
    }

    /// Statistics of the pixels that a view of codes has: two numbers for each, whole.
    fn statistics(
        &self,
        v: &Vector,
        view: &View,
        tensor: Option<TensorId>,
        (codes, of): (&View, Option<TensorId>),
    ) -> Result<(), Fault> {
        let form = |view: &View| (view.rows, view.height, view.width);
        Rule::Geometry.require_equal("statistics of pixels", &form(codes), &form(view))?;
        let whole = (view.channels, view.dtype);
        Rule::Channels.require_equal("numbers of a pixel", &(2, DType::I64), &whole)?;
        Rule::Extent.require(v.first_row + v.rows <= view.rows, "rows of the statistics", v.first_row + v.rows)?;
        self.all_channels(view, tensor)?;
        if tensor.is_some() {
            self.all_channels(codes, of)?;
            Rule::SamePixels.require_equal("first pixel", &codes.origin[0], &view.origin[0])?;
        }
        Ok(())
    }

    fn operand(
        &mut self,
        op: &VectorOp,
        v: &Vector,
        view: &View,
        tensor: Option<TensorId>,
        (of, output): (&View, Option<TensorId>),
    ) -> Result<(), Fault> {
        let whole_pixels = matches!(
            op,
            VectorOp::Softmax { .. }
                | VectorOp::SoftmaxStatistics { .. }
                | VectorOp::LayerNorm { .. }
                | VectorOp::SharedLayerNorm { .. }
                | VectorOp::ArgMax { .. }
                | VectorOp::Float { function: FloatFunction::Softmax | FloatFunction::LayerNorm { .. }, .. }
        );
        if whole_pixels && !self.repeats_pixels(view, tensor) {
            self.all_channels(view, tensor)?;
        }
        let rows = v.first_row..v.first_row + v.rows;
        match op {
            VectorOp::ArgMax { .. } => {
                let found = (view.rows, view.width, v.output.channels);
                Rule::Geometry.require_equal("one index per pixel,", &(v.output.rows, v.output.width, 1), &found)?;
                self.check_pixel_index(view, &v.output, output)?;
                self.consume(view, tensor, rows, 0..view.width, 0..view.channels)
            }
            VectorOp::ResizeLinear { rows: taps, columns } => {
                self.true_geometry(view, tensor)?;
                self.true_geometry(&v.output, output)?;
                self.check_channels(view, &v.output, tensor.zip(output))?;
                let sizes = (taps.len(), columns.len());
                Rule::Geometry.require_equal("taps", &(v.output.height as usize, v.output.width as usize), &sizes)?;
                for row in rows {
                    let (image, y) = (row / v.output.height, row % v.output.height);
                    let tap = taps[y as usize];
                    for line in [tap.first, tap.second] {
                        let inside = format_args!("one of {} lines", view.height);
                        Rule::Extent.require(line < view.height, inside, line)?;
                        let line = image * view.height + line;
                        self.consume(view, tensor, line..line + 1, 0..view.width, 0..view.channels)?;
                    }
                }
                Ok(())
            }
            _ => {
                self.check_channels(view, of, tensor.zip(output))?;
                for row in rows {
                    if self.repeats_pixels(view, tensor) {
                        self.check_repeated_row(view, of, row, tensor.zip(output))?;
                        continue;
                    }
                    let line = self.same_row(view, of, row, tensor.zip(output))?;
                    self.consume(view, tensor, line..line + 1, 0..view.width, 0..view.channels)?;
                }
                Ok(())
            }
        }
    }

    /// Element `i` of a result with one index per pixel must be that of pixel `i`.
    fn check_pixel_index(&self, view: &View, output: &View, result: Option<TensorId>) -> Result<(), Fault> {
        if result.is_none() || self.expectation.is_none() {
            return Ok(());
        }
        let whole = self.whole_channels(output, result)?;
        let apart = whole == 1 || output.rows * output.width == 1;
        Rule::Channels.require(apart, "one index per pixel", format_args!("{whole} channels"))?;
        let first = u64::from(output.origin[0]) * whole + u64::from(output.origin[1]);
        Rule::SamePixels.require_equal("first pixel", &first, &u64::from(view.origin[0]))
    }

    /// An operand of an operator that works element by element shows the result's channels, or the single one that serves all.
    /// Pixels must be the tensors' own, but where neither is broadcast both may be shown in the same other shape.
    fn check_channels(&self, view: &View, output: &View, tensors: Option<(TensorId, TensorId)>) -> Result<(), Fault> {
        let Some((graph, (tensor, result))) = self.expectation.as_ref().map(|e| e.graph).zip(tensors) else {
            return Ok(());
        };
        let (operand, of) = (graph.tensor(tensor), graph.tensor(result));
        let shown = |view: &View| (view.channels, view.origin[1]);
        let what = "channels, the first";
        if operand.elements() == 1 {
            return Rule::Channels.require_equal(what, &(1, 0), &shown(view));
        }
        if operand.elements() == of.elements() {
            let pixels = (self.whole_channels(output, Some(result))?, self.whole_channels(view, Some(tensor))?);
            Rule::Pixels.require_equal("channels of a pixel,", &pixels.0, &pixels.1)?;
            return Rule::Channels.require_equal(what, &shown(output), &shown(view));
        }
        self.true_pixels(output, Some(result))?;
        let last = |shape: &[usize]| shape.last().copied().unwrap_or(1);
        if last(&operand.shape) == 1 && last(&of.shape) != 1 {
            return Rule::Channels.require_equal(what, &(1, 0), &shown(view));
        }
        if !self.repeats_pixels(view, Some(tensor)) {
            self.true_pixels(view, Some(tensor))?;
        }
        Rule::Channels.require_equal(what, &shown(output), &shown(view))
    }

    /// Whether a view has more pixels than its tensor: an operand already repeated along axes that no view can repeat.
    fn repeats_pixels(&self, view: &View, tensor: Option<TensorId>) -> bool {
        let Some((graph, id)) = self.expectation.as_ref().map(|e| e.graph).zip(tensor) else { return false };
        let info = graph.tensor(id);
        let elements = u64::from(view.rows) * u64::from(view.width) * u64::from(view.channels);
        elements > info.elements() as u64 && info.shape.last().copied().unwrap_or(1) == view.channels as usize
    }

    /// Every pixel of the operand row that an output row reads must be the one broadcasting asks for.
    fn check_repeated_row(
        &mut self,
        view: &View,
        output: &View,
        row: u32,
        tensors: Option<(TensorId, TensorId)>,
    ) -> Result<(), Fault> {
        let line = self.same_row(view, output, row, None)?;
        let Some((graph, (tensor, result))) = self.expectation.as_ref().map(|e| e.graph).zip(tensors) else {
            return Ok(());
        };
        if view.dtype != graph.tensor(tensor).dtype {
            return Err(
                Rule::Tensor.violation(format_args!("{:?}", graph.tensor(tensor).dtype), format_args!("{view:?}"))
            );
        }
        self.require_row(view, line)?;
        let (from, to) = (&graph.tensor(tensor).shape, &graph.tensor(result).shape);
        let (word, payload) = (self.machine().word(), view.payload() as u64);
        for column in 0..output.width {
            let pixel = u64::from(output.origin[0]) + u64::from(row) * u64::from(output.width) + u64::from(column);
            let start = view.pixel_address(line, if view.width == 1 { 0 } else { column }, word);
            let pieces = self.load(view.space, start, start + payload)?;
            let expected = Element::dense(tensor.0, broadcast_pixel(to, from, pixel) * payload);
            self.require_elements(&pieces, start, payload, expected)?;
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
            return Err(
                Rule::SamePixels.violation(format_args!("what broadcasts to {output:?}"), format_args!("{view:?}"))
            );
        }
        let line = (if images == 1 { 0 } else { image }) * view.height + if view.height == 1 { 0 } else { y };
        if let Some((graph, (tensor, result))) = self.expectation.as_ref().map(|e| e.graph).zip(tensors) {
            let (from, to) = (&graph.tensor(tensor).shape, &graph.tensor(result).shape);
            // Pixels go up by one at most: where both ends of a row are right, so is all between, unless one pixel serves all.
            let step = if view.width == 1 { 1 } else { (output.width - 1).max(1) };
            self.spend(u64::from(output.width / step))?;
            for column in (0..output.width).step_by(step as usize) {
                let pixel = u64::from(output.origin[0]) + u64::from(row) * u64::from(output.width) + u64::from(column);
                let x = if view.width == 1 { 0 } else { column };
                let shown = u64::from(view.origin[0]) + u64::from(line) * u64::from(view.width) + u64::from(x);
                Rule::SamePixels.require_equal("pixel", &broadcast_pixel(to, from, pixel), &shown)?;
            }
        }
        Ok(line)
    }
}

/// Whether element `i` of the result is made of element `i` of each operand.
fn elementwise(op: &VectorOp) -> bool {
    match op {
        VectorOp::Binary { .. }
        | VectorOp::Table(_)
        | VectorOp::Rescale { .. }
        | VectorOp::PRelu { .. }
        | VectorOp::Quantize { .. }
        | VectorOp::Select => true,
        VectorOp::Float { function, .. } => {
            !matches!(function, FloatFunction::Softmax | FloatFunction::LayerNorm { .. } | FloatFunction::Reduce { .. })
        }
        _ => false,
    }
}

/// Whether the bytes of two views lie apart.
pub(crate) fn is_disjoint(one: &View, other: &View, word: usize) -> bool {
    let end = |view: &View| view.address + view.bytes(word);
    one.space != other.space || end(one) <= other.address || end(other) <= one.address
}

/// Whether every element of one lies where that of the other does.
pub(crate) fn same_place(one: &View, other: &View) -> bool {
    let size = one.dtype.bytes() == other.dtype.bytes();
    size && *one == View { dtype: one.dtype, origin: one.origin, ..*other }
}

/// A scaling says what a change of scale with one factor says.
pub(crate) fn check_scaling(scaling: &Scaling, requant: &Requant) -> Result<(), Fault> {
    Rule::Descriptor.require_equal("factors of a scaling,", &1, &requant.multiplier.len())?;
    let (multiplier, shift) = requant.of(0);
    let codes = Codes { zero_point: requant.zero_point, lo: requant.lo, hi: requant.hi };
    Rule::Descriptor.require_equal("", &Scaling { multiplier, shift, codes }, scaling)
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
