//! Programs whose caches stay in DDR: at every position the integers of the graph with its past given, whatever lies in the rows
//! that do not count, and the same cycles from all simulators.

use std::sync::Arc;

use crate::common::{Net, tiny};
use crate::trial::inputs;
use tpuflow_ir::{DType, Graph, Machine, Program, State, TensorId};
use tpuflow_kernels::Values;
use tpuflow_scheduler::{Options as ScheduleOptions, schedule};
use tpuflow_simulator::{ArrayModel, Interpreter, Keep, Options, Run, Serial, StateRows, simulate};

/// What a decoder's attention computes for `new` tokens behind `past` others, of `heads` heads of `width` channels.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub past: usize,
    pub new: usize,
    pub heads: usize,
    pub width: usize,
    pub wide: bool,
    /// Whether a row of a cache is a pixel, of which a word may hold several, and not an image row.
    pub pixels: bool,
}

/// Attention over a past of keys and values and what is new; both are outputs again.
pub fn attention(shape: Shape) -> Graph {
    let Shape { past, new, heads, width, wide, pixels } = shape;
    let axis = if pixels { 2 } else { 1 };
    let mut net = Net::new(7);
    net.wide = wide;
    let x = net.input(&[1, new, 12]);
    let rows = |net: &mut Net| {
        let row = |count| if pixels { [1, 1, count, heads * width] } else { [1, count, heads, width] };
        let rows = net.input(&row(past));
        let flat = net.matmul(x, heads * width);
        let own = net.reshape(flat, &row(new));
        let all = net.concat(&[rows, own], axis, 0);
        (net.reshape(all, &[1, past + new, heads, width]), own)
    };
    let ((keys, own_keys), (values, own_values)) = (rows(&mut net), rows(&mut net));
    let flat = net.matmul(x, heads * width);
    let queries = net.reshape(flat, &[1, new, heads, width]);
    let [queries, keys, values] = [(queries, [0, 2, 1, 3]), (keys, [0, 2, 3, 1]), (values, [0, 2, 1, 3])]
        .map(|(tensor, order)| net.transpose(tensor, &order));
    let scores = net.product(queries, keys);
    let weights = net.softmax(scores, false);
    let mixed = net.product(weights, values);
    let mut graph = net.finish(&[mixed, own_keys, own_values]);
    for (port, output) in [(1, 1), (2, 2)] {
        let quant = graph.tensor(graph.outputs[output]).quant.clone();
        // A concatenation does not rescale: what it joins lies on one grid.
        let input: TensorId = graph.inputs[port];
        graph.tensors[input.index()].quant = quant;
        graph.states.push(State { input: port as u32, output: output as u32, axis: axis as u32 });
    }
    assert_eq!(graph.verify(), vec![]);
    graph
}

fn compiled(graph: &Graph, machine: &Machine, level: u8) -> Program {
    let program = schedule(graph, machine, &ScheduleOptions { level, ..ScheduleOptions::default() }).unwrap();
    assert_eq!(program.fallback, None);
    program
}

/// Runs a program at a position in every way: outputs and cycles, which must agree with each other and with the graph.
fn run_at(graph: &Graph, program: &Program, position: usize) -> Run {
    let program = program.at(position as u32);
    let mut given = inputs(graph, position as u64);
    let mut stale: Vec<Vec<u8>> = given.iter().map(Values::to_le_bytes).collect();
    for state in &graph.states {
        let tensor = graph.tensor(graph.inputs[state.input as usize]);
        let mut bytes = given[state.input as usize].to_le_bytes();
        let row = bytes.len() / tensor.shape[state.axis as usize];
        let zero = tensor.zero_point().to_le_bytes();
        for (at, byte) in bytes.iter_mut().enumerate().skip(position * row) {
            *byte = zero[at % tensor.dtype.bytes()];
        }
        given[state.input as usize] = Values::from_le_bytes(tensor.dtype, &bytes);
        // Nothing is said of rows that do not count.
        stale[state.input as usize][position * row..].fill(0x5a);
    }
    let expected = Interpreter::new(Arc::new(graph.clone())).unwrap().run(given, Keep::Outputs).unwrap();
    let run = simulate(&program, &stale, &Options::default()).unwrap();
    for (output, id) in run.outputs.iter().zip(&graph.outputs) {
        assert!(output == &expected.get(*id).unwrap().to_le_bytes(), "at {position}: {}", graph.tensor(*id).name);
    }
    let stepped = simulate(&program, &stale, &Options { stepped: true, ..Options::default() }).unwrap();
    assert_eq!((run.cycles, &run.counters), (stepped.cycles, &stepped.counters), "at {position}");
    assert_eq!(Serial::new(Arc::new(program.clone())).unwrap().run(&stale).unwrap().0, run.outputs);
    // The second simulator of cycles knows transfers at positions from the text; of products those of bytes.
    if graph.tensor(graph.outputs[0]).dtype == DType::I8 {
        assert_eq!(crate::twin::ends(&program).iter().max(), Some(&run.cycles), "at {position}");
    }
    run
}

