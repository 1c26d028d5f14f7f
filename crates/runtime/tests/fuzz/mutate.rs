//! Seeded damage to bytes, lines and trees of values.

use serde_json::{Number, Value};

/// A seeded generator: SplitMix64.
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64, case: u64) -> Self {
        let mut own = Self(seed ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        own.next();
        own
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Numbers at which types and checks end.
const EDGES: [i128; 30] = [
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    127,
    128,
    -128,
    255,
    256,
    1000,
    32767,
    -32768,
    65535,
    65536,
    1 << 20,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    -(1 << 31),
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    1 << 42,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
];

/// Another number than `found`: an edge, a neighbour, a multiple.
fn another(rng: &mut Rng, found: i128) -> i128 {
    match rng.below(6) {
        0 => found + 1,
        1 => found - 1,
        2 => found * 2,
        3 => found / 2,
        _ => *rng.pick(&EDGES),
    }
}

fn number(value: i128) -> Value {
    let small = i64::try_from(value).map(Number::from);
    let number = small.or_else(|_| u64::try_from(value).map(Number::from));
    number.map_or(Value::Null, Value::Number)
}

/// Changes one value of a tree, found by a walk that takes every branch equally often.
pub fn tree(rng: &mut Rng, root: &mut Value) {
    let mut donors = Vec::new();
    for _ in 0..4 {
        donors.push(walk(rng, root).clone());
    }
    let place = walk(rng, root);
    let donor = rng.pick(&donors).clone();
    match place {
        Value::Number(found) if rng.below(3) > 0 => {
            let whole = found.as_i64().map(i128::from).or_else(|| found.as_u64().map(i128::from));
            *place = match whole {
                Some(whole) => number(another(rng, whole)),
                None => {
                    Number::from_f64(*rng.pick(&[0.0, -1.0, 1e300, -1e-300, 0.5])).map_or(Value::Null, Value::Number)
                }
            };
        }
        Value::Bool(set) => *set = !*set,
        Value::Array(list) if !list.is_empty() => {
            let (a, b) = (rng.below(list.len()), rng.below(list.len()));
            match rng.below(5) {
                0 => list.swap(a, b),
                1 => drop(list.remove(a)),
                2 => list.insert(b, list[a].clone()),
                3 => list.truncate(a),
                _ => list[a] = list[b].clone(),
            }
        }
        Value::Object(fields) if rng.below(8) == 0 => {
            let names: Vec<String> = fields.keys().cloned().collect();
            if !names.is_empty() {
                fields.remove(rng.pick(&names));
            }
        }
        place => *place = donor,
    }
}

fn walk<'a>(rng: &mut Rng, place: &'a mut Value) -> &'a mut Value {
    let children = match &*place {
        Value::Array(list) => list.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if children == 0 || rng.below(12) == 0 {
        return place;
    }
    let at = rng.below(children);
    let child = match place {
        Value::Array(list) => list.get_mut(at),
        Value::Object(fields) => fields.values_mut().nth(at),
        _ => None,
    };
    walk(rng, child.expect("within"))
}

/// Flips, cuts, doubles or moves bytes.
pub fn bytes(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.below(bytes.len());
    match rng.below(6) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff, b'"', b'9', b'{']),
        2 => bytes.truncate(at),
        3 => {
            let end = bytes.len().min(at + 1 + rng.below(64));
            let copy = bytes[at..end].to_vec();
            let to = rng.below(bytes.len());
            bytes.splice(to..to, copy);
        }
        4 => {
            let end = bytes.len().min(at + 1 + rng.below(64));
            bytes.drain(at..end);
        }
        _ => {
            let value = another(rng, bytes[at].into());
            let stated = (value as u64).to_le_bytes();
            for (byte, new) in bytes[at..].iter_mut().zip(stated) {
                *byte = new;
            }
        }
    }
}

/// Replaces a number of a text, exchanges two lines, doubles or drops one.
pub fn text(rng: &mut Rng, text: &mut String) {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if lines.is_empty() {
        return;
    }
    let (a, b) = (rng.below(lines.len()), rng.below(lines.len()));
    match rng.below(8) {
        0 => lines.swap(a, b),
        1 => drop(lines.remove(a)),
        2 => lines.insert(b, lines[a].clone()),
        _ => {
            let line = &mut lines[a];
            let starts: Vec<usize> = line.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
            if !starts.is_empty() {
                let start = *rng.pick(&starts);
                let length = line[start..].bytes().take_while(u8::is_ascii_digit).count();
                let found = line[start..start + length].parse().unwrap_or(0);
                line.replace_range(start..start + length, &another(rng, found).to_string());
            }
        }
    }
    *text = lines.join("\n");
}
