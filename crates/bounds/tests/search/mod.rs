//! All programs of a small graph: every order of its instructions on every line, of layers and transfers in one piece or two.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by a test and an example")]

use std::collections::BTreeSet;

use tpuflow_ir::access::accesses;
use tpuflow_ir::isa::{ChannelParameters, Direction, Transfer};
use tpuflow_ir::{Descriptor, Graph, Instruction, Program, Unit, Work, timing};
use tpuflow_simulator::{Options, simulate};

use crate::hand::{finish, follows};

/// The best of all programs.
#[derive(Clone, Debug)]
pub struct Best {
    pub cycles: u64,
    pub program: Program,
    /// Programs that were timed.
    pub programs: u64,
}

/// The best program of at most `most` instructions that does what `base` does.
pub fn search(base: &Program, most: usize) -> Option<Best> {
    let mut best = None;
    for instructions in variants(base, most) {
        let program = Program { instructions, ..base.clone() };
        Orders::of(&program).all(&mut best);
    }
    best
}

/// Instructions whole or in two halves, as many as there may be.
fn variants(base: &Program, most: usize) -> Vec<Vec<Instruction>> {
    let mut found: Vec<Vec<Instruction>> = vec![vec![]];
    for (at, instruction) in base.instructions.iter().enumerate() {
        let left = base.instructions.len() - at - 1;
        let ways = halves(base, instruction);
        let longer = |before: &Vec<Instruction>| {
            let fits = |way: &&Vec<Instruction>| before.len() + way.len() + left <= most;
            ways.iter().filter(fits).map(|way| [&before[..], &way[..]].concat()).collect::<Vec<_>>()
        };
        found = found.iter().flat_map(longer).collect();
    }
    found
}

fn halves(base: &Program, instruction: &Instruction) -> Vec<Vec<Instruction>> {
    let mut ways = vec![vec![instruction.clone()]];
    let mut two = |a: Work, b: Work| {
        ways.push([a, b].into_iter().map(|work| Instruction { work, ..instruction.clone() }).collect());
    };
    let word = base.machine.cache.word_bytes;
    match &instruction.work {
        Work::Transfer(t) if t.counts == [1, 1] && t.bytes >= 2 * word => {
            let half = (t.bytes / 2).next_multiple_of(word);
            let (ddr_address, local_address) = (t.ddr_address + u64::from(half), t.local_address + u64::from(half));
            let rest = Transfer { bytes: t.bytes - half, ddr_address, local_address, ..*t };
            two(Work::Transfer(Transfer { bytes: half, ..*t }), Work::Transfer(rest));
        }
        Work::Matrix(m) => {
            let Descriptor::Matrix(d) = &base.descriptors[m.descriptor.index()] else { unreachable!("a product") };
            for half in [m.pixels / 2, m.pixels / 4].into_iter().filter(|&half| half > 0) {
                let (mut a, mut b) = (*m, *m);
                (a.pixels, b.pixels, b.first_pixel) = (half, m.pixels - half, m.first_pixel + half);
                two(Work::Matrix(a), Work::Matrix(b));
            }
            if m.columns >= 2 {
                let half = m.columns / 2;
                let (mut a, mut b) = (*m, *m);
                (a.columns, b.columns) = (half, m.columns - half);
                (b.first_column, b.output_channel) = (m.first_column + half, m.output_channel + half);
                b.weights.address += u64::from(half) * d.weight_dtype.bytes() as u64;
                let wide = timing::has_wide_sums(m.input.dtype, d.weight_dtype);
                b.parameters += half * ChannelParameters::bytes(wide) as u32;
                two(Work::Matrix(a), Work::Matrix(b));
            }
        }
        Work::Pool(p) if p.rows >= 2 => {
            let (mut a, mut b) = (*p, *p);
            (a.rows, b.rows, b.first_row) = (p.rows / 2, p.rows - p.rows / 2, p.first_row + p.rows / 2);
            two(Work::Pool(a), Work::Pool(b));
        }
        _ => {}
    }
    ways
}

