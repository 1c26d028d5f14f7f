//! Whether an instruction makes sense by itself: views that do not contradict themselves, in memories their unit has a port to,
//! and loops that are not empty. Only what passes is followed further.

use tpuflow_ir::isa::{
    Descriptor, Expand, FloatFunction, Lookup, Matrix, PackedLookup, Pool, PoolKind, Vector, VectorOp, Work,
};
use tpuflow_ir::{DType, Instruction, Port, Program, Space, View, Window};

use crate::rule::{Fault, Operand, Rule};

/// Checks one instruction.
pub(crate) fn instruction(program: &Program, instruction: &Instruction) -> Result<(), Fault> {
    match &instruction.work {
        Work::Transfer(t) => {
            let moves = t.bytes > 0 && t.counts[0] > 0 && t.counts[1] > 0;
            Rule::Empty.require(moves, "bytes to move", format_args!("{} x {:?}", t.bytes, t.counts))?;
            let local = !matches!(t.local_space, Space::Ddr(_));
            Rule::MemoryPort.require(local, "a cache as the local side", format_args!("{:?}", t.local_space))?;
            // Addresses beyond every memory must not wrap around to good ones.
            let reach = |address: u64, strides: [u64; 2]| {
                let along = |axis: usize| strides[axis].checked_mul(u64::from(t.counts[axis] - 1));
                address.checked_add(along(0)?)?.checked_add(along(1)?)?.checked_add(u64::from(t.bytes))
            };
            let ends = reach(t.ddr_address, t.ddr_strides).and(reach(t.local_address, t.local_strides));
            Rule::Memory.require(ends.is_some(), "addresses below 2^64", "a transfer beyond all memories")
        }
        Work::Lookup(l) => lookup(program, l),
        Work::Expand(e) => expand(program, e),
        Work::PackedLookup(l) => packed_lookup(program, l),
        Work::Matrix(m) => matrix(program, m),
        Work::Pool(p) => pool(program, p),
        Work::Vector(v) => vector(program, v),
    }
}

fn expand(program: &Program, e: &Expand) -> Result<(), Fault> {
    let some = e.rows > 0 && e.row_bytes > 0 && e.block > 0;
    let found = format_args!("{} rows of {} in blocks of {}", e.rows, e.row_bytes, e.block);
    Rule::Empty.require(some, "packed weights to expand", found)?;
    let word = program.machine.word() as u64;
    let address = format_args!("{:#x}", e.local_address);
    Rule::View.require(e.local_address.is_multiple_of(word), "rows from the start of a word on", address)?;
    // More than a byte and a half for each of the codes is never read.
    let most = 2 * u128::from(e.row_bytes) * (u128::from(e.rows) + u128::from(e.rows.div_ceil(e.block))) + 2;
    let ends = [e.ddr_address, e.local_address].map(|address| u128::from(address) + most);
    let below = ends.iter().all(|&end| end <= u128::from(u64::MAX));
    Rule::Memory.require(below, "addresses below 2^64", "packed weights beyond all memories")
}

/// Indices `first .. first + count`, each with a pixel of the result.
fn indices(program: &Program, indices: &View, output: &View, first: u32, count: u32) -> Result<(), Fault> {
    check_in_caches(program, indices).map_err(|fault| fault.of_operand(Operand::Indices))?;
    check_in_caches(program, output).map_err(|fault| fault.of_operand(Operand::Output))?;
    let end = u64::from(first) + u64::from(count);
    let pixels = |v: &View| u64::from(v.rows) * u64::from(v.width);
    let limit = pixels(output).min(pixels(indices) * u64::from(indices.channels));
    let some = count > 0 && end <= limit;
    Rule::Extent.require(some, format_args!("some of {limit} indices"), format_args!("{count} from {first} on"))?;
    Rule::ElementTypes.require_equal("indices of", &DType::I32, &indices.dtype)
}

