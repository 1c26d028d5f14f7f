//! One state of the search: is it hopeless, and where to branch.
//!
//! A section is a machine and a buffer a job on several neighbouring machines at a time, released at its head. The *floor* of
//! a section is the lowest head of the buffers in it: whatever is below is lost. For every section and every height `t`, the
//! buffers with heads from `t` on must fit between `t` and the limit (the bound of one machine with release times, Jackson
//! 1955); taken at the floor this is the load that is left, taken higher it sees buffers that are held up by other sections.
//!
//! ```text
//!            +---+             A valley is a run of sections with one floor between higher ones. A buffer whose head is
//!        +---+   |             the floor lies inside the valley and touches its ground. Take any section of it: either
//!   +----+   |   +---+         one of those buffers lies there on the ground, or nothing does, and the section rises
//!   |    |   +---+   |         to the next address at which something can.
//!   +----+---+   +---+--+
//!            valley
//! ```
//!
//! Every section of every valley is such a question; the one with the fewest answers is asked first, those that failed often
//! before by preference.

use super::tasks::Task;

/// An answer to where the ground of a section goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// To this task of the component, at its head.
    Place(u32),
    /// To nothing: what lives in the section starts at this address or above.
    Raise(i64),
}

/// Which answer is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerOrder {
    /// The longest life, then the largest size.
    Long,
    /// The largest size.
    Large,
    /// By lot, from this seed.
    Any(u64),
}

/// Outcome of examining a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateOutcome {
    /// No addresses below the limit.
    Hopeless,
    /// The choices for this section were written down.
    Branch(u32),
}

/// Scratch memory over sections, and how often each was where the search failed.
pub(super) struct Scratch {
    load: Vec<i64>,
    floor: Vec<i64>,
    ready: Vec<i64>,
    /// By section: failures seen, older ones counted less.
    failures: Vec<u64>,
    order: Vec<(i64, i64, u32)>,
    /// Whether shifting buffers up keeps them where they may lie.
    unaligned: bool,
}

impl Scratch {
    pub fn new(sections: usize, unaligned: bool) -> Self {
        Self {
            load: vec![0; sections],
            floor: vec![0; sections],
            ready: vec![0; sections + 1],
            failures: vec![1; sections],
            order: Vec::new(),
            unaligned,
        }
    }

    /// Counts all failures so far a tenth less: what earlier attempts met must not outweigh what the next ones meet.
    pub fn fade(&mut self) {
        for failures in &mut self.failures {
            *failures = 1 + (*failures - 1) * 9 / 10;
        }
    }

    /// Examines a component, sorted by head, in sections `first..last`; choices are appended to `choices`, the first to try
    /// first.
    pub fn examine(
        &mut self,
        tasks: &[Task],
        (first, last): (usize, usize),
        limit: i64,
        prefer: AnswerOrder,
        choices: &mut Vec<Choice>,
    ) -> StateOutcome {
        if !self.fits(tasks, (first, last), limit) {
            return StateOutcome::Hopeless;
        }
        let low = tasks[0].head;
        // On even ground, what lives all the time can go to the bottom: the rest of any solution moves up over it.
        if self.unaligned && self.floor[first..last].iter().all(|&floor| floor == low) {
            let whole = |t: &Task| t.head == low && (t.first as usize, t.last as usize) == (first, last);
            if let Some(at) = tasks.iter().position(whole) {
                choices.push(Choice::Place(at as u32));
                return StateOutcome::Branch(first as u32);
            }
        }
        let (section, valley) = self.choose_section(tasks, (first, last), limit);
        self.answers(tasks, section, prefer, choices);
        let floor = self.floor[section];
        if let Some(next) = next_floor(tasks, section as u32, floor, valley)
            && next <= limit - self.load[section]
        {
            choices.push(Choice::Raise(next));
        }
        StateOutcome::Branch(section as u32)
    }

