//! The meaning of views: which stretches of memory their pixels are, and which pixels and channels of a tensor.

use tpuflow_ir::layout::{image, pixel_bytes};
use tpuflow_ir::{TensorId, View};

use crate::contents::Element;
use crate::rule::{Fault, Rule};
use crate::walk::Walk;

impl Walk<'_> {
    /// Contiguous stretches of some pixels of a row. A row of naturally padded whole pixels is one.
    pub(crate) fn stretches(
        &self,
        view: &View,
        row: u32,
        columns: std::ops::Range<u32>,
        channels: std::ops::Range<u32>,
        whole: u64,
    ) -> impl Iterator<Item = Stretch> + use<> {
        let (word, size) = (self.machine().word(), view.dtype.bytes());
        let bytes = u64::from(channels.end - channels.start) * size as u64;
        let payload = whole as u32 * size as u32;
        let natural = pixel_bytes(payload as usize, word) as u32;
        let joined = bytes == u64::from(payload) && view.pixel_bytes == natural && view.channel_offset == 0;
        let (bytes, padded) = if joined {
            let count = u64::from(columns.end - columns.start);
            ((count - 1) * u64::from(natural) + bytes, natural != payload && count > 1)
        } else {
            (bytes, false)
        };
        let columns = if joined { columns.start..columns.start + 1 } else { columns };
        let view = *view;
        columns.map(move |column| Stretch {
            start: view.pixel_address(row, column, word) + u64::from(channels.start) * size as u64,
            bytes,
            padded,
            payload,
            natural,
            pixel: u64::from(view.origin[0]) + u64::from(row) * u64::from(view.width) + u64::from(column),
            within: u64::from(view.origin[1] + channels.start) * size as u64,
        })
    }

    pub(crate) fn require_row(&self, view: &View, row: u32) -> Result<(), Fault> {
        let stored = format_args!("one of {} rows from {} on", view.stored_rows, view.first_row);
        Rule::RowPresent.require(view.holds(row), stored, row)
    }

    /// Channels of the whole tensor behind a view, and whether the view can be one of it at all.
    pub(crate) fn whole_channels(&self, view: &View, tensor: Option<TensorId>) -> Result<u64, Fault> {
        let Some((graph, id)) = self.expectation.as_ref().map(|e| e.graph).zip(tensor) else {
            return Ok(u64::from(view.channels));
        };
        let info = graph.tensor(id);
        let channels = info.shape.last().copied().unwrap_or(1) as u64;
        let [pixel, channel] = view.origin.map(u64::from);
        let pixels = u64::from(view.rows) * u64::from(view.width);
        if info.dtype == view.dtype
            && view.origin == [0, 0]
            && pixels * u64::from(view.channels) == info.elements() as u64
        {
            // All elements, row-major: another shape of the same tensor.
            return Ok(view.channels.into());
        }
        if info.dtype != view.dtype
            || channel + u64::from(view.channels) > channels
            || (pixel + pixels) * channels > info.elements() as u64
        {
            let tensor = format_args!("elements of \"{}\" {:?} {:?}", info.name, info.shape, info.dtype);
            return Err(Rule::Tensor.violation(tensor, format_args!("{view:?}")));
        }
        Ok(channels)
    }

    /// Operators that work on pixels need the tensor's pixels, not another shape of its elements.
    pub(crate) fn true_pixels(&self, view: &View, tensor: Option<TensorId>) -> Result<(), Fault> {
        let Some((e, id)) = self.expectation.as_ref().zip(tensor) else { return Ok(()) };
        let info = e.graph.tensor(id);
        if self.whole_channels(view, tensor)? != info.shape.last().copied().unwrap_or(1) as u64 {
            let pixels = format_args!("pixels of \"{}\" {:?}", info.name, info.shape);
            return Err(Rule::Pixels.violation(pixels, format_args!("{view:?}")));
        }
        Ok(())
    }

    /// Operators over channels need all of a pixel's.
    pub(crate) fn all_channels(&self, view: &View, tensor: Option<TensorId>) -> Result<(), Fault> {
        self.true_pixels(view, tensor)?;
        Rule::AllChannels.require_equal("channels,", &self.whole_channels(view, tensor)?, &u64::from(view.channels))
    }

    /// Spatial operators need the tensor's true geometry.
    pub(crate) fn true_geometry(&self, view: &View, tensor: Option<TensorId>) -> Result<(), Fault> {
        let Some((e, id)) = self.expectation.as_ref().zip(tensor) else { return Ok(()) };
        let (rows, height, width, _) = image(&e.graph.tensor(id).shape);
        let found = (view.rows as usize, view.height as usize, view.width as usize, view.origin[0]);
        Rule::Geometry.require_equal("rows, height, width, first pixel", &(rows, height, width, 0), &found)
    }
}

/// A contiguous stretch of pixels (or of part of one).
pub(crate) struct Stretch {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Padding between its pixels, which nobody needs to have written.
    pub(crate) padded: bool,
    pub(crate) payload: u32,
    pub(crate) natural: u32,
    pixel: u64,
    within: u64,
}

impl Stretch {
    /// Its first byte as one of `tensor`.
    pub(crate) fn element(&self, tensor: TensorId) -> Element {
        Element::new(tensor.0, self.payload, self.natural, self.pixel, self.within)
    }
}
