//! `gemm_f32f32f32`: `c[i,j] = sum_p a[i,p] * b[p,j]`, every product rounded, then added in the order of `p` from +0 on.
//!
//! The right operand is packed once into panels of sixteen columns, so that vectors lie across columns and every column's sum
//! keeps its order. No variant uses a fused multiply-add.

#[cfg(target_arch = "x86_64")]
mod x86_64;

use crate::Isa;
use crate::isa::Lanes;

/// Columns of a panel.
pub(super) const COLUMNS: usize = 16;

/// One row of a panel.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub [f32; COLUMNS]);

/// Right operand `[k, n]`: panel after panel, each `k` lines; columns beyond `n` are zero.
#[derive(Clone, Debug)]
pub struct Packed {
    isa: Isa,
    shape: [usize; 2],
    lines: Vec<Line>,
}

impl Packed {
    /// Packs `b`, whose element (row `p`, column `j`) lies at `p * strides[0] + j * strides[1]`.
    #[must_use]
    pub fn new(isa: Isa, b: &[f32], [k, n]: [usize; 2], strides: [usize; 2]) -> Self {
        let mut lines = vec![Line([0.0; COLUMNS]); n.div_ceil(COLUMNS) * k];
        for (panel, lines) in lines.chunks_exact_mut(k.max(1)).enumerate() {
            let columns = panel * COLUMNS..n.min((panel + 1) * COLUMNS);
            for (p, line) in lines.iter_mut().enumerate() {
                for (slot, j) in line.0.iter_mut().zip(columns.clone()) {
                    *slot = b[p * strides[0] + j * strides[1]];
                }
            }
        }
        Self { isa, shape: [k, n], lines }
    }

    /// Rows of the operand, the length of the sums.
    #[must_use]
    pub fn k(&self) -> usize {
        self.shape[0]
    }

    /// Columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.shape[1]
    }

    /// `a`: `[m, k]`, `c`: `[m, n]`.
    ///
    /// # Panics
    /// When the slices do not have these sizes.
    pub fn multiply(&self, a: &[f32], c: &mut [f32]) {
        let [k, n] = self.shape;
        if k == 0 || n == 0 {
            c.fill(0.0);
            return;
        }
        assert!(c.len().is_multiple_of(n) && a.len() == c.len() / n * k, "a is [m, k] and c is [m, n]");
        match self.isa.lanes() {
            Lanes::One => self.reference(a, c),
            #[cfg(target_arch = "x86_64")]
            Lanes::Avx2(isa) => x86_64::gemm_256(isa, self, a, c),
            #[cfg(target_arch = "x86_64")]
            Lanes::Avx512(isa) => x86_64::gemm_512(isa, self, a, c),
        }
    }

    fn reference(&self, a: &[f32], c: &mut [f32]) {
        let [k, n] = self.shape;
        for (row, c) in a.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
            for (j, c) in c.iter_mut().enumerate() {
                let mut sum = 0.0;
                for (p, a) in row.iter().enumerate() {
                    sum += a * self.lines[j / COLUMNS * k + p].0[j % COLUMNS];
                }
                *c = sum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers of very different sizes, so that another order of a sum gives other bits; zeros, subnormals and now and then
    /// an infinity or NaN.
    pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed | 1;
        (0..count)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let bits = (state >> 32) as u32;
                match state % 97 {
                    0 => 0.0,
                    1 => -0.0,
                    2 => f32::from_bits(bits & 0x807F_FFFF),
                    3 if state & 0xF000 == 0 => f32::INFINITY,
                    _ => f32::from_bits(bits & 0x807F_FFFF | (117 + (bits >> 23) % 20) << 23),
                }
            })
            .collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| crate::float::element::canonical(*v).to_bits()).collect()
    }

    fn size() -> impl Strategy<Value = usize> {
        prop_oneof![1usize..=9, 14usize..=18, 30usize..=34, 46usize..=50]
    }

    proptest! {
        #[test]
        fn every_variant_adds_in_order(m in 1usize..=20, k in size(), n in size(), seed in any::<u64>()) {
            let (a, b) = (numbers(seed, m * k), numbers(!seed, k * n));
            let mut expected = Vec::new();
            for i in 0..m {
                for j in 0..n {
                    expected.push((0..k).fold(0f32, |sum, p| sum + a[i * k + p] * b[p * n + j]));
                }
            }
            let turned: Vec<f32> = (0..n * k).map(|i| b[i % k * n + i / k]).collect();
            for isa in Isa::variants() {
                let mut c = vec![7.0; m * n];
                Packed::new(isa, &b, [k, n], [n, 1]).multiply(&a, &mut c);
                prop_assert_eq!(bits(&c), bits(&expected), "{}", isa.name());
                Packed::new(isa, &turned, [k, n], [1, k]).multiply(&a, &mut c);
                prop_assert_eq!(bits(&c), bits(&expected), "{} transposed", isa.name());
            }
        }
    }

    #[test]
    fn products_are_rounded_before_they_are_added() {
        // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 rounds to 1 + 2^-11; fused, the sum with -(1 + 2^-11) would keep 2^-24.
        let x = 1.0 + f32::EPSILON * 2048.0;
        for isa in Isa::variants() {
            let mut c = vec![7.0; 16];
            let b: Vec<f32> = [-1.0, x].into_iter().flat_map(|v| [v; 16]).collect();
            Packed::new(isa, &b, [2, 16], [16, 1]).multiply(&[1.0 + f32::EPSILON * 4096.0, x], &mut c);
            assert_eq!(c, vec![0.0; 16], "{}", isa.name());
        }
    }
}
