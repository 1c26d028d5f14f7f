//! The plans that are made of a graph, and which of them is taken.

use rayon::prelude::*;
use tpuflow_ir::{Graph, Machine, Program, Tiling, layout};

use super::bank_conflicts::separate_banks;
use super::local_search::improve_order;
use super::stage_search::search_stage_granularities;
use super::transfer_length::lengthen_transfers;
use crate::budget::{SearchBudget, Timing};
use crate::context::PlanningContext;
use crate::emission::{Plan, fastest};
use crate::error::ScheduleError;
use crate::memory_space::can_write_through;
use crate::options::granularity::{StageGranularities, TileGranularity};
use crate::options::{PipelineMode, PlanOptions};
use crate::parameters::Parameters;
use crate::stream::with_stream;
use crate::tiling;
use crate::tiling::groups::{Pricing, groups};
use crate::tiling::stacks::{TileOrder, attention_tiles, key_block_tiles};

/// What a program is asked for.
pub(crate) struct Request<'a> {
    pub graph: &'a Graph,
    pub machine: &'a Machine,
    /// Layers that are computed in parts in any case.
    pub tilings: &'a [Tiling],
    pub parameters: &'a Parameters,
    pub budget: SearchBudget,
    /// Whether runs are to follow each other without a pause.
    pub stream: bool,
    /// How many plans are made.
    pub effort: Effort,
}

/// How many plans are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// The one that is made quickest.
    Quick,
    /// All that may be the best.
    Search,
}

/// A program by given settings, not yet checked. Where loads may move ahead over some layers alone, the program in which none does
/// is made as well, and the faster one taken.
pub(crate) fn compiled(request: &Request, timing: Timing) -> Result<Program, ScheduleError> {
    let ahead = by_distance(request, timing)?;
    let without = request.parameters.without_prefetch().filter(|_| request.effort == Effort::Search);
    let Some(parameters) = without else { return Ok(ahead) };
    match by_distance(&Request { parameters: &parameters, ..*request }, timing) {
        Ok(none) if interval(&none) < interval(&ahead) => Ok(none),
        _ => Ok(ahead),
    }
}

/// Predicted cycles, of a stream those from one run to the next.
pub(crate) fn interval(program: &Program) -> u64 {
    program.stream.as_ref().map_or(program.predicted_cycles, |stream| stream.predicted_interval)
}

/// A program whose loads move ahead as far as they may. Where tensors pass through external memory, a graph in which groups of
/// layers are computed part by part is planned as well.
fn by_distance(request: &Request, timing: Timing) -> Result<Program, ScheduleError> {
    let &Request { graph, machine, tilings, parameters, budget, stream, effort } = request;
    let context = PlanningContext::new(graph, machine, budget, parameters)?;
    let finished = |context: &PlanningContext, finalists: Vec<Plan>| -> Result<Program, ScheduleError> {
        let plan = match effort {
            Effort::Quick => fastest(finalists.into_iter().map(Ok))?,
            Effort::Search => shortest(context, finalists, timing)?,
        };
        if stream { with_stream(context, plan, timing) } else { Ok(plan.program(context)) }
    };
    let in_parts = |tilings: &[Tiling]| -> Result<Program, ScheduleError> {
        let tiled = tiling::tiled(graph, tilings)?.graph;
        let own = PlanningContext::new(&tiled, machine, budget, parameters)?;
        let mut program = finished(&own, self::finalists(&own, effort, timing)?)?;
        // What holds for every program of the graph, as far as it does for parts in narrower pixels.
        program.bounds = program.bounds.min(&context.bounds().whole);
        if let Some(stream) = &mut program.stream {
            stream.bounds = stream.bounds.min(&context.bounds().interval);
        }
        Ok(Program { tilings: tilings.to_vec(), ..program })
    };
    if !tilings.is_empty() {
        return in_parts(tilings);
    }
    if effort == Effort::Quick {
        return finished(&context, self::finalists(&context, effort, timing)?);
    }
    if let Some(tilings) = obvious_tilings(&context, timing)
        && let Ok(program) = in_parts(&tilings)
    {
        return Ok(program);
    }
    let finalists = finalists(&context, effort, timing)?;
    // Of a graph of very many cycles that was decided by the plans made quickest.
    if let Some(whole) = finalists.first()
        && !is_huge(&context)
        && let Some((_, tilings)) = best_tilings(&context, whole, timing)
        && let Ok(program) = in_parts(&tilings)
        && finalists.iter().all(|whole| program.predicted_cycles < whole.program.predicted_cycles)
    {
        return Ok(program);
    }
    finished(&context, finalists)
}

