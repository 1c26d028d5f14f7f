//! Exact search for addresses below a limit.
//!
//! A state is the set of buffers without an address, each with its *head*, the lowest address it can still get. Placing a
//! buffer at its head lifts the heads of those it meets; nothing is ever placed below a head again, so buffers are stacked
//! from the bottom and each solution is met in one form, pushed down. `node` says when a state is hopeless and how to branch.
//!
//! * States fall apart where no buffer crosses a cut in time; parts are solved one by one, and a part that fails sends the
//!   search straight back to the state it came from.
//! * A state that failed is remembered by a hash of its heads (64 bits, buffers without difference exchanged), and is never
//!   entered again, whatever order led to it, in later attempts too.
//! * Run times have heavy tails, so attempts are short and repeated with other preferences; sections that failed are asked
//!   about earlier in the next, recent failures by preference.
//!
//! Sections, floors and decomposition in time follow the published idea of searching over canonical placements
//! (Moffitt, "MiniMalloc", ASPLOS 2023, doi 10.1145/3623278.3624752); asking about one section, and preferring those that
//! failed, are the usual ways of constraint solvers (Boussemart et al., "Boosting systematic search by weighting
//! constraints", ECAI 2004).

mod node;
mod tasks;

use super::Problem;
use node::{AnswerOrder, Choice, Scratch, StateOutcome, mix};
use tasks::{Task, Tasks};

/// End of a list, or the parent of what has none.
const NONE: u32 = u32::MAX;
/// Tasks the states under way may hold, about 400 MB: a search that needs more gives up.
const MOST_TASKS: usize = 10_000_000;
/// Slots of the table of failed states, as powers of two, at first and at most.
const FEWEST_SLOTS: u32 = 12;
const MOST_SLOTS: u32 = 22;
/// Tasks examined between two looks at the caller's clock, some milliseconds.
const WORK_BETWEEN_LOOKS: usize = 1 << 16;
/// Least budget of an attempt, in steps, and per buffer: most attempts that succeed never go far back.
const LEAST_BUDGET: u64 = 2_000;
const BUDGET_PER_ITEM: u64 = 4;
/// Attempts share the steps done so far: one gets this part of them, so that a long search ends in long attempts, too.
const BUDGET_SHARE: u64 = 512;
/// Preferences of the attempts, by turns; those by lot take a new seed each time.
const TURNS: [AnswerOrder; 4] = [AnswerOrder::Long, AnswerOrder::Any(1), AnswerOrder::Large, AnswerOrder::Any(2)];

/// How a search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Addresses below the limit, by item.
    Feasible(Vec<u64>),
    /// There are none.
    Infeasible,
    /// Steps, time or memory ran out.
    Unknown,
}

/// A part of a state that is still to be solved, in a linked list.
#[derive(Clone, Copy)]
struct Part {
    start: u32,
    end: u32,
    /// The frame it came from.
    parent: u32,
    /// The part after it.
    next: u32,
}

/// A state under way, and what to go back to.
struct Frame {
    part: Part,
    key: u64,
    section: u32,
    /// Choices not yet tried.
    choice: u32,
    choices: u32,
    tasks: u32,
    parts: u32,
    placed: u32,
}

/// A search over one problem, for any number of limits.
pub(super) struct Exact {
    root: Vec<Task>,
    unit: u64,
    items: usize,
    seed: u64,
    ground: Scratch,
    tasks: Vec<Task>,
    parts: Vec<Part>,
    frames: Vec<Frame>,
    choices: Vec<Choice>,
    placed: Vec<(u32, i64)>,
    lifted: Vec<Task>,
    crossing: Vec<i32>,
    failed: Vec<u64>,
    failures: usize,
    turn: u64,
    /// Tasks examined since the last look.
    work: usize,
    /// States examined so far.
    pub steps: u64,
}

impl Exact {
    pub fn new(problem: &Problem, alignments: &[u64], seed: u64) -> Self {
        let Tasks { mut tasks, sections, unit, unaligned } = Tasks::new(problem, alignments);
        tasks.sort_by_key(|t| (t.first, t.item));
        Self {
            root: tasks,
            unit,
            items: problem.items.len(),
            seed,
            ground: Scratch::new(sections, unaligned),
            tasks: Vec::new(),
            parts: Vec::new(),
            frames: Vec::new(),
            choices: Vec::new(),
            placed: Vec::new(),
            lifted: Vec::new(),
            crossing: vec![0; sections + 1],
            failed: vec![0; 1 << FEWEST_SLOTS],
            failures: 0,
            turn: 0,
            work: 0,
            steps: 0,
        }
    }

