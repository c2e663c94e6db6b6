// Rows of a table by their ids.

struct Params {
    nothing: u32,
    // Values of all rows, and workgroups along x.
    count: u32,
    across: u32,
    width: u32,
    // The rows of the table that this part holds.
    first: u32,
    outputs: u32,
    zero: i32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read> ids: array<u32>;

@compute @workgroup_size(64)
fn embed(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
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
    let words = codes_at(tile * (p.width >> 4u) + (i >> 4u), output);
    let byte = words[(i & 15u) >> 2u] << (24u - 8u * (i & 3u));
    let w = (bitcast<i32>(byte) >> 24u) + p.zero;
    let affine = affine_at(tile, p.width >> LOG, i >> LOG, output);
    out[index] = z(fused(f32(w), affine.x, affine.y));
}
