//! Elements from the order of the user's array to the order in which they lie in words, and back: Tensor2Words, Words2Tensor.
//!
//! A stored tensor is rows of pixels of channels. Seen from the user's array, whose axes stand in another order, pixels and
//! channels are strided: the pixels of an image with planes of channels lie one after another in each plane. Runs of pixels
//! with one stride are moved by loops made for their shape; all else element by element.

use tpuflow_ir::layout;

/// How a stored tensor lies in words, or dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordLayout {
    /// Bytes from one pixel to the next.
    pub(crate) pixel_bytes: usize,
    /// Bytes from one row to the next.
    pub(crate) row_bytes: usize,
}

/// Where the elements of a stored tensor lie in the user's array.
#[derive(Clone, Debug)]
pub(crate) struct Arrangement {
    /// Pixels of a row.
    width: usize,
    /// Elements of a pixel.
    channels: usize,
    /// Rows.
    rows: usize,
    /// Axes of the user's array in stored order, as `(extent, stride in elements)`, outermost first; those that lie as one
    /// are one. Without the channels if `channel_stride` is known.
    axes: Vec<(usize, usize)>,
    /// Elements from one channel to the next, where channels are an axis of the user's array.
    channel_stride: Option<usize>,
}

impl Arrangement {
    /// `shape`: the user's; `permutation`: its axes in stored order; `stored`: the stored shape of the same elements.
    pub(crate) fn new(shape: &[usize], permutation: &[usize], stored: &[usize]) -> Self {
        let (rows, _, width, channels) = layout::image(stored);
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        let ordered = permutation.iter().map(|&axis| (shape[axis], strides[axis]));
        let mut axes: Vec<(usize, usize)> = ordered.filter(|&(extent, _)| extent != 1).collect();
        let mut channel_stride = None;
        if channels == 1 {
            channel_stride = Some(1);
        } else if let Some(&(extent, stride)) = axes.last() {
            if extent == channels {
                channel_stride = Some(stride);
                axes.pop();
            } else if merge_axes(axes.clone()).last().is_some_and(|&(all, stride)| stride == 1 && all % channels == 0) {
                // Whole runs of the array's last elements are pixels.
                axes = merge_axes(axes);
                let (all, _) = axes.pop().unwrap_or((channels, 1));
                axes.push((all / channels, channels));
                channel_stride = Some(1);
            }
        }
        Self { width, channels, rows, axes: merge_axes(axes), channel_stride }
    }

    /// Elements.
    pub(crate) fn elements(&self) -> usize {
        self.rows * self.width * self.channels
    }

    /// Calls `visit(first element, stride, first pixel of the row, row, number)` for runs of pixels with one stride.
    fn runs(&self, lay: WordLayout, mut visit: impl FnMut(usize, usize, usize, usize)) {
        let pixel = lay.pixel_bytes;
        let seamless = lay.row_bytes == self.width * pixel;
        let width = if seamless { self.rows * self.width } else { self.width };
        let (outer, (length, stride)) = match self.axes.split_last() {
            Some((&last, outer)) => (outer, last),
            None => (&[][..], (1, 1)),
        };
        let count = outer.iter().map(|&(extent, _)| extent).product::<usize>();
        for number in 0..count {
            let (mut rest, mut start) = (number, 0);
            for &(extent, stride) in outer.iter().rev() {
                start += rest % extent * stride;
                rest /= extent;
            }
            let mut done = 0;
            while done < length {
                let at = number * length + done;
                let (row, column) = (at / width, at % width);
                let run = (length - done).min(width - column);
                visit(start + done * stride, stride, row * lay.row_bytes + column * pixel, run);
                done += run;
            }
        }
    }

    /// Puts the elements of `user` into zeroed `words`; elements of `S` bytes.
    pub(crate) fn store<const S: usize>(&self, user: &[u8], words: &mut [u8], lay: WordLayout) {
        let user = user.as_chunks::<S>().0;
        let Some(channel_stride) = self.channel_stride else {
            self.for_each_element(lay, S, |from, to| words[to..to + S].copy_from_slice(&user[from]));
            return;
        };
        let (channels, pixel) = (self.channels, lay.pixel_bytes);
        self.runs(lay, |from, stride, to, count| {
            let words = &mut words[to..(to + count * pixel)];
            if channel_stride == 1 && stride == channels {
                dense_in(&user[from..from + count * channels], words, channels, pixel);
            } else if stride == 1 {
                let plane = |c: usize| &user[from + c * channel_stride..][..count];
                planes_in(plane, words, channels, pixel);
            } else {
                for (n, words) in words.chunks_exact_mut(pixel).enumerate() {
                    for (c, element) in words.as_chunks_mut::<S>().0[..channels].iter_mut().enumerate() {
                        *element = user[from + n * stride + c * channel_stride];
                    }
                }
            }
        });
    }

