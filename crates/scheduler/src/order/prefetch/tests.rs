//! Random constants in a small cache: whatever is tried, the result is a sound one.

use super::model::Model;
use super::*;
use crate::budget::next_random;
use crate::virtual_program::{Packing, VirtualInstruction};
use tpuflow_ir::isa::{Direction, Transfer};
use tpuflow_ir::{LayerId, TensorId};

const REACHES: PrefetchDistance = PrefetchDistance { layers: u32::MAX, positions: u32::MAX, ring: [true; 2] };

/// Constants of random sizes that are loaded, stored now and then, and not needed any more.
fn code(below: &mut impl FnMut(u64) -> u64) -> VirtualProgram {
    let mut code = VirtualProgram::default();
    let constant = Content::Constant(Packing::Table { tensor: TensorId::new(0) });
    for layer in 0..20 + below(30) as u32 {
        let most = 1 + below(24);
        let bytes = 128 * (1 + below(most));
        let from = code.buffer(format!("{layer}"), bytes, Memory::Ddr, constant.clone());
        let to = code.buffer(format!("{layer}"), bytes, Memory::Cache, Content::Computed);
        let out = code.buffer(format!("{layer}"), bytes, Memory::Ddr, Content::Output);
        code.load_whole(LayerId(layer), from, to, Memory::Cache, bytes);
        for _ in 0..1 + below(3) {
            let transfer = Transfer {
                direction: Direction::Store,
                ddr_space: 0,
                ddr_address: out.at(0),
                local_space: Space::Cache,
                local_address: to.at(0),
                bytes: bytes as u32,
                counts: [1, 1],
                ddr_strides: [0, 0],
                local_strides: [0, 0],
            };
            code.instructions.push(VirtualInstruction::new(LayerId(layer), Work::Transfer(transfer)));
        }
    }
    code
}

#[test]
fn whatever_the_preferences_buffers_lie_apart_and_loads_come_before_their_users() {
    let mut machine = Machine::preset("128x128_asic").expect("known");
    (machine.cache.banks, machine.cache.words) = (2, 32);
    let residents = Residents::none(&machine);
    let mut shorter = 0;
    for seed in 1..40 {
        let mut random = seed;
        let mut below = |n: u64| next_random(&mut random) % n;
        let code = code(&mut below);
        let prefetcher = Prefetcher::new(&code, &machine, &REACHES, &residents).expect("nothing is computed");
        let choices = [Choice::Next, Choice::Tight { end: false }, Choice::Tight { end: true }, Choice::Last];
        let mut preference = || LoadPreference { lead: below(40) as u32, choice: choices[below(4) as usize] };
        let preferences: Vec<LoadPreference> = prefetcher.loads.iter().map(|_| preference()).collect();
        let usual =
            prefetcher.placement(&vec![LoadPreference::default(); preferences.len()]).expect("a buffer at a time fits");
        let model = Model::new(&prefetcher);
        let before = model.makespan(&usual);
        let budget = SearchBudget { seed, steps: 20, deadline: None };
        let found = search::improved(&prefetcher, usual, &budget);
        assert!(model.makespan(&found) <= before);
        shorter += u32::from(model.makespan(&found) < before);

        let random = prefetcher.placement(&preferences);
        let other = Prefetcher::new(&code, &machine, &REACHES, &residents).expect("nothing is computed");
        let all = [Some((prefetcher, found)), random.ok().map(|placement| (other, placement))];
        for (prefetcher, placement) in all.into_iter().flatten() {
            is_sound(&code, &prefetcher.finish(&placement), &machine);
        }
    }
    assert!(shorter > 10, "{shorter}");
}

/// A load of the first rows before the others are stored, and the last rows into the same buffer when they are.
#[test]
fn rows_of_one_buffer_come_after_their_own_stores() {
    let machine = Machine::preset("128x128_asic").expect("known");
    let mut code = VirtualProgram::default();
    let [far, to] = [Memory::Ddr, Memory::Cache].map(|m| code.buffer(String::new(), 1024, m, Content::Computed));
    let made = code.buffer(String::new(), 1024, Memory::Cache, Content::Computed);
    for half in [0..512, 512..1024] {
        for direction in [Direction::Store, Direction::Load] {
            let local = if direction == Direction::Store { made } else { to };
            code.load(LayerId(0), far, local, Memory::Cache, half.clone());
            let Some(Work::Transfer(transfer)) = code.instructions.last_mut().map(|d| &mut d.work) else {
                panic!("a load")
            };
            transfer.direction = direction;
        }
    }
    let found = prefetch(&code, &machine, &REACHES, &Residents::none(&machine), None).expect("space for both");
    let moved: Vec<(Direction, u64)> = found
        .code
        .instructions
        .iter()
        .filter_map(|d| d.transfer().map(|t| (t.direction, VirtualAddress::of_field(t.ddr_address).offset)))
        .collect();
    let place = |wanted| moved.iter().position(|&m| m == wanted).expect("each is still there");
    for start in [0, 512] {
        assert!(place((Direction::Store, start)) < place((Direction::Load, start)), "{moved:?}");
    }
}

/// Checked pair by pair.
fn is_sound(code: &VirtualProgram, found: &LoadSchedule, machine: &Machine) {
    assert_eq!(found.code.instructions.len(), code.instructions.len());
    let live_ranges = lifetimes(&found.code);
    let placed: Vec<(u32, u32, u64, u64)> = (0..live_ranges.len())
        .filter(|&buffer| code.buffers[buffer].memory == Memory::Cache)
        .filter_map(|buffer| {
            let ((first, last), at) = (live_ranges[buffer]?, found.addresses[buffer].1);
            assert!(found.code.instructions[first.index()].load().is_some());
            Some((first.0, last.0, at, at + code.buffers[buffer].bytes))
        })
        .collect();
    for (index, a) in placed.iter().enumerate() {
        assert!(a.3 <= machine.cache_bytes());
        for b in &placed[..index] {
            assert!(a.1 < b.0 || b.1 < a.0 || a.3 <= b.2 || b.3 <= a.2, "{a:?} {b:?}");
        }
    }
}
