//! Moves and gathers: symbols carried from place to place.
//!
//! Where what arrives is what the layer's output should hold there, the place is marked as holding that output, which keeps
//! runs long; else the symbols themselves are carried, and whoever reads them judges.

use tpuflow_ir::isa::{Scaling, Vector};
use tpuflow_ir::layout::pixel_bytes;
use tpuflow_ir::{Arithmetic, Layer, Op, Space, View};

use crate::contents::{Element, Piece, Value};
use crate::rule::{Fault, Operand, Rule};
use crate::values::require_defined;
use crate::vector::check_scaling;
use crate::walk::Walk;

/// Loops of a move: extent, input stride, output stride, in elements.
pub(crate) type Nest = [(u64, i64, i64)];

/// The stretches that a move writes, in its order, merged where one continues another.
type Written = Vec<(u64, u64, Value)>;

/// What an instruction moves: the bytes it reads, and what it writes.
#[derive(Default)]
struct Carried {
    read: Vec<(u64, u64)>,
    written: Written,
}

/// A move under way: the symbols of its operand, and what becomes of them.
struct Arriving<'a> {
    v: &'a Vector,
    input: &'a View,
    pieces: &'a [Piece],
    rescale: Option<&'a (i32, Scaling)>,
    layer: Option<&'a Layer>,
}

