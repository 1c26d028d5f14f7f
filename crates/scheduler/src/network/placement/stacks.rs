//! Stacks of matrices, such as the heads of attention, that lie side by side in the pixels of a joint tensor.
//!
//! Queries of several heads that share their keys are one matrix, a stretch of rows for each head. Its stretches lie side by side like
//! matrices of their own, where each fills tiles of the array: then the array takes no longer to multiply them one by one.
//!
//! ```text
//!  tokens x (heads x depth)      | q0 q1 q2 q3 | a row for each token     heads 0 and 1 share keys, as do 2 and 3:
//!                                                                         stack of two matrices of 2 x tokens rows
//! ```

use tpuflow_ir::layout::image;
use tpuflow_ir::{Op, Space, TensorId, View};

use super::{Place, Placement, coalesced, natural};
use crate::network::{Linear, Network};

/// Matrices side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatricesSideBySide {
    /// Ranges of channels in a row: stretches of all its matrices.
    pub count: u32,
    /// Stretches of rows of each matrix.
    pub stretches: u32,
    /// Bytes from one range of channels to the next.
    pub step: u32,
}

impl Placement {
    /// Stretches of rows into which the matrices of a stack are divided.
    pub fn stretches(&self, tensor: TensorId) -> u32 {
        self.of(tensor).beside.map_or(1, |beside| beside.stretches)
    }

    /// Stretch `part` of `parts` of matrix `index` of a stack, which is a row of its image, as a view of storage at `address`;
    /// `parts` is a multiple of [`Self::stretches`].
    pub fn matrix(
        &self,
        network: &Network,
        tensor: TensorId,
        index: u32,
        [part, parts]: [u32; 2],
        (space, address): (Space, u64),
    ) -> View {
        let (place, own) = (self.of(tensor), natural(network, tensor, self.word));
        let (width, stretches) = (own.width / parts, self.stretches(tensor));
        let inside = parts / stretches;
        let range = index * stretches + part / inside;
        let (row, shift) = match place.beside {
            Some(MatricesSideBySide { count, step, .. }) => (range / count, range % count * step),
            None => (index, 0),
        };
        let line = View { pixel_bytes: place.pixel_bytes, width: own.width / stretches, ..own }.row_bytes(self.word);
        let before = u64::from(part % inside * width) * u64::from(place.pixel_bytes);
        View {
            space,
            address: address + place.offset + u64::from(row) * line + before,
            rows: 1,
            height: 1,
            width,
            stored_rows: 1,
            pixel_bytes: place.pixel_bytes,
            channel_offset: place.channel_offset + shift,
            origin: [index * own.width + part * width, 0],
            ..own
        }
    }

    /// Leaves the matrices of a stack side by side where step `index` would copy them apart, from pixels of its operand, or
    /// together, into pixels of its result.
    pub(super) fn stack(&mut self, network: &Network, outputs: &[TensorId], index: usize) {
        let step = &network.steps[index];
        let Op::Rearrange { input, dims, strides, offset } = &step.op else { return };
        let loops = coalesced(dims, strides);
        let apart = self.apart(network, *input, step.output, &loops, *offset).map(|place| (step.output, place));
        let found = apart.or_else(|| {
            let together = *offset == 0 && self.of(*input).root == *input && network.producer(*input).is_some();
            let place = self.together(network, *input, step.output, &loops).filter(|_| together)?;
            Some((*input, place))
        });
        if let Some((stack, place)) = found
            && self.absorbed[stack.index()].is_none()
            && !outputs.contains(&stack)
            && is_for_products(network, stack, step.output)
        {
            self.places[stack.index()] = place;
            self.free[index] = true;
        }
    }

