//! Operands of concatenations that are produced, or loaded, where they belong in the result.

use std::collections::BTreeSet;

use tpuflow_ir::layout::image;
use tpuflow_ir::{Machine, Op, TensorId, View};

use super::{Place, Placement, coalesced, natural, writes_anywhere};
use crate::network::{Linear, Network, Step, is_depthwise};

/// An operand of a concatenation that may lie in its result.
struct Operand<'a> {
    tensor: TensorId,
    /// Index along the axis at which it begins.
    start: usize,
    /// Its step; inputs have none.
    producer: Option<&'a Step>,
}

impl Placement {
    /// Lets the operands of a concatenation be produced in its result, as far as that is possible; `inputs`: those of the network,
    /// and which of them are parts that other devices give.
    pub(super) fn concat(
        &mut self,
        network: &Network,
        (inputs, parts): (&[TensorId], &BTreeSet<TensorId>),
        step: &Step,
        machine: &Machine,
    ) {
        let Op::Concat { inputs: operands, axis, requants } = &step.op else { return };
        let (output, axis) = (step.output, *axis as usize);
        let out = network.tensor(output);
        let (_, _, width, channels) = image(&out.shape);
        let by_channels = axis + 1 == out.shape.len();
        let mut seen = BTreeSet::new();
        let repeated: BTreeSet<TensorId> = operands.iter().copied().filter(|&operand| !seen.insert(operand)).collect();
        let (mut before, mut shares_words) = (0, false);
        let mut found = Vec::new();
        for (&operand, requant) in operands.iter().zip(requants) {
            let tensor = network.tensor(operand);
            let start = before;
            before += tensor.shape[axis];
            let end = before * out.shape[axis + 1..].iter().product::<usize>();
            let pixels = end % (channels * width).max(1) / channels.max(1);
            shares_words |= !(pixels as u64 * u64::from(self.of(output).pixel_bytes)).is_multiple_of(self.word as u64);
            let producer = network.producer(operand);
            // A load to a place of its own comes earlier, and the copy behind it is short beside other loads where little is computed.
            let is_half = 2 * tensor.elements() <= out.elements();
            // A part of another device comes late enough, and everything waits for it.
            let is_part = parts.contains(&operand);
            let is_loaded = (is_part || inputs.contains(&operand) && !by_channels && is_half)
                && network.readers(operand).count() == 1;
            let suited = (is_loaded || producer.is_some_and(|producer| writes_anywhere(&producer.op)))
                && requant.is_none()
                && tensor.dtype == out.dtype
                && tensor.elements() > 0
                && self.absorbed[operand.index()].is_none()
                && !repeated.contains(&operand)
                && (is_loaded || !inputs.contains(&operand));
            let operand = Operand { tensor: operand, start, producer };
            let place = match suited {
                true if by_channels => self.among_channels(network, output, &operand, machine),
                true => self.among_rows(network, (output, axis), &operand),
                false => None,
            };
            let is_quick = |place: &Place| {
                let slowed = producer.is_some_and(|producer| self.slows_pooling(network, producer, *place, machine));
                !slowed && !self.slows(network, operand.tensor, *place)
            };
            found.extend(place.filter(is_quick).map(|place| (operand.tensor, place)));
        }
        // Rows of one operand may share words with those of the next only if one pass writes them all.
        let is_loaded = found.iter().any(|(operand, _)| inputs.contains(operand));
        if by_channels || !shares_words || !is_loaded && found.len() == operands.len() {
            for (operand, place) in found {
                self.places[operand.index()] = place;
                self.absorbed[operand.index()] = Some(output);
            }
        }
    }

    /// The place of an operand in a range of channels of every pixel of `output`.
    fn among_channels(
        &self,
        network: &Network,
        output: TensorId,
        operand: &Operand<'_>,
        machine: &Machine,
    ) -> Option<Place> {
        let (host, columns) = (self.of(output), machine.array.columns as usize);
        let (rows, _, width, _) = image(&network.tensor(output).shape);
        let (view, size) = (natural(network, operand.tensor, self.word), network.tensor(operand.tensor).dtype.bytes());
        let offset = host.channel_offset as usize + operand.start * size;
        let tile = view.payload().min(columns * size);
        let aligned = offset.is_multiple_of(self.word);
        let behind = || {
            let lead = self.word - offset % self.word;
            let words = (offset % self.word + view.payload()).div_ceil(self.word);
            let linear = operand.producer.filter(|producer| !is_depthwise(network, &producer.op));
            linear.and_then(|producer| Linear::of(&producer.op, network)).is_some_and(|linear| {
                words == view.payload().div_ceil(self.word)
                    && lead.is_multiple_of(size)
                    && linear.tiles_behind(columns as u32, (lead / size) as u32).is_some()
            })
        };
        let fits = self.fits_channels(offset, tile) && (view.payload() <= tile || aligned)
            || operand.producer.is_some_and(|producer| is_only_moved_to(network, producer, output));
        let is_alike = (view.rows as usize, view.width as usize) == (rows, width);
        (is_alike && (fits || !aligned && behind())).then_some(Place { channel_offset: offset as u32, ..host })
    }

