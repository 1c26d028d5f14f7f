//! Checks of an instruction before it runs: its descriptor is of the right kind, its sizes fit each other and the
//! machine, it stays inside the memories, and its views hold the rows it touches.

use tpuflow_ir::access::{self, Accesses};
use tpuflow_ir::isa::{Codes, Direction, Matrix, PoolKind, TableShape, Transfer, VectorOp, Work};
use tpuflow_ir::{DType, Descriptor, Instruction, Program, Space, Unit, View, Window, state};

use crate::error::SimError;
use crate::hazard::{Hazard, Rule};

/// A memory place in messages.
pub(crate) fn place(space: Space, address: u64, word: usize) -> String {
    match space {
        Space::Cache => format!("shared cache word {} (byte {address})", address / word as u64),
        Space::EwpCache => format!("EWP cache byte {address}"),
        Space::Ddr(n) => format!("DDR {n} byte {address}"),
    }
}

/// A broken rule of instruction `position`.
pub(crate) fn hazard(program: &Program, position: usize, at: (Space, u64), rule: Rule) -> SimError {
    let instruction = &program.instructions[position];
    SimError::Hazard(Box::new(Hazard {
        instruction: position as u32,
        unit: instruction.unit,
        layer: program.layers.get(instruction.layer.index()).map_or_else(|| "?".to_owned(), |l| l.name.clone()),
        place: place(at.0, at.1, program.machine.word()),
        rule,
    }))
}

/// Bytes of a memory.
pub(crate) fn size(program: &Program, space: Space) -> u64 {
    match space {
        Space::Cache => program.machine.cache_bytes(),
        Space::EwpCache => program.machine.ewp_cache_bytes(),
        Space::Ddr(n) => program.ddr_bytes.get(usize::from(n)).copied().unwrap_or(0),
    }
}

/// Everything the instruction at `position` touches, once it is known to be sound.
///
/// # Errors
/// [`SimError::Hazard`] with the rule it breaks.
pub(crate) fn accesses(program: &Program, position: usize) -> Result<Accesses, SimError> {
    let instruction = &program.instructions[position];
    if !program.states.is_empty() {
        let regions: Vec<_> = program.state_regions().flatten().collect();
        if state::is_misused(&regions, &instruction.work, program.machine.word()) {
            return Err(hazard(program, position, (Space::Ddr(0), 0), Rule::State));
        }
    }
    check_shape(program, instruction).map_err(|(at, rule)| hazard(program, position, at, rule))?;
    let found = access::accesses(instruction, &program.descriptors, &program.machine);
    for stretch in found.reads.iter().chain(&found.writes) {
        let limit = size(program, stretch.space);
        if stretch.end > limit || stretch.start >= stretch.end {
            return Err(hazard(program, position, (stretch.space, limit.max(stretch.start)), Rule::OutOfRange));
        }
    }
    Ok(found)
}

/// The earlier instruction that `position` clashes with when of each unit only `finished` have finished, as an error.
pub(crate) fn conflicting_access(program: &Program, position: usize, finished: &[u32; Unit::COUNT]) -> SimError {
    let touched = |n: usize| access::accesses(&program.instructions[n], &program.descriptors, &program.machine);
    let late = touched(position);
    let unit = program.instructions[position].unit;
    let mut seen = [0; Unit::COUNT];
    for other in 0..position {
        let other_unit = program.instructions[other].unit;
        seen[other_unit.index()] += 1;
        if seen[other_unit.index()] <= finished[other_unit.index()] {
            continue;
        }
        let early = touched(other);
        let mut pairs = vec![(&late.reads[..], &early.writes[..], Rule::ReadBeforeWrite(other as u32))];
        if unit != other_unit {
            pairs.push((&late.writes[..], &early.reads[..], Rule::WriteBeforeRead(other as u32)));
            pairs.push((&late.writes[..], &early.writes[..], Rule::WriteBeforeWrite(other as u32)));
        }
        for (ours, theirs, rule) in pairs {
            let common = ours.iter().flat_map(|a| theirs.iter().filter(|b| a.overlaps(b)).map(move |b| (a, b)));
            if let Some((a, b)) = common.min_by_key(|(a, b)| a.start.max(b.start)) {
                return hazard(program, position, (a.space, a.start.max(b.start)), rule);
            }
        }
    }
    let at = late.reads.first().or(late.writes.first()).map_or((Space::Cache, 0), |s| (s.space, s.start));
    hazard(program, position, at, Rule::Shape("clashes with an unfinished instruction".to_owned()))
}

