//! NaN and infinities met on the way into memory.

use tpuflow_ir::DType;

/// How many elements, and where the first of them lies: row, column, channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Occurrences {
    pub(super) count: u64,
    pub(super) first: Option<[u32; 3]>,
}

impl Occurrences {
    pub(super) fn add(&mut self, later: Self) {
        self.count += later.count;
        self.first = self.first.or(later.first);
    }
}

/// NaN and infinities that one instruction stored.
#[derive(Debug, Default)]
pub(super) struct NonFinite {
    nan: Occurrences,
    infinity: Occurrences,
}

impl NonFinite {
    /// Looks at consecutive pixels of `channels` elements each that are about to be stored, from `at` on.
    pub(super) fn count_pixels(&mut self, dtype: DType, bytes: &[u8], at: [u32; 3], channels: u32) {
        let halves = || bytes.as_chunks().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)));
        match dtype {
            DType::F16 => self.elements(halves(), 0x7c00, 0x7fff, at, channels),
            DType::BF16 => self.elements(halves(), 0x7f80, 0x7fff, at, channels),
            DType::F32 => {
                let words = bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b));
                self.elements(words, 0x7f80_0000, 0x7fff_ffff, at, channels);
            }
            _ => {}
        }
    }

    /// `infinity`: all bits of the exponent; `magnitude`: all but the sign.
    fn elements(
        &mut self,
        elements: impl Iterator<Item = u32>,
        infinity: u32,
        magnitude: u32,
        [row, column, channel]: [u32; 3],
        channels: u32,
    ) {
        for (element, bits) in (0..).zip(elements) {
            if bits & infinity != infinity {
                continue;
            }
            let seen = if bits & magnitude == infinity { &mut self.infinity } else { &mut self.nan };
            let first = Some([row, column + element / channels, channel + element % channels]);
            seen.add(Occurrences { count: 1, first });
        }
    }

    /// The occurrences so far, which are then forgotten.
    pub(super) fn take(&mut self) -> [(&'static str, Occurrences); 2] {
        let Self { nan, infinity } = std::mem::take(self);
        [("NaN", nan), ("infinity", infinity)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // feature: SIM-12
    #[test]
    fn bits_tell_nan_from_infinity() {
        let f16 = [0x7c00u16, 0xfc00, 0x7c01, 0x7bff, 0xffff, 0].map(u16::to_le_bytes).concat();
        let bf16 = [0x7f80u16, 0xff80, 0x7f81, 0x7f7f, 0xffff, 0].map(u16::to_le_bytes).concat();
        let f32 = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, -f32::NAN, 0.0].map(f32::to_le_bytes).concat();
        for (dtype, bytes) in [(DType::F16, f16), (DType::BF16, bf16), (DType::F32, f32)] {
            let mut non_finite = NonFinite::default();
            non_finite.count_pixels(dtype, &bytes, [3, 5, 7], 2);
            let [(_, nan), (_, infinity)] = non_finite.take();
            assert_eq!((infinity.count, infinity.first), (2, Some([3, 5, 7])), "{dtype:?}");
            assert_eq!((nan.count, nan.first), (2, Some([3, 6, 7])), "{dtype:?}");
            assert_eq!(non_finite.take()[0].1.count, 0);
        }
    }
}
