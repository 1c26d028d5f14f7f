//! Depthwise convolution of int8 codes by int8 weights in 512-bit vectors.
//!
//! Up to four lines of the window's height are interleaved byte by byte, so that one dot product adds four taps of sixteen
//! channels:
//! ```text
//! line 0:  c0 c1 c2 ..                vector v of 64 channels, word 4 l + i: the four taps of channel 16 l + 4 v + i
//! line 1:  c0 c1 c2 ..      ->        (all below 4), which is how interleaving vectors of bytes leaves them
//! line 2:  c0 c1 c2 ..
//! ```
//! A line of output interleaves every cell of its input lines once; neighbouring windows share them. Lines of the window are
//! taken in groups of four, weights of the missing ones are zero.
#![allow(unsafe_code, reason = "vector loads, stores, and calls that a token has proved possible")]

use std::arch::x86_64::*;

use crate::Element;
use crate::conv::Geometry;
use crate::epilogue::{Columns, Epilogue, Order};
use crate::gemm::panels::Line;
use crate::gemm::tiles::{Sums, WIDTH};
use crate::isa::Avx512Vnni;
use crate::scratch::{Scratch, buffer};

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
    /// Block of channels after block; in it column of the window, group of its lines, vector.
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
        let mut lines = vec![Line::default(); channels.div_ceil(WIDTH) * kw * groups * VECTORS];
        let mut offsets = Vec::with_capacity(channels);
        for (channel, (filter, bias)) in weights.chunks_exact(kh * kw).zip(bias).enumerate() {
            let (block, inner) = (channel / WIDTH, channel % WIDTH);
            let (vector, word) = (inner / 4 % 4, inner / 16 * 4 + inner % 4);
            for (tap, weight) in filter.iter().enumerate() {
                let (i, j) = (tap / kw, tap % kw);
                let line = ((block * kw + j) * groups + i / 4) * VECTORS + vector;
                lines[line].0[word * 4 + i % 4] = weight.cast_unsigned();
            }
            // Codes are multiplied as themselves plus 128.
            let sum: i64 = filter.iter().map(|&w| i64::from(w)).sum();
            offsets.push((bias - (i64::from(zero_x) + 128) * sum) as i32);
        }
        let columns = epilogue.columns_of(&offsets, Order::Interleaved);
        Self { _isa: isa, channels, kernel, lines, columns, zero_x }
    }

    /// Codes of one line of output pixels, `[ow, c]`. `line` counts over the batch.
    pub(super) fn line<Y: Element>(
        &self,
        geometry: &Geometry,
        epilogue: &Epilogue,
        x: &[i8],
        line: usize,
        y: &mut [Y],
        scratch: &mut Scratch,
    ) {
        let [n, h, w, c] = geometry.input;
        assert!(x.len() == n * h * w * c && c == self.channels, "x is the whole batch");
        let window = &geometry.window;
        let [kh, kw] = self.kernel;
        let groups = kh.div_ceil(4);
        let [left, right] = [window.pads[1] as usize, window.pads[3] as usize];
        let (image, top) = {
            let (image, [top, _]) = geometry.origin(line * geometry.output[1]);
            (&x[image * h * w * c..][..h * w * c], top)
        };
        let lines = buffer(&mut scratch.lines, (left + w + right) * groups * VECTORS);
        let sums = buffer(&mut scratch.sums, PIXELS * WIDTH);
        for block in 0..c.div_ceil(WIDTH) {
            let channels = block * WIDTH..c.min((block + 1) * WIDTH);
            for group in 0..groups {
                let sources: [Option<&[i8]>; 4] = std::array::from_fn(|t| {
                    let i = group * 4 + t;
                    let at = top + (i * window.dilation[0] as usize) as isize;
                    let at = usize::try_from(at).ok().filter(|&at| i < kh && at < h)?;
                    Some(&image[at * w * c..][..w * c])
                });
                // SAFETY: the token proves the features.
                unsafe {
                    interleave(
                        sources,
                        c,
                        channels.clone(),
                        left,
                        w,
                        self.zero_x,
                        &mut lines[group * VECTORS..],
                        groups,
                    )
                };
            }
            let filters = &self.lines[block * kw * groups * VECTORS..][..kw * groups * VECTORS];
            let (stride, dilation) = (window.stride[1] as usize, window.dilation[1] as usize);
            let mut pixel = 0;
            while pixel < geometry.output[1] {
                let pixels = (geometry.output[1] - pixel).min(PIXELS);
                let step = groups * VECTORS;
                let start = &lines[pixel * stride * step..];
                // SAFETY: the token proves the features.
                unsafe {
                    if pixels == PIXELS {
                        add::<PIXELS>(start, filters, [kw, step], [stride, dilation], sums);
                    } else {
                        for one in 0..pixels {
                            add::<1>(
                                &start[one * stride * step..],
                                filters,
                                [kw, step],
                                [stride, dilation],
                                &mut sums[one * WIDTH..],
                            );
                        }
                    }
                }
                let rows = pixel..pixel + pixels;
                let tile = Sums { rows, columns: channels.clone(), sums: &mut sums[..pixels * WIDTH] };
                epilogue.tile(&tile, &self.columns, |row| Some(row * c), y);
                pixel += pixels;
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
    channels: std::ops::Range<usize>,
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

/// Sums of `P` neighbouring pixels and 64 channels. `lines`: interleaved from the first pixel's window on; `kw` columns of it,
/// each `step` lines.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add<const P: usize>(
    lines: &[Line],
    filters: &[Line],
    [kw, step]: [usize; 2],
    [stride, dilation]: [usize; 2],
    sums: &mut [i32],
) {
    let mut registers = [[_mm512_setzero_si512(); VECTORS]; P];
    for j in 0..kw {
        let filters = &filters[j * step..][..step];
        // The cells of the last pixel end here; those of the others lie before them.
        let cells = &lines[j * dilation * step..][..((P - 1) * stride + 1) * step];
        for (group, filters) in filters.as_chunks::<VECTORS>().0.iter().enumerate() {
            for v in 0..VECTORS {
                // SAFETY: lines are 64 readable bytes, aligned to 64.
                let weights = unsafe { _mm512_load_si512(filters[v].0.as_ptr().cast()) };
                for p in 0..P {
                    let cell = &cells[p * stride * step + group * VECTORS + v];
                    // SAFETY: as above.
                    let codes = unsafe { _mm512_load_si512(cell.0.as_ptr().cast()) };
                    registers[p][v] = _mm512_dpbusd_epi32(registers[p][v], codes, weights);
                }
            }
        }
    }
    for (sums, registers) in sums.as_chunks_mut::<WIDTH>().0.iter_mut().zip(&registers) {
        for (sums, register) in sums.as_chunks_mut::<16>().0.iter_mut().zip(registers) {
            // SAFETY: sixteen writable sums.
            unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), *register) };
        }
    }
}
