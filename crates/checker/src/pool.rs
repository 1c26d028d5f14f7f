//! Pooling and depthwise instructions.

use tpuflow_ir::isa::{ChannelParameters, Pool, PoolDescriptor, PoolKind};
use tpuflow_ir::op::Average;
use tpuflow_ir::{Arithmetic, Descriptor, Layer, Op, Space, TensorId, Window};

use crate::constant_map::{Constant, ConstantByte};
use crate::matrix::{has_wide_sums, same_finish};
use crate::rule::{Fault, Operand, Rule};
use crate::walk::Walk;

impl Walk<'_> {
    pub(crate) fn pool(&mut self, p: &Pool, layer: Option<&Layer>) -> Result<(), Fault> {
        let Some(Descriptor::Pool(d)) = self.program.descriptors.get(p.descriptor.index()) else {
            return Err(Rule::DescriptorKind.violation("that of a pooling", p.descriptor.0));
        };
        Rule::Channels.require_equal("channels,", &p.output.channels, &p.input.channels)?;
        let input = layer.map(|l| self.pool_operand(l, d)).transpose()?;
        let output = layer.map(|l| l.output);
        self.true_geometry(&p.input, input).map_err(|fault| fault.of_operand(Operand::Input(0)))?;
        self.true_geometry(&p.output, output).map_err(|fault| fault.of_operand(Operand::Output))?;
        Rule::Channels.require_equal("first channel", &p.output.origin[1], &p.input.origin[1])?;
        self.true_pixels(&p.input, input).map_err(|fault| fault.of_operand(Operand::Input(0)))?;
        self.true_pixels(&p.output, output).map_err(|fault| fault.of_operand(Operand::Output))?;
        let (height, last) = (p.output.height, p.first_row + p.rows - 1);
        for image in p.first_row / height..=last / height {
            let from = p.first_row.max(image * height) - image * height;
            let to = last.min(image * height + height - 1) - image * height;
            let lines = lines_between(&d.window, from, to, p.input.height);
            let lines = image * p.input.height + lines.start..image * p.input.height + lines.end;
            if !lines.is_empty() {
                self.consume(&p.input, input, lines, 0..p.input.width, 0..p.input.channels)
                    .map_err(|fault| fault.of_operand(Operand::Input(0)))?;
            }
        }
        let depthwise = match &d.kind {
            PoolKind::Depthwise { weight_dtype, table, .. } => Some((*weight_dtype, *table)),
            PoolKind::FloatDepthwise { weight_dtype, .. } => Some((*weight_dtype, None)),
            _ => None,
        };
        if let Some((weight_dtype, table)) = depthwise {
            let wide = has_wide_sums(p.input.dtype, weight_dtype);
            let channels = p.input.channels as usize;
            let taps = (d.window.kernel[0] * d.window.kernel[1]) as usize;
            let weights = taps * channels * weight_dtype.bytes();
            let weights = self.parameters(p.weights, weights).map_err(|fault| fault.of_operand(Operand::Weights))?;
            let parameters = ChannelParameters::bytes(wide) * channels;
            let parameters =
                self.parameters(p.parameters, parameters).map_err(|fault| fault.of_operand(Operand::Parameters))?;
            let epilogue = match layer.map(|l| &l.op) {
                Some(Op::Conv { weights: w, bias, epilogue, .. }) => {
                    let first = p.input.origin[1];
                    self.depthwise_weights(&weights, *w, taps, channels, first as usize)?;
                    self.channel_parameters(&parameters, wide, first, Some(*bias), epilogue)?;
                    self.require_depthwise_constants(p, *w, taps)?;
                    let from = first as usize * ChannelParameters::bytes(wide);
                    self.require_parameters(p.parameters, parameters.len(), from)?;
                    Some(epilogue.fixed())
                }
                _ => None,
            };
            self.table(table, p.table, epilogue).map_err(|fault| fault.of_operand(Operand::Table))?;
        }
        let rows = p.first_row..p.first_row + p.rows;
        self.produce(&p.output, output, rows, 0..p.output.width, 0..p.output.channels)
            .map_err(|fault| fault.of_operand(Operand::Output))
    }

    /// The layer's operand, after comparing everything the descriptor repeats of it.
    fn pool_operand(&self, layer: &Layer, d: &PoolDescriptor) -> Result<TensorId, Fault> {
        let Some(e) = &self.expectation else { return Err(Rule::Operator.violation("a graph", "none")) };
        let zero = |id: TensorId| e.graph.tensor(id).zero_point();
        let (agrees, input) = match (&layer.op, &d.kind) {
            (Op::MaxPool { input, window }, PoolKind::Max) => (d.window == *window, *input),
            (
                Op::AveragePool { input, window, count_include_pad, beyond, average: Arithmetic::Fixed(average) },
                PoolKind::Average { input_zero, count_include_pad: include, beyond: over, divisors: table, codes },
            ) => {
                let Average { divisors, zero_point, lo, hi } = average;
                let same = divisors.len() == table.len()
                    && divisors.iter().zip(table).all(|(a, b)| (a.area, a.multiplier, a.shift) == *b);
                let agrees = d.window == *window
                    && *input_zero == zero(*input)
                    && (count_include_pad, beyond) == (include, over)
                    && same
                    && (codes.zero_point, codes.lo, codes.hi) == (*zero_point, *lo, *hi);
                (agrees, *input)
            }
            (
                Op::Conv { input, weights, window, groups, epilogue: Arithmetic::Fixed(epilogue), .. },
                PoolKind::Depthwise { input_zero, weight_zero, weight_dtype, first_shift, codes, .. },
            ) => {
                let w = e.graph.tensor(*weights);
                let requant = &epilogue.requant;
                let agrees = d.window == *window
                    && w.shape[0] == *groups as usize
                    && w.shape[3] == 1
                    && (*input_zero, *weight_zero, *weight_dtype) == (zero(*input), w.zero_point(), w.dtype)
                    && *first_shift == epilogue.first_shift
                    && (codes.zero_point, codes.lo, codes.hi) == (requant.zero_point, requant.lo, requant.hi);
                (agrees, *input)
            }
            (
                Op::AveragePool { input, window, count_include_pad, beyond, average: Arithmetic::Float(finish) },
                PoolKind::FloatAverage { count_include_pad: include, beyond: over, output },
            ) => {
                let same = (count_include_pad, beyond) == (include, over) && same_finish(output, finish);
                (d.window == *window && same, *input)
            }
            (
                Op::Conv { input, weights, window, groups, epilogue: Arithmetic::Float(finish), .. },
                PoolKind::FloatDepthwise { weight_dtype, output },
            ) => {
                let w = e.graph.tensor(*weights);
                let agrees = d.window == *window
                    && w.shape[0] == *groups as usize
                    && w.shape[3] == 1
                    && *weight_dtype == w.dtype
                    && same_finish(output, finish);
                (agrees, *input)
            }
            _ => return Err(Rule::Operator.violation(layer.op.name(), "a pooling")),
        };
        Rule::Descriptor.require(agrees, format_args!("{:?}", layer.op), format_args!("{d:?}"))?;
        Ok(input)
    }

    /// Requires the constants behind depthwise weights, tap by tap.
    fn require_depthwise_constants(&mut self, p: &Pool, weights: TensorId, taps: usize) -> Result<(), Fault> {
        let Some(graph) = self.expectation.as_ref().map(|e| e.graph) else { return Ok(()) };
        let tensor = graph.tensor(weights);
        let (columns, size) = (tensor.shape[0] as u64, tensor.dtype.bytes() as u64);
        let (first, channels) = (u64::from(p.input.origin[1]), u64::from(p.input.channels));
        for tap in 0..taps as u64 {
            let element = ConstantByte { of: Constant::ByColumn(weights), byte: (tap * columns + first) * size };
            let start = u64::from(p.weights) + tap * channels * size;
            self.require_constants(Space::EwpCache, start, channels * size, element)?;
        }
        Ok(())
    }

    /// `[tap][channel]` against the graph's `[channel][tap]`.
    fn depthwise_weights(
        &self,
        found: &[u8],
        weights: TensorId,
        taps: usize,
        channels: usize,
        first: usize,
    ) -> Result<(), Fault> {
        let Some(e) = &self.expectation else { return Ok(()) };
        let size = e.graph.tensor(weights).dtype.bytes();
        let Some(constant) = e.constant(weights.0) else {
            return Err(Rule::NotConstant.violation("constant weights", "computed ones"));
        };
        for tap in 0..taps {
            for channel in 0..channels {
                let (a, b) = ((tap * channels + channel) * size, ((first + channel) * taps + tap) * size);
                let (found, expected) = (found.get(a..a + size), constant.get(b..b + size));
                if found.is_none() || found != expected {
                    let expected = format_args!("of tap {tap}, channel {} {expected:?}", first + channel);
                    return Err(Rule::Weights.violation(expected, format_args!("{found:?}")));
                }
            }
        }
        Ok(())
    }
}

/// Input lines from the first to the last that output rows `first ..= last` of an image reach. The unit takes them whole,
/// those that no window sees included.
fn lines_between(window: &Window, first: u32, last: u32, height: u32) -> std::ops::Range<u32> {
    let [row, pad, step] = [window.stride[0], window.pads[0], window.dilation[0]].map(i64::from);
    let top = i64::from(first) * row - pad;
    let bottom = i64::from(last) * row - pad + i64::from(window.kernel[0] - 1) * step + 1;
    let inside = |line: i64| line.clamp(0, i64::from(height)) as u32;
    inside(top)..inside(bottom)
}
