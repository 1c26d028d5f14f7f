//! Which instruction set the kernels use: detected once, forced by `TPUFLOW_ISA`.
//!
//! A variant is a token that only detection makes: holding it proves that the processor has the features, which is what
//! lets vector kernels be called. All variants give the same bits.

use std::sync::OnceLock;

/// An instruction set this processor has. Each includes those before it, but for AVX-VNNI, which some processors have
/// without 512-bit vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Scalar code that reads like the formulas.
    Reference,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// 256-bit vectors with byte dot products.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    /// 512-bit vectors with byte and word dot products.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
    /// Tiles of bytes, multiplied as matrices, beside 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
    /// 128-bit vectors with byte dot products.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

/// How wide the vectors of an instruction set are: all that matters where no products of bytes are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// Scalar code.
    One,
    /// 256 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// 512 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512Vnni),
}

/// Work that [`Lanes::run`] compiles. A closure that is large is compiled once for all widths, hence for the narrowest;
/// whoever wants to be sure implements this for a type and marks it `#[inline(always)]`.
pub trait Work {
    /// Its result.
    type Result;

    /// Does it.
    fn done(self) -> Self::Result;
}

impl<R, F: FnOnce() -> R> Work for F {
    type Result = R;

    #[inline(always)]
    fn done(self) -> R {
        self()
    }
}

impl Lanes {
    /// Runs `work` compiled for vectors of this width: for loops that the compiler turns into vectors by itself.
    #[inline(always)]
    pub fn run<W: Work>(self, work: W) -> W::Result {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn wide<W: Work>(work: W) -> W::Result {
            work.done()
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn half<W: Work>(work: W) -> W::Result {
            work.done()
        }
        match self {
            Self::One => work.done(),
            // SAFETY: the token proves the features.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code, reason = "a call that a token has proved possible")]
            Self::Avx2(_) => unsafe { half(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code, reason = "a call that a token has proved possible")]
            Self::Avx512(_) => unsafe { wide(work) },
        }
    }
}

/// Proof of AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// Proof of AVX2 and AVX-VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvxVnni(Avx2);

/// Proof of AVX-512 F, BW, DQ, VL and VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Vnni(());

/// Proof of AVX-512 VBMI (bytes permuted across whole vectors) beside [`Avx512Vnni`]. No instruction set of its own: where a
/// kernel is quicker with it, it has another way without.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Vbmi(());

/// Proof of AMX-INT8, of the system's permission to use tiles, and of AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amx(Avx512Vnni);

/// Proof of NEON's dot products.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon(());

#[cfg(target_arch = "aarch64")]
impl Neon {
    /// The token, if the processor has the features.
    #[must_use]
    pub fn detect() -> Option<Self> {
        (std::arch::is_aarch64_feature_detected!("neon") && std::arch::is_aarch64_feature_detected!("dotprod"))
            .then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The token, if the processor has the features.
    #[must_use]
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl AvxVnni {
    /// The token, if the processor has the features.
    #[must_use]
    pub fn detect() -> Option<Self> {
        is_x86_feature_detected!("avxvnni").then(Avx2::detect).flatten().map(Self)
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

#[cfg(target_arch = "x86_64")]
impl Avx512Vbmi {
    /// The token, if the processor has the features.
    #[must_use]
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512vbmi") && Avx512Vnni::detect().is_some()).then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Amx {
    /// The token, if the processor has the features and the system lets this process use them.
    #[must_use]
    pub fn detect() -> Option<Self> {
        static PERMITTED: OnceLock<bool> = OnceLock::new();
        // Leaf 7: bit 24 of EDX is AMX-TILE, bit 25 AMX-INT8.
        let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
        let found = features & (3 << 24) == 3 << 24 && *PERMITTED.get_or_init(tiles_permitted);
        found.then(Avx512Vnni::detect).flatten().map(Self)
    }

    /// The vectors beside the tiles.
    #[must_use]
    pub fn vectors(self) -> Avx512Vnni {
        self.0
    }
}

/// Asks the system for the tiles' state, which it saves only for processes that have asked. All threads of the process,
/// running or not, may use tiles then.
#[cfg(target_arch = "x86_64")]
fn tiles_permitted() -> bool {
    #[cfg(target_os = "linux")]
    {
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const XFEATURE_XTILEDATA: u64 = 18;
        let result: i64;
        // SAFETY: the call takes two integers and touches no memory of this process.
        #[allow(unsafe_code, reason = "the standard library has no arch_prctl")]
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        result == 0
    }
    #[cfg(not(target_os = "linux"))]
    false
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
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64")),
            expect(unused_mut, reason = "no other has more")
        )]
        let mut variants = vec![Self::Reference];
        #[cfg(target_arch = "x86_64")]
        {
            variants.extend(Avx2::detect().map(Self::Avx2));
            variants.extend(AvxVnni::detect().map(Self::AvxVnni));
            variants.extend(Avx512Vnni::detect().map(Self::Avx512Vnni));
            variants.extend(Amx::detect().map(Self::Amx));
        }
        #[cfg(target_arch = "aarch64")]
        variants.extend(Neon::detect().map(Self::Neon));
        variants
    }

    /// The vectors it has.
    #[must_use]
    pub fn lanes(self) -> Lanes {
        match self {
            Self::Reference => Lanes::One,
            // Whatever the compiler makes of scalar code: it knows that NEON is there.
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => Lanes::One,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(isa) | Self::AvxVnni(AvxVnni(isa)) => Lanes::Avx2(isa),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(isa) | Self::Amx(Amx(isa)) => Lanes::Avx512(isa),
        }
    }

    /// The name in `TPUFLOW_ISA` and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(_) => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) => "amx",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
        }
    }

    /// The instruction set `TPUFLOW_ISA` names, else the fastest; decided at the first call. Where the variable names
    /// anything else, [`Self::check`] says so, which whoever runs a graph asks first.
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
