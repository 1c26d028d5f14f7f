//! A short run of the attacks on the checker: a few mutants of every class in the smallest programs, seeded. The long run is
//! `benches/examples/attack.rs`.

mod campaign;

use campaign::programs::SUBJECTS;
use campaign::{Campaign, Count, Finding};

/// Programs taken, from the first on, and mutants of each of their classes.
const PROGRAMS: usize = 7;
const PER_CLASS: usize = 3;

#[test]
fn no_mutant_that_computes_something_else_is_accepted() {
    let mut total = Count::default();
    let mut found = Vec::new();
    for subject in &SUBJECTS[..PROGRAMS] {
        let campaign = Campaign::new(subject, 1, PER_CLASS, None).unwrap();
        let results = campaign.run(0..campaign.mutants.len());
        results.classes.values().for_each(|count| total.join(count));
        let line = |f: &Finding| format!("{} {}: {}: {}", subject.name, f.mutant, f.change, f.difference);
        found.extend(results.findings.iter().map(line));
    }
    assert!(found.is_empty(), "{} mutants:\n{}", found.len(), found.join("\n"));
    assert!(total.mutants > 1000 && 2 * total.refused > total.mutants, "{total:?}");
    assert!(total.accepted_equal > 0 && total.refused_run > 0, "{total:?}");
}

/// What is followed from the first changed instruction is judged as what is followed from the beginning.
#[test]
fn mutants_are_judged_alike_from_where_they_change() {
    let (mut accepted, mut refused) = (0, 0);
    for subject in &SUBJECTS[..PROGRAMS] {
        let campaign = Campaign::new(subject, 5, 2, None).unwrap();
        for n in 0..campaign.mutants.len() {
            let [fast, slow] = campaign.judged_twice(n).unwrap();
            assert_eq!(fast, slow, "{}: {}", subject.name, campaign.describe(n));
            *if fast { &mut accepted } else { &mut refused } += 1;
        }
    }
    assert!(accepted > 100 && refused > 500, "{accepted} accepted, {refused} refused");
}

/// Classes in which mutants were accepted once, or in which a judge fell: waits between stores whose rows interleave, reads of
/// padding nobody wrote, bytes beyond the last pixel, a normalization of more channels than there are, clamps beyond a table.
#[test]
fn classes_that_passed_once_pass_no_more() {
    let classes = [
        ("joined", "set waits"),
        ("residual-spilled", "set waits/count"),
        ("attention-f16", "duplicate Vector"),
        ("attention-int16", "set Vector/inputs/pixel_bytes"),
        ("wild-f32", "set Matrix/output/pixel_bytes"),
        ("functions", "set Vector/output/channels"),
        ("batched-product", "set descriptor Matrix/codes/"),
    ];
    for (program, class) in classes {
        let subject = SUBJECTS.iter().find(|subject| subject.name == program).unwrap();
        let campaign = Campaign::new(subject, 1, 500, Some(class)).unwrap();
        assert!(campaign.mutants.len() > 100, "{program}: {} of {class}", campaign.mutants.len());
        let results = campaign.run(0..campaign.mutants.len());
        let found: Vec<String> = results.findings.iter().map(|f| format!("{}: {}", f.change, f.difference)).collect();
        assert!(found.is_empty(), "{program}, {class}:\n{}", found.join("\n"));
    }
}

/// What a port says of its codes counts, even where the codes are the same.
#[test]
fn a_changed_meaning_of_a_port_is_seen() {
    let campaign = Campaign::new(&SUBJECTS[0], 1, 30, Some("set output quant")).unwrap();
    let seen = (0..campaign.mutants.len()).filter(|&n| campaign.difference(n).is_some()).count();
    assert!(seen > 5, "{seen} of {}", campaign.mutants.len());
}
