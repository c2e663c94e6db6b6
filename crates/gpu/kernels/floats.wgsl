// Linear layers over float formats, docs/arithmetic.md section 3. Tiles of 16 outputs, side by side
// along K: words of f32, or of two values that follow each other.

struct Params {
    nothing: u32,
    rows: u32,
    outputs: u32,
    first: u32,
    stride: u32,
    width: u32,
    node: u32,
    starts: array<u32, 9>,
}

var<immediate> p: Params;

override ROWS: u32 = 1u;
// 0: f32, 1: f16, 2: bf16.
override KIND: u32 = 0u;

@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;

fn weight(tile: u32, i: u32, output: u32) -> f32 {
    if KIND == 0u {
        return bitcast<f32>(values[(tile * p.width + i) * 16u + output]);
    }
    let pair = values[(tile * ((p.width + 1u) >> 1u) + (i >> 1u)) * 16u + output];
    let half = (pair >> (16u * (i & 1u))) & 0xffffu;
    if KIND == 1u {
        return widened(half);
    }
    return bitcast<f32>(half << 16u);
}

@compute @workgroup_size(128)
fn floats(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let output = local & 15u;
    let k = local >> 4u;
    let tile = group.x;
    let first = group.y * ROWS;
    var g: array<f32, 8>;
    var bad: array<bool, 8>;
    for (var slice = p.starts[k]; slice < p.starts[k + 1u]; slice++) {
        var acc: array<f32, 8>;
        let end = min((slice + 1u) * 256u, p.width);
        for (var i = slice * 256u; i < end; i++) {
            let w = weight(tile, i, output);
            for (var r = 0u; r < ROWS; r++) {
                let value = x[min(first + r, p.rows - 1u) * p.width + i];
                bad[r] = bad[r] || spoils(value);
                acc[r] = fused(w, value, acc[r]);
            }
        }
        for (var r = 0u; r < ROWS; r++) {
            g[r] = g[r] + acc[r];
        }
    }
    for (var r = 0u; r < ROWS; r++) {
        parts[(r * 8u + k) * 16u + output] = select(g[r], spoilt(), bad[r]);
    }
    write_tile(first, tile, local, 128u);
}
