//! Elementary functions in float64 from nothing but IEEE operations, so that every processor gives the same bits.
//!
//! Arguments are reduced to a small interval where a series converges within a few terms; all coefficients are quotients of
//! small integers. Errors are a few units of float64, far below half a unit of any output type. None of these functions
//! branches on anything but comparisons of its argument, so they vectorise.
//!
//! | function | reduction | series |
//! |---|---|---|
//! | exp, expm1 | `x = n log 2 + r` | Taylor, `r^13` |
//! | log, log1p | `x = m 2^e`, `sqrt(1/2) < m <= sqrt 2` | `2 artanh((m-1)/(m+1))`, 11 terms |
//! | sin, cos | `x = n pi/2 + r` | Taylor, `r^17`, `r^18` |
//! | atan | `1/x`, two halvings of the angle | 13 terms |
//! | erf | saturates at 6 | `2/sqrt(pi) x exp(-x^2) sum (2 x^2)^n / (2n+1)!!`, 120 terms |
//!
//! The constants of log 2 and pi/2 are split so that products with `n` are exact (Cody and Waite, "Software Manual for the
//! Elementary Functions", 1980).
//!
//! Source: docs/arithmetic.md, section 16.

/// `1.5 * 2^52`: adding it rounds to the nearest integer, half to even, which then stands in the low bits.
const ROUNDER: f64 = 6_755_399_441_055_744.0;
/// The upper 33 bits of log 2.
const LOG2_HIGH: f64 = 6.931_471_803_691_238e-1;
/// The rest.
const LOG2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// The upper 33 bits of pi/2, the next 33, and the rest.
const HALF_PI: [f64; 3] = [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_795_950_6e-21];
/// Bits of 1.0.
const ONE: u64 = 0x3FF0_0000_0000_0000;
/// Arguments of sines beyond this are not reduced; the result is NaN.
pub const SINE_LIMIT: f64 = 4_294_967_296.0;
/// Terms of the series of erf.
pub const ERF_TERMS: u32 = 120;

/// Horner's rule, the highest coefficient first.
#[inline(always)]
fn horner<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    let mut sum = coefficients[0];
    for c in &coefficients[1..] {
        sum = sum * x + c;
    }
    sum
}

/// `2^n` and `e^r - 1` for `x = n log 2 + r`, `x` held to -708..=709.
#[inline(always)]
fn power(x: f64) -> (f64, f64) {
    let x = if x > 709.0 { 709.0 } else { x };
    let x = if x < -708.0 { -708.0 } else { x };
    let shifted = x * std::f64::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = (x - n * LOG2_HIGH) - n * LOG2_LOW;
    let series = horner(
        r,
        [
            1.0 / 6_227_020_800.0,
            1.0 / 479_001_600.0,
            1.0 / 39_916_800.0,
            1.0 / 3_628_800.0,
            1.0 / 362_880.0,
            1.0 / 40_320.0,
            1.0 / 5_040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            1.0 / 2.0,
        ],
    );
    (f64::from_bits((shifted.to_bits() << 52).wrapping_add(ONE)), series * r * r + r)
}

/// `e^x`; at most `e^709`, at least `e^-708`.
#[inline(always)]
#[must_use]
pub fn exp(x: f64) -> f64 {
    let (scale, rest) = power(x);
    (rest + 1.0) * scale
}

/// `e^x - 1`.
#[inline(always)]
#[must_use]
pub fn exp_m1(x: f64) -> f64 {
    let (scale, rest) = power(x);
    rest * scale + (scale - 1.0)
}

/// Natural logarithm; that of 0 is minus infinity, of a negative number NaN.
#[inline(always)]
#[must_use]
pub fn log(x: f64) -> f64 {
    // Subnormal numbers first become normal.
    let small = x < f64::MIN_POSITIVE;
    let (scaled, lift) = if small { (x * 18_014_398_509_481_984.0, 54.0) } else { (x, 0.0) };
    let bits = scaled.to_bits();
    let fraction = f64::from_bits((bits & 0x000F_FFFF_FFFF_FFFF) | ONE);
    // The exponent field as a number: it stands in the low bits of 2^52.
    let field = f64::from_bits((bits >> 52) | 0x4330_0000_0000_0000) - 4_503_599_627_370_496.0;
    let above = fraction > std::f64::consts::SQRT_2;
    let m = if above { fraction * 0.5 } else { fraction };
    let e = if above { field - 1022.0 } else { field - 1023.0 } - lift;
    let f = m - 1.0;
    let s = f / (f + 2.0);
    let z = s * s;
    let series = horner(
        z,
        [
            1.0 / 21.0,
            1.0 / 19.0,
            1.0 / 17.0,
            1.0 / 15.0,
            1.0 / 13.0,
            1.0 / 11.0,
            1.0 / 9.0,
            1.0 / 7.0,
            1.0 / 5.0,
            1.0 / 3.0,
        ],
    );
    let twice = s + s;
    let value = e * LOG2_HIGH + (e * LOG2_LOW + (twice + twice * z * series));
    let value = if x == 0.0 { f64::NEG_INFINITY } else { value };
    let value = if x < 0.0 { f64::NAN } else { value };
    // Infinity and NaN are their own logarithms.
    if x < f64::INFINITY { value } else { x }
}