/// Positions at the borders of words, pages and blocks of a past of 140 rows.
const POSITIONS: [usize; 20] = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 139, 140];

// feature: SIM-03
#[test]
fn every_position_gives_the_integers_of_the_graph() {
    let machine = Machine::preset("128x128_asic").unwrap();
    let cases = [
        (5, 1, false, false, 128),
        (1, 1, false, false, 128),
        (5, 3, true, false, 128),
        (5, 1, false, true, 64),
        (1, 3, false, true, 64),
        (5, 1, true, true, 128),
    ];
    for (level, new, wide, pixels, stride) in cases {
        let graph = attention(Shape { past: 140, new, heads: 3, width: 16, wide, pixels });
        let program = compiled(&graph, &machine, level);
        let region = program.state_regions().next().unwrap().unwrap();
        assert_eq!((region.past, region.new, region.stride), (140, new as u32, stride));
        let last = run_at(&graph, &program, 140);
        assert_eq!(
            last.cycles,
            simulate(&program, &[], &Options { values: false, ..Options::default() }).unwrap().cycles
        );
        for position in POSITIONS {
            let run = run_at(&graph, &program, position);
            // Of both caches every row that counts is read once, and no other.
            let rows = 2 * (140 - position as u64) * region.stride;
            assert_eq!(run.counters.ddr_read_bytes, last.counters.ddr_read_bytes - rows);
            assert_eq!(run.counters.ddr_write_bytes, last.counters.ddr_write_bytes);
            assert!(run.cycles <= last.cycles + 200, "{} at {position}, {} at the last", run.cycles, last.cycles);
        }
    }
}

#[test]
fn a_small_cache_loads_pieces_of_the_past() {
    for pixels in [false, true] {
        let graph = attention(Shape { past: 21, new: 2, heads: 2, width: 6, wide: false, pixels });
        for (machine, level) in [(tiny(64), 1), (tiny(64), 5), (tiny(16), 1), (tiny(16), 5)] {
            let program = compiled(&graph, &machine, level);
            for position in [0, 1, 10, 20, 21] {
                run_at(&graph, &program, position);
            }
        }
    }
}

/// As many new rows as past ones: those of the past are loaded to their place before the new ones, also to DDR where the cache is
/// too small.
#[test]
fn a_past_is_loaded_in_front_of_the_new_rows() {
    for (past, new, width, wide) in [(16, 16, 32, false), (8, 24, 64, false), (12, 12, 16, false), (8, 8, 32, true)] {
        let graph = attention(Shape { past, new, heads: 2, width, wide, pixels: true });
        for machine in
            [tiny(64), tiny(16), Machine::preset("64x64_edge").unwrap(), Machine::preset("128x128_asic").unwrap()]
        {
            for level in [1, 5] {
                let program = compiled(&graph, &machine, level);
                for position in [0, 1, past / 2, past] {
                    run_at(&graph, &program, position);
                }
            }
        }
    }
}

#[test]
fn registers_and_channels_make_no_difference() {
    let graph = attention(Shape { past: 9, new: 1, heads: 2, width: 32, wide: false, pixels: true });
    for preset in Machine::presets() {
        let program = compiled(&graph, &Machine::preset(&preset).unwrap(), 5);
        for position in [0, 4, 9] {
            run_at(&graph, &program, position);
        }
        let bytes: Vec<Vec<u8>> = inputs(&graph, 1).iter().map(Values::to_le_bytes).collect();
        let run = |array| simulate(&program.at(4), &bytes, &Options { array, ..Options::default() }).unwrap().outputs;
        assert_eq!(run(ArrayModel::Register), run(ArrayModel::Closed));
    }
}

#[test]
fn a_position_beyond_the_past_is_refused() {
    let graph = attention(Shape { past: 9, new: 1, heads: 2, width: 32, wide: false, pixels: false });
    let program = compiled(&graph, &Machine::preset("128x128_asic").unwrap(), 1);
    assert_eq!(program.last_position(), Some(9));
    let message =
        simulate(&program.at(10), &[], &Options { values: false, ..Options::default() }).unwrap_err().to_string();
    assert!(message.ends_with("the position of the run is 10, at most 9 is possible"), "{message}");
}

