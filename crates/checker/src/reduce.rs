//! Reductions, whole or stretch by stretch: which elements an instruction takes, how far the sums it goes on with have come,
//! and what it leaves.

use tpuflow_ir::isa::{FloatFunction, Vector, VectorOp};
use tpuflow_ir::{Arithmetic, DType, Layer, Op, ReduceKind, TensorId, View};

use crate::contents::Value;
use crate::matrix::same_finish;
use crate::rule::{Fault, Operand, Rule};
use crate::values::require_defined;
use crate::vector::{check_scaling, is_disjoint, same_place};
use crate::walk::Walk;

/// The stretch an instruction states.
struct Claim<'p> {
    kind: ReduceKind,
    shape: &'p [u32],
    axes: &'p [u32],
    partial: bool,
}

impl<'p> Claim<'p> {
    fn of(op: &'p VectorOp) -> Option<Self> {
        match op {
            VectorOp::Reduce { kind, shape, axes, partial, .. }
            | VectorOp::Float { function: FloatFunction::Reduce { kind, shape, axes, partial, .. }, .. } => {
                Some(Self { kind: *kind, shape, axes, partial: *partial })
            }
            _ => None,
        }
    }
}

/// Where a stretch lies among kept and reduced indices, all row-major.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// First kept element, and how many.
    kept: u64,
    count: u64,
    /// Terms of each before it, and of its own.
    before: u64,
    terms: u64,
}

