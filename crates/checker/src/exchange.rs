//! Exchanges: that what a device loads of the others is what these have computed, whoever is ahead.
//!
//! All devices run the same instructions. Where this device stores its part, each of the others stores its own: a byte of a part here is
//! the byte of the other part there, which a load from that device's address space brings. Two things must hold for that to be so
//! at any time:
//!
//! | another device may be | what it could find | so |
//! |---|---|---|
//! | ahead | a part that is not there yet | the machine answers once it is; the load here waits for the store here, as for any other byte |
//! | behind | a part that is overwritten | a byte of a part is stored once in a run |

use tpuflow_ir::{Graph, Port, Program, Space, TensorId, View};

use crate::rule::{Fault, Operand, Rule};

/// Where a part lies on every device, and of which tensors of the graph it is, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct ExchangeRegion {
    space: u8,
    start: u64,
    end: u64,
    pub(crate) view: View,
    pub(crate) output: Option<TensorId>,
    /// By rank.
    pub(crate) inputs: Vec<Option<TensorId>>,
}

impl ExchangeRegion {
    /// Whether a stretch shares a byte with it.
    pub(crate) fn overlaps(&self, space: u8, start: u64, end: u64) -> bool {
        self.space == space && self.start < end && start < self.end
    }

    /// Whether a stretch lies within it.
    pub(crate) fn holds(&self, space: u8, start: u64, end: u64) -> bool {
        self.space == space && self.start <= start && end <= self.end
    }
}

/// Checks that the exchanges are the graph's, and that parts lie at one place on all devices; where that is.
pub(crate) fn regions(graph: Option<&Graph>, program: &Program) -> Result<Vec<ExchangeRegion>, Fault> {
    if let Some(graph) = graph {
        Rule::Exchange.require_equal("exchanges", &graph.exchanges, &program.exchanges)?;
    }
    let machine = &program.machine;
    let mut found: Vec<ExchangeRegion> = Vec::new();
    for exchange in &program.exchanges {
        let none = || Rule::Exchange.violation("ports of the program", format_args!("{exchange:?}"));
        let own = program.outputs.get(exchange.output as usize).ok_or_else(none)?;
        let fits = exchange.inputs.len() == program.devices() && program.stream.is_none();
        Rule::Exchange.require(fits, "parts of all devices, and no stream of runs", format_args!("{exchange:?}"))?;
        for (rank, &input) in exchange.inputs.iter().enumerate() {
            let port = program.inputs.get(input as usize).ok_or_else(none)?;
            let expected: Vec<View> = own.views().map(|view| machine.view_of_rank(view, rank)).collect();
            Rule::Exchange
                .require_equal("place of a part", &expected, &port.views().collect::<Vec<View>>())
                .map_err(|fault| fault.of_operand(Operand::Port(port.name.clone())))?;
        }
        let output = graph.and_then(|graph| graph.outputs.get(exchange.output as usize).copied());
        let inputs = exchange.inputs.iter();
        let inputs: Vec<_> =
            inputs.map(|&input| graph.and_then(|graph| graph.inputs.get(input as usize).copied())).collect();
        Rule::Exchange.require(
            own.views().count() > own.parts.len(),
            "parts in their order",
            format_args!("{own:?}"),
        )?;
        for view in own.views() {
            let Space::Ddr(space) = view.space else { return Err(none()) };
            let is_own = machine.rank(space).is_none();
            Rule::Exchange.require(is_own, "a place on this device", format_args!("{view:?}"))?;
            let (start, end) = (view.address, view.address.saturating_add(view.bytes(machine.word())));
            let alone = !found.iter().any(|other| other.overlaps(space, start, end));
            Rule::Exchange.require(alone, "a place of its own", format_args!("{start:#x}..{end:#x}"))?;
            found.push(ExchangeRegion { space, start, end, view, output, inputs: inputs.clone() });
        }
    }
    Ok(found)
}

/// Checks that no other port lies where a part does.
pub(crate) fn check_port(regions: &[ExchangeRegion], port: &Port, word: usize) -> Result<(), Fault> {
    let meets = |view: View| {
        let end = view.address.saturating_add(view.bytes(word));
        matches!(view.space, Space::Ddr(space) if regions.iter().any(|region| region.overlaps(space, view.address, end)))
    };
    let alone = !port.views().any(meets);
    Rule::Exchange.require(alone, "ports outside the parts of exchanges", format_args!("{:?}", port.view))
}