type BrokenRule = ((Space, u64), Rule);

/// `Err` with place and rule unless the condition holds; the rule is made only then.
macro_rules! require {
    ($condition:expr, $at:expr, $rule:expr $(,)?) => {
        if $condition { Ok(()) } else { Err::<(), BrokenRule>(($at, $rule)) }
    };
}

fn check_transfer(program: &Program, t: &Transfer) -> Result<(), BrokenRule> {
    let nowhere = (Space::Cache, 0);
    let sizes = t.bytes > 0 && t.counts[0] > 0 && t.counts[1] > 0;
    require!(sizes, nowhere, shape("moves nothing"))?;
    let local = matches!(t.local_space, Space::Cache | Space::EwpCache);
    require!(local, nowhere, Rule::Placement("moves from DDR to DDR"))?;
    // Addresses only rise from the first on.
    let (own, rank) = (program.machine.own_space(t.ddr_space), program.machine.rank(t.ddr_space));
    let brings = t.direction == Direction::Load && t.local_space == Space::Cache;
    let is_one = |rank| brings && program.devices() > 1 && rank < program.devices();
    require!(rank.is_none_or(is_one), nowhere, Rule::Rank)?;
    let constants = program.constants.get(usize::from(own)).map_or(0, |image| image.len() as u64);
    let kept = t.direction == Direction::Load || t.ddr_address >= constants;
    require!(kept, (Space::Ddr(t.ddr_space), t.ddr_address), Rule::Constants)
}

fn check_shape(program: &Program, instruction: &Instruction) -> Result<(), BrokenRule> {
    let nowhere = (Space::Cache, 0);
    let work = instruction.work.kind(&program.descriptors);
    require!(instruction.unit.executes(work, &program.machine), nowhere, Rule::Unit)?;
    let kind = |id: tpuflow_ir::DescriptorId| program.descriptors.get(id.index());
    match &instruction.work {
        Work::Transfer(t) => check_transfer(program, t),
        Work::Expand(e) => {
            let some = e.rows > 0 && e.row_bytes > 0 && e.block > 0;
            require!(some, nowhere, shape("expands nothing"))?;
            let aligned = e.local_address.is_multiple_of(program.machine.word() as u64);
            require!(aligned, (Space::Cache, e.local_address), Rule::Placement("expands to the middle of a word"))
        }
        Work::Lookup(l) => {
            view(program, &l.table, Some(l.table.space))?;
            require!(matches!(l.table.space, Space::Ddr(_)), nowhere, Rule::Placement("looks up outside DDR"))?;
            require!(l.table.rows == 1 && l.table.stored_rows == 1, nowhere, shape("has a table of several rows"))?;
            indices(program, &instruction.work, &l.output, l.table.payload() as u64)
        }
        Work::PackedLookup(l) => {
            let some = l.rows > 0 && l.row_bytes > 0 && l.block > 0 && l.size > 0 && l.spaces > 0;
            require!(some, nowhere, shape("has a table without entries"))?;
            let held = l.columns.is_none_or(|columns| (1..=l.row_bytes).contains(&columns));
            require!(held, nowhere, shape("has entries of fewer columns than indices number"))?;
            let there = usize::from(l.ddr_space) + usize::from(l.spaces) <= program.machine.ddr_spaces();
            require!(there, nowhere, Rule::Placement("looks up in address spaces there are not"))?;
            indices(program, &instruction.work, &l.output, l.elements())
        }
        Work::Matrix(m) => {
            let Some(Descriptor::Matrix(d)) = kind(m.descriptor) else { return Err((nowhere, Rule::Descriptor)) };
            matrix(program, m, d)
        }
        Work::Pool(p) => {
            let Some(Descriptor::Pool(d)) = kind(p.descriptor) else { return Err((nowhere, Rule::Descriptor)) };
            view(program, &p.input, Some(Space::Cache))?;
            view(program, &p.output, Some(Space::Cache))?;
            let fits = p.input.channels == p.output.channels && p.rows > 0;
            require!(fits, nowhere, shape("has no rows, or operand and result of different channels"))?;
            let (from, to) = (p.input.dtype, p.output.dtype);
            let types = match &d.kind {
                PoolKind::Max => (from.is_code() && to.is_code()) || (from.is_float() && from == to),
                PoolKind::Average { .. } => from.is_code() && to.is_code(),
                PoolKind::Depthwise { weight_dtype, .. } => from.is_code() && to.is_code() && weight_dtype.is_code(),
                PoolKind::FloatAverage { .. } => from.is_float() && to.is_float(),
                PoolKind::FloatDepthwise { weight_dtype, .. } => {
                    from.is_float() && to.is_float() && *weight_dtype == from
                }
            };
            require!(types, nowhere, shape("computes on elements of the wrong types"))?;
            match &d.kind {
                PoolKind::Average { codes, .. } => check_clamp(codes, None, to)?,
                PoolKind::Depthwise { codes, table, .. } => check_clamp(codes, table.as_ref(), to)?,
                _ => {}
            }
            check_window(&d.window)?;
            check_rows_present(&p.output, p.first_row, p.first_row + (p.rows - 1))?;
            window_rows(&p.input, &p.output, &d.window, p.first_row, p.first_row + (p.rows - 1))
        }
        Work::Vector(v) => {
            let Some(Descriptor::Vector(op)) = kind(v.descriptor) else { return Err((nowhere, Rule::Descriptor)) };
            crate::values::form::check(v, op).map_err(|what| (nowhere, shape(what)))?;
            for input in v.inputs.iter().chain([&v.output]) {
                view(program, input, Some(Space::Cache))?;
            }
            vector_rows(v, op)
        }
    }
}

