//! A change of a program, as data: it can be listed, counted, repeated and undone.

use serde_json::Value;
use tpuflow_ir::isa::{Unit, Wait};
use tpuflow_ir::{Instruction, Program, Work};

use super::fields::{Fields, Item, Site, put, restore, same};

/// What a site is to hold.
#[derive(Clone, Debug)]
pub enum Replacement {
    /// What another site of the same program holds.
    From(Site),
    /// A value.
    Value(Value),
}

/// A change.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Fields that take other values.
    Sets(Vec<(Site, Replacement)>),
    /// An instruction left out.
    Drop(usize),
    /// An instruction put in once more, in front of another.
    Duplicate(usize, usize),
    /// Two instructions in each other's place.
    Swap(usize, usize),
    /// An instruction moved in front of another.
    Move(usize, usize),
    /// Bytes of the constants of a DDR address space, from an address on.
    Bytes(Vec<(usize, usize, Vec<u8>)>),
}

/// How instructions of a mutant wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// As the program has them.
    Kept,
    /// As the program has them, their counts raised and lowered with the instructions that come and go.
    Counted,
    /// Every instruction for all before it: what is wrong cannot hide behind a missing wait.
    Serial,
}

/// A change of a program and the class it is counted in.
#[derive(Clone, Debug)]
pub struct Mutant {
    pub class: String,
    pub edit: Edit,
    pub waits: Waits,
}

/// A program as it is, and the same with every instruction waiting for all before it.
#[derive(Clone)]
pub struct Bases {
    pub kept: Program,
    pub serial: Program,
}

impl Bases {
    pub fn of(program: &Program) -> Self {
        let mut serial = program.clone();
        serialize(&mut serial.instructions);
        Self { kept: program.clone(), serial }
    }

    pub fn base(&self, waits: Waits) -> &Program {
        if waits == Waits::Serial { &self.serial } else { &self.kept }
    }

    fn base_mut(&mut self, waits: Waits) -> &mut Program {
        if waits == Waits::Serial { &mut self.serial } else { &mut self.kept }
    }
}

impl Mutant {
    /// Changes a copy of the bases: the changed program, if it is one and another one. To be followed by [`Mutant::undo`].
    pub fn apply<'s>(&self, bases: &Bases, scratch: &'s mut Bases, fields: &Fields) -> Option<&'s Program> {
        let (base, program) = (bases.base(self.waits), scratch.base_mut(self.waits));
        let changed = match &self.edit {
            Edit::Sets(sets) => set(base, program, fields, sets, self.waits),
            Edit::Bytes(changes) => bytes(base, program, changes),
            _ => {
                self.reorder(&mut program.instructions);
                if self.waits == Waits::Serial {
                    serialize(&mut program.instructions);
                }
                program.instructions != base.instructions
            }
        };
        (changed && !too_large(program)).then_some(&*program)
    }

    /// Makes the copy as its base again.
    pub fn undo(&self, bases: &Bases, scratch: &mut Bases) {
        let (base, program) = (bases.base(self.waits), scratch.base_mut(self.waits));
        match &self.edit {
            Edit::Sets(sets) => sets.iter().for_each(|(site, _)| restore(program, base, site.item)),
            Edit::Bytes(_) => program.constants.clone_from(&base.constants),
            _ => program.instructions.clone_from(&base.instructions),
        }
    }

    /// Whether it changes nothing but what reports show.
    pub fn only_reported(&self) -> bool {
        let reported = |item| matches!(item, Item::Layer(_) | Item::Allocation(_) | Item::Bounds | Item::Tiling(_));
        matches!(&self.edit, Edit::Sets(sets) if sets.iter().all(|(site, _)| reported(site.item)))
    }

    /// The first instruction of which the base knows something else, if nothing that comes before all of them is changed.
    pub fn first(&self, base: &Program) -> Option<usize> {
        let end = base.instructions.len();
        let of = |site: &Site| match site.item {
            Item::Instruction(at) => Some(at),
            // Descriptors are read by those that name them.
            Item::Descriptor(number) => {
                let names = |instruction: &Instruction| descriptor(instruction) == Some(number);
                Some(base.instructions.iter().position(names).unwrap_or(end))
            }
            Item::Machine | Item::Tiling(_) => None,
            Item::Header if site.pointer.starts_with("/ddr_bytes") => None,
            Item::Header | Item::Layer(_) | Item::Input(_) => Some(end),
            Item::Output(_) | Item::Allocation(_) | Item::Bounds => Some(end),
        };
        match &self.edit {
            Edit::Sets(sets) => sets.iter().try_fold(end, |first, (site, _)| Some(first.min(of(site)?))),
            Edit::Drop(at) => Some(*at),
            Edit::Duplicate(_, to) => Some(*to),
            Edit::Swap(a, b) | Edit::Move(a, b) => Some(*a.min(b)),
            Edit::Bytes(changes) => {
                let taken = |instruction: &Instruction| changes.iter().any(|change| may_read(instruction, change));
                Some(base.instructions.iter().position(taken).unwrap_or(end))
            }
        }
    }

    /// Whether the layers themselves become others.
    pub fn divides_otherwise(&self) -> bool {
        matches!(&self.edit, Edit::Sets(sets) if sets.iter().any(|(site, _)| matches!(site.item, Item::Tiling(_))))
    }

    fn reorder(&self, list: &mut Vec<Instruction>) {
        let counted = self.waits == Waits::Counted;
        match self.edit {
            Edit::Drop(at) => {
                if counted {
                    recount(list, at, -1);
                }
                list.remove(at);
            }
            Edit::Duplicate(at, to) => {
                let copy = list[at].clone();
                insert(list, to, copy, counted);
            }
            Edit::Move(from, to) => {
                if counted {
                    recount(list, from, -1);
                }
                let moved = list.remove(from);
                insert(list, to.min(list.len()), moved, counted);
            }
            Edit::Swap(a, b) => list.swap(a, b),
            Edit::Sets(_) | Edit::Bytes(_) => {}
        }
    }

    /// In words, with old and new values.
    pub fn describe(&self, fields: &Fields) -> String {
        let edit = match &self.edit {
            Edit::Sets(sets) => {
                let one = |(site, with): &(Site, Replacement)| {
                    let (new, from) = match with {
                        Replacement::From(other) => (fields.value(other), format!(" (of {})", other.item)),
                        Replacement::Value(value) => (value, String::new()),
                    };
                    format!("{} {}: {} -> {new}{from}", site.item, site.pointer, fields.value(site))
                };
                sets.iter().map(one).collect::<Vec<_>>().join("; ")
            }
            Edit::Bytes(changes) => {
                let one = |(space, at, bytes): &(usize, usize, Vec<u8>)| {
                    let shown = &bytes[..bytes.len().min(8)];
                    format!("{} constant bytes of DDR {space} from {at}: {shown:?}..", bytes.len())
                };
                changes.iter().map(one).collect::<Vec<_>>().join("; ")
            }
            other => format!("{other:?}"),
        };
        format!("[{}] {edit}; waits {:?}", self.class, self.waits)
    }
}