/// `log(1 + x)`, exact to the relative error of `x` itself near 0.
#[inline(always)]
#[must_use]
pub fn log_1p(x: f64) -> f64 {
    let u = x + 1.0;
    let value = log(u) * (x / (u - 1.0));
    let value = if u == 1.0 { x } else { value };
    if x < f64::INFINITY { value } else { x }
}

/// Sine and cosine of `r` and `n modulo 4` for `x = n pi/2 + r`.
#[inline(always)]
fn sin_cos_quadrant(x: f64) -> (f64, f64, f64) {
    let x = if x > -SINE_LIMIT { x } else { f64::NAN };
    let x = if x < SINE_LIMIT { x } else { f64::NAN };
    let n = (x * std::f64::consts::FRAC_2_PI + ROUNDER) - ROUNDER;
    let r = ((x - n * HALF_PI[0]) - n * HALF_PI[1]) - n * HALF_PI[2];
    let z = r * r;
    let sine = horner(
        z,
        [
            1.0 / 355_687_428_096_000.0,
            -1.0 / 1_307_674_368_000.0,
            1.0 / 6_227_020_800.0,
            -1.0 / 39_916_800.0,
            1.0 / 362_880.0,
            -1.0 / 5_040.0,
            1.0 / 120.0,
            -1.0 / 6.0,
        ],
    );
    let cosine = horner(
        z,
        [
            -1.0 / 6_402_373_705_728_000.0,
            1.0 / 20_922_789_888_000.0,
            -1.0 / 87_178_291_200.0,
            1.0 / 479_001_600.0,
            -1.0 / 3_628_800.0,
            1.0 / 40_320.0,
            -1.0 / 720.0,
            1.0 / 24.0,
            -1.0 / 2.0,
        ],
    );
    (r * z * sine + r, z * cosine + 1.0, n - 4.0 * (n * 0.25).floor())
}

/// Sine of radians below 2^32.
#[inline(always)]
#[must_use]
pub fn sin(x: f64) -> f64 {
    let (sine, cosine, n) = sin_cos_quadrant(x);
    let value = if n == 1.0 || n == 3.0 { cosine } else { sine };
    if n >= 2.0 { -value } else { value }
}

/// Cosine of radians below 2^32.
#[inline(always)]
#[must_use]
pub fn cos(x: f64) -> f64 {
    let (sine, cosine, n) = sin_cos_quadrant(x);
    let value = if n == 1.0 || n == 3.0 { sine } else { cosine };
    if n == 1.0 || n == 2.0 { -value } else { value }
}

/// Arc tangent.
#[inline(always)]
#[must_use]
pub fn atan(x: f64) -> f64 {
    let a = x.abs();
    let above = a > 1.0;
    let a = if above { 1.0 / a } else { a };
    let half = a / (1.0 + (1.0 + a * a).sqrt());
    let t = half / (1.0 + (1.0 + half * half).sqrt());
    let z = t * t;
    let series = horner(
        z,
        [
            1.0 / 25.0,
            -1.0 / 23.0,
            1.0 / 21.0,
            -1.0 / 19.0,
            1.0 / 17.0,
            -1.0 / 15.0,
            1.0 / 13.0,
            -1.0 / 11.0,
            1.0 / 9.0,
            -1.0 / 7.0,
            1.0 / 5.0,
            -1.0 / 3.0,
        ],
    );
    let value = 4.0 * (t * z * series + t);
    let value = if above { std::f64::consts::FRAC_PI_2 - value } else { value };
    value.copysign(x)
}

/// Error function.
#[must_use]
pub fn erf(x: f64) -> f64 {
    let mut value = [0.0];
    erf_block(&[x], &mut value);
    value[0]
}