    /// Takes the elements of `user` out of `words`.
    pub(crate) fn load<const S: usize>(&self, words: &[u8], user: &mut [u8], lay: WordLayout) {
        let user = user.as_chunks_mut::<S>().0;
        let Some(channel_stride) = self.channel_stride else {
            self.for_each_element(lay, S, |to, from| user[to].copy_from_slice(&words[from..from + S]));
            return;
        };
        let (channels, pixel) = (self.channels, lay.pixel_bytes);
        self.runs(lay, |to, stride, from, count| {
            let words = &words[from..from + count * pixel];
            if channel_stride == 1 && stride == channels {
                dense_out(words, &mut user[to..to + count * channels], channels, pixel);
            } else if stride == 1 {
                planes_out(words, &mut user[to..], channel_stride, channels, pixel);
            } else {
                for (n, words) in words.chunks_exact(pixel).enumerate() {
                    for (c, element) in words.as_chunks::<S>().0[..channels].iter().enumerate() {
                        user[to + n * stride + c * channel_stride] = *element;
                    }
                }
            }
        });
    }

    /// Calls `visit(element of the user's array, byte in words)` for every element.
    fn for_each_element(&self, lay: WordLayout, size: usize, mut visit: impl FnMut(usize, usize)) {
        for element in 0..self.elements() {
            let (mut rest, mut from) = (element, 0);
            for &(extent, stride) in self.axes.iter().rev() {
                from += rest % extent * stride;
                rest /= extent;
            }
            let (pixel, channel) = (element / self.channels, element % self.channels);
            let to = pixel / self.width * lay.row_bytes + pixel % self.width * lay.pixel_bytes + channel * size;
            visit(from, to);
        }
    }
}

/// Neighbouring axes that lie as one, as one.
fn merge_axes(axes: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::with_capacity(axes.len());
    for (extent, stride) in axes {
        match found.last_mut() {
            Some(last) if last.1 == extent * stride => *last = (last.0 * extent, stride),
            _ => found.push((extent, stride)),
        }
    }
    found
}

/// Neighbouring pixels of neighbouring channels.
fn dense_in<const S: usize>(user: &[[u8; S]], words: &mut [u8], channels: usize, pixel: usize) {
    let user = user.as_flattened();
    let payload = channels * S;
    if payload == pixel {
        words.copy_from_slice(user);
    } else if (payload, pixel) == (3, 4) {
        // Four bytes are read for three; the last pixel has no fourth.
        let (last, words) =
            words.as_chunks_mut::<4>().0.split_last_mut().map_or((None, &mut [][..]), |(l, w)| (Some(l), w));
        for (word, three) in
            words.iter_mut().zip(user.chunks_exact(3).zip(user.windows(4).step_by(3)).map(|(_, four)| four))
        {
            *word = [three[0], three[1], three[2], 0];
        }
        if let Some(last) = last {
            last[..3].copy_from_slice(&user[user.len() - 3..]);
        }
    } else {
        for (word, payload) in words.chunks_exact_mut(pixel).zip(user.chunks_exact(payload)) {
            word[..payload.len()].copy_from_slice(payload);
        }
    }
}

fn dense_out<const S: usize>(words: &[u8], user: &mut [[u8; S]], channels: usize, pixel: usize) {
    let user = user.as_flattened_mut();
    let payload = channels * S;
    if payload == pixel {
        user.copy_from_slice(words);
    } else if (payload, pixel) == (3, 4) {
        for (three, word) in user.as_chunks_mut::<3>().0.iter_mut().zip(words.as_chunks::<4>().0) {
            *three = [word[0], word[1], word[2]];
        }
    } else {
        for (payload, word) in user.chunks_exact_mut(payload).zip(words.chunks_exact(pixel)) {
            payload.copy_from_slice(&word[..payload.len()]);
        }
    }
}

/// Pixels of a block that is gone through channel by channel, so that both sides stay in the first cache.
const BLOCK: usize = 256;

