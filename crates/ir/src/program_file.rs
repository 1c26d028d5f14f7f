//! The file form of a [`Program`] (`.tpu`): a safetensors file.
//!
//! | tensor | holds |
//! |---|---|
//! | `constants.N` (u8) | the constants of DDR address space N, as they lie there |
//! | `instructions` (u8) | descriptors and instructions, in postcard's encoding |
//!
//! Everything else - machine, ports, layers, bounds - travels as JSON in the file's metadata, with the version of the form,
//! the hash of the machine and the SHA-256 of all of it, so that a file that was cut, altered or written by another version is
//! refused. Equal programs give equal bytes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::atomic::write;
use crate::error::{FileError, Kind, ProgramError, Versions};
use crate::isa::{Descriptor, Instruction, PackedForm, VectorOp, Work};
use crate::{Error, Image, Port, Program};

/// Version of the form of programs without states. From 4 on the checksum is one of pieces, which all processors share in.
const VERSION: u32 = 4;
/// Version of the form of programs with states.
const WITH_STATES: u32 = 5;
/// Version of the form of programs with a stream of runs.
const WITH_STREAM: u32 = 6;
/// Version of the form of programs with a normalisation whose channels share one entry of parameters.
const WITH_SHARED_NORM: u32 = 7;
/// Version of the form of programs with outputs that lie without padding.
const WITHOUT_PADDING: u32 = 8;
/// Version of the form of programs with packed weights whose codes are floats.
const WITH_PACKED_FLOATS: u32 = 9;
/// Version of the form of programs with ports in parts.
const WITH_PORT_PARTS: u32 = 10;
/// The same, of programs that look entries of a packed table up.
const WITH_PACKED_LOOKUP: u32 = 11;
/// Version of the form of programs of several devices.
const WITH_EXCHANGES: u32 = 12;
/// Version of the form of programs with attention by blocks of keys.
const WITH_KEY_BLOCKS: u32 = 13;
/// Newest version that is read.
const NEWEST: u32 = WITH_KEY_BLOCKS;
/// Oldest version that is read.
const OLDEST: u32 = 3;
/// Bytes of a piece of the checksum.
const PIECE: usize = 1 << 20;
/// The only metadata key, so that equal programs give equal bytes.
const KEY: &str = "tpuflow.program";
/// The key of files that hold programs between parts of the host.
const SEGMENTS: &str = "tpuflow.partitioned";
/// Tensor of descriptors and instructions.
const INSTRUCTIONS: &str = "instructions";

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    sha256: String,
    /// [`crate::Machine::hash`] of the machine the program was made for.
    machine_hash: String,
    /// The program without instructions and constants as JSON text, exactly as it was hashed.
    program: String,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn digest(version: u32, program: &str, instructions: &[u8], constants: &[Image]) -> String {
    let mut hash = Sha256::new();
    let parts = [program.as_bytes(), instructions].into_iter().chain(constants.iter().map(|image| &image[..]));
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        if version < 4 {
            hash.update(part);
        } else {
            pieces(part).iter().for_each(|piece| hash.update(piece));
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 of every piece, taken on all processors where there are several pieces.
fn pieces(bytes: &[u8]) -> Vec<[u8; 32]> {
    let digests =
        |bytes: &[u8]| -> Vec<[u8; 32]> { bytes.chunks(PIECE).map(|piece| Sha256::digest(piece).into()).collect() };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = bytes.len().div_ceil(PIECE).div_ceil(threads) * PIECE;
    if share == 0 || share >= bytes.len() {
        return digests(bytes);
    }
    std::thread::scope(|scope| {
        let shares: Vec<_> = bytes.chunks(share).map(|share| scope.spawn(move || digests(share))).collect();
        shares.into_iter().flat_map(|share| share.join().unwrap_or_default()).collect()
    })
}

fn constants_name(space: usize) -> String {
    format!("constants.{space}")
}

impl Program {
    /// Everything but instructions, descriptors and constants, as JSON.
    ///
    /// # Errors
    /// [`ProgramError`] when it cannot be expressed (a scale that is no number).
    pub fn metadata(&self) -> Result<String, ProgramError> {
        let Self { name, machine, batch, level, fallback, ddr_bytes, spill_bytes, cache_peak_bytes, .. } = self;
        let shell = Self {
            name: name.clone(),
            machine: machine.clone(),
            batch: *batch,
            level: *level,
            fallback: fallback.clone(),
            descriptors: vec![],
            instructions: vec![],
            constants: vec![],
            ddr_bytes: ddr_bytes.clone(),
            spill_bytes: *spill_bytes,
            cache_peak_bytes: *cache_peak_bytes,
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            states: self.states.clone(),
            exchanges: self.exchanges.clone(),
            position: None,
            tilings: self.tilings.clone(),
            layers: self.layers.clone(),
            bounds: self.bounds.clone(),
            predicted_cycles: self.predicted_cycles,
            allocations: self.allocations.clone(),
            stream: self.stream.clone(),
        };
        serde_json::to_string(&shell).map_err(ProgramError::from)
    }

    /// The file form.
    ///
    /// # Errors
    /// The reason it cannot be expressed.
    fn to_file(&self) -> Result<Vec<u8>, FileError> {
        let program = self.metadata()?;
        let encoded = postcard::to_allocvec(&(&self.descriptors, &self.instructions)).map_err(ProgramError::from)?;
        let shared = |descriptor: &_| matches!(descriptor, Descriptor::Vector(VectorOp::SharedLayerNorm { .. }));
        let has_statistics =
            |descriptor: &_| matches!(descriptor, Descriptor::Vector(VectorOp::SoftmaxStatistics { .. }));
        let has_packed_floats = |i: &Instruction| matches!(&i.work, Work::Expand(e) if e.codes == PackedForm::Floats);
        let is_of_table = |i: &Instruction| match &i.work {
            Work::Expand(e) => e.codes.is_by_column(),
            work => matches!(work, Work::PackedLookup(_)),
        };
        let padded = |port: &Port| port.is_whole(self.machine.word(), false);
        let version = match (&self.stream, self.states.is_empty()) {
            _ if self.descriptors.iter().any(has_statistics) => WITH_KEY_BLOCKS,
            _ if !self.exchanges.is_empty() => WITH_EXCHANGES,
            _ if self.instructions.iter().any(is_of_table) => WITH_PACKED_LOOKUP,
            _ if self.inputs.iter().chain(&self.outputs).any(|port| !port.parts.is_empty()) => WITH_PORT_PARTS,
            _ if self.instructions.iter().any(has_packed_floats) => WITH_PACKED_FLOATS,
            _ if !self.outputs.iter().all(padded) => WITHOUT_PADDING,
            _ if self.descriptors.iter().any(shared) => WITH_SHARED_NORM,
            (Some(_), _) => WITH_STREAM,
            (None, false) => WITH_STATES,
            (None, true) => VERSION,
        };
        let sha256 = digest(version, &program, &encoded, &self.constants);
        let header = Header { version, sha256, machine_hash: self.machine.hash(), program };
        let header = serde_json::to_string(&header)?;
        let tensor = |bytes| TensorView::new(Dtype::U8, vec![<[u8]>::len(bytes)], bytes);
        let mut views = vec![(Cow::Borrowed(INSTRUCTIONS), tensor(&encoded)?)];
        for (space, image) in self.constants.iter().enumerate() {
            views.push((Cow::Owned(constants_name(space)), tensor(image)?));
        }
        let metadata = HashMap::from([(KEY.to_owned(), header)]);
        Ok(safetensors::serialize(views, Some(metadata))?)
    }

    /// Writes the file form beside `path`, then renames it.
    ///
    /// # Errors
    /// [`Error::File`] naming the file and the reason.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        write(path, &self.to_file().map_err(|error| error.of(path))?)
    }

    /// Reads the file form and checks it.
    ///
    /// # Errors
    /// [`Error::File`] when the file cannot be read, is cut, altered or of another version.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let read = Image::read(path).map_err(FileError::from);
        read.and_then(|image| Self::from_file(&image)).map_err(|error| error.of(path))
    }

    /// The program in the bytes of a file, or why there is none.
    fn from_file(image: &Image) -> Result<Self, FileError> {
        let unreadable = |source| FileError::Unreadable { kind: Kind::Program, source };
        let (_, metadata) = SafeTensors::read_metadata(image).map_err(unreadable)?;
        let entries = metadata.metadata().as_ref();
        if entries.is_some_and(|entries| entries.contains_key(SEGMENTS)) {
            return Err(FileError::Segments);
        }
        let text = entries.and_then(|entries| entries.get(KEY)).ok_or(FileError::Absent(Kind::Program))?;
        let Version { version } = serde_json::from_str(text).map_err(FileError::Header)?;
        if !(OLDEST..=NEWEST).contains(&version) {
            let reads = Versions { oldest: OLDEST, newest: NEWEST };
            return Err(FileError::version(Kind::Program, version, reads));
        }
        let header: Header = serde_json::from_str(text).map_err(FileError::Header)?;
        let file = SafeTensors::deserialize(image).map_err(unreadable)?;
        let mut constants = Vec::new();
        while let Ok(tensor) = file.tensor(&constants_name(constants.len())) {
            constants.push(image.part_at(tensor.data()));
        }
        let encoded = file.tensor(INSTRUCTIONS).map_err(unreadable)?;
        if digest(version, &header.program, encoded.data(), &constants) != header.sha256 {
            return Err(FileError::Altered);
        }
        let mut program: Self = serde_json::from_str(&header.program).map_err(FileError::Header)?;
        program.machine.validate().map_err(FileError::Machine)?;
        let hash = program.machine.hash();
        if hash != header.machine_hash {
            return Err(FileError::OtherMachine { made: header.machine_hash, held: hash });
        }
        let (descriptors, instructions): (Vec<Descriptor>, Vec<Instruction>) =
            postcard::from_bytes(encoded.data()).map_err(FileError::Instructions)?;
        program.descriptors = descriptors;
        program.instructions = instructions;
        program.constants = constants;
        program.check_limits()?;
        program.check_references()?;
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Direction, Transfer, Unit, Work};
    use crate::program::{Bounds, LayerSummary};
    use crate::{LayerId, Machine, Space};

    fn program() -> Program {
        let transfer = Transfer {
            direction: Direction::Load,
            ddr_space: 0,
            ddr_address: 128,
            local_space: Space::Cache,
            local_address: 256,
            bytes: 128,
            counts: [2, 1],
            ddr_strides: [256, 0],
            local_strides: [128, 0],
        };
        let waits = smallvec::smallvec![];
        let instruction = Instruction { unit: Unit::Dtl1, layer: LayerId(0), waits, work: Work::Transfer(transfer) };
        Program {
            name: "net".to_owned(),
            machine: Machine::preset("128x128_asic").expect("known"),
            batch: 1,
            level: 5,
            fallback: None,
            descriptors: vec![Descriptor::Vector(crate::isa::VectorOp::Fill { code: 3 })],
            instructions: vec![instruction],
            constants: vec![Image::from(vec![1, 2, 3]), Image::from(vec![4; 300])],
            ddr_bytes: vec![1024, 512],
            spill_bytes: 0,
            cache_peak_bytes: 512,
            inputs: vec![],
            outputs: vec![],
            states: vec![],
            exchanges: vec![],
            position: None,
            tilings: vec![],
            layers: vec![LayerSummary {
                name: "copy".to_owned(),
                op: "Rescale".to_owned(),
                dtype: crate::DType::I8,
                unit: Unit::Ewp,
                macs: 0,
                bound: 7,
                binding: "ddr".to_owned(),
                nodes: vec![],
            }],
            bounds: Bounds { ddr: 7, ..Bounds::default() },
            predicted_cycles: 9,
            allocations: vec![],
            stream: None,
        }
    }

    #[test]
    fn equal_programs_give_equal_files_that_load() {
        let folder = std::env::temp_dir().join(format!("tpuflow-program-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("temporary folder");
        let (one, two) = (folder.join("one.tpu"), folder.join("two.tpu"));
        program().save(&one).expect("written");
        let loaded = Program::load(&one).expect("read");
        assert_eq!(loaded, program());
        loaded.save(&two).expect("written");
        assert_eq!(std::fs::read(&one).expect("read"), std::fs::read(&two).expect("read"));
        // A program that was read outlives a new version of its file.
        let mut other = program();
        other.constants[0] = Image::from(vec![9; 3]);
        other.save(&one).expect("replaced");
        assert_eq!(loaded, program());
        assert_eq!(Program::load(&one).expect("read"), other);
        assert_eq!(std::fs::read_dir(&folder).expect("listed").count(), 2, "nothing is left beside the files");
        let message = Program::load(&folder.join("none.tpu")).expect_err("absent").to_string();
        assert!(message.contains("none.tpu: "), "{message}");
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn every_cut_and_every_altered_byte_is_refused() {
        let bytes = program().to_file().expect("expressible");
        for length in 0..bytes.len() {
            assert!(Program::from_file(&Image::from(bytes[..length].to_vec())).is_err(), "cut to {length}");
        }
        for position in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[position] ^= 1;
            if let Ok(loaded) = Program::from_file(&Image::from(altered)) {
                // Only what is outside the program (white space) may pass.
                assert_eq!(loaded, program(), "byte {position}");
            }
        }
    }

    /// Changes the header of a file (as text of the same length) and says why it is refused.
    fn refusal(from: &str, to: &str) -> String {
        let mut bytes = program().to_file().expect("expressible");
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect("the header holds it");
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        Program::from_file(&Image::from(bytes)).expect_err("refused").to_string()
    }

    #[test]
    fn refusals_name_the_reason() {
        // One more digit than there was, one letter less behind it.
        let written = format!(r#"{{\"version\":{VERSION},\"sha256\""#);
        let version = refusal(&written, r#"{\"version\":14,\"sha25\""#);
        let reads = format!("{OLDEST} to {NEWEST}");
        assert_eq!(
            version,
            format!("version 14 of the program file is newer than this build, which reads {reads}: update tpuflow")
        );
        let version = refusal(&format!(r#"{{\"version\":{VERSION}"#), r#"{\"version\":2"#);
        assert_eq!(
            version,
            format!(
                "version 2 of the program file is older than this build reads ({reads}): build it again with `tpuflow build`"
            )
        );
        let hash = program().machine.hash();
        let message = refusal(&hash, &"0".repeat(64));
        assert!(message.starts_with("made for machine 000") && message.ends_with(&hash), "{message}");
        assert_eq!(
            refusal("cache_peak_bytes", "cache_beak_bytes"),
            "the file was altered: its checksum does not match"
        );
    }
}
