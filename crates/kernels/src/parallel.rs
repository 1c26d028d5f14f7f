//! Work on parts of a slice, spread over the threads of the pool there is.

use rayon::prelude::*;

/// Runs `work` inside the pool from the start: what it spreads over threads then need not enter the pool every time.
pub fn inside<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    if rayon::current_num_threads() == 1 { work() } else { rayon::scope(|_| work()) }
}

/// `work(index, part)` for every part of `size` elements, the last one shorter. Without a second thread, or a second part, the
/// caller's own thread does it: waking another costs more than small layers do.
pub(crate) fn chunks<Y: Send>(y: &mut [Y], size: usize, work: impl Fn(usize, &mut [Y]) + Sync) {
    let size = size.max(1);
    if y.len() <= size || rayon::current_num_threads() == 1 {
        y.chunks_mut(size).enumerate().for_each(|(index, part)| work(index, part));
    } else {
        y.par_chunks_mut(size).enumerate().for_each(|(index, part)| work(index, part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_worked_on_once_with_its_index() {
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            for (length, size) in [(0, 4), (3, 4), (4, 4), (9, 4), (9, 0)] {
                let mut y = vec![0; length];
                pool.install(|| chunks(&mut y, size, |index, part| part.iter_mut().for_each(|y| *y += index + 1)));
                let expected: Vec<usize> = (0..length).map(|i| i / size.max(1) + 1).collect();
                assert_eq!(y, expected, "{length} in parts of {size} on {threads} threads");
            }
        }
    }
}