/// Orders of the instructions of a program.
struct Orders<'a> {
    program: &'a Program,
    /// By instruction, those it must follow.
    before: Vec<Vec<usize>>,
    seen: BTreeSet<[Vec<u8>; 5]>,
}

impl<'a> Orders<'a> {
    fn of(program: &'a Program) -> Self {
        let touched: Vec<_> =
            program.instructions.iter().map(|i| accesses(i, &program.descriptors, &program.machine)).collect();
        let before = |late: usize| (0..late).filter(|&early| follows(&touched[late], &touched[early])).collect();
        Self { program, before: (0..touched.len()).map(before).collect(), seen: BTreeSet::new() }
    }

    fn all(mut self, best: &mut Option<Best>) {
        self.extend(&mut Vec::new(), best);
    }

    fn extend(&mut self, order: &mut Vec<(usize, Unit)>, best: &mut Option<Best>) {
        let count = self.before.len();
        if order.len() == count {
            self.time(order, best);
            return;
        }
        for next in 0..count {
            let done = |i: usize| order.iter().any(|&(other, _)| other == i);
            if done(next) || !self.before[next].iter().all(|&before| done(before)) {
                continue;
            }
            let own = self.program.instructions[next].unit;
            let is_line = matches!(own, Unit::Dtl0 | Unit::Dtl1);
            // Lines are alike until one of them is used.
            let unused = !order.iter().any(|(_, unit)| matches!(unit, Unit::Dtl0 | Unit::Dtl1));
            let units = if !is_line {
                vec![own]
            } else if unused {
                vec![Unit::Dtl0]
            } else {
                vec![Unit::Dtl0, Unit::Dtl1]
            };
            for unit in units {
                order.push((next, unit));
                self.extend(order, best);
                order.pop();
            }
        }
    }

    /// Times an order, unless the units had the same to do in the same order before.
    fn time(&mut self, order: &[(usize, Unit)], best: &mut Option<Best>) {
        let of = |unit: Unit| order.iter().filter(|step| step.1 == unit).map(|step| step.0 as u8).collect::<Vec<u8>>();
        if !self.seen.insert(Unit::ALL.map(of)) {
            return;
        }
        let mut program = self.program.clone();
        program.instructions = order
            .iter()
            .map(|&(at, unit)| {
                let mut instruction = Instruction { unit, ..self.program.instructions[at].clone() };
                // Constants lie in every address space, and come from that of the line.
                if let Work::Transfer(t) = &mut instruction.work
                    && t.direction == Direction::Load
                    && program.constants.get(1).is_some_and(|image| t.ddr_address < image.len() as u64)
                {
                    t.ddr_space = u8::from(unit == Unit::Dtl1);
                }
                instruction
            })
            .collect();
        finish(&mut program);
        let run = simulate(&program, &[], &Options { values: false, ..Options::default() }).unwrap();
        let programs = best.as_ref().map_or(0, |best| best.programs) + 1;
        match best {
            Some(best) if best.cycles <= run.cycles => best.programs = programs,
            _ => *best = Some(Best { cycles: run.cycles, program, programs }),
        }
    }
}

/// The same constants in every address space.
pub fn spread(program: &mut Program) {
    let spaces = program.machine.ddr_spaces();
    program.constants.resize(1, Vec::new().into());
    program.constants = vec![program.constants[0].clone(); spaces];
    let bytes = program.ddr_bytes.iter().copied().max().unwrap_or(0);
    program.ddr_bytes = vec![bytes; spaces];
}

/// The best of all programs of at most `most` instructions, proven, and its lower bound.
pub fn optimum(graph: &Graph, machine: &tpuflow_ir::Machine, most: usize) -> Option<(Best, tpuflow_ir::Bounds)> {
    let mut base = crate::hand::serial(graph, machine);
    spread(&mut base);
    crate::hand::keep_constants(&mut base);
    finish(&mut base);
    if base.instructions.len() > most {
        return None;
    }
    let best = search(&base, most)?;
    assert_eq!(crate::hand::run(graph, &best.program), best.cycles);
    Some((best, base.bounds))
}