fn packed_lookup(program: &Program, l: &PackedLookup) -> Result<(), Fault> {
    let entries = l.rows > 0 && l.row_bytes > 0 && l.block > 0 && l.size > 0;
    let found = format_args!("{} of {} rows of {} in blocks of {}", l.size, l.rows, l.row_bytes, l.block);
    Rule::Empty.require(entries, "entries of packed weights", found)?;
    let there = program.machine.ddr_spaces();
    let spaces = l.spaces > 0 && usize::from(l.ddr_space) + usize::from(l.spaces) <= there;
    Rule::Ddr.require(
        spaces,
        format_args!("some of {there} address spaces"),
        format_args!("{} from {} on", l.spaces, l.ddr_space),
    )?;
    let columns = l.columns.is_none_or(|columns| columns > 0 && columns <= l.row_bytes);
    Rule::Lookup.require(columns, format_args!("1 to {} columns", l.row_bytes), format_args!("{:?}", l.columns))?;
    // More than a byte and a half for each of the codes is never read, nor more than a word behind them.
    let most = 2 * u128::from(l.row_bytes) * (u128::from(l.rows) + u128::from(l.rows.div_ceil(l.block))) + 2;
    let most = (most + program.machine.word() as u128) * u128::from(l.size) + u128::from(l.ddr_address);
    Rule::Memory.require(most <= u128::from(u64::MAX), "addresses below 2^64", "entries beyond all memories")?;
    indices(program, &l.indices, &l.output, l.first, l.count)?;
    let elements = u64::from(l.rows) * if l.columns.is_some() { 1 } else { u64::from(l.row_bytes) };
    let found = (l.output.payload() as u64, l.output.dtype);
    Rule::Lookup.require_equal("bytes of a pixel of the result", &(elements, DType::I8), &found)
}

fn lookup(program: &Program, l: &Lookup) -> Result<(), Fault> {
    view(program, &l.table, matches!(l.table.space, Space::Ddr(_)))
        .map_err(|fault| fault.of_operand(Operand::Table))?;
    indices(program, &l.indices, &l.output, l.first, l.count)?;
    let rows = l.table.rows == 1 && l.table.payload() == l.output.payload() && l.table.dtype == l.output.dtype;
    Rule::Lookup.require(
        rows,
        "rows as long as pixels of the result",
        format_args!("{} rows of {} bytes for {}", l.table.rows, l.table.payload(), l.output.payload()),
    )
}

fn matrix(program: &Program, m: &Matrix) -> Result<(), Fault> {
    check_in_caches(program, &m.input).map_err(|fault| fault.of_operand(Operand::Input(0)))?;
    check_in_caches(program, &m.output).map_err(|fault| fault.of_operand(Operand::Output))?;
    let Some(Descriptor::Matrix(d)) = program.descriptors.get(m.descriptor.index()) else {
        return Err(Rule::DescriptorKind.violation("that of a product", format_args!("descriptor {}", m.descriptor.0)));
    };
    let rows = taps(&d.window)?.checked_mul(u64::from(d.group_in));
    let groups = d.group_in > 0 && d.group_out > 0;
    Rule::Window.require(groups, "channels in every group", format_args!("{} to {}", d.group_in, d.group_out))?;
    let depthwise = (d.group_in, d.group_out) == (1, 1) && m.input.channels > 1;
    Rule::Unit.require(!depthwise, "work of the pooling unit", "a depthwise convolution on the array")?;
    // No cache holds more rows of weights than it has bytes.
    let rows = rows.is_some_and(|rows| rows <= program.machine.cache_bytes());
    Rule::Window.require(rows, "weights that fit the cache", format_args!("{:?} x {}", d.window.kernel, d.group_in))?;
    let types = [m.input.dtype, m.output.dtype, d.weight_dtype];
    let fits = match &d.float {
        Some(_) => m.input.dtype == d.weight_dtype && types.into_iter().all(DType::is_float),
        None if m.output.dtype == DType::I64 => {
            // Sums as they are: of one matrix, with nothing behind them.
            let is_plain = d.window.kernel == [1, 1] && d.window.stride == [1, 1] && d.window.pads == [0; 4];
            let is_one = m.first_column.checked_add(m.columns).is_some_and(|end| end <= d.group_out);
            let ends = d.table.is_none() && d.first_shift.is_none();
            is_plain && is_one && ends && m.input.dtype.is_code() && d.weight_dtype.is_code()
        }
        None => types.into_iter().all(DType::is_code),
    };
    Rule::ElementTypes.require(fits, "codes, or floats of one type", format_args!("{types:?}"))?;
    let ends = m.first_pixel.checked_add(m.pixels).and(m.first_column.checked_add(m.columns));
    let ends = ends.and(m.output_channel.checked_add(m.columns));
    let ends = ends.and(m.output.origin[1].checked_add(m.output_channel));
    let some = ends.is_some() && m.pixels > 0 && m.columns > 0;
    Rule::Extent.require(some, "some pixels and columns", format_args!("{} and {}", m.pixels, m.columns))?;
    let near = m.weights.address <= program.machine.cache_bytes();
    Rule::Memory.require(near, "weights in the cache", format_args!("weights at {:#x}", m.weights.address))?;
    Rule::Unused.require(d.table.is_some() || m.table == 0, "no address of a table", m.table)
}

