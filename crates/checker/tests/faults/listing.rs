//! A program's instructions with waits by instruction instead of by count, so that instructions can be moved, left out and
//! repeated while all others go on waiting for whom they waited for.

use tpuflow_ir::isa::Unit;
use tpuflow_ir::{Instruction, Program, Wait};

/// An instruction and whom it waits for, by identity.
#[derive(Clone)]
struct Entry {
    identity: usize,
    instruction: Instruction,
    waits: Vec<(Unit, usize)>,
}

/// The instructions of a program.
pub struct Listing {
    entries: Vec<Entry>,
    fresh: usize,
}

impl Listing {
    pub fn of(program: &Program) -> Self {
        let mut done: [Vec<usize>; 5] = Default::default();
        let entries: Vec<Entry> = program
            .instructions
            .iter()
            .enumerate()
            .map(|(identity, instruction)| {
                let awaited = |w: &Wait| (w.unit, done[w.unit.index()][w.count as usize - 1]);
                let waits = instruction.waits.iter().map(awaited).collect();
                done[instruction.unit.index()].push(identity);
                Entry { identity, instruction: instruction.clone(), waits }
            })
            .collect();
        Self { fresh: entries.len(), entries }
    }

    /// Leaves an instruction out; who waited for it waits for the one before it on its unit.
    pub fn remove(&mut self, position: usize) {
        let gone = self.entries.remove(position);
        let unit = gone.instruction.unit;
        let before = self.entries[..position].iter().rev().find(|e| e.instruction.unit == unit).map(|e| e.identity);
        for entry in &mut self.entries {
            entry.waits.retain_mut(|(_, awaited)| {
                if *awaited != gone.identity {
                    return true;
                }
                *awaited = before.unwrap_or_default();
                before.is_some()
            });
        }
    }

    /// Moves the instruction at `from` to before the one at `to`, which is earlier. Waits that would point forwards vanish.
    pub fn hoist(&mut self, from: usize, to: usize) {
        let mut entry = self.entries.remove(from);
        entry.waits.retain(|&(_, awaited)| self.entries[..to].iter().any(|e| e.identity == awaited));
        self.entries.insert(to, entry);
    }

    /// Repeats the instruction at `position` right before the one at `at`, waiting for its unit as far as it has come.
    pub fn repeat(&mut self, position: usize, at: usize) {
        let mut entry = self.entries[position].clone();
        entry.identity = self.fresh;
        self.fresh += 1;
        entry.waits.clear();
        for unit in Unit::ALL {
            if let Some(last) = self.entries[..at].iter().rev().find(|e| e.instruction.unit == unit) {
                entry.waits.push((unit, last.identity));
            }
        }
        self.entries.insert(at, entry);
    }

    /// The instructions, waits counted again.
    pub fn finish(self) -> Vec<Instruction> {
        let mut done: [Vec<usize>; 5] = Default::default();
        let finished = self.entries.into_iter().map(|entry| {
            let count = |&(unit, awaited): &(Unit, usize)| {
                let number = done[unit.index()].iter().position(|&identity| identity == awaited);
                number.map(|n| Wait { unit, count: n as u32 + 1 })
            };
            let mut waits: Vec<Wait> = entry.waits.iter().filter_map(count).collect();
            // Two waits for one unit are one for the later.
            waits.sort_unstable();
            waits.dedup_by(|later, earlier| {
                let same = later.unit == earlier.unit;
                if same {
                    earlier.count = later.count;
                }
                same
            });
            done[entry.instruction.unit.index()].push(entry.identity);
            Instruction { waits: waits.into_iter().collect(), ..entry.instruction }
        });
        finished.collect()
    }
}