fn shape(what: &str) -> Rule {
    Rule::Shape(what.to_owned())
}

/// A view that makes sense: word-aligned, pixels that hold their channels, rows that fill whole images.
fn view(program: &Program, v: &View, space: Option<Space>) -> Result<(), BrokenRule> {
    let at = (v.space, v.address);
    let word = program.machine.cache.word_bytes;
    require!(
        space.is_none_or(|s| s == v.space),
        at,
        Rule::Placement("has an operand in a memory its unit has no port to"),
    )?;
    let aligned = v.address.is_multiple_of(word.into());
    require!(aligned, at, Rule::Placement("has a view that does not start on a word"))?;
    let pixel = if v.pixel_bytes < word { v.pixel_bytes.is_power_of_two() } else { v.pixel_bytes.is_multiple_of(word) };
    let payload = u64::from(v.channel_offset) + u64::from(v.channels) * v.dtype.bytes() as u64;
    let sizes = v.rows > 0 && v.width > 0 && v.channels > 0 && v.height > 0 && v.stored_rows > 0;
    let images = sizes && v.rows.is_multiple_of(v.height);
    require!(pixel && images && payload <= u64::from(v.pixel_bytes), at, shape("has a view that contradicts itself"))?;
    let end = v.address.checked_add(v.bytes(word as usize));
    require!(end.is_some_and(|end| end <= size(program, v.space)), at, Rule::OutOfRange)?;
    // Reductions and moves read whatever is stored.
    let stored = u64::from(v.first_row) + u64::from(v.stored_rows);
    require!(stored <= v.rows.into(), at, Rule::StoredRows { end: stored, rows: v.rows })
}

fn check_rows_present(v: &View, first: u32, last: u32) -> Result<(), BrokenRule> {
    let missing = if last >= v.rows || !v.holds(last) { Some(last) } else { (!v.holds(first)).then_some(first) };
    missing.map_or(Ok(()), |row| Err(((v.space, v.address), Rule::RowNotHeld(row))))
}

fn pixel_rows(v: &View, first: u32, count: u32) -> Result<(), BrokenRule> {
    check_rows_present(v, first / v.width, (first + (count - 1)) / v.width)
}

/// A list of indices, each of which has a pixel of `output`, as large as what it names.
fn indices(program: &Program, work: &Work, output: &View, bytes: u64) -> Result<(), BrokenRule> {
    let nowhere = (Space::Cache, 0);
    let Some(list) = work.indices() else { return Ok(()) };
    require!(list.count > 0, nowhere, shape("looks nothing up"))?;
    view(program, &list.view, Some(Space::Cache))?;
    view(program, output, Some(Space::Cache))?;
    let whole = u64::from(list.first) + u64::from(list.count);
    let pixels = |v: &View| u64::from(v.rows) * u64::from(v.width);
    let there = pixels(&list.view) * u64::from(list.view.channels);
    require!(whole <= pixels(output) && whole <= there, nowhere, shape("looks up beyond its indices"))?;
    require!(list.view.dtype == DType::I32, nowhere, shape("looks up indices that are not int32"))?;
    require!(bytes == output.payload() as u64, nowhere, shape("looks up rows of another size"))?;
    check_rows_present(&list.view, 0, list.view.rows - 1)?;
    pixel_rows(output, list.first, list.count)
}

