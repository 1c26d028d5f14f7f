//! The plans that are made of a graph, and which of them is taken.

use rayon::prelude::*;
use tpuflow_ir::{Graph, Machine, Program, Tiling};

use super::local_search::polished;
use super::stage_search;
use super::transfer_length::longer;
use crate::budget::Effort;
use crate::context::Site;
use crate::emission::{Planned, fastest};
use crate::lowering::{Grain, Grains};
use crate::options::{Manner, Mode};
use crate::parameters::Parameters;
use crate::{ScheduleError, Timing, tiling};

/// A program by given settings, not yet checked. Where tensors pass through external memory, a graph in which groups of layers
/// are computed part by part is planned as well.
pub(crate) fn compiled(
    graph: &Graph,
    machine: &Machine,
    tilings: &[Tiling],
    parameters: &Parameters,
    effort: Effort,
    timing: Timing,
) -> Result<Program, ScheduleError> {
    let site = Site::new(graph, machine, effort, parameters)?;
    let in_parts = |tilings: &[Tiling]| -> Result<Program, ScheduleError> {
        let tiled = tiling::tiled(graph, tilings)?.graph;
        let own = Site::new(&tiled, machine, effort, parameters)?;
        let program = shortest(&own, planned(&own, timing)?, timing)?.program(&own);
        // What holds for every program of the graph, as far as it does for parts in narrower pixels.
        let bounds = program.bounds.least(&site.bounds());
        Ok(Program { tilings: tilings.to_vec(), bounds, ..program })
    };
    if !tilings.is_empty() {
        return in_parts(tilings);
    }
    let finalists = planned(&site, timing)?;
    let far = finalists.first().map(|whole| whole.far(graph)).unwrap_or_default();
    if parameters.layer_fusion != 0 && !far.is_empty() {
        let space = (machine.cache_bytes() as f64 * parameters.slicer.max_cache_utilization) as u64;
        let longest = parameters.window() as usize;
        let groups = tiling::groups::groups(graph, &site.network, machine, &far, space, longest);
        if !groups.is_empty()
            && let Ok(program) = in_parts(&groups)
            && finalists.iter().all(|whole| program.predicted_cycles < whole.program.predicted_cycles)
        {
            return Ok(program);
        }
    }
    Ok(shortest(&site, finalists, timing)?.program(&site))
}

/// The finalist that is the fastest once its order is polished.
fn shortest(site: &Site, finalists: Vec<Planned>, timing: Timing) -> Result<Planned, ScheduleError> {
    fastest(finalists.into_iter().map(|planned| Ok(polished(site, planned, timing))))
}

/// Plans worth polishing, at least one.
fn planned(site: &Site, timing: Timing) -> Result<Vec<Planned>, ScheduleError> {
    if site.parameters.parallel() {
        parallel(site, timing)
    } else {
        Ok(vec![site.plan(Mode::Sequential, Manner::default(), timing)?])
    }
}

/// The fastest of several plans: layers interleaved, in pieces of several sizes; layers one after the other in
/// pieces of half the size that overlap with each other, or in whole ones that need fewer of everything; and, where next to
/// nothing can overlap, one instruction at a time, which leaves the pages of the DDR open. Where that is not close to the bound,
/// also the fastest of the same with the first rows of inputs in short transfers, and with single stages cut otherwise.
fn parallel(site: &Site, timing: Timing) -> Result<Vec<Planned>, ScheduleError> {
    let grains = [Grain::Longer(4), Grain::Fine, Grain::Finest(2), Grain::Finest(3), Grain::Finest(4)];
    let woven = grains
        .into_iter()
        .filter(|_| site.parameters.layer_fusion != 0)
        .map(|grain| Mode::Woven { grains: Grains::even(grain) });
    let layers = [Mode::Layers { paired: true }, Mode::Layers { paired: false }, Mode::Sequential];
    let modes: Vec<Mode> = woven.chain(layers).collect();
    let all = |manner| modes.par_iter().map(|&mode| Tried::new(site, mode, manner, timing)).collect::<Vec<_>>();
    let best = |plans: Vec<Tried>| plans.into_iter().reduce(Tried::or).ok_or(ScheduleError::Level(5));
    let mut found = in_other_manners(site, best(all(Manner::default()))?, timing)?;
    if found.iter().all(|plan| !site.is_close(plan.program.predicted_cycles)) {
        let prompt = Manner { prompt: true, ..Manner::default() };
        let mixed = |grains| Tried::new(site, Mode::Woven { grains }, prompt, timing);
        let others = best(stage_search::mixed(site, all(prompt), &mixed))?;
        found.extend(in_other_manners(site, others, timing).into_iter().flatten());
    }
    Ok(found)
}

