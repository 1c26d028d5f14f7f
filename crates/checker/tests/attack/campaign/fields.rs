//! Every field of a program, found by its own serialised form: a new field is under attack as soon as it exists.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tpuflow_ir::{Instruction, Program};

/// A part of a program that is serialised on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    Header,
    Machine,
    Bounds,
    Tiling(usize),
    Layer(usize),
    Allocation(usize),
    Input(usize),
    Output(usize),
    Descriptor(usize),
    Instruction(usize),
}

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header => write!(f, "header"),
            Self::Machine => write!(f, "machine"),
            Self::Bounds => write!(f, "bounds"),
            Self::Tiling(n) => write!(f, "tiling {n}"),
            Self::Layer(n) => write!(f, "layer {n}"),
            Self::Allocation(n) => write!(f, "allocation {n}"),
            Self::Input(n) => write!(f, "input {n}"),
            Self::Output(n) => write!(f, "output {n}"),
            Self::Descriptor(n) => write!(f, "descriptor {n}"),
            Self::Instruction(n) => write!(f, "instruction {n}"),
        }
    }
}

/// A field, or a structure of fields, of an item: its JSON pointer there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    pub item: Item,
    pub pointer: String,
}

impl Site {
    /// Last name of the pointer that is no index.
    pub fn key(&self) -> &str {
        key(&self.pointer)
    }
}

fn key(pointer: &str) -> &str {
    pointer.rsplit('/').find(|part| !part.is_empty() && part.parse::<usize>().is_err()).unwrap_or("")
}

/// The serialised items of a program and the sites of each class of fields.
pub struct Fields {
    items: BTreeMap<Item, Value>,
    /// By class: kind of instruction (or the item) and pointer without indices.
    pub classes: BTreeMap<String, Vec<Site>>,
    /// By the field's own name, whatever it belongs to.
    pub keys: BTreeMap<String, Vec<Site>>,
}

impl Fields {
    pub fn of(program: &Program) -> Self {
        let mut items = BTreeMap::new();
        let mut add = |item, value: Value| items.insert(item, value);
        add(Item::Header, json(&header(program)));
        add(Item::Machine, json(&program.machine));
        add(Item::Bounds, json(&program.bounds));
        let each = |values: Vec<Value>, item: fn(usize) -> Item| {
            values.into_iter().enumerate().map(move |(n, value)| (item(n), value))
        };
        items.extend(each(all(&program.tilings), Item::Tiling));
        items.extend(each(all(&program.layers), Item::Layer));
        items.extend(each(all(&program.allocations), Item::Allocation));
        items.extend(each(all(&program.inputs), Item::Input));
        items.extend(each(all(&program.outputs), Item::Output));
        items.extend(each(all(&program.descriptors), Item::Descriptor));
        items.extend(each(all(&program.instructions), Item::Instruction));
        let mut fields = Self { items, classes: BTreeMap::new(), keys: BTreeMap::new() };
        let found: Vec<Site> = fields.items.iter().flat_map(|(&item, value)| sites(item, value)).collect();
        for site in found {
            fields.classes.entry(class(&site)).or_default().push(site.clone());
            fields.keys.entry(site.key().to_owned()).or_default().push(site);
        }
        fields
    }

    /// What stands at a site.
    pub fn value(&self, site: &Site) -> &Value {
        self.items[&site.item].pointer(&site.pointer).unwrap_or(&Value::Null)
    }

    /// The item as a whole.
    pub fn item(&self, item: Item) -> &Value {
        &self.items[&item]
    }

    /// The layer an item works for, as far as it has one.
    pub fn layer(&self, item: Item) -> Option<u64> {
        self.items[&item].get("layer").and_then(Value::as_u64)
    }
}

fn json<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

fn all<T: Serialize>(values: &[T]) -> Vec<Value> {
    values.iter().map(json).collect()
}

/// A program without what the other items hold.
fn header(program: &Program) -> Value {
    let mut value = json(&Program {
        descriptors: vec![],
        instructions: vec![],
        constants: vec![],
        inputs: vec![],
        outputs: vec![],
        tilings: vec![],
        layers: vec![],
        allocations: vec![],
        ..program.clone()
    });
    if let Value::Object(fields) = &mut value {
        for own in HELD_APART {
            fields.remove(own);
        }
    }
    value
}

const HELD_APART: [&str; 9] =
    ["machine", "bounds", "descriptors", "instructions", "inputs", "outputs", "tilings", "layers", "allocations"];

/// All nodes of an item but its root; of instructions nothing above the work's own fields.
fn sites(item: Item, value: &Value) -> Vec<Site> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), value)];
    while let Some((pointer, value)) = open.pop() {
        match value {
            Value::Object(fields) => {
                open.extend(fields.iter().map(|(name, value)| (format!("{pointer}/{name}"), value)));
            }
            Value::Array(values) => {
                open.extend(values.iter().enumerate().map(|(n, value)| (format!("{pointer}/{n}"), value)));
            }
            _ => {}
        }
        if !pointer.is_empty() {
            found.push(Site { item, pointer });
        }
    }
    found.sort();
    found
}