/// Results are clamped to codes of their type; those that a table follows, to what it is indexed by, int16.
fn check_clamp(codes: &Codes, table: Option<&TableShape>, result: DType) -> Result<(), BrokenRule> {
    let bits = if table.is_some() { DType::I16.bytes() * 8 } else { result.bytes() * 8 };
    let most = (1i64 << (bits - 1)) - 1;
    let (lo, hi) = (i64::from(codes.lo), i64::from(codes.hi));
    let sound = -most - 1 <= lo && lo <= hi && hi <= most;
    require!(sound, (Space::Cache, 0), Rule::Shape(format!("clamps to {lo}..={hi}, which no {bits} bits hold")))
}

fn check_window(window: &Window) -> Result<(), BrokenRule> {
    let positive = window.kernel.iter().chain(&window.stride).chain(&window.dilation).all(|&n| n > 0);
    require!(positive, (Space::Cache, 0), shape("has an empty window"))
}

fn window_rows(input: &View, output: &View, window: &Window, first: u32, last: u32) -> Result<(), BrokenRule> {
    let (height, images) = (output.height, input.rows / input.height);
    require!(output.rows / height <= images, (input.space, input.address), shape("has more images than its operand"))?;
    let top = |row: u32| i64::from(row % height) * i64::from(window.stride[0]) - i64::from(window.pads[0]);
    for image in first / height..=last / height {
        let (from, to) = (first.max(image * height), last.min((image + 1) * height - 1));
        // Of each row the first and the last line under its window.
        let lines = (from..=to).filter_map(|row| {
            let taps = window.inside(0, top(row), input.height);
            let line = |tap: u32| (top(row) + i64::from(tap) * i64::from(window.dilation[0])) as u32;
            (!taps.is_empty()).then(|| (line(taps.start), line(taps.end - 1)))
        });
        if let Some((low, high)) = lines.reduce(|(low, high), (first, last)| (low.min(first), high.max(last))) {
            let base = image * input.height;
            check_rows_present(input, base + low, base + high)?;
        }
    }
    Ok(())
}

/// Whether a product may leave its sums as they are: one of matrices, with nothing behind it.
fn is_partial_product(m: &Matrix, d: &tpuflow_ir::isa::MatrixDescriptor) -> bool {
    let is_one_group = u64::from(m.first_column) + u64::from(m.columns) <= d.group_out.into();
    crate::values::is_plain(&d.window) && is_one_group && d.table.is_none() && d.first_shift.is_none()
}

fn matrix(program: &Program, m: &Matrix, d: &tpuflow_ir::isa::MatrixDescriptor) -> Result<(), BrokenRule> {
    let machine = &program.machine;
    view(program, &m.input, Some(Space::Cache))?;
    view(program, &m.output, Some(Space::Cache))?;
    let at = (m.output.space, m.output.address);
    check_window(&d.window)?;
    let types = match &d.float {
        Some(_) => m.input.dtype.is_float() && m.output.dtype.is_float() && d.weight_dtype == m.input.dtype,
        None => {
            let is_sums = m.output.dtype == DType::I64 && is_partial_product(m, d);
            m.input.dtype.is_code() && (m.output.dtype.is_code() || is_sums) && d.weight_dtype.is_code()
        }
    };
    require!(types, at, shape("computes on elements of the wrong types"))?;
    let zero_point = d.codes.zero_point;
    let is_code = i16::try_from(zero_point).is_ok();
    require!(is_code, at, Rule::Shape(format!("has zero point {zero_point}, which is no int16 code")))?;
    if d.float.is_none() && m.output.dtype != DType::I64 {
        check_clamp(&d.codes, d.table.as_ref(), m.output.dtype)?;
    }
    let wide = tpuflow_ir::timing::has_wide_sums(m.input.dtype, d.weight_dtype);
    let limit = machine.matrix_rows(wide);
    require!(m.pixels > 0 && m.pixels as usize <= limit, at, Rule::Shape(format!("has {} rows of {limit}", m.pixels)))?;
    let columns = m.columns > 0 && m.columns <= machine.array.columns;
    require!(columns, at, Rule::Shape(format!("has {} columns of {}", m.columns, machine.array.columns)))?;
    require!(m.output_channel + m.columns <= m.output.channels, at, shape("writes beyond its result's channels"))?;
    require!(d.group_in > 0 && d.group_out > 0, at, shape("has empty groups"))?;
    let depthwise = (d.group_in, d.group_out) == (1, 1) && m.input.channels > 1;
    require!(!depthwise, at, shape("is a depthwise convolution, which the pooling unit computes"))?;
    let last_group = (m.first_column + m.columns - 1) / d.group_out;
    require!((last_group + 1) * d.group_in <= m.input.channels, at, shape("reads beyond its operand's channels"))?;
    let planes = m.weights.plane_bytes == 0 || d.weight_dtype == DType::I16;
    require!(planes, (Space::Cache, m.weights.address), Rule::Planes(d.weight_dtype))?;
    let blocks = tpuflow_ir::timing::blocks(d, &m.input, m.first_column, m.columns, machine);
    let lanes = blocks.iter().map(|b| b.taps * b.channels).max().unwrap_or(0);
    require!(lanes <= machine.array.rows, at, shape("has a K block of more rows than the array"))?;
    pixel_rows(&m.output, m.first_pixel, m.pixels)?;
    if crate::values::is_plain(&d.window) {
        pixel_rows(&m.input, m.first_pixel, m.pixels)
    } else {
        let last = m.first_pixel + (m.pixels - 1);
        window_rows(&m.input, &m.output, &d.window, m.first_pixel / m.output.width, last / m.output.width)
    }
}

