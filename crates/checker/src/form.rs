//! Whether an instruction makes sense by itself: views that do not contradict themselves, in memories their unit has a port to,
//! and loops that are not empty. Only what passes is followed further.

use tpuflow_ir::isa::{Descriptor, PoolKind, VectorOp, Work};
use tpuflow_ir::{DType, Instruction, Port, Program, Space, View, Window};

use crate::walk::Fault;

/// Checks one instruction.
pub(crate) fn instruction(program: &Program, instruction: &Instruction) -> Result<(), Fault> {
    let descriptor = |id: tpuflow_ir::DescriptorId| program.descriptors.get(id.index());
    let cached = |v: &View| view(program, v, v.space == Space::Cache);
    match &instruction.work {
        Work::Transfer(t) => {
            let moves = t.bytes > 0 && t.counts[0] > 0 && t.counts[1] > 0;
            require(moves, "range", "a transfer that moves nothing")?;
            require(!matches!(t.local_space, Space::Ddr(_)), "descriptor", "a transfer's local side is a cache")?;
            // Addresses beyond every memory must not wrap around to good ones.
            let reach = |address: u64, strides: [u64; 2]| {
                let along = |axis: usize| strides[axis].checked_mul(u64::from(t.counts[axis] - 1));
                address.checked_add(along(0)?)?.checked_add(along(1)?)?.checked_add(u64::from(t.bytes))
            };
            let ends = reach(t.ddr_address, t.ddr_strides).and(reach(t.local_address, t.local_strides));
            require(ends.is_some(), "range", "a transfer beyond all memories")
        }
        Work::Lookup(l) => {
            view(program, &l.table, matches!(l.table.space, Space::Ddr(_)))?;
            cached(&l.indices)?;
            cached(&l.output)?;
            let end = u64::from(l.first) + u64::from(l.count);
            let pixels = |v: &View| u64::from(v.rows) * u64::from(v.width);
            let room = pixels(&l.output).min(pixels(&l.indices) * u64::from(l.indices.channels));
            require(l.count > 0 && end <= room, "range", "a lookup of nothing, or beyond its indices")?;
            let rows = l.table.rows == 1 && l.table.payload() == l.output.payload();
            require(rows && l.indices.dtype == DType::I32, "descriptor", "a lookup of other rows than its result's")
        }
        Work::Matrix(m) => {
            cached(&m.input)?;
            cached(&m.output)?;
            let Some(Descriptor::Matrix(d)) = descriptor(m.descriptor) else {
                return Err(("descriptor", "not a matrix descriptor".to_owned()));
            };
            window(&d.window)?;
            require(d.group_in > 0 && d.group_out > 0, "descriptor", "empty groups")?;
            let types = [m.input.dtype, m.output.dtype, d.weight_dtype];
            let fits = match &d.float {
                Some(_) => m.input.dtype == d.weight_dtype && types.into_iter().all(DType::is_float),
                None => types.into_iter().all(DType::is_code),
            };
            require(fits, "descriptor", "a product of elements of the wrong types")?;
            let ends = m.first_pixel.checked_add(m.pixels).and(m.first_column.checked_add(m.columns));
            let ends = ends.and(m.output_channel.checked_add(m.columns));
            let ends = ends.and(m.output.origin[1].checked_add(m.output_channel));
            require(ends.is_some() && m.pixels > 0 && m.columns > 0, "range", "an empty tile, or one without an end")
        }
        Work::Pool(p) => {
            cached(&p.input)?;
            cached(&p.output)?;
            let Some(Descriptor::Pool(d)) = descriptor(p.descriptor) else {
                return Err(("descriptor", "not a pool descriptor".to_owned()));
            };
            window(&d.window)?;
            let types = [p.input.dtype, p.output.dtype];
            let codes = types.into_iter().all(DType::is_code);
            let floats = types.into_iter().all(DType::is_float);
            let fits = match &d.kind {
                PoolKind::Max => p.input.dtype == p.output.dtype && (codes || floats),
                PoolKind::Average { .. } => codes,
                PoolKind::Depthwise { weight_dtype, .. } => codes && weight_dtype.is_code(),
                PoolKind::FloatAverage { .. } => floats,
                PoolKind::FloatDepthwise { weight_dtype, .. } => floats && *weight_dtype == p.input.dtype,
            };
            require(fits, "descriptor", "a pool of elements of the wrong types")?;
            rows(p.first_row, p.rows, p.output.rows.into())
        }
        Work::Vector(v) => {
            v.inputs.iter().chain([&v.output]).try_for_each(cached)?;
            let Some(Descriptor::Vector(op)) = descriptor(v.descriptor) else {
                return Err(("descriptor", "not a vector descriptor".to_owned()));
            };
            match op {
                VectorOp::Move { dims, input_strides, output_strides, .. } => {
                    let even = dims.len() == input_strides.len() && dims.len() == output_strides.len();
                    let loops = even && !dims.is_empty() && dims.iter().all(|&extent| extent > 0);
                    require(loops && v.inputs.len() == 1, "descriptor", "a move with uneven loops")?;
                    rows(v.first_row, v.rows, dims[0].into())
                }
                VectorOp::Gather { outer, extent, inner, indices } => {
                    let loops = *outer > 0 && *inner > 0 && indices.iter().all(|index| index < extent);
                    require(loops && v.inputs.len() == 1, "descriptor", "a gather beyond its axis")?;
                    rows(v.first_row, v.rows, u64::from(*outer) * indices.len() as u64)
                }
                _ => rows(v.first_row, v.rows, v.output.rows.into()),
            }
        }
    }
}

