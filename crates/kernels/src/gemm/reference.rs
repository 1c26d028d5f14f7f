//! The products as their formula.

use super::panels::Panels;
use crate::Element;

/// `c[i,j] = sum_p a[i,p] * b[p,j]` modulo 2^32.
pub fn gemm_i8i8i32(a: &[i8], b: &Panels, c: &mut [i32]) {
    let code = |p: usize, j: usize| i32::from(b.code(p, j)[0].cast_signed());
    for (i, row) in c.chunks_exact_mut(b.n().max(1)).enumerate() {
        for (j, sum) in row.iter_mut().enumerate() {
            let products = (0..b.k()).map(|p| i32::from(a[i * b.k() + p]) * code(p, j));
            *sum = products.fold(0, i32::wrapping_add);
        }
    }
}

/// `c[i,j] = sum_p a[i,p] * b[p,j]`.
pub fn gemm_i16i16i64<A: Element>(a: &[A], b: &Panels, c: &mut [i64]) {
    let code = |p: usize, j: usize| {
        let bytes = b.code(p, j);
        i64::from(i16::from_le_bytes([bytes[0], bytes[1]]))
    };
    for (i, row) in c.chunks_exact_mut(b.n().max(1)).enumerate() {
        for (j, sum) in row.iter_mut().enumerate() {
            *sum = (0..b.k()).map(|p| i64::from(a[i * b.k() + p].widen()) * code(p, j)).sum();
        }
    }
}
