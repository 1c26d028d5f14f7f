//! Draws the mutants of a program: as many of each class as are asked for, or as the program offers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tpuflow_ir::isa::{Direction, VectorOp};
use tpuflow_ir::{Descriptor, Program, Work};

use super::fields::{Fields, Item, Site, kind};
use super::mutant::{Bases, Edit, Mutant, Replacement, Waits};
use super::programs::Random;

/// Draws in vain, per mutant asked for, after which a class is taken to offer no more.
const PATIENCE: usize = 4;

/// Fields that hold addresses: the same place is named by producers, transfers, consumers and ports.
const ADDRESSES: [&str; 6] = ["address", "local_address", "ddr_address", "parameters", "table", "weights"];

pub struct Generator<'a> {
    program: &'a Program,
    fields: &'a Fields,
    random: Random,
    /// Numeric fields that hold an address, by the address.
    places: BTreeMap<u64, Vec<Site>>,
    /// Views of instructions, by their address.
    views: BTreeMap<u64, Vec<Site>>,
    /// Instructions by kind.
    kinds: BTreeMap<&'static str, Vec<usize>>,
    /// Sources of loads from the constants: space, first byte, bytes.
    loaded: Vec<(usize, usize, usize)>,
}

/// A class: its name and how one of its mutants is drawn.
type Draw<'a> = fn(&mut Generator<'a>, &str) -> Option<(Edit, bool)>;

impl<'a> Generator<'a> {
    pub fn new(program: &'a Program, fields: &'a Fields, seed: u64) -> Self {
        let mut places: BTreeMap<u64, Vec<Site>> = BTreeMap::new();
        let mut views: BTreeMap<u64, Vec<Site>> = BTreeMap::new();
        for site in ADDRESSES.iter().filter_map(|key| fields.keys.get(*key)).flatten() {
            let (Some(address), Item::Instruction(_) | Item::Input(_) | Item::Output(_)) =
                (fields.value(site).as_u64(), site.item)
            else {
                continue;
            };
            places.entry(address).or_default().push(site.clone());
            let parent = site.pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
            let view = Site { item: site.item, pointer: parent.to_owned() };
            if fields.value(&view).get("pixel_bytes").is_some() {
                views.entry(address).or_default().push(view);
            }
        }
        let mut kinds: BTreeMap<&'static str, Vec<usize>> = BTreeMap::new();
        let mut loaded = BTreeSet::new();
        for (at, instruction) in program.instructions.iter().enumerate() {
            kinds.entry(kind(instruction)).or_default().push(at);
            let Work::Transfer(transfer) = &instruction.work else { continue };
            let space = usize::from(transfer.ddr_space);
            let constants = program.constants.get(space).map_or(0, |image| image.len() as u64);
            for (from, _) in transfer.runs().take(64) {
                if transfer.direction == Direction::Load && from + u64::from(transfer.bytes) <= constants {
                    loaded.insert((space, from as usize, transfer.bytes as usize));
                }
            }
        }
        Self { program, fields, random: Random(seed), places, views, kinds, loaded: loaded.into_iter().collect() }
    }

    /// All mutants, those of a class together.
    pub fn all(mut self, bases: &Bases, per_class: usize, only: Option<&str>) -> Vec<Mutant> {
        let mut scratch = bases.clone();
        let seed = self.random.next();
        let mut mutants = Vec::new();
        for (class, draw) in self.classes() {
            if only.is_some_and(|only| !class.contains(only)) {
                continue;
            }
            // A class has its own numbers, so that it is the same alone.
            self.random = Random(super::hash(seed, class.as_bytes()));
            let mut seen = BTreeSet::new();
            let before = mutants.len();
            for _ in 0..per_class * PATIENCE {
                if mutants.len() - before == per_class {
                    break;
                }
                let Some((edit, waits_matter)) = draw(&mut self, &class) else { continue };
                let waits = self.waits(&edit, waits_matter);
                let mutant = Mutant { class: class.clone(), edit, waits };
                if !seen.insert(mutant.describe(self.fields)) {
                    continue;
                }
                let another = mutant.apply(bases, &mut scratch, self.fields).is_some();
                mutant.undo(bases, &mut scratch);
                if another {
                    mutants.push(mutant);
                }
            }
        }
        mutants
    }