impl Walk<'_> {
    pub(crate) fn reduction(&mut self, op: &VectorOp, v: &Vector, layer: Option<&Layer>) -> Result<(), Fault> {
        let Some(claim) = Claim::of(op) else {
            return Err(Rule::DescriptorKind.violation("that of a reduction", "another"));
        };
        let (Some(operand), true) = (v.inputs.first(), v.inputs.len() <= 2) else {
            return Err(Rule::Operands.violation("one operand, and running results", v.inputs.len()));
        };
        let sizes = |view: &View| u64::from(view.rows) * u64::from(view.width) * u64::from(view.channels);
        let all = claim.shape.iter().try_fold(1u64, |all, &n| all.checked_mul(n.into()));
        if Some(sizes(operand)) != all || claim.axes.iter().any(|&axis| axis as usize >= claim.shape.len()) {
            let stretch = format_args!("{:?} over {:?}", claim.shape, claim.axes);
            return Err(Rule::Stretches.violation(format_args!("a stretch of {} elements", sizes(operand)), stretch));
        }
        // Each running result is read before what takes its own place is written, but not before what is written elsewhere.
        let word = self.machine().word();
        let apart = |view: &View| is_disjoint(view, &v.output, word);
        self.in_place = apart(operand) && v.inputs[1..].iter().all(|sums| apart(sums) || same_place(sums, &v.output));
        let output_type = running(claim.kind, operand.dtype);
        let typed = !claim.partial || v.output.dtype == output_type;
        if !typed || v.inputs.get(1).is_some_and(|sums| sums.dtype != output_type) {
            return Err(Rule::ElementTypes.violation(format_args!("running results of {output_type:?}"), "others"));
        }
        let Some(layer) = layer else {
            for view in &v.inputs {
                self.consume(view, None, 0..view.rows, 0..view.width, 0..view.channels)?;
            }
            return self.produce(&v.output, None, 0..v.output.rows, 0..v.output.width, 0..v.output.channels);
        };
        let (input, axes) = self.check_reduction(op, layer)?;
        let place = self.place_of(operand, &claim, input, &axes)?;
        self.consume(operand, Some(input), 0..operand.rows, 0..operand.width, 0..operand.channels)?;
        let wanted = u64::from(place.before > 0);
        if v.inputs.len() as u64 != 1 + wanted {
            let found = format_args!("{} operands behind {} terms", v.inputs.len(), place.before);
            return Err(Rule::Terms.violation("running results of the terms before, if any", found));
        }
        if let Some(sums) = v.inputs.get(1) {
            let (start, end) = self.running_bytes(sums, &place)?;
            let pieces = self.load(sums.space, start, end)?;
            require_defined(&pieces, sums.space, start, end)?;
            let expected = self.running_value(layer, &place, place.before, sums.dtype);
            let agrees = pieces.iter().all(|piece| piece.value == expected.advance(piece.start - start));
            if !agrees {
                let found = format_args!("{:?}", pieces.first().map(|piece| piece.value));
                return Err(Rule::Terms.violation(format_args!("{expected:?}"), found).of_operand(Operand::Input(1)));
            }
        }
        if claim.partial {
            let (start, end) = self.running_bytes(&v.output, &place)?;
            let value = self.running_value(layer, &place, place.before + place.terms, v.output.dtype);
            return self.store(v.output.space, start, end, value);
        }
        if place.before + place.terms != self.terms(&axes, input) {
            let found = format_args!("{} and {}", place.before, place.terms);
            return Err(Rule::Terms.violation(format_args!("all {} terms", self.terms(&axes, input)), found));
        }
        let channels = self.whole_channels(&v.output, Some(layer.output))?;
        let first = u64::from(v.output.origin[0]) * channels + u64::from(v.output.origin[1]);
        let contiguous = channels == u64::from(v.output.channels) || v.output.rows * v.output.width == 1;
        if (first, sizes(&v.output)) != (place.kept, place.count) || !contiguous {
            let found = format_args!("{} from {first} on", sizes(&v.output));
            let expected = format_args!("{} elements from {} on", place.count, place.kept);
            return Err(Rule::SamePixels.violation(expected, found).of_operand(Operand::Output));
        }
        let (rows, columns) = (0..v.output.rows, 0..v.output.width);
        self.produce(&v.output, Some(layer.output), rows, columns, 0..v.output.channels)
    }

    /// The layer's operand and reduced axes, after comparing what the instruction repeats of it.
    fn check_reduction(&self, op: &VectorOp, layer: &Layer) -> Result<(TensorId, Vec<u32>), Fault> {
        let Some(graph) = self.expectation.as_ref().map(|e| e.graph) else {
            return Err(Rule::Operator.violation("a graph", "none"));
        };
        let zero = |id: TensorId| graph.tensor(id).zero_point();
        let (agrees, input, axes) = match &layer.op {
            Op::Reduce { input, kind, requant, axes } => {
                let agrees = match (op, requant) {
                    (VectorOp::Reduce { kind: k, input_zero, scaling, .. }, Arithmetic::Fixed(requant)) => {
                        k == kind && *input_zero == zero(*input) && check_scaling(scaling, requant).is_ok()
                    }
                    (
                        VectorOp::Float { function: FloatFunction::Reduce { kind: k, divisor, .. }, output },
                        Arithmetic::Float(reduction),
                    ) => k == kind && *divisor == reduction.divisor && same_finish(output, &reduction.finish),
                    _ => false,
                };
                (agrees, *input, axes.clone())
            }
            // The average of a whole image is a sum with a divisor.
            Op::AveragePool { input, window, average, .. } => {
                let shape = &graph.tensor(*input).shape;
                let area = shape[1] * shape[2];
                let whole = window.pads == [0; 4] && window.kernel.map(|k| k as usize) == [shape[1], shape[2]];
                let agrees = match (op, average) {
                    (VectorOp::Reduce { kind, input_zero, scaling, .. }, Arithmetic::Fixed(average)) => {
                        let codes = scaling.codes;
                        let divisor = average.divisors.iter().find(|d| d.area as usize == area);
                        *kind == ReduceKind::Sum
                            && *input_zero == zero(*input)
                            && divisor.is_some_and(|d| (d.multiplier, d.shift) == (scaling.multiplier, scaling.shift))
                            && (codes.zero_point, codes.lo, codes.hi) == (average.zero_point, average.lo, average.hi)
                    }
                    (
                        VectorOp::Float { function: FloatFunction::Reduce { kind, divisor, .. }, output },
                        Arithmetic::Float(finish),
                    ) => {
                        *kind == ReduceKind::Sum
                            && divisor.get() == f64::from(area as f32)
                            && same_finish(output, finish)
                    }
                    _ => false,
                };
                (agrees && whole, *input, vec![1, 2])
            }
            other => return Err(Rule::Operator.violation(other.name(), "a reduction")),
        };
        Rule::Descriptor.require(agrees, format_args!("{:?}", layer.op), format_args!("{op:?}"))?;
        Ok((input, axes))
    }

    fn terms(&self, axes: &[u32], input: TensorId) -> u64 {
        let Some(e) = &self.expectation else { return 0 };
        let shape = &e.graph.tensor(input).shape;
        axes.iter().map(|&axis| shape[axis as usize] as u64).product()
    }

    /// Finds the stretch in the layer's operand: single indices, then a range, then everything.
    fn place_of(&self, view: &View, claim: &Claim<'_>, input: TensorId, axes: &[u32]) -> Result<Place, Fault> {
        let wrong = |what: &str| Rule::Stretches.violation("a box of the operand", format_args!("one that {what}"));
        let Some(e) = &self.expectation else { return Err(wrong("is none")) };
        let shape: Vec<u64> = e.graph.tensor(input).shape.iter().map(|&n| n as u64).collect();
        let channels = self.whole_channels(view, Some(input))?;
        let last = shape.len().saturating_sub(1);
        // Some channels of every pixel are a tensor of their own, if channels are kept.
        let mut own = shape.clone();
        let some = channels != u64::from(view.channels) && view.rows * view.width != 1;
        if some {
            if shape.last() != Some(&channels) || axes.contains(&(last as u32)) || claim.shape.len() < 2 {
                return Err(wrong("leaves channels out"));
            }
            own[last] = view.channels.into();
        }
        let first = if some { 0 } else { u64::from(view.origin[1]) };
        let start = u64::from(view.origin[0]) * if some { own[last] } else { channels } + first;
        let cut = shape.len().checked_sub(claim.shape.len()).ok_or_else(|| wrong("has more axes than its operand"))?;
        let Some((&extent, tail)) = claim.shape.split_first() else { return Err(wrong("has no axes")) };
        let inner: u64 = own[cut + 1..].iter().product();
        let same_tail = tail.iter().map(|&n| u64::from(n)).eq(own[cut + 1..].iter().copied());
        let same_axes = axes.iter().filter_map(|axis| axis.checked_sub(cut as u32)).eq(claim.axes.iter().copied());
        if !same_tail || !same_axes || !start.is_multiple_of(inner) {
            return Err(wrong("is no box of its operand"));
        }
        if start / inner % shape[cut] + u64::from(extent) > shape[cut] {
            return Err(wrong("leaves its axis"));
        }
        let mut place = Place { kept: 0, count: 1, before: 0, terms: 1 };
        let mut rest = start;
        let mut index = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            index[axis] = rest % own[axis];
            rest /= own[axis];
        }
        if some {
            index[last] += u64::from(view.origin[1]);
        }
        for (axis, &all) in shape.iter().enumerate() {
            let taken = match axis.cmp(&cut) {
                std::cmp::Ordering::Less => 1,
                std::cmp::Ordering::Equal => u64::from(extent),
                std::cmp::Ordering::Greater => own[axis],
            };
            let (at, size) = if axes.contains(&(axis as u32)) {
                (&mut place.before, &mut place.terms)
            } else {
                (&mut place.kept, &mut place.count)
            };
            (*at, *size) = (*at * all + index[axis], *size * taken);
        }
        // Those of several pixels do not lie side by side among the kept.
        if some && place.count != own[last] {
            return Err(wrong("leaves channels out"));
        }
        Ok(place)
    }

    /// Running results lie as one pixel.
    fn running_bytes(&self, view: &View, place: &Place) -> Result<(u64, u64), Fault> {
        if view.rows * view.width != 1 || u64::from(view.channels) != place.count {
            let found = format_args!("{} x {} x {}", view.rows, view.width, view.channels);
            return Err(Rule::Terms.violation(format_args!("{} running results in one pixel", place.count), found));
        }
        self.require_row(view, 0)?;
        let start = view.pixel_address(0, 0, self.machine().word());
        Ok((start, start + view.payload() as u64))
    }

    fn running_value(&self, layer: &Layer, place: &Place, terms: u64, dtype: DType) -> Value {
        Value::Running { tensor: layer.output.0, terms, byte: place.kept * dtype.bytes() as u64 }
    }
}

fn running(kind: ReduceKind, operand: DType) -> DType {
    match (kind, operand) {
        (ReduceKind::Max | ReduceKind::Min, same) => same,
        (_, DType::F16 | DType::BF16 | DType::F32) => DType::F32,
        _ => DType::I64,
    }
}
