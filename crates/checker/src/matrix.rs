//! Matrix instructions: operand windows, weights, channel parameters, and the tile they produce.

use tpuflow_ir::isa::{ChannelParameters, Codes, FloatOutput, Matrix, MatrixDescriptor, TableShape};
use tpuflow_ir::op::Epilogue;
use tpuflow_ir::{Arithmetic, DType, Descriptor, Finish, Layer, LayerId, Op, Space, TensorId, View, Window};

use crate::constant_map::{Constant, ConstantByte};
use crate::contents::Element;
use crate::expansion::packed_element;
use crate::rule::{Fault, Operand, Rule};
use crate::walk::{ComparedWeights, Walk};

/// The linear operator an instruction claims to work for.
struct Linear<'g> {
    input: TensorId,
    weights: TensorId,
    bias: Option<TensorId>,
    epilogue: &'g Arithmetic<Epilogue>,
    output: TensorId,
    window: Window,
    convolution: bool,
}

const PLAIN: Window = Window { kernel: [1, 1], stride: [1, 1], dilation: [1, 1], pads: [0; 4] };

impl Walk<'_> {
    pub(crate) fn matrix(&mut self, m: &Matrix, layer: Option<&Layer>, id: LayerId) -> Result<(), Fault> {
        let Some(Descriptor::Matrix(d)) = self.program.descriptors.get(m.descriptor.index()) else {
            return Err(Rule::DescriptorKind.violation("that of a product", m.descriptor.0));
        };
        let wide = has_wide_sums(m.input.dtype, d.weight_dtype);
        let (pixels, columns) = (self.machine().matrix_rows(wide), self.machine().array.columns);
        let fits = m.pixels as usize <= pixels && m.columns <= columns;
        let found = format_args!("{} x {}", m.pixels, m.columns);
        Rule::TileSize.require(fits, format_args!("at most {pixels} x {columns}"), found)?;
        let end = u64::from(m.first_pixel) + u64::from(m.pixels);
        let inside = end <= u64::from(m.output.rows) * u64::from(m.output.width)
            && m.output_channel + m.columns <= m.output.channels;
        Rule::Extent.require(inside, "a tile of the result", format_args!("{m:?}"))?;
        Rule::Channels.require_equal("first column", &(m.output.origin[1] + m.output_channel), &m.first_column)?;
        let linear = layer.map(|l| self.linear(l, d)).transpose()?;
        let (input, output) = linear.as_ref().map(|l| (l.input, l.output)).unzip();
        self.all_channels(&m.input, input).map_err(|fault| fault.of_operand(Operand::Input(0)))?;
        self.true_pixels(&m.output, output).map_err(|fault| fault.of_operand(Operand::Output))?;
        self.operand_window(m, d, linear.as_ref()).map_err(|fault| fault.of_operand(Operand::Input(0)))?;
        self.weights(m, d, linear.as_ref(), id).map_err(|fault| fault.of_operand(Operand::Weights))?;
        let size = ChannelParameters::bytes(wide);
        let bytes = self
            .parameters(m.parameters, size * m.columns as usize)
            .map_err(|fault| fault.of_operand(Operand::Parameters))?;
        if let Some(linear) = &linear {
            self.channel_parameters(&bytes, wide, m.first_column, linear.bias, linear.epilogue)
                .and_then(|()| self.require_parameters(m.parameters, bytes.len(), m.first_column as usize * size))
                .map_err(|fault| fault.of_operand(Operand::Parameters))?;
        }
        self.table(d.table, m.table, linear.as_ref().map(|l| l.epilogue.fixed()))
            .map_err(|fault| fault.of_operand(Operand::Table))?;
        let (first, width) = (m.first_pixel, m.output.width);
        for row in first / width..=(first + m.pixels - 1) / width {
            let from = first.max(row * width) - row * width;
            let to = (first + m.pixels).min((row + 1) * width) - row * width;
            let channels = m.output_channel..m.output_channel + m.columns;
            self.produce(&m.output, output, row..row + 1, from..to, channels)
                .map_err(|fault| fault.of_operand(Operand::Output))?;
        }
        Ok(())
    }

    /// The layer's operator, after comparing everything the descriptor repeats of it.
    fn linear<'g>(&self, layer: &'g Layer, d: &MatrixDescriptor) -> Result<Linear<'g>, Fault> {
        let Some(e) = &self.expectation else { return Err(Rule::Operator.violation("a graph", "none")) };
        let (linear, window, group_in, group_out) = match &layer.op {
            Op::Conv { weights, groups, .. } if is_depthwise(&e.graph.tensor(*weights).shape, *groups) => {
                return Err(
                    Rule::Operator.violation("work of the pooling unit", "a depthwise convolution on the array")
                );
            }
            Op::Conv { input, weights, bias, window, groups, epilogue } => {
                let (o, c) = (e.graph.tensor(*weights).shape[0] as u32, e.graph.tensor(*weights).shape[3] as u32);
                let linear = Linear {
                    input: *input,
                    weights: *weights,
                    bias: Some(*bias),
                    epilogue,
                    output: layer.output,
                    window: *window,
                    convolution: true,
                };
                (linear, *window, c, o / groups)
            }
            Op::MatMul { a, b, bias, epilogue, .. } => {
                let [.., k, n] = e.graph.tensor(*b).shape[..] else {
                    return Err(Rule::Operator.violation("a right operand of rank 2 or more", "one below"));
                };
                let linear = Linear {
                    input: *a,
                    weights: *b,
                    bias: *bias,
                    epilogue,
                    output: layer.output,
                    window: PLAIN,
                    convolution: false,
                };
                (linear, PLAIN, k as u32, n as u32)
            }
            other => return Err(Rule::Operator.violation(other.name(), "a product")),
        };
        let codes = Codes { zero_point: 0, lo: 0, hi: 0 };
        let (codes, first_shift, float) = match linear.epilogue {
            Arithmetic::Fixed(Epilogue { first_shift, requant: r, .. }) => {
                (Codes { zero_point: r.zero_point, lo: r.lo, hi: r.hi }, *first_shift, None)
            }
            Arithmetic::Float(finish) => (codes, None, Some(FloatOutput::from(finish))),
        };
        let weights = e.graph.tensor(linear.weights);
        // How a stretch of a line is padded is for its pixels to show.
        let same_window = d.window == window
            || (is_line(&window) && is_line(&d.window) && without_padding(&d.window) == without_padding(&window));
        // The table's entries and limits are compared where the table is.
        let expected = MatrixDescriptor {
            window: if same_window { d.window } else { window },
            group_in,
            group_out,
            input_zero: e.graph.tensor(linear.input).zero_point(),
            weight_zero: weights.zero_point(),
            weight_dtype: weights.dtype,
            first_shift,
            codes,
            table: d.table,
            float,
        };
        Rule::Descriptor.require_equal("", &expected, d)?;
        Ok(linear)
    }

    /// Every input pixel under the windows of the tile's output pixels.
    fn operand_window(&mut self, m: &Matrix, d: &MatrixDescriptor, linear: Option<&Linear<'_>>) -> Result<(), Fault> {
        let (input, output) = linear.map(|l| (l.input, l.output)).unzip();
        let groups = m.first_column / d.group_out..(m.first_column + m.columns - 1) / d.group_out + 1;
        let channels = groups.start * d.group_in..groups.end * d.group_in;
        let (inside, found) = (channels.end <= m.input.channels, format_args!("{channels:?}"));
        Rule::Extent.require(inside, format_args!("some of {} input channels", m.input.channels), found)?;
        let width = m.output.width;
        let rows = m.first_pixel / width..(m.first_pixel + m.pixels - 1) / width + 1;
        if let Some(linear) = linear.filter(|l| l.window != d.window || self.is_part_of_line(m, l)) {
            self.check_part_of_line(m, d, linear)?;
        } else if is_plain(&d.window) {
            let shown = |v: &View| (v.width, v.rows, v.height, v.origin[0]);
            let what = "under a 1x1 window width, rows, height, first pixel";
            Rule::SamePixels.require_equal(what, &shown(&m.output), &shown(&m.input))?;
        } else {
            self.true_geometry(&m.input, input)?;
            self.true_geometry(&m.output, output)?;
        }
        for row in rows {
            let from = m.first_pixel.max(row * width) - row * width;
            let to = (m.first_pixel + m.pixels).min((row + 1) * width) - row * width;
            let (image, y) = (row / m.output.height, row % m.output.height);
            self.spend(d.window.kernel[0].into())?;
            for (line, columns) in window_cells(&d.window, y, from..to, m.input.height, m.input.width) {
                let line = image * m.input.height + line;
                self.consume(&m.input, input, line..line + 1, columns, channels.clone())?;
            }
        }
        Ok(())
    }

    /// Whether the result is part of a line under a window that is not plain.
    fn is_part_of_line(&self, m: &Matrix, linear: &Linear<'_>) -> bool {
        let Some(graph) = self.expectation.as_ref().map(|e| e.graph) else { return false };
        let whole = graph.tensor(linear.output).shape.iter().rev().nth(1).copied().unwrap_or(1);
        !is_plain(&linear.window) && is_line(&linear.window) && m.output.width as usize != whole
    }

    /// Operand and result must be stretches of single lines, the window's left edge where the layer's is, and every tap that
    /// falls outside the operand one that falls outside the image.
    fn check_part_of_line(&self, m: &Matrix, d: &MatrixDescriptor, linear: &Linear<'_>) -> Result<(), Fault> {
        let broken =
            |what: &str| Err(Rule::Stretch.violation("a stretch under its window", format_args!("one {what}")));
        let Some(graph) = self.expectation.as_ref().map(|e| e.graph) else { return Ok(()) };
        let window = &linear.window;
        let (from, to) = (&graph.tensor(linear.input).shape, &graph.tensor(linear.output).shape);
        let (&[_, 1, width, _], &[_, 1, columns, _]) = (&from[..], &to[..]) else { return broken("of no line") };
        if (m.input.rows, m.output.rows) != (1, 1) {
            return broken("of several rows");
        }
        self.true_pixels(&m.input, Some(linear.input))?;
        let (at, result) = (m.input.origin[0] as usize, m.output.origin[0] as usize);
        let (x, y) = (at % width, result % columns);
        if at / width != result / columns || x + m.input.width as usize > width || y + m.output.width as usize > columns
        {
            return broken("that leaves its line");
        }
        let edge = |position: usize, left: u32| {
            (position as u64 * u64::from(window.stride[1])).cast_signed() - i64::from(left)
        };
        if edge(y, window.pads[1]) != x as i64 + edge(0, d.window.pads[1]) {
            return broken("under another window");
        }
        let reach = i64::from((window.kernel[1] - 1) * window.dilation[1]);
        let (first, last) = (edge(0, d.window.pads[1]), edge(m.output.width as usize - 1, d.window.pads[1]) + reach);
        let short_left = first < 0 && x > 0;
        let short_right = last >= i64::from(m.input.width) && x + (m.input.width as usize) < width;
        if short_left || short_right { broken("without its neighbours") } else { Ok(()) }
    }

    fn weights(
        &mut self,
        m: &Matrix,
        d: &MatrixDescriptor,
        linear: Option<&Linear<'_>>,
        id: LayerId,
    ) -> Result<(), Fault> {
        let rows = d.window.kernel.iter().map(|&k| u64::from(k)).product::<u64>() * u64::from(d.group_in);
        let size = d.weight_dtype.bytes() as u64;
        let apart = m.weights.plane_bytes > 0;
        if apart && d.weight_dtype != DType::I16 {
            return Err(Rule::ElementTypes.violation("planes of int16", format_args!("planes of {:?}", d.weight_dtype)));
        }
        let inner = u64::from(m.columns) * if apart { 1 } else { size };
        let stride = u64::from(m.weights.row_bytes);
        let span = (rows - 1) * stride + inner;
        let planes = if apart { 2 } else { 1 };
        for plane in 0..planes {
            let start = m.weights.address + plane * u64::from(m.weights.plane_bytes);
            let pieces = self.load(Space::Cache, start, start + span)?;
            let Some(linear) = linear else {
                if apart || rows == 1 {
                    crate::values::require_defined(&pieces, Space::Cache, start, start + span)?;
                }
                continue;
            };
            let constant = self.expectation.as_ref().is_some_and(|e| e.constant(linear.weights.0).is_some());
            if !constant {
                self.activation_weights(m, linear, &pieces, start, rows)?;
                continue;
            }
            let single = match pieces.as_slice() {
                [one] if (one.start, one.end) == (start, start + span) => match one.value.constant() {
                    Some((space, byte, packed)) => Some(ComparedWeights {
                        layer: id,
                        batch: self.batch_entry(m, linear)?,
                        plane: apart.then_some(plane),
                        first_column: m.first_column,
                        columns: m.columns,
                        row_bytes: m.weights.row_bytes,
                        space,
                        byte,
                        packed,
                    }),
                    None => None,
                },
                _ => None,
            };
            if single.is_some_and(|key| self.compared_weights.contains(&key)) {
                continue;
            }
            self.spend(rows.saturating_mul(1 + u64::from(m.columns) / 64))?;
            for k in 0..rows {
                if let Some((image, byte)) = packed_element(&pieces, start + k * stride) {
                    self.packed_row(linear.weights, image, byte, k, [m.first_column, m.columns].map(u64::from))?;
                }
                let found = self.image_bytes(&pieces, start + k * stride, inner)?;
                let expected = self.constant_row(m, linear, k, plane, apart);
                if expected.as_deref() != Some(&found[..]) {
                    let row = format_args!("row {k}, columns {}..: {expected:?}", m.first_column);
                    return Err(Rule::Weights.violation(row, format_args!("{found:?}")));
                }
                let element = self.weight_row(m, linear, k, apart.then_some(plane))?;
                self.require_constants(Space::Cache, start + k * stride, inner, element)?;
            }
            self.compared_weights.extend(single);
        }
        Ok(())
    }

    /// Rows of a right operand that was computed: `[.., k, n]` of the batch entry the output pixels belong to.
    fn activation_weights(
        &self,
        m: &Matrix,
        linear: &Linear<'_>,
        pieces: &[crate::contents::Piece],
        start: u64,
        rows: u64,
    ) -> Result<(), Fault> {
        let Some(e) = &self.expectation else { return Ok(()) };
        let b = e.graph.tensor(linear.weights);
        let n = b.shape.last().copied().unwrap_or(1) as u64;
        let batch = self.batch_entry(m, linear)?;
        let size = b.dtype.bytes() as u64;
        for k in 0..rows {
            let element = (batch * rows + k) * n + u64::from(m.first_column);
            let at = start + k * u64::from(m.weights.row_bytes);
            let expected = Element::dense(linear.weights.0, element * size);
            self.require_elements(pieces, at, u64::from(m.columns) * size, expected)?;
        }
        Ok(())
    }

    /// Which matrix of a batched right operand the tile's pixels multiply; they must all be of one.
    fn batch_entry(&self, m: &Matrix, linear: &Linear<'_>) -> Result<u64, Fault> {
        let Some(e) = &self.expectation else { return Ok(0) };
        if linear.convolution || e.graph.tensor(linear.weights).shape.len() == 2 {
            return Ok(0);
        }
        let [.., rows, _] = e.graph.tensor(linear.input).shape[..] else { return Ok(0) };
        let first = u64::from(m.output.origin[0]) + u64::from(m.first_pixel);
        let last = first + u64::from(m.pixels) - 1;
        if first / rows as u64 != last / rows as u64 {
            let pixels = format_args!("pixels {first} to {last}, {rows} of each");
            return Err(Rule::BatchEntry.violation("pixels of one matrix", pixels));
        }
        Ok(first / rows as u64)
    }

    /// The constant behind weight row `k` of the tile's columns.
    fn weight_row(&self, m: &Matrix, linear: &Linear<'_>, k: u64, plane: Option<u64>) -> Result<ConstantByte, Fault> {
        let Some(e) = &self.expectation else {
            return Ok(ConstantByte { of: Constant::Dense(linear.weights), byte: 0 });
        };
        let tensor = e.graph.tensor(linear.weights);
        let (of, row) = match (linear.convolution, &tensor.shape[..]) {
            (true, &[columns, ..]) => (Constant::ByColumn(linear.weights), k * columns as u64),
            (_, &[.., rows, columns]) => {
                (Constant::Dense(linear.weights), (self.batch_entry(m, linear)? * rows as u64 + k) * columns as u64)
            }
            _ => (Constant::Dense(linear.weights), 0),
        };
        let element = row + u64::from(m.first_column);
        Ok(match plane {
            Some(plane) => ConstantByte { of: Constant::Plane(linear.weights, plane), byte: element },
            None => ConstantByte { of, byte: element * tensor.dtype.bytes() as u64 },
        })
    }

    /// Bytes of weight row `k` for the tile's columns, from the graph.
    fn constant_row(&self, m: &Matrix, linear: &Linear<'_>, k: u64, plane: u64, apart: bool) -> Option<Vec<u8>> {
        let e = self.expectation.as_ref()?;
        let (tensor, bytes) = (e.graph.tensor(linear.weights), e.constant(linear.weights.0)?);
        let size = tensor.dtype.bytes();
        let batch = self.batch_entry(m, linear).ok()?;
        let mut row = Vec::with_capacity(m.columns as usize * size);
        for column in m.first_column..m.first_column + m.columns {
            let element = if linear.convolution {
                let per_output: usize = tensor.shape[1..].iter().product();
                column as usize * per_output + k as usize
            } else {
                let [.., rows, n] = tensor.shape[..] else { return None };
                (batch as usize * rows + k as usize) * n + column as usize
            };
            let value = bytes.get(element * size..(element + 1) * size)?;
            if apart { row.push(value[plane as usize]) } else { row.extend_from_slice(value) }
        }
        Some(row)
    }

    /// Bias, multiplier and shift of channels `first ..` against the graph's.
    pub(crate) fn channel_parameters(
        &self,
        bytes: &[u8],
        wide: bool,
        first: u32,
        bias: Option<TensorId>,
        epilogue: &Arithmetic<Epilogue>,
    ) -> Result<(), Fault> {
        let Some(e) = &self.expectation else { return Ok(()) };
        let size = if wide { 8 } else { 4 };
        let stored = bias.and_then(|b| e.constant(b.0));
        for (i, entry) in bytes.chunks_exact(ChannelParameters::bytes(wide)).enumerate() {
            let channel = first as usize + i;
            let found = ChannelParameters::decode(wide, entry);
            let expected = match stored {
                None => 0,
                Some(s) if wide => i64::from_le_bytes(s[channel * size..][..8].try_into().unwrap_or_default()),
                Some(s) => i64::from(i32::from_le_bytes(s[channel * size..][..4].try_into().unwrap_or_default())),
            };
            let (multiplier, shift) = epilogue.fixed().map_or((0, 0), |e| e.requant.of(channel));
            if (found.bias, i32::from(found.multiplier), found.shift) != (expected, multiplier, shift) {
                let expected = format_args!("of channel {channel} {expected}, {multiplier}, {shift}");
                return Err(Rule::ChannelParameters.violation(expected, format_args!("{found:?}")));
            }
        }
        Ok(())
    }

    /// A fused table against the graph's.
    pub(crate) fn table(
        &mut self,
        shape: Option<TableShape>,
        address: u32,
        epilogue: Option<Option<&Epilogue>>,
    ) -> Result<(), Fault> {
        let found = match shape {
            Some(shape) => Some((shape, self.parameters(address, shape.entries as usize * 4)?)),
            None => None,
        };
        let Some((e, epilogue)) = self.expectation.as_ref().zip(epilogue) else { return Ok(()) };
        match (epilogue.and_then(|e| e.table.as_ref()), &found) {
            (None, None) => Ok(()),
            (Some(table), Some((shape, bytes))) => {
                Rule::Descriptor.require_equal("limits of the table", &(table.lo, table.hi), &(shape.lo, shape.hi))?;
                Rule::Parameters.require_equal("entries", &e.constant(table.entries.0), &Some(&bytes[..]))?;
                let entries = table.entries;
                self.require_table(address, bytes.len(), entries)
            }
            (expected, found) => {
                let some = |there: bool| if there { "a fused table" } else { "none" };
                Err(Rule::Descriptor.violation(some(expected.is_some()), some(found.is_some())))
            }
        }
    }
}

