// What every kernel begins with: docs/arithmetic.md, sections 0 and 5. One file of each form of
// forms/ stands before it: `fused`, `over`, `inverse`, `root` and `whole`.

// What a spoilt row is filled with; a variable, since a constant that is no number is refused.
var<private> SPOILT_BITS: u32 = 0x7fc00000u;

fn spoilt() -> f32 {
    return bitcast<f32>(SPOILT_BITS);
}

// Whether a value spoils its row: not finite, or of magnitude 2^60 or more.
fn spoils(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) >= 0x5d800000u;
}

fn z(x: f32) -> f32 {
    return select(x, 0.0, abs(x) < 0x1p-36f);
}

// A binary16 in the low half of a word, widened exactly: in integers, but for its subnormals, which
// are a count of steps of 2^-24.
fn widened(half: u32) -> f32 {
    let sign = (half & 0x8000u) << 16u;
    let exponent = (half >> 10u) & 31u;
    let mantissa = half & 0x3ffu;
    let steps = f32(mantissa) * 0x1p-24f;
    let subnormal = select(0u, sign | bitcast<u32>(steps), mantissa != 0u);
    let shifted = (half & 0x7fffu) << 13u;
    let normal = sign | (shifted + select(0x38000000u, 0x70000000u, exponent == 31u));
    return bitcast<f32>(select(normal, subnormal, exponent == 0u));
}

// Rounded to binary16 as the cache holds it.
fn narrowed(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return 0x7e00u;
    }
    if magnitude >= 0x477ff000u {
        return sign | 0x7bffu;
    }
    if magnitude < 0x387fe000u {
        return 0u;
    }
    if magnitude < 0x38800000u {
        return sign | 0x0400u;
    }
    let even = (magnitude >> 13u) & 1u;
    return sign | (((magnitude + 0x0fffu + even) >> 13u) - (112u << 10u));
}

const LOG2E: f32 = 0x1.715476p0f;
const LN2_HI: f32 = 0x1.62e43p-1f;
const LN2_LO: f32 = -0x1.05c61p-29f;

fn exp_own(x: f32) -> f32 {
    let top = min(x, 60.0);
    let n = round(top * LOG2E);
    var r = fused(n, -LN2_HI, top);
    r = fused(n, -LN2_LO, r);
    var p = 0x1.6a4f72p-10f;
    p = fused(p, r, 0x1.12398p-7f);
    p = fused(p, r, 0x1.5558aep-5f);
    p = fused(p, r, 0x1.555492p-3f);
    p = fused(p, r, 0x1.fffffcp-2f);
    p = fused(p, r, 1.0);
    p = fused(p, r, 1.0);
    let scale = bitcast<f32>(u32(i32(clamp(n, -64.0, 96.0)) + 127) << 23u);
    let value = select(p * scale, x, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u);
    return select(value, 0.0, x < -40.0);
}

fn log1p_own(x: f32) -> f32 {
    let i = (bitcast<i32>(1.0 + x) - 0x3f400000i) & ~0x007fffffi;
    let k = f32(i >> 23u);
    let s = bitcast<f32>(0x3f800000i - i);
    let f = fused(x, s, s - 1.0);
    var p = -0x1.71a206p-5f;
    p = fused(p, f, 0x1.acd728p-4f);
    p = fused(p, f, -0x1.0d9942p-3f);
    p = fused(p, f, 0x1.2883bep-3f);
    p = fused(p, f, -0x1.54ee28p-3f);
    p = fused(p, f, 0x1.99697ap-3f);
    p = fused(p, f, -0x1.000046p-2f);
    p = fused(p, f, 0x1.5555a4p-2f);
    p = fused(p, f, -0.5);
    let value = fused(k, LN2_HI, fused(f * f, p, f));
    // What is no number, and infinity, stay.
    return select(value, x, (bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u);
}

fn sigmoid(x: f32) -> f32 {
    return inverse(1.0 + exp_own(-x));
}

fn silu(x: f32) -> f32 {
    return select(x * sigmoid(x), 0.0, x < -40.0);
}

fn softplus(x: f32) -> f32 {
    return select(log1p_own(exp_own(x)), x, x > 20.0);
}
