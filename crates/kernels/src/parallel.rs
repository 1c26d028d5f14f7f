//! Work on parts of a slice, spread over the threads of the pool there is.
//!
//! To wake a thread takes as long as a small layer: on a virtual machine, tens of microseconds until the halted processor runs.
//! So whoever has many layers to compute one after the other does it [`inside`]: the other threads are woken once and then watch
//! for parts, layer after layer. They give up after a while without any, since others may want the processor.

use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::Yield;
use rayon::prelude::*;

/// Whether somebody's threads are kept awake: of several callers at once one is enough, and would be held up by the others.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Runs `work` inside the pool from the start, the other threads awake: what it spreads over threads then need not enter the
/// pool or wake anybody. On a thread of the pool, where the others have work of their own, and beside another caller it runs as
/// it is.
pub fn inside<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let threads = rayon::current_num_threads();
    if threads == 1 || rayon::current_thread_index().is_some() {
        return work();
    }
    if WATCHED.swap(true, Ordering::AcqRel) {
        return work();
    }
    let _free = Free;
    let done = AtomicBool::new(false);
    rayon::scope(|scope| {
        let (done, own) = (&done, rayon::current_thread_index());
        let _end = End(done);
        (1..threads).for_each(|_| scope.spawn(move |_| watch(done, own)));
        work()
    })
}

/// Lets the next caller keep threads awake.
struct Free;

impl Drop for Free {
    fn drop(&mut self) {
        WATCHED.store(false, Ordering::Release);
    }
}

/// Ends the watching, also when the work panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Takes parts off other threads until `done`, or until there have been none for long. Not on thread `own`, whose work is waiting
/// for one of its parts: who else would end it? Nor where the thread is watching already, and has a part to end.
fn watch(done: &AtomicBool, own: Option<usize>) {
    /// Looks in vain, some 100 ns each, after which other processes get the processor between two of them, and after which the
    /// thread goes to sleep.
    const POLITE: u32 = 1 << 9;
    const LAST: u32 = 1 << 12;
    thread_local!(static WATCHES: Cell<bool> = const { Cell::new(false) });
    if WATCHES.replace(true) {
        return;
    }
    let mut vain = 0;
    while rayon::current_thread_index() != own && vain < LAST && !done.load(Ordering::Acquire) {
        if rayon::yield_now() == Some(Yield::Executed) {
            vain = 0;
            continue;
        }
        vain += 1;
        (0..8).for_each(|_| spin_loop());
        if vain > POLITE {
            std::thread::yield_now();
        }
    }
    WATCHES.set(false);
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

/// The size of parts of `count`, none larger than `most`: as many for one thread as for any other, and nearly the same size.
pub(crate) fn even(count: usize, most: usize) -> usize {
    let parts = count.div_ceil(most.max(1)).max(1).next_multiple_of(rayon::current_num_threads());
    count.div_ceil(parts).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool")
    }

    /// Work inside is done in any pool, within itself, by several callers at once, and after one that panicked.
    #[test]
    fn inside_is_the_work() {
        let sum = |length: usize| {
            inside(|| {
                let mut y = vec![0; length];
                (0..20).for_each(|_| chunks(&mut y, 3, |index, part| part.iter_mut().for_each(|y| *y += index)));
                y.iter().sum::<usize>()
            })
        };
        let expected = |length: usize| 20 * (0..length).map(|i| i / 3).sum::<usize>();
        for threads in 1..=3 {
            let pool = pool(threads);
            std::thread::scope(|scope| {
                for caller in 0..3 {
                    let pool = &pool;
                    scope.spawn(move || {
                        for length in 0..30 {
                            // On a thread of a pool, and from outside the one there is.
                            let length = length + caller;
                            assert_eq!(pool.install(|| inside(|| sum(length))), expected(length));
                            assert_eq!(inside(|| sum(length)), expected(length));
                        }
                    });
                }
            });
        }
        for _ in 0..3 {
            assert!(std::panic::catch_unwind(|| inside(|| panic!("on purpose"))).is_err());
            assert!(std::panic::catch_unwind(|| inside(|| inside(|| panic!("on purpose")))).is_err());
            assert_eq!(inside(|| sum(100)), expected(100));
        }
    }

    #[test]
    fn parts_are_even() {
        for threads in 1..=4 {
            pool(threads).install(|| {
                for (count, most) in [(0, 3), (1, 3), (7, 7), (7, 3), (784, 256), (3136, 512), (12, 0)] {
                    let size = even(count, most);
                    let (parts, last) = (count.div_ceil(size), count.checked_rem(size));
                    assert!(size <= most.max(1), "{count} in parts of {size} for {threads} threads");
                    assert!(
                        count < 20 * threads
                            || (parts % threads == 0 && last.is_none_or(|last| last + 9 > size || last == 0))
                    );
                }
            });
        }
    }

    #[test]
    fn every_part_is_worked_on_once_with_its_index() {
        for threads in [1, 3] {
            let pool = pool(threads);
            for (length, size) in [(0, 4), (3, 4), (4, 4), (9, 4), (9, 0)] {
                let mut y = vec![0; length];
                pool.install(|| chunks(&mut y, size, |index, part| part.iter_mut().for_each(|y| *y += index + 1)));
                let expected: Vec<usize> = (0..length).map(|i| i / size.max(1) + 1).collect();
                assert_eq!(y, expected, "{length} in parts of {size} on {threads} threads");
            }
        }
    }
}
