//! Symbolic values of pixels and bytes: how instructions read and write them, and what they must be.

use tpuflow_ir::{Space, TensorId, View};

use crate::constant_map::{Constant, ConstantByte};
use crate::contents::{Element, Piece, Tokens, Value};
use crate::expectation::same;
use crate::rule::{Fault, Rule};
use crate::walk::Walk;

impl Walk<'_> {
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
            self.require_row(view, row)?;
            for stretch in self.stretches(view, row, columns.clone(), channels.clone(), whole) {
                let end = stretch.start + stretch.bytes;
                let pieces = self.load(view.space, stretch.start, end)?;
                match tensor {
                    Some(tensor) => {
                        let element = stretch.element(tensor);
                        self.require_elements(&pieces, stretch.start, stretch.bytes, element)?;
                    }
                    None if !stretch.padded => require_defined(&pieces, view.space, stretch.start, end)?,
                    None if require_defined(&pieces, view.space, stretch.start, end).is_ok() => {}
                    None => {
                        for at in (stretch.start..end).step_by(stretch.natural as usize) {
                            let (space, end) = (view.space, at + u64::from(stretch.payload));
                            self.spend(1)?;
                            require_defined(&pieces_within(&pieces, at, end), space, at, end)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Every pixel a view stores must hold something.
    pub(crate) fn require_pixels_defined(&mut self, view: &View) -> Result<(), Fault> {
        let word = self.machine().word();
        for row in view.first_row..view.first_row + view.stored_rows {
            for column in 0..view.width {
                let start = view.pixel_address(row, column, word);
                let end = start + view.payload() as u64;
                require_defined(&self.load(view.space, start, end)?, view.space, start, end)?;
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
            self.require_row(view, row)?;
            for stretch in self.stretches(view, row, columns.clone(), channels.clone(), whole) {
                let (start, end) = (stretch.start, stretch.start + stretch.bytes);
                let value = tensor.map_or(Value::Any, |tensor| Value::Element(stretch.element(tensor)));
                let laid = Value::Element(stretch.element(TensorId(0)));
                if !stretch.padded || self.owns_padding(view.space, start..end, laid) {
                    self.store(view.space, start, end, value)?;
                    continue;
                }
                let (payload, pixel) = (u64::from(stretch.payload), u64::from(stretch.natural));
                for at in (start..end).step_by(pixel as usize) {
                    self.store(view.space, at, at + payload, value.advance(at - start))?;
                }
            }
        }
        Ok(())
    }

    /// Whether nothing that may still be needed lies in the padding of these bytes, which are to hold `value` onwards: padding
    /// that belongs to a neighbour in wider pixels (a tensor joined with others by channels) must not be written along.
    pub(crate) fn owns_padding(&mut self, space: Space, bytes: std::ops::Range<u64>, value: Value) -> bool {
        let pieces = self.memories.read(space, bytes.start, bytes.end, None, &mut Tokens::default());
        pieces
            .iter()
            .all(|piece| value.advance(piece.start - bytes.start).may_replace(piece.value, piece.end - piece.start))
    }

    /// `bytes` bytes from `start` on must hold `expected` onwards, wherever that is not padding.
    pub(crate) fn require_elements(
        &self,
        pieces: &[Piece],
        start: u64,
        bytes: u64,
        expected: Element,
    ) -> Result<(), Fault> {
        let Some(expectation) = &self.expectation else { return Ok(()) };
        let mut done = 0;
        while done < bytes {
            self.spend(1)?;
            let at = start + done;
            let wanted = Value::Element(expected).advance(done);
            let piece = piece_at(pieces, at);
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
                let expected = format_args!("{element:?} of \"{name}\"");
                return Err(Rule::Undefined.violation(expected, format_args!("nothing at {at:#x}")));
            };
            let found = piece.value.advance(at - piece.start);
            let matching = self.matching_bytes(found, expected.tensor, byte, run.min(piece.end - at).min(bytes - done));
            if matching == 0 {
                let value = expectation.origin(expected.tensor, byte).0;
                let expected = format_args!("{value:?} for \"{name}\"");
                return Err(Rule::Value.violation(expected, format_args!("{found:?} at {at:#x}")));
            }
            if let Value::Image { space, byte: at } = found
                && let Some((constant, byte)) = expectation.origin(expected.tensor, byte).0.dense()
            {
                let element = ConstantByte { of: Constant::Dense(TensorId(constant)), byte };
                self.assign_constants(space, at, matching, element)?;
            }
            done += matching;
        }
        Ok(())
    }

    /// For how many bytes (at most `run`) a found value is what the dense elements of a tensor are from `byte` on.
    fn matching_bytes(&self, found: Value, tensor: u32, byte: u64, run: u64) -> u64 {
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
}

pub(crate) fn piece_at(pieces: &[Piece], at: u64) -> Option<Piece> {
    let next = pieces.partition_point(|p| p.end <= at);
    pieces.get(next).filter(|p| p.start <= at).copied()
}

/// The parts of sorted pieces that lie in `start .. end`.
pub(crate) fn pieces_within(pieces: &[Piece], start: u64, end: u64) -> Vec<Piece> {
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
pub(crate) fn require_defined(pieces: &[Piece], space: Space, start: u64, end: u64) -> Result<(), Fault> {
    let mut at = start;
    for piece in pieces {
        if piece.start > at || at >= end {
            break;
        }
        at = piece.value.defined_to(piece.start, at, piece.end.min(end));
    }
    Rule::Undefined.require(at >= end, "a byte that was written", format_args!("nothing at {space:?} {at:#x}"))
}