/// Ways of computing layers part by part: attention in tiles that leave the cache to others, and groups of layers that keep on the
/// chip what a plan moves to external memory and back.
fn tilings_for(context: &PlanningContext, plan: &Plan) -> Vec<Vec<Tiling>> {
    let &PlanningContext { graph, machine, parameters, .. } = context;
    if parameters.layer_fusion == 0 {
        return vec![];
    }
    let orders = [TileOrder::ByMatrix, TileOrder::ByQueries];
    let mut found = Vec::from(orders.map(|order| attention_tiles(graph, machine, order)));
    found.dedup();
    found.extend([true, false].map(|keeps_scores| key_block_tiles(graph, machine, keeps_scores)));
    let spilled_tensors = plan.spilled_tensors(graph);
    if !spilled_tensors.is_empty() {
        let pricing = Pricing {
            graph,
            network: &context.network,
            machine,
            far: &spilled_tensors,
            space: (machine.cache_bytes() as f64 * parameters.slicer.max_cache_utilization) as u64,
            search: parameters.layer_groups,
        };
        found.push(groups(&pricing, parameters.window() as usize).1);
    }
    found.retain(|tilings| !tilings.is_empty());
    found
}

/// Of the ways of computing layers part by part the one that is the fastest in plans that are made quickly.
fn best_tilings(context: &PlanningContext, plan: &Plan, timing: Timing) -> Option<(u64, Vec<Tiling>)> {
    let &PlanningContext { graph, machine, parameters, budget, .. } = context;
    // Tiles of attention are worth little where they do not overlap, groups of layers often more.
    let fine = PlanOptions { reserves_space: true, ..PlanOptions::new(INTERLEAVED[1].mode) };
    let options = match (is_huge(context), plan.spilled_tensors(graph).is_empty()) {
        (false, _) => vec![QUICK, fine],
        (true, true) => vec![QUICK],
        (true, false) => vec![fine],
    };
    let cycles = |tilings: &[Tiling]| -> Option<u64> {
        let tiled = tiling::tiled(graph, tilings).ok()?.graph;
        let own = PlanningContext::new(&tiled, machine, budget, parameters).ok()?;
        let plans = options.par_iter().filter_map(|&options| own.plan(options, timing).ok());
        plans.map(|plan| plan.program.predicted_cycles).min()
    };
    let ways = tilings_for(context, plan).into_par_iter();
    let timed: Vec<(u64, Vec<Tiling>)> = ways.filter_map(|tilings| Some((cycles(&tilings)?, tilings))).collect();
    timed.into_iter().min_by_key(|(cycles, _)| *cycles)
}

/// Tilings without which a graph of very many cycles or with large attention takes twice as long even in the plans that are made
/// quickest: plans of the whole are not worth their time then.
fn obvious_tilings(context: &PlanningContext, timing: Timing) -> Option<Vec<Tiling>> {
    let has_large_attention = || !attention_tiles(context.graph, context.machine, TileOrder::ByMatrix).is_empty();
    if !context.parameters.parallel() || !(is_huge(context) || has_large_attention()) {
        return None;
    }
    let whole = context.plan(QUICK, timing).ok()?;
    let (cycles, tilings) = best_tilings(context, &whole, timing)?;
    // What is spilled may stay whole in better plans.
    let is_spilled = !whole.spilled_tensors(context.graph).is_empty();
    let least = whole.program.predicted_cycles / if is_spilled { 2 } else { 1 };
    (cycles < least).then_some(tilings)
}

