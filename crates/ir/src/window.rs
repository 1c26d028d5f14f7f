//! Window geometry.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Window geometry of convolutions and pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Kernel height and width.
    pub kernel: [u32; 2],
    /// Vertical and horizontal stride.
    pub stride: [u32; 2],
    /// Vertical and horizontal dilation.
    pub dilation: [u32; 2],
    /// Padding: top, left, bottom, right. Padded taps contribute real zero (pools: see the operator).
    pub pads: [u32; 4],
}

impl Window {
    /// Output height and width for an input of `height` x `width`, or `None` when the window does not fit.
    #[must_use]
    pub fn output(&self, height: usize, width: usize) -> Option<[usize; 2]> {
        let along = |size: usize, axis: usize| {
            let extent = (self.kernel[axis] as usize - 1) * self.dilation[axis] as usize + 1;
            let padded = size + self.pads[axis] as usize + self.pads[axis + 2] as usize;
            (padded >= extent).then(|| (padded - extent) / self.stride[axis] as usize + 1)
        };
        Some([along(height, 0)?, along(width, 1)?])
    }

    /// The kernel's rows (`axis` 0) or columns that lie on a line of `size` cells, when its first lies at `start`.
    #[must_use]
    pub fn inside(&self, axis: usize, start: i64, size: u32) -> Range<u32> {
        let kernel = self.kernel[axis];
        let from = |line: i64| {
            let step = i64::from(self.dilation[axis].max(1));
            let ahead = (line - start).max(0);
            (ahead / step + i64::from(ahead % step > 0)).min(kernel.into()) as u32
        };
        from(0)..from(size.into())
    }
}
