//! Threads that take the parts of one job after the other, at next to no cost per job.
//!
//! A job is cut into parts. Every thread has a range of them, in a word of its own, and takes from its front; whoever has none
//! left takes from the back of the others' ranges. So threads meet the same stretch of memory again in the next job, and nobody
//! waits for a thread that the processor has left. The caller works, too, and returns once every part is done.
//!
//! To wake a thread takes as long as a small network: on a virtual machine up to milliseconds until the halted processor runs.
//! So threads look for work for a while before they sleep, also between two runs of a network.

use std::any::Any;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::place::{self, Place};

/// For how long a thread looks for work before it sleeps.
const LINGER: Duration = Duration::from_millis(2);
/// Looks in vain, some 100 ns each, after which other processes get the processor between two of them.
const POLITE: u32 = 1 << 9;

/// A caller and its workers; one caller at a time may [`run`](Self::run) jobs.
pub(super) struct Team {
    /// The parts of the job each thread has left, and its processor, the caller first.
    members: Box<[Member]>,
    /// The last job; its own only while a part of it is not done.
    job: AtomicPtr<Job<'static>>,
    /// Jobs and calls so far: a change is what workers look for.
    calls: AtomicUsize,
    /// Workers that sleep, or are about to.
    asleep: AtomicUsize,
    workers: OnceLock<Vec<(usize, Thread)>>,
}

/// A thread; alone in its cache lines, which it writes all the time.
#[repr(align(128))]
struct Member {
    range: Range,
    place: Place,
}

/// Parts `first..end` as `first << 32 | end`.
struct Range(AtomicU64);

/// The work, on the caller's stack.
struct Job<'a> {
    work: &'a (dyn Fn(&mut Parts<'_>) + Sync),
    /// Parts not done.
    left: AtomicUsize,
    /// The panic of a part.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The parts a thread takes of a job, by index.
pub(super) struct Parts<'a> {
    team: &'a Team,
    thread: usize,
    next: Option<usize>,
    taken: usize,
}

impl Iterator for Parts<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let part = self.next.take().or_else(|| self.team.take(self.thread));
        self.taken += usize::from(part.is_some());
        part
    }
}

impl Range {
    fn put(&self, first: usize, end: usize) {
        self.0.store((first as u64) << 32 | end as u64, Ordering::Release);
    }

    fn take(&self, from_front: bool) -> Option<usize> {
        let mut range = self.0.load(Ordering::Relaxed);
        loop {
            let (first, end) = (range >> 32, range & u64::from(u32::MAX));
            if first >= end {
                return None;
            }
            let (part, rest) = if from_front { (first, range + (1 << 32)) } else { (end - 1, range - 1) };
            match self.0.compare_exchange_weak(range, rest, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(part as usize),
                Err(now) => range = now,
            }
        }
    }
}

impl Team {
    /// Most parts of a job.
    pub const MOST: usize = u32::MAX as usize;

