//! Depthwise convolution of int8 codes by int8 weights in 512-bit vectors.
//!
//! Up to four lines of the window's height are interleaved byte by byte, so that one dot product adds four taps of sixteen
//! channels:
//! ```text
//! line 0:  c0 c1 c2 ..                vector v of 64 channels, word 4 l + i: the four taps of channel 16 l + 4 v + i
//! line 1:  c0 c1 c2 ..      ->        (all below 4), which is how interleaving vectors of bytes leaves them
//! line 2:  c0 c1 c2 ..
//! ```
//! Every cell of the input lines is interleaved once for a line of output; neighbouring windows share them. Lines of the window
//! are taken in groups of four, weights of the missing ones are zero. Where one is missing, two lines of output share all, the
//! second with weights one line further down:
//! ```text
//! lines      0 1 2 3
//! output 0   a b c 0       a, b, c: weights of a window three lines high
//! output 1   0 a b c
//! ```
//! Sums begin at the offsets of their channels and become codes without leaving the registers.
#![allow(unsafe_code, reason = "vector loads, stores, and calls that a token has proved possible")]

use std::arch::x86_64::*;
use std::ops::Range;

use crate::Element;
use crate::buffers::buffer;
use crate::conv::Geometry;
use crate::epilogue::codes512::{BOUNDED, DIRECT, DIRECT_BOUNDED, DIRECT_TABLED, Finish, Kind, PLAIN, TABLED};
use crate::epilogue::steps512::Steps;
use crate::epilogue::x86_64::column_terms;
use crate::epilogue::{Columns, Epilogue, Order};
use crate::gemm::panels::Line;
use crate::gemm::tiles::{Sums, WIDTH};
use crate::isa::{Avx512Vbmi, Avx512Vnni};
use crate::linear::largest_difference;
use crate::scratch::Scratch;

/// Vectors of a block of channels.
const VECTORS: usize = 4;
/// Pixels computed together.
const PIXELS: usize = 4;

/// Filters of all channels.
#[derive(Clone, Debug)]
pub(super) struct Filters {
    /// Proof that the vectors are there.
    _isa: Avx512Vnni,
    channels: usize,
    kernel: [usize; 2],
    /// How many lines of output may share interleaved ones.
    shifts: usize,
    /// Block of channels after block; in it the lines further down, column of the window, group of its lines, vector.
    lines: Vec<Line>,
    columns: Columns,
    zero_x: i8,
}

impl Filters {
    /// Packs weights `[c, kh, kw]` with zero point 0 of inputs with zero point `zero_x`.
    pub(super) fn new(
        isa: Avx512Vnni,
        weights: &[i8],
        kernel: [usize; 2],
        zero_x: i8,
        bias: &[i64],
        epilogue: &Epilogue,
    ) -> Self {
        let (channels, [kh, kw]) = (bias.len(), kernel);
        let groups = kh.div_ceil(4);
        let shifts = if kh.is_multiple_of(4) { 1 } else { 2 };
        let mut lines = vec![Line::default(); channels.div_ceil(WIDTH) * shifts * kw * groups * VECTORS];
        let mut offsets = Vec::with_capacity(channels);
        for (channel, (filter, bias)) in weights.chunks_exact(kh * kw).zip(bias).enumerate() {
            let (block, inner) = (channel / WIDTH, channel % WIDTH);
            let (vector, word) = (inner / 4 % 4, inner / 16 * 4 + inner % 4);
            for (tap, weight) in filter.iter().enumerate() {
                for shift in 0..shifts {
                    let (i, j) = (tap / kw + shift, tap % kw);
                    let line = (((block * shifts + shift) * kw + j) * groups + i / 4) * VECTORS + vector;
                    lines[line].0[word * 4 + i % 4] = weight.cast_unsigned();
                }
            }
            // Codes are multiplied as themselves plus 128.
            let sum: i64 = filter.iter().map(|&w| i64::from(w)).sum();
            offsets.push((bias - (i64::from(zero_x) + 128) * sum) as i32);
        }
        let largest = |channel: usize| {
            let filter = &weights[channel * kh * kw..][..kh * kw];
            let sum: u64 = filter.iter().map(|&w| u64::from(w.unsigned_abs())).sum();
            sum * largest_difference(zero_x.into()) + bias[channel].unsigned_abs()
        };
        let columns = epilogue.columns_of(&offsets, Order::Interleaved, largest);
        Self { _isa: isa, channels, kernel, shifts, lines, columns, zero_x }
    }

    /// Lines of output that are computed from the same interleaved ones.
    pub(super) fn shared(&self, geometry: &Geometry) -> usize {
        if geometry.window.stride[0] == 1 && geometry.window.dilation[0] == 1 { self.shifts } else { 1 }
    }

