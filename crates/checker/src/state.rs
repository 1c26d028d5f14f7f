//! States: that a program which computes its graph at the last position does so at every other.
//!
//! The walk follows addresses as they stand, which are those of the last position. What differs at another one is an interval:
//!
//! ```text
//! position       loads of the past        stores and loads of the output
//! last           [start, border)          [border, end)
//! p              [start, border - d)      [border - d, end - d)        d = (last - p) rows, 0 <= d <= border - start
//! ```
//!
//! Both are inside the state for every d, and never meet. So it suffices that nothing else lies in `[start, end)`, and that every
//! instruction that touches it is a load of the past, or a transfer of the output, of the same bytes at every position. The bytes of
//! the past that are not loaded are zero points, which are rows of the input as well: values follow as from any other input.

use tpuflow_ir::{Graph, Instruction, Port, Program, Space, StateRegion, View, state};

use crate::rule::{Fault, Operand, Rule};

/// Checks that the states are the graph's, and have a place of their own; where that is.
pub(crate) fn states(graph: Option<&Graph>, program: &Program) -> Result<Vec<StateRegion>, Fault> {
    if let Some(graph) = graph {
        Rule::State.require_equal("states", &graph.states, &program.states)?;
    }
    let mut found: Vec<StateRegion> = Vec::new();
    for (number, (declared, region)) in program.states.iter().zip(program.state_regions()).enumerate() {
        let behind = format_args!("an output behind the rows of its input, as long as those of the first state");
        let sound = region.filter(|region| found.first().is_none_or(|first| first.past == region.past));
        let Some(region) = sound else { return Err(Rule::State.violation(behind, format_args!("state {number}"))) };
        let own =
            |ports: &[Port], own: u32, port: &Port| ports.get(own as usize).is_some_and(|own| std::ptr::eq(own, port));
        for port in program.inputs.iter().chain(&program.outputs) {
            let overlaps = |view: View| {
                let end = view.address.saturating_add(view.bytes(program.machine.word()));
                matches!(view.space, Space::Ddr(space) if region.overlaps(space, view.address, end))
            };
            let inside = port.views().any(overlaps);
            let is_own = own(&program.inputs, declared.input, port) || own(&program.outputs, declared.output, port);
            Rule::State
                .require(!inside || is_own, "ports outside the states of others", format_args!("{:?}", port.view))
                .map_err(|fault| fault.of_operand(Operand::Port(port.name.clone())))?;
        }
        found.push(region);
    }
    Ok(found)
}

/// Checks that an instruction does with states what has a meaning at every position.
pub(crate) fn instruction(regions: &[StateRegion], instruction: &Instruction, word: usize) -> Result<(), Fault> {
    let used = !state::is_misused(regions, &instruction.work, word);
    Rule::State.require(
        used,
        "loads of a past, or transfers of an output, to or from the cache",
        "other bytes of a state",
    )
}
