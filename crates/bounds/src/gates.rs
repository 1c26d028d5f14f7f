//! Where the array has to stand still: what comes next needs a pixel of a small image with all of its channels.
//!
//! ```text
//!  layer Y    [tile][tile][tile]
//!  next                          depth, latencies, issue  [tile]..         in one piece: the array waits
//!
//!  layer Y    [half][half][half][half][half][half]
//!  next                                       depth, ..   [half]..         in two: no wait, but halves cost whole tiles
//! ```
//!
//! Let `Z` be a tensor of which some layers need a pixel with all channels, `V` the last layers on the array before it, and the
//! *gap* the time from the last slot without which no pixel of `Z` is complete to the first slot of what needs one. In that time the
//! array can be at nothing but
//!
//! * the rest of a layer `Y` of `V`, of `M` pixels. Take columns of `Y` as far apart as the array is wide, one for every tile:
//!   no instruction computes two of them, and each costs `B` K blocks of at least `R` slots. A column is computed in time for the
//!   pixel by instructions of `f` slots, and by others of `g` slots. With `M <= R`, `f >= B R`, all that the layer costs at
//!   least. With `R < M < 2R` either `f >= B M`, or both are at least `B R`, and `f + g (M - R) / R >= B M`. Hence a slot in the gap
//!   saves at most `(M - R) / R` slots elsewhere, and of the gap a share of `(2R - M) / R` is lost;
//! * earlier layers, all of whose elements some `Y` of `V` needs. Then a pixel of `Y` is computed after that, each of those columns
//!   by an instruction that was not in time for `Z`, so that all of `Y` costs `2R` slots a block in place of `max(M, R)`.
//!
//! The lesser of the two is lost for every gap, and gaps of which one's `V` needs the other's `Z` do not overlap.

use tpuflow_ir::{Graph, Machine, Op, Unit, timing};

use super::earlier::Earlier;
use crate::linear::unit_of;
use crate::work::Work;

/// Networks with more layers on the array get no gates: what is to be looked at grows with the third power.
const MOST: usize = 1000;

/// A set of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set(Vec<u64>);

impl Set {
    /// Some of `count` layers.
    pub fn of(count: usize, members: impl Iterator<Item = usize>) -> Self {
        let mut words = vec![0; count.div_ceil(64)];
        members.for_each(|i| words[i / 64] |= 1 << (i % 64));
        Self(words)
    }

    fn is_subset(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(mine, theirs)| mine & !theirs == 0)
    }

    fn intersects(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(mine, theirs)| mine & theirs != 0)
    }
}

/// A pixel that the array waits for.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    /// The last layers on the array before it.
    last: Set,
    /// Those that need it.
    next: Set,
    /// These, and those whose work after the pixel would cut the last ones in two.
    fits: Set,
    /// Slots that are lost.
    cost: u64,
}

/// Who needs whom, by layer.
pub(super) struct Dependencies<'a> {
    pub channels: &'a Earlier,
    pub strong: &'a Earlier,
    pub whole: &'a Earlier,
}

/// All gates of a network, in the order of layers.
pub(super) fn gates(
    graph: &Graph,
    works: &[Work],
    needs: &Dependencies,
    producer: &[Option<usize>],
    machine: &Machine,
) -> Vec<Gate> {
    let count = works.len();
    let mut ends: Vec<usize> = (0..count)
        .filter(|&i| works[i].array > 0)
        .filter_map(|i| producer[graph.layers[i].op.operands().first()?.index()])
        .collect();
    ends.sort_unstable();
    ends.dedup();
    let rows = u64::from(machine.array.rows);
    let on_array = |i: usize| works[i].array > 0;
    if !needs.channels.is_whole(count) || (0..count).filter(|&i| on_array(i)).count() > MOST {
        return vec![];
    }
    let gate = |end: usize| -> Option<Gate> {
        let before: Vec<usize> =
            (0..=end).filter(|&i| on_array(i) && (i == end || needs.channels.has(end, i))).collect();
        let last: Vec<usize> =
            before.iter().copied().filter(|&y| !before.iter().rev().any(|&other| needs.strong.has(other, y))).collect();
        let wait = |&y: &usize| {
            let later = latency(graph, works, needs, producer, machine, [y, end]);
            timing::array_depth(machine) + machine.control.issue.min(machine.control.issue_cold) + later
        };
        let gap = last.iter().map(wait).min()?;
        let cost = last.iter().map(|&y| gap_slots(gap, works[y].pixels, works[y].rounds, rows)).min()?;
        let next = Set::of(count, (0..count).filter(|&i| on_array(i) && needs.strong.has(i, end)));
        let is_free =
            |&i: &usize| last.contains(&i) || needs.strong.has(i, end) || last.iter().any(|&y| needs.whole.has(y, i));
        let fits = Set::of(count, (0..count).filter(is_free));
        (cost > 0).then(|| Gate { last: Set::of(count, last.iter().copied()), next, fits, cost })
    };
    ends.into_iter().filter_map(gate).collect()
}

