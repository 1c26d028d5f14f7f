//! Movement of codes: strided rearrangement, padding, concatenation, picking by index, selection.
//!
//! Generic over any copyable element, since indices and masks move too.

use tpuflow_ir::PadMode;

/// Copies the element at `offset + sum(i * strides)` for every multi-index `i` of `dims`, in row-major order.
///
/// # Panics
/// When `y` does not have the product of `dims` elements, or a position lies outside `x`.
pub fn rearrange<T: Copy>(dims: &[u32], strides: &[i64], offset: i64, x: &[T], y: &mut [T]) {
    let Some((&inner, outer)) = dims.split_last() else {
        y[0] = x[offset as usize];
        return;
    };
    let (inner, step) = (inner as usize, strides[outer.len()]);
    assert_eq!(y.len(), dims.iter().map(|&d| d as usize).product::<usize>(), "y holds every element");
    let mut index = vec![0u32; outer.len()];
    let mut position = offset;
    for y in y.chunks_exact_mut(inner) {
        if step == 1 {
            y.copy_from_slice(&x[position as usize..][..inner]);
        } else {
            for (i, y) in y.iter_mut().enumerate() {
                *y = x[(position + i as i64 * step) as usize];
            }
        }
        for axis in (0..outer.len()).rev() {
            index[axis] += 1;
            position += strides[axis];
            if index[axis] < outer[axis] {
                break;
            }
            position -= i64::from(outer[axis]) * strides[axis];
            index[axis] = 0;
        }
    }
}

/// Pads every axis of `x` by `before` and `after` cells; `constant` is what constant modes fill with.
///
/// # Panics
/// When `y` does not have the padded size.
pub fn pad<T: Copy>(shape: &[usize], before: &[u32], after: &[u32], mode: PadMode, constant: T, x: &[T], y: &mut [T]) {
    let padded: Vec<usize> =
        shape.iter().zip(before).zip(after).map(|((n, b), a)| *b as usize + n + *a as usize).collect();
    assert_eq!(y.len(), padded.iter().product::<usize>(), "y holds every element");
    // For every axis and padded index, the position in `x` it contributes, or none.
    let mut stride = x.len();
    let sources: Vec<Vec<Option<usize>>> = (0..shape.len())
        .map(|axis| {
            let n = shape[axis];
            stride /= n.max(1);
            (0..padded[axis])
                .map(|i| source(i as isize - before[axis] as isize, n, mode).map(|source| source * stride))
                .collect()
        })
        .collect();
    for (flat, y) in y.iter_mut().enumerate() {
        let (mut rest, mut position) = (flat, Some(0));
        for axis in (0..shape.len()).rev() {
            let here = sources[axis][rest % padded[axis]];
            position = position.zip(here).map(|(position, here)| position + here);
            rest /= padded[axis];
        }
        *y = position.map_or(constant, |position| x[position]);
    }
}

/// The cell of an axis of `n` that index `i` (negative before it) shows.
fn source(i: isize, n: usize, mode: PadMode) -> Option<usize> {
    let last = n as isize - 1;
    match mode {
        PadMode::Constant(_) | PadMode::Value(_) => (0..=last).contains(&i).then_some(i as usize),
        PadMode::Edge => (n > 0).then(|| i.clamp(0, last) as usize),
        PadMode::Reflect => (n > 0).then(|| if i < 0 { -i } else { last - (last - i).abs() } as usize),
    }
}

/// Picks `indices` along an axis: `x` is `[outer, extent, inner]`, `y` is `[outer, indices, inner]`.
///
/// # Panics
/// When the slices do not have these sizes or an index exceeds `extent`.
pub fn gather<T: Copy>(extent: usize, inner: usize, indices: &[u32], x: &[T], y: &mut [T]) {
    let (block, picked) = ((extent * inner).max(1), (indices.len() * inner).max(1));
    for (x, y) in x.chunks_exact(block).zip(y.chunks_exact_mut(picked)) {
        for (&index, y) in indices.iter().zip(y.chunks_exact_mut(inner)) {
            y.copy_from_slice(&x[index as usize * inner..][..inner]);
        }
    }
}

/// Rows of `table` `[v, d]` by index. Returns the first index outside `0..v`, if any; `y` is then unfinished.
///
/// # Panics
/// When `y` does not have `indices * d` elements.
#[must_use]
pub fn embedding<T: Copy>(d: usize, table: &[T], indices: &[i32], y: &mut [T]) -> Option<i32> {
    assert_eq!(y.len(), indices.len() * d, "one row per index");
    for (&index, y) in indices.iter().zip(y.chunks_exact_mut(d.max(1))) {
        match usize::try_from(index).ok().and_then(|row| table.get(row * d..(row + 1) * d)) {
            Some(row) => y.copy_from_slice(row),
            None => return Some(index),
        }
    }
    None
}