/// Whether no program of a graph takes fewer than very many cycles: every plan of it takes long.
fn is_huge(context: &PlanningContext) -> bool {
    context.bounds().whole.binding().1 >= HUGE
}

/// The finalist that is the fastest once its order has been improved by local search; those that are slower by more than small
/// changes save are left out.
fn shortest(context: &PlanningContext, mut finalists: Vec<Plan>, timing: Timing) -> Result<Plan, ScheduleError> {
    let cycles = |plan: &Plan| plan.program.predicted_cycles;
    let least = finalists.iter().map(cycles).min().unwrap_or_default();
    finalists.retain(|plan| cycles(plan) - least <= least / SMALL);
    let count = finalists.len();
    fastest(finalists.into_iter().map(|plan| {
        let plan = separate_banks(context, plan, timing);
        Ok(improve_order(context, plan, count, timing))
    }))
}

/// Plans worth a local search, at least one.
fn finalists(context: &PlanningContext, effort: Effort, timing: Timing) -> Result<Vec<Plan>, ScheduleError> {
    match effort {
        _ if !context.parameters.parallel() => {
            Ok(vec![context.plan(PlanOptions::new(PipelineMode::Sequential), timing)?])
        }
        Effort::Quick => Ok(vec![context.plan(QUICK, timing)?]),
        Effort::Search => parallel(context, timing),
    }
}

/// A pipelining mode of the portfolio, and why it may be the best.
struct NamedMode {
    mode: PipelineMode,
    #[expect(dead_code, reason = "documents the portfolio; no decision depends on it")]
    why: &'static str,
}

/// Modes with layers interleaved; left out where no layers may overlap.
const INTERLEAVED: [NamedMode; 5] = [
    interleaved(TileGranularity::Longer(4), "few start-ups, for networks of short layers"),
    interleaved(TileGranularity::Fine, "start-ups just hidden behind the instruction before"),
    interleaved(TileGranularity::Finest(2), "units of different layers begin earlier"),
    interleaved(TileGranularity::Finest(3), "earlier still"),
    interleaved(TileGranularity::Finest(4), "as early as pays at all"),
];

/// Pieces where a network has images of fewer pixels than two tiles of the array: layers begin before the last one has drained.
const HALVES: StageGranularities = StageGranularities::even(TileGranularity::Halves);
/// The same for tokens that take the elementwise unit less than a start-up.
const SHORTEST: StageGranularities = StageGranularities::even(TileGranularity::Shortest);

/// Modes with layers one after the other.
const LAYER_BY_LAYER: [NamedMode; 3] = [
    NamedMode { mode: PipelineMode::Layers { paired: true }, why: "pieces of half the size overlap with each other" },
    NamedMode { mode: PipelineMode::Layers { paired: false }, why: "whole pieces need fewer of everything" },
    NamedMode { mode: PipelineMode::Sequential, why: "where nothing can overlap, DDR pages stay open" },
];

const fn interleaved(granularity: TileGranularity, why: &'static str) -> NamedMode {
    NamedMode { mode: PipelineMode::Interleaved { granularities: StageGranularities::even(granularity) }, why }
}

/// What small changes save of a plan's cycles at most, as a rule: a fiftieth.
const SMALL: u64 = 50;

/// Shares of the cache that tensors may take where the rest is for layers that overlap, in per cent.
const OVERLAP_SHARES: [u64; 2] = [60, 45];

/// Cycles at least of graphs of which few plans are made.
const HUGE: u64 = 16_000_000;

/// Modes for these: the one that is made quickest, and those that are the fastest most often.
const HUGE_MODES: [PipelineMode; 3] = [
    LAYER_BY_LAYER[0].mode,
    PipelineMode::Interleaved { granularities: StageGranularities::even(TileGranularity::Fine) },
    PipelineMode::Interleaved { granularities: StageGranularities::even(TileGranularity::Finest(2)) },
];

/// The plan that is made quickest.
const QUICK: PlanOptions = PlanOptions::new(LAYER_BY_LAYER[0].mode);

