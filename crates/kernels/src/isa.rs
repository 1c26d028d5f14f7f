//! Which instruction set the kernels use: detected once, forced by `TPUFLOW_ISA`.
//!
//! A variant is a token that only detection makes: holding it proves that the processor has the features, which is what
//! lets vector kernels be called. All variants give the same bits.

use std::sync::OnceLock;

/// An instruction set this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Scalar code that reads like the formulas.
    Reference,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// 512-bit vectors with byte and word dot products.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
}

/// Proof of AVX2.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// Proof of AVX-512 F, BW, DQ, VL and VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Vnni(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The token, if the processor has the features.
    #[must_use]
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512Vnni {
    /// The token, if the processor has the features.
    #[must_use]
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        found.then_some(Self(()))
    }
}

/// `TPUFLOW_ISA` names an instruction set that does not exist or that this processor lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("TPUFLOW_ISA is \"{name}\", this processor offers {offered}")]
pub struct IsaError {
    name: String,
    offered: String,
}

impl Isa {
    /// Everything this processor offers, the slowest first.
    #[must_use]
    pub fn variants() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "only x86-64 has more"))]
        let mut variants = vec![Self::Reference];
        #[cfg(target_arch = "x86_64")]
        {
            variants.extend(Avx2::detect().map(Self::Avx2));
            variants.extend(Avx512Vnni::detect().map(Self::Avx512Vnni));
        }
        variants
    }

    /// The name in `TPUFLOW_ISA` and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(_) => "avx512vnni",
        }
    }

    /// What `TPUFLOW_ISA` names, else the fastest; decided at the first call. Where the variable names anything else,
    /// [`Self::check`] says so, which whoever runs a graph asks first.
    #[must_use]
    pub fn selected() -> Self {
        Self::choice().clone().unwrap_or(Self::Reference)
    }

    /// Whether `TPUFLOW_ISA` can be followed.
    ///
    /// # Errors
    /// [`IsaError`] when it names no instruction set of this processor.
    pub fn check() -> Result<(), IsaError> {
        Self::choice().clone().map(|_| ())
    }

    fn choice() -> &'static Result<Self, IsaError> {
        static CHOICE: OnceLock<Result<Isa, IsaError>> = OnceLock::new();
        CHOICE.get_or_init(|| Self::by_name(std::env::var("TPUFLOW_ISA").ok().as_deref()))
    }

    fn by_name(name: Option<&str>) -> Result<Self, IsaError> {
        let variants = Self::variants();
        let fastest = variants[variants.len() - 1];
        let Some(name) = name else { return Ok(fastest) };
        variants.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| IsaError {
            name: name.to_owned(),
            offered: variants.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_and_unknown_ones_are_refused() {
        for isa in Isa::variants() {
            assert_eq!(Isa::by_name(Some(isa.name())), Ok(isa));
        }
        assert_eq!(Isa::by_name(None).ok(), Isa::variants().last().copied());
        let message = Isa::by_name(Some("mmx")).expect_err("refused").to_string();
        assert!(message.starts_with("TPUFLOW_ISA is \"mmx\", this processor offers reference"), "{message}");
    }
}