/// Neighbouring pixels in planes of channels.
fn planes_in<'a, const S: usize>(
    plane: impl Fn(usize) -> &'a [[u8; S]],
    words: &mut [u8],
    channels: usize,
    pixel: usize,
) {
    match (S, channels, pixel) {
        (_, 1, _) if pixel == S => words.copy_from_slice(plane(0).as_flattened()),
        // Pixels are put together as integers, which compilers turn into vector instructions.
        (1, 3, 4) => {
            let planes = plane(0).iter().zip(plane(1)).zip(plane(2));
            for (word, ((a, b), c)) in words.as_chunks_mut::<4>().0.iter_mut().zip(planes) {
                *word = (u32::from(a[0]) | u32::from(b[0]) << 8 | u32::from(c[0]) << 16).to_le_bytes();
            }
        }
        (1, 3, 3) => {
            let (planes, rest) = ([plane(0), plane(1), plane(2)], words.len() / 12 * 4);
            let [a, b, c] = planes.map(|plane| plane.as_chunks::<4>().0);
            for (twelve, ((a, b), c)) in words.as_chunks_mut::<12>().0.iter_mut().zip(a.iter().zip(b).zip(c)) {
                let [[a0], [a1], [a2], [a3]] = a.map(|x| [x[0]]);
                let [[b0], [b1], [b2], [b3]] = b.map(|x| [x[0]]);
                let [[c0], [c1], [c2], [c3]] = c.map(|x| [x[0]]);
                *twelve = [a0, b0, c0, a1, b1, c1, a2, b2, c2, a3, b3, c3];
            }
            for (n, pixel) in words.chunks_exact_mut(3).enumerate().skip(rest) {
                pixel.copy_from_slice(&planes.map(|plane| plane[n][0]));
            }
        }
        (1, 4, 4) => {
            let planes = plane(0).iter().zip(plane(1)).zip(plane(2).iter().zip(plane(3)));
            for (word, pair) in words.as_chunks_mut::<4>().0.iter_mut().zip(planes) {
                *word = four(pair);
            }
        }
        (1, _, _) if channels.is_multiple_of(8) => {
            let whole = words.len() / pixel / 8 * 8;
            for c in (0..channels).step_by(8) {
                let rows: [_; 8] = std::array::from_fn(|n| &plane(c + n).as_flattened()[..whole]);
                for (at, words) in (0..whole).step_by(8).zip(words.chunks_exact_mut(8 * pixel)) {
                    let square = transpose_8x8(std::array::from_fn(|n| eight(&rows[n][at..])));
                    for (pixel, column) in words.chunks_exact_mut(pixel).zip(square) {
                        pixel[c..c + 8].copy_from_slice(&column.to_le_bytes());
                    }
                }
                for (n, words) in words.chunks_exact_mut(pixel).enumerate().skip(whole) {
                    for (c, element) in (c..).zip(&mut words[c..c + 8]) {
                        *element = plane(c)[n][0];
                    }
                }
            }
        }
        _ => {
            for (block, words) in words.chunks_mut(BLOCK * pixel).enumerate() {
                for c in 0..channels {
                    let plane = &plane(c)[block * BLOCK..];
                    for (word, element) in words.chunks_exact_mut(pixel).zip(plane) {
                        word[c * S..c * S + S].copy_from_slice(element);
                    }
                }
            }
        }
    }
}

/// An element of one plane and the element of the next at the same pixel.
type Pair<'a, const S: usize> = (&'a [u8; S], &'a [u8; S]);

/// One element each of four planes.
#[inline(always)]
fn four<const S: usize>(((a, b), (c, d)): (Pair<'_, S>, Pair<'_, S>)) -> [u8; 4] {
    (u32::from(a[0]) | u32::from(b[0]) << 8 | u32::from(c[0]) << 16 | u32::from(d[0]) << 24).to_le_bytes()
}

/// Planes of channels, `stride` elements apart, of neighbouring pixels.
fn planes_out<const S: usize>(words: &[u8], user: &mut [[u8; S]], stride: usize, channels: usize, pixel: usize) {
    let count = words.len() / pixel;
    let mut done = 0;
    if S == 1 && channels.is_multiple_of(8) {
        done = count / 8 * 8;
        let user = user.as_flattened_mut();
        for c in (0..channels).step_by(8) {
            for (at, words) in (0..).step_by(8).zip(words.chunks_exact(8 * pixel)) {
                let square = transpose_8x8(std::array::from_fn(|n| eight(&words[n * pixel + c..])));
                for (n, row) in square.into_iter().enumerate() {
                    user[(c + n) * stride + at..][..8].copy_from_slice(&row.to_le_bytes());
                }
            }
        }
    }
    for (block, words) in words[done * pixel..].chunks(BLOCK * pixel).enumerate() {
        for c in 0..channels {
            let first = c * stride + done + block * BLOCK;
            plane_out(words, &mut user[first..first + words.len() / pixel], c * S, pixel);
        }
    }
}

/// The first eight bytes, the first in the lowest place.
#[inline(always)]
fn eight(bytes: &[u8]) -> u64 {
    bytes.first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// A square of bytes with rows and columns exchanged: by halves, quarters and single bytes.
///
/// Source: Warren, Hacker's Delight, 2nd edition, section 7-3, for bytes in place of bits.
#[inline(always)]
fn transpose_8x8(mut rows: [u64; 8]) -> [u64; 8] {
    for (distance, bits, low) in [(4, 32, 0xffff_ffff), (2, 16, 0x0000_ffff_0000_ffff), (1, 8, 0x00ff_00ff_00ff_00ff)] {
        for first in (0..8).filter(|n| n & distance == 0) {
            let (upper, lower) = (rows[first], rows[first + distance]);
            rows[first] = upper & low | (lower & low) << bits;
            rows[first + distance] = upper >> bits & low | lower & !low;
        }
    }
    rows
}

fn plane_out<const S: usize>(words: &[u8], plane: &mut [[u8; S]], offset: usize, pixel: usize) {
    match (S, pixel) {
        (1, 4) => {
            let shift = 8 * (offset % 4) as u32;
            for (element, word) in plane.iter_mut().zip(words.as_chunks::<4>().0) {
                element[0] = (u32::from_le_bytes(*word) >> shift) as u8;
            }
        }
        _ => {
            for (element, word) in plane.iter_mut().zip(words.chunks_exact(pixel)) {
                element.copy_from_slice(&word[offset..offset + S]);
            }
        }
    }
}
