//! Work on parts of a slice, spread over the threads of the pool there is.
//!
//! A layer of a small network takes about as long as waking a thread. [`attended`] runs a whole network inside the pool while
//! the other threads stay awake and look for parts, as the thread pools of other engines do.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::prelude::*;

/// Most threads that stay awake beside the one that runs.
const ATTENDANTS: usize = 7;
/// Looks for work between two offers of the processor to others.
const LOOKS: u32 = 64;
/// Calls of [`attended`] from outside the pool that are under way.
static RUNS: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` inside the pool, so that what it spreads over threads need not enter the pool every time. The other threads wait
/// for it awake, unless the pool is shared with other such work.
pub fn attended<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let threads = rayon::current_num_threads();
    if threads == 1 || rayon::current_thread_index().is_some() {
        return work();
    }
    let over = AtomicBool::new(false);
    RUNS.fetch_add(1, Ordering::Relaxed);
    rayon::scope(|scope| {
        // Set, too, when the work panics.
        let _end = End(&over);
        for _ in 1..threads.min(ATTENDANTS + 1) {
            scope.spawn(|_| attend(&over));
        }
        work()
    })
}

/// Takes on what others want done until it is over.
fn attend(over: &AtomicBool) {
    let mut looks = 0;
    while !over.load(Ordering::Acquire) && RUNS.load(Ordering::Relaxed) == 1 {
        if rayon::yield_now() == Some(rayon::Yield::Executed) {
            looks = 0;
            continue;
        }
        looks += 1;
        if looks % LOOKS == 0 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Says that it is over.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        RUNS.fetch_sub(1, Ordering::Relaxed);
    }
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

    /// Runs beside and inside one another all come to an end with their own results, and so do those that panic.
    #[test]
    fn attended_work_ends() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("a pool");
        let sum = |from: usize| {
            let mut y = vec![0; 1000];
            chunks(&mut y, 10, |index, part| part.fill(from + index));
            y.iter().sum::<usize>()
        };
        std::thread::scope(|threads| {
            for from in 0..4 {
                threads.spawn(move || {
                    for _ in 0..20 {
                        assert_eq!(attended(|| attended(|| sum(from))), sum(from));
                    }
                });
            }
        });
        assert!(std::panic::catch_unwind(|| attended(|| assert_eq!(sum(0), 1))).is_err());
        assert_eq!(pool.install(|| attended(|| sum(7))), sum(7));
        assert_eq!(RUNS.load(Ordering::Relaxed), 0);
    }

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