fn class(site: &Site) -> String {
    let named: Vec<&str> = site.pointer.split('/').filter(|part| part.parse::<usize>().is_err()).collect();
    let path = named.join("/");
    let path = path.trim_start_matches('/');
    match site.item {
        Item::Header => format!("header {path}"),
        Item::Machine => format!("machine {path}"),
        Item::Bounds => format!("bounds {path}"),
        Item::Tiling(_) => format!("tiling {path}"),
        Item::Layer(_) => format!("layer {path}"),
        Item::Allocation(_) => format!("allocation {path}"),
        Item::Input(_) => format!("input {path}"),
        Item::Output(_) => format!("output {path}"),
        Item::Descriptor(_) => format!("descriptor {path}"),
        Item::Instruction(_) => path.strip_prefix("work/").unwrap_or(path).to_owned(),
    }
}

/// Kind of an instruction, as in class names.
pub fn kind(instruction: &Instruction) -> &'static str {
    match instruction.work {
        tpuflow_ir::Work::Transfer(_) => "Transfer",
        tpuflow_ir::Work::Lookup(_) => "Lookup",
        tpuflow_ir::Work::Matrix(_) => "Matrix",
        tpuflow_ir::Work::Pool(_) => "Pool",
        tpuflow_ir::Work::Vector(_) => "Vector",
        tpuflow_ir::Work::Expand(_) => "Expand",
        tpuflow_ir::Work::PackedLookup(_) => "PackedLookup",
    }
}

/// The same part of two programs, by reference.
macro_rules! each_item {
    ($item:expr, $a:expr, $b:expr, $do:ident) => {
        match $item {
            Item::Header => {
                $do!($a.name, $b.name);
                $do!($a.batch, $b.batch);
                $do!($a.level, $b.level);
                $do!($a.fallback, $b.fallback);
                $do!($a.ddr_bytes, $b.ddr_bytes);
                $do!($a.spill_bytes, $b.spill_bytes);
                $do!($a.cache_peak_bytes, $b.cache_peak_bytes);
                $do!($a.predicted_cycles, $b.predicted_cycles);
                $do!($a.states, $b.states);
            }
            Item::Machine => $do!($a.machine, $b.machine),
            Item::Bounds => $do!($a.bounds, $b.bounds),
            Item::Tiling(n) => $do!($a.tilings[n], $b.tilings[n]),
            Item::Layer(n) => $do!($a.layers[n], $b.layers[n]),
            Item::Allocation(n) => $do!($a.allocations[n], $b.allocations[n]),
            Item::Input(n) => $do!($a.inputs[n], $b.inputs[n]),
            Item::Output(n) => $do!($a.outputs[n], $b.outputs[n]),
            Item::Descriptor(n) => $do!($a.descriptors[n], $b.descriptors[n]),
            Item::Instruction(n) => $do!($a.instructions[n], $b.instructions[n]),
        }
    };
}

/// Makes an item of a program as that of another.
pub fn restore(program: &mut Program, from: &Program, item: Item) {
    macro_rules! clone {
        ($a:expr, $b:expr) => {
            $a.clone_from(&$b)
        };
    }
    each_item!(item, program, from, clone);
}

/// Whether an item is alike in two programs.
pub fn same(a: &Program, b: &Program, item: Item) -> bool {
    let mut same = true;
    macro_rules! compare {
        ($a:expr, $b:expr) => {
            same &= $a == $b
        };
    }
    each_item!(item, a, b, compare);
    same
}

/// Puts an item's new form into a program; false where it is no longer of the item's type.
pub fn put(program: &mut Program, item: Item, value: Value) -> bool {
    fn into<T: DeserializeOwned>(place: &mut T, value: Value) -> bool {
        serde_json::from_value(value).map(|new| *place = new).is_ok()
    }
    match item {
        Item::Header => put_header(program, value),
        Item::Machine => into(&mut program.machine, value),
        Item::Bounds => into(&mut program.bounds, value),
        Item::Tiling(n) => into(&mut program.tilings[n], value),
        Item::Layer(n) => into(&mut program.layers[n], value),
        Item::Allocation(n) => into(&mut program.allocations[n], value),
        Item::Input(n) => into(&mut program.inputs[n], value),
        Item::Output(n) => into(&mut program.outputs[n], value),
        Item::Descriptor(n) => into(&mut program.descriptors[n], value),
        Item::Instruction(n) => into(&mut program.instructions[n], value),
    }
}

/// The fields of a program that no other item holds; a new one does not compile until [`restore`] knows it.
fn put_header(program: &mut Program, mut value: Value) -> bool {
    let Value::Object(fields) = &mut value else { return false };
    for own in HELD_APART {
        fields.insert(own.to_owned(), Value::Array(vec![]));
    }
    fields.insert("machine".to_owned(), json(&program.machine));
    fields.insert("bounds".to_owned(), json(&program.bounds));
    let Ok(new) = serde_json::from_value::<Program>(value) else { return false };
    let Program {
        name,
        batch,
        level,
        fallback,
        ddr_bytes,
        spill_bytes,
        cache_peak_bytes,
        predicted_cycles,
        states,
        exchanges,
        position: _,
        machine: _,
        descriptors: _,
        instructions: _,
        constants: _,
        inputs: _,
        outputs: _,
        tilings: _,
        layers: _,
        bounds: _,
        allocations: _,
        stream: _,
    } = new;
    (program.name, program.batch, program.level, program.fallback) = (name, batch, level, fallback);
    (program.ddr_bytes, program.spill_bytes) = (ddr_bytes, spill_bytes);
    (program.cache_peak_bytes, program.predicted_cycles) = (cache_peak_bytes, predicted_cycles);
    (program.states, program.exchanges) = (states, exchanges);
    true
}