    /// Computes load and floor, from the highest head down; false if some section overflows.
    fn fits(&mut self, tasks: &[Task], (first, last): (usize, usize), limit: i64) -> bool {
        self.load[first..last].fill(0);
        for task in tasks.iter().rev() {
            let range = task.first as usize..task.last as usize;
            let room = limit - task.head;
            // The sign of the differences in one: no comparison per section, so that the loop stays a vector loop.
            let mut sign = 0;
            for load in &mut self.load[range.clone()] {
                *load += task.size;
                sign |= room - *load;
            }
            if sign < 0 {
                for section in range {
                    self.failures[section] += u64::from(self.load[section] > room);
                }
                return false;
            }
            self.floor[range].fill(task.head);
        }
        true
    }

    /// The section to ask about and its valley: the fewest answers for the failures seen, then the least room to spare.
    fn choose_section(&mut self, tasks: &[Task], (first, last): (usize, usize), limit: i64) -> (usize, (usize, usize)) {
        self.ready[first..=last].fill(0);
        for task in tasks {
            // Exact inside valleys, which is where it is read: whatever reaches beyond has a higher head.
            let ready = i64::from(task.head == self.floor[task.first as usize]);
            self.ready[task.first as usize] += ready;
            self.ready[task.last as usize] -= ready;
        }
        let mut best = ((u64::MAX, i64::MAX), first, (first, last));
        let (mut start, mut wall, mut ready) = (first, i64::MAX, 0);
        while start < last {
            let floor = self.floor[start];
            let same = self.floor[start..last].iter().take_while(|&&f| f == floor).count();
            let end = start + same;
            let is_valley = wall > floor && (end == last || self.floor[end] > floor);
            for section in start..end {
                ready += self.ready[section];
                if !is_valley {
                    continue;
                }
                let spare = limit - floor - self.load[section];
                let answers = ready + i64::from(spare > 0);
                let score = match answers {
                    ..=1 => 0,
                    n => ((n * n) as u64).saturating_mul(1 << 32) / self.failures[section],
                };
                if (score, spare) < best.0 {
                    best = ((score, spare), section, (start, end));
                }
            }
            (wall, start) = (floor, end);
        }
        (best.1, best.2)
    }

    /// Tasks that can lie on the ground of a section, one of each class.
    fn answers(&mut self, tasks: &[Task], section: usize, prefer: AnswerOrder, choices: &mut Vec<Choice>) {
        let floor = self.floor[section];
        self.order.clear();
        let from = tasks.partition_point(|t| t.head < floor);
        for (at, task) in tasks.iter().enumerate().skip(from) {
            if task.head > floor {
                break;
            }
            // What covers a section of a valley and has its floor for a head lies within the valley.
            if !task.covers(section as u32) {
                continue;
            }
            let life = i64::from(task.last - task.first);
            let key = match prefer {
                AnswerOrder::Long => (-life, -task.size),
                AnswerOrder::Large => (-task.size, -life),
                AnswerOrder::Any(seed) => (mix(seed ^ u64::from(task.class), floor as u64) as i64, 0),
            };
            self.order.push((key.0, key.1, at as u32));
        }
        self.order.sort_unstable_by_key(|&(a, b, at)| (a, b, tasks[at as usize].class, tasks[at as usize].item));
        let mut class = None;
        for &(_, _, at) in &self.order {
            if class != Some(tasks[at as usize].class) {
                choices.push(Choice::Place(at));
            }
            class = Some(tasks[at as usize].class);
        }
    }
}

/// The lowest address for the next buffer of a section on whose ground nothing lies.
///
/// Buffers can be pushed down until something below holds them. A buffer that could lie on the ground and does not is held by
/// one that lives in the valley but not in the section; any other starts no lower than its head.
fn next_floor(tasks: &[Task], section: u32, floor: i64, (start, end): (usize, usize)) -> Option<i64> {
    let mut next = None::<i64>;
    for task in tasks {
        let address = if task.covers(section) {
            if task.head == floor {
                continue;
            }
            task.head
        } else if (task.first as usize) < end && (task.last as usize) > start {
            task.head + task.size
        } else {
            continue;
        };
        next = Some(next.map_or(address, |n| n.min(address)));
    }
    next
}

/// Two numbers to one that looks random.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(32).wrapping_add(b).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