/// Instructions of programs so long that every plan takes its time: what is tried for small images alone is left out.
const LONG: usize = 10_000;

/// Further options tried for a plan whose loads take most of the time.
struct LoadVariant {
    #[expect(dead_code, reason = "documents the portfolio; no decision depends on it")]
    name: &'static str,
    group_scale: u64,
    narrow_weight_tiles: bool,
    write_through: bool,
}

/// Where loads take most of the time, fewer start-ups or a fuller cache may be worth more than fine tiles.
const LOAD_VARIANTS: [LoadVariant; 5] = [
    variant("larger groups of constants", 4, false, false),
    variant("larger groups of constants, narrow weight tiles", 4, true, false),
    variant("much larger groups of constants", 16, false, false),
    variant("outputs written through to DDR", 1, false, true),
    variant("outputs written through to DDR, larger groups of constants", 4, false, true),
];

const fn variant(name: &'static str, group_scale: u64, narrow_weight_tiles: bool, write_through: bool) -> LoadVariant {
    LoadVariant { name, group_scale, narrow_weight_tiles, write_through }
}

/// The fastest of the plans of all modes; where that is not close to the bound, also the fastest of the same with the first rows
/// of inputs in short transfers, and with the tile granularity of single stages searched; where images are small and that is
/// faster, the same with small images halved.
fn parallel(context: &PlanningContext, timing: Timing) -> Result<Vec<Plan>, ScheduleError> {
    let overlapping = INTERLEAVED.iter().filter(|_| context.parameters.layer_fusion != 0);
    let mut modes: Vec<PipelineMode> = overlapping.chain(&LAYER_BY_LAYER).map(|named| named.mode).collect();
    let is_huge = is_huge(context);
    if is_huge {
        modes.retain(|mode| HUGE_MODES.contains(mode));
    }
    let usual: Vec<PlanOptions> = modes.into_iter().map(PlanOptions::new).collect();
    let all = |options: &[PlanOptions]| -> Vec<Candidate> {
        options.par_iter().map(|&options| Candidate::new(context, options, timing)).collect()
    };
    let best = |plans: Vec<Candidate>| plans.into_iter().reduce(Candidate::or).ok_or(ScheduleError::Level(5));
    let usual = all(&usual);
    let least = usual.iter().map(Candidate::cycles).min().unwrap_or_default();
    let is_long = usual.iter().any(|each| each.plan.as_ref().is_ok_and(|plan| plan.program.instructions.len() > LONG));
    // Of long programs, only modes that are nearly as fast.
    let is_near = |each: &&Candidate| !is_long || each.cycles() - least <= least / SMALL;
    let overlapped = best(all(&with_space_to_overlap(context, &usual))).ok().filter(|plan| plan.cycles() < least);
    let mut early: Vec<PlanOptions> =
        usual.iter().filter(is_near).map(|each| each.options.with_early_first_rows()).collect();
    let mut found = with_load_variants(context, best(usual)?, timing)?;
    let (mut cache_share, mut reserves_space) = (100, false);
    if let Some(overlapped) = overlapped {
        early.push(overlapped.options.with_early_first_rows());
        if least - overlapped.cycles() > least / SMALL {
            PlanOptions { cache_share, reserves_space, .. } = overlapped.options;
        }
        found.extend(with_load_variants(context, overlapped, timing).into_iter().flatten());
    }
    if found.iter().all(|plan| !context.is_close(plan.program.predicted_cycles)) {
        let with_granularities = |granularities| {
            let mode = PipelineMode::Interleaved { granularities };
            let options = PlanOptions { cache_share, reserves_space, ..PlanOptions::new(mode) };
            let options = options.with_early_first_rows();
            Candidate::new(context, options, timing)
        };
        let early = all(&early);
        let searched = if is_huge { early } else { search_stage_granularities(context, early, &with_granularities) };
        let mut plans = vec![best(searched)?];
        if context.parameters.layer_fusion != 0 && has_small_images(context) && !is_long {
            plans.extend([HALVES, SHORTEST].map(with_granularities));
            plans = search_stage_granularities(context, plans, &with_granularities);
        }
        // In halves only where that is faster as it stands.
        let whole = plans.remove(0);
        let halved = best(plans).ok().filter(|halved| halved.cycles() < whole.cycles());
        for candidate in std::iter::once(whole).chain(halved) {
            found.extend(with_load_variants(context, candidate, timing).into_iter().flatten());
        }
    }
    Ok(found)
}

