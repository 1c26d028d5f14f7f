//! Which unit may execute what, as the checker reads `docs/machine.md`: shared with nobody.

use tpuflow_ir::isa::Work;
use tpuflow_ir::{Graph, Instruction, Layer, Op, Unit};

use crate::rule::{Fault, Rule};

/// Checks that an instruction is in the queue of a unit that executes such work.
pub(crate) fn executes(instruction: &Instruction) -> Result<(), Fault> {
    let (able, name) = able(&instruction.work);
    let unit = instruction.unit;
    Rule::Unit.require(able.contains(&unit), format_args!("work of {}", unit.name()), format_args!("a {name}"))
}

/// The units that execute some work, and its name.
fn able(work: &Work) -> (&'static [Unit], &'static str) {
    match work {
        Work::Transfer(_) => (&[Unit::Dtl0, Unit::Dtl1], "transfer"),
        Work::Lookup(_) => (&[Unit::Dtl0, Unit::Dtl1], "lookup"),
        Work::PackedLookup(_) => (&[Unit::Dtl0, Unit::Dtl1], "lookup of packed weights"),
        Work::Expand(_) => (&[Unit::Dtl0, Unit::Dtl1], "load of packed weights"),
        Work::Matrix(_) => (&[Unit::Me], "product"),
        Work::Pool(_) => (&[Unit::Pdp], "pooling"),
        Work::Vector(_) => (&[Unit::Ewp], "work on elements"),
    }
}

/// The unit a layer is counted for.
pub(crate) fn unit_of(graph: &Graph, layer: &Layer) -> Unit {
    match &layer.op {
        Op::Conv { input, weights, groups, .. } => {
            let (channels, weights) = (graph.tensor(*input).shape.last().copied(), &graph.tensor(*weights).shape);
            let depthwise = channels == Some(*groups as usize) && channels == weights.first().copied() && *groups > 1;
            if depthwise { Unit::Pdp } else { Unit::Me }
        }
        Op::MatMul { .. } => Unit::Me,
        Op::MaxPool { .. } | Op::AveragePool { .. } => Unit::Pdp,
        Op::Embedding { .. } => Unit::Dtl0,
        _ => Unit::Ewp,
    }
}
