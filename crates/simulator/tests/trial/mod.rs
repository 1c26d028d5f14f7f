//! A graph on a machine: built, proven, simulated in every way, compared with the interpreter.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several test files, each of which uses a part")]

use std::sync::Arc;

use tpuflow_ir::{DType, Graph, Layer, Machine, Op, Program, TensorId};
use tpuflow_kernels::Values;
use tpuflow_scheduler::{Options as ScheduleOptions, schedule};
use tpuflow_simulator::{ArrayModel, Interpreter, Keep, Options, simulate};

use crate::common::{Random, float_bytes};

/// Random values for every input; indices are small enough for every table.
pub fn inputs(graph: &Graph, seed: u64) -> Vec<Values> {
    let mut random = Random(seed);
    let codes = |id: &tpuflow_ir::TensorId| {
        let tensor = graph.tensor(*id);
        let (lo, hi) = if tensor.dtype == DType::I32 { (0, last_entry(graph, *id)) } else { tensor.dtype.range() };
        let bytes: Vec<u8> = (0..tensor.elements())
            .flat_map(|_| {
                if tensor.dtype.is_float() {
                    return any_float(tensor.dtype, &mut random);
                }
                random.range(lo, hi).to_le_bytes().into_iter().take(tensor.dtype.bytes()).collect::<Vec<_>>()
            })
            .collect();
        Values::from_le_bytes(tensor.dtype, &bytes)
    };
    graph.inputs.iter().map(codes).collect()
}

/// The last index of the smallest table that an input is looked up in; 3 where it is not looked up itself.
fn last_entry(graph: &Graph, input: TensorId) -> i64 {
    let size = |layer: &Layer| match &layer.op {
        Op::Embedding { table, indices, entry } if *indices == input => {
            let shape = &graph.tensor(*table).shape;
            Some(entry.count([shape[0], shape[1]])[0] as i64)
        }
        _ => None,
    };
    graph.layers.iter().filter_map(size).min().map_or(3, |size| size - 1)
}

/// Mostly small numbers; now and then any bits at all, infinities and NaN included.
fn any_float(dtype: DType, random: &mut Random) -> Vec<u8> {
    if random.chance(1) {
        return random.next().to_le_bytes()[..dtype.bytes()].to_vec();
    }
    float_bytes(dtype, random.range(-255, 255) as f32 / 64.0)
}

/// Steps of the search of level 5: fewer than by default, whose programs are made of the same pieces.
pub const STEPS: u64 = 20;

/// The program of a graph by few steps of search, once it has been proven.
pub fn proven(graph: &Graph, machine: &Machine, options: ScheduleOptions) -> Program {
    let program = schedule(graph, machine, &ScheduleOptions { budget_steps: 10, ..options }).unwrap();
    assert_eq!(tpuflow_checker::check(graph, &program), Ok(()));
    program
}

/// What goes wrong with a graph on a machine, if anything.
pub fn trial(graph: &Graph, machine: &Machine, level: u8, seed: u64, options: &Options) -> Result<(), String> {
    let program =
        schedule(graph, machine, &ScheduleOptions { level, budget_steps: STEPS, ..ScheduleOptions::default() });
    let program = program.map_err(|e| format!("schedule: {e}"))?;
    if let Some(reason) = &program.fallback {
        return Err(format!("fallback: {reason}"));
    }
    let given = inputs(graph, seed);
    let bytes: Vec<Vec<u8>> = given.iter().map(Values::to_le_bytes).collect();
    let run = simulate(&program, &bytes, options).map_err(|e| format!("simulate: {e}"))?;
    if options.array == ArrayModel::Closed {
        let stepped = simulate(&program, &bytes, &Options { stepped: true, ..*options });
        let stepped = stepped.map_err(|e| format!("stepped: {e}"))?;
        if (stepped.cycles, &stepped.counters) != (run.cycles, &run.counters) {
            return Err(format!("{} cycles, {} step by step", run.cycles, stepped.cycles));
        }
    }
    if run.cycles < program.bounds.binding().1 {
        return Err(format!("bounds: {} cycles, bound {:?}", run.cycles, program.bounds.binding()));
    }
    let expected = Interpreter::new(Arc::new(graph.clone())).unwrap().run(given, Keep::Outputs).unwrap();
    for (n, id) in graph.outputs.iter().enumerate() {
        if expected.get(*id).unwrap().to_le_bytes() != run.outputs[n] {
            return Err(format!("output {n} \"{}\" differs", graph.tensor(*id).name));
        }
    }
    Ok(())
}
