//! The walk over a program: memories, knowledge, and the primitives by which instructions read and write symbols.

use std::cell::RefCell;

use tpuflow_ir::access::{self, Stretch};
use tpuflow_ir::constants::EqualConstants;
use tpuflow_ir::isa::Work;
use tpuflow_ir::{Graph, Instruction, LayerId, Machine, Port, Program, Space, StateRegion, Tensor};

use crate::budget::Budget;
use crate::constant_map::ConstantMap;
use crate::contents::{Actor, Memories, Piece, Tokens, Value};
use crate::exchange::ExchangeRegion;
use crate::expectation::Expectation;
use crate::order::Order;
use crate::packed::{ComparedTable, PackedImage};
use crate::rule::Violation;
use crate::rule::{Fault, Operand, Rule};
use crate::stretches::Stretches;

/// Weights that were compared: everything that says which bytes of the graph's they must be, and where they were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ComparedWeights {
    pub(crate) layer: LayerId,
    /// Which matrix of a batch.
    pub(crate) batch: u64,
    /// Which plane of bytes, of those that lie apart.
    pub(crate) plane: Option<u64>,
    pub(crate) first_column: u32,
    pub(crate) columns: u32,
    pub(crate) row_bytes: u32,
    /// DDR address space of the constants, and the first byte there.
    pub(crate) space: u8,
    pub(crate) byte: u64,
    /// The packed weights they were, and `byte` one of the elements these stand for.
    pub(crate) packed: Option<PackedImage>,
}

/// State of the walk.
pub(crate) struct Walk<'a> {
    pub(crate) program: &'a Program,
    pub(crate) expectation: Option<Expectation<'a>>,
    pub(crate) memories: Memories,
    stretches: Stretches,
    actor: Option<Actor>,
    known: Tokens,
    /// Whether the instruction may write over what it has read: each element over itself.
    pub(crate) in_place: bool,
    budget: Budget,
    /// Weights already compared.
    pub(crate) compared_weights: std::collections::BTreeSet<ComparedWeights>,
    /// Packed tables already compared.
    pub(crate) compared_tables: std::collections::BTreeSet<ComparedTable>,
    /// The element behind every byte of the constants.
    pub(crate) constant_map: Option<RefCell<ConstantMap>>,
    /// The layer of the instruction.
    pub(crate) layer: LayerId,
    /// Where parts of exchanges lie.
    pub(crate) exchanges: Vec<ExchangeRegion>,
    /// Where states lie.
    states: Vec<StateRegion>,
}

/// The state of the walk between two instructions of a program that has broken no rule so far.
#[derive(Clone)]
pub(crate) struct State {
    /// Instructions that were followed.
    pub(crate) position: usize,
    memories: Memories,
    stretches: Stretches,
    compared_weights: std::collections::BTreeSet<ComparedWeights>,
    compared_tables: std::collections::BTreeSet<ComparedTable>,
    constant_map: Option<ConstantMap>,
    order: Order,
    steps: u64,
}

pub(crate) fn walk(graph: Option<&Graph>, program: &Program, most: usize) -> Result<(), Vec<Violation>> {
    walk_from(graph, program, most, None, |_| {})
}