/// Error function of a block: the series runs over all of them term by term, so that vectors lie across arguments.
#[inline(always)]
pub fn erf_block<const N: usize>(x: &[f64; N], out: &mut [f64; N]) {
    let held = |x: f64| if x.abs() > 6.0 { 6.0 } else { x.abs() };
    let twice = x.map(|x| 2.0 * (held(x) * held(x)));
    let mut sums = [1.0; N];
    for n in (1..=ERF_TERMS).rev() {
        let factor = 1.0 / f64::from(2 * n + 1);
        for (sum, twice) in sums.iter_mut().zip(&twice) {
            *sum = *sum * (twice * factor) + 1.0;
        }
    }
    for ((out, &x), sum) in out.iter_mut().zip(x).zip(sums) {
        let a = held(x);
        let value = std::f64::consts::FRAC_2_SQRT_PI * a * exp(-(a * a)) * sum;
        let value = if value > 1.0 || a >= 6.0 { 1.0 } else { value };
        *out = value.copysign(x);
    }
}

/// The larger; NaN if either is, -0 below +0.
#[inline(always)]
#[must_use]
pub fn maximum(a: f64, b: f64) -> f64 {
    let value = if a > b { a } else { b };
    let value = if a == b { f64::from_bits(a.to_bits() & b.to_bits()) } else { value };
    if a.is_nan() { a } else { value }
}

/// The smaller; NaN if either is, -0 below +0.
#[inline(always)]
#[must_use]
pub fn minimum(a: f64, b: f64) -> f64 {
    let value = if a < b { a } else { b };
    let value = if a == b { f64::from_bits(a.to_bits() | b.to_bits()) } else { value };
    if a.is_nan() { a } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(name: &str, found: f64, expected: f64, argument: f64) {
        let error = (found - expected).abs() / expected.abs().max(1e-300);
        assert!(
            error < 4e-15 || (found - expected).abs() < 1e-300,
            "{name}({argument:e}) = {found:e}, not {expected:e}"
        );
    }

    /// Against the platform's library, which is good to a unit or two.
    #[test]
    fn near_the_platforms() {
        for i in -4000..=4000 {
            let x = f64::from(i) * 0.0173;
            for x in [x, x * 1e-3, x * 1e-9] {
                close("exp", exp(x), x.exp(), x);
                close("exp_m1", exp_m1(x), x.exp_m1(), x);
                close("atan", atan(x), x.atan(), x);
                assert!((sin(x) - x.sin()).abs() < 4e-16 && (cos(x) - x.cos()).abs() < 4e-16, "sine of {x:e}");
                if x > 0.0 {
                    close("log", log(x), x.ln(), x);
                    close("log_1p", log_1p(x), x.ln_1p(), x);
                }
            }
        }
        close("sin", sin(1e-20), 1e-20, 1e-20);
        close("sin", sin(1e6), 1e6_f64.sin(), 1e6);
        close("log", log(5e-324), 5e-324_f64.ln(), 5e-324);
        close("log_1p", log_1p(-0.999), (-0.999_f64).ln_1p(), -0.999);
    }

    #[test]
    fn special_arguments() {
        assert_eq!((exp(0.0), exp_m1(0.0), log(1.0), log_1p(0.0)), (1.0, 0.0, 0.0, 0.0));
        assert_eq!((log(0.0), log(f64::INFINITY), log_1p(-1.0)), (f64::NEG_INFINITY, f64::INFINITY, f64::NEG_INFINITY));
        assert!(log(-1.0).is_nan() && log_1p(-2.0).is_nan() && sin(f64::INFINITY).is_nan() && cos(5e9).is_nan());
        assert_eq!(exp(1e9) as f32, f32::INFINITY);
        assert_eq!(exp(-1e9) as f32, 0.0);
        assert_eq!((exp_m1(-1e9), erf(7.0), erf(-7.0)), (-1.0, 1.0, -1.0));
        assert_eq!((atan(f64::INFINITY), atan(-0.0).to_bits()), (std::f64::consts::FRAC_PI_2, (-0.0f64).to_bits()));
        for function in [exp, exp_m1, log, log_1p, sin, cos, atan, erf] {
            assert!(function(f64::NAN).is_nan());
        }
        assert_eq!(maximum(-0.0, 0.0).to_bits(), 0);
        assert_eq!(minimum(0.0, -0.0).to_bits(), (-0.0f64).to_bits());
        assert!(maximum(f64::NAN, 1.0).is_nan() && maximum(1.0, f64::NAN).is_nan() && minimum(1.0, f64::NAN).is_nan());
    }

    /// Values to 17 digits from Abramowitz and Stegun's definition, summed with integers.
    #[test]
    fn erf_of_known_arguments() {
        for (x, expected) in [
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
            (4.5, 0.999_999_999_803_383_9),
        ] {
            assert!((erf(x) - expected).abs() < 4e-15, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x).to_bits(), (-erf(x)).to_bits());
        }
        close("erf", erf(1e-8), std::f64::consts::FRAC_2_SQRT_PI * 1e-8, 1e-8);
    }
}
