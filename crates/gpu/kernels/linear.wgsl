// Linear layers over block formats, docs/arithmetic.md section 2: what all kernels share, and the
// one that takes a few rows.

struct Params {
    nothing: u32,
    rows: u32,
    // Outputs of this part of the matrix, where they begin in `out`, and the width of `out`.
    outputs: u32,
    first: u32,
    stride: u32,
    width: u32,
    slices: u32,
    // What is added to a code.
    zero: i32,
    // Whether the outputs are a node of the tree, not flushed.
    node: u32,
    // Where the eight groups begin, in slices.
    starts: array<u32, 9>,
}

var<immediate> p: Params;

// Rows at once.
override ROWS: u32 = 1u;
// Slices at once.
override LANES: u32 = 8u;
// Whether blocks have offsets; whether sums of activations are wanted, for those or for `zero`.
override OFFSETS: bool = false;
override SUMS: bool = false;

@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read> planes: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> sums: array<u32>;
@group(0) @binding(5) var<storage, read> steps: array<f32>;

fn dot16(w: vec4<u32>, q: vec4<u32>) -> i32 {
    return dot4I8Packed(w.x, q.x) + dot4I8Packed(w.y, q.y) + dot4I8Packed(w.z, q.z)
        + dot4I8Packed(w.w, q.w);
}

fn halves_of(word: u32) -> vec2<i32> {
    return vec2(bitcast<i32>(word) >> 16u, bitcast<i32>(word << 16u) >> 16u);
}

// Below 2^30 in two parts below 2^24: the product is exact, so the sum rounds once.
fn float_of(sum: vec2<i32>) -> f32 {
    return f32(sum.x) * 256.0 + f32(sum.y);
}

// Rows `first ..` of an output over a slice. What it reads of the matrix is asked for at once,
// before any of it is used.
fn slice_of(slice: u32, first: u32, tile: u32, output: u32) -> array<f32, 8> {
    let pieces = p.slices * 16u;
    let blocks = p.width >> LOG;
    // Values that eight words hold.
    let span = select(256u, 128u, BYTES);
    let last = (p.width >> select(5u, 4u, BYTES)) - 1u;
    let words = tile * (last + 1u);
    let values = min(256u, p.width - 256u * slice);
    var acc: array<f32, 8>;
    for (var begin = 0u; begin < values; begin += span) {
        let word = (256u * slice + begin) >> select(5u, 4u, BYTES);
        var w: array<vec4<u32>, 8>;
        for (var i = 0u; i < 8u; i++) {
            w[i] = codes[(words + min(word + i, last)) * 16u + output];
        }
        for (var b = 0u; b < (span >> LOG); b++) {
            if begin + (b << LOG) >= values {
                break;
            }
            var dots: array<vec2<i32>, 8>;
            var all: array<vec2<i32>, 8>;
            for (var i = 0u; i < (1u << (LOG - 4u)); i++) {
                let piece = (b << (LOG - 4u)) + i;
                var code: vec4<u32>;
                if BYTES {
                    code = w[piece];
                } else {
                    let both = w[piece >> 1u];
                    code = opened(select(both.xy, both.zw, (piece & 1u) == 1u));
                }
                for (var r = 0u; r < ROWS; r++) {
                    let at = min(first + r, p.rows - 1u) * pieces + 16u * slice + (begin >> 4u)
                        + piece;
                    dots[r] += vec2(dot16(code, planes[2u * at]),
                        dot16(code, planes[2u * at + 1u]));
                    if SUMS {
                        all[r] += halves_of(sums[at]);
                    }
                }
            }
            let block = ((256u * slice + begin) >> LOG) + b;
            let affine = affine_at(tile, blocks, block, output);
            for (var r = 0u; r < ROWS; r++) {
                acc[r] = fused(float_of(dots[r] + p.zero * all[r]), affine.x, acc[r]);
                if OFFSETS {
                    acc[r] = fused(float_of(all[r]), affine.y, acc[r]);
                }
            }
        }
    }
    return acc;
}

// Slices of a strip, by rows and outputs: as many as there is room for.
var<workgroup> strip: array<f32, 2048>;

// A tile of outputs over all of K, ROWS rows (8 at most): LANES slices side by side.
@compute @workgroup_size(16u * LANES)
fn few(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let output = local & 15u;
    let tile = group.x;
    let first = group.y * ROWS;
    let threads = 16u * LANES;
    for (var i = local; i < 128u * ROWS; i += threads) {
        parts[i] = 0.0;
    }
    let room = 128u / ROWS;
    for (var begin = 0u; begin < p.slices; begin += room) {
        let end = min(begin + room, p.slices);
        workgroupBarrier();
        for (var slice = begin + (local >> 4u); slice < end; slice += LANES) {
            let acc = slice_of(slice, first, tile, output);
            for (var r = 0u; r < ROWS; r++) {
                strip[((slice - begin) * ROWS + r) * 16u + output] = acc[r];
            }
        }
        workgroupBarrier();
        for (var i = local; i < 128u * ROWS; i += threads) {
            let r = i >> 7u;
            let k = (i >> 4u) & 7u;
            let row = min(first + r, p.rows - 1u) * p.slices;
            let to = min(end, p.starts[k + 1u]);
            var g = parts[i];
            for (var slice = max(begin, p.starts[k]); slice < to; slice++) {
                let acc = strip[((slice - begin) * ROWS + r) * 16u + (i & 15u)];
                g = fused(acc, steps[row + slice], g);
            }
            parts[i] = g;
        }
    }
    write_tile(first, tile, local, threads);
}
