//! Constants by the layers that cannot do without them: what several layers read is brought in once.

use tpuflow_ir::Arithmetic::Fixed;
use tpuflow_ir::constants::{EqualConstants, parameters};
use tpuflow_ir::{Graph, LayerId, Op, TableEntry, Tensor, TensorId};

use crate::linear::{Linear, is_depthwise, is_plain};
use crate::live::{Elements, Live};

/// A constant that a layer brings in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which, of all that differ.
    class: usize,
    /// Bytes the layer needs.
    pub bytes: u64,
    /// Bytes that every pixel with all its channels needs.
    pub packed: u64,
    /// Bytes of weights that all pixels take.
    pub weights: u64,
}

/// The form in external memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Tensor(TensorId),
    Parameters(LayerId),
    /// Rows of a table that a lookup takes: each index has its own.
    Rows(LayerId),
}

/// Constants of all layers.
pub(super) struct Constants {
    layers: Vec<Vec<Piece>>,
    /// Those of which several layers take something are the first so many classes.
    shared: usize,
}

impl Constants {
    pub fn of(graph: &Graph, live: &Live) -> Self {
        let equal = EqualConstants::of(graph);
        let mut users: std::collections::BTreeMap<Source, usize> = std::collections::BTreeMap::new();
        let found: Vec<Vec<(Source, Piece)>> =
            (0..graph.layers.len()).map(|layer| pieces(graph, &equal, live, LayerId::new(layer))).collect();
        found.iter().flatten().for_each(|(source, _)| *users.entry(*source).or_default() += 1);
        let mut classes = std::collections::BTreeMap::new();
        for (source, _) in users.iter().filter(|user| *user.1 > 1) {
            classes.insert(*source, classes.len());
        }
        let shared = classes.len();
        let class = |source: &Source| classes.get(source).copied().unwrap_or(usize::MAX);
        let layer = |pieces: Vec<(Source, Piece)>| {
            pieces.into_iter().map(|(source, piece)| Piece { class: class(&source), ..piece }).collect()
        };
        Self { layers: found.into_iter().map(layer).collect(), shared }
    }

    /// Bytes of some layers, what they share counted once: of two that need different parts, the larger.
    pub fn bytes(&self, layers: impl Iterator<Item = usize>, part: fn(&Piece) -> u64) -> u64 {
        let mut counted: std::collections::HashMap<usize, u64> = std::collections::HashMap::new();
        let mut total = 0;
        for piece in layers.flat_map(|layer| &self.layers[layer]) {
            let bytes = part(piece);
            if piece.class < self.shared {
                let counted = counted.entry(piece.class).or_default();
                total += bytes.saturating_sub(*counted);
                *counted = bytes.max(*counted);
            } else {
                total += bytes;
            }
        }
        total
    }
}

/// Bytes of the weights of a product where they lie, none of what is computed: packed ones are not there in another form.
fn stored_bytes(graph: &Graph, weights: TensorId) -> u64 {
    let tensor = graph.tensor(weights);
    match &tensor.packed {
        Some(packed) => packed.bytes(&tensor.shape),
        None if tensor.constant.is_some() => tensor.bytes() as u64,
        None => 0,
    }
}

/// Constants a layer cannot do without.
fn pieces(graph: &Graph, equal: &EqualConstants, live: &Live, id: LayerId) -> Vec<(Source, Piece)> {
    let layer = graph.layer(id);
    let whole = live.whole(layer.output);
    let mut found = Vec::new();
    let mut add = |source: Source, [bytes, packed, weights]: [u64; 3]| {
        if bytes > 0 {
            found.push((source, Piece { class: 0, bytes, packed, weights }));
        }
    };
    let constant = |t: TensorId| graph.tensor(t).constant.is_some();
    let size = |t: TensorId| if constant(t) { graph.tensor(t).bytes() as u64 } else { 0 };
    let of = |t: TensorId| Source::Tensor(equal.tensor(t));
    let own = Source::Parameters(equal.parameters(id));
    if let Some(linear) = Linear::of(&layer.op, graph) {
        let (Op::Conv { epilogue, .. } | Op::MatMul { epilogue, .. }) = &layer.op else { return found };
        let columns = u64::from(linear.columns());
        let taken = needed_columns(graph, live, layer.output, columns);
        let share = |bytes: u64| bytes / columns.max(1) * taken;
        // A pixel of a batch takes one of its matrices.
        let leads = u64::from(linear.leads).max(1);
        let every = |bytes: u64| if whole { bytes / leads } else { 0 };
        // Of a batch in part it is not said which matrices are needed.
        let right = if linear.leads > 1 && !whole { 0 } else { share(stored_bytes(graph, linear.right)) };
        let plain = !is_depthwise(graph, &layer.op) && whole && linear.leads == 1;
        let weights = if plain && is_plain(&layer.op, graph) { right } else { 0 };
        add(of(linear.right), [right, every(right), weights]);
        let entries = parameters(graph, &layer.op).len() as u64;
        add(own, [share(entries), every(share(entries)), 0]);
        if let Fixed(epilogue) = epilogue
            && let Some(table) = &epilogue.table
            && taken > 0
        {
            let bytes = size(table.entries);
            add(of(table.entries), [bytes, every(bytes), 0]);
        }
        return found;
    }
    if *live.needed(layer.output) == Elements::None {
        return found;
    }
    match &layer.op {
        Op::Unary { function: Fixed(table), .. } => {
            let bytes = size(table.entries);
            add(of(table.entries), [bytes, bytes, 0]);
        }
        Op::PRelu { .. } | Op::LayerNorm { .. } if whole => {
            let bytes = parameters(graph, &layer.op).len() as u64;
            add(own, [bytes, bytes, 0]);
        }
        Op::Embedding { table, indices, entry } if whole => {
            let bytes = graph.tensor(*indices).elements() as u64 * entry_bytes(graph.tensor(*table), *entry);
            add(Source::Rows(id), [bytes, 0, 0]);
        }
        Op::Binary { a, b, .. } | Op::Select { a, b, .. } if whole => {
            add(of(*a), [size(*a), 0, 0]);
            add(of(*b), [if a == b { 0 } else { size(*b) }, 0, 0]);
        }
        _ => {}
    }
    found
}

/// Bytes that are read for an index of a table; of a column its codes, and a scale and perhaps a zero point of every block.
pub(super) fn entry_bytes(table: &Tensor, entry: TableEntry) -> u64 {
    let rows = table.shape[0];
    match (&table.packed, entry) {
        (Some(packed), TableEntry::Rows(rows)) => packed.bytes(&[rows as usize, table.shape[1]]),
        (Some(packed), TableEntry::Column) => {
            let header = 1 + usize::from(packed.has_zero_points);
            (rows.div_ceil(2) + packed.blocks(rows) * header) as u64
        }
        _ => (table.shape[1..].iter().product::<usize>() * table.dtype.bytes()) as u64,
    }
}

/// Columns of a product or channels of a convolution of which something is needed.
fn needed_columns(graph: &Graph, live: &Live, output: TensorId, columns: u64) -> u64 {
    match live.needed(output) {
        Elements::None => 0,
        Elements::All => columns,
        Elements::Some(there) => {
            debug_assert_eq!(graph.tensor(output).elements() as u64 % columns, 0);
            let columns = columns as usize;
            (0..columns).filter(|&column| there.iter().skip(column).step_by(columns).any(|&there| there)).count() as u64
        }
    }
}