impl Walk<'_> {
    /// Carries symbols from element `from` to element `to` through a loop nest; a rescaling makes them the layer's own.
    pub(crate) fn transport(
        &mut self,
        v: &Vector,
        nest: &Nest,
        from: i64,
        to: i64,
        rescale: Option<&(i32, Scaling)>,
        layer: Option<&Layer>,
    ) -> Result<(), Fault> {
        let mut carried = Carried::default();
        self.carry(v, nest, [from, to], rescale, layer, &mut carried)?;
        self.put(v.output.space, carried)
    }

    /// Carries the rows of a gather, each of `inner` elements, from where they are to where they come. All are read before one is
    /// written, as the rule of a place of its own for the result asks.
    pub(crate) fn gather_rows(
        &mut self,
        v: &Vector,
        inner: u32,
        rows: impl Iterator<Item = [i64; 2]>,
        layer: Option<&Layer>,
    ) -> Result<(), Fault> {
        let mut carried = Carried::default();
        for [from, to] in rows {
            let place = [from * i64::from(inner), to * i64::from(inner)];
            self.carry(v, &[(u64::from(inner), 1, 1)], place, None, layer, &mut carried)?;
        }
        self.put(v.output.space, carried)
    }

    /// Reads what a loop nest carries from element `from` to element `to`.
    fn carry(
        &mut self,
        v: &Vector,
        nest: &Nest,
        [from, to]: [i64; 2],
        rescale: Option<&(i32, Scaling)>,
        layer: Option<&Layer>,
        carried: &mut Carried,
    ) -> Result<(), Fault> {
        let [input] = v.inputs.as_slice() else { return Err(Rule::Operands.violation(1, v.inputs.len())) };
        if rescale.is_none() && input.dtype != v.output.dtype {
            return Err(
                Rule::ElementTypes.violation(format_args!("{:?}", input.dtype), format_args!("{:?}", v.output.dtype))
            );
        }
        let pieces = self.source(input, nest, from)?;
        let arriving = Arriving { v, input, pieces: &pieces, rescale, layer };
        let (inner, outer) = match nest.split_last() {
            Some((&(extent, 1, 1), outer)) => (extent, outer),
            _ => (1, nest),
        };
        let mut index = vec![0u64; outer.len()];
        loop {
            let (mut source, mut target, mut left) = (from, to, inner);
            for (&i, &(_, input_stride, output_stride)) in index.iter().zip(outer) {
                source += i.cast_signed() * input_stride;
                target += i.cast_signed() * output_stride;
            }
            while left > 0 {
                self.spend(1)?;
                let count = self.copy_elements(&arriving, [source, target], left, carried)?;
                source += count.cast_signed();
                target += count.cast_signed();
                left -= count;
            }
            let Some(axis) = (0..outer.len()).rev().find(|&axis| index[axis] + 1 < outer[axis].0) else { break };
            index[axis] += 1;
            index[axis + 1..].fill(0);
        }
        Ok(())
    }

    /// Carries elements from `source` on to `target` on, at most `left` and as many as one stretch of both holds; how many.
    fn copy_elements(
        &mut self,
        arriving: &Arriving<'_>,
        [source, target]: [i64; 2],
        left: u64,
        Carried { read, written }: &mut Carried,
    ) -> Result<u64, Fault> {
        let Arriving { v, input, pieces, rescale, layer } = *arriving;
        let (size, out_size) = (input.dtype.bytes() as u64, v.output.dtype.bytes() as u64);
        let (start, a) = self.place(input, source, left)?;
        let (end, b) = self.place(&v.output, target, left)?;
        let mut count = a.min(b).min(self.row_of_result(v, target, layer));
        let result = self.result(v, target, layer);
        let arrived = match (rescale, layer, result) {
            (Some(rescale), Some(layer), Some(result)) => {
                let (source, run) = self.rescaled_source(target, v, rescale, layer)?;
                count = count.min(run);
                self.require_elements(pieces, start, count * size, source)
                    .map_err(|fault| fault.of_operand(Operand::Input(0)))?;
                Some(Value::Element(result))
            }
            (None, _, Some(result)) => {
                let there = self.require_elements(pieces, start, count * size, result).is_ok();
                there.then_some(Value::Element(result))
            }
            _ => Some(Value::Any),
        };
        match read.last_mut() {
            Some((_, to)) if *to == start => *to = start + count * size,
            _ => read.push((start, start + count * size)),
        }
        let covered = crate::values::pieces_within(pieces, start, start + count * size);
        self.spend(covered.len() as u64)?;
        require_defined(&covered, input.space, start, start + count * size)?;
        match arrived {
            Some(value) => self.append(written, v.output.space, (end, end + count * out_size, value))?,
            None => {
                for piece in covered {
                    let at = end + (piece.start - start);
                    self.append(written, v.output.space, (at, at + (piece.end - piece.start), piece.value))?;
                }
            }
        }
        Ok(count)
    }

    /// Adds a stretch to those written. One that continues the last, but for padding between their pixels where nothing is that
    /// may still be needed, is one with it and writes that padding along.
    fn append(
        &mut self,
        written: &mut Written,
        space: Space,
        (start, end, value): (u64, u64, Value),
    ) -> Result<(), Fault> {
        if let Some(last) = written.last_mut()
            && last.1 <= start
            && last.2.advance(start - last.0) == value
        {
            self.spend(1)?;
            let after = last.2.advance(last.1 - last.0);
            if last.1 == start || (after.is_padding(start - last.1) && self.owns_padding(space, last.1..start, after)) {
                last.1 = end;
                return Ok(());
            }
        }
        written.push((start, end, value));
        Ok(())
    }

    /// Stores what was written, none of it over elements that were read.
    fn put(&mut self, space: Space, Carried { mut read, written }: Carried) -> Result<(), Fault> {
        // What lies between the elements read was not read.
        self.in_place = true;
        read.sort_unstable();
        read.dedup_by(|next, last| {
            let meets = next.0 <= last.1;
            last.1 = if meets { last.1.max(next.1) } else { last.1 };
            meets
        });
        for (start, end, value) in written {
            let next = read.partition_point(|&(_, to)| to <= start);
            let apart = read.get(next).is_none_or(|&(from, _)| from >= end);
            let found = format_args!("elements it reads at {start:#x}..{end:#x}");
            Rule::InPlace.require(apart, "a place of its own for the result", found)?;
            self.store(space, start, end, value)?;
        }
        Ok(())
    }

    /// Everything between the first and the last element read.
    fn source(&mut self, view: &View, nest: &Nest, from: i64) -> Result<Vec<Piece>, Fault> {
        let (mut low, mut high) = (from, from);
        for &(extent, stride, _) in nest {
            let reach = (extent - 1).cast_signed() * stride;
            low += reach.min(0);
            high += reach.max(0);
        }
        let ((start, _), (last, _)) = (self.place(view, low, 1)?, self.place(view, high, 1)?);
        let word = self.machine().word();
        if last < start {
            return self.load(view.space, view.address, view.address + view.bytes(word));
        }
        self.load(view.space, start, last + view.dtype.bytes() as u64)
    }

    /// The expected value of the layer's output at a view's row-major element.
    fn result(&self, v: &Vector, target: i64, layer: Option<&Layer>) -> Option<Element> {
        let (tensor, whole) =
            layer.map(|l| l.output).and_then(|t| Some((t, self.whole_channels(&v.output, Some(t)).ok()?)))?;
        let size = v.output.dtype.bytes() as u64;
        let (channels, target) = (u64::from(v.output.channels), target.cast_unsigned());
        let payload = whole * size;
        let natural = pixel_bytes(payload as usize, self.machine().word());
        let pixel = u64::from(v.output.origin[0]) + target / channels;
        let within = (u64::from(v.output.origin[1]) + target % channels) * size;
        Some(Element::new(tensor.0, payload as u32, natural as u32, pixel, within))
    }

    /// For how many elements from a view's on those of the layer's output go on as well: where the view shows some of its
    /// channels, to the last of them.
    fn row_of_result(&self, v: &Vector, target: i64, layer: Option<&Layer>) -> u64 {
        let whole = layer.map(|l| self.whole_channels(&v.output, Some(l.output)));
        let channels = u64::from(v.output.channels);
        match whole {
            Some(Ok(whole)) if whole != channels => channels - target.cast_unsigned() % channels,
            _ => u64::MAX,
        }
    }

    /// The source of a view's element in a rescaling move, and for how many elements it goes on, by a concatenation (or a
    /// rescaling done as a move): with the factor of that branch.
    fn rescaled_source(
        &self,
        target: i64,
        v: &Vector,
        (input_zero, scaling): &(i32, Scaling),
        layer: &Layer,
    ) -> Result<(Element, u64), Fault> {
        let Some(graph) = self.expectation.as_ref().map(|e| e.graph) else {
            return Err(Rule::Operator.violation("a graph", "none"));
        };
        let whole = self.whole_channels(&v.output, Some(layer.output))?;
        let (channels, target) = (u64::from(v.output.channels), target.cast_unsigned());
        let pixel = u64::from(v.output.origin[0]) + target / channels;
        let element = pixel * whole + u64::from(v.output.origin[1]) + target % channels;
        let (source, requant, at, run) = match &layer.op {
            Op::Rescale { input, requant: Arithmetic::Fixed(requant) } => (*input, requant, element, u64::MAX),
            Op::Concat { inputs, axis, requants } => {
                let shape = &graph.tensor(layer.output).shape;
                let inner: u64 = shape[*axis as usize + 1..].iter().map(|&n| n as u64).product();
                let along = shape[*axis as usize] as u64 * inner;
                let (outer, mut at) = (element / along, element % along);
                let mut found = None;
                for (&input, requant) in inputs.iter().zip(requants) {
                    let part = graph.tensor(input).shape[*axis as usize] as u64 * inner;
                    if at < part {
                        found = requant.as_ref().map(|r| (input, r, outer * part + at, part - at));
                        break;
                    }
                    at -= part;
                }
                found.ok_or_else(|| Rule::Descriptor.violation("a branch taken as it is", "a rescaling"))?
            }
            other => return Err(Rule::Operator.violation(other.name(), "a rescaling move")),
        };
        check_scaling(scaling, requant)?;
        let tensor = graph.tensor(source);
        Rule::Descriptor.require_equal("zero point", &tensor.zero_point(), input_zero)?;
        Rule::Tensor.require_equal("elements of", &tensor.dtype, &v.inputs[0].dtype)?;
        Ok((Element::dense(source.0, at * tensor.dtype.bytes() as u64), run))
    }

    /// Address of a view's row-major element, and for how many of at most `limit` elements the bytes go on.
    fn place(&self, view: &View, element: i64, limit: u64) -> Result<(u64, u64), Fault> {
        let (channels, width) = (u64::from(view.channels), u64::from(view.width));
        let element = u64::try_from(element).map_err(|_| Rule::Extent.violation("an element of a view", element))?;
        let (pixel, channel) = (element / channels, element % channels);
        let (row, column) = (pixel / width, pixel % width);
        if row >= u64::from(view.rows) {
            return Err(Rule::Extent.violation(format_args!("an element of {} rows", view.rows), element));
        }
        let row = row as u32;
        self.require_row(view, row)?;
        let address =
            view.pixel_address(row, column as u32, self.machine().word()) + channel * view.dtype.bytes() as u64;
        let dense = view.payload() == view.pixel_bytes as usize;
        let run = if dense { (width - column) * channels - channel } else { channels - channel };
        Ok((address, run.min(limit)))
    }
}
