//! Attacks on the checker: programs changed so that they should compute something else.
//!
//! [`fields`] finds every field of a program, [`generate`] draws changes of them, [`mutant`] makes the changed program,
//! [`observe`] says whether it computes something else, and [`Campaign`] asks the checker first: a mutant that it accepts
//! although its outputs differ is a hole in the checker.

#![allow(dead_code, clippy::unwrap_used, reason = "shared by a test and a tool, each of which uses a part")]

pub mod fields;
pub mod generate;
pub mod mutant;
pub mod observe;
pub mod programs;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tpuflow_checker::{self as checker, Checkpoints};
use tpuflow_ir::{Graph, Op, Program};

use fields::Fields;
use generate::Generator;
use mutant::{Bases, Mutant, Waits};
use observe::{Observer, RUNS};
use programs::{Random, Subject};

/// States of the checker that are kept for each program.
const STATES: usize = 250;

/// Of how many refused mutants one is run, to see whether it was refused without need.
const RUN_REFUSED: usize = 20;

/// The outcome of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The checker refuses it.
    Refused,
    /// The checker refuses it although it breaks no rule when it runs, and computes the same.
    RefusedEqual,
    /// The checker refuses it, and it was run: something differs.
    RefusedDifferent,
    /// The checker accepts it, and it computes the same.
    AcceptedEqual,
    /// The checker accepts it, and something differs: what.
    AcceptedDifferent(String),
    /// The checker or the simulator panics.
    Panic(String),
}

/// Mutants of a class by what became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub mutants: u64,
    pub refused: u64,
    /// Of the refused, those that were run, and of these those that compute the same.
    pub refused_run: u64,
    pub refused_equal: u64,
    pub accepted_equal: u64,
    pub accepted_different: u64,
    pub panics: u64,
}

impl Count {
    fn add(&mut self, verdict: &Verdict) {
        self.mutants += 1;
        match verdict {
            Verdict::Refused => self.refused += 1,
            Verdict::RefusedEqual | Verdict::RefusedDifferent => {
                self.refused += 1;
                self.refused_run += 1;
                self.refused_equal += u64::from(*verdict == Verdict::RefusedEqual);
            }
            Verdict::AcceptedEqual => self.accepted_equal += 1,
            Verdict::AcceptedDifferent(_) => self.accepted_different += 1,
            Verdict::Panic(_) => self.panics += 1,
        }
    }

    /// Adds another count.
    pub fn join(&mut self, other: &Self) {
        self.mutants += other.mutants;
        self.refused += other.refused;
        self.refused_run += other.refused_run;
        self.refused_equal += other.refused_equal;
        self.accepted_equal += other.accepted_equal;
        self.accepted_different += other.accepted_different;
        self.panics += other.panics;
    }
}

/// What a stretch of a program's mutants gave.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    pub classes: BTreeMap<String, Count>,
    /// Number, description and difference of the mutants that must not be.
    pub findings: Vec<Finding>,
}

/// A mutant that the checker accepts although its outputs differ, or one at which something panics.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    pub mutant: usize,
    pub change: String,
    pub difference: String,
}

/// A program, its mutants, and who judges them.
pub struct Campaign {
    pub graph: Graph,
    pub program: Program,
    pub mutants: Vec<Mutant>,
    bases: Bases,
    /// Of the program as it is, and of that in which every instruction waits for all before it.
    checkpoints: [Checkpoints; 2],
    fields: Fields,
    observer: Observer,
}

impl Campaign {
    /// Of a subject's program: `per_class` mutants of every class, in an order in which all classes are met early.
    pub fn new(subject: &Subject, seed: u64, per_class: usize, only: Option<&str>) -> Result<Self, String> {
        let (graph, program) = subject.build()?;
        let rows = graph.layers.iter().filter_map(|layer| match layer.op {
            Op::Embedding { table, entry, .. } => {
                let shape = &graph.tensor(table).shape;
                Some(entry.count([shape[0], shape[1]])[0] as i64)
            }
            _ => None,
        });
        let observer = Observer::new(&program, rows.min().unwrap_or(4))?;
        let fields = Fields::of(&program);
        let bases = Bases::of(&program);
        let followed = |sound: &Program| {
            let every = (sound.instructions.len() / STATES).max(4);
            Checkpoints::new(&graph, sound, every).map_err(|found| format!("{}: {}", subject.name, found[0]))
        };
        let checkpoints = [followed(&bases.kept)?, followed(&bases.serial)?];
        for (sound, timed) in [(&bases.kept, true), (&bases.serial, false)] {
            if let Some(difference) = observer.difference(sound, timed, RUNS) {
                return Err(format!("{}: unchanged, but {difference}", subject.name));
            }
        }
        let seed = hash(seed, subject.name.as_bytes());
        let mut mutants = Generator::new(&program, &fields, seed).all(&bases, per_class, only);
        let mut random = Random(seed);
        for i in (1..mutants.len()).rev() {
            mutants.swap(i, random.below(i + 1));
        }
        Ok(Self { graph, program, mutants, bases, checkpoints, fields, observer })
    }

