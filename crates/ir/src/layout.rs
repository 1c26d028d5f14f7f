//! How tensors lie in memory, in DDR and cache alike.
//!
//! A tensor `[.., w, c]` is a sequence of image rows (all axes but the last two, flattened), each of `w` pixels of `c` channels.
//! A pixel takes `pixel_bytes`: its bytes rounded up to 1, 2, 4, .. W/2, or to a multiple of the word W. Below W a word holds
//! `W / pixel_bytes` neighbouring pixels of one row; every row starts on a word. An output may lie in DDR without padding between
//! its pixels ([`View::without_padding`]).
//!
//! ```text
//! W = 8, int8, w = 3, c = 3 -> pixel_bytes = 4:   | p0 p0 p0 -- p1 p1 p1 -- | p2 p2 p2 -- -- -- -- -- |   one row, two words
//! ```

use serde::{Deserialize, Serialize};

use crate::DType;

/// Bytes a pixel of `bytes` payload takes.
#[must_use]
pub fn pixel_bytes(bytes: usize, word: usize) -> usize {
    if bytes >= word { bytes.next_multiple_of(word) } else { bytes.max(1).next_power_of_two() }
}

/// `(rows, height, width, channels)` of a shape: `rows` counts all image rows, `height` those of one image.
#[must_use]
pub fn image(shape: &[usize]) -> (usize, usize, usize, usize) {
    match shape {
        [] => (1, 1, 1, 1),
        [c] => (1, 1, 1, *c),
        [w, c] => (1, 1, *w, *c),
        [lead @ .., h, w, c] => (lead.iter().product::<usize>() * h, *h, *w, *c),
    }
}

/// A memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Space {
    /// The shared cache.
    Cache,
    /// An address space of the DDR (a channel, or all channels interleaved).
    Ddr(u8),
    /// The parameter cache.
    EwpCache,
}

/// A tensor, or some rows of it, as an instruction sees it: geometry and place.
///
/// Row `r` (of `rows`) lies at `address + ((r - first_row) mod stored_rows) * row_bytes`; only rows
/// `first_row .. first_row + stored_rows` are present at a time (a ring when rows are produced and consumed in turn).
/// Channel `c` of a pixel lies `channel_offset + c * dtype.bytes()` into it: a narrow tensor may lie inside a wider one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    /// Memory.
    pub space: Space,
    /// Byte address of the first stored row, on a word; in DDR the rows of a state may begin on any of its pixels.
    pub address: u64,
    /// Element type.
    pub dtype: DType,
    /// Image rows of the tensor.
    pub rows: u32,
    /// Image rows of one image; divides `rows`.
    pub height: u32,
    /// Pixels per row.
    pub width: u32,
    /// Channels read or written.
    pub channels: u32,
    /// Bytes from one pixel to the next.
    pub pixel_bytes: u32,
    /// Bytes into the pixel at which channel 0 lies.
    pub channel_offset: u32,
    /// First row present.
    pub first_row: u32,
    /// Rows present.
    pub stored_rows: u32,
    /// Pixel and channel of the whole tensor at which this view's row 0, pixel 0, channel 0 lies: a slice of a tensor may be
    /// presented as a smaller tensor. The machine ignores it; checkers follow values by it.
    pub origin: [u32; 2],
}

impl View {
    /// A whole tensor at `address`.
    #[must_use]
    pub fn whole(shape: &[usize], dtype: DType, word: usize, space: Space, address: u64) -> Self {
        let (rows, height, width, channels) = image(shape);
        Self {
            space,
            address,
            dtype,
            rows: rows as u32,
            height: height as u32,
            width: width as u32,
            channels: channels as u32,
            pixel_bytes: pixel_bytes(channels * dtype.bytes(), word) as u32,
            channel_offset: 0,
            first_row: 0,
            stored_rows: rows as u32,
            origin: [0, 0],
        }
    }

    /// The same tensor with every pixel directly behind the one before, as an output may lie in DDR. Rows still start on a word.
    #[must_use]
    pub fn without_padding(&self) -> Self {
        Self { pixel_bytes: self.payload() as u32, channel_offset: 0, ..*self }
    }

    /// Bytes of one row: whole words.
    #[must_use]
    pub fn row_bytes(&self, word: usize) -> u64 {
        (u64::from(self.width) * u64::from(self.pixel_bytes)).next_multiple_of(word as u64)
    }

