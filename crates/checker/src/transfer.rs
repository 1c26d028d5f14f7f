//! Transfers: symbols carried between DDR and a cache.

use tpuflow_ir::Space;
use tpuflow_ir::isa::{Direction, Transfer};

use crate::contents::{Piece, Tokens, Value};
use crate::rule::{Fault, Rule};
use crate::walk::Walk;

impl Walk<'_> {
    pub(crate) fn transfer(&mut self, transfer: &Transfer) -> Result<(), Fault> {
        let machine = self.machine();
        let is_own = machine.rank(transfer.ddr_space).is_none();
        let brings = transfer.direction == Direction::Load && transfer.local_space == Space::Cache;
        Rule::Exchange.require(is_own || brings, "a load of another device's part", transfer.ddr_space)?;
        let ddr_space = Space::Ddr(machine.own_space(transfer.ddr_space));
        // A byte is not brought twice: what arrives fits where it arrives.
        let filled = self.limit(if transfer.direction == Direction::Load { transfer.local_space } else { ddr_space });
        let runs = transfer.counts.map(u128::from);
        let (all, most) =
            (runs[0] * runs[1] * u128::from(transfer.bytes), format_args!("at most {filled} bytes moved"));
        Rule::Limits.require(all <= u128::from(filled), most, all)?;
        for (ddr, local) in transfer.runs() {
            let bytes = u64::from(transfer.bytes);
            let ((from_space, from), (to_space, to)) = match transfer.direction {
                Direction::Load => ((ddr_space, ddr), (transfer.local_space, local)),
                Direction::Store => ((transfer.local_space, local), (ddr_space, ddr)),
            };
            if transfer.direction == Direction::Store {
                let constants = self.program.constants.get(usize::from(transfer.ddr_space)).map_or(0, |c| c.len());
                let behind = format_args!("a store behind {constants:#x}");
                Rule::ConstantsKept.require(to >= constants as u64, behind, format_args!("{to:#x}"))?;
                self.check_stored_once(ddr_space, to, to + bytes)?;
            }
            // What is undefined at the source wipes out what the destination held.
            let mut done = from;
            let pieces = self.load(from_space, from, from + bytes)?;
            let pieces = self.of_rank(transfer.ddr_space, (from, from + bytes), pieces)?;
            if pieces.is_empty() && bytes > 0 {
                return Err(Rule::Undefined.violation("something to move", format_args!("nothing from {from:#x} on")));
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

    /// Nothing stands yet where a part of an exchange is stored.
    fn check_stored_once(&mut self, space: Space, start: u64, end: u64) -> Result<(), Fault> {
        let Space::Ddr(own) = space else { return Ok(()) };
        if !self.exchanges.iter().any(|region| region.overlaps(own, start, end)) {
            return Ok(());
        }
        let before = self.memories.read(space, start, end, None, &mut Tokens::default());
        let found = format_args!("{:?}", before.first());
        Rule::Exchange.require(before.is_empty(), "bytes that nothing was stored to", found)
    }

    /// What the device of a rank has in `start .. end` of a part, of which this one has `pieces`: the same elements of its own.
    pub(crate) fn of_rank(&self, space: u8, (start, end): (u64, u64), pieces: Vec<Piece>) -> Result<Vec<Piece>, Fault> {
        let machine = self.machine();
        let Some(rank) = machine.rank(space) else { return Ok(pieces) };
        let region = self.exchanges.iter().find(|region| region.holds(machine.own_space(space), start, end));
        let part = region.and_then(|region| Some((region, *region.inputs.get(rank)?)));
        let found = format_args!("bytes {start:#x}..{end:#x} of rank {rank}");
        let Some((region, input)) = part else {
            return Err(Rule::Exchange.violation("bytes of a part", found));
        };
        let (Some(output), Some(input), view) = (region.output, input, region.view) else { return Ok(pieces) };
        let mut theirs = Vec::new();
        for row in 0..view.rows {
            for stretch in self.stretches(&view, row, 0..view.width, 0..view.channels, view.channels.into()) {
                let (from, to) = (start.max(stretch.start), end.min(stretch.start + stretch.bytes));
                if from >= to {
                    continue;
                }
                let at = |tensor| Value::Element(stretch.element(tensor)).advance(from - stretch.start);
                if let Value::Element(own) = at(output) {
                    self.require_elements(&pieces, from, to - from, own)?;
                }
                theirs.push(Piece { start: from, end: to, value: at(input) });
            }
        }
        Ok(theirs)
    }
}
