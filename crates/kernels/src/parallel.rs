//! Work on parts of a slice, spread over threads.
//!
//! Whoever has many layers to compute one after the other does it [`inside`] a team of threads, which costs next to nothing per
//! layer ([`team`]). There is one; on threads of a pool, where the others have work of their own, and for a second caller at the
//! same time it is the pool that parts are spread over.

mod place;
mod team;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use team::{Parts, Team};

/// Who does the parts of what a thread computes.
#[derive(Clone, Copy)]
enum Threads {
    /// The pool's.
    Pool,
    /// The team's, whose caller this thread is.
    Team(&'static Team),
    /// This one alone: it is doing a part itself.
    Own,
}

thread_local! {
    static THREADS: Cell<Threads> = const { Cell::new(Threads::Pool) };
}

/// Says who does the parts until it is dropped.
struct Until(Threads);

impl Until {
    fn set(threads: Threads) -> Self {
        Self(THREADS.replace(threads))
    }
}

impl Drop for Until {
    fn drop(&mut self) {
        THREADS.set(self.0);
    }
}

/// Runs `work` as caller of the team, if it is free, whose threads are awake from now on.
pub fn inside<R>(work: impl FnOnce() -> R) -> R {
    static TEAM: OnceLock<&'static Team> = OnceLock::new();
    static TAKEN: AtomicBool = AtomicBool::new(false);
    /// Leaves the team to the next caller.
    struct Free;
    impl Drop for Free {
        fn drop(&mut self) {
            TAKEN.store(false, Ordering::Release);
        }
    }
    let is_pools = rayon::current_thread_index().is_some() || !matches!(THREADS.get(), Threads::Pool);
    if is_pools || rayon::current_num_threads() == 1 || TAKEN.swap(true, Ordering::AcqRel) {
        return work();
    }
    let _free = Free;
    let team = TEAM.get_or_init(|| Team::new(rayon::current_num_threads(), || THREADS.set(Threads::Own)));
    team.call();
    let _until = Until::set(Threads::Team(team));
    work()
}

/// `work(index, part)` for every part of `size` elements, the last one shorter.
pub fn chunks<Y: Send>(y: &mut [Y], size: usize, work: impl Fn(usize, &mut [Y]) + Sync) {
    chunks_with(y, size, || (), |(), index, part| work(index, part));
}

/// As [`chunks`]; a thread keeps what `init` gives it from part to part.
pub(crate) fn chunks_with<Y: Send, S>(
    y: &mut [Y],
    size: usize,
    init: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, &mut [Y]) + Sync,
) {
    let whole = y.len();
    pieces_with(y, whole, size, init, |state, _, index, part| work(state, index, part));
}

/// `work(unit, index, part)` for every part of `size` elements of every `whole` elements, units and parts shorter at their ends.
pub(crate) fn pieces<Y: Send>(y: &mut [Y], whole: usize, size: usize, work: impl Fn(usize, usize, &mut [Y]) + Sync) {
    pieces_with(y, whole, size, || (), |(), unit, index, part| work(unit, index, part));
}

fn pieces_with<Y: Send, S>(
    y: &mut [Y],
    whole: usize,
    size: usize,
    init: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, usize, &mut [Y]) + Sync,
) {
    let (whole, size) = (whole.max(1), size.clamp(1, whole.max(1)));
    let (parts, per_unit) = (y.len().div_ceil(whole) * whole.div_ceil(size), whole.div_ceil(size));
    let y = Shared::new(y);
    let part = |state: &mut S, part: usize| {
        let (unit, index) = (part / per_unit, part % per_unit);
        let first = unit * whole + index * size;
        let end = (first + size).min((unit + 1) * whole).min(y.len);
        if first < end {
            // SAFETY: every part is asked for once, and no two of them share an element.
            #[allow(unsafe_code, reason = "parts that do not overlap")]
            work(state, unit, index, unsafe { y.part(first, end) });
        }
    };
    let alone = || {
        let mut state = init();
        (0..parts).for_each(|index| part(&mut state, index));
    };
    match THREADS.get() {
        // Nothing to spread: what lies within may have something.
        _ if parts <= 1 => alone(),
        Threads::Own => alone(),
        Threads::Team(team) if parts <= Team::MOST => {
            let _until = Until::set(Threads::Own);
            team.run(parts, &|parts: &mut Parts<'_>| {
                let mut state = init();
                parts.for_each(|index| part(&mut state, index));
            });
        }
        _ if rayon::current_num_threads() == 1 => alone(),
        _ => (0..parts).into_par_iter().for_each_init(&init, part),
    }
}

/// A slice whose parts threads write.
struct Shared<'a, Y> {
    first: *mut Y,
    len: usize,
    _slice: PhantomData<&'a mut [Y]>,
}

// SAFETY: it gives out parts that do not overlap, each to one thread.
#[allow(unsafe_code, reason = "parts that do not overlap")]
unsafe impl<Y: Send> Sync for Shared<'_, Y> {}

impl<'a, Y> Shared<'a, Y> {
    fn new(y: &'a mut [Y]) -> Self {
        Self { first: y.as_mut_ptr(), len: y.len(), _slice: PhantomData }
    }

    /// Elements `first..end`.
    ///
    /// # Safety
    /// They lie within the slice, and in no other part that is alive.
    #[allow(unsafe_code, clippy::mut_from_ref, reason = "parts that do not overlap")]
    unsafe fn part(&self, first: usize, end: usize) -> &mut [Y] {
        debug_assert!(first <= end && end <= self.len);
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(first), end - first) }
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
