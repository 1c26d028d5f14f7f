//! The plans that are made of a graph, and which of them is taken.

use rayon::prelude::*;
use tpuflow_ir::{Graph, Machine, Program, Tiling};

use super::local_search::improve_order;
use super::stage_search;
use super::transfer_length::lengthen_transfers;
use crate::budget::SearchBudget;
use crate::budget::Timing;
use crate::context::PlanningContext;
use crate::emission::{Plan, fastest};
use crate::error::ScheduleError;
use crate::lowering::{StageGranularities, TileGranularity};
use crate::options::{PipelineMode, PlanVariant};
use crate::parameters::Parameters;
use crate::tiling;

/// A program by given settings, not yet checked. Where tensors pass through external memory, a graph in which groups of layers
/// are computed part by part is planned as well.
pub(crate) fn compiled(
    graph: &Graph,
    machine: &Machine,
    tilings: &[Tiling],
    parameters: &Parameters,
    budget: SearchBudget,
    timing: Timing,
) -> Result<Program, ScheduleError> {
    let context = PlanningContext::new(graph, machine, budget, parameters)?;
    let in_parts = |tilings: &[Tiling]| -> Result<Program, ScheduleError> {
        let tiled = tiling::tiled(graph, tilings)?.graph;
        let own = PlanningContext::new(&tiled, machine, budget, parameters)?;
        let program = shortest(&own, plan(&own, timing)?, timing)?.program(&own);
        // What holds for every program of the graph, as far as it does for parts in narrower pixels.
        let bounds = program.bounds.least(&context.bounds());
        Ok(Program { tilings: tilings.to_vec(), bounds, ..program })
    };
    if !tilings.is_empty() {
        return in_parts(tilings);
    }
    let finalists = plan(&context, timing)?;
    let spilled_tensors = finalists.first().map(|whole| whole.spilled_tensors(graph)).unwrap_or_default();
    if parameters.layer_fusion != 0 && !spilled_tensors.is_empty() {
        let space = (machine.cache_bytes() as f64 * parameters.slicer.max_cache_utilization) as u64;
        let longest = parameters.window() as usize;
        let groups = tiling::groups::groups(graph, &context.network, machine, &spilled_tensors, space, longest);
        if !groups.is_empty()
            && let Ok(program) = in_parts(&groups)
            && finalists.iter().all(|whole| program.predicted_cycles < whole.program.predicted_cycles)
        {
            return Ok(program);
        }
    }
    Ok(shortest(&context, finalists, timing)?.program(&context))
}

/// The finalist that is the fastest once its order is polished.
fn shortest(context: &PlanningContext, finalists: Vec<Plan>, timing: Timing) -> Result<Plan, ScheduleError> {
    fastest(finalists.into_iter().map(|plan| Ok(improve_order(context, plan, timing))))
}

/// Plans worth polishing, at least one.
fn plan(context: &PlanningContext, timing: Timing) -> Result<Vec<Plan>, ScheduleError> {
    if context.parameters.parallel() {
        parallel(context, timing)
    } else {
        Ok(vec![context.plan(PipelineMode::Sequential, PlanVariant::default(), timing)?])
    }
}

/// The fastest of several plans: layers interleaved, in pieces of several sizes; layers one after the other in
/// pieces of half the size that overlap with each other, or in whole ones that need fewer of everything; and, where next to
/// nothing can overlap, one instruction at a time, which leaves the pages of the DDR open. Where that is not close to the bound,
/// also the fastest of the same with the first rows of inputs in short transfers, and with single stages cut otherwise.
fn parallel(context: &PlanningContext, timing: Timing) -> Result<Vec<Plan>, ScheduleError> {
    let granularities = [
        TileGranularity::Longer(4),
        TileGranularity::Fine,
        TileGranularity::Finest(2),
        TileGranularity::Finest(3),
        TileGranularity::Finest(4),
    ];
    let woven = granularities
        .into_iter()
        .filter(|_| context.parameters.layer_fusion != 0)
        .map(|granularity| PipelineMode::Interleaved { granularities: StageGranularities::even(granularity) });
    let layers =
        [PipelineMode::Layers { paired: true }, PipelineMode::Layers { paired: false }, PipelineMode::Sequential];
    let modes: Vec<PipelineMode> = woven.chain(layers).collect();
    let all =
        |variant| modes.par_iter().map(|&mode| Candidate::new(context, mode, variant, timing)).collect::<Vec<_>>();
    let best = |plans: Vec<Candidate>| plans.into_iter().reduce(Candidate::or).ok_or(ScheduleError::Level(5));
    let mut found = with_variants(context, best(all(PlanVariant::default()))?, timing)?;
    if found.iter().all(|plan| !context.is_close(plan.program.predicted_cycles)) {
        let early_first_rows = PlanVariant { early_first_rows: true, ..PlanVariant::default() };
        let search_stage_granularities = |granularities| {
            Candidate::new(context, PipelineMode::Interleaved { granularities }, early_first_rows, timing)
        };
        let others = best(stage_search::search_stage_granularities(
            context,
            all(early_first_rows),
            &search_stage_granularities,
        ))?;
        found.extend(with_variants(context, others, timing).into_iter().flatten());
    }
    Ok(found)
}

