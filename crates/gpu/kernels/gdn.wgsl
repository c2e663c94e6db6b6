// Recurrent layers, docs/arithmetic.md section 6: the convolution, its tails and the delta rule.

struct Params {
    nothing: u32,
    count: u32,
    across: u32,
    // Walks of the round; four words each before the walk of every row.
    walks: u32,
    channels: u32,
    taps: u32,
    keys: u32,
    values: u32,
    key_dim: u32,
    value_dim: u32,
    tiled: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> out: array<f32>;
// A walk: its first row, the one after its last, the place that it comes from (or none) and the
// place that it goes to; then the walk of each row.
@group(0) @binding(1) var<storage, read> walks: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
// Taps, or gates.
@group(0) @binding(3) var<storage, read> weights: array<f32>;
// Tails, or S.
@group(0) @binding(4) var<storage, read_write> state: array<f32>;

const NONE: u32 = 0xffffffffu;

// A row's channel: taps oldest first, then silu.
@compute @workgroup_size(64)
fn convolve(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = (group.y * p.across + group.x) * 64u + local;
    if index >= p.count {
        return;
    }
    let row = index / p.channels;
    let channel = index % p.channels;
    let walk = walks[4u * p.walks + row];
    if walk == NONE {
        return;
    }
    let start = walks[4u * walk];
    let place = walks[4u * walk + 2u];
    let before = p.taps - 1u;
    var sum = 0.0;
    for (var j = 0u; j < p.taps; j++) {
        var value = 0.0;
        if row + j >= start + before {
            value = x[(row + j - before) * p.channels + channel];
        } else if place != NONE {
            value = state[(place * before + row + j - start) * p.channels + channel];
        }
        sum = fused(weights[j * p.channels + channel], value, sum);
    }
    out[index] = z(silu(sum));
}

// The last rows of a walk, for the next.
@compute @workgroup_size(64)
fn tails(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = (group.y * p.across + group.x) * 64u + local;
    if index >= p.count {
        return;
    }
    let walk = index / p.channels;
    let channel = index % p.channels;
    let start = walks[4u * walk];
    let rows = walks[4u * walk + 1u] - start;
    let source = walks[4u * walk + 2u];
    let to = walks[4u * walk + 3u];
    let before = p.taps - 1u;
    // Ascending, so that a place that is its own is read before it is written.
    for (var j = 0u; j < before; j++) {
        var value = 0.0;
        if rows + j >= before {
            value = x[(start + rows + j - before) * p.channels + channel];
        } else if source != NONE {
            value = state[(source * before + rows + j) * p.channels + channel];
        }
        state[(to * before + j) * p.channels + channel] = value;
    }
}

var<workgroup> query: array<f32, 256>;
var<workgroup> key: array<f32, 256>;

// Some columns of a value head through the rows of a walk.
@compute @workgroup_size(64)
fn delta(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let v = group.x * 64u + local;
    let head = group.y;
    let walk = group.z;
    let start = walks[4u * walk];
    let end = walks[4u * walk + 1u];
    let source = walks[4u * walk + 2u];
    let to = walks[4u * walk + 3u];
    let within = v < p.value_dim;
    let key_head = select(head / (p.values / p.keys), head % p.keys, p.tiled == 1u);
    let width = p.keys * p.key_dim;
    let size = p.key_dim * p.value_dim;
    let target_at = (to * p.values + head) * size + v;
    if within && source != to {
        let begin = (source * p.values + head) * size + v;
        for (var k = 0u; k < p.key_dim; k++) {
            var s = 0.0;
            if source != NONE {
                s = state[begin + k * p.value_dim];
            }
            state[target_at + k * p.value_dim] = s;
        }
    }
    for (var row = start; row < end; row++) {
        workgroupBarrier();
        for (var k = local; k < p.key_dim; k += 64u) {
            query[k] = x[row * p.channels + key_head * p.key_dim + k];
            key[k] = x[row * p.channels + width + key_head * p.key_dim + k];
        }
        workgroupBarrier();
        if !within {
            continue;
        }
        let beta = weights[2u * row * p.values + head];
        let decay = weights[(2u * row + 1u) * p.values + head];
        var lanes = vec4(0.0);
        for (var k = 0u; k < p.key_dim; k += 4u) {
            for (var j = 0u; j < 4u; j++) {
                let s = z(state[target_at + (k + j) * p.value_dim] * decay);
                state[target_at + (k + j) * p.value_dim] = s;
                lanes[j] = fused(s, key[k + j], lanes[j]);
            }
        }
        let m = (lanes.x + lanes.z) + (lanes.y + lanes.w);
        let value = x[row * p.channels + 2u * width + head * p.value_dim + v];
        let change = z(beta * (value - m));
        lanes = vec4(0.0);
        for (var k = 0u; k < p.key_dim; k += 4u) {
            for (var j = 0u; j < 4u; j++) {
                let s = z(fused(key[k + j], change, state[target_at + (k + j) * p.value_dim]));
                state[target_at + (k + j) * p.value_dim] = s;
                lanes[j] = fused(s, query[k + j], lanes[j]);
            }
        }
        out[(row * p.values + head) * p.value_dim + v] =
            z((lanes.x + lanes.z) + (lanes.y + lanes.w));
    }
}
