//! States: programs that would compute their graph at the last position, and something else at another.

use tpuflow_checker::{Rule, check, check_rules};
use tpuflow_ir::isa::{Direction, Transfer};
use tpuflow_ir::{Graph, Machine, Port, Program, Space, State, Work};
use tpuflow_scheduler::{Options, schedule};

use crate::common::Net;

/// Two caches of six rows, to each of which two rows are appended, and sums of all rows. A row is an image row, or a pixel, of
/// which a word holds several.
fn graph(pixels: bool) -> Graph {
    let row = |count| if pixels { [1, 1, count, 16] } else { [1, count, 2, 8] };
    let axis = if pixels { 2 } else { 1 };
    let mut net = Net::new(5);
    let x = net.input(&[1, 2, 12]);
    let mut outputs = vec![];
    for _ in 0..2 {
        let past = net.input(&row(6));
        let flat = net.matmul(x, 16);
        let own = net.reshape(flat, &row(2));
        let rows = net.concat(&[past, own], axis, 0);
        outputs.extend([net.transpose(rows, &[0, 2, 3, 1]), own]);
    }
    let mut graph = net.finish(&outputs);
    for (input, output) in [(1, 1), (2, 3)] {
        let quant = graph.tensor(graph.outputs[output]).quant.clone();
        let id = graph.inputs[input].index();
        graph.tensors[id].quant = quant;
        graph.states.push(State { input: input as u32, output: output as u32, axis: axis as u32 });
    }
    assert_eq!(graph.verify(), vec![]);
    graph
}

fn programs() -> Vec<(Graph, Program)> {
    [(false, "32x32_fpga", 1), (false, "128x128_asic", 5), (true, "32x32_fpga", 5), (true, "128x128_asic", 1)]
        .map(|(pixels, name, level)| {
            let graph = graph(pixels);
            let machine = Machine::preset(name).unwrap();
            let program = schedule(&graph, &machine, &Options { level, ..Options::default() }).unwrap();
            assert_eq!(check(&graph, &program), Ok(()));
            assert_eq!(check_rules(&program), Ok(()));
            (graph, program)
        })
        .to_vec()
}

/// The first transfer of a direction that touches a state.
fn transfer(program: &mut Program, direction: Direction) -> &mut Transfer {
    let regions: Vec<_> = program.state_regions().flatten().collect();
    let touches =
        |t: &Transfer| regions.iter().any(|region| region.overlaps(t.ddr_space, t.ddr_address, t.ddr_address + 1));
    let found = program.instructions.iter_mut().find_map(|i| match &mut i.work {
        Work::Transfer(t) if t.direction == direction && touches(t) => Some(t),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn every_field_of_a_state_is_proven() {
    for (graph, sound) in programs() {
        let rule = |change: &dyn Fn(&mut Program)| {
            let mut wrong = sound.clone();
            change(&mut wrong);
            check(&graph, &wrong).unwrap_err()[0].rule
        };
        assert_eq!(rule(&|p| p.states.clear()), Rule::State);
        assert_eq!(rule(&|p| p.states.truncate(1)), Rule::State);
        assert_eq!(rule(&|p| p.states.push(p.states[0])), Rule::State);
        assert_eq!(rule(&|p| p.states.swap(0, 1)), Rule::State);
        assert_eq!(rule(&|p| p.states[0].input = 2), Rule::State);
        assert_eq!(rule(&|p| p.states[0].output = 3), Rule::State);
        assert_eq!(rule(&|p| p.states[0].axis ^= 3), Rule::State);
        assert_eq!(rule(&|p| p.states[0].input = u32::MAX), Rule::State);
    }
}

#[test]
fn a_state_has_a_place_of_its_own_in_one_piece() {
    for (graph, sound) in programs() {
        let rule = |change: &dyn Fn(&mut Program)| {
            let mut wrong = sound.clone();
            change(&mut wrong);
            check(&graph, &wrong).unwrap_err()[0].rule
        };
        let region = sound.state_regions().next().unwrap().unwrap();
        assert_eq!(rule(&|p| p.outputs[1].view.address += region.stride), Rule::State, "a gap before its output");
        let at = |port: &mut Port, space: Space, address: u64| (port.view.space, port.view.address) = (space, address);
        let space = Space::Ddr(region.space);
        assert_eq!(rule(&|p| at(&mut p.outputs[0], space, region.start)), Rule::State, "an output in its past");
        assert_eq!(rule(&|p| at(&mut p.inputs[0], space, region.border)), Rule::State, "an input in its output");
        let other = sound.outputs[3].view;
        let to_other = |p: &mut Program| at(&mut p.outputs[1], other.space, other.address);
        assert_eq!(rule(&to_other), Rule::State, "the output of another");
    }
}

#[test]
fn what_no_position_has_a_meaning_for_is_refused() {
    for (graph, sound) in programs() {
        let region = sound.state_regions().next().unwrap().unwrap();
        let rules = |direction, change: &dyn Fn(&mut Transfer)| {
            let mut wrong = sound.clone();
            change(transfer(&mut wrong, direction));
            let alone = check_rules(&wrong).map_err(|violations| violations[0].rule);
            (check(&graph, &wrong).unwrap_err()[0].rule, alone)
        };
        let state = (Rule::State, Err(Rule::State));
        let row = region.stride;
        // At the last position these would load rows of zero points, or store beside the new ones.
        assert_eq!(rules(Direction::Store, &|t| t.ddr_address = region.start), state);
        assert_eq!(rules(Direction::Store, &|t| t.ddr_address -= row), state);
        assert_eq!(rules(Direction::Store, &|t| t.bytes += 2 * row as u32), state);
        assert_eq!(rules(Direction::Load, &|t| t.ddr_address += row), state);
        assert_eq!(rules(Direction::Load, &|t| t.bytes += row as u32), state);
        assert_eq!(rules(Direction::Load, &|t| t.local_space = Space::EwpCache), state);
    }
}