fn pool(program: &Program, p: &Pool) -> Result<(), Fault> {
    check_in_caches(program, &p.input).map_err(|fault| fault.of_operand(Operand::Input(0)))?;
    check_in_caches(program, &p.output).map_err(|fault| fault.of_operand(Operand::Output))?;
    let Some(Descriptor::Pool(d)) = program.descriptors.get(p.descriptor.index()) else {
        return Err(Rule::DescriptorKind.violation("that of a pooling", format_args!("descriptor {}", p.descriptor.0)));
    };
    let taps = taps(&d.window)?;
    let types = [p.input.dtype, p.output.dtype];
    let codes = types.into_iter().all(DType::is_code);
    let floats = types.into_iter().all(DType::is_float);
    let (fits, weighted, tabled) = match &d.kind {
        PoolKind::Max => (p.input.dtype == p.output.dtype && (codes || floats), false, false),
        PoolKind::Average { .. } => (codes, false, false),
        PoolKind::Depthwise { weight_dtype, table, .. } => (codes && weight_dtype.is_code(), true, table.is_some()),
        PoolKind::FloatAverage { .. } => (floats, false, false),
        PoolKind::FloatDepthwise { weight_dtype, .. } => (floats && *weight_dtype == p.input.dtype, true, false),
    };
    Rule::ElementTypes.require(fits, "types of this pooling", format_args!("{types:?}"))?;
    let weights = !weighted || taps <= program.machine.ewp_cache_bytes();
    Rule::Window.require(weights, "weights that fit the EWP cache", format_args!("{:?}", d.window.kernel))?;
    let unused = (weighted || (p.weights, p.parameters) == (0, 0)) && (tabled || p.table == 0);
    Rule::Unused.require(
        unused,
        "no addresses of what is not there",
        format_args!("{}, {}, {}", p.weights, p.parameters, p.table),
    )?;
    rows(p.first_row, p.rows, p.output.rows.into())
}

fn vector(program: &Program, v: &Vector) -> Result<(), Fault> {
    for (number, input) in v.inputs.iter().enumerate() {
        check_in_caches(program, input).map_err(|fault| fault.of_operand(Operand::Input(number)))?;
    }
    check_in_caches(program, &v.output).map_err(|fault| fault.of_operand(Operand::Output))?;
    let Some(Descriptor::Vector(op)) = program.descriptors.get(v.descriptor.index()) else {
        return Err(Rule::DescriptorKind.violation("that of elements", format_args!("descriptor {}", v.descriptor.0)));
    };
    let reads = matches!(
        op,
        VectorOp::Table(_)
            | VectorOp::PRelu { .. }
            | VectorOp::LayerNorm { .. }
            | VectorOp::SharedLayerNorm { .. }
            | VectorOp::Float { function: FloatFunction::PRelu { .. } | FloatFunction::LayerNorm { .. }, .. }
    );
    Rule::Unused.require(reads || v.parameters == 0, "no address of parameters", v.parameters)?;
    let single = |what: &str| Rule::Operands.require_equal(what, &1, &v.inputs.len());
    match op {
        VectorOp::Move { dims, input_strides, input_offset, output_strides, output_offset, .. } => {
            let even = dims.len() == input_strides.len() && dims.len() == output_strides.len();
            let loops = even && !dims.is_empty() && dims.iter().all(|&extent| extent > 0);
            Rule::Loops.require(loops, "even loops", format_args!("{dims:?} {input_strides:?} {output_strides:?}"))?;
            let near =
                is_bounded(dims, input_strides, *input_offset) && is_bounded(dims, output_strides, *output_offset);
            Rule::Loops.require(near, "elements below 2^48", format_args!("{input_strides:?} {output_strides:?}"))?;
            single("a move of")?;
            rows(v.first_row, v.rows, dims[0].into())
        }
        VectorOp::Gather { outer, extent, inner, indices } => {
            // Rows of the operand and of the result, and elements below the limit of moves.
            let near = |rows: u64| rows * u64::from(*inner) < 1 << 48;
            let rows_of = |count: u64| u64::from(*outer).checked_mul(count).filter(|&rows| rows <= u32::MAX.into());
            let counted = [u64::from(*extent), indices.len() as u64].iter().all(|&n| rows_of(n).is_some_and(near));
            let loops = counted && *outer > 0 && *inner > 0 && indices.iter().all(|index| index < extent);
            Rule::Loops.require(loops, "indices inside their axis", format_args!("{indices:?} of {extent}"))?;
            single("a gather of")?;
            rows(v.first_row, v.rows, u64::from(*outer) * indices.len() as u64)
        }
        VectorOp::Fill { .. } | VectorOp::Float { function: FloatFunction::Constant(_), .. } => {
            Rule::Operands.require_equal("a fill of", &0, &v.inputs.len())?;
            rows(v.first_row, v.rows, v.output.rows.into())
        }
        _ if op.reduces() => Rule::Extent.require_equal("all rows,", &(0, v.output.rows), &(v.first_row, v.rows)),
        _ => rows(v.first_row, v.rows, v.output.rows.into()),
    }
}

