//! A compiled network: instructions, constants, and what the outside needs to feed and read it.
//!
//! A program and its inputs determine a run; nothing else is consulted.

use serde::{Deserialize, Serialize};

use crate::allocation;
pub use crate::allocation::Allocation;
use crate::isa::{Descriptor, Instruction, Unit};
use crate::{
    DType, DescriptorId, Exchange, Image, LayerId, Machine, Quant, Source, Space, State, Stream, Tiling, View,
};

/// An input or output: where it lies in DDR and how it is meant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Name of the graph's tensor.
    pub name: String,
    /// Logical shape, channels last.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Scale and zero point, absent for indices.
    pub quant: Option<Quant>,
    /// The model's tensor.
    pub source: Option<Source>,
    /// Place in DDR: of all pixels, or of those before the first of `parts`.
    pub view: View,
    /// Where later pixels lie that are not behind those before them, ascending: a port may lie in several address spaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PortPart>,
}

/// Pixels of a port from `first_pixel` on, up to those of the next part, that lie at a place of their own: at the start of a row,
/// or on any word of a port whose rows fill their words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortPart {
    /// The first of the pixels.
    pub first_pixel: u32,
    /// Memory.
    pub space: Space,
    /// Byte address of that pixel.
    pub address: u64,
}

impl Port {
    /// The port part by part, each as the slice of the tensor that lies there: whole rows, or a row of so many pixels. Nothing of
    /// parts that are not ascending.
    pub fn views(&self) -> impl Iterator<Item = View> + '_ {
        let view = self.view;
        let all = view.rows.saturating_mul(view.width);
        let begins = [0].into_iter().chain(self.parts.iter().map(|part| part.first_pixel));
        let ends = self.parts.iter().map(|part| part.first_pixel).chain([all]);
        let places = [(view.space, view.address)].into_iter();
        let places = places.chain(self.parts.iter().map(|part| (part.space, part.address)));
        let is_ascending = begins.clone().zip(ends.clone()).all(|(first, end)| first < end);
        let parts = begins.zip(ends).zip(places).filter(move |_| is_ascending);
        parts.map(move |((first, end), (space, address))| {
            let pixels = end - first;
            let slice = View { space, address, origin: [view.origin[0] + first, view.origin[1]], ..view };
            if pixels == all {
                slice
            } else if first.is_multiple_of(view.width) && end.is_multiple_of(view.width) {
                let rows = pixels / view.width;
                View { rows, height: rows, stored_rows: rows, ..slice }
            } else {
                View { rows: 1, height: 1, stored_rows: 1, width: pixels, ..slice }
            }
        })
    }

    /// Calls `change` with the memory and address of every stretch of its rows.
    pub(crate) fn for_each_place(&mut self, mut change: impl FnMut(Space, &mut u64)) {
        change(self.view.space, &mut self.view.address);
        self.parts.iter_mut().for_each(|part| change(part.space, &mut part.address));
    }

    /// Whether this port is words of `word` bytes as they lie in DDR, with nothing said of what they mean: bytes without a
    /// scale, which no other port is.
    #[must_use]
    pub fn is_raw(&self, word: usize) -> bool {
        self.dtype == DType::I8
            && self.quant.is_none()
            && self.source.is_none()
            && self.shape.len() == 2
            && self.shape[1] == word
    }

    /// Whether the port lies in DDR as a whole tensor of its shape: as it would in the cache, or, of an output, without padding;
    /// its parts are some of its rows each.
    #[must_use]
    pub fn is_whole(&self, word: usize, is_output: bool) -> bool {
        let (view, shape) = (&self.view, &self.shape);
        let whole = View { origin: view.origin, ..View::whole(shape, self.dtype, word, view.space, view.address) };
        (*view == whole || is_output && *view == whole.without_padding()) && self.are_parts_on_words(word)
    }

    /// Whether all parts begin on words of the port: at rows, or where rows leave nothing of their last word empty.
    fn are_parts_on_words(&self, word: usize) -> bool {
        let pixel = u64::from(self.view.pixel_bytes);
        let is_dense = self.view.rows == 1 || self.view.row_bytes(word) == u64::from(self.view.width) * pixel;
        let is_on_word = |first: u32| {
            first.is_multiple_of(self.view.width) || is_dense && (u64::from(first) * pixel).is_multiple_of(word as u64)
        };
        self.views().count() > self.parts.len() && self.parts.iter().all(|part| is_on_word(part.first_pixel))
    }

    /// The same stretch of DDR as raw words, called `name`.
    #[must_use]
    fn raw(&self, name: String, word: usize) -> Self {
        let shape = vec![self.view.bytes(word) as usize / word, word];
        let mut first_pixel = 0;
        let mut part_of = |view: View| {
            let part = PortPart { first_pixel, space: view.space, address: view.address };
            first_pixel += (view.bytes(word) / word as u64) as u32;
            part
        };
        let parts = self.views().map(&mut part_of).skip(1).collect();
        let view = View::whole(&shape, DType::I8, word, self.view.space, self.view.address);
        Self { name, shape, dtype: DType::I8, quant: None, source: None, view, parts }
    }
}

