// The start-up probe: one rule of docs/arithmetic.md a case, compared with the reference by bits.

struct Params {
    nothing: u32,
    count: u32,
    // One, which no compiler knows.
    one: f32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> out: array<u32>;
// Rule, then operands.
@group(0) @binding(1) var<storage, read> cases: array<vec4<u32>>;

@compute @workgroup_size(64)
fn probe(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = group.x * 64u + local;
    if i >= p.count {
        return;
    }
    let a = bitcast<f32>(cases[i].y);
    let b = bitcast<f32>(cases[i].z);
    let c = bitcast<f32>(cases[i].w);
    var value = 0.0;
    switch cases[i].x {
        case 0u: { value = fused(a, b, c); }
        case 1u: { value = over(a, b); }
        case 2u: { value = inverse(a); }
        case 3u: { value = root(a); }
        case 4u: { value = whole(a * b) + c; }
        case 5u: { value = z(a * p.one); }
        case 6u: { value = widened(cases[i].y); }
        case 7u: { value = f32(narrowed(a)); }
        case 8u: { value = round(a * b); }
        case 9u: { value = exp_own(a); }
        case 10u: { value = log1p_own(a); }
        case 11u: {
            let sum = vec2(dot4I8Packed(cases[i].y, cases[i].z),
                dot4I8Packed(cases[i].y, cases[i].w));
            value = f32(sum.x) * 256.0 + f32(sum.y);
        }
        // One more, so that no compiler takes the integer for a float that has a sign of zero.
        case 12u: { value = f32(i32(round(a)) + i32(cases[i].z)); }
        case 13u: { value = (a + b) * c; }
        default: {}
    }
    out[i] = bitcast<u32>(value);
}
