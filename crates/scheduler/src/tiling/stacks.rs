//! Attention one matrix of its stack at a time, where the matrices of all heads together take much of the cache, and some queries
//! at a time, where a single matrix does.
//!
//! ```text
//!   scores = Q K'   [heads, queries, keys]       in tiles of a head each: product, softmax, product, then the next head;
//!   softmax                                      with many keys in tiles of some rows of a head
//!   sums = .. V     [heads, queries, size]
//! ```
//!
//! Such tensors may fit the cache, so that nothing asks for groups ([`super::groups`]), but they leave no space for what other
//! units could do meanwhile. Where they do not fit, these tiles keep all scores on the chip.

use tpuflow_ir::{Graph, LayerId, Machine, Op, Parts, TensorId, Tiling};

use super::region::even;
use super::{key_blocks, leaving};

/// Matrices of a stack at most that are tiles of their own: with more of them programs take long to make.
const MOST: usize = 128;

/// Shares of the cache: from the first on that shares of all heads take, they are computed a head at a time. A tile takes no more
/// than that where it still fills the array.
const CROWDED: u64 = 8;

/// Shares of the cache that a tile takes at most: one is computed while the next begins, beside keys and values.
const LARGEST: u64 = 3;

/// Which tiles come one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileOrder {
    /// All of a matrix: its keys and values leave the cache with it.
    ByMatrix,
    /// Some queries of all matrices: what follows attention can begin with these.
    ByQueries,
}

/// The runs of layers from the product that a large softmax is of to the product that takes its result, in tiles of one matrix or
/// of some of its rows.
pub(crate) fn attention_tiles(graph: &Graph, machine: &Machine, order: TileOrder) -> Vec<Tiling> {
    let mut found: Vec<Tiling> = Vec::new();
    for (at, layer) in graph.layers.iter().enumerate() {
        let is_large = CROWDED * graph.tensor(layer.output).bytes() as u64 >= machine.cache_bytes();
        if matches!(layer.op, Op::Softmax { .. })
            && is_large
            && let Some((first, last, matrices)) = run(graph, at)
            && found.last().is_none_or(|before| before.last.index() < first)
        {
            let columns = blocks_of_queries(graph, machine, at, matrices);
            if matrices > 1 || columns > 1 {
                let parts = match order {
                    TileOrder::ByQueries if columns > 1 && leaving(graph, first, last) == [last] => {
                        by_queries(&graph.tensor(graph.layers[last].output).shape, matrices, columns)
                    }
                    _ => Parts::Grid { images: 1, rows: matrices, columns },
                };
                found.push(Tiling { first: LayerId::new(first), last: LayerId::new(last), parts });
            }
        }
    }
    found
}

/// The same where a full tile of the array with all keys takes too much of the cache: by blocks of keys, with the scores of some
/// queries kept, or computed anew for every pass. Empty where nothing would be cut so.
pub(crate) fn key_block_tiles(graph: &Graph, machine: &Machine, keeps_scores: bool) -> Vec<Tiling> {
    let tilings = attention_tiles(graph, machine, TileOrder::ByMatrix);
    let by_blocks =
        |tiling: &Tiling| Some(Tiling { parts: key_blocks_of(graph, machine, tiling, keeps_scores)?, ..*tiling });
    let found: Vec<Option<Tiling>> = tilings.iter().map(by_blocks).collect();
    if found.iter().all(Option::is_none) {
        return vec![];
    }
    found.into_iter().zip(tilings).map(|(found, usual)| found.unwrap_or(usual)).collect()
}

/// Blocks of keys of a run, where these are worth it.
fn key_blocks_of(graph: &Graph, machine: &Machine, tiling: &Tiling, keeps_scores: bool) -> Option<Parts> {
    let (first, last) = (tiling.first.index(), tiling.last.index());
    let softmax = key_blocks::softmax(graph, first, last)?;
    let &[.., queries, keys] = &graph.tensor(graph.layers[softmax].output).shape[..] else { return None };
    let (tile, space) = (u64::from(machine.array.rows), machine.cache_bytes());
    let [scores, shares] = score_bytes(graph, softmax);
    let largest = space / LARGEST / keys as u64;
    if largest / (scores + shares) >= tile {
        return None;
    }
    // Half a tile costs the array as much as a whole one.
    let rows = match largest / scores {
        kept if kept >= tile || !keeps_scores => tile,
        kept if kept >= tile / 2 => tile / 2,
        _ => return None,
    };
    let step = u64::from(machine.array.rows);
    let block = (space / CROWDED / (tile * (scores + shares)) / step).max(1) * step;
    let matrices = graph.tensor(graph.layers[last].output).shape.iter().rev().skip(2).product::<usize>();
    Some(Parts::KeyBlocks {
        matrices: matrices as u32,
        queries: (queries as u64).div_ceil(rows) as u32,
        keys: block.min(keys as u64) as u32,
        keeps_scores,
    })
}