/// A layer as reports show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSummary {
    /// Name.
    pub name: String,
    /// Operator name.
    pub op: String,
    /// Element type of the result.
    pub dtype: DType,
    /// Unit that computes it.
    pub unit: Unit,
    /// Multiply-accumulates.
    pub macs: u64,
    /// Lower bound of its cycles: the largest of the parts below.
    pub bound: u64,
    /// The part that binds: `array`, `ddr`, `ewp`, `pdp` or `ports`.
    pub binding: String,
    /// The model's nodes it stands for.
    pub nodes: Vec<String>,
}

/// Lower bounds of the makespan in cycles, valid for every program of this graph on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Array slots.
    pub array: u64,
    /// External memory.
    pub ddr: u64,
    /// Elementwise unit.
    pub ewp: u64,
    /// Pooling unit.
    pub pdp: u64,
    /// Weight port or bank ports, the larger.
    pub ports: u64,
    /// Weights of the first tiles, then array time of the rest.
    pub flow: u64,
    /// Sum over segments separated by full reductions.
    pub segment: u64,
    /// Longest dependency chain.
    pub path: u64,
}

impl Bounds {
    /// All bounds by name, in a fixed order.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, u64); 8] {
        [
            ("array", self.array),
            ("ddr", self.ddr),
            ("ewp", self.ewp),
            ("pdp", self.pdp),
            ("ports", self.ports),
            ("flow", self.flow),
            ("segment", self.segment),
            ("path", self.path),
        ]
    }

    /// The lower of two, bound by bound.
    #[must_use]
    pub fn min(&self, other: &Self) -> Self {
        Self {
            array: self.array.min(other.array),
            ddr: self.ddr.min(other.ddr),
            ewp: self.ewp.min(other.ewp),
            pdp: self.pdp.min(other.pdp),
            ports: self.ports.min(other.ports),
            flow: self.flow.min(other.flow),
            segment: self.segment.min(other.segment),
            path: self.path.min(other.path),
        }
    }

    /// The largest bound and its name; the first of equals.
    #[must_use]
    pub fn binding(&self) -> (&'static str, u64) {
        let mut best = ("array", 0);
        for (name, cycles) in self.by_name() {
            if cycles > best.1 {
                best = (name, cycles);
            }
        }
        best
    }
}