/// A plan, or a faster one made in another manner; where loads take most of the time, also the best of these with its loads placed
/// in many ways.
fn with_variants(context: &PlanningContext, usual: Candidate, timing: Timing) -> Result<Vec<Plan>, ScheduleError> {
    if !usual.loads(context.machine) {
        return Ok(vec![lengthen_transfers(context, usual.plan?, timing)]);
    }
    // Where loads take most of the time, fewer start-ups or a fuller cache may be worth more than a fine grain.
    let variant = |(group_scale, narrow_weight_tiles, write_through)| PlanVariant {
        group_scale,
        narrow_weight_tiles,
        write_through,
        ..usual.variant
    };
    let variants = [(4, false, false), (4, true, false), (16, false, false), (1, false, true), (4, false, true)];
    let variants =
        variants.into_iter().map(variant).filter(|variant| !variant.write_through || context.can_write_through());
    let (mode, variants) = (usual.mode, variants.collect::<Vec<_>>());
    let others: Vec<Candidate> =
        variants.into_par_iter().map(|variant| Candidate::new(context, mode, variant, timing)).collect();
    // Results that pass leave room: which is better shows when transfers have their length.
    let longest = |tried: Candidate| Candidate {
        plan: tried.plan.map(|plan| lengthen_transfers(context, plan, timing)),
        ..tried
    };
    let (write_through, staying): (Vec<Candidate>, Vec<Candidate>) =
        others.into_iter().partition(|tried| tried.variant.write_through);
    let staying = longest(staying.into_iter().fold(usual, Candidate::or));
    let best = write_through.into_iter().reduce(Candidate::or).map(longest).into_iter().fold(staying, Candidate::or);
    let search_load_order = PlanVariant { search_load_order: true, ..best.variant };
    let search_load_order =
        best.loads(context.machine).then(|| Candidate::new(context, best.mode, search_load_order, timing));
    let search_load_order = search_load_order.and_then(|tried| longest(tried).plan.ok());
    Ok(std::iter::once(best.plan?).chain(search_load_order).collect())
}

/// How a plan was made, and what it came to.
pub(super) struct Candidate {
    pub mode: PipelineMode,
    variant: PlanVariant,
    pub plan: Result<Plan, ScheduleError>,
}

impl Candidate {
    /// The plan of a mode and manner, if there is time for it.
    fn new(context: &PlanningContext, mode: PipelineMode, variant: PlanVariant, timing: Timing) -> Self {
        let is_over = context.budget.is_over();
        let plan = if is_over { Err(ScheduleError::Time) } else { context.plan(mode, variant, timing) };
        Self { mode, variant, plan }
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
    fn loads(&self, machine: &Machine) -> bool {
        self.mode != PipelineMode::Sequential && self.plan.as_ref().is_ok_and(|plan| plan.loading(machine))
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
            let variant = PlanVariant {
                group_scale,
                narrow_weight_tiles,
                write_through: group_scale == 16,
                search_load_order: narrow_weight_tiles,
                early_first_rows: narrow_weight_tiles,
            };
            let plan = context
                .plan(
                    PipelineMode::Interleaved { granularities: StageGranularities::even(TileGranularity::Fine) },
                    variant,
                    &|_| None,
                )
                .expect("room for all");
            let program = plan.program(&context);
            assert_eq!(check(&graph, &program), Ok(()));
            let columns = program.instructions.iter().filter_map(|instruction| match &instruction.work {
                Work::Matrix(matrix) if matrix.output.channels == 512 => Some(matrix.columns),
                _ => None,
            });
            // A tile of 256 KB is more than a sixteenth of the cache, and the array takes less time than its load.
            assert!(columns.eq(if narrow_weight_tiles { vec![64; 8] } else { vec![128; 4] }), "{variant:?}");
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
            let plan = context
                .plan(mode, PlanVariant { early_first_rows, ..PlanVariant::default() }, &|_| None)
                .expect("room for all");
            let program = plan.program(&context);
            assert_eq!(check(&graph, &program), Ok(()));
            let image = program.inputs[0].view;
            let bytes = image.address..image.address + 64 * 64 * 128;
            let loads = program.instructions.iter().filter_map(|each| match &each.work {
                Work::Transfer(load) if load.direction == Direction::Load => Some(load),
                _ => None,
            });
            let space = |load: &Transfer| Space::Ddr(load.ddr_space);
            let image = loads.filter(|load| space(load) == image.space && bytes.contains(&load.ddr_address));
            image.map(|load| u64::from(load.bytes) * u64::from(load.counts[0]) * u64::from(load.counts[1])).collect()
        };
        let (usual, early): (Vec<u64>, Vec<u64>) = (loads(false), loads(true));
        assert_eq!(usual.iter().sum::<u64>(), early.iter().sum::<u64>());
        assert!(2 * early[0] < usual[0], "{early:?} {usual:?}");
        assert!(early.iter().zip(&early[1..]).all(|(now, next)| *next <= 2 * now), "{early:?}");
    }

    #[test]
    fn sch_20_sch_39_refused_programs_give_way_to_proven_ones() {
        let (graph, machine) = (chain(), Machine::preset("128x128_asic").expect("known"));
        let rungs = fallback::ladder(&Parameters::o5());
        for failing in 0..=rungs.len() {
            let mut tried = 0;
            let outcome = fallback::first(&rungs, |parameters| {
                let budget = SearchBudget { seed: 0, steps: 10, deadline: None };
                let mut program = compiled(&graph, &machine, &[], parameters, budget, &|_| None)?;
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
