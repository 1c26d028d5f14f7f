//! Depthwise convolution: one filter per channel, channels side by side in vectors.
//!
//! Only taps inside the image are added, so padding needs no cells. Sums are 32 bits where both operands are int8 and 64
//! bits otherwise, the same integers as those of [`crate::conv`].
//!
//! Source: docs/arithmetic.md, section 6.

use crate::conv::Geometry;
use crate::epilogue::{Epilogue, Offsets};
use crate::isa::Lanes;
#[cfg(target_arch = "x86_64")]
use crate::scratch;
use crate::{Element, Isa, parallel};

/// A prepared depthwise operand of `c` channels.
#[derive(Clone, Debug)]
pub struct Depthwise {
    /// `w - Zw`, `[taps, c]`.
    weights: Vec<i32>,
    zero_x: i32,
    wide: bool,
    bias: Vec<i64>,
    epilogue: Epilogue,
    #[cfg(target_arch = "x86_64")]
    interleaved: Option<interleaved::Filters>,
}

/// The operands of a row of output pixels.
struct Row<'a, X> {
    geometry: &'a Geometry,
    x: &'a [X],
    weights: &'a [i32],
    zero_x: i32,
}

impl Depthwise {
    /// Prepares weights `[c, kh, kw]` of inputs with zero point `zero_x`; `wide` when either operand is int16.
    ///
    /// # Panics
    /// When there are not as many weights and one bias per channel.
    #[must_use]
    pub fn new<W: Element>(
        weights: &[W],
        kernel: [u32; 2],
        zero_w: i32,
        wide: bool,
        zero_x: i32,
        bias: Vec<i64>,
        epilogue: Epilogue,
    ) -> Self {
        let [kh, kw] = kernel.map(|k| k as usize);
        let (c, taps) = (bias.len(), kh * kw);
        assert_eq!(weights.len(), c * taps, "as many taps for every channel");
        #[cfg(target_arch = "x86_64")]
        let interleaved = match (epilogue.isa().lanes(), W::as_bytes(weights)) {
            (Lanes::Avx512(isa), Some(weights)) if !wide && zero_w == 0 => {
                Some(interleaved::Filters::new(isa, weights, [kh, kw], zero_x as i8, &bias, &epilogue))
            }
            _ => None,
        };
        let weights =
            (0..taps).flat_map(|tap| (0..c).map(move |j| j * taps + tap)).map(|at| weights[at].widen() - zero_w);
        Self {
            weights: weights.collect(),
            zero_x,
            wide,
            bias,
            epilogue,
            #[cfg(target_arch = "x86_64")]
            interleaved,
        }
    }

    /// The convolution of the whole batch. `y`: `[n,oh,ow,c]`.
    ///
    /// # Panics
    /// When the slices do not have these sizes.
    pub fn run<X: Element, Y: Element>(&self, geometry: &Geometry, x: &[X], y: &mut [Y]) {
        let (c, columns) = (self.bias.len(), geometry.output[1]);
        assert_eq!(y.len(), geometry.pixels() * c, "y holds every output");
        #[cfg(target_arch = "x86_64")]
        if let (Some(filters), Some(x)) = (&self.interleaved, X::as_bytes(x)) {
            let ([_, h, w, _], lines) = (geometry.input, filters.shared(geometry));
            parallel::pieces(y, geometry.output[0] * columns * c, lines * columns * c, |image, part, y| {
                let x = &x[image * h * w * c..][..h * w * c];
                scratch::with(|scratch| filters.lines(geometry, &self.epilogue, x, part * lines, y, scratch));
            });
            return;
        }
        let narrow_bias: Vec<i32> = self.bias.iter().map(|&b| b as i32).collect();
        let row = Row { geometry, x, weights: &self.weights, zero_x: self.zero_x };
        parallel::chunks(y, columns * c, |index, y| {
            let (mut narrow, mut wide) = (vec![0i32; c], vec![0i64; c]);
            for (column, y) in y.chunks_exact_mut(c).enumerate() {
                let pixel = index * columns + column;
                if self.wide {
                    row.add(self.epilogue.isa(), pixel, &mut wide, |sum, x, w| *sum += i64::from(x) * i64::from(w));
                    self.epilogue.wide(&wide, Offsets { row: 0, columns: &self.bias }, y);
                } else {
                    row.add(self.epilogue.isa(), pixel, &mut narrow, |sum, x, w| *sum += x * w);
                    self.epilogue.narrow(&narrow, Offsets { row: 0, columns: &narrow_bias }, y);
                }
            }
        });
    }
}