    /// All addresses found are multiples of this: heights in between cannot be told apart.
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// Looks for addresses whose ends do not exceed `height`, for about `steps` steps; `go_on` is asked now and then.
    pub fn below(&mut self, height: u64, steps: u64, go_on: &mut dyn FnMut(u64) -> bool) -> Verdict {
        let limit = i64::try_from(height / self.unit).unwrap_or(i64::MAX >> 1).min(i64::MAX >> 1);
        let end = self.steps.saturating_add(steps);
        let start = self.steps;
        let least = LEAST_BUDGET.max(BUDGET_PER_ITEM * self.root.len() as u64);
        loop {
            for prefer in TURNS {
                self.turn += 1;
                self.ground.fade();
                let budget = least.max((self.steps - start) / BUDGET_SHARE);
                let prefer = match prefer {
                    AnswerOrder::Any(lot) => AnswerOrder::Any(mix(self.seed ^ lot, self.turn)),
                    other => other,
                };
                let stop = self.steps.saturating_add(budget).min(end);
                match self.attempt(limit, prefer, stop, go_on) {
                    Some(true) => return Verdict::Feasible(self.addresses()),
                    Some(false) => return Verdict::Infeasible,
                    None if self.steps < stop || stop == end => return Verdict::Unknown,
                    None => {}
                }
            }
        }
    }

    fn addresses(&self) -> Vec<u64> {
        let mut addresses = vec![0; self.items];
        for &(item, address) in &self.placed {
            addresses[item as usize] = address as u64 * self.unit;
        }
        addresses
    }

