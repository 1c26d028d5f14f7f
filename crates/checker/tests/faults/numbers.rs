//! Damage without knowing what a program means: some number in it becomes another one.

use serde_json::Value;
use tpuflow_ir::Program;

use crate::common::Random;

/// Changes a random number (or truth value) of a program's instructions, descriptors or ports. The place and its new content;
/// `None` where the result is no program any more.
pub fn change(program: &mut Program, random: &mut Random) -> Option<String> {
    let mut parts = [
        serde_json::to_value(&program.instructions),
        serde_json::to_value(&program.descriptors),
        serde_json::to_value(program.inputs.iter().map(|port| port.view).collect::<Vec<_>>()),
        serde_json::to_value(program.outputs.iter().map(|port| port.view).collect::<Vec<_>>()),
    ]
    .map(Result::unwrap);
    let word = program.machine.word() as i64;
    let part = [0, 0, 0, 0, 0, 1, 1, 1, 2, 3][random.below(10)];
    let mut left = random.below(count(&parts[part]));
    let mut place = ["instructions", "descriptors", "inputs", "outputs"][part].to_owned();
    alter(&mut parts[part], &mut left, &mut place, word, random)?;
    let [instructions, descriptors, inputs, outputs] = parts;
    program.instructions = serde_json::from_value(instructions).ok()?;
    program.descriptors = serde_json::from_value(descriptors).ok()?;
    for (ports, views) in [(&mut program.inputs, inputs), (&mut program.outputs, outputs)] {
        let views: Vec<tpuflow_ir::View> = serde_json::from_value(views).ok()?;
        for (port, view) in ports.iter_mut().zip(views) {
            port.view = view;
        }
    }
    Some(place)
}

fn count(value: &Value) -> usize {
    match value {
        Value::Number(_) | Value::Bool(_) => 1,
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// Alters leaf number `left`.
fn alter(value: &mut Value, left: &mut usize, place: &mut String, word: i64, random: &mut Random) -> Option<()> {
    let leaves = count(value);
    if leaves <= *left {
        *left -= leaves;
        return None;
    }
    match value {
        Value::Bool(truth) => *truth = !*truth,
        Value::Number(number) => {
            let old = number.as_i64()?;
            let new = match random.below(8) {
                0 | 1 => old + 1,
                2 | 3 => old - 1,
                4 => old + word,
                5 => old - word,
                6 => old * 2,
                _ => 0,
            };
            place.push_str(&format!(": {old} -> {new}"));
            *value = (new != old).then(|| new.into())?;
        }
        Value::Array(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                if *left < count(item) {
                    place.push_str(&format!("[{i}]"));
                    return alter(item, left, place, word, random);
                }
                *left -= count(item);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                if *left < count(field) {
                    place.push_str(&format!(".{name}"));
                    return alter(field, left, place, word, random);
                }
                *left -= count(field);
            }
        }
        _ => return None,
    }
    Some(())
}
