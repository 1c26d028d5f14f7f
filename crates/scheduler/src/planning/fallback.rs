//! Settings to fall back to, one after the other, where a program cannot be had with those asked for.
//!
//! A plan may fail to fit, the time may be up before there is one, or the checker may refuse the program. Each rung of the
//! ladder asks for less: pieces as level 1 cuts them, layers one after the other, and level 1 itself, which every graph that
//! fits the machine at all has a program for.

use crate::error::ScheduleError;
use crate::parameters::Parameters;

/// Parameters to try, and their name.
pub(crate) type Rung = (&'static str, Parameters);

/// The ladder below `wanted`, which stands on top; settings that change nothing are left out.
pub(crate) fn ladder(wanted: &Parameters) -> Vec<Rung> {
    let simplest = Parameters { io_memory: wanted.io_memory, ..Parameters::o1() };
    let slicer = Parameters { slicer: simplest.slicer, ..wanted.clone() };
    let apart = Parameters { layer_fusion: 0, ..slicer.clone() };
    let mut rungs: Vec<Rung> = vec![("the settings asked for", wanted.clone())];
    for rung in [("the slicer of level 1", slicer), ("layer fusion off", apart), ("level 1", simplest)] {
        if rungs.iter().all(|(_, known)| *known != rung.1) {
            rungs.push(rung);
        }
    }
    rungs
}

/// The first rung that holds, with what to say if it is not the top one: which, and why not those above.
///
/// # Errors
/// That of the last rung, or the first for which no settings are to blame.
pub(crate) fn first<T>(
    rungs: &[Rung],
    mut attempt: impl FnMut(&Parameters) -> Result<T, ScheduleError>,
) -> Result<(T, Option<String>), ScheduleError> {
    let mut failed: Vec<String> = Vec::new();
    let mut last = ScheduleError::Level(0);
    for (name, parameters) in rungs {
        match attempt(parameters) {
            Ok(found) if failed.is_empty() => return Ok((found, None)),
            Ok(found) => return Ok((found, Some(format!("{name} taken; {}", failed.join("; "))))),
            Err(
                error @ (ScheduleError::Graph(_)
                | ScheduleError::Stream(_)
                | ScheduleError::Level(_)
                | ScheduleError::Layers { .. }
                | ScheduleError::Tiling { .. }),
            ) => {
                return Err(error);
            }
            Err(error) => {
                failed.push(format!("{name}: {error}"));
                last = error;
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use tpuflow_ir::error::GraphError;

    use super::*;

    fn causes() -> Vec<ScheduleError> {
        let machine = || "m".to_owned();
        vec![
            ScheduleError::Check { count: 2, first: "instruction 3: token: none".to_owned() },
            ScheduleError::Time,
            ScheduleError::Capacity {
                layer: "c".to_owned(),
                memory: "the shared cache",
                machine: machine(),
                capacity: 9,
            },
            ScheduleError::Allocation { memory: "the shared cache", machine: machine(), height: 10, capacity: 9 },
            ScheduleError::External { bytes: 10, capacity: 9, machine: machine() },
        ]
    }

    // feature: SCH-39
    #[test]
    fn every_rung_asks_for_less() {
        let names: Vec<&str> = ladder(&Parameters::o5()).iter().map(|rung| rung.0).collect();
        assert_eq!(names, ["the settings asked for", "the slicer of level 1", "layer fusion off", "level 1"]);
        let rungs = ladder(&Parameters::o5());
        assert_eq!(rungs[1].1.slicer, Parameters::o1().slicer);
        assert_eq!((rungs[2].1.layer_fusion, &rungs[3].1), (0, &Parameters::o1()));
        assert_eq!(ladder(&Parameters::o1()).len(), 1);
    }

    // feature: SCH-39
    #[test]
    fn each_cause_falls_to_the_next_rung_and_is_named() {
        let rungs = ladder(&Parameters::o5());
        for cause in causes() {
            for failing in 1..rungs.len() {
                let mut tried = 0;
                let (found, note) = first(&rungs, |parameters| {
                    tried += 1;
                    if tried <= failing { Err(cause.clone()) } else { Ok(parameters.clone()) }
                })
                .expect("a rung holds");
                assert_eq!((&found, tried), (&rungs[failing].1, failing + 1));
                let note = note.expect("not the settings asked for");
                assert!(note.starts_with(&format!("{} taken; the settings asked for: ", rungs[failing].0)), "{note}");
                assert_eq!(note.matches(&cause.to_string()).count(), failing, "{note}");
            }
            assert_eq!(first(&rungs, |_| Err::<(), _>(cause.clone())), Err(cause));
        }
    }

    // feature: SCH-39
    #[test]
    fn what_no_settings_change_is_an_error_at_once() {
        let mut tried = 0;
        let wrong = ScheduleError::Graph(GraphError::TwoTensors("x".to_owned()));
        let outcome = first(&ladder(&Parameters::o5()), |_| {
            tried += 1;
            Err::<(), _>(wrong.clone())
        });
        assert_eq!((outcome, tried), (Err(wrong), 1));
    }
}