/// Walks from the beginning, or from a state on if what stands in memory before the first instruction is what stood there in the
/// sound program; `from` is the state there, and that to go on from. `each` is shown the walk before every instruction and
/// behind the last.
pub(crate) fn walk_from(
    graph: Option<&Graph>,
    program: &Program,
    most: usize,
    from: Option<[&State; 2]>,
    mut each: impl FnMut(&mut Steps),
) -> Result<(), Vec<Violation>> {
    let mut violations = Vec::new();
    let mut report = |instruction, fault: Fault| {
        violations.push(fault.at_instruction(instruction));
        violations.len() >= most
    };
    let mut steps = Steps::new(graph, program);
    if let Err(fault) = steps.walk.start()
        && report(None, fault)
    {
        return Err(violations);
    }
    let from = from.filter(|[first, _]| first.memories.has_same_contents(&steps.walk.memories));
    steps.resume(from.map(|[_, state]| state));
    while let Some(instruction) = program.instructions.get(steps.position) {
        each(&mut steps);
        let at = steps.position;
        if let Err(fault) = steps.step_to_next(instruction)
            && report(Some(at), fault)
        {
            return Err(violations);
        }
    }
    each(&mut steps);
    steps.walk.actor = None;
    if let Err(fault) = steps.walk.finish()
        && report(None, fault)
    {
        return Err(violations);
    }
    if violations.is_empty()
        && let Err(fault) = steps.walk.check_memory_figures()
    {
        violations.push(fault.at_instruction(None));
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// A walk and how far it has come.
pub(crate) struct Steps<'a> {
    walk: Walk<'a>,
    pub(crate) order: Order,
    pub(crate) position: usize,
}

impl<'a> Steps<'a> {
    fn new(graph: Option<&'a Graph>, program: &'a Program) -> Self {
        let walk = Walk {
            program,
            expectation: graph.map(Expectation::new),
            memories: Memories::default(),
            stretches: Stretches::default(),
            actor: None,
            known: Tokens::default(),
            in_place: false,
            budget: Budget::new(graph, program),
            compared_weights: std::collections::BTreeSet::new(),
            compared_tables: std::collections::BTreeSet::new(),
            constant_map: None,
            layer: LayerId::new(0),
            states: vec![],
            exchanges: vec![],
        };
        Self { walk, order: Order::default(), position: 0 }
    }

    /// Goes on from a state, or knows of no place yet.
    fn resume(&mut self, state: Option<&State>) {
        let Some(State {
            position,
            memories,
            stretches,
            compared_weights,
            compared_tables,
            constant_map,
            order,
            steps,
        }) = state.cloned()
        else {
            let graph = self.walk.expectation.as_ref().map(|e| e.graph);
            self.walk.constant_map = graph.map(|graph| RefCell::new(ConstantMap::new(EqualConstants::of(graph))));
            return;
        };
        (self.position, self.order) = (position, order);
        (self.walk.memories, self.walk.stretches) = (memories, stretches);
        self.walk.compared_weights = compared_weights;
        self.walk.compared_tables = compared_tables;
        self.walk.constant_map = constant_map.map(RefCell::new);
        self.walk.budget.resume(steps);
    }

    fn step_to_next(&mut self, instruction: &Instruction) -> Result<(), Fault> {
        let (actor, known, outcome) = self.order.start(instruction);
        (self.walk.actor, self.walk.known) = (Some(actor), known);
        self.position += 1;
        outcome.and_then(|()| self.walk.step(instruction)).and_then(|()| self.walk.check_accesses(instruction, actor))
    }

    pub(crate) fn memories(&self) -> &Memories {
        &self.walk.memories
    }

    pub(crate) fn memories_mut(&mut self) -> &mut Memories {
        &mut self.walk.memories
    }

    pub(crate) fn stretches(&self) -> &Stretches {
        &self.walk.stretches
    }

    pub(crate) fn state(&self) -> State {
        State {
            position: self.position,
            memories: self.walk.memories.clone(),
            stretches: self.walk.stretches.clone(),
            compared_weights: self.walk.compared_weights.clone(),
            compared_tables: self.walk.compared_tables.clone(),
            constant_map: self.walk.constant_map.as_ref().map(|map| map.borrow().clone()),
            order: self.order.clone(),
            steps: self.walk.budget.steps(),
        }
    }
}

impl<'a> Walk<'a> {
    pub(crate) fn machine(&self) -> &'a Machine {
        &self.program.machine
    }

    /// Constants and inputs appear in DDR.
    fn start(&mut self) -> Result<(), Fault> {
        let program = self.program;
        let spaces = [program.constants.len(), program.ddr_bytes.len(), self.machine().ddr_spaces()];
        let fits = spaces.is_sorted();
        let found = format_args!("{} and {}", spaces[0], spaces[1]);
        Rule::Ddr.require(fits, format_args!("constants and bytes of at most {} spaces", spaces[2]), found)?;
        for (space, bytes) in program.constants.iter().enumerate() {
            let (space, len) = (space as u8, bytes.len() as u64);
            self.store(Space::Ddr(space), 0, len, Value::Image { space, byte: 0 })?;
        }
        let capacity = self.machine().ddr_capacity();
        for bytes in &program.ddr_bytes {
            Rule::Ddr.require(*bytes <= capacity, format_args!("at most {capacity} bytes"), bytes)?;
        }
        if let Some(graph) = self.expectation.as_ref().map(|e| e.graph) {
            Rule::PortCount.require_equal("inputs,", &graph.inputs.len(), &program.inputs.len())?;
            Rule::PortCount.require_equal("outputs,", &graph.outputs.len(), &program.outputs.len())?;
            crate::header::header(graph, program)?;
        }
        self.exchanges = crate::exchange::regions(self.expectation.as_ref().map(|e| e.graph), program)?;
        for (i, port) in program.inputs.iter().enumerate() {
            self.input(i, port).map_err(|fault| fault.of_operand(Operand::Port(port.name.clone())))?;
        }
        for (i, port) in program.outputs.iter().enumerate() {
            let is_part = program.exchanges.iter().any(|exchange| exchange.output as usize == i);
            let alone = if is_part { Ok(()) } else { self.check_apart(port) };
            alone
                .and_then(|()| crate::form::output(program, port))
                .map_err(|fault| fault.of_operand(Operand::Port(port.name.clone())))?;
        }
        self.states = crate::state::states(self.expectation.as_ref().map(|e| e.graph), program)?;
        Ok(())
    }

    fn input(&mut self, number: usize, port: &Port) -> Result<(), Fault> {
        let tensor = self.expectation.as_ref().map(|e| (e.graph, e.graph.inputs[number]));
        if let Some((graph, tensor)) = tensor {
            check_port(graph.tensor(tensor), port)?;
        }
        if self.program.is_exchanged(number) {
            // Nothing of it is there before the run.
            return Ok(());
        }
        self.check_apart(port)?;
        let slices = crate::form::input(self.program, port)?;
        let most = self.program.input_bytes(number);
        for view in slices {
            let end = view.address + view.bytes(self.machine().word()).min(most);
            let before = self.memories.read(view.space, view.address, end, None, &mut Tokens::default());
            let alone = before.is_empty();
            Rule::PortOverlap.require(alone, "bytes of its own", format_args!("those of {:?}", before.first()))?;
            self.store(view.space, view.address, end, Value::Any)?;
            if let Some((_, tensor)) = tensor {
                self.produce(&view, Some(tensor), 0..view.rows, 0..view.width, 0..view.channels)?;
            }
        }
        Ok(())
    }

    fn check_apart(&self, port: &Port) -> Result<(), Fault> {
        crate::exchange::check_port(&self.exchanges, port, self.machine().word())
    }

    /// Outputs are where the ports say.
    fn finish(&mut self) -> Result<(), Fault> {
        for (i, port) in self.program.outputs.iter().enumerate() {
            self.output(i, port).map_err(|fault| fault.of_operand(Operand::Port(port.name.clone())))?;
        }
        Ok(())
    }

    fn output(&mut self, number: usize, port: &Port) -> Result<(), Fault> {
        let slices = crate::form::output(self.program, port)?;
        let tensor = self.expectation.as_ref().map(|e| e.graph.outputs[number]);
        if let Some((graph, tensor)) = self.expectation.as_ref().map(|e| e.graph).zip(tensor) {
            check_port(graph.tensor(tensor), port)?;
        }
        for view in slices {
            self.consume(&view, tensor, 0..view.rows, 0..view.width, 0..view.channels)?;
        }
        Ok(())
    }

    /// The memory figures of the header are those of the program.
    fn check_memory_figures(&self) -> Result<(), Fault> {
        crate::header::memory(self.program, self.memories.end(Space::Cache))
    }

    fn step(&mut self, instruction: &Instruction) -> Result<(), Fault> {
        (self.in_place, self.layer) = (false, instruction.layer);
        crate::form::instruction(self.program, instruction)?;
        crate::state::instruction(&self.states, instruction, self.machine().word())?;
        let layers = self.expectation.as_ref().map_or(self.program.layers.len(), |e| e.graph.layers.len());
        let number = instruction.layer.index();
        Rule::Layer.require(number < layers, format_args!("one of {layers} layers"), number)?;
        let layer = self.expectation.as_ref().map(|e| &e.graph.layers[instruction.layer.index()]);
        crate::units::executes(instruction)?;
        match &instruction.work {
            Work::Transfer(t) => self.transfer(t),
            Work::Lookup(l) => self.lookup(l, layer),
            Work::Expand(e) => self.expand(e),
            Work::PackedLookup(l) => self.packed_lookup(l, layer),
            Work::Matrix(m) => self.matrix(m, layer, instruction.layer),
            Work::Pool(p) => self.pool(p, layer),
            Work::Vector(v) => self.vector(v, layer),
        }
    }

    /// All it touches, bytes between values included, lies in the memories and is ordered by waits.
    fn check_accesses(&mut self, instruction: &Instruction, actor: Actor) -> Result<(), Fault> {
        let accesses = access::accesses(instruction, &self.program.descriptors, self.machine());
        for Stretch { space, start, end } in accesses.reads.iter().chain(&accesses.writes).copied() {
            self.in_range(space, start, end)?;
        }
        let before = self.stretches.access_count();
        for stretch @ Stretch { space, start, end } in &accesses.reads {
            let needed = self.stretches.read(stretch, actor);
            self.require_finished(needed, *space, *start, *end, Rule::ReadOrder)?;
        }
        for stretch @ Stretch { space, start, end } in &accesses.writes {
            let needed = self.stretches.write(stretch, actor);
            self.require_finished(needed, *space, *start, *end, Rule::WriteOrder)?;
        }
        self.spend(self.stretches.access_count() - before)
    }

    /// Takes steps, if so many are left.
    pub(crate) fn spend(&self, steps: u64) -> Result<(), Fault> {
        self.budget.spend(steps, &self.memories)
    }

    pub(crate) fn limit(&self, space: Space) -> u64 {
        match space {
            Space::Cache => self.machine().cache_bytes(),
            Space::EwpCache => self.machine().ewp_cache_bytes(),
            Space::Ddr(space) => self.program.ddr_bytes.get(usize::from(space)).copied().unwrap_or(0),
        }
    }

    fn in_range(&self, space: Space, start: u64, end: u64) -> Result<(), Fault> {
        let limit = self.limit(space);
        let (inside, found) = (start <= end && end <= limit, format_args!("{start:#x}..{end:#x}"));
        Rule::Memory.require(inside, format_args!("bytes of {space:?} below {limit:#x}"), found)
    }

    /// Reads a stretch; its writers must be known to have finished.
    pub(crate) fn load(&mut self, space: Space, start: u64, end: u64) -> Result<Vec<Piece>, Fault> {
        self.in_range(space, start, end)?;
        self.spend(1)?;
        let mut written = Tokens::default();
        let pieces = self.memories.read(space, start, end, self.actor, &mut written);
        self.require_finished(written, space, start, end, Rule::ReadOrder)?;
        Ok(pieces)
    }

    /// Writes a stretch; whoever read or wrote it on another unit must be known to have finished.
    pub(crate) fn store(&mut self, space: Space, start: u64, end: u64, value: Value) -> Result<(), Fault> {
        self.in_range(space, start, end)?;
        self.spend(1)?;
        let mut prior_accesses = Tokens::default();
        let own = self.memories.write(space, start, end, value, self.actor, &mut prior_accesses);
        let found = format_args!("what it reads at {space:?} bytes {start:#x}..{end:#x}");
        Rule::InPlace.require(!own || self.in_place, "a place of its own for the result", found)?;
        self.require_finished(prior_accesses, space, start, end, Rule::WriteOrder)
    }

    fn require_finished(&self, tokens: Tokens, space: Space, start: u64, end: u64, rule: Rule) -> Result<(), Fault> {
        let Some(actor) = self.actor else { return Ok(()) };
        for (unit, (&needed, &known)) in tokens.iter().zip(&self.known).enumerate() {
            // A unit finishes in order: what it wrote or read before is over when it writes again.
            if needed > known && (rule == Rule::ReadOrder || unit != actor.unit) {
                let name = tpuflow_ir::Unit::ALL[unit].name();
                let expected = format_args!("{needed} instructions of {name} known to have finished");
                let found = format_args!("{known}, at {space:?} bytes {start:#x}..{end:#x}");
                return Err(rule.violation(expected, found));
            }
        }
        Ok(())
    }
}

/// A port says of its tensor what the graph says.
fn check_port(tensor: &Tensor, port: &Port) -> Result<(), Fault> {
    Rule::PortName.require_equal("", &tensor.name, &port.name)?;
    Rule::PortShape.require_equal("", &tensor.shape, &port.shape)?;
    Rule::PortType.require_equal("", &tensor.dtype, &port.dtype)?;
    Rule::PortQuant.require_equal("", &tensor.quant, &port.quant)?;
    Rule::PortSource.require_equal("", &tensor.source, &port.source)
}