/// Sums of 48 bits: integers of which one operand has more than eight.
pub(crate) fn has_wide_sums(input: DType, weights: DType) -> bool {
    input.is_code() && input.bytes().max(weights.bytes()) > 1
}

/// One column for each of several channels.
fn is_depthwise(weights: &[usize], groups: u32) -> bool {
    groups > 1 && weights.first() == Some(&(groups as usize)) && weights.last() == Some(&1)
}

/// Whether a float result ends as the layer says.
pub(crate) fn same_finish(output: &FloatOutput, finish: &Finish) -> bool {
    (&output.function, output.lo, output.hi) == (&finish.function, finish.lo, finish.hi)
}

/// A window of a single line without vertical padding.
fn is_line(window: &Window) -> bool {
    window.kernel[0] == 1 && window.pads[0] == 0 && window.pads[2] == 0
}

fn without_padding(window: &Window) -> Window {
    Window { pads: [0; 4], ..*window }
}

/// Every output pixel sees the one input pixel of its number; with a single tap, dilation means nothing.
fn is_plain(window: &Window) -> bool {
    Window { dilation: [1, 1], ..*window } == PLAIN
}

/// Input lines and columns that output columns `columns` of row `y` see, without padding.
fn window_cells(
    window: &Window,
    y: u32,
    columns: std::ops::Range<u32>,
    height: u32,
    width: u32,
) -> Vec<(u32, std::ops::Range<u32>)> {
    let signed = |v: u32| i64::from(v);
    let mut found = Vec::new();
    let left = signed(columns.start) * signed(window.stride[1]) - signed(window.pads[1]);
    let right = signed(columns.end - 1) * signed(window.stride[1]) - signed(window.pads[1])
        + signed(window.kernel[1] - 1) * signed(window.dilation[1])
        + 1;
    let (left, right) = (left.clamp(0, signed(width)), right.clamp(0, signed(width)));
    for tap in 0..window.kernel[0] {
        let line = signed(y) * signed(window.stride[0]) - signed(window.pads[0]) + signed(tap * window.dilation[0]);
        if (0..signed(height)).contains(&line) && left < right {
            found.push((line as u32, left as u32..right as u32));
        }
    }
    found
}