/// Checks an input: a whole tensor, laid out as in the cache; the slices of it that lie together.
pub(crate) fn input(program: &Program, port: &Port) -> Result<Vec<View>, Fault> {
    Rule::PortView.require_equal("", &whole(program, port), &port.view)?;
    slices(program, port)
}

/// Checks an output: like an input, or every pixel directly behind the one before.
pub(crate) fn output(program: &Program, port: &Port) -> Result<Vec<View>, Fault> {
    let whole = whole(program, port);
    if port.view.pixel_bytes == whole.pixel_bytes {
        return input(program, port);
    }
    Rule::PortView.require_equal("", &View { pixel_bytes: whole.payload() as u32, ..whole }, &port.view)?;
    slices(program, port)
}

fn whole(program: &Program, port: &Port) -> View {
    View::whole(&port.shape, port.dtype, program.machine.word(), port.view.space, port.view.address)
}

/// Checks that every pixel of a port has one place in an external memory. A part begins at a row, or on a word of rows that lie
/// one behind the other without a gap.
fn slices(program: &Program, port: &Port) -> Result<Vec<View>, Fault> {
    let (view, word) = (port.view, u64::from(program.machine.cache.word_bytes));
    // Pixels without padding need not have the size of pixels of a cache.
    let padded = View { pixel_bytes: whole(program, port).pixel_bytes, ..view };
    check_layout(program, &padded, matches!(view.space, Space::Ddr(_)))?;
    let (pixels, row) = (view.rows * view.width, u64::from(view.width) * u64::from(view.pixel_bytes));
    let has_no_gaps = view.rows == 1 || row.is_multiple_of(word);
    let mut found = Vec::new();
    let mut first = 0;
    let places = [(view.space, view.address)].into_iter();
    let places = places.chain(port.parts.iter().map(|part| (part.space, part.address)));
    let ends = port.parts.iter().map(|part| part.first_pixel).chain([pixels]);
    for ((space, address), end) in places.zip(ends) {
        let (ascending, expected) = (first < end && end <= pixels, format_args!("parts in ascending order"));
        Rule::PortView.require(ascending, expected, format_args!("pixels {first} to {end} of {pixels}"))?;
        let on_word = first % view.width == 0
            || has_no_gaps && (u64::from(first) * u64::from(view.pixel_bytes)).is_multiple_of(word);
        let begins = on_word && (first == 0 || address.is_multiple_of(word));
        Rule::View.require(
            begins,
            format_args!("parts on words of {word}"),
            format_args!("{first} at {address:#x}"),
        )?;
        let is_external = matches!(space, Space::Ddr(_));
        Rule::MemoryPort.require(is_external, "external memory", format_args!("{space:?}"))?;
        let mut slice = View { space, address, ..view };
        if end - first < pixels {
            let in_rows = first % view.width == 0 && end % view.width == 0;
            let rows = if in_rows { (end - first) / view.width } else { 1 };
            slice = View {
                origin: [first, 0],
                rows,
                height: rows,
                stored_rows: rows,
                width: (end - first) / rows,
                ..slice
            };
        }
        check_extent(program, &slice)?;
        found.push(slice);
        first = end;
    }
    Ok(found)
}

