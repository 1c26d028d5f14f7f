//! The walk over a program: memories, knowledge, and the primitives by which instructions read and write symbols.

use tpuflow_ir::isa::{Direction, Lookup, Transfer, Work};
use tpuflow_ir::layout::image;
use tpuflow_ir::{Graph, Instruction, Layer, Machine, Op, Program, Space, TensorId, View};

use crate::contents::{Actor, Element, Memories, Piece, Tokens, Value};
use crate::expect::{Expectation, same};
use crate::{REPORTED, Violation};

/// Why an instruction fails: the rule and the detail.
pub(crate) type Fault = (&'static str, String);

/// Form of a weight tile: first column, columns, bytes between rows.
pub(crate) type Tile = [u32; 3];

/// State of the walk.
pub(crate) struct Walk<'a> {
    pub(crate) program: &'a Program,
    pub(crate) expectation: Option<Expectation<'a>>,
    memories: Memories,
    actor: Option<Actor>,
    known: Tokens,
    /// Weights already compared: layer, address in the image (with the plane), and the tile's form.
    pub(crate) compared: std::collections::BTreeSet<(u32, u64, Tile)>,
}

pub(crate) fn walk(graph: Option<&Graph>, program: &Program) -> Result<(), Vec<Violation>> {
    let mut walk = Walk {
        program,
        expectation: graph.map(Expectation::new),
        memories: Memories::default(),
        actor: None,
        known: [0; 5],
        compared: std::collections::BTreeSet::new(),
    };
    let mut violations = Vec::new();
    let mut report = |instruction, (rule, detail): Fault| {
        violations.push(Violation { instruction, rule, detail });
        violations.len() >= REPORTED
    };
    if let Err(fault) = walk.start() {
        report(None, fault);
    }
    let mut order = crate::order::Order::default();
    for (at, instruction) in program.instructions.iter().enumerate() {
        let (actor, known, outcome) = order.start(instruction);
        (walk.actor, walk.known) = (Some(actor), known);
        let result = outcome.map_err(|detail| ("token", detail)).and_then(|()| walk.step(instruction));
        if let Err(fault) = result
            && report(Some(at), fault)
        {
            return Err(violations);
        }
    }
    walk.actor = None;
    if let Err(fault) = walk.finish() {
        report(None, fault);
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

impl<'a> Walk<'a> {
    pub(crate) fn machine(&self) -> &'a Machine {
        &self.program.machine
    }

    /// Constants and inputs appear in DDR.
    fn start(&mut self) -> Result<(), Fault> {
        let program = self.program;
        if program.constants.len() > program.ddr_bytes.len() || program.ddr_bytes.len() > self.machine().ddr_spaces() {
            return Err(("range", "more address spaces than the machine has".to_owned()));
        }
        for (space, bytes) in program.constants.iter().enumerate() {
            let (space, len) = (space as u8, bytes.len() as u64);
            self.store(Space::Ddr(space), 0, len, Value::Image { space, byte: 0 })?;
        }
        let capacity = self.machine().ddr.capacity_bytes;
        if let Some(bytes) = program.ddr_bytes.iter().find(|&&b| b > capacity) {
            return Err(("range", format!("{bytes} bytes exceed a DDR space of {capacity}")));
        }
        for (i, port) in program.inputs.iter().enumerate() {
            crate::form::port(self.program, port)?;
            let view = port.view;
            self.store(view.space, view.address, view.address + view.bytes(self.machine().word()), Value::Any)?;
            if let Some(graph) = self.expectation.as_ref().map(|e| e.graph) {
                let tensor = *graph.inputs.get(i).ok_or(("output", "more input ports than inputs".to_owned()))?;
                if image(&graph.tensor(tensor).shape) != image(&port.shape) || graph.tensor(tensor).dtype != port.dtype
                {
                    return Err(("output", format!("input port \"{}\" has another shape or type", port.name)));
                }
                self.produce(&view, Some(tensor), 0..view.rows, 0..view.width, 0..view.channels)?;
            }
        }
        Ok(())
    }

    /// Outputs are where the ports say.
    fn finish(&mut self) -> Result<(), Fault> {
        let graph = self.expectation.as_ref().map(|e| e.graph);
        if let Some(graph) = graph
            && (graph.outputs.len() != self.program.outputs.len() || graph.inputs.len() != self.program.inputs.len())
        {
            return Err(("output", "the program has not the graph's inputs and outputs".to_owned()));
        }
        for (i, port) in self.program.outputs.iter().enumerate() {
            crate::form::port(self.program, port).map_err(|(_, detail)| ("output", detail))?;
            let view = port.view;
            if let Some(graph) = graph {
                let tensor = graph.tensor(graph.outputs[i]);
                if tensor.dtype != port.dtype || tensor.shape != port.shape || tensor.quant != port.quant {
                    return Err(("output", format!("output port \"{}\" has another shape or type", port.name)));
                }
            }
            self.consume(&view, graph.map(|g| g.outputs[i]), 0..view.rows, 0..view.width, 0..view.channels)
                .map_err(|(_, detail)| ("output", format!("\"{}\": {detail}", port.name)))?;
        }
        Ok(())
    }

    fn step(&mut self, instruction: &Instruction) -> Result<(), Fault> {
        crate::form::instruction(self.program, instruction)?;
        let layer = match &self.expectation {
            Some(e) => Some(
                e.graph
                    .layers
                    .get(instruction.layer.index())
                    .ok_or_else(|| ("descriptor", format!("layer {} does not exist", instruction.layer.0)))?,
            ),
            None => None,
        };
        use tpuflow_ir::Unit::{Dtl0, Dtl1, Ewp, Me, Pdp};
        match (&instruction.work, instruction.unit) {
            (Work::Transfer(t), Dtl0 | Dtl1) => self.transfer(t),
            (Work::Lookup(l), Dtl0 | Dtl1) => self.lookup(l, layer),
            (Work::Matrix(m), Me) => self.matrix(m, layer, instruction.layer),
            (Work::Pool(p), Pdp) => self.pool(p, layer),
            (Work::Vector(v), Ewp) => self.vector(v, layer),
            (_, unit) => Err(("descriptor", format!("{} cannot execute this", unit.name()))),
        }
    }

    fn limit(&self, space: Space) -> u64 {
        match space {
            Space::Cache => self.machine().cache_bytes(),
            Space::EwpCache => self.machine().ewp_cache_bytes(),
            Space::Ddr(space) => self.program.ddr_bytes.get(usize::from(space)).copied().unwrap_or(0),
        }
    }

    fn in_range(&self, space: Space, start: u64, end: u64) -> Result<(), Fault> {
        let limit = self.limit(space);
        if start > end || end > limit {
            return Err(("range", format!("{space:?} bytes {start:#x}..{end:#x} leave its {limit:#x}")));
        }
        Ok(())
    }

    /// Reads a stretch; its writers must be known to have finished.
    pub(crate) fn load(&mut self, space: Space, start: u64, end: u64) -> Result<Vec<Piece>, Fault> {
        self.in_range(space, start, end)?;
        let mut written = [0; 5];
        let pieces = self.memories.read(space, start, end, self.actor, &mut written);
        self.must_know(written, space, start, end, "reads", true)?;
        Ok(pieces)
    }

    /// Writes a stretch; whoever read or wrote it on another unit must be known to have finished.
    pub(crate) fn store(&mut self, space: Space, start: u64, end: u64, value: Value) -> Result<(), Fault> {
        self.in_range(space, start, end)?;
        let mut disturbed = [0; 5];
        self.memories.write(space, start, end, value, self.actor, &mut disturbed);
        self.must_know(disturbed, space, start, end, "overwrites", false)
    }

    fn must_know(
        &self,
        tokens: Tokens,
        space: Space,
        start: u64,
        end: u64,
        verb: &str,
        own: bool,
    ) -> Result<(), Fault> {
        let Some(actor) = self.actor else { return Ok(()) };
        for (unit, (&needed, &known)) in tokens.iter().zip(&self.known).enumerate() {
            if needed > known && (own || unit != actor.unit) {
                let name = tpuflow_ir::Unit::ALL[unit].name();
                return Err((
                    "order",
                    format!(
                        "{verb} {space:?} bytes {start:#x}..{end:#x} while {name} may still be at its instruction {needed}"
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The given pixels of a view must hold those of `tensor` (anything defined, without a graph).
    pub(crate) fn consume(
        &mut self,
        view: &View,
        tensor: Option<TensorId>,
        rows: std::ops::Range<u32>,
        columns: std::ops::Range<u32>,
        channels: std::ops::Range<u32>,
    ) -> Result<(), Fault> {
        let whole = self.whole_channels(view, tensor)?;
        for row in rows {
            self.holds(view, row)?;
            for stretch in self.stretches(view, row, columns.clone(), channels.clone(), whole) {
                let end = stretch.start + stretch.bytes;
                let pieces = self.load(view.space, stretch.start, end)?;
                match tensor {
                    Some(tensor) => {
                        let element = stretch.element(tensor);
                        self.same_values(&pieces, stretch.start, stretch.bytes, element)?;
                    }
                    None if stretch.padded => {}
                    None => defined(&pieces, view.space, stretch.start, end)?,
                }
            }
        }
        Ok(())
    }

    /// Every pixel a view stores must hold something.
    pub(crate) fn all_defined(&mut self, view: &View) -> Result<(), Fault> {
        let word = self.machine().word();
        for row in view.first_row..view.first_row + view.stored_rows {
            for column in 0..view.width {
                let start = view.pixel_address(row, column, word);
                let end = start + view.payload() as u64;
                defined(&self.load(view.space, start, end)?, view.space, start, end)?;
            }
        }
        Ok(())
    }

    /// The given pixels of a view now hold those of `tensor`; anything, without a graph.
    pub(crate) fn produce(
        &mut self,
        view: &View,
        tensor: Option<TensorId>,
        rows: std::ops::Range<u32>,
        columns: std::ops::Range<u32>,
        channels: std::ops::Range<u32>,
    ) -> Result<(), Fault> {
        let whole = self.whole_channels(view, tensor)?;
        for row in rows {
            self.holds(view, row)?;
            for stretch in self.stretches(view, row, columns.clone(), channels.clone(), whole) {
                let (start, end) = (stretch.start, stretch.start + stretch.bytes);
                let value = tensor.map_or(Value::Any, |tensor| Value::Element(stretch.element(tensor)));
                let (payload, pixel) = (u64::from(stretch.payload), u64::from(stretch.natural));
                if !stretch.padded || self.owns_padding(view.space, start..end, payload, pixel) {
                    self.store(view.space, start, end, value)?;
                    continue;
                }
                for at in (start..end).step_by(pixel as usize) {
                    self.store(view.space, at, at + payload, value.advance(at - start))?;
                }
            }
        }
        Ok(())
    }

    /// Whether nothing that may still be needed lies between pixels: padding that belongs to a neighbour in wider pixels (a
    /// tensor joined with others by channels) must not be written along.
    pub(crate) fn owns_padding(&mut self, space: Space, bytes: std::ops::Range<u64>, payload: u64, pixel: u64) -> bool {
        let pieces = self.memories.read(space, bytes.start, bytes.end, None, &mut [0; 5]);
        pieces.iter().all(|piece| {
            let first = (piece.start - bytes.start) % pixel;
            let apart = first + (piece.end - piece.start) <= payload;
            apart || piece.value == Value::Any || piece.value.has_pixels_of(payload, pixel, first)
        })
    }

    /// `bytes` bytes from `start` on must hold `expected` onwards, wherever that is not padding.
    pub(crate) fn same_values(&self, pieces: &[Piece], start: u64, bytes: u64, expected: Element) -> Result<(), Fault> {
        let Some(expectation) = &self.expectation else { return Ok(()) };
        let mut done = 0;
        while done < bytes {
            let at = start + done;
            let wanted = Value::Element(expected).advance(done);
            let piece = covering(pieces, at);
            if let Some(piece) = piece
                && piece.value.advance(at - piece.start) == wanted
            {
                done += piece.end - at;
                continue;
            }
            let Value::Element(element) = wanted else { return Ok(()) };
            let (byte, run) = element.place();
            let Some(byte) = byte else {
                done += run;
                continue;
            };
            let name = &expectation.graph.tensor(TensorId(expected.tensor)).name;
            let Some(piece) = piece else {
                return Err(("undefined", format!("byte {at:#x}, {element:?} of \"{name}\", was never written")));
            };
            let found = piece.value.advance(at - piece.start);
            let agreed = self.agreed(found, expected.tensor, byte, run.min(piece.end - at).min(bytes - done));
            if agreed == 0 {
                let value = expectation.origin(expected.tensor, byte).0;
                return Err(("value", format!("at {at:#x}, for \"{name}\": found {found:?}, expected {value:?}")));
            }
            done += agreed;
        }
        Ok(())
    }

    /// For how many bytes (at most `run`) a found value is what the dense elements of a tensor are from `byte` on.
    fn agreed(&self, found: Value, tensor: u32, byte: u64, run: u64) -> u64 {
        let Some(expectation) = &self.expectation else { return run };
        let wanted = Value::Element(Element::dense(tensor, byte));
        match found {
            Value::Element(element) => match element.place() {
                (Some(byte), bytes) => {
                    let found = Value::Element(Element::dense(element.tensor, byte));
                    expectation.common(found, wanted, run.min(bytes))
                }
                (None, _) => 0,
            },
            Value::Image { space, byte: at } => {
                let (origin, bytes) = expectation.origin(tensor, byte);
                let (Some((constant, byte)), run) = (origin.dense(), run.min(bytes)) else { return 0 };
                let image = self.program.constants.get(usize::from(space)).map(|c| &c[..]);
                let equal = expectation.constant(constant).is_some_and(|c| same(image, at, c, byte, run));
                if equal { run } else { 0 }
            }
            _ => expectation.common(found, wanted, run),
        }
    }

    /// The constant bytes behind a stretch of a cache.
    pub(crate) fn image_bytes(&self, pieces: &[Piece], start: u64, bytes: u64) -> Result<Vec<u8>, Fault> {
        let mut out = Vec::with_capacity(bytes as usize);
        while (out.len() as u64) < bytes {
            let at = start + out.len() as u64;
            let piece = covering(pieces, at)
                .ok_or_else(|| ("undefined", format!("parameter byte {at:#x} was never written")))?;
            let run = (piece.end - at).min(bytes - out.len() as u64);
            let Value::Image { space, byte } = piece.value.advance(at - piece.start) else {
                return Err(("constant", format!("byte {at:#x} holds no constant")));
            };
            let image = self.program.constants.get(usize::from(space)).map(|c| &c[..]).unwrap_or_default();
            let slice = image.get(byte as usize..(byte + run) as usize);
            out.extend_from_slice(slice.ok_or_else(|| ("range", format!("constant {byte:#x} does not exist")))?);
        }
        Ok(out)
    }

    /// Reads `bytes` of parameters from the EWP cache.
    pub(crate) fn parameters(&mut self, address: u32, bytes: usize) -> Result<Vec<u8>, Fault> {
        let (start, bytes) = (u64::from(address), bytes as u64);
        let pieces = self.load(Space::EwpCache, start, start + bytes)?;
        self.image_bytes(&pieces, start, bytes)
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<(), Fault> {
        let ddr_space = Space::Ddr(transfer.ddr_space);
        for (ddr, local) in transfer.runs() {
            let bytes = u64::from(transfer.bytes);
            let ((from_space, from), (to_space, to)) = match transfer.direction {
                Direction::Load => ((ddr_space, ddr), (transfer.local_space, local)),
                Direction::Store => ((transfer.local_space, local), (ddr_space, ddr)),
            };
            if let (Space::Ddr(space), Direction::Store) = (to_space, transfer.direction)
                && to < self.program.constants.get(usize::from(space)).map_or(0, |c| c.len() as u64)
            {
                return Err(("range", format!("a store to {to:#x} overwrites constants")));
            }
            // What is undefined at the source wipes out what the destination held.
            let mut done = from;
            let pieces = self.load(from_space, from, from + bytes)?;
            if pieces.is_empty() && bytes > 0 {
                return Err((
                    "undefined",
                    format!("a transfer of nothing: no byte from {from:#x} on was ever written"),
                ));
            }
            for piece in pieces {
                let at = to + (piece.start - from);
                self.store(to_space, to + (done - from), at, Value::Undefined)?;
                self.store(to_space, at, at + (piece.end - piece.start), piece.value)?;
                done = piece.end;
            }
            self.store(to_space, to + (done - from), to + bytes, Value::Undefined)?;
        }
        Ok(())
    }

    fn lookup(&mut self, lookup: &Lookup, layer: Option<&Layer>) -> Result<(), Fault> {
        let operands = match layer.map(|l| &l.op) {
            Some(Op::Embedding { table, indices }) => Some((*table, *indices)),
            Some(_) => return Err(("descriptor", "a lookup for a layer that is no embedding".to_owned())),
            None => None,
        };
        let (width, table) = (u64::from(lookup.indices.width), &lookup.table);
        self.consume(table, operands.map(|o| o.0), 0..1, 0..table.width, 0..table.channels)?;
        let channels = u64::from(lookup.indices.channels);
        for index in u64::from(lookup.first)..u64::from(lookup.first) + u64::from(lookup.count) {
            let (pixel, channel) = (index / channels, (index % channels) as u32);
            let (row, column) = ((pixel / width) as u32, (pixel % width) as u32);
            self.consume(
                &lookup.indices,
                operands.map(|o| o.1),
                row..row + 1,
                column..column + 1,
                channel..channel + 1,
            )?;
            let out = &lookup.output;
            let (row, column) = ((index / u64::from(out.width)) as u32, (index % u64::from(out.width)) as u32);
            let whole = layer.map(|l| l.output);
            self.produce(out, whole, row..row + 1, column..column + 1, 0..out.channels)?;
        }
        Ok(())
    }
}

pub(crate) fn covering(pieces: &[Piece], at: u64) -> Option<Piece> {
    let next = pieces.partition_point(|p| p.end <= at);
    pieces.get(next).filter(|p| p.start <= at).copied()
}

/// The parts of sorted pieces that lie in `start .. end`.
pub(crate) fn within(pieces: &[Piece], start: u64, end: u64) -> Vec<Piece> {
    let first = pieces.partition_point(|p| p.end <= start);
    pieces[first..]
        .iter()
        .take_while(|p| p.start < end)
        .map(|p| {
            let from = p.start.max(start);
            Piece { start: from, end: p.end.min(end), value: p.value.advance(from - p.start) }
        })
        .collect()
}

/// The stretch must be defined throughout.
pub(crate) fn defined(pieces: &[Piece], space: Space, start: u64, end: u64) -> Result<(), Fault> {
    let mut at = start;
    for piece in pieces {
        if piece.start > at {
            break;
        }
        at = piece.end;
    }
    if at < end { Err(("undefined", format!("{space:?} byte {at:#x} was never written"))) } else { Ok(()) }
}