/// Bytes of a score and of a share of a softmax.
fn score_bytes(graph: &Graph, softmax: usize) -> [u64; 2] {
    let layer = &graph.layers[softmax];
    let scores = layer.op.operands().first().map_or(0, |&scores| graph.tensor(scores).dtype.bytes());
    [scores, graph.tensor(layer.output).dtype.bytes()].map(|bytes| bytes as u64)
}

/// Parts of a stack: the first rows of all matrices, then the next rows of all.
fn by_queries(shape: &[usize], matrices: u32, blocks: u32) -> Parts {
    let lead = shape.len().saturating_sub(3);
    let mut boxes = Vec::new();
    for rows in even(shape[shape.len() - 2], blocks as usize) {
        for matrix in even(if shape.len() > 2 { shape[lead] } else { 1 }, matrices as usize) {
            let mut ranges: Vec<[u32; 2]> = shape.iter().map(|&extent| [0, extent as u32]).collect();
            let last = ranges.len() - 1;
            if shape.len() > 2 {
                ranges[lead] = [matrix.0 as u32, matrix.1 as u32];
            }
            ranges[last - 1] = [rows.0 as u32, rows.1 as u32];
            boxes.push(ranges);
        }
    }
    Parts::Boxes(boxes)
}

/// Blocks that the rows of a matrix of attention are computed in: of as many full tiles of the array as take little of the cache, or
/// of fewer rows where a single one takes too much.
fn blocks_of_queries(graph: &Graph, machine: &Machine, softmax: usize, matrices: u32) -> u32 {
    let shape = &graph.tensor(graph.layers[softmax].output).shape;
    let row_bytes = shape[shape.len() - 1] as u64 * score_bytes(graph, softmax).iter().sum::<u64>();
    let rows = shape[..shape.len() - 1].iter().product::<usize>() / matrices as usize;
    let (tile, space) = (u64::from(machine.array.rows), machine.cache_bytes());
    let usual = space / CROWDED / row_bytes / tile * tile;
    let most = (space / LARGEST / row_bytes).max(1);
    (rows as u64).div_ceil(usual.max(tile.min(most))) as u32
}

/// First and last layer around a softmax that have a matrix for every one of some heads, and how many these are. A layer of another
/// kind in between, such as a part of the mask, begins the run.
fn run(graph: &Graph, softmax: usize) -> Option<(usize, usize, u32)> {
    let own = stack(graph, graph.layers[softmax].output)?;
    let matrices_of = |at: usize| stack(graph, graph.layers[at].output).filter(|&other| (other > 1) == (own > 1));
    let is_product = |at: usize| matches!(graph.layers[at].op, Op::MatMul { .. });
    let last = (softmax..graph.layers.len()).take_while(|&at| matrices_of(at).is_some()).find(|&at| is_product(at))?;
    let (mut first, mut has_product) = (softmax, false);
    while first > 0 && matrices_of(first - 1).is_some() {
        let before = first - 1;
        // In front of the product is what brings its operands into place.
        if has_product && !matches!(graph.layers[before].op, Op::Rearrange { .. }) {
            break;
        }
        has_product |= is_product(before);
        first = before;
    }
    let matrices = (first..=last).filter_map(matrices_of).min()?;
    let is_whole = (first..=last).filter_map(matrices_of).all(|own| own.is_multiple_of(matrices));
    (is_whole && matrices <= MOST).then_some((first, last, matrices as u32))
}