    /// One depth-first search until `stop` steps: whether there are addresses, if known.
    fn attempt(
        &mut self,
        limit: i64,
        prefer: AnswerOrder,
        stop: u64,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Option<bool> {
        self.tasks.clone_from(&self.root);
        self.parts.clear();
        self.frames.clear();
        self.choices.clear();
        self.placed.clear();
        let mut next = self.split(0, NONE, NONE);
        loop {
            if next == NONE {
                return Some(true);
            }
            let part = self.parts[next as usize];
            self.work += (part.end - part.start) as usize;
            let looks = self.work > WORK_BETWEEN_LOOKS;
            if self.steps >= stop || self.tasks.len() > MOST_TASKS || (looks && !go_on(self.steps)) {
                return None;
            }
            if looks {
                self.work = 0;
            }
            self.steps += 1;
            let frame = self.enter(part, limit, prefer).unwrap_or(part.parent);
            match self.advance(frame) {
                Some(part) => next = part,
                None => return Some(false),
            }
        }
    }

    /// Examines a part; the frame that holds its choices, or `None` if it is known or seen to have no solution.
    fn enter(&mut self, part: Part, limit: i64, prefer: AnswerOrder) -> Option<u32> {
        let tasks = &self.tasks[part.start as usize..part.end as usize];
        let (mut first, mut last, mut key) = (u32::MAX, 0, mix(limit as u64, 0));
        for task in tasks {
            (first, last) = (first.min(task.first), last.max(task.last));
            key = key.wrapping_add(mix(u64::from(task.class) + 1, task.head as u64));
        }
        if self.failed[self.slot(key)] == key {
            return None;
        }
        let from = self.choices.len() as u32;
        let sections = (first as usize, last as usize);
        let StateOutcome::Branch(section) = self.ground.examine(tasks, sections, limit, prefer, &mut self.choices)
        else {
            self.remember(key);
            return None;
        };
        self.frames.push(Frame {
            part,
            key,
            section,
            choice: from,
            choices: self.choices.len() as u32,
            tasks: self.tasks.len() as u32,
            parts: self.parts.len() as u32,
            placed: self.placed.len() as u32,
        });
        Some(self.frames.len() as u32 - 1)
    }

    /// Goes back to a frame and makes its next choice, or to its parent if there is none left; what is to be solved next, or
    /// `None` if everything was tried.
    fn advance(&mut self, mut at: u32) -> Option<u32> {
        loop {
            if at == NONE {
                return None;
            }
            self.frames.truncate(at as usize + 1);
            let frame = &mut self.frames[at as usize];
            self.tasks.truncate(frame.tasks as usize);
            self.parts.truncate(frame.parts as usize);
            self.placed.truncate(frame.placed as usize);
            self.choices.truncate(frame.choices as usize);
            if frame.choice == frame.choices {
                let (key, parent) = (frame.key, frame.part.parent);
                self.remember(key);
                at = parent;
                continue;
            }
            let choice = self.choices[frame.choice as usize];
            frame.choice += 1;
            let (part, section) = (frame.part, frame.section);
            let from = self.tasks.len();
            match choice {
                Choice::Place(index) => {
                    let placed = self.tasks[(part.start + index) as usize];
                    self.placed.push((placed.item, placed.head));
                    let top = placed.head + placed.size;
                    self.lift(part, Some(index), top, |task| task.meets(&placed));
                }
                Choice::Raise(address) => self.lift(part, None, address, |task| task.covers(section)),
            }
            return Some(self.split(from as u32, at, part.next));
        }
    }

    /// Appends the tasks of a part but for one, those that `rises` names at `address` or above, sorted by head.
    fn lift(&mut self, part: Part, without: Option<u32>, address: i64, rises: impl Fn(&Task) -> bool) {
        self.lifted.clear();
        for index in part.start..part.end {
            let task = self.tasks[index as usize];
            if task.head < address && without != Some(index - part.start) && rises(&task) {
                self.lifted.push(task.from(address));
            }
        }
        self.lifted.sort_by_key(|task| task.head);
        let mut lifted = 0;
        for index in part.start..part.end {
            let task = self.tasks[index as usize];
            if without == Some(index - part.start) || (task.head < address && rises(&task)) {
                continue;
            }
            while lifted < self.lifted.len() && self.lifted[lifted].head < task.head {
                self.tasks.push(self.lifted[lifted]);
                lifted += 1;
            }
            self.tasks.push(task);
        }
        self.tasks.extend_from_slice(&self.lifted[lifted..]);
    }

    /// Cuts the tasks from `from` on where none crosses, and puts the parts, the largest last, before `rest`.
    fn split(&mut self, from: u32, parent: u32, rest: u32) -> u32 {
        let end = self.tasks.len() as u32;
        let (mut first, mut last) = (u32::MAX, 0);
        for task in &self.tasks[from as usize..] {
            (first, last) = (first.min(task.first), last.max(task.last));
        }
        if from == end {
            return rest;
        }
        self.crossing[first as usize..last as usize].fill(0);
        for task in &self.tasks[from as usize..] {
            self.crossing[task.first as usize] += 1;
            self.crossing[task.last as usize - 1] -= 1;
        }
        // The number of the part each section belongs to takes the place of the count.
        let (mut crossing, mut cuts) = (0, 0);
        for section in first..last {
            crossing += self.crossing[section as usize];
            self.crossing[section as usize] = cuts;
            cuts += i32::from(crossing == 0);
        }
        let mut next = rest;
        let mut add = |parts: &mut Vec<Part>, start, end| {
            parts.push(Part { start, end, parent, next });
            next = parts.len() as u32 - 1;
        };
        if cuts == 1 {
            add(&mut self.parts, from, end);
            return next;
        }
        let owner = |crossing: &[i32], task: &Task| crossing[task.first as usize];
        // A stable sort keeps every part sorted by head.
        let mut moved = self.tasks[from as usize..].to_vec();
        moved.sort_by_key(|task| owner(&self.crossing, task));
        self.tasks.truncate(from as usize);
        let mut spans: Vec<(u32, u32)> = Vec::new();
        for chunk in moved.chunk_by(|a, b| owner(&self.crossing, a) == owner(&self.crossing, b)) {
            let start = self.tasks.len() as u32;
            self.tasks.extend_from_slice(chunk);
            spans.push((start, self.tasks.len() as u32));
        }
        // The smallest is solved first: if it fails, the least was spent on it.
        spans.sort_by_key(|&(start, end)| std::cmp::Reverse(end - start));
        for (start, end) in spans {
            add(&mut self.parts, start, end);
        }
        next
    }

    fn slot(&self, key: u64) -> usize {
        key as usize & (self.failed.len() - 1)
    }

    /// Notes that a state has no solution; the table grows while it is small, then new entries replace old ones.
    fn remember(&mut self, key: u64) {
        if self.failures > self.failed.len() / 2 && self.failed.len() < 1 << MOST_SLOTS {
            let old = std::mem::take(&mut self.failed);
            self.failed = vec![0; old.len() * 4];
            for key in old.into_iter().filter(|&key| key != 0) {
                let slot = self.slot(key);
                self.failed[slot] = key;
            }
        }
        let slot = self.slot(key);
        self.failures += usize::from(self.failed[slot] == 0);
        self.failed[slot] = key;
    }
}