/// Slots lost at a gap behind a layer of so many pixels and of so many K blocks in all of its tiles.
fn gap_slots(gap: u64, pixels: u64, rounds: u64, rows: u64) -> u64 {
    let more = (2 * rows).saturating_sub(pixels.max(rows));
    // A pixel is not cut in two.
    let halved = if pixels > 1 { more * rounds } else { u64::MAX };
    if rounds > 0 { halved.min(gap * more / rows) } else { 0 }
}

/// Slots the array loses while it does all the work of `counted`, and, between, of others.
pub(super) fn lost_slots(gates: &[Gate], counted: &Set) -> u64 {
    let mut total = 0;
    let mut previous: Option<&Gate> = None;
    for gate in gates {
        if !gate.last.is_subset(counted) || !gate.next.intersects(counted) || !counted.is_subset(&gate.fits) {
            continue;
        }
        let instead = match previous {
            Some(other) if other.last == gate.last => other.cost,
            Some(other) if !gate.last.is_subset(&other.next) => continue,
            _ => 0,
        };
        if gate.cost > instead {
            total += gate.cost - instead;
            previous = Some(gate);
        }
    }
    total
}

/// Cycles at least from a pixel of the first layer to the one of the second that needs it, with nothing of the array between.
fn latency(
    graph: &Graph,
    works: &[Work],
    needs: &Dependencies,
    producer: &[Option<usize>],
    machine: &Machine,
    [from, to]: [usize; 2],
) -> u64 {
    let mut since: Vec<Option<u64>> = vec![None; to + 1];
    since[from] = Some(0);
    for index in from + 1..=to {
        if works[index].array > 0 || !needs.channels.has(index, from) {
            continue;
        }
        let op = &graph.layers[index].op;
        let own = own_latency(graph, op, &works[index], machine);
        let operand = |(position, tensor): (usize, &tpuflow_ir::TensorId)| {
            let before = producer[tensor.index()].filter(|&p| p >= from && p < index)?;
            let changed = match op {
                Op::Concat { requants, .. } => requants.get(position).is_some_and(Option::is_some),
                _ => true,
            };
            Some(since[before]? + if changed { own } else { 0 })
        };
        since[index] = op.operands().iter().enumerate().filter_map(operand).max();
    }
    since[to].unwrap_or(0)
}

