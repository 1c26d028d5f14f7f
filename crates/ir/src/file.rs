//! The file form of a [`Graph`] (`.tpuq`): a safetensors file whose tensors are the graph's constants.
//!
//! The graph itself travels as JSON in the file's metadata, with the version of the form and the SHA-256 of graph and
//! constants, so that a file that was cut, altered or written by another version is refused.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::atomic::write;
use crate::error::{FileError, GraphError, GraphErrors, Kind, Versions};
use crate::{DType, Error, Graph, Image, Op, Packed, Tensor};

/// Version of the form of graphs without packed constants, the oldest that is read.
const VERSION: u32 = 2;
/// Version of the form of graphs with packed constants, which are stored as their codes, scales and zero points.
const WITH_PACKED: u32 = 3;
/// Version of the form of graphs with states.
const WITH_STATES: u32 = 4;
/// Version of the form of graphs whose layers may say how many products of the model a sum has.
const WITH_TERMS: u32 = 5;
/// Version of the form of graphs with a softmax whose mask is computed.
const WITH_COMPUTED_MASKS: u32 = 6;
/// Version of the form of graphs with packed constants whose codes are floats, or whose blocks have 16 rows.
const WITH_PACKED_FLOATS: u32 = 7;
/// The same, of graphs that look up anything but rows.
const WITH_TABLE_ENTRIES: u32 = 8;
/// Version of the form of graphs of several devices.
const WITH_EXCHANGES: u32 = 9;
/// Ends of the names of the parts of a packed constant.
const PARTS: [&str; 3] = [".codes", ".scales", ".zero_points"];
/// The only metadata key, so that equal graphs give equal bytes.
const KEY: &str = "tpuflow.graph";

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    sha256: String,
    /// The graph as JSON text, exactly as it was hashed.
    graph: String,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn digest(graph: &str, constants: &[(String, &[u8])]) -> String {
    let mut hash = Sha256::new();
    hash.update(graph);
    for (name, bytes) in constants {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The stored tensors of a constant, by name.
fn stored_tensors(tensor: &Tensor) -> Vec<(String, &[u8])> {
    match (&tensor.packed, &tensor.constant) {
        (Some(packed), _) => {
            let parts = [&packed.codes, &packed.scales, &packed.zero_points];
            PARTS.iter().zip(parts).map(|(end, part)| (format!("{}{end}", tensor.name), &part[..])).collect()
        }
        (None, Some(constant)) => vec![(tensor.name.clone(), &constant[..])],
        (None, None) => vec![],
    }
}

fn constants(graph: &Graph) -> Vec<(String, &[u8])> {
    graph.tensors.iter().flat_map(stored_tensors).collect()
}

fn version(graph: &Graph) -> u32 {
    let has_computed_mask = |op: &Op| match op {
        Op::Softmax { mask: Some(mask), .. } => graph.tensor(*mask).constant.is_none(),
        _ => false,
    };
    let names_entries = |op: &Op| matches!(op, Op::Embedding { entry, .. } if !entry.is_row());
    let is_new = |packed: &Packed| packed.is_float || packed.block < 32;
    match graph.tensors.iter().any(|tensor| tensor.packed.is_some()) {
        _ if !graph.exchanges.is_empty() => WITH_EXCHANGES,
        true if graph.layers.iter().any(|layer| names_entries(&layer.op)) => WITH_TABLE_ENTRIES,
        true if graph.tensors.iter().filter_map(|tensor| tensor.packed.as_ref()).any(is_new) => WITH_PACKED_FLOATS,
        _ if graph.layers.iter().any(|layer| has_computed_mask(&layer.op)) => WITH_COMPUTED_MASKS,
        _ if graph.layers.iter().any(|layer| layer.terms.is_some()) => WITH_TERMS,
        _ if !graph.states.is_empty() => WITH_STATES,
        true => WITH_PACKED,
        false => VERSION,
    }
}

impl Graph {
    /// The graph as JSON, without the elements of its constants.
    ///
    /// # Errors
    /// [`Error::Graph`] when it cannot be expressed, which no finished graph is.
    pub fn to_json(&self) -> Result<String, Error> {
        Ok(serde_json::to_string(self)?)
    }

    /// Writes the file form.
    ///
    /// # Errors
    /// [`Error::File`] naming the file and the reason.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        write(path, &self.to_file().map_err(|error| error.of(path))?)
    }

    /// The file form.
    fn to_file(&self) -> Result<Vec<u8>, FileError> {
        let graph = serde_json::to_string(self)?;
        let header = Header { version: version(self), sha256: digest(&graph, &constants(self)), graph };
        let header = serde_json::to_string(&header)?;
        let mut views = Vec::new();
        let mut names = HashSet::new();
        for tensor in &self.tensors {
            for (name, bytes) in stored_tensors(tensor) {
                if !names.insert(name.clone()) {
                    return Err(FileError::TwoConstants(name));
                }
                if tensor.packed.is_some() {
                    views.push((name, TensorView::new(Dtype::U8, vec![bytes.len()], bytes)?));
                    continue;
                }
                let dtype = match tensor.dtype {
                    DType::I8 => Dtype::I8,
                    DType::I16 => Dtype::I16,
                    DType::I32 => Dtype::I32,
                    DType::I64 => Dtype::I64,
                    DType::F16 => Dtype::F16,
                    DType::BF16 => Dtype::BF16,
                    DType::F32 => Dtype::F32,
                };
                views.push((name, TensorView::new(dtype, tensor.shape.clone(), bytes)?));
            }
        }
        let metadata = HashMap::from([(KEY.to_owned(), header)]);
        Ok(safetensors::serialize(views, Some(metadata))?)
    }

    /// Reads the file form and verifies the graph.
    ///
    /// # Errors
    /// [`Error::File`] when the file cannot be read, is cut, altered, of another version, or holds a broken graph.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let read = Image::read(path).map_err(FileError::from);
        read.and_then(|image| Self::from_file(&image)).map_err(|error| error.of(path))
    }

    /// The graph in the bytes of a file, or why there is none.
    fn from_file(bytes: &Image) -> Result<Self, FileError> {
        let unreadable = |source| FileError::Unreadable { kind: Kind::Graph, source };
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(unreadable)?;
        let text =
            metadata.metadata().as_ref().and_then(|entries| entries.get(KEY)).ok_or(FileError::Absent(Kind::Graph))?;
        let Version { version } = serde_json::from_str(text).map_err(FileError::Header)?;
        if !(VERSION..=WITH_EXCHANGES).contains(&version) {
            let reads = Versions { oldest: VERSION, newest: WITH_EXCHANGES };
            return Err(FileError::version(Kind::Graph, version, reads));
        }
        let header: Header = serde_json::from_str(text).map_err(FileError::Header)?;
        let file = SafeTensors::deserialize(bytes).map_err(unreadable)?;
        let mut graph: Self = serde_json::from_str(&header.graph).map_err(FileError::Header)?;
        for tensor in &mut graph.tensors {
            if let Some(packed) = &mut tensor.packed {
                let parts = [&mut packed.codes, &mut packed.scales, &mut packed.zero_points];
                for (end, part) in PARTS.iter().zip(parts) {
                    let view = file.tensor(&format!("{}{end}", tensor.name)).map_err(unreadable)?;
                    *part = bytes.part_at(view.data());
                }
            } else if let Ok(view) = file.tensor(&tensor.name) {
                tensor.constant = Some(bytes.part_at(view.data()));
            }
        }
        if digest(&header.graph, &constants(&graph)) != header.sha256 {
            return Err(FileError::Altered);
        }
        for tensor in &mut graph.tensors {
            if let Some(packed) = &tensor.packed {
                let fail = |reason| GraphError::Packed { name: tensor.name.clone(), reason };
                packed.check(&tensor.shape).map_err(|reason| FileError::from(GraphErrors::from(fail(reason))))?;
                tensor.constant = Some(packed.expand(&tensor.shape).into());
            }
        }
        if let Some(layer) = graph.layers.iter().find(|layer| layer.op.is_of_blocks()) {
            return Err(FileError::Blocks(layer.name.clone()));
        }
        let broken = graph.verify();
        if broken.is_empty() { Ok(graph) } else { Err(GraphErrors(broken).into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arithmetic, Epilogue, GraphBuilder, Op, Quant, Requant, Tensor};

    fn tensor(name: &str, shape: &[usize], dtype: DType, constant: Option<Vec<u8>>) -> Tensor {
        Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype,
            quant: Some(Quant { scale: vec![0.1], zero_point: 0 }),
            source: None,
            constant: constant.map(Image::from),
            packed: None,
        }
    }

    fn graph() -> Graph {
        let mut builder = GraphBuilder::new("net");
        let a = builder.input(tensor("x", &[2, 3], DType::I8, None)).expect("fits");
        let b = builder.constant(tensor("w", &[3, 2], DType::I8, Some(vec![1, 2, 3, 4, 5, 6]))).expect("fits");
        let requant = Requant { multiplier: vec![1], shift: vec![0], zero_point: 0, lo: -128, hi: 127 };
        let op = Op::MatMul {
            a,
            b,
            bias: None,
            epilogue: Arithmetic::Fixed(Epilogue { first_shift: None, requant, table: None }),
            partial: false,
        };
        let y = builder.layer("product", op, tensor("y", &[2, 2], DType::I8, None), vec![]).expect("fits");
        builder.output(y);
        builder.finish().expect("sound")
    }

    /// Statistics of a softmax and sums as they are belong to programs.
    #[test]
    fn graphs_with_blocks_of_attention_are_refused() {
        let mut builder = GraphBuilder::new("net");
        let x = builder.input(tensor("x", &[2, 3], DType::I8, None)).expect("fits");
        let op = Op::SoftmaxStatistics { input: x, mask: None, earlier: None, measure: crate::Measure::Maximum };
        let statistics = Tensor { quant: None, ..tensor("m", &[2, 2], DType::I64, None) };
        let y = builder.layer("largest", op, statistics, vec![]).expect("fits");
        builder.output(y);
        let bytes = builder.finish().expect("sound").to_file().expect("expressible");
        let refusal = Graph::from_file(&Image::from(bytes)).expect_err("refused").to_string();
        assert!(refusal.starts_with("layer \"largest\" is a part of attention by blocks of keys"), "{refusal}");
    }

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("tpuflow-file-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("temporary folder");
        folder
    }

    #[test]
    fn equal_graphs_give_equal_files_that_load() {
        let folder = folder("equal");
        let (one, two) = (folder.join("one.tpuq"), folder.join("two.tpuq"));
        graph().save(&one).expect("written");
        Graph::load(&one).expect("read").save(&two).expect("written");
        assert_eq!(Graph::load(&two).expect("read"), graph());
        assert_eq!(std::fs::read(&one).expect("read"), std::fs::read(&two).expect("read"));
        assert_eq!(std::fs::read_dir(&folder).expect("listed").count(), 2, "nothing is left beside the files");
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn every_cut_and_every_altered_byte_is_refused() {
        let folder = folder("altered");
        let path = folder.join("net.tpuq");
        graph().save(&path).expect("written");
        let bytes = std::fs::read(&path).expect("read");
        for length in 0..bytes.len() {
            assert!(Graph::from_file(&bytes[..length].to_vec().into()).is_err(), "cut to {length}");
        }
        for position in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[position] ^= 1;
            if let Ok(loaded) = Graph::from_file(&altered.clone().into()) {
                // Only what is outside graph and constants (white space, names of unused keys) may pass.
                assert_eq!(loaded, graph(), "byte {position}");
            }
        }
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn another_version_is_named() {
        let folder = folder("version");
        let path = folder.join("net.tpuq");
        graph().save(&path).expect("written");
        let text = std::fs::read(&path).expect("read");
        // One more digit than there was, one letter less behind it.
        let written = format!(r#"version\":{VERSION},\"sha256\""#);
        let at =
            text.windows(written.len()).position(|w| w == written.as_bytes()).expect("the version is in the header");
        let mut altered = text;
        altered[at..at + written.len()].copy_from_slice(br#"version\":10,\"sha25\""#);
        std::fs::write(&path, &altered).expect("written");
        let message = Graph::load(&path).expect_err("refused").to_string();
        let end = "version 10 of the graph file is newer than this build, which reads 2 to 9: update tpuflow";
        assert!(message.ends_with(end), "{message}");
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn an_unwritable_place_is_an_error() {
        let message = graph().save(Path::new("/nowhere/net.tpuq")).expect_err("refused").to_string();
        assert!(message.starts_with("/nowhere/net.tpuq: "), "{message}");
    }
}
