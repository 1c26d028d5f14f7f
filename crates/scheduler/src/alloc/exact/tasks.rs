//! The problem as the search sees it: time cut to what matters, sizes to their common divisor, twins recognised.
//!
//! Two buffers can only collide where some moment holds both, and every set of buffers that live at one moment lies inside a
//! largest one. It is enough to look at these largest sets, the *sections*; in the order of time each buffer lives in a run of
//! them.

use super::super::{Item, Problem};

/// A buffer on its way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// The lowest address it can still get.
    pub head: i64,
    /// Its size, in units.
    pub size: i64,
    /// First section it lives in.
    pub first: u32,
    /// One past its last section.
    pub last: u32,
    /// Addresses are multiples of this many units.
    pub alignment: i64,
    /// Index of the item.
    pub item: u32,
    /// The same for buffers that differ in nothing.
    pub class: u32,
}

impl Task {
    /// Whether two buffers live at the same time.
    pub fn meets(&self, other: &Self) -> bool {
        self.first < other.last && other.first < self.last
    }

    /// Whether it lives in a section.
    pub fn covers(&self, section: u32) -> bool {
        self.first <= section && section < self.last
    }

    /// The buffer with its lowest address at `address` or above.
    pub fn from(self, address: i64) -> Self {
        if address <= self.head {
            return self;
        }
        let head =
            if self.alignment == 1 { address } else { (address as u64).next_multiple_of(self.alignment as u64) as i64 };
        Self { head, ..self }
    }
}

/// The tasks of a problem.
pub(super) struct Tasks {
    /// By item, those of size zero left out.
    pub tasks: Vec<Task>,
    /// Number of sections.
    pub sections: usize,
    /// Units of the problem in a unit of the search.
    pub unit: u64,
    /// Whether any address will do for every buffer.
    pub unaligned: bool,
}

impl Tasks {
    pub fn new(problem: &Problem, alignments: &[u64]) -> Self {
        let alignment = |index: usize| alignments.get(index).copied().unwrap_or(1).max(1);
        let used: Vec<usize> = (0..problem.items.len()).filter(|&i| problem.items[i].size > 0).collect();
        let unaligned = used.iter().all(|&i| alignment(i) == 1);
        let wide = used.iter().filter(|&&i| alignment(i) > 1);
        let sizes = used.iter().map(|&i| problem.items[i].size);
        // With alignments of one left out of the divisor, every sum of sizes still is an address.
        let unit = sizes.chain(wide.map(|&i| alignment(i))).fold(0, divisor).max(1);
        let closes = closes(&problem.items);
        let mut tasks: Vec<Task> = Vec::with_capacity(used.len());
        for index in used {
            let item = problem.items[index];
            tasks.push(Task {
                head: 0,
                size: (item.size / unit) as i64,
                first: closes.partition_point(|&close| close < item.first) as u32,
                last: closes.partition_point(|&close| close <= item.last) as u32,
                alignment: (alignment(index) / unit).max(1) as i64,
                item: index as u32,
                class: 0,
            });
        }
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        let form = |t: &Task| (t.first, t.last, t.size, t.alignment);
        order.sort_by_key(|&i| (form(&tasks[i]), i));
        for pair in 1..order.len() {
            let (before, now) = (order[pair - 1], order[pair]);
            tasks[now].class = tasks[before].class + u32::from(form(&tasks[before]) != form(&tasks[now]));
        }
        Self { tasks, sections: closes.len(), unit, unaligned }
    }
}

/// The moments at which a section is complete: something ends, and something began since the last such moment.
fn closes(items: &[Item]) -> Vec<u32> {
    let mut events: Vec<(u32, bool)> = Vec::with_capacity(2 * items.len());
    for item in items.iter().filter(|item| item.size > 0) {
        events.push((item.first, false));
        events.push((item.last, true));
    }
    // Lifetimes are closed: what starts at a moment meets what ends at it.
    events.sort_unstable();
    let (mut closes, mut grown) = (Vec::new(), false);
    for (time, ends) in events {
        if ends && grown {
            closes.push(time);
        }
        grown = !ends;
    }
    closes
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}