    /// Codes of some lines of output pixels of an image, `[lines, ow, c]`, from line `first` on: at most as many as
    /// [`Self::shared`] says.
    pub(super) fn lines<Y: Element>(
        &self,
        geometry: &Geometry,
        epilogue: &Epilogue,
        image: &[i8],
        first: usize,
        y: &mut [Y],
        scratch: &mut Scratch,
    ) {
        let [_, h, w, c] = geometry.input;
        assert!(image.len() == h * w * c && c == self.channels, "x is an image");
        let window = &geometry.window;
        let length = geometry.output[1] * c;
        assert!(y.len() <= self.shared(geometry) * length, "as many lines as share theirs");
        let [kh, kw] = self.kernel;
        let groups = kh.div_ceil(4);
        let [left, right] = [window.pads[1] as usize, window.pads[3] as usize];
        let top = (first * window.stride[0] as usize) as isize - window.pads[0] as isize;
        let taken = kh + y.len().div_ceil(length.max(1)) - 1;
        let lines = buffer(&mut scratch.lines, (left + w + right) * groups * VECTORS);
        for block in 0..c.div_ceil(WIDTH) {
            let channels = block * WIDTH..c.min((block + 1) * WIDTH);
            for group in 0..groups {
                let sources: [Option<&[i8]>; 4] = std::array::from_fn(|t| {
                    let i = group * 4 + t;
                    let at = top + (i * window.dilation[0] as usize) as isize;
                    let at = usize::try_from(at).ok().filter(|&at| i < taken && at < h)?;
                    Some(&image[at * w * c..][..w * c])
                });
                let lines = &mut lines[group * VECTORS..];
                // SAFETY: the token proves the features.
                unsafe { interleave(sources, c, channels.clone(), left, w, self.zero_x, lines, groups) };
            }
            for (shift, y) in y.chunks_mut(length.max(1)).enumerate() {
                let length = kw * groups * VECTORS;
                let part = Part {
                    lines,
                    filters: &self.lines[(block * self.shifts + shift) * length..][..length],
                    columns: [kw, groups * VECTORS],
                    steps: [window.stride[1] as usize, window.dilation[1] as usize],
                    channels: channels.clone(),
                };
                // SAFETY: the token proves the features.
                unsafe { part.finish_line(epilogue, &self.columns, c, y) };
            }
        }
    }
}

/// A line of output in some channels.
struct Part<'a> {
    /// Interleaved from the first pixel's window on.
    lines: &'a [Line],
    filters: &'a [Line],
    /// Columns of the window, and lines of each.
    columns: [usize; 2],
    /// Stride and dilation.
    steps: [usize; 2],
    channels: Range<usize>,
}