/// Columns of `table` `[d, v]` by index. Returns the first index outside `0..v`, if any; `y` is then unfinished.
///
/// # Panics
/// When `y` does not have `indices * d` elements.
#[must_use]
pub fn columns<T: Copy>(v: usize, table: &[T], indices: &[i32], y: &mut [T]) -> Option<i32> {
    let d = table.len() / v.max(1);
    assert_eq!(y.len(), indices.len() * d, "one column per index");
    for (&index, y) in indices.iter().zip(y.chunks_exact_mut(d.max(1))) {
        let Some(column) = usize::try_from(index).ok().filter(|&column| column < v) else { return Some(index) };
        for (y, x) in y.iter_mut().zip(table[column..].iter().step_by(v)) {
            *y = *x;
        }
    }
    None
}

/// Puts `stride - 1` cells of `zero` between neighbours of `[n,h,w,c]`.
///
/// # Panics
/// When `y` does not have `n * ((h-1) * stride[0] + 1) * ((w-1) * stride[1] + 1) * c` elements.
pub fn insert_zeros<T: Copy>(input: [usize; 4], stride: [u32; 2], zero: T, x: &[T], y: &mut [T]) {
    let [n, h, w, c] = input;
    let [rows, columns] = stride.map(|s| s as usize);
    let (oh, ow) = ((h - 1) * rows + 1, (w - 1) * columns + 1);
    assert_eq!(y.len(), n * oh * ow * c, "y holds every cell");
    y.fill(zero);
    for (pixel, cell) in x.chunks_exact(c.max(1)).enumerate() {
        let (image, i, j) = (pixel / (h * w), pixel / w % h, pixel % w);
        y[((image * oh + i * rows) * ow + j * columns) * c..][..c].copy_from_slice(cell);
    }
}

/// Copies `x` `[outer, width]` into columns `start..start + width` of `y` `[outer, total]`, passing each element through `f`.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn place<T: Copy, Y>(width: usize, total: usize, start: usize, x: &[T], y: &mut [Y], f: impl Fn(T) -> Y) {
    if width == 0 {
        return;
    }
    assert_eq!(x.len() / width, y.len() / total, "both have the same outer extent");
    for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(total)) {
        for (&x, y) in x.iter().zip(&mut y[start..][..width]) {
            *y = f(x);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row_major(extents: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
        (0..extents.iter().product::<usize>()).map(move |mut n| {
            let mut index: Vec<usize> = extents.iter().rev().map(|&extent| (n % extent, n /= extent).0).collect();
            index.reverse();
            index
        })
    }

    proptest! {
        /// Element by element, as the definition says.
        #[test]
        fn rearrangements_follow_their_strides(
            axes in prop::collection::vec((1u32..5, -7i64..8), 0..4), spare in 0i64..5,
        ) {
            let (dims, strides): (Vec<u32>, Vec<i64>) = axes.into_iter().unzip();
            let reach = |n: usize| i64::from(dims[n] - 1) * strides[n];
            let offset = spare - (0..dims.len()).map(|n| reach(n).min(0)).sum::<i64>();
            let last = offset + (0..dims.len()).map(|n| reach(n).max(0)).sum::<i64>();
            let x: Vec<i32> = (0..=last as i32).map(|i| i * 31 + 7).collect();
            let extents: Vec<usize> = dims.iter().map(|&d| d as usize).collect();
            let expected: Vec<i32> = row_major(&extents)
                .map(|index| x[(offset + index.iter().zip(&strides).map(|(&i, s)| i as i64 * s).sum::<i64>()) as usize])
                .collect();
            let mut y = vec![0; expected.len()];
            rearrange(&dims, &strides, offset, &x, &mut y);
            prop_assert_eq!(y, expected);
        }

        /// Cells keep their order, `stride` apart, and everything else is zero.
        #[test]
        fn zeros_stand_between_cells(
            n in 1usize..3, h in 1usize..5, w in 1usize..5, c in 1usize..4, rows in 1u32..5, columns in 1u32..5,
        ) {
            let x: Vec<i16> = (1..=(n * h * w * c) as i16).collect();
            let (oh, ow) = ((h - 1) * rows as usize + 1, (w - 1) * columns as usize + 1);
            let mut expected = vec![-1; n * oh * ow * c];
            for (at, index) in row_major(&[n, h, w, c]).enumerate() {
                let (row, column) = (index[1] * rows as usize, index[2] * columns as usize);
                expected[((index[0] * oh + row) * ow + column) * c + index[3]] = x[at];
            }
            let mut y = vec![0; expected.len()];
            insert_zeros([n, h, w, c], [rows, columns], -1, &x, &mut y);
            prop_assert_eq!(y, expected);
        }
    }
}