/// Checks an input or output: a whole tensor in DDR.
pub(crate) fn port(program: &Program, port: &Port) -> Result<(), Fault> {
    let placed = &port.view;
    let whole = View::whole(&port.shape, port.dtype, program.machine.word(), placed.space, placed.address);
    view(program, placed, matches!(placed.space, Space::Ddr(_)))?;
    let same = *placed == View { origin: placed.origin, ..whole };
    require(same, "range", &format!("port \"{}\" does not lie as its shape says", port.name))
}

/// A view on a word, of whole images, whose pixels hold their channels.
fn view(program: &Program, v: &View, has_port: bool) -> Result<(), Fault> {
    require(has_port, "descriptor", "an operand in a memory its unit has no port to")?;
    let (machine, word) = (&program.machine, program.machine.cache.word_bytes);
    let pixel = if v.pixel_bytes < word { v.pixel_bytes.is_power_of_two() } else { v.pixel_bytes.is_multiple_of(word) };
    let payload = u64::from(v.channel_offset) + u64::from(v.channels) * v.dtype.bytes() as u64;
    let sizes = [v.rows, v.height, v.width, v.channels, v.stored_rows].iter().all(|&size| size > 0);
    let sound = sizes
        && v.rows.is_multiple_of(v.height)
        && pixel
        && payload <= u64::from(v.pixel_bytes)
        && v.address.is_multiple_of(word.into());
    require(sound, "range", "a view that contradicts itself")?;
    let end =
        v.row_bytes(word as usize).checked_mul(v.stored_rows.into()).and_then(|bytes| v.address.checked_add(bytes));
    let limit = match v.space {
        Space::Cache => machine.cache_bytes(),
        Space::EwpCache => machine.ewp_cache_bytes(),
        Space::Ddr(space) => program.ddr_bytes.get(usize::from(space)).copied().unwrap_or(0),
    };
    require(end.is_some_and(|end| end <= limit), "range", "a view that leaves its memory")?;
    // Whoever reads whatever is stored would read them.
    let stored = v.first_row.checked_add(v.stored_rows).is_some_and(|end| end <= v.rows);
    require(stored, "range", "a view that stores rows beyond the last")
}

fn window(window: &Window) -> Result<(), Fault> {
    let positive = window.kernel.iter().chain(&window.stride).chain(&window.dilation).all(|&n| n > 0);
    require(positive, "descriptor", "an empty window")
}

/// Some of `limit` rows, at least one.
fn rows(first: u32, count: u32, limit: u64) -> Result<(), Fault> {
    require(count > 0 && u64::from(first) + u64::from(count) <= limit, "range", "no rows, or rows beyond the last")
}

fn require(condition: bool, rule: &'static str, what: &str) -> Result<(), Fault> {
    if condition { Ok(()) } else { Err((rule, what.to_owned())) }
}