impl Part<'_> {
    /// Codes of the channels of every pixel of the line `y`, pixels `c` apart.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn finish_line<Y: Element>(&self, epilogue: &Epilogue, columns: &Columns, c: usize, y: &mut [Y]) {
        if let Some(finish) = epilogue.finish(columns)
            && let Some(y) = Y::as_bytes_mut(y)
        {
            return match finish.kind() {
                Kind::Direct => self.codes::<DIRECT>(finish, columns, c, y),
                Kind::DirectBounded => self.codes::<DIRECT_BOUNDED>(finish, columns, c, y),
                Kind::Plain => self.codes::<PLAIN>(finish, columns, c, y),
                Kind::Bounded => self.codes::<BOUNDED>(finish, columns, c, y),
                Kind::DirectTable => self.codes::<DIRECT_TABLED>(finish, columns, c, y),
                Kind::Table => self.codes::<TABLED>(finish, columns, c, y),
                // SAFETY: the steps have a token that proves the features.
                Kind::Steps(steps) => unsafe { self.codes_by_table(steps.isa(), steps, finish, columns, c, y) },
            };
        }
        self.each(y.len() / c, &[_mm512_setzero_si512(); VECTORS], |pixel, registers| {
            let mut sums = [0; WIDTH];
            for (sums, register) in sums.as_chunks_mut::<16>().0.iter_mut().zip(registers) {
                // SAFETY: sixteen writable sums.
                unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), *register) };
            }
            let tile = Sums { rows: pixel..pixel + 1, columns: self.channels.clone(), sums: &mut sums };
            epilogue.tile(&tile, columns, |row| Some(row * c), y);
        });
    }

    /// As [`Self::finish_line`], out of the registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn codes<const KIND: u8>(&self, finish: Finish<'_>, columns: &Columns, c: usize, y: &mut [i8]) {
        let maker = finish.code_maker::<false, KIND>();
        self.make_codes(columns, c, y, |sums, factors| maker.codes(sums, factors));
    }

    /// As [`Self::codes`], through a table in registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn codes_by_table(
        &self,
        _: Avx512Vbmi,
        steps: &Steps,
        finish: Finish<'_>,
        columns: &Columns,
        c: usize,
        y: &mut [i8],
    ) {
        let stepper = steps.code_maker::<false>(finish.requant());
        self.make_codes(columns, c, y, |sums, factors| stepper.codes(sums, factors));
    }

    /// Codes that `make` makes of the sums and the factors of every pixel.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn make_codes(
        &self,
        columns: &Columns,
        c: usize,
        y: &mut [i8],
        make: impl Fn(&[__m512i; VECTORS], &[__m512; VECTORS]) -> __m512i,
    ) {
        let (offsets, factors) = column_terms(columns, self.channels.start);
        let mask = u64::MAX >> (WIDTH - self.channels.len());
        self.each(y.len() / c, &offsets, |pixel, sums| {
            let y = &mut y[pixel * c..][self.channels.clone()];
            // SAFETY: the mask keeps the store within the channels.
            unsafe { _mm512_mask_storeu_epi8(y.as_mut_ptr(), mask, make(sums, &factors)) };
        });
    }

    /// `take(pixel, sums)` for so many pixels, some of them twice; sums begin at `start`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn each(&self, pixels: usize, start: &[__m512i; VECTORS], take: impl FnMut(usize, &[__m512i; VECTORS])) {
        if pixels < PIXELS { self.by::<1>(pixels, start, take) } else { self.by::<PIXELS>(pixels, start, take) }
    }

    /// [`Self::each`], `P` neighbouring pixels at a time, the last ones maybe again. Sums and what becomes of them stand in one
    /// function, so that they stay in registers.
    #[inline]
    #[expect(clippy::needless_range_loop, reason = "loops over registers, unrolled")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn by<const P: usize>(
        &self,
        pixels: usize,
        start: &[__m512i; VECTORS],
        mut take: impl FnMut(usize, &[__m512i; VECTORS]),
    ) {
        let ([kw, step], [stride, dilation]) = (self.columns, self.steps);
        // The last column of the last pixel's window ends here.
        let end = if pixels == 0 { 0 } else { ((pixels - 1) * stride + (kw - 1) * dilation + 1) * step };
        assert!(end <= self.lines.len() && self.filters.len() == kw * step && step.is_multiple_of(VECTORS));
        for pixel in (0..pixels).step_by(P) {
            let pixel = pixel.min(pixels - P);
            let first = pixel * stride * step;
            let mut sums = [*start; P];
            for j in 0..kw {
                for group in (0..step).step_by(VECTORS) {
                    for v in 0..VECTORS {
                        // SAFETY: column `j` of the filters, which are lines of 64 readable bytes, aligned to 64.
                        let weights =
                            unsafe { _mm512_load_si512(self.filters.as_ptr().add(j * step + group + v).cast()) };
                        for p in 0..P {
                            let cell = first + (p * stride + j * dilation) * step + group + v;
                            // SAFETY: before the end of the lines, which are as those of the filters.
                            let codes = unsafe { _mm512_load_si512(self.lines.as_ptr().add(cell).cast()) };
                            sums[p][v] = _mm512_dpbusd_epi32(sums[p][v], codes, weights);
                        }
                    }
                }
            }
            for p in 0..P {
                take(pixel + p, &sums[p]);
            }
        }
    }
}

/// Interleaves `channels` of all cells of four lines, plus 128; a missing line and the cells before and after a line hold
/// `zero`. `lines`: four vectors per cell, `step` times four apart.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[expect(clippy::too_many_arguments, reason = "one copying loop")]
fn interleave(
    sources: [Option<&[i8]>; 4],
    c: usize,
    channels: Range<usize>,
    left: usize,
    w: usize,
    zero: i8,
    lines: &mut [Line],
    step: usize,
) {
    let flip = _mm512_set1_epi8(i8::MIN);
    let zero = _mm512_xor_si512(_mm512_set1_epi8(zero), flip);
    let mask = u64::MAX >> (WIDTH - channels.len());
    for (cell, lines) in lines.chunks_mut(step * VECTORS).enumerate() {
        let column = cell.wrapping_sub(left);
        let mut taps = [zero; 4];
        if column < w {
            for (tap, source) in taps.iter_mut().zip(&sources) {
                if let Some(source) = source {
                    let codes = &source[column * c..][channels.clone()];
                    // SAFETY: the mask keeps the load within the channels.
                    *tap = _mm512_xor_si512(unsafe { _mm512_maskz_loadu_epi8(mask, codes.as_ptr()) }, flip);
                }
            }
        }
        let upper = [_mm512_unpacklo_epi8(taps[0], taps[1]), _mm512_unpackhi_epi8(taps[0], taps[1])];
        let lower = [_mm512_unpacklo_epi8(taps[2], taps[3]), _mm512_unpackhi_epi8(taps[2], taps[3])];
        for (v, line) in lines[..VECTORS].iter_mut().enumerate() {
            let (upper, lower) = (upper[v / 2], lower[v / 2]);
            let words =
                if v % 2 == 0 { _mm512_unpacklo_epi16(upper, lower) } else { _mm512_unpackhi_epi16(upper, lower) };
            // SAFETY: a line is 64 writable bytes, aligned to 64.
            unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), words) };
        }
    }
}
