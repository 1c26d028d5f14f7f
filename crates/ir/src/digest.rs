//! A digest of what a program does, whatever its parts are called.
//!
//! Two programs have the same digest when the machine executes the same: equal descriptors and instructions in the same order,
//! the same addresses, constants and predicted cycles. Names of network, layers and tensors, the version of the file form and the
//! figures that reports show (bounds, allocations) do not enter, so that a change of the compiler which claims to change
//! no program can be held against files written before it.

use sha2::{Digest as _, Sha256};

use crate::error::ProgramError;
use crate::program::Port;
use crate::{Error, Program, Stream};

impl Program {
    /// SHA-256 over descriptors, instructions, ports, sizes of memories, constants and predicted cycles, as 64 hex digits.
    ///
    /// Instructions enter in postcard's encoding, which holds numbers of variants and fields in order, no names.
    ///
    /// # Errors
    /// [`Error::Program`] when instructions cannot be encoded.
    pub fn digest(&self) -> Result<String, Error> {
        let fail = |error: postcard::Error| Error::from(ProgramError::Encoding(error));
        let mut hash = Parts(Sha256::new());
        hash.part(&postcard::to_allocvec(&(&self.descriptors, &self.instructions)).map_err(fail)?);
        for ports in [&self.inputs, &self.outputs] {
            hash.count(ports.len());
            for port in ports {
                hash.part(&encode_port(port).map_err(fail)?);
            }
        }
        hash.part(&postcard::to_allocvec(&(self.batch, &self.ddr_bytes, self.predicted_cycles)).map_err(fail)?);
        // Programs without states have the digest they had before there were any.
        if !self.states.is_empty() {
            hash.part(&postcard::to_allocvec(&self.states).map_err(fail)?);
        }
        if !self.exchanges.is_empty() {
            hash.part(&postcard::to_allocvec(&self.exchanges).map_err(fail)?);
        }
        if let Some(stream) = &self.stream {
            hash.part(&postcard::to_allocvec(&encode_stream(stream)).map_err(fail)?);
        }
        hash.count(self.constants.len());
        for image in &self.constants {
            hash.part(image);
        }
        Ok(hash.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The fields of a port that say where its bytes lie and what they mean.
fn encode_port(port: &Port) -> Result<Vec<u8>, postcard::Error> {
    let Port { name: _, shape, dtype, quant, source: _, view, parts } = port;
    let mut encoded = postcard::to_allocvec(&(shape, dtype, quant, view))?;
    // Programs without parts have the digest they had before there were any.
    if !parts.is_empty() {
        encoded.extend(postcard::to_allocvec(parts)?);
    }
    Ok(encoded)
}

/// The body of a stream in numbers.
fn encode_stream(stream: &Stream) -> (u64, Vec<EncodedRepeated>) {
    let body = stream.body.iter().map(|repeated| {
        let waits = repeated.waits.iter().map(|wait| (wait.unit.index(), wait.ago, wait.count));
        (repeated.instruction.0, repeated.lag, waits.collect())
    });
    (stream.predicted_interval, body.collect())
}

/// Instruction, lag, waits.
type EncodedRepeated = (u32, u32, Vec<(usize, u32, u32)>);

/// A hash of parts, each behind its length, so that no two lists of parts look alike.
struct Parts(Sha256);

impl Parts {
    fn count(&mut self, number: usize) {
        self.0.update((number as u64).to_le_bytes());
    }

    fn part(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Descriptor, Direction, Instruction, Transfer, Unit, VectorOp, Work};
    use crate::program::{Allocation, Bounds, PortPart};
    use crate::{DType, Image, LayerId, Machine, Space, View};

    fn transfer() -> Transfer {
        Transfer {
            direction: Direction::Load,
            ddr_space: 0,
            ddr_address: 128,
            local_space: Space::Cache,
            local_address: 256,
            bytes: 128,
            counts: [2, 1],
            ddr_strides: [256, 0],
            local_strides: [128, 0],
        }
    }

    fn program() -> Program {
        let port = Port {
            name: "x".to_owned(),
            shape: vec![2, 128],
            dtype: DType::I8,
            quant: None,
            source: None,
            view: View::whole(&[2, 128], DType::I8, 128, Space::Ddr(0), 128),
            parts: vec![],
        };
        let work = Work::Transfer(transfer());
        let waits = smallvec::smallvec![];
        Program {
            name: "net".to_owned(),
            machine: Machine::preset("128x128_asic").expect("known"),
            batch: 1,
            level: 5,
            fallback: None,
            descriptors: vec![Descriptor::Vector(VectorOp::Fill { code: 3 })],
            instructions: vec![Instruction { unit: Unit::Dtl1, layer: LayerId(0), waits, work }],
            constants: vec![Image::from(vec![1, 2, 3]), Image::from(vec![4; 300])],
            ddr_bytes: vec![1024, 512],
            spill_bytes: 0,
            cache_peak_bytes: 512,
            inputs: vec![port],
            outputs: vec![],
            states: vec![],
            exchanges: vec![],
            position: None,
            tilings: vec![],
            layers: vec![],
            bounds: Bounds::default(),
            predicted_cycles: 9,
            allocations: vec![],
            stream: None,
        }
    }

    fn changed(change: impl FnOnce(&mut Program)) -> bool {
        let mut other = program();
        change(&mut other);
        other.digest().expect("encoded") != program().digest().expect("encoded")
    }

    #[test]
    fn whatever_the_machine_executes_changes_the_digest() {
        assert!(changed(|p| p.predicted_cycles += 1));
        assert!(changed(|p| p.batch += 1));
        assert!(changed(|p| p.ddr_bytes[1] += 1));
        assert!(changed(|p| p.instructions[0].unit = Unit::Dtl0));
        assert!(changed(|p| p.instructions[0].work = Work::Transfer(Transfer { local_address: 0, ..transfer() })));
        assert!(changed(|p| p.instructions.push(p.instructions[0].clone())));
        assert!(changed(|p| p.descriptors[0] = Descriptor::Vector(VectorOp::Fill { code: 4 })));
        assert!(changed(|p| p.constants[0] = Image::from(vec![1, 2, 4])));
        assert!(changed(|p| p.inputs[0].view.address += 128));
        let part = PortPart { first_pixel: 2, space: Space::Ddr(1), address: 0 };
        assert!(changed(|p| p.inputs[0].parts = vec![part]));
        assert!(changed(|p| p.outputs = std::mem::take(&mut p.inputs)), "an input is no output");
    }

    #[test]
    fn a_byte_that_moves_to_the_next_constant_changes_the_digest() {
        assert!(changed(|p| p.constants = vec![Image::from(vec![1, 2]), Image::from([&[3], &[4; 300][..]].concat())]));
    }

    #[test]
    fn names_and_figures_of_reports_do_not_enter() {
        assert!(!changed(|p| p.name = "other".to_owned()));
        assert!(!changed(|p| p.inputs[0].name = "y".to_owned()));
        assert!(!changed(|p| p.bounds.path += 1));
        let name = "x".to_owned();
        assert!(!changed(|p| p.allocations = vec![Allocation { name, address: 0, bytes: 1, first: 0, last: 0 }]));
    }
}