    fn waits(&mut self, edit: &Edit, waits_matter: bool) -> Waits {
        let reorders = matches!(edit, Edit::Drop(_) | Edit::Duplicate(..) | Edit::Move(..) | Edit::Swap(..));
        match self.random.below(10) {
            _ if waits_matter => Waits::Kept,
            0..=3 => Waits::Serial,
            4..=7 if reorders => Waits::Counted,
            _ => Waits::Kept,
        }
    }

    fn classes(&self) -> Vec<(String, Draw<'a>)> {
        let mut classes: Vec<(String, Draw<'a>)> = Vec::new();
        for (name, sites) in &self.fields.classes {
            classes.push((format!("set {name}"), Self::set));
            if sites.len() > 1 && matches!(sites[0].item, Item::Instruction(_) | Item::Input(_) | Item::Output(_)) {
                classes.push((format!("exchange {name}"), Self::exchange));
            }
        }
        for name in self.kinds.keys() {
            let draws: [(&str, Draw<'a>); 9] = [
                ("mix", Self::mix),
                ("shift", Self::shift),
                ("both", Self::both),
                ("relocate", Self::relocate),
                ("parallel", Self::parallel),
                ("drop", Self::drop),
                ("duplicate", Self::duplicate),
                ("swap", Self::swap),
                ("move", Self::shove),
            ];
            classes.extend(draws.map(|(what, draw)| (format!("{what} {name}"), draw)));
        }
        let draws: [(&str, Draw<'a>); 5] = [
            ("loops Vector", Self::loops),
            ("constants byte", Self::byte),
            ("constants copied", Self::copied),
            ("constants exchanged", Self::exchanged),
            ("sources exchanged Transfer", Self::sources),
        ];
        classes.extend(draws.map(|(what, draw)| (what.to_owned(), draw)));
        classes
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.random.below(of.len())].clone())
    }

    fn member(&mut self, class: &str) -> Option<Site> {
        let fields = self.fields;
        self.one(&fields.classes[class.split_once(' ').map_or(class, |(_, name)| name)])
    }

    /// Another site of the same class, of the same layer if one is found soon.
    fn sibling(&mut self, site: &Site, class: &str) -> Option<Site> {
        let layer = self.fields.layer(site.item);
        let near = self.random.chance(60);
        let mut last = None;
        for _ in 0..6 {
            let other = self.member(class)?;
            if other == *site || self.fields.value(&other) == self.fields.value(site) {
                continue;
            }
            if !near || self.fields.layer(other.item) == layer {
                return Some(other);
            }
            last = Some(other);
        }
        last
    }

    fn of_waits(&self, site: &Site) -> bool {
        site.pointer.starts_with("/waits") || site.pointer == "/unit"
    }

    /// One field takes a value from elsewhere in the program, or one close to its own.
    fn set(&mut self, class: &str) -> Option<(Edit, bool)> {
        let site = self.member(class)?;
        let with = self.replacement(&site, class)?;
        let waits = self.of_waits(&site);
        Some((Edit::Sets(vec![(site, with)]), waits))
    }

    fn replacement(&mut self, site: &Site, class: &str) -> Option<Replacement> {
        let fields = self.fields;
        match self.random.below(100) {
            0..55 => self.sibling(site, class).map(Replacement::From),
            55..70 => self.one(&fields.keys[site.key()]).map(Replacement::From),
            70..90 => self.step(site).map(Replacement::Value),
            _ => {
                let (own, item) = (fields.value(site), site.item);
                let others: Vec<Site> = fields
                    .classes
                    .values()
                    .flat_map(|sites| sites.binary_search_by(|other| other.item.cmp(&item)).ok().map(|at| &sites[at]))
                    .filter(|other| std::mem::discriminant(fields.value(other)) == std::mem::discriminant(own))
                    .cloned()
                    .collect();
                self.one(&others).map(Replacement::From)
            }
        }
    }

    /// A value close to a field's own.
    fn step(&mut self, site: &Site) -> Option<Value> {
        let word = self.program.machine.word() as i64;
        let fields = self.fields;
        match fields.value(site) {
            Value::Bool(own) => Some(Value::Bool(!own)),
            Value::Number(own) if own.is_f64() => {
                let own = own.as_f64()?;
                self.one(&[own * 2.0, own / 2.0, -own, own + 1.0, 0.0]).map(Value::from)
            }
            Value::Number(own) => {
                let own = own.as_i64()?;
                let near = [own + 1, own - 1, own + word, own - word, own.saturating_mul(2), own / 2, 0, -own];
                self.one(&near).map(Value::from)
            }
            Value::String(own) => {
                let own = own.clone();
                let words: &[&str] = match site.key() {
                    "unit" => &["dtl0", "dtl1", "me", "ewp", "pdp"],
                    "direction" => &["load", "store"],
                    "dtype" | "weight_dtype" => &["i8", "i16", "i32", "i64", "f16", "bf16", "f32"],
                    "space" | "local_space" => &["Cache", "EwpCache"],
                    "kind" => &["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "SumAbs", "Less", "Equal"],
                    _ => return Some(Value::String(own + "x")),
                };
                self.one(words).map(Value::from)
            }
            Value::Array(own) if !own.is_empty() => {
                let mut new = own.clone();
                let (a, b) = (self.random.below(new.len()), self.random.below(new.len()));
                match self.random.below(3) {
                    0 => new.swap(a, b),
                    1 => drop(new.remove(a)),
                    _ => new.insert(b, new[a].clone()),
                }
                Some(Value::Array(new))
            }
            Value::Object(own) if site.key() == "space" && !own.is_empty() => {
                let channel = self.random.below(2);
                Some(serde_json::json!({ "Ddr": channel }))
            }
            _ => None,
        }
    }

    /// Two instructions (or ports) hold each other's value.
    fn exchange(&mut self, class: &str) -> Option<(Edit, bool)> {
        let a = self.member(class)?;
        let b = self.sibling(&a, class)?;
        let waits = self.of_waits(&a);
        Some((Edit::Sets(vec![(a.clone(), Replacement::From(b.clone())), (b, Replacement::From(a))]), waits))
    }

    fn instruction(&mut self, class: &str) -> Option<usize> {
        let kinds = &self.kinds;
        let of = kinds.get(class.rsplit(' ').next()?)?.clone();
        self.one(&of)
    }

    /// The fields of an instruction's work.
    fn own_fields(&self, at: usize) -> Vec<Site> {
        let item = Item::Instruction(at);
        let Some(Value::Object(work)) = self.fields.item(item).get("work") else { return vec![] };
        let mut own = vec![];
        for (kind, fields) in work {
            let Value::Object(fields) = fields else { continue };
            own.extend(fields.keys().map(|name| Site { item, pointer: format!("/work/{kind}/{name}") }));
        }
        own
    }

    /// Several fields of an instruction as another one of its kind has them.
    fn mix(&mut self, class: &str) -> Option<(Edit, bool)> {
        let (a, b) = (self.instruction(class)?, self.instruction(class)?);
        let layer = |at: usize| self.program.instructions[at].layer;
        if a == b || (layer(a) != layer(b) && self.random.chance(50)) {
            return None;
        }
        let mut sets: Vec<(Site, Replacement)> = Vec::new();
        for site in self.own_fields(a) {
            let other = Site { item: Item::Instruction(b), pointer: site.pointer.clone() };
            if self.random.chance(40) && self.fields.value(&site) != self.fields.value(&other) {
                sets.push((site, Replacement::From(other)));
            }
        }
        (sets.len() > 1).then_some((Edit::Sets(sets), false))
    }

    fn numbers(&self, at: usize) -> Vec<Site> {
        let mut open = self.own_fields(at);
        let mut found = Vec::new();
        while let Some(site) = open.pop() {
            let below = |name: &dyn std::fmt::Display| Site { pointer: format!("{}/{name}", site.pointer), ..site };
            match self.fields.value(&site) {
                Value::Object(fields) => open.extend(fields.keys().map(|name| below(name))),
                Value::Array(values) => open.extend((0..values.len()).map(|n| below(&n))),
                Value::Number(number) if !number.is_f64() => found.push(site),
                _ => {}
            }
        }
        found.sort();
        found
    }

    /// Two numbers of an instruction change by the same amount, or by opposite ones.
    fn shift(&mut self, class: &str) -> Option<(Edit, bool)> {
        let at = self.instruction(class)?;
        let numbers = self.numbers(at);
        let (a, b) = (self.one(&numbers)?, self.one(&numbers)?);
        let (x, y) = (self.fields.value(&a).as_i64()?, self.fields.value(&b).as_i64()?);
        let word = self.program.machine.word() as i64;
        let delta = self.one(&[1, -1, 4, 8, -8, word, -word, x, y, y - x])?;
        let other = if self.random.chance(50) { delta } else { -delta };
        let set = |site, value: i64| (site, Replacement::Value(Value::from(value)));
        (a != b).then(|| (Edit::Sets(vec![set(a, x + delta), set(b, y + other)]), false))
    }

    /// The same field of two views of the same place changes in the same way.
    fn both(&mut self, class: &str) -> Option<(Edit, bool)> {
        let at = self.instruction(class)?;
        let named = self.numbers(at);
        let site = self.one(&named)?;
        // The view the number stands in, if it stands in one.
        let above = |pointer: &str| pointer.rsplit_once('/').map(|(parent, _)| parent.to_owned());
        let mut parent = above(&site.pointer)?;
        while !parent.is_empty() && !self.is_view(site.item, &parent) {
            parent = above(&parent)?;
        }
        let view = Site { item: site.item, pointer: parent };
        let address = self.fields.value(&view).get("address")?.as_u64()?;
        let others: Vec<Site> = self.views.get(&address)?.iter().filter(|other| **other != view).cloned().collect();
        let other = self.one(&others)?;
        let with = self.replacement(&site, &format!("set {}", self.class_of(&site)?))?;
        let twin = Site { pointer: other.pointer + &site.pointer[view.pointer.len()..], ..other };
        Some((Edit::Sets(vec![(site, with.clone()), (twin, with)]), false))
    }

    fn is_view(&self, item: Item, pointer: &str) -> bool {
        let site = Site { item, pointer: pointer.to_owned() };
        self.fields.value(&site).get("pixel_bytes").is_some()
    }

    fn class_of(&self, site: &Site) -> Option<String> {
        let found = self.fields.classes.iter().find(|(_, sites)| sites.binary_search(site).is_ok());
        found.map(|(name, _)| name.clone())
    }

    /// All who name a place, or one other who does, name another place together.
    fn relocate(&mut self, class: &str) -> Option<(Edit, bool)> {
        let at = self.instruction(class)?;
        let numbers = self.numbers(at);
        let addresses: Vec<Site> = numbers.into_iter().filter(|site| ADDRESSES.contains(&site.key())).collect();
        let site = self.one(&addresses)?;
        let address = self.fields.value(&site).as_u64()?;
        let mut all = self.places.get(&address)?.clone();
        if self.random.chance(50) {
            let other = self.one(&all)?;
            all = vec![site.clone(), other];
        }
        let keys = self.fields.keys.get(site.key())?;
        let with = if self.random.chance(70) {
            Replacement::From(self.one(keys)?)
        } else {
            Replacement::Value(Value::from(address + self.program.machine.word() as u64))
        };
        Some((Edit::Sets(all.into_iter().map(|site| (site, with.clone())).collect()), false))
    }

    /// The same field of two instructions changes by the same amount.
    fn parallel(&mut self, class: &str) -> Option<(Edit, bool)> {
        let at = self.instruction(class)?;
        let numbers = self.numbers(at);
        let a = self.one(&numbers)?;
        let of = format!("set {}", self.class_of(&a)?);
        let b = self.member(&of)?;
        let (x, y) = (self.fields.value(&a).as_i64()?, self.fields.value(&b).as_i64()?);
        let delta = self.one(&[1, -1, 8, -8, self.program.machine.word() as i64, y - x])?;
        let other = if self.random.chance(50) { delta } else { -delta };
        let set = |site, value: i64| (site, Replacement::Value(Value::from(value)));
        (a != b).then(|| (Edit::Sets(vec![set(a, x + delta), set(b, y + other)]), false))
    }

    /// A loop of a move takes every other element, or every third, or two loops run in each other's order on one side.
    fn loops(&mut self, class: &str) -> Option<(Edit, bool)> {
        let at = self.instruction(class)?;
        let Work::Vector(v) = &self.program.instructions[at].work else { return None };
        let Descriptor::Vector(VectorOp::Move { dims, .. }) = self.program.descriptors.get(v.descriptor.index())?
        else {
            return None;
        };
        let (one, other) = (self.random.below(dims.len()), self.random.below(dims.len()));
        let (factor, twice) = (self.random.range(2, 3), self.random.chance(70));
        let site = |field: &str, axis: usize| Site {
            item: Item::Descriptor(v.descriptor.index()),
            pointer: format!("/Vector/Move/{field}/{axis}"),
        };
        if self.random.chance(30) {
            let (a, b) = (site("output_strides", one), site("output_strides", other));
            let exchanged = vec![(a.clone(), Replacement::From(b.clone())), (b, Replacement::From(a))];
            return (one != other).then_some((Edit::Sets(exchanged), false));
        }
        let extent = (i64::from(dims[one]) + factor - 1) / factor;
        let mut sets = vec![(site("dims", one), Replacement::Value(extent.into()))];
        for field in ["output_strides", "input_strides"].into_iter().take(if twice { 2 } else { 1 }) {
            let stride = site(field, one);
            let wider = self.fields.value(&stride).as_i64()? * factor;
            sets.push((stride, Replacement::Value(wider.into())));
        }
        Some((Edit::Sets(sets), false))
    }

    fn drop(&mut self, class: &str) -> Option<(Edit, bool)> {
        Some((Edit::Drop(self.instruction(class)?), false))
    }

    fn nearby(&mut self, at: usize) -> usize {
        let count = self.program.instructions.len();
        if self.random.chance(30) {
            return self.random.below(count);
        }
        let reach = self.random.range(-12, 12);
        (at as i64 + reach).clamp(0, count as i64 - 1) as usize
    }

    fn duplicate(&mut self, class: &str) -> Option<(Edit, bool)> {
        let at = self.instruction(class)?;
        let to = self.nearby(at);
        Some((Edit::Duplicate(at, to), false))
    }

    fn swap(&mut self, class: &str) -> Option<(Edit, bool)> {
        let at = self.instruction(class)?;
        let other = if self.random.chance(50) { self.instruction(class)? } else { self.nearby(at) };
        (at != other).then_some((Edit::Swap(at.min(other), at.max(other)), false))
    }

    fn shove(&mut self, class: &str) -> Option<(Edit, bool)> {
        let at = self.instruction(class)?;
        let to = self.nearby(at);
        (at != to).then_some((Edit::Move(at, to), false))
    }

    fn stretch(&mut self) -> Option<(usize, usize, usize)> {
        let loaded = std::mem::take(&mut self.loaded);
        let one = self.one(&loaded);
        self.loaded = loaded;
        one
    }

    fn byte(&mut self, _: &str) -> Option<(Edit, bool)> {
        let (space, from, bytes) = self.stretch()?;
        let at = from + self.random.below(bytes);
        let own = self.program.constants[space][at];
        let new = self.one(&[own.wrapping_add(1), own ^ 0x80, 0, own ^ 1])?;
        Some((Edit::Bytes(vec![(space, at, vec![new])]), false))
    }

    /// Two stretches of constants of the same length; often parts of those that are loaded.
    fn stretches(&mut self) -> Option<([usize; 2], [usize; 2], usize)> {
        let (a, b) = (self.stretch()?, self.stretch()?);
        let most = a.2.min(b.2);
        let length = self.one(&[most, most, 1, 2, 4, 8, 16])?.min(most);
        let mut place = |whole: usize| if length == most { 0 } else { self.random.below(whole / length) * length };
        Some(([a.0, a.1 + place(a.2)], [b.0, b.1 + place(b.2)], length))
    }

    fn held(&self, [space, at]: [usize; 2], length: usize) -> Option<Vec<u8>> {
        self.program.constants[space].get(at..at + length).map(<[u8]>::to_vec)
    }

    fn copied(&mut self, _: &str) -> Option<(Edit, bool)> {
        let (from, to, length) = self.stretches()?;
        Some((Edit::Bytes(vec![(to[0], to[1], self.held(from, length)?)]), false))
    }

    fn exchanged(&mut self, _: &str) -> Option<(Edit, bool)> {
        let (a, b, length) = self.stretches()?;
        let apart = a[0] != b[0] || a[1].abs_diff(b[1]) >= length;
        let edit = Edit::Bytes(vec![(a[0], a[1], self.held(b, length)?), (b[0], b[1], self.held(a, length)?)]);
        apart.then_some((edit, false))
    }

    /// Two transfers take each other's place in DDR, in the same channel or the other.
    fn sources(&mut self, class: &str) -> Option<(Edit, bool)> {
        let (a, b) = (self.instruction(class)?, self.instruction(class)?);
        let sites = |at, name| Site { item: Item::Instruction(at), pointer: format!("/work/Transfer/{name}") };
        let mut sets = Vec::new();
        for name in ["ddr_address", "ddr_space", "bytes", "counts", "ddr_strides"] {
            sets.push((sites(a, name), Replacement::From(sites(b, name))));
            sets.push((sites(b, name), Replacement::From(sites(a, name))));
        }
        (a != b).then_some((Edit::Sets(sets), false))
    }
}