impl<X: Element> Row<'_, X> {
    /// Sums of one output pixel.
    fn add<T: Copy + Default>(&self, isa: Isa, pixel: usize, sums: &mut [T], add: impl Fn(&mut T, i32, i32) + Copy) {
        match isa.lanes() {
            Lanes::One => self.sums(pixel, sums, add),
            #[cfg(target_arch = "x86_64")]
            Lanes::Avx2(isa) => x86_64::sums_256(isa, self, pixel, sums, add),
            #[cfg(target_arch = "x86_64")]
            Lanes::Avx512(isa) => x86_64::sums_512(isa, self, pixel, sums, add),
        }
    }

    #[inline(always)]
    fn sums<T: Copy + Default>(&self, pixel: usize, sums: &mut [T], add: impl Fn(&mut T, i32, i32)) {
        let [_, h, w, c] = self.geometry.input;
        let (image, [top, left]) = self.geometry.origin(pixel);
        let window = &self.geometry.window;
        let [kh, kw] = window.kernel.map(|k| k as usize);
        let [dh, dw] = window.dilation.map(|d| d as isize);
        sums.fill(T::default());
        for i in 0..kh {
            let ih = top + i as isize * dh;
            if !(0..h as isize).contains(&ih) {
                continue;
            }
            for j in 0..kw {
                let iw = left + j as isize * dw;
                if !(0..w as isize).contains(&iw) {
                    continue;
                }
                let cells = &self.x[((image * h + ih as usize) * w + iw as usize) * c..][..c];
                let weights = &self.weights[(i * kw + j) * c..][..c];
                for ((sum, x), weight) in sums.iter_mut().zip(cells).zip(weights) {
                    add(sum, x.widen() - self.zero_x, *weight);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod interleaved;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Values;
    use crate::conv::conv;
    use crate::linear::{Linear, Matrix};
    use crate::table::Lookup;
    use proptest::prelude::*;
    use tpuflow_ir::{Requant, Window};

    proptest! {
        /// Every variant gives what the general convolution gives with one group per channel.
        #[test]
        fn is_the_grouped_convolution(
            c in prop_oneof![1usize..=5, 15usize..=18, 62usize..=66, 127usize..=130],
            size in 1usize..=9, kernel in [1u32..=6, 1u32..=3], stride in 1u32..=2, dilation in [1u32..=2, 1u32..=2],
            pads in [0u32..=2, 0u32..=3, 0u32..=2, 0u32..=1],
            zeros in (-128i32..=127, prop_oneof![Just(0), -128i32..=127]), table in any::<bool>(), lo in prop_oneof![Just(-128), -100i32..=0],
            seed in any::<u32>(),
        ) {
            let window = Window { kernel, stride: [stride, 3 - stride], dilation, pads };
            let Some(geometry) = Geometry::new([2, size, size + 1, c], window) else { return Ok(()) };
            let taps = (kernel[0] * kernel[1]) as usize;
            let code = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as i8;
            let x: Vec<i8> = (0..2 * size * (size + 1) * c).map(code).collect();
            let w: Vec<i8> = (0..c * taps).map(|i| code(i + 7919)).collect();
            let bias: Vec<i64> = (0..c as i64).map(|j| j * 1000 - 3000).collect();
            let requant = Requant { multiplier: vec![77; c], shift: vec![14; c], zero_point: 3, lo, hi: 127 };
            let entries: Vec<i32> = (0..=1024).map(|i| (i * i) % 301 - 150).collect();
            for isa in Isa::variants() {
                let epilogue = Epilogue::with(isa, requant.clone(), table.then(|| Lookup::new(entries.clone(), 16, -120, 101).expect("a table")));
                let codes = Values::I8(w.clone());
                let groups: Vec<Linear> = (0..c).map(|j| {
                    let matrix = Matrix { codes: &codes, start: j * taps, shape: [taps, 1], strides: [1, taps], zero_point: zeros.1 };
                    Linear::new(&matrix, false, zeros.0, &bias[j..=j], epilogue.columns(j..j + 1))
                }).collect();
                let mut expected = vec![0i8; geometry.pixels() * c];
                conv(&geometry, &x, &groups, zeros.0 as i8, &mut expected);
                for wide in [false, true] {
                    let mut y = vec![0i8; expected.len()];
                    Depthwise::new(&w, kernel, zeros.1, wide, zeros.0, bias.clone(), epilogue.clone()).run(&geometry, &x, &mut y);
                    prop_assert_eq!(&y, &expected, "{} wide {}", isa.name(), wide);
                }
            }
        }
    }
}