/// The first of the fastest.
fn fastest_of(candidates: &[Candidate]) -> Option<&Candidate> {
    candidates.iter().min_by_key(|candidate| candidate.cycles())
}

/// Options by which tensors leave some of the cache to layers that overlap, where the fastest plan is not close to the bound and
/// its tensors take more.
fn with_space_to_overlap(context: &PlanningContext, usual: &[Candidate]) -> Vec<PlanOptions> {
    let Some(fastest) = fastest_of(usual) else { return vec![] };
    let Ok(plan) = &fastest.plan else { return vec![] };
    let (cycles, most) = (plan.program.predicted_cycles, plan.computed_bytes_at_a_time());
    let is_interleaved = matches!(fastest.options.mode, PipelineMode::Interleaved { .. });
    if context.is_close(cycles) || !is_interleaved {
        return vec![];
    }
    // Where tensors take little of it, all find space.
    let is_less = |share: u64| most > context.machine.cache_bytes() / 100 * share;
    let [usual, smaller] = OVERLAP_SHARES;
    let shares = [(100, usual), (usual, usual), (smaller, smaller)].into_iter().filter(|&(_, least)| is_less(least));
    shares.map(|(cache_share, _)| PlanOptions { cache_share, reserves_space: true, ..fastest.options }).collect()
}

/// Whether a layer's result is an image of more than a pixel and fewer than two tiles of the array take, or a line of two.
fn has_small_images(context: &PlanningContext) -> bool {
    let tiles = 2 * context.machine.array.rows as usize;
    context.network.steps.iter().any(|step| {
        let (_, height, width, _) = layout::image(&context.network.tensor(step.output).shape);
        (2..tiles).contains(&(height * width)) || (height, width) == (1, tiles)
    })
}

/// A plan, or a faster variant of it; where loads take most of the time, also the best of these with its load order searched.
fn with_load_variants(context: &PlanningContext, usual: Candidate, timing: Timing) -> Result<Vec<Plan>, ScheduleError> {
    if !usual.is_load_bound(context.machine) {
        let best = with_groups_by_layer(context, usual, timing);
        return Ok(vec![lengthen_transfers(context, best.plan?, timing)]);
    }
    let writes_through = can_write_through(context);
    let options: Vec<PlanOptions> = LOAD_VARIANTS
        .iter()
        .filter(|variant| !variant.write_through || writes_through)
        .map(|&LoadVariant { group_scale, narrow_weight_tiles, write_through, .. }| PlanOptions {
            group_scale,
            narrow_weight_tiles,
            write_through,
            ..usual.options
        })
        .collect();
    let others: Vec<Candidate> =
        options.into_par_iter().map(|options| Candidate::new(context, options, timing)).collect();
    // Results that are written through leave room: which is better shows when transfers have their length.
    let longest = |candidate: Candidate| Candidate {
        plan: candidate.plan.map(|plan| lengthen_transfers(context, plan, timing)),
        ..candidate
    };
    let (written_through, kept): (Vec<Candidate>, Vec<Candidate>) =
        others.into_iter().partition(|candidate| candidate.options.write_through);
    let kept = longest(kept.into_iter().fold(usual, Candidate::or));
    let best = written_through.into_iter().reduce(Candidate::or).map(longest).into_iter().fold(kept, Candidate::or);
    let searched = best.is_load_bound(context.machine).then(|| {
        let options = PlanOptions { search_load_order: true, ..best.options };
        longest(Candidate::new(context, options, timing))
    });
    Ok(std::iter::once(best.plan?).chain(searched.and_then(|candidate| candidate.plan.ok())).collect())
}