/// Matrices of a stack `[matrices, rows, columns]` of one image.
fn stack(graph: &Graph, tensor: TensorId) -> Option<usize> {
    match graph.tensor(tensor).shape[..] {
        [1, matrices, _, _] | [matrices, _, _] => Some(matrices),
        [_, _] => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Net;
    use crate::{check, tiling};

    /// Attention of some heads over inputs; the queries are brought into place in front.
    fn attention(heads: usize, rows: usize, keys: usize) -> Graph {
        let mut net = Net::new(3);
        let q = net.input(&[1, rows, heads, 16]);
        let (k, v) = (net.input(&[1, heads, 16, keys]), net.input(&[1, heads, keys, 16]));
        let q = net.transpose(q, &[0, 2, 1, 3]);
        let scores = net.product(q, k);
        let shares = net.softmax(scores, false);
        let sums = net.product(shares, v);
        let y = net.transpose(sums, &[0, 2, 1, 3]);
        net.finish(&[y])
    }

    #[test]
    fn large_attention_runs_by_heads_and_small_attention_stays_whole() {
        let mut machine = Machine::preset("128x128_asic").expect("known");
        machine.cache.words = 256;
        for (heads, keys, wanted) in
            [(4, 512, true), (4, 64, false), (1, 2048, false), (24, 512, true), (160, 512, false)]
        {
            let graph = attention(heads, 64, keys);
            let runs = attention_tiles(&graph, &machine, TileOrder::ByMatrix);
            assert_eq!(!runs.is_empty(), wanted, "{heads} heads, {keys} keys");
            let [run] = &runs[..] else { continue };
            let names = |at: LayerId| graph.layers[at.index()].op.name();
            assert_eq!([names(run.first), names(run.last)], ["rearrange", "mat_mul"]);
            assert_eq!(run.parts, Parts::Grid { images: 1, rows: heads as u32, columns: 1 });
            let tiled = tiling::tiled(&graph, &runs).expect("heads are tiles").graph;
            let softmaxes = tiled.layers.iter().filter(|layer| matches!(layer.op, Op::Softmax { .. }));
            assert_eq!(softmaxes.count(), heads);
        }
    }

    #[test]
    fn a_matrix_that_takes_much_of_the_cache_is_computed_for_some_queries_at_a_time() {
        let mut machine = Machine::preset("128x128_asic").expect("known");
        machine.cache.words = 64;
        // Of 262144 bytes an eighth holds scores and shares of no full tile of the array; a third those of 85 and 42 queries.
        for (heads, rows, keys, blocks) in [(3, 300, 512, 4), (1, 256, 512, 4), (2, 200, 1024, 5)] {
            let graph = attention(heads, rows, keys);
            let of = |order| attention_tiles(&graph, &machine, order);
            let [grid] = &of(TileOrder::ByMatrix)[..] else { panic!("one run") };
            assert_eq!(grid.parts, Parts::Grid { images: 1, rows: heads as u32, columns: blocks });
            let by_queries = of(TileOrder::ByQueries);
            let Parts::Boxes(boxes) = &by_queries[0].parts else { panic!("boxes") };
            assert_eq!(boxes.len(), heads * blocks as usize);
            // All heads of the first queries, then all of the next.
            assert!(boxes[..heads].iter().all(|part| part[2][0] == 0), "{boxes:?}");
            assert!(boxes.windows(2).all(|pair| pair[0][2][0] <= pair[1][2][0]), "{boxes:?}");
            let tiled = tiling::tiled(&graph, &by_queries).expect("tiles").graph;
            let softmaxes = tiled.layers.iter().filter(|layer| matches!(layer.op, Op::Softmax { .. }));
            assert_eq!(softmaxes.count(), boxes.len());
        }
    }

    #[test]
    fn keys_that_leave_no_space_for_a_tile_of_queries_come_in_blocks() {
        let mut machine = Machine::preset("128x128_asic").expect("known");
        machine.cache.words = 64;
        // Of 262144 bytes a third holds scores and shares of a full tile for 341 keys, scores of one for 682, of half of one for 1365;
        // an eighth holds a block of 128 keys.
        let cases = [(256, [None; 2]), (512, [Some(3), Some(3)]), (1024, [Some(5), Some(3)]), (2048, [None, Some(3)])];
        for (keys, wanted) in cases {
            let mut graph = attention(2, 300, keys);
            for layer in &mut graph.layers {
                if let Op::MatMul { epilogue: tpuflow_ir::Arithmetic::Fixed(epilogue), .. } = &mut layer.op {
                    let (lo, hi) = graph.tensors[layer.output.index()].dtype.range();
                    (epilogue.requant.lo, epilogue.requant.hi, epilogue.table) = (lo as i32, hi as i32, None);
                    epilogue.requant.multiplier.truncate(1);
                    epilogue.requant.shift.truncate(1);
                }
            }
            for (keeps_scores, parts) in [true, false].into_iter().zip(wanted) {
                let found = key_block_tiles(&graph, &machine, keeps_scores);
                let queries = found.first().map(|tiling| match tiling.parts {
                    Parts::KeyBlocks { matrices: 2, queries, keys: 128, keeps_scores: kept } => {
                        assert_eq!(kept, keeps_scores);
                        queries
                    }
                    ref other => panic!("{other:?}"),
                });
                assert_eq!(queries, parts, "{keys} keys, scores kept: {keeps_scores}");
            }
        }
    }

    #[test]
    fn the_program_of_large_attention_is_proven() {
        let mut machine = Machine::preset("128x128_asic").expect("known");
        machine.cache.words = 256;
        let graph = attention(4, 256, 512);
        let options = crate::Options { level: 5, ..crate::Options::default() };
        let program = crate::schedule(&graph, &machine, &options).expect("space for all");
        assert_eq!(check(&graph, &program), Ok(()));
    }
}