    /// Bytes of the stored rows.
    #[must_use]
    pub fn bytes(&self, word: usize) -> u64 {
        self.row_bytes(word) * u64::from(self.stored_rows)
    }

    /// Whether row `row` is among those present.
    #[must_use]
    pub fn holds(&self, row: u32) -> bool {
        row >= self.first_row && row - self.first_row < self.stored_rows
    }

    /// Byte address of a row.
    #[must_use]
    pub fn row_address(&self, row: u32, word: usize) -> u64 {
        let slot = row.wrapping_sub(self.first_row) % self.stored_rows.max(1);
        self.address + u64::from(slot) * self.row_bytes(word)
    }

    /// Byte address of channel 0 of a pixel.
    #[must_use]
    pub fn pixel_address(&self, row: u32, column: u32, word: usize) -> u64 {
        self.row_address(row, word) + u64::from(column) * u64::from(self.pixel_bytes) + u64::from(self.channel_offset)
    }

    /// Takes the elements of a whole tensor, row-major, out of the bytes from its address on.
    #[must_use]
    pub fn unpack(&self, bytes: &[u8], word: usize) -> Vec<u8> {
        let mut dense = vec![0; self.rows as usize * self.width as usize * self.payload()];
        for_each_pixel(&self.at_zero(), word, |from, to| dense[from].copy_from_slice(&bytes[to]));
        dense
    }

    /// The inverse of [`Self::unpack`]; padding is zero.
    #[must_use]
    pub fn pack(&self, dense: &[u8], word: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes(word) as usize];
        for_each_pixel(&self.at_zero(), word, |from, to| bytes[to].copy_from_slice(&dense[from]));
        bytes
    }

    fn at_zero(&self) -> Self {
        Self { address: 0, ..*self }
    }

    /// Payload bytes of a pixel.
    #[must_use]
    pub fn payload(&self) -> usize {
        self.channels as usize * self.dtype.bytes()
    }
}

/// Lays a dense row-major tensor out in words; padding is zero.
#[must_use]
pub fn pack(dense: &[u8], shape: &[usize], dtype: DType, word: usize) -> Vec<u8> {
    View::whole(shape, dtype, word, Space::Cache, 0).pack(dense, word)
}

fn for_each_pixel(view: &View, word: usize, mut copy: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>)) {
    let payload = view.payload();
    let mut dense = 0;
    for row in 0..view.rows {
        for column in 0..view.width {
            let packed = view.pixel_address(row, column, word) as usize;
            copy(dense..dense + payload, packed..packed + payload);
            dense += payload;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixel_sizes() {
        let sizes = [1, 2, 3, 4, 5, 63, 64, 65, 96, 128, 129, 256];
        assert_eq!(sizes.map(|n| pixel_bytes(n, 128)), [1, 2, 4, 4, 8, 64, 64, 128, 128, 128, 256, 256]);
    }

    #[test]
    fn the_picture_of_the_module() {
        let dense = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let packed = pack(&dense, &[1, 1, 3, 3], DType::I8, 8);
        assert_eq!(packed, [1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 9, 0, 0, 0, 0, 0]);
    }

    proptest::proptest! {
        #[test]
        fn unpack_inverts_pack(shape in proptest::collection::vec(1usize..7, 0..5), wide: bool, word in 3u32..8) {
            let dtype = if wide { DType::I16 } else { DType::I8 };
            let bytes = shape.iter().product::<usize>() * dtype.bytes();
            let dense: Vec<u8> = (0..bytes).map(|i| (i * 7 + 1) as u8).collect();
            let packed = pack(&dense, &shape, dtype, 1 << word);
            proptest::prop_assert_eq!(packed.len() % (1 << word), 0);
            let whole = View::whole(&shape, dtype, 1 << word, Space::Cache, 0);
            proptest::prop_assert_eq!(&whole.unpack(&packed, 1 << word), &dense);
            let tight = whole.without_padding();
            proptest::prop_assert!(tight.bytes(1 << word) <= whole.bytes(1 << word));
            proptest::prop_assert_eq!(tight.unpack(&tight.pack(&dense, 1 << word), 1 << word), dense);
        }
    }
}
