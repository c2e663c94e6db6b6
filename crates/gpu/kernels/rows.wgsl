// Ops on rows value by value.

struct Params {
    nothing: u32,
    // Values, or pairs for `rope`, heads for `gates`; all rows together.
    count: u32,
    // Workgroups along x, so that y goes on where x ends.
    across: u32,
    // rope: pairs, heads, dim, whether pairs are adjacent. gates: heads.
    a: u32,
    b: u32,
    c: u32,
    d: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read> left: array<f32>;
@group(0) @binding(2) var<storage, read> right: array<f32>;
@group(0) @binding(3) var<storage, read> third: array<f32>;
@group(0) @binding(4) var<storage, read> fourth: array<f32>;

fn index(group: vec3<u32>, local: u32) -> u32 {
    return (group.y * p.across + group.x) * 64u + local;
}

@compute @workgroup_size(64)
fn add(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = index(group, local);
    if i < p.count {
        out[i] = z(out[i] + left[i]);
    }
}

@compute @workgroup_size(64)
fn gate(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = index(group, local);
    if i < p.count {
        out[i] = z(out[i] * sigmoid(left[i]));
    }
}

@compute @workgroup_size(64)
fn silu_mul(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = index(group, local);
    if i < p.count {
        out[i] = z(silu(left[i]) * right[i]);
    }
}

// `left` holds the cosines, `right` the sines.
@compute @workgroup_size(64)
fn rope(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = index(group, local);
    if i >= p.count {
        return;
    }
    let pair = i % p.a;
    let head = i / p.a;
    let row = head / p.b;
    let first = head * p.c + select(pair, 2u * pair, p.d == 1u);
    let second = first + select(p.a, 1u, p.d == 1u);
    let cosine = left[row * p.a + pair];
    let sine = right[row * p.a + pair];
    let a = out[first];
    let b = out[second];
    out[first] = z(fused(a, cosine, -(b * sine)));
    out[second] = z(fused(b, cosine, a * sine));
}

// `left` holds b, `right` a, `third` the biases of the steps, `fourth` the amplitudes.
@compute @workgroup_size(64)
fn gates(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = index(group, local);
    if i >= p.count {
        return;
    }
    let head = i % p.a;
    let row = i / p.a;
    out[2u * row * p.a + head] = z(sigmoid(left[i]));
    let step = softplus(right[i] + third[head]);
    out[(2u * row + 1u) * p.a + head] = z(exp_own(-(fourth[head] * step)));
}
