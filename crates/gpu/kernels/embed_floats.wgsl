// Rows of a float table by their ids.

struct Params {
    nothing: u32,
    count: u32,
    across: u32,
    width: u32,
    first: u32,
    outputs: u32,
}

var<immediate> p: Params;

override KIND: u32 = 0u;

@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;

@compute @workgroup_size(64)
fn embed_floats(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = (group.y * p.across + group.x) * 64u + local;
    if index >= p.count {
        return;
    }
    let i = index % p.width;
    let id = ids[index / p.width] - p.first;
    if id >= p.outputs {
        return;
    }
    let tile = id >> 4u;
    let output = id & 15u;
    if KIND == 0u {
        out[index] = bitcast<f32>(values[(tile * p.width + i) * 16u + output]);
        return;
    }
    let pair = values[(tile * ((p.width + 1u) >> 1u) + (i >> 1u)) * 16u + output];
    let half = (pair >> (16u * (i & 1u))) & 0xffffu;
    if KIND == 1u {
        out[index] = widened(half);
    } else {
        out[index] = bitcast<f32>(half << 16u);
    }
}
