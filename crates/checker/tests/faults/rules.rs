//! Rules that damage of some kind may break.

use tpuflow_checker::Rule;

pub const ORDER: &[Rule] = &[Rule::ReadOrder, Rule::WriteOrder, Rule::InPlace];
pub const TOKEN: &[Rule] = &[Rule::WaitAhead, Rule::WaitTwice];
pub const VALUE: &[Rule] = &[Rule::Undefined, Rule::Value, Rule::BatchEntry, Rule::Terms, Rule::Stretches];
pub const CONSTANT: &[Rule] =
    &[Rule::NotConstant, Rule::Weights, Rule::ChannelParameters, Rule::Parameters, Rule::ConstantPlace];
pub const RANGE: &[Rule] = &[
    Rule::Empty,
    Rule::Memory,
    Rule::View,
    Rule::StoredRows,
    Rule::RowPresent,
    Rule::Extent,
    Rule::TileSize,
    Rule::ConstantsKept,
    Rule::Unused,
    Rule::Limits,
];
pub const DESCRIPTOR: &[Rule] = &[
    Rule::DescriptorKind,
    Rule::Layer,
    Rule::Window,
    Rule::ElementTypes,
    Rule::Loops,
    Rule::Operator,
    Rule::Descriptor,
    Rule::Operands,
    Rule::MemoryPort,
    Rule::Tensor,
    Rule::Pixels,
    Rule::AllChannels,
    Rule::Channels,
    Rule::SamePixels,
    Rule::Geometry,
    Rule::Stretch,
    Rule::Lookup,
];
pub const OUTPUT: &[Rule] = &[Rule::PortView, Rule::PortOverlap, Rule::MemoryFigures, Rule::Value, Rule::Undefined];
/// An instruction at the wrong time or place finds, or leaves to others, something else than expected.
pub const TIME: &[&[Rule]] = &[TOKEN, ORDER, VALUE, CONSTANT, DESCRIPTOR, OUTPUT];
pub const PLACE: &[&[Rule]] = &[ORDER, VALUE, CONSTANT, RANGE, DESCRIPTOR, OUTPUT];
