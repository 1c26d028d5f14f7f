//! The header: what a program says of its graph, its layers and its memory besides what its instructions do.

use tpuflow_ir::isa::Transfer;
use tpuflow_ir::program::LayerSummary;
use tpuflow_ir::{Graph, Layer, Op, Port, Program, Space, View, Work};

use crate::rule::{Fault, Rule};
use crate::units::unit_of;

/// Checks what the header repeats of the graph.
pub(crate) fn header(graph: &Graph, program: &Program) -> Result<(), Fault> {
    Rule::Header.require_equal("name", &graph.name, &program.name)?;
    Rule::Header.require_equal("samples per run,", &batch(graph), &program.batch)?;
    Rule::Header.require(matches!(program.level, 1 | 5), "level 1 or 5", program.level)?;
    Rule::LayerSummary.require_equal("layers,", &graph.layers.len(), &program.layers.len())?;
    for (layer, summary) in graph.layers.iter().zip(&program.layers) {
        let LayerSummary { name, op, dtype, unit, macs, nodes, bound: _, binding: _ } = summary;
        let wrong = |what: &str| format!("of layer \"{}\" {what}", layer.name);
        Rule::LayerSummary.require_equal("name", &layer.name, name)?;
        Rule::LayerSummary.require_equal(wrong("operator"), &layer.op.name(), &op.as_str())?;
        Rule::LayerSummary.require_equal(wrong("type"), &graph.tensor(layer.output).dtype, dtype)?;
        Rule::LayerSummary.require_equal(wrong("nodes"), &layer.nodes, nodes)?;
        Rule::LayerSummary.require_equal(wrong("unit"), &unit_of(graph, layer), unit)?;
        Rule::LayerSummary.require_equal(wrong("multiplications"), &products(graph, layer), macs)?;
    }
    Ok(())
}

/// Checks what the header says of the cache, of which bytes below `touched` were used.
pub(crate) fn memory(program: &Program, used: u64) -> Result<(), Fault> {
    let (peak, capacity) = (program.cache_peak_bytes, program.machine.cache_bytes());
    let range = format_args!("a peak of {used} to {capacity} bytes of the cache");
    Rule::MemoryFigures.require((used..=capacity).contains(&peak), range, peak)?;
    Rule::MemoryFigures.require_equal("spilled bytes", &spilled_bytes(program), &program.spill_bytes)?;
    for allocation in &program.allocations {
        let inside = allocation.address.checked_add(allocation.bytes).is_some_and(|end| end <= peak);
        let lives = allocation.first <= allocation.last && (allocation.last as usize) < program.instructions.len();
        let expected = format_args!("allocations below {peak}, of instructions of the program");
        Rule::MemoryFigures.require(inside && lives, expected, format_args!("{allocation:?}"))?;
    }
    Ok(())
}

/// Bytes moved from or to external memory that holds neither constants nor ports.
fn spilled_bytes(program: &Program) -> u64 {
    let word = program.machine.word();
    let ports: Vec<View> = program.inputs.iter().chain(&program.outputs).flat_map(Port::views).collect();
    let computed = |transfer: &&Transfer| {
        let (space, address) = (transfer.ddr_space, transfer.ddr_address);
        let constants = program.constants.get(usize::from(space)).map_or(0, |bytes| bytes.len() as u64);
        let of_port = |view: &View| {
            view.space == Space::Ddr(space) && (view.address..view.address + view.bytes(word)).contains(&address)
        };
        address >= constants && !ports.iter().any(of_port)
    };
    let transfers = program.instructions.iter().filter_map(|instruction| match &instruction.work {
        Work::Transfer(transfer) => Some(transfer),
        _ => None,
    });
    transfers.filter(computed).map(Transfer::total_bytes).sum()
}

/// Samples per run: the leading extent of the first input, in the model's axes where it has some.
fn batch(graph: &Graph) -> u32 {
    let Some(&first) = graph.inputs.first() else { return 1 };
    let tensor = graph.tensor(first);
    let shape = tensor.source.as_ref().map_or(&tensor.shape, |source| &source.shape);
    shape.first().map_or(1, |&extent| extent as u32)
}

/// Multiplications and additions of a layer.
fn products(graph: &Graph, layer: &Layer) -> u64 {
    let terms: usize = match &layer.op {
        Op::Conv { weights, .. } => graph.tensor(*weights).shape[1..].iter().product(),
        Op::MatMul { b, .. } => graph.tensor(*b).shape.iter().rev().nth(1).copied().unwrap_or(1),
        _ => return 0,
    };
    let terms = layer.terms.map_or(terms as u64, u64::from);
    graph.tensor(layer.output).elements() as u64 * terms
}