#[test]
fn only_rows_of_one_grid_are_a_state() {
    let graph = attention(Shape { past: 9, new: 1, heads: 2, width: 32, wide: false, pixels: false });
    let broken = |change: &dyn Fn(&mut Graph)| {
        let mut graph = graph.clone();
        change(&mut graph);
        graph.verify().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let message = "is no input and output of the same rows on the same grid, as long as the other states";
    let changes: [&dyn Fn(&mut Graph); 7] = [
        &|graph| graph.states[1].input = 9,
        &|graph| graph.states[1].output = 9,
        &|graph| graph.states[1].axis = 3,
        &|graph| graph.states[1].axis = 2,
        &|graph| graph.states[1] = graph.states[0],
        &|graph| graph.states[1].output = 0,
        &|graph| {
            let id = graph.inputs[2].index();
            graph.tensors[id].quant.as_mut().unwrap().zero_point += 1;
        },
    ];
    for change in changes {
        assert_eq!(broken(change), [format!("state 1 {message}")]);
    }
    assert_eq!(broken(&|graph| graph.outputs.push(graph.outputs[2])), [format!("state 1 {message}")]);
}

/// Rows up to a position, and zero points behind them.
fn cut(graph: &Graph, input: usize, rows: &[u8], position: usize) -> Values {
    let tensor = graph.tensor(graph.inputs[input]);
    let (size, row) = (tensor.dtype.bytes(), rows.len() / tensor.shape[graph.states[0].axis as usize]);
    let zero = tensor.zero_point().to_le_bytes();
    let bytes: Vec<u8> =
        rows.iter().enumerate().map(|(at, &byte)| if at < position * row { byte } else { zero[at % size] }).collect();
    Values::from_le_bytes(tensor.dtype, &bytes)
}

/// Steps at the start, one behind the other, back, at the end where no row is kept, and of a graph with a shorter past.
#[test]
fn steps_of_the_interpreter_are_runs_with_the_past_given() {
    for (new, wide, pixels) in [(1, false, true), (3, false, false), (5, true, true), (1, true, false)] {
        let shape = Shape { past: 12, new, heads: 3, width: 16, wide, pixels };
        let graphs = [shape, Shape { past: 7, ..shape }].map(attention);
        let interpreters = graphs.clone().map(|graph| Interpreter::new(Arc::new(graph)).unwrap());
        let mut rows = StateRows::new(&graphs).unwrap();
        // What the state must hold.
        let mut held: Vec<Vec<u8>> = [1, 2].iter().map(|&input| inputs(&graphs[0], 9)[input].to_le_bytes()).collect();
        let array =
            |input: usize, rows: &[u8]| Values::from_le_bytes(graphs[0].tensor(graphs[0].inputs[input]).dtype, rows);
        for (number, (which, position)) in
            [(0, 0), (0, new), (1, 2 * new), (0, 1), (1, 0), (0, new), (0, 12), (1, 7)].into_iter().enumerate()
        {
            let (graph, interpreter) = (&graphs[which], &interpreters[which]);
            let past = if which == 0 { 12 } else { 7 };
            if position > past {
                continue;
            }
            if position > rows.count() {
                let arrays = held.iter().zip([1, 2]).map(|(rows, input)| array(input, rows)).collect();
                rows.write(arrays, position).unwrap();
            }
            let own = inputs(graph, 50 + number as u64);
            let pasts = held.iter().zip([1, 2]).map(|(rows, input)| {
                let row = rows.len() / 12;
                cut(graph, input, &rows[..past * row], position)
            });
            let given = own[..1].iter().cloned().chain(pasts).collect();
            let expected = interpreter.run(given, Keep::Outputs).unwrap();
            let found = interpreter.step(own[..1].to_vec(), &mut rows, position).unwrap();
            assert_eq!(found.get(graph.outputs[0]), expected.get(graph.outputs[0]), "step {number}, {new} new");
            assert!(found.get(graph.outputs[1]).is_none(), "new rows belong to the state");
            let kept = new.min(12 - position);
            assert_eq!(rows.count(), position + kept);
            for (rows, output) in held.iter_mut().zip([1, 2]) {
                let (bytes, row) = (expected.get(graph.outputs[output]).unwrap().to_le_bytes(), rows.len() / 12);
                rows[position * row..][..kept * row].copy_from_slice(&bytes[..kept * row]);
            }
        }
    }
}

#[test]
fn the_interpreter_refuses_positions_and_rows_of_other_graphs() {
    let shape = Shape { past: 12, new: 1, heads: 3, width: 16, wide: false, pixels: true };
    let graph = attention(shape);
    let interpreter = Interpreter::new(Arc::new(graph.clone())).unwrap();
    let mut rows = StateRows::new([&graph]).unwrap();
    let x = inputs(&graph, 1)[..1].to_vec();
    let refused = |rows: &mut StateRows, position| interpreter.step(x.clone(), rows, position).unwrap_err().to_string();
    assert_eq!(refused(&mut rows, 1), "position 1 lies behind the 0 rows of the state");
    assert_eq!(refused(&mut rows, 13), "position 13 lies beyond the context: the graph takes 12 rows before a run");
    let mut others = StateRows::new([&attention(Shape { heads: 2, ..shape })]).unwrap();
    assert_eq!(refused(&mut others, 0), "graph \"net\" has other states than these rows are of");
    assert!(interpreter.step(vec![], &mut rows, 0).is_err());
    let wrong = rows.write(vec![Values::I8(vec![0; 5]); 2], 1).unwrap_err().to_string();
    assert_eq!(wrong, "rows are written as whole arrays of the longest past, one per state");
    assert_eq!(StateRows::new([]).unwrap_err().to_string(), "a graph without states keeps no rows");
    let mut endless = graph.clone();
    let past = endless.inputs[1].index();
    endless.tensors[past].shape[2] = 1 << 45;
    let message = StateRows::new([&endless]).unwrap_err().to_string();
    assert!(message.contains("bytes of memory, the limit is"), "{message}");
    assert_eq!(rows.count(), 0);
}