    /// Lets stacks that are joined to one, and then brought together by step `index`, be made in the pixels of its result.
    pub(super) fn joined_stacks(&mut self, network: &Network, outputs: &[TensorId], index: usize) {
        let step = &network.steps[index];
        let Op::Rearrange { input: joined, dims, strides, offset: 0 } = &step.op else { return };
        let Some(Op::Concat { inputs, axis, requants }) = network.producer(*joined).map(|producer| &producer.op) else {
            return;
        };
        let shape = &network.tensor(*joined).shape;
        let by_matrix = shape.len().checked_sub(3) == Some(*axis as usize)
            && shape[..*axis as usize].iter().product::<usize>() == 1
            && requants.iter().all(Option::is_none);
        let is_free = |tensor: &TensorId| {
            self.absorbed[tensor.index()].is_none() && self.of(*tensor).root == *tensor && !outputs.contains(tensor)
        };
        let is_made = |tensor: &TensorId| {
            network.producer(*tensor).is_some()
                && network.tensor(*tensor).dtype == network.tensor(*joined).dtype
                && inputs.iter().filter(|other| *other == tensor).count() == 1
                && is_free(tensor)
                && is_for_products(network, *tensor, *joined)
        };
        if !by_matrix || !is_free(joined) || network.readers(*joined).count() != 1 || !inputs.iter().all(is_made) {
            return;
        }
        let Some(place) = self.together(network, *joined, step.output, &coalesced(dims, strides)) else { return };
        let Some(beside) = place.beside else { return };
        let mut before = 0;
        for stack in inputs {
            let count = image(&network.tensor(*stack).shape).0 as u32 * beside.stretches;
            let channel_offset = place.channel_offset + before * beside.step;
            let beside = MatricesSideBySide { count, ..beside };
            self.places[stack.index()] = Place { channel_offset, beside: Some(beside), ..place };
            self.absorbed[stack.index()] = Some(*joined);
            before += count;
        }
        self.places[joined.index()] = place;
        self.free[index] = true;
    }

    /// The place of `stack` in the pixels of `wide`, from which these loops take it.
    fn apart(
        &self,
        network: &Network,
        wide: TensorId,
        stack: TensorId,
        loops: &[(i64, i64)],
        offset: i64,
    ) -> Option<Place> {
        let (from, to) = (natural(network, wide, self.word), natural(network, stack, self.word));
        if from.dtype != to.dtype || offset < 0 {
            return None;
        }
        let image = i64::from(from.width) * i64::from(from.channels);
        // Channels of the pixels that hold a row of each matrix, and how many images there are of these.
        let own = (i64::from(from.channels), from.rows);
        let pixels =
            std::iter::once(own).chain(loops.iter().map(|&(_, stride)| (stride, 1))).filter(|pixel| pixel.0 > 0);
        let ways = pixels.flat_map(|pixel| loops.iter().map(move |&range| (pixel, range)));
        ways.into_iter().find_map(|((pixel, images), (extent, step))| {
            let matrices = i64::from(to.rows.checked_div(images)?);
            let many = extent.checked_div(matrices)?.max(1);
            [1, many].into_iter().find_map(|stretches| {
                let (count, tokens) = (matrices * stretches, i64::from(to.width) / stretches);
                let all = [(images, image), (count as u32, step), (tokens as u32, pixel), (to.channels, 1)];
                let (dims, strides): (Vec<u32>, Vec<i64>) = all.into_iter().unzip();
                let (at, channel) = (offset / pixel, offset % pixel);
                let all_tokens = i64::from(from.rows / images) * image / pixel;
                let inside = channel + (count - 1) * step + i64::from(to.channels) <= pixel
                    && if images > 1 { at == 0 && tokens == all_tokens } else { at + tokens <= all_tokens };
                let is_stack = count > 1 && (1..pixel).contains(&step) && self.may_divide(&to, stretches as u32);
                if !inside
                    || !is_stack
                    || i64::from(images) * matrices != i64::from(to.rows)
                    || coalesced(&dims, &strides) != loops
                {
                    return None;
                }
                let size = from.dtype.bytes() as i64;
                let host = self.in_pixels(wide, &from, images, (pixel * size) as u32)?;
                let shift = at as u64 * u64::from(host.pixel_bytes);
                let beside =
                    MatricesSideBySide { count: count as u32, stretches: stretches as u32, step: (step * size) as u32 };
                let place = self.beside(host, beside, (channel * size) as u32, &to)?;
                shift.is_multiple_of(self.word as u64).then_some(Place { offset: place.offset + shift, ..place })
            })
        })
    }