fn descriptor(instruction: &Instruction) -> Option<usize> {
    match &instruction.work {
        Work::Matrix(m) => Some(m.descriptor.index()),
        Work::Pool(p) => Some(p.descriptor.index()),
        Work::Vector(v) => Some(v.descriptor.index()),
        Work::Transfer(_) | Work::Lookup(_) | Work::Expand(_) | Work::PackedLookup(_) => None,
    }
}

/// Whether an instruction may read constants that are changed.
fn may_read(instruction: &Instruction, (space, at, bytes): &(usize, usize, Vec<u8>)) -> bool {
    match &instruction.work {
        Work::Transfer(t) => {
            let reach = |axis: usize| u64::from(t.counts[axis] - 1) * t.ddr_strides[axis];
            let end = t.ddr_address + reach(0) + reach(1) + u64::from(t.bytes);
            usize::from(t.ddr_space) == *space && t.ddr_address < (at + bytes.len()) as u64 && *at as u64 <= end
        }
        Work::Lookup(_) | Work::Expand(_) | Work::PackedLookup(_) => true,
        Work::Matrix(_) | Work::Pool(_) | Work::Vector(_) => false,
    }
}

/// Memories that no run of a campaign should have to make.
fn too_large(program: &Program) -> bool {
    let machine = &program.machine;
    machine.validate().is_err()
        || machine.cache_bytes() > 1 << 26
        || machine.ewp_cache_bytes() > 1 << 26
        || program.ddr_bytes.iter().any(|&bytes| bytes > 1 << 27)
}

/// Whether the fields could be set and anything is another now.
fn set(base: &Program, program: &mut Program, fields: &Fields, sets: &[(Site, Replacement)], waits: Waits) -> bool {
    let mut items: Vec<(Item, Value)> = Vec::new();
    for (site, with) in sets {
        let known = items.iter().position(|(item, _)| *item == site.item).unwrap_or_else(|| {
            items.push((site.item, fields.item(site.item).clone()));
            items.len() - 1
        });
        let Some(place) = items[known].1.pointer_mut(&site.pointer) else { return false };
        *place = match with {
            Replacement::From(other) => fields.value(other).clone(),
            Replacement::Value(value) => value.clone(),
        };
    }
    let mut changed = false;
    for (item, value) in items {
        if !put(program, item, value) {
            return false;
        }
        if let (Item::Instruction(at), Waits::Serial) = (item, waits) {
            program.instructions[at].waits.clone_from(&base.instructions[at].waits);
        }
        changed |= !same(program, base, item);
    }
    changed
}

fn bytes(base: &Program, program: &mut Program, changes: &[(usize, usize, Vec<u8>)]) -> bool {
    for (space, at, bytes) in changes {
        let mut image = program.constants[*space].to_vec();
        let Some(place) = image.get_mut(*at..at + bytes.len()) else { return false };
        place.copy_from_slice(bytes);
        program.constants[*space] = image.into();
    }
    program.constants != base.constants
}

/// Number of an instruction among those of its unit, from 1.
fn number(list: &[Instruction], at: usize) -> u32 {
    list[..=at].iter().filter(|other| other.unit == list[at].unit).count() as u32
}

/// Counts of waits behind `at` for its unit, from its own number on, by `by`.
fn recount(list: &mut [Instruction], at: usize, by: i64) {
    let (unit, own) = (list[at].unit, number(list, at));
    for instruction in &mut list[at + 1..] {
        for wait in instruction.waits.iter_mut().filter(|wait| wait.unit == unit && wait.count >= own) {
            wait.count = (i64::from(wait.count) + by) as u32;
        }
        instruction.waits.retain(|wait| wait.count > 0);
    }
}

fn insert(list: &mut Vec<Instruction>, to: usize, instruction: Instruction, counted: bool) {
    list.insert(to, instruction);
    if counted {
        recount(list, to, 1);
    }
}

/// Makes every instruction wait for all before it.
pub fn serialize(list: &mut [Instruction]) {
    let mut finished = [0u32; Unit::COUNT];
    for instruction in list {
        let waits = Unit::ALL.into_iter().zip(finished).filter(|&(_, count)| count > 0);
        instruction.waits = waits.map(|(unit, count)| Wait { unit, count }).collect();
        finished[instruction.unit.index()] += 1;
    }
}