/// A plan, or a faster one made in another manner; where loads take most of the time, also the best of these with its loads placed
/// in many ways.
fn in_other_manners(site: &Site, usual: Tried, timing: Timing) -> Result<Vec<Planned>, ScheduleError> {
    if !usual.loads(site.machine) {
        return Ok(vec![longer(site, usual.plan?, timing)]);
    }
    // Where loads take most of the time, fewer start-ups or a fuller cache may be worth more than a fine grain.
    let manner = |(bundles, narrow, passing)| Manner { bundles, narrow, passing, ..usual.manner };
    let manners = [(4, false, false), (4, true, false), (16, false, false), (1, false, true), (4, false, true)];
    let manners = manners.into_iter().map(manner).filter(|manner| !manner.passing || site.passes());
    let (mode, manners) = (usual.mode, manners.collect::<Vec<_>>());
    let others: Vec<Tried> = manners.into_par_iter().map(|manner| Tried::new(site, mode, manner, timing)).collect();
    // Results that pass leave room: which is better shows when transfers have their length.
    let longest = |tried: Tried| Tried { plan: tried.plan.map(|plan| longer(site, plan, timing)), ..tried };
    let (passing, staying): (Vec<Tried>, Vec<Tried>) = others.into_iter().partition(|tried| tried.manner.passing);
    let staying = longest(staying.into_iter().fold(usual, Tried::or));
    let best = passing.into_iter().reduce(Tried::or).map(longest).into_iter().fold(staying, Tried::or);
    let searched = Manner { searched: true, ..best.manner };
    let searched = best.loads(site.machine).then(|| Tried::new(site, best.mode, searched, timing));
    let searched = searched.and_then(|tried| longest(tried).plan.ok());
    Ok(std::iter::once(best.plan?).chain(searched).collect())
}

/// How a plan was made, and what it came to.
pub(super) struct Tried {
    pub mode: Mode,
    manner: Manner,
    pub plan: Result<Planned, ScheduleError>,
}

impl Tried {
    /// The plan of a mode and manner, if there is time for it.
    fn new(site: &Site, mode: Mode, manner: Manner, timing: Timing) -> Self {
        let is_over = site.effort.is_over();
        let plan = if is_over { Err(ScheduleError::Time) } else { site.plan(mode, manner, timing) };
        Self { mode, manner, plan }
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
        self.mode != Mode::Sequential && self.plan.as_ref().is_ok_and(|plan| plan.loading(machine))
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
        let effort = Effort { seed: 0, steps: 10, deadline: None };
        let site = Site::new(&graph, &machine, effort, &parameters).expect("a sound graph");
        for (bundles, narrow) in [(1, false), (4, true), (16, true)] {
            let manner = Manner { bundles, narrow, passing: bundles == 16, searched: narrow, prompt: narrow };
            let planned =
                site.plan(Mode::Woven { grains: Grains::even(Grain::Fine) }, manner, &|_| None).expect("room for all");
            let program = planned.program(&site);
            assert_eq!(check(&graph, &program), Ok(()));
            let columns = program.instructions.iter().filter_map(|instruction| match &instruction.work {
                Work::Matrix(matrix) if matrix.output.channels == 512 => Some(matrix.columns),
                _ => None,
            });
            // A tile of 256 KB is more than a sixteenth of the cache, and the array takes less time than its load.
            assert!(columns.eq(if narrow { vec![64; 8] } else { vec![128; 4] }), "{manner:?}");
        }
    }

    #[test]
    fn the_first_rows_of_an_input_come_in_short_transfers() {
        let mut net = common::Net::new(3);
        let x = net.input(&[1, 64, 64, 128]);
        let y = net.conv(x, 16, common::window(3, 1, 1), 1);
        let graph = net.finish(&[y]);
        let (machine, parameters) = (Machine::preset("128x128_asic").expect("known"), Parameters::o5());
        let effort = Effort { seed: 0, steps: 10, deadline: None };
        let site = Site::new(&graph, &machine, effort, &parameters).expect("a sound graph");
        let loads = |prompt| {
            let mode = Mode::Woven { grains: Grains::even(Grain::Fine) };
            let planned = site.plan(mode, Manner { prompt, ..Manner::default() }, &|_| None).expect("room for all");
            let program = planned.program(&site);
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
        let (usual, prompt): (Vec<u64>, Vec<u64>) = (loads(false), loads(true));
        assert_eq!(usual.iter().sum::<u64>(), prompt.iter().sum::<u64>());
        assert!(2 * prompt[0] < usual[0], "{prompt:?} {usual:?}");
        assert!(prompt.iter().zip(&prompt[1..]).all(|(now, next)| *next <= 2 * now), "{prompt:?}");
    }

    #[test]
    fn sch_20_sch_39_refused_programs_give_way_to_proven_ones() {
        let (graph, machine) = (chain(), Machine::preset("128x128_asic").expect("known"));
        let rungs = fallback::ladder(&Parameters::o5());
        for failing in 0..=rungs.len() {
            let mut tried = 0;
            let outcome = fallback::first(&rungs, |parameters| {
                let effort = Effort { seed: 0, steps: 10, deadline: None };
                let mut program = compiled(&graph, &machine, &[], parameters, effort, &|_| None)?;
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