/// A plan that is not close to the bound, or the faster one that loads constants of one layer at a time: fewer loads are worth
/// little where the first layers wait for them.
fn with_groups_by_layer(context: &PlanningContext, usual: Candidate, timing: Timing) -> Candidate {
    let parameters = context.parameters;
    let is_grouped = usual.options.mode != PipelineMode::Sequential && parameters.grouped().is_some();
    // Where no layers overlap, few wait for constants of others.
    if !is_grouped || parameters.layer_fusion == 0 || context.is_close(usual.cycles()) || is_huge(context) {
        return usual;
    }
    let options = PlanOptions { group_by_layer: true, ..usual.options };
    usual.or(Candidate::new(context, options, timing))
}

/// How a plan was made, and what it came to.
pub(super) struct Candidate {
    pub options: PlanOptions,
    pub plan: Result<Plan, ScheduleError>,
}

impl Candidate {
    /// The plan by some options, if there is time for it.
    fn new(context: &PlanningContext, options: PlanOptions, timing: Timing) -> Self {
        let is_over = context.budget.is_over();
        let plan = if is_over { Err(ScheduleError::Time) } else { context.plan(options, timing) };
        Self { options, plan }
    }

    /// The one of the fewer cycles, the first of equals.
    fn or(self, other: Self) -> Self {
        if other.cycles() < self.cycles() { other } else { self }
    }

    /// Predicted cycles; of no plan, more than of any.
    pub fn cycles(&self) -> u64 {
        self.plan.as_ref().map_or(u64::MAX, |plan| plan.program.predicted_cycles)
    }