    /// A team of `threads`, the caller among them. `start` is called on every worker before its first job.
    pub fn new(threads: usize, start: fn()) -> &'static Self {
        let team: &'static Self = Box::leak(Box::new(Self {
            members: (0..threads.max(1))
                .map(|_| Member { range: Range(AtomicU64::new(0)), place: Place::new() })
                .collect(),
            job: AtomicPtr::new(ptr::null_mut()),
            calls: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            workers: OnceLock::new(),
        }));
        // One that cannot be had is no loss but of time: the others take its parts.
        let worker = |index: usize| {
            let body = move || {
                start();
                team.work(index)
            };
            thread::Builder::new().name(format!("tpuflow-{index}")).spawn(body).ok()
        };
        let workers = (1..threads).filter_map(|index| Some((index, worker(index)?.thread().clone()))).collect();
        team.workers.get_or_init(|| workers);
        team
    }

    /// Wakes the workers that sleep: there will be jobs in a moment.
    pub fn call(&self) {
        // Who goes to sleep counts itself first and then looks here: one of both sees the other.
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.members[0].place.stay(place::here());
        if self.asleep.load(Ordering::SeqCst) > 0 {
            for (index, worker) in self.workers.get().into_iter().flatten() {
                place::spread(self.places(), *index, || worker.unpark());
            }
        }
    }

    /// `work` on every thread that finds parts of `0..parts`, each taken once; ends when all are done.
    ///
    /// # Panics
    /// When a part does, once all parts are done or given up.
    pub fn run(&self, parts: usize, work: &(dyn Fn(&mut Parts<'_>) + Sync)) {
        debug_assert!(parts <= Self::MOST, "a part's index has 32 bits");
        let job = Job { work, left: AtomicUsize::new(parts), panic: Mutex::new(None) };
        self.job.store(ptr::from_ref(&job).cast_mut().cast(), Ordering::Relaxed);
        let threads = self.members.len();
        for (thread, Member { range, .. }) in self.members.iter().enumerate().rev() {
            range.put(parts * thread / threads, parts * (thread + 1) / threads);
        }
        self.call();
        let mut looks = 0;
        loop {
            if let Some(part) = self.take(0) {
                self.help(0, part);
            } else if job.left.load(Ordering::Acquire) == 0 {
                break;
            } else {
                spin_or_yield(&mut looks);
            }
        }
        let panic = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// A part of the job there is: of the thread's own, else of the others'.
    fn take(&self, thread: usize) -> Option<usize> {
        let (before, own) = self.members.split_at(thread);
        let others = || own[1..].iter().chain(before).find_map(|other| other.range.take(false));
        own[0].range.take(true).or_else(others)
    }

    fn places(&self) -> impl Iterator<Item = &Place> + Clone {
        self.members.iter().map(|member| &member.place)
    }

    /// Does `part`, which this thread has taken, and all others it can get.
    fn help(&self, thread: usize, part: usize) {
        // SAFETY: the range the part was taken from was put there after the job (release and acquire), and a job is replaced, and
        // its memory left, only after all its parts have been counted as done: this one is not yet. Nor are those `Parts` takes:
        // all are counted at the end, after which the job is not touched.
        #[allow(unsafe_code, reason = "a job on the caller's stack")]
        let job = unsafe { &*self.job.load(Ordering::Relaxed) };
        let mut parts = Parts { team: self, thread, next: Some(part), taken: 0 };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (job.work)(&mut parts))) {
            *job.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        // What `work` has not asked for is done, too, or it would be waited for in vain.
        let taken = parts.taken + usize::from(parts.next.is_some());
        job.left.fetch_sub(taken, Ordering::Release);
    }

    /// A worker's life.
    fn work(&self, thread: usize) -> ! {
        self.members[thread].place.enter();
        let (mut seen, mut looks, mut since) = (0, 0, Instant::now());
        loop {
            let calls = self.calls.load(Ordering::Acquire);
            if calls != seen {
                while let Some(part) = self.take(thread) {
                    self.help(thread, part);
                }
                (seen, looks, since) = (calls, 0, Instant::now());
                continue;
            }
            spin_or_yield(&mut looks);
            if looks == POLITE {
                self.members[thread].place.enter();
                place::spread(self.places(), thread, || ());
            }
            if looks > POLITE && since.elapsed() > LINGER {
                self.asleep.fetch_add(1, Ordering::SeqCst);
                self.members[thread].place.enter();
                if self.calls.load(Ordering::SeqCst) == seen {
                    thread::park();
                }
                self.members[thread].place.enter();
                self.asleep.fetch_sub(1, Ordering::SeqCst);
                (looks, since) = (0, Instant::now());
            }
        }
    }
}

/// A moment between two looks.
fn spin_or_yield(looks: &mut u32) {
    *looks = looks.saturating_add(1);
    (0..8).for_each(|_| spin_loop());
    if *looks > POLITE {
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Every part is done once, in jobs of many sizes one after the other, whether workers are awake or not.
    #[test]
    fn every_part_is_done_once() {
        for threads in 1..=5 {
            let team = Team::new(threads, || ());
            for round in 0..300usize {
                let parts = round % 37;
                let done: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                team.run(parts, &|parts| {
                    for part in parts {
                        done[part].fetch_add(1, Ordering::Relaxed);
                    }
                });
                assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1), "{threads} threads, {parts} parts");
                if round % 100 == 99 {
                    thread::sleep(2 * LINGER);
                }
            }
        }
    }

    /// A part that takes long keeps nobody from the others' parts.
    #[test]
    fn parts_are_taken_off_a_slow_thread() {
        let team = Team::new(2, || ());
        let held = AtomicBool::new(true);
        let done = AtomicUsize::new(0);
        team.run(100, &|parts| {
            for part in parts {
                // The first part waits for all others: of its thread's range, too.
                while part == 0 && held.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                if done.fetch_add(1, Ordering::AcqRel) == 98 {
                    held.store(false, Ordering::Release);
                }
            }
        });
        assert_eq!(done.into_inner(), 100);
    }

    /// A panic reaches the caller after all other parts are done, and the team works on.
    #[test]
    fn panics_reach_the_caller() {
        let team = Team::new(3, || ());
        for bad in 0..9 {
            let done = AtomicUsize::new(0);
            let run = catch_unwind(AssertUnwindSafe(|| {
                team.run(9, &|parts| {
                    for part in parts {
                        assert!(part != bad, "on purpose");
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }));
            assert!(run.is_err());
            assert_eq!(done.into_inner(), 8);
        }
    }
}