/// Cycles from an operand to a result, of operators that compute.
fn own_latency(graph: &Graph, op: &Op, work: &Work, machine: &Machine) -> u64 {
    let ewp = machine.ewp.start + machine.ewp.latency;
    match op {
        Op::Concat { .. } => ewp,
        Op::Pad { .. } | Op::Rearrange { .. } | Op::Gather { .. } | Op::InsertZeros { .. } | Op::Embedding { .. } => 0,
        _ if unit_of(graph, op, machine) == Unit::Pdp => {
            let pdp = machine.pdp.start + machine.pdp.latency;
            if work.pdp > 0 { pdp } else { pdp.min(ewp) }
        }
        _ => ewp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Net, window};
    use crate::live::Live;
    use crate::work::LiveGraph;

    fn works(graph: &Graph, machine: &Machine) -> (Vec<Option<usize>>, Vec<Work>) {
        let (live, producer) = (Live::of(graph), crate::producers(graph));
        let needed = LiveGraph { graph, machine, live: &live, producer: &producer };
        let works = graph.layers.iter().map(|layer| needed.work(layer)).collect();
        (producer, works)
    }

    /// Between two layers on the array lies one gate, however many layers of the other units stand there.
    #[test]
    fn only_the_array_waits_at_gates() {
        let machine = Machine::preset("128x128_asic").expect("known");
        for between in 0..3 {
            let mut net = Net::new(1);
            let x = net.input(&[1, 4, 4, 128]);
            let x = net.conv(x, 128, window(1, 1, 0), 1);
            let x = (0..between).fold(x, |x, _| net.unary(x));
            let x = net.conv(x, 128, window(1, 1, 0), 1);
            let graph = net.finish(&[x]);
            let (producer, works) = works(&graph, &machine);
            let count = works.len();
            let [mut earlier, mut strong] = [0; 2].map(|_| Earlier::new(count));
            for layer in 0..count {
                earlier.push(vec![true; layer]);
                strong.push(vec![layer + 1 == count; layer]);
            }
            let needs = Dependencies { channels: &earlier, strong: &strong, whole: &earlier };
            let found = gates(&graph, &works, &needs, &producer, &machine);
            // More than the 128 slots of another tile, which halves of the 16 pixels would cost, is never lost.
            assert_eq!(found.iter().map(|gate| gate.cost).collect::<Vec<_>>(), [128], "{between} layers between");
        }
    }

    /// The average of a whole image may as well be a sum, which the elementwise unit makes.
    #[test]
    fn the_quicker_of_two_units_averages_a_whole_image() {
        let mut machine = Machine::preset("128x128_asic").expect("known");
        (machine.pdp.start, machine.pdp.latency) = (300, 20);
        (machine.ewp.start, machine.ewp.latency) = (100, 30);
        let mut net = Net::new(1);
        let x = net.input(&[1, 4, 4, 8]);
        let (average, largest) = (net.average_pool(x, window(4, 1, 0), true), net.max_pool(x, window(4, 1, 0)));
        let graph = net.finish(&[average, largest]);
        let works = works(&graph, &machine).1;
        let latency = |layer: usize| own_latency(&graph, &graph.layers[layer].op, &works[layer], &machine);
        assert_eq!([latency(0), latency(1)], [130, 320]);
    }

    /// Rows of the array.
    const ROWS: u64 = 4;

    /// An instruction on some pixels of a tile of the first or the second layer.
    #[derive(Clone, Copy)]
    struct Piece {
        second: bool,
        tile: usize,
        pixels: [u64; 2],
        slots: u64,
    }

    /// The least slots from the first to the last of all orders of `left`, each as early as it can: of the second layer when
    /// its pixels have been there in all tiles of the first for `gap` slots.
    fn shortest(done: &mut Vec<(Piece, u64)>, left: &mut Vec<Piece>, tiles: usize, gap: u64, best: &mut u64) {
        let now = done.last().map_or(0, |last| last.1);
        if left.is_empty() || now >= *best {
            *best = now.min(*best);
            return;
        }
        for index in 0..left.len() {
            let piece = left[index];
            let there = |pixel: u64, tile: usize| {
                let made = done.iter().filter(|(p, _)| !p.second && p.tile == tile);
                made.filter(|(p, _)| (p.pixels[0]..p.pixels[1]).contains(&pixel)).map(|&(_, end)| end + gap).min()
            };
            let wanted = (piece.pixels[0]..piece.pixels[1]).filter(|_| piece.second);
            let ready: Option<Vec<u64>> =
                wanted.flat_map(|pixel| (0..tiles).map(move |tile| (pixel, tile))).map(|(p, t)| there(p, t)).collect();
            let Some(ready) = ready else { continue };
            let start = ready.into_iter().max().unwrap_or(0).max(now);
            left.remove(index);
            done.push((piece, start + piece.slots));
            shortest(done, left, tiles, gap, best);
            done.pop();
            left.insert(index, piece);
        }
    }

    #[test]
    fn no_way_to_cut_and_order_two_layers_is_shorter() {
        let mut met = 0;
        for (pixels, tiles, blocks) in [(1, 2, 1), (3, 1, 2), (4, 1, 1), (5, 2, 1), (6, 1, 3), (6, 2, 2), (7, 1, 2)] {
            for gap in [1, 4, 9] {
                let pieces = |second: bool, tile: usize, blocks: u64, cut: u64| -> Vec<Piece> {
                    let ends = [[0, cut], [cut, pixels]].into_iter().filter(|ends| ends[0] < ends[1]);
                    let slots = |ends: [u64; 2]| blocks * (ends[1] - ends[0]).max(ROWS);
                    ends.map(|pixels| Piece { second, tile, pixels, slots: slots(pixels) }).collect()
                };
                let mut best = u64::MAX;
                let cuts = pixels.pow(tiles as u32 + 1);
                for code in 0..cuts {
                    let cut = |layer: u32| code / pixels.pow(layer) % pixels;
                    let mut left = pieces(true, 0, 1, cut(0));
                    (0..tiles).for_each(|t| left.extend(pieces(false, t, blocks, cut(t as u32 + 1))));
                    shortest(&mut Vec::new(), &mut left, tiles, gap, &mut best);
                }
                let rounds = blocks * tiles as u64;
                let bound = (rounds + 1) * pixels.max(ROWS) + gap_slots(gap, pixels, rounds, ROWS);
                assert!(best >= bound, "{pixels} pixels, {tiles} tiles, {blocks} blocks, gap {gap}: {best} < {bound}");
                met += u32::from(best == bound);
            }
        }
        assert!(met >= 7, "{met}");
    }
}