    /// Whether loads take most of the time.
    fn is_load_bound(&self, machine: &Machine) -> bool {
        self.options.mode != PipelineMode::Sequential && self.plan.as_ref().is_ok_and(|plan| plan.loading(machine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planning::fallback;
    use crate::{check, checked, common};
    use tpuflow_ir::isa::{Direction, Transfer};
    use tpuflow_ir::{Arithmetic, DType, GraphBuilder, Op, Quant, Requant, Space, Tensor, Work};

    /// Three changes of scale, one after the other.
    fn chain() -> Graph {
        let tensor = |name: &str| Tensor {
            packed: None,
            name: name.to_owned(),
            shape: vec![1, 8, 8, 16],
            dtype: DType::I8,
            quant: Some(Quant { scale: vec![0.5], zero_point: 0 }),
            source: None,
            constant: None,
        };
        let mut builder = GraphBuilder::new("chain");
        let mut last = builder.input(tensor("x")).expect("a new name");
        for name in ["a", "b", "c"] {
            let requant = Requant { multiplier: vec![3], shift: vec![2], zero_point: 0, lo: -128, hi: 127 };
            let op = Op::Rescale { input: last, requant: Arithmetic::Fixed(requant) };
            last = builder.layer(name, op, tensor(name), vec![]).expect("a sound layer");
        }
        builder.output(last);
        builder.finish().expect("a sound graph")
    }

    #[test]
    fn heavy_weights_in_narrow_tiles_and_large_bundles_are_proven() {
        let mut net = common::Net::new(3);
        let x = net.input(&[1, 4, 4, 64]);
        let y = net.conv(x, 128, common::window(3, 1, 1), 1);
        let y = net.reshape(y, &[1, 2048]);
        let y = net.matmul(y, 512);
        let graph = net.finish(&[y]);
        let mut machine = Machine::preset("128x128_asic").expect("known");
        machine.cache.banks = 4;
        let parameters = Parameters::o5();
        let budget = SearchBudget { seed: 0, steps: 10, deadline: None };
        let context = PlanningContext::new(&graph, &machine, budget, &parameters).expect("a sound graph");
        for (group_scale, narrow_weight_tiles) in [(1, false), (4, true), (16, true)] {
            let mode = PipelineMode::Interleaved { granularities: StageGranularities::even(TileGranularity::Fine) };
            let options = PlanOptions {
                mode,
                group_scale,
                group_by_layer: false,
                narrow_weight_tiles,
                write_through: group_scale == 16,
                search_load_order: narrow_weight_tiles,
                early_first_rows: narrow_weight_tiles,
                cache_share: 100,
                reserves_space: narrow_weight_tiles,
            };
            let plan = context.plan(options, &|_| None).expect("room for all");
            let program = plan.program(&context);
            assert_eq!(check(&graph, &program), Ok(()));
            let columns = program.instructions.iter().filter_map(|instruction| match &instruction.work {
                Work::Matrix(matrix) if matrix.output.channels == 512 => Some(matrix.columns),
                _ => None,
            });
            // A tile of 256 KB is more than a sixteenth of the cache, and the array takes less time than its load.
            assert!(columns.eq(if narrow_weight_tiles { vec![64; 8] } else { vec![128; 4] }), "{options:?}");
        }
    }

    #[test]
    fn the_first_rows_of_an_input_come_in_short_transfers() {
        let mut net = common::Net::new(3);
        let x = net.input(&[1, 64, 64, 128]);
        let y = net.conv(x, 16, common::window(3, 1, 1), 1);
        let graph = net.finish(&[y]);
        let (machine, parameters) = (Machine::preset("128x128_asic").expect("known"), Parameters::o5());
        let budget = SearchBudget { seed: 0, steps: 10, deadline: None };
        let context = PlanningContext::new(&graph, &machine, budget, &parameters).expect("a sound graph");
        let loads = |early_first_rows| {
            let mode = PipelineMode::Interleaved { granularities: StageGranularities::even(TileGranularity::Fine) };
            let options = PlanOptions { early_first_rows, ..PlanOptions::new(mode) };
            let plan = context.plan(options, &|_| None).expect("room for all");
            let program = plan.program(&context);
            assert_eq!(check(&graph, &program), Ok(()));
            let loads = program.instructions.iter().filter_map(|each| match &each.work {
                Work::Transfer(load) if load.direction == Direction::Load => Some(load),
                _ => None,
            });
            let of_image = |load: &&Transfer| {
                let space = Space::Ddr(load.ddr_space);
                let mut parts = program.inputs[0].views();
                parts.any(|part| {
                    space == part.space && (part.address..part.address + part.bytes(128)).contains(&load.ddr_address)
                })
            };
            let image = loads.filter(of_image);
            image.map(|load| u64::from(load.bytes) * u64::from(load.counts[0]) * u64::from(load.counts[1])).collect()
        };
        let (usual, early): (Vec<u64>, Vec<u64>) = (loads(false), loads(true));
        assert_eq!(usual.iter().sum::<u64>(), early.iter().sum::<u64>());
        assert!(2 * early[0] < usual[0], "{early:?} {usual:?}");
        assert!(early.iter().zip(&early[1..]).all(|(now, next)| *next <= 2 * now), "{early:?}");
    }

    // feature: SCH-20, SCH-39
    #[test]
    fn refused_programs_give_way_to_proven_ones() {
        let (graph, machine) = (chain(), Machine::preset("128x128_asic").expect("known"));
        let rungs = fallback::ladder(&Parameters::o5());
        for failing in 0..=rungs.len() {
            let mut tried = 0;
            let outcome = fallback::first(&rungs, |parameters| {
                let budget = SearchBudget { seed: 0, steps: 10, deadline: None };
                let request = Request {
                    graph: &graph,
                    machine: &machine,
                    tilings: &[],
                    parameters,
                    budget,
                    stream: false,
                    effort: Effort::Search,
                };
                let mut program = compiled(&request, &|_| None)?;
                tried += 1;
                if tried <= failing {
                    // Nobody waits for anybody.
                    program.instructions.iter_mut().for_each(|instruction| instruction.waits.clear());
                }
                checked(&graph, program)
            });
            match outcome {
                Ok((program, note)) => {
                    assert_eq!(check(&graph, &program), Ok(()));
                    assert_eq!((tried, note.is_some()), (failing + 1, failing > 0));
                    assert_eq!(note.unwrap_or_default().matches("the program breaks").count(), failing);
                }
                Err(error) => assert!(failing == rungs.len() && matches!(error, ScheduleError::Check { .. })),
            }
        }
    }
}
