//! Puts the parts together: one plan, one program.

use tpuflow_ir::access::accesses;
use tpuflow_ir::program::Port;
use tpuflow_ir::{Descriptor, Graph, Instruction, Machine, Program, Space, TensorId, Unit, View, Wait};

use crate::ScheduleError;
use crate::alloc::{Item, Problem, solve};
use crate::bounds::bounds;
use crate::bundle::bundle;
use crate::cost::Clock;
use crate::emit::{Addresses, allocations, external, lifetimes, resolve, resolve_view, unit};
use crate::homes::{Housed, Request, house};
use crate::network::{Network, prepare};
use crate::placement::Placement;
use crate::prefetch::prefetch;
use crate::sketch::{Content, Draft, Memory, Sketch};
use crate::summary;
use crate::tokens::Tracker;

/// Shares of the cache to plan with, in per cent: the first that also survives packing is taken.
const SHARES: [u64; 8] = [100, 95, 90, 80, 70, 60, 45, 30];

/// Shares of the base order a load may move ahead by, tried in turn.
const REACHES: [u32; 4] = [1, 4, 16, 64];

/// How instructions are ordered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One at a time.
    Sequential,
    /// All units at the same time, loads ahead.
    Parallel {
        /// Layers are cut so that two pieces of one fit the cache at a time, one loaded while the other is at work.
        paired: bool,
    },
}

/// Plans a program.
pub(crate) fn plan(graph: &Graph, machine: &Machine, mode: Mode) -> Result<Program, ScheduleError> {
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
            parallel: mode == Mode::Parallel { paired: true },
            capacity: machine.cache_bytes() / 100 * share,
        };
        let mut housed = match house(&request) {
            Ok(housed) => housed,
            Err(error) => return Err(failure.unwrap_or(error)),
        };
        let found = match mode {
            Mode::Sequential => addresses(&housed.sketch, machine),
            Mode::Parallel { .. } => {
                bundle(&mut housed.sketch, machine);
                ahead(&mut housed.sketch, machine)
            }
        };
        match found {
            Ok(found) => return finish(graph, &network, machine, housed, found, mode),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or(ScheduleError::Level(1)))
}

/// Moves loads ahead as far as room is found, and less far where that leaves none for what must be.
fn ahead(sketch: &mut Sketch, machine: &Machine) -> Result<Addresses, ScheduleError> {
    for share in REACHES {
        if let Some(found) = prefetch(sketch, machine, sketch.drafts.len() as u32 / share) {
            *sketch = found.sketch;
            return Ok(found.addresses);
        }
    }
    addresses(sketch, machine)
}

/// Addresses in both caches.
fn addresses(sketch: &Sketch, machine: &Machine) -> Result<Addresses, ScheduleError> {
    let lives = lifetimes(sketch);
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
    mut addresses: Addresses,
    mode: Mode,
) -> Result<Program, ScheduleError> {
    let sketch = &housed.sketch;
    let memory = external(sketch, network, machine, mode != Mode::Sequential, &housed.outputs, &mut addresses)?;
    let descriptors: Vec<Descriptor> = sketch.descriptors.iter().cloned().collect();
    let mut instructions: Vec<Instruction> = Vec::with_capacity(sketch.drafts.len());
    let mut counts = [0u32; 5];
    let (mut clock, mut tracker) = (Clock::new(machine), Tracker::default());
    for draft in &sketch.drafts {
        let line = match (mode, constant_space(draft, sketch, &addresses)) {
            (Mode::Sequential, _) => Unit::Dtl0,
            // A line for each address space of constants keeps all channels busy.
            (Mode::Parallel { .. }, Some(space)) if machine.ddr_spaces() > 1 => {
                [Unit::Dtl0, Unit::Dtl1][usize::from(space) % 2]
            }
            (Mode::Parallel { .. }, _) => clock.line(),
        };
        let mut instruction = resolve(draft, unit(&draft.work, line), &addresses);
        match mode {
            Mode::Sequential => {
                let last = instructions.last().map(|i| Wait { unit: i.unit, count: counts[i.unit.index()] });
                instruction.waits.extend(last);
            }
            Mode::Parallel { .. } => {
                let touched = accesses(&instruction, &descriptors, machine);
                instruction.waits = tracker.add(instruction.unit, &touched);
            }
        }
        counts[instruction.unit.index()] += 1;
        clock.run(&instruction, &descriptors);
        instructions.push(instruction);
    }
    let lives = lifetimes(sketch);
    let allocations = allocations(sketch, &lives, &addresses);
    let cache_peak_bytes = allocations.iter().map(|a| a.address + a.bytes).max().unwrap_or(0);
    let ports = |tensors: &[TensorId], views: &[View]| -> Vec<Port> {
        tensors.iter().zip(views).map(|(&t, view)| port(graph, t, resolve_view(&addresses, view))).collect()
    };
    let mut layers = summary::layers(graph, network);
    let bounds = bounds(graph, network, machine, &mut layers);
    Ok(Program {
        name: graph.name.clone(),
        machine: machine.clone(),
        batch: summary::batch(graph),
        level: if mode == Mode::Sequential { 1 } else { 5 },
        fallback: None,
        descriptors,
        instructions,
        constants: memory.constants,
        ddr_bytes: memory.bytes,
        spill_bytes: sketch.spill_bytes,
        cache_peak_bytes,
        inputs: ports(&graph.inputs, &housed.inputs),
        outputs: ports(&graph.outputs, &housed.outputs),
        layers,
        bounds,
        predicted_cycles: clock.makespan(),
        allocations,
    })
}

/// Address space of the constant a draft loads.
fn constant_space(draft: &Draft, sketch: &Sketch, addresses: &Addresses) -> Option<u8> {
    let (_, from) = draft.load()?;
    let is_constant = matches!(sketch.buffers[from.index()].content, Content::Constant(_));
    match addresses[from.index()].0 {
        Space::Ddr(space) if is_constant => Some(space),
        _ => None,
    }
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