    /// The place of an operand in rows of `output`, or in pixels of its only row.
    fn among_rows(&self, network: &Network, (output, axis): (TensorId, usize), operand: &Operand<'_>) -> Option<Place> {
        let (host, out) = (self.of(output), network.tensor(output));
        let (rows, _, width, channels) = image(&out.shape);
        let row = View { pixel_bytes: host.pixel_bytes, ..natural(network, output, self.word) }.row_bytes(self.word);
        let view = natural(network, operand.tensor, self.word);
        let elements = operand.start * out.shape[axis + 1..].iter().product::<usize>();
        let pixels = elements % (channels * width) / channels;
        let shift = pixels as u64 * u64::from(host.pixel_bytes);
        let apart = out.shape[..axis].iter().any(|&extent| extent != 1);
        let inside = pixels > 0 && rows > 1 || view.rows > 1 && view.width as usize != width;
        // What is loaded is not packed anew.
        let is_alike = operand.producer.is_some() || view.pixel_bytes == host.pixel_bytes;
        let fits = !apart && !inside && is_alike && shift.is_multiple_of(self.word as u64);
        let offset = host.offset + (elements / (channels * width)) as u64 * row + shift;
        fits.then_some(Place { offset, ..host })
    }

    /// Lets what step `index` only reshapes be produced where its result belongs in a concatenation.
    pub(super) fn reshaped(&mut self, network: &Network, inputs: &[TensorId], index: usize, machine: &Machine) {
        let step = &network.steps[index];
        let Op::Rearrange { input, dims, strides, offset: 0 } = &step.op else { return };
        let is_free = self.absorbed[input.index()].is_none() && self.of(*input).root == *input;
        if self.absorbed[step.output.index()].is_none() || !is_free || inputs.contains(input) {
            return;
        }
        let place = self.of(step.output);
        let (from, to) = (natural(network, *input, self.word), natural(network, step.output, self.word));
        // All its elements in their order: the first of more would run over those of the next operand.
        let is_whole = matches!(coalesced(dims, strides)[..], [(count, 1)]
            if count == network.tensor(*input).elements() as i64);
        let pixels = |view: &View| u64::from(view.rows) * u64::from(view.width);
        let dense = |view: &View| {
            view.rows == 1 || (u64::from(view.width) * u64::from(place.pixel_bytes)).is_multiple_of(self.word as u64)
        };
        let is_same = is_whole
            && (from.dtype, from.channels, pixels(&from)) == (to.dtype, to.channels, pixels(&to))
            && dense(&from)
            && dense(&to);
        // Where pixels leave nothing free, they may as well be other ones of the same bytes.
        let is_full = |view: &View, pixel_bytes: u32| {
            let row = u64::from(view.width) * u64::from(pixel_bytes);
            view.payload() == pixel_bytes as usize && row.is_multiple_of(self.word as u64)
        };
        let is_repacked = is_whole
            && from.dtype == to.dtype
            && is_full(&from, from.pixel_bytes)
            && is_full(&to, place.pixel_bytes)
            && place.channel_offset == 0;
        let place = if is_same { place } else { Place { pixel_bytes: from.pixel_bytes, ..place } };
        if !(is_same || is_repacked) || self.slows(network, *input, place) {
            return;
        }
        let producer = network.producer(*input);
        if producer.is_some_and(|p| writes_anywhere(&p.op) && !self.slows_pooling(network, p, place, machine)) {
            self.places[input.index()] = place;
            self.absorbed[input.index()] = Some(step.output);
            self.free[index] = true;
        }
    }
}

/// Whether a step moves elements for a concatenation and nothing else: another move would follow otherwise, on the same unit, which
/// may as well share words with those of other operands.
fn is_only_moved_to(network: &Network, step: &Step, output: TensorId) -> bool {
    matches!(step.op, Op::Rearrange { .. }) && network.readers(step.output).all(|reader| reader.output == output)
}