fn check_in_caches(program: &Program, v: &View) -> Result<(), Fault> {
    view(program, v, v.space == Space::Cache)
}

/// A view that makes sense, of bytes that are there.
fn view(program: &Program, v: &View, has_port: bool) -> Result<(), Fault> {
    check_layout(program, v, has_port)?;
    check_extent(program, v)
}

/// A view on a word, of whole images, whose pixels hold their channels.
fn check_layout(program: &Program, v: &View, has_port: bool) -> Result<(), Fault> {
    Rule::MemoryPort.require(has_port, "a memory the unit has a port to", format_args!("{:?}", v.space))?;
    let word = program.machine.cache.word_bytes;
    let pixel = if v.pixel_bytes < word { v.pixel_bytes.is_power_of_two() } else { v.pixel_bytes.is_multiple_of(word) };
    let payload = u64::from(v.channel_offset) + u64::from(v.channels) * v.dtype.bytes() as u64;
    // DDR has no words; the rows of a state may begin on any of its pixels.
    let unit = if matches!(v.space, Space::Ddr(_)) { v.pixel_bytes.clamp(1, word) } else { word };
    let sizes = [v.rows, v.height, v.width, v.channels, v.stored_rows].iter().all(|&size| size > 0);
    let sound = sizes
        && v.rows.is_multiple_of(v.height)
        && pixel
        && payload <= u64::from(v.pixel_bytes)
        && v.channel_offset.is_multiple_of(v.dtype.bytes() as u32)
        && v.origin[1].checked_add(v.channels).is_some()
        && v.address.is_multiple_of(unit.into());
    Rule::View.require(sound, format_args!("sizes that agree, on words of {word}"), format_args!("{v:?}"))
}

/// A view whose rows lie in their memory.
fn check_extent(program: &Program, v: &View) -> Result<(), Fault> {
    let (machine, word) = (&program.machine, program.machine.cache.word_bytes);
    let end =
        v.row_bytes(word as usize).checked_mul(v.stored_rows.into()).and_then(|bytes| v.address.checked_add(bytes));
    let limit = match v.space {
        Space::Cache => machine.cache_bytes(),
        Space::EwpCache => machine.ewp_cache_bytes(),
        Space::Ddr(space) => program.ddr_bytes.get(usize::from(space)).copied().unwrap_or(0),
    };
    let inside = end.is_some_and(|end| end <= limit);
    Rule::Memory.require(inside, format_args!("bytes of {:?} below {limit:#x}", v.space), format_args!("{v:?}"))?;
    // Whoever reads whatever is stored would read them.
    let stored = v.first_row.checked_add(v.stored_rows).is_some_and(|end| end <= v.rows);
    Rule::StoredRows.require(
        stored,
        format_args!("some of {} rows", v.rows),
        format_args!("{} from {} on", v.stored_rows, v.first_row),
    )
}

/// Taps of a window that has some.
fn taps(window: &Window) -> Result<u64, Fault> {
    let positive = window.kernel.iter().chain(&window.stride).chain(&window.dilation).all(|&n| n > 0);
    // Steps and padding are added and multiplied further on.
    let small = window.stride.iter().chain(&window.pads).all(|&n| n < 1 << 24)
        && (0..2).all(|axis| u64::from(window.kernel[axis]) * u64::from(window.dilation[axis]) < 1 << 24);
    Rule::Window.require(positive && small, "taps and steps between 1 and 2^24", format_args!("{window:?}"))?;
    Ok(u64::from(window.kernel[0]) * u64::from(window.kernel[1]))
}

/// Whether loops reach no element beyond all memories.
fn is_bounded(dims: &[u32], strides: &[i64], offset: i64) -> bool {
    let far = dims.iter().zip(strides).try_fold(offset.unsigned_abs(), |far, (&extent, stride)| {
        far.checked_add(stride.unsigned_abs().checked_mul(u64::from(extent))?)
    });
    far.is_some_and(|far| far < 1 << 48)
}

/// Some of `limit` rows, at least one.
fn rows(first: u32, count: u32, limit: u64) -> Result<(), Fault> {
    let some = count > 0 && u64::from(first) + u64::from(count) <= limit.min(u32::MAX.into());
    Rule::Extent.require(some, format_args!("some of {limit} rows"), format_args!("{count} from {first} on"))
}