    /// The place of `stack` in the pixels of `wide`, which these loops take out of it.
    fn together(&self, network: &Network, stack: TensorId, wide: TensorId, loops: &[(i64, i64)]) -> Option<Place> {
        let (from, to) = (natural(network, stack, self.word), natural(network, wide, self.word));
        let (matrices, stretches) = (from.rows.checked_div(to.rows)?, from.width.checked_div(to.width)?);
        let (count, depth) = (matrices * stretches, i64::from(from.channels));
        let alike = from.dtype == to.dtype && to.rows * matrices == from.rows && to.width * stretches == from.width;
        let range = i64::from(to.width) * depth;
        let all = [(to.rows, i64::from(count) * range), (to.width, depth), (count, range), (from.channels, 1)];
        let (dims, strides): (Vec<u32>, Vec<i64>) = all.into_iter().unzip();
        if !alike || count < 2 || !self.may_divide(&from, stretches) || coalesced(&dims, &strides) != loops {
            return None;
        }
        self.beside(self.of(wide), MatricesSideBySide { count, stretches, step: from.payload() as u32 }, 0, &from)
    }

    /// Whether the rows of matrices may be multiplied in so many stretches without taking the array longer, and each begins on a word.
    fn may_divide(&self, stack: &View, stretches: u32) -> bool {
        let rows = (stack.width / stretches.max(1)) as usize;
        let fills = rows.is_multiple_of(self.array_rows) && rows.is_multiple_of(self.word);
        stretches == 1 || (stack.width.is_multiple_of(stretches) && fills)
    }

    /// Where a tensor lies, seen as so many images of one row whose pixels have so many bytes: its own pixels where nothing lies
    /// between rows that are joined, or others where its own leave nothing free either.
    fn in_pixels(&self, tensor: TensorId, own: &View, images: u32, pixel_bytes: u32) -> Option<Place> {
        let host = self.of(tensor);
        let row = u64::from(own.width) * u64::from(host.pixel_bytes);
        let is_dense = own.rows == images || row.is_multiple_of(self.word as u64);
        if own.payload() == pixel_bytes as usize {
            return is_dense.then_some(host);
        }
        let is_full = own.payload() == own.pixel_bytes as usize && host.pixel_bytes == own.pixel_bytes;
        let total = row * u64::from(own.rows);
        let fits = pixel_bytes.is_multiple_of(self.word as u32) && total.is_multiple_of(u64::from(pixel_bytes));
        (is_dense && is_full && fits).then_some(Place { pixel_bytes, ..host })
    }

    /// Ranges of channels like those of `matrix` in the pixels at `host` from byte `first` on, if each begins on a word or stays
    /// inside one.
    fn beside(&self, host: Place, beside: MatricesSideBySide, first: u32, matrix: &View) -> Option<Place> {
        let channel_offset = host.channel_offset + first;
        let starts = (0..beside.count).map(|index| channel_offset + index * beside.step);
        let fits = starts.into_iter().all(|start| self.fits_channels(start as usize, matrix.payload()));
        (fits && host.beside.is_none()).then_some(Place { channel_offset, beside: Some(beside), ..host })
    }
}

/// Whether every step that touches a stack, but the one that makes `but`, multiplies stacks of matrices, both of them computed.
fn is_for_products(network: &Network, stack: TensorId, but: TensorId) -> bool {
    let rows = image(&network.tensor(stack).shape).0;
    let touching = network.producer(stack).into_iter().chain(network.readers(stack));
    touching.filter(|step| step.output != but).all(|step| {
        let Op::MatMul { a, b, .. } = &step.op else { return false };
        let computed = !network.is_constant(*a) && !network.is_constant(*b);
        let is_stack = network.tensor(*b).shape.len() > 2;
        let leads = Linear::of(&step.op, network).map_or(1, |linear| linear.leads as usize);
        computed && is_stack && leads == rows
    })
}
