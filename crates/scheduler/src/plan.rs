//! Puts the parts together: one plan, one program.

use smallvec::SmallVec;
use tpuflow_ir::program::Port;
use tpuflow_ir::{Graph, Instruction, Machine, Program, Space, TensorId, Unit, View, Wait};

use crate::ScheduleError;
use crate::alloc::{Item, Problem, solve};
use crate::emit::{Addresses, allocations, external, lifetimes, resolve, resolve_view, unit};
use crate::homes::{Housed, Request, house};
use crate::network::{Network, prepare};
use crate::placement::Placement;
use crate::sketch::{Memory, Sketch};
use crate::summary;

/// Shares of the cache to plan with, in per cent: the first that also survives packing is taken.
const SHARES: [u64; 8] = [100, 95, 90, 80, 70, 60, 45, 30];

/// One instruction at a time.
pub(crate) fn sequential(graph: &Graph, machine: &Machine) -> Result<Program, ScheduleError> {
    let network = prepare(graph)?;
    let placement = Placement::new(&network, &graph.inputs, machine.word(), machine.array.columns as usize);
    let mut failure = None;
    for share in SHARES {
        let request = Request {
            network: &network,
            placement: &placement,
            machine,
            inputs: &graph.inputs,
            outputs: &graph.outputs,
            parallel: false,
            capacity: machine.cache_bytes() / 100 * share,
        };
        let housed = match house(&request) {
            Ok(housed) => housed,
            Err(error) => return Err(failure.unwrap_or(error)),
        };
        let lives = lifetimes(&housed.sketch);
        match addresses(&housed.sketch, &lives, machine) {
            Ok(found) => return finish(graph, &network, machine, housed, &lives, found),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or(ScheduleError::Level(1)))
}

/// Addresses in both caches.
fn addresses(sketch: &Sketch, lives: &[Option<(u32, u32)>], machine: &Machine) -> Result<Addresses, ScheduleError> {
    let word = machine.word() as u64;
    let mut addresses: Addresses = vec![(Space::Ddr(0), 0); sketch.buffers.len()];
    for (memory, space, name, capacity) in [
        (Memory::Cache, Space::Cache, "the shared cache", machine.cache_bytes()),
        (Memory::Ewp, Space::EwpCache, "the parameter cache", machine.ewp_cache_bytes()),
    ] {
        let mut items = Vec::new();
        let mut owners = Vec::new();
        for (index, buffer) in sketch.buffers.iter().enumerate() {
            if let (true, Some((first, last))) = (buffer.memory == memory, lives[index]) {
                items.push(Item { first, last, size: buffer.bytes.div_ceil(word) });
                owners.push(index);
            }
        }
        let problem = Problem { items, capacity: capacity / word };
        let solution = solve(&problem, true);
        if solution.height > problem.capacity {
            return Err(ScheduleError::Allocation {
                memory: name,
                machine: machine.name.clone(),
                height: solution.height * word,
                capacity,
            });
        }
        for (owner, offset) in owners.into_iter().zip(solution.offsets) {
            addresses[owner] = (space, offset * word);
        }
    }
    Ok(addresses)
}

fn finish(
    graph: &Graph,
    network: &Network,
    machine: &Machine,
    housed: Housed,
    lives: &[Option<(u32, u32)>],
    mut addresses: Addresses,
) -> Result<Program, ScheduleError> {
    let sketch = &housed.sketch;
    let memory = external(sketch, network, machine, false, &mut addresses)?;
    let mut instructions: Vec<Instruction> = Vec::with_capacity(sketch.drafts.len());
    let mut counts = [0u32; 5];
    for draft in &sketch.drafts {
        let mut instruction = resolve(draft, unit(&draft.work, Unit::Dtl0), &addresses);
        if let Some(last) = instructions.last() {
            instruction.waits = SmallVec::from_iter([Wait { unit: last.unit, count: counts[last.unit.index()] }]);
        }
        counts[instruction.unit.index()] += 1;
        instructions.push(instruction);
    }
    let allocations = allocations(sketch, lives, &addresses);
    let cache_peak_bytes = allocations.iter().map(|a| a.address + a.bytes).max().unwrap_or(0);
    let ports = |tensors: &[TensorId], views: &[View]| -> Vec<Port> {
        tensors.iter().zip(views).map(|(&t, view)| port(graph, t, resolve_view(&addresses, view))).collect()
    };
    Ok(Program {
        name: graph.name.clone(),
        machine: machine.clone(),
        batch: summary::batch(graph),
        level: 1,
        fallback: None,
        descriptors: sketch.descriptors.iter().cloned().collect(),
        instructions,
        constants: memory.constants,
        ddr_bytes: memory.bytes,
        spill_bytes: sketch.spill_bytes,
        cache_peak_bytes,
        inputs: ports(&graph.inputs, &housed.inputs),
        outputs: ports(&graph.outputs, &housed.outputs),
        layers: summary::layers(graph, network, machine),
        bounds: tpuflow_ir::Bounds::default(),
        predicted_cycles: 0,
        allocations,
    })
}

fn port(graph: &Graph, tensor: TensorId, view: View) -> Port {
    let t = graph.tensor(tensor);
    Port {
        name: t.name.clone(),
        shape: t.shape.clone(),
        dtype: t.dtype,
        quant: t.quant.clone(),
        source: t.source.clone(),
        view,
    }
}
