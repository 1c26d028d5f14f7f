//! Damage that keeps every value valid: a field takes the content it has in another instruction, descriptor or port of its kind.

use serde_json::Value;
use tpuflow_ir::Program;

use crate::common::Random;

/// Puts a field's content from one place of a program into another, or exchanges the two. What was changed; `None` where the two
/// are alike, or the result is no program.
pub fn exchange(program: &mut Program, random: &mut Random) -> Option<String> {
    let mut lists = [
        serde_json::to_value(&program.instructions),
        serde_json::to_value(&program.descriptors),
        serde_json::to_value(program.inputs.iter().chain(&program.outputs).collect::<Vec<_>>()),
    ]
    .map(Result::unwrap);
    let list = [0, 0, 0, 0, 0, 0, 1, 2][random.below(8)];
    let items = lists[list].as_array_mut()?;
    if items.len() < 2 {
        return None;
    }
    let (one, other) = (random.below(items.len()), random.below(items.len()));
    let path = path(&items[one], random);
    let (found, theirs) = (items[one].pointer(&path)?.clone(), items[other].pointer(&path)?.clone());
    if found == theirs {
        return None;
    }
    *items[one].pointer_mut(&path)? = theirs;
    let both = random.chance(50);
    if both {
        *items[other].pointer_mut(&path)? = found;
    }
    let [instructions, descriptors, ports] = lists;
    program.instructions = serde_json::from_value(instructions).ok()?;
    program.descriptors = serde_json::from_value(descriptors).ok()?;
    let mut ports: Vec<tpuflow_ir::Port> = serde_json::from_value(ports).ok()?;
    program.outputs = ports.split_off(program.inputs.len());
    program.inputs = ports;
    Some(format!("list {list}, {path} of {one} and {other}, both {both}"))
}

/// A way into a value, to a leaf or to something on the way to it.
fn path(value: &Value, random: &mut Random) -> String {
    let mut found = String::new();
    let mut at = value;
    loop {
        let (name, next) = match at {
            Value::Array(items) if !items.is_empty() => {
                let index = random.below(items.len());
                (index.to_string(), &items[index])
            }
            Value::Object(fields) if !fields.is_empty() => {
                let (name, next) = fields.iter().nth(random.below(fields.len())).unwrap();
                (name.clone(), next)
            }
            _ => return found,
        };
        found = format!("{found}/{name}");
        at = next;
        if random.chance(12) {
            return found;
        }
    }
}