/// A compiled network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Name of the network.
    pub name: String,
    /// The machine it runs on, whole.
    pub machine: Machine,
    /// Samples per run.
    pub batch: u32,
    /// Optimisation level asked for.
    pub level: u8,
    /// Why a lower level was taken, if it was.
    pub fallback: Option<String>,
    /// Shared parts of instructions.
    pub descriptors: Vec<Descriptor>,
    /// In serial order.
    pub instructions: Vec<Instruction>,
    /// Constants at address 0 of each DDR address space; padding included.
    #[serde(skip)]
    pub constants: Vec<Image>,
    /// Bytes used of each DDR address space, constants included.
    pub ddr_bytes: Vec<u64>,
    /// Bytes of activations that do not fit the cache and take the way through DDR, each direction counted once.
    pub spill_bytes: u64,
    /// Where the allocated bytes of the cache end: how large it must be.
    pub cache_peak_bytes: u64,
    /// Inputs in the model's order.
    pub inputs: Vec<Port>,
    /// Outputs in the model's order.
    pub outputs: Vec<Port>,
    /// Inputs whose rows stay in DDR from run to run; empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<State>,
    /// Outputs that are parts of tensors, and the inputs that are the parts of all devices, at the same addresses; empty: the program
    /// is for one device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<Exchange>,
    /// Of a run: how many rows of the states count. `None`: all of the past.
    #[serde(skip)]
    pub position: Option<u32>,
    /// Layers of the graph that are computed part by part; empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tilings: Vec<Tiling>,
    /// Layers by [`LayerId`], those in parts as often as they have parts.
    pub layers: Vec<LayerSummary>,
    /// Lower bounds.
    pub bounds: Bounds,
    /// Cycles the scheduler expects.
    pub predicted_cycles: u64,
    /// Allocations of the shared cache over the program, for reports.
    pub allocations: Vec<Allocation>,
    /// How runs follow each other without a pause, if that was planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<Stream>,
}

impl Program {
    /// Most bytes of the cache that are allocated at a time, in serial order; a raw program lists no allocations, all below the
    /// end of the last count.
    #[must_use]
    pub fn cache_in_use(&self) -> u64 {
        if self.allocations.is_empty() { self.cache_peak_bytes } else { allocation::most_at_a_time(&self.allocations) }
    }

    /// The same program without anything but what the machine needs: ports are words called `input0`, `output0`, ..., states
    /// are ports like others; layers are numbers.
    #[must_use]
    pub fn to_raw(&self) -> Self {
        let word = self.machine.word();
        let raw = |ports: &[Port], way: &str| -> Vec<Port> {
            ports.iter().enumerate().map(|(n, port)| port.raw(format!("{way}{n}"), word)).collect()
        };
        let layers = self.layers.iter().enumerate().map(|(n, layer)| LayerSummary {
            name: n.to_string(),
            op: String::new(),
            nodes: vec![],
            ..layer.clone()
        });
        Self {
            name: "raw".to_owned(),
            inputs: raw(&self.inputs, "input"),
            outputs: raw(&self.outputs, "output"),
            layers: layers.collect(),
            allocations: vec![],
            states: vec![],
            tilings: vec![],
            stream: None,
            fallback: None,
            ..self.clone()
        }
    }

    /// Whether ports are raw words.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        let word = self.machine.word();
        self.inputs.iter().chain(&self.outputs).all(|port| port.is_raw(word))
    }

    /// How many devices the program is one of.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.exchanges.first().map_or(1, |exchange| exchange.inputs.len())
    }

    /// Whether it takes the same instructions as another, on constants that may be others: programs of several devices do.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let ports = |program: &Self| -> Vec<(View, Vec<PortPart>, DType)> {
            program.inputs.iter().chain(&program.outputs).map(|p| (p.view, p.parts.clone(), p.dtype)).collect()
        };
        (&self.instructions, &self.descriptors, &self.machine, &self.exchanges, &self.states, &self.ddr_bytes)
            == (
                &other.instructions,
                &other.descriptors,
                &other.machine,
                &other.exchanges,
                &other.states,
                &other.ddr_bytes,
            )
            && ports(self) == ports(other)
    }

    /// Whether an input is a part of an exchange, which a run computes.
    #[must_use]
    pub fn is_exchanged(&self, input: usize) -> bool {
        self.exchanges.iter().any(|exchange| exchange.inputs.contains(&(input as u32)))
    }

    /// Where the constants of a DDR address space end.
    #[must_use]
    pub fn ddr_constants_end(&self, space: u8) -> u64 {
        self.constants.get(usize::from(space)).map_or(0, |image| image.len() as u64)
    }

    /// A descriptor.
    #[must_use]
    pub fn descriptor(&self, id: DescriptorId) -> &Descriptor {
        &self.descriptors[id.index()]
    }

    /// A layer.
    #[must_use]
    pub fn layer(&self, id: LayerId) -> &LayerSummary {
        &self.layers[id.index()]
    }
}
