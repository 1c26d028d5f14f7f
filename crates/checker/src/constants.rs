//! Constants of a program: what the bytes that instructions read stand for in the graph, each for one thing alone.

use tpuflow_ir::{Space, TensorId};

use crate::constant_map::{Constant, ConstantByte};
use crate::contents::{Piece, Tokens, Value};
use crate::rule::{Fault, Rule};
use crate::values::piece_at;
use crate::walk::Walk;

impl Walk<'_> {
    /// Bytes of the constants stand for this and for nothing else.
    pub(crate) fn assign_constants(&self, space: u8, at: u64, bytes: u64, element: ConstantByte) -> Result<(), Fault> {
        let Some(constant_map) = &self.constant_map else { return Ok(()) };
        let assigned = constant_map.borrow_mut().assign(space, at, bytes, element);
        assigned.map_err(|other| {
            Rule::ConstantPlace
                .violation(format_args!("bytes of {element:?} alone"), format_args!("those of {other:?}"))
        })
    }

    /// The constants that lie in `start .. start + bytes` of a cache stand for this and for nothing else.
    pub(crate) fn require_constants(
        &mut self,
        space: Space,
        start: u64,
        bytes: u64,
        element: ConstantByte,
    ) -> Result<(), Fault> {
        if self.constant_map.is_none() {
            return Ok(());
        }
        for piece in self.memories.read(space, start, start + bytes, None, &mut Tokens::default()) {
            if let Value::Image { space, byte } = piece.value {
                let element = ConstantByte { byte: element.byte + (piece.start - start), ..element };
                self.assign_constants(space, byte, piece.end - piece.start, element)?;
            }
        }
        Ok(())
    }

    /// The same of parameters of the instruction's layer in the EWP cache.
    pub(crate) fn require_parameters(&mut self, address: u32, bytes: usize, first: usize) -> Result<(), Fault> {
        let element = ConstantByte { of: Constant::Parameters(self.layer), byte: first as u64 };
        self.require_constants(Space::EwpCache, address.into(), bytes as u64, element)
    }

    /// The same of a table there.
    pub(crate) fn require_table(&mut self, address: u32, bytes: usize, entries: TensorId) -> Result<(), Fault> {
        let element = ConstantByte { of: Constant::Dense(entries), byte: 0 };
        self.require_constants(Space::EwpCache, address.into(), bytes as u64, element)
    }

    /// The constant bytes behind a stretch of a cache.
    pub(crate) fn image_bytes(&self, pieces: &[Piece], start: u64, bytes: u64) -> Result<Vec<u8>, Fault> {
        self.spend(bytes / 64)?;
        let mut out = Vec::new();
        while (out.len() as u64) < bytes {
            let at = start + out.len() as u64;
            let piece = piece_at(pieces, at).ok_or_else(|| {
                Rule::Undefined.violation("a byte of a parameter", format_args!("nothing at {at:#x}"))
            })?;
            let run = (piece.end - at).min(bytes - out.len() as u64);
            if let Value::Expanded { image, byte } = piece.value.advance(at - piece.start) {
                let constants = self.program.constants.get(usize::from(image.space)).map(|c| &c[..]);
                for byte in byte..byte + run {
                    let element = constants.and_then(|constants| image.element(constants, byte));
                    let none = || Rule::Memory.violation("a code of the constants", format_args!("{image:?}"));
                    out.push(element.ok_or_else(none)?.cast_unsigned());
                }
                continue;
            }
            let Value::Image { space, byte } = piece.value.advance(at - piece.start) else {
                return Err(Rule::NotConstant.violation("a constant", format_args!("{:?} at {at:#x}", piece.value)));
            };
            let image = self.program.constants.get(usize::from(space)).map(|c| &c[..]).unwrap_or_default();
            let slice = image.get(byte as usize..(byte + run) as usize);
            out.extend_from_slice(
                slice.ok_or_else(|| Rule::Memory.violation("a byte of the constants", format_args!("{byte:#x}")))?,
            );
        }
        Ok(out)
    }

    /// Reads `bytes` of parameters from the EWP cache.
    pub(crate) fn parameters(&mut self, address: u32, bytes: usize) -> Result<Vec<u8>, Fault> {
        let (start, bytes) = (u64::from(address), bytes as u64);
        let pieces = self.load(Space::EwpCache, start, start + bytes)?;
        self.image_bytes(&pieces, start, bytes)
    }
}
