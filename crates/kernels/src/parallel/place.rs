//! Which processors the threads of a team run on.
//!
//! Linux may leave two threads that wake each other on one processor for tens of milliseconds while another one idles, which is
//! all the time a small network takes. So a thread found on another's processor is moved to a free one. It is not tied to it:
//! that would harm beside other processes.

#[cfg(target_os = "linux")]
pub(super) use linux::{Place, here, spread};
#[cfg(not(target_os = "linux"))]
pub(super) use other::{Place, here, spread};

/// No processor.
pub(super) const NOWHERE: usize = usize::MAX;

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

    use rustix::thread::{self, CpuSet, Pid};

    use super::NOWHERE;

    /// Where a thread ran when it last said so.
    pub(in super::super) struct Place {
        thread: AtomicI32,
        processor: AtomicUsize,
    }

    impl Place {
        pub fn new() -> Self {
            Self { thread: AtomicI32::new(0), processor: AtomicUsize::new(NOWHERE) }
        }

        /// The calling thread is here now. Its number is asked for once: it stays with the place.
        pub fn enter(&self) {
            if self.thread.load(Ordering::Relaxed) == 0 {
                self.thread.store(Pid::as_raw(Some(thread::gettid())), Ordering::Relaxed);
            }
            self.stay(here());
        }

        /// As [`Self::enter`], of any thread.
        pub fn stay(&self, processor: usize) {
            if self.processor.load(Ordering::Relaxed) != processor {
                self.processor.store(processor, Ordering::Relaxed);
            }
        }

        fn processor(&self) -> usize {
            self.processor.load(Ordering::Relaxed)
        }
    }

    /// The processor the calling thread runs on.
    pub(in super::super) fn here() -> usize {
        thread::sched_getcpu()
    }

    /// If thread `index` was seen on the processor of one before it, it is put on one that is nobody's, if it may run there. `then`
    /// is done in between: while it may run only there.
    pub(in super::super) fn spread<'a>(
        places: impl Iterator<Item = &'a Place> + Clone,
        index: usize,
        then: impl FnOnce(),
    ) {
        let mut own = places.clone().skip(index);
        let Some(place) = own.next().filter(|own| places.clone().take(index).any(|p| p.processor() == own.processor()))
        else {
            return then();
        };
        let thread = Pid::from_raw(place.thread.load(Ordering::Relaxed));
        let (Some(thread), Ok(allowed)) = (thread, thread::sched_getaffinity(thread)) else { return then() };
        let mut free = allowed;
        places.map(Place::processor).filter(|&at| at < CpuSet::MAX_CPU).for_each(|at| free.unset(at));
        // Refused, it stays where it is.
        let moved = free.count() > 0 && thread::sched_setaffinity(Some(thread), &free).is_ok();
        then();
        if moved {
            let _ = thread::sched_setaffinity(Some(thread), &allowed);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    /// Nothing is known of processors.
    pub(in super::super) struct Place;

    impl Place {
        pub fn new() -> Self {
            Self
        }

        pub fn enter(&self) {}

        pub fn stay(&self, _: usize) {}
    }

    pub(in super::super) fn here() -> usize {
        super::NOWHERE
    }

    pub(in super::super) fn spread<'a>(_: impl Iterator<Item = &'a Place> + Clone, _: usize, then: impl FnOnce()) {
        then();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::thread::{sched_getaffinity, sched_setaffinity};

    /// A thread on another's processor may for a moment run on all but that one, then wherever it might before.
    #[test]
    fn threads_are_spread_and_not_tied() {
        let before = sched_getaffinity(None).expect("an affinity");
        for shared in [true, false] {
            let places = [Place::new(), Place::new()];
            places[1].enter();
            let own = here();
            places[0].stay(if shared { own } else { NOWHERE });
            places[1].stay(own);
            let mut during = None;
            spread(places.iter(), 1, || during = sched_getaffinity(None).ok());
            let mut expected = before;
            if shared && before.count() > 1 {
                expected.unset(own);
            }
            assert!(during == Some(expected), "shared: {shared}");
            assert!(sched_getaffinity(None).ok() == Some(before));
        }
        // The only processor it may run on is no worse for being shared.
        std::thread::spawn(|| {
            let mut single = rustix::thread::CpuSet::new();
            single.set(here());
            if sched_setaffinity(None, &single).is_ok() {
                let places = [Place::new(), Place::new()];
                places.iter().for_each(Place::enter);
                spread(places.iter(), 1, || ());
                assert!(sched_getaffinity(None).ok() == Some(single));
            }
        })
        .join()
        .expect("a thread");
    }
}