    /// Judges mutants `range`.
    pub fn run(&self, range: std::ops::Range<usize>) -> Results {
        let judged: Vec<(usize, Verdict)> =
            range.into_par_iter().map_init(|| self.bases.clone(), |scratch, n| (n, self.judge(n, scratch))).collect();
        let mut results = Results::default();
        for (n, verdict) in judged {
            let mutant = &self.mutants[n];
            results.classes.entry(mutant.class.clone()).or_default().add(&verdict);
            if let Verdict::AcceptedDifferent(difference) | Verdict::Panic(difference) = verdict {
                results.findings.push(Finding { mutant: n, change: self.describe(n), difference });
            }
        }
        results
    }

    /// What a mutant changes.
    pub fn describe(&self, n: usize) -> String {
        self.mutants[n].describe(&self.fields)
    }

    /// The first rule a mutant breaks, as the checker says.
    pub fn violation(&self, n: usize) -> Option<String> {
        let mut scratch = self.bases.clone();
        let program = self.mutants[n].apply(&self.bases, &mut scratch, &self.fields)?;
        checker::check(&self.graph, program).err().map(|found| found[0].to_string())
    }

    /// How a mutant differs from its program, whatever the checker says.
    pub fn difference(&self, n: usize) -> Option<String> {
        let mut scratch = self.bases.clone();
        let program = self.mutants[n].apply(&self.bases, &mut scratch, &self.fields)?;
        self.observer.difference(program, self.mutants[n].waits != Waits::Serial, RUNS)
    }

    /// A number that programs have in common if they are the same, but for what their constants are.
    pub fn digest(&self) -> u64 {
        hash(0xcbf2_9ce4_8422_2325, serde_json::to_string(&self.program).unwrap_or_default().as_bytes())
    }

    fn judge(&self, n: usize, scratch: &mut Bases) -> Verdict {
        let mutant = &self.mutants[n];
        let verdict = match mutant.apply(&self.bases, scratch, &self.fields) {
            Some(program) => self.verdict(program, mutant, n.is_multiple_of(RUN_REFUSED)),
            None => Verdict::Panic("the tool drew a mutant that it cannot make".to_owned()),
        };
        mutant.undo(&self.bases, scratch);
        verdict
    }

    /// Whether the checker accepts a mutant; what it shares with its base is not followed again.
    pub fn accepted(&self, program: &Program, mutant: &Mutant) -> bool {
        if mutant.divides_otherwise() {
            return checker::check_to(&self.graph, program, 1).is_ok();
        }
        let alike = mutant.first(self.bases.base(mutant.waits));
        self.checkpoints[usize::from(mutant.waits == Waits::Serial)].check(program, alike, 1).is_ok()
    }

    /// Whether a mutant is accepted, followed from its first changed instruction and from the beginning.
    pub fn judged_twice(&self, n: usize) -> Option<[bool; 2]> {
        let (mut scratch, mutant) = (self.bases.clone(), &self.mutants[n]);
        let program = mutant.apply(&self.bases, &mut scratch, &self.fields)?;
        Some([self.accepted(program, mutant), checker::check_to(&self.graph, program, 1).is_ok()])
    }

    fn verdict(&self, program: &Program, mutant: &Mutant, run_refused: bool) -> Verdict {
        // What only reports read shows in the first run or never.
        let runs = if mutant.only_reported() { 1 } else { RUNS };
        let timed = mutant.waits != Waits::Serial;
        let accepted = match caught(|| self.accepted(program, mutant)) {
            Ok(accepted) => accepted,
            Err(panic) => return Verdict::Panic(format!("checker: {panic}")),
        };
        if !accepted && !run_refused {
            return Verdict::Refused;
        }
        match (accepted, caught(|| self.observer.difference(program, timed, runs))) {
            (true, Ok(None)) => Verdict::AcceptedEqual,
            (true, Ok(Some(difference))) => Verdict::AcceptedDifferent(difference),
            (false, Ok(None)) => Verdict::RefusedEqual,
            (false, Ok(Some(_))) => Verdict::RefusedDifferent,
            (true, Err(panic)) => Verdict::Panic(format!("accepted; simulator: {panic}")),
            (false, Err(panic)) => Verdict::Panic(format!("refused; simulator: {panic}")),
        }
    }
}

/// FNV-1a from a start.
pub fn hash(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    })
}
