//! The products as their formula. The right operand lies column by column, `[n, k]`.

/// `c[i,j] = sum_p a[i,p] * b[j,p]` modulo 2^32.
///
/// # Panics
/// When a slice is not of its size: `a` `[m, k]`, `b` `[n, k]`, `c` `[m, n]`.
pub fn gemm_i8i8i32(a: &[i8], b: &[i8], k: usize, n: usize, c: &mut [i32]) {
    check(a.len(), b.len(), k, n, c.len());
    for (i, row) in c.chunks_exact_mut(n.max(1)).enumerate() {
        for (j, sum) in row.iter_mut().enumerate() {
            let products = a[i * k..][..k].iter().zip(&b[j * k..][..k]).map(|(&x, &w)| i32::from(x) * i32::from(w));
            *sum = products.fold(0, i32::wrapping_add);
        }
    }
}

/// `c[i,j] = sum_p a[i,p] * b[j,p]`.
///
/// # Panics
/// When a slice is not of its size: `a` `[m, k]`, `b` `[n, k]`, `c` `[m, n]`.
pub fn gemm_i16i16i64(a: &[i16], b: &[i16], k: usize, n: usize, c: &mut [i64]) {
    check(a.len(), b.len(), k, n, c.len());
    for (i, row) in c.chunks_exact_mut(n.max(1)).enumerate() {
        for (j, sum) in row.iter_mut().enumerate() {
            let products = a[i * k..][..k].iter().zip(&b[j * k..][..k]).map(|(&x, &w)| i64::from(x) * i64::from(w));
            *sum = products.sum();
        }
    }
}

fn check(a: usize, b: usize, k: usize, n: usize, c: usize) {
    assert!(b == n * k, "the right operand is [n, k]");
    assert!(n == 0 || (c.is_multiple_of(n) && a == c / n * k), "the left operand is [m, k], the result [m, n]");
}