fn vector_rows(v: &tpuflow_ir::isa::Vector, op: &VectorOp) -> Result<(), BrokenRule> {
    let whole = |view: &View| check_rows_present(view, 0, view.rows - 1);
    match op {
        // Reductions take everything.
        _ if op.reduces() => {
            let all = (v.first_row, v.rows) == (0, v.output.rows);
            require!(all, (v.output.space, v.output.address), shape("reduces to some rows of its result"))?;
            whole(&v.output)?;
            v.inputs.iter().try_for_each(whole)
        }
        VectorOp::Move { dims, input_strides, input_offset, output_strides, output_offset, .. } => {
            elements(&v.inputs[0], loop_extent(v, dims, input_strides, *input_offset))?;
            elements(&v.output, loop_extent(v, dims, output_strides, *output_offset))
        }
        VectorOp::Gather { extent, inner, indices, .. } => {
            let (inner, picks) = (i64::from(*inner), indices.len() as u32);
            let first = i64::from(v.first_row) * inner;
            elements(&v.output, [first, first + i64::from(v.rows) * inner - 1])?;
            elements(&v.inputs[0], gather_extent(v, *extent, inner, indices, picks))
        }
        _ => check_rows_present(&v.output, v.first_row, v.first_row + (v.rows - 1)),
    }
}

/// First and last element that some rounds of a loop touch.
fn loop_extent(v: &tpuflow_ir::isa::Vector, dims: &[u32], strides: &[i64], offset: i64) -> [i64; 2] {
    let rounds = |axis: usize| match axis {
        0 => [v.first_row, v.first_row + (v.rows - 1)],
        _ => [0, dims[axis] - 1],
    };
    (0..dims.len()).fold([offset; 2], |[low, high], axis| {
        let [a, b] = rounds(axis).map(|round| strides[axis].saturating_mul(round.into()));
        [low.saturating_add(a.min(b)), high.saturating_add(a.max(b))]
    })
}

/// First and last element of the operand that some rounds of a gather touch.
fn gather_extent(v: &tpuflow_ir::isa::Vector, extent: u32, inner: i64, indices: &[u32], picks: u32) -> [i64; 2] {
    let last = v.first_row + (v.rows - 1);
    let (from, to) = (v.first_row / picks, last / picks);
    // Rounds of one position before the axis, of which only the first and the last may be in parts.
    let of = |outer: u32| {
        let (low, high) = if outer == from { (v.first_row % picks, picks - 1) } else { (0, picks - 1) };
        let high = if outer == to { last % picks } else { high };
        &indices[low as usize..=high as usize]
    };
    let at = |outer: u32, index: u32| (i64::from(outer) * i64::from(extent) + i64::from(index)) * inner;
    let lowest = of(from).iter().min().copied().unwrap_or(0);
    let highest = of(to).iter().max().copied().unwrap_or(0);
    [at(from, lowest), at(to, highest) + inner - 1]
}

/// The first and the last element that are touched, hence all, lie in rows the view holds.
fn elements(v: &View, [first, last]: [i64; 2]) -> Result<(), BrokenRule> {
    let row = i64::from(v.width) * i64::from(v.channels);
    let elements = row.saturating_mul(v.rows.into());
    for element in [first, last] {
        let inside = (0..elements).contains(&element);
        require!(inside, (v.space, v.address), Rule::Element { element, elements })?;
        check_rows_present(v, (element / row) as u32, (element / row) as u32)?;
    }
    Ok(())
}
