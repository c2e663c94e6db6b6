// Linear layers over block formats, docs/arithmetic.md section 2.

struct Params {
    nothing: u32,
    rows: u32,
    // Outputs of this part of the matrix, where they begin in `out`, and the width of `out`.
    outputs: u32,
    first: u32,
    stride: u32,
    width: u32,
    slices: u32,
    // log2 of the values of a block.
    log: u32,
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
// Whether blocks have offsets.
override OFFSETS: bool = false;

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

// A tile of outputs by the eight groups of K, ROWS rows (8 at most).
@compute @workgroup_size(128)
fn few(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let output = local & 15u;
    let k = local >> 4u;
    let tile = group.x;
    let first = group.y * ROWS;
    let pieces = p.slices * 16u;
    let blocks = p.width >> p.log;
    let wanted = OFFSETS || p.zero != 0;
    var g: array<f32, 8>;
    for (var slice = p.starts[k]; slice < p.starts[k + 1u]; slice++) {
        var acc: array<f32, 8>;
        let end = min((slice + 1u) * 256u, p.width) >> p.log;
        for (var block = (slice * 256u) >> p.log; block < end; block++) {
            var dots: array<vec2<i32>, 8>;
            var all: array<vec2<i32>, 8>;
            let last = (block + 1u) << (p.log - 4u);
            for (var piece = block << (p.log - 4u); piece < last; piece++) {
                let w = codes_at(tile * (p.width >> 4u) + piece, output);
                for (var r = 0u; r < ROWS; r++) {
                    let at = min(first + r, p.rows - 1u) * pieces + piece;
                    dots[r] += vec2(dot16(w, planes[2u * at]), dot16(w, planes[2u * at + 1u]));
                    if wanted {
                        all[r] += halves_of(sums[at]);
                    }
                }
            }
            let affine = affine_at(tile, blocks, block, output);
            for (var r = 0u; r < ROWS; r++) {
                acc[r] = fused(float_of(dots[r] + p.zero * all[r]), affine.x, acc[r]);
                if OFFSETS {
                    acc[r] = fused(float_of(all[r]), affine.y, acc[r]);
                }
            }
        }
        for (var r = 0u; r < ROWS; r++) {
            let step = steps[min(first + r, p.rows - 1u) * p.slices + slice];
            g[r] = fused(acc[r], step, g[r]);
        }
    }
    for (var r = 0u; r < ROWS; r++) {
        parts[(r * 8u + k) * 16u + output] = g[r];
    }
    write_tile(first, tile, local);
}

// 32 rows and 8 pieces of 16 values: both planes, then sums.
var<workgroup> staged: array<vec4<u32>, 512>;
var<workgroup> staged_sums: array<u32, 256>;

fn stage(first: u32, piece: u32, local: u32) {
    let pieces = p.slices * 16u;
    workgroupBarrier();
    for (var i = local; i < 256u; i += 128u) {
        let at = min(first + (i >> 3u), p.rows - 1u) * pieces + piece + (i & 7u);
        staged[2u * i] = planes[2u * at];
        staged[2u * i + 1u] = planes[2u * at + 1u];
        staged_sums[i] = sums[at];
    }
    workgroupBarrier();
}

// A tile of outputs by 32 rows, four a thread, along all of K.
@compute @workgroup_size(128)
fn many(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let output = local & 15u;
    let tile = group.x;
    let first = group.y * 32u;
    let own = (local >> 4u) * 4u;
    let blocks = p.width >> p.log;
    let wanted = OFFSETS || p.zero != 0;
    var level0: array<f32, 4>;
    var level1: array<f32, 4>;
    var level2: array<f32, 4>;
    var total: array<f32, 4>;
    for (var k = 0u; k < 8u; k++) {
        var g: array<f32, 4>;
        for (var slice = p.starts[k]; slice < p.starts[k + 1u]; slice++) {
            var acc: array<f32, 4>;
            for (var half = 0u; half < 2u; half++) {
                let begin = slice * 256u + half * 128u;
                stage(first, begin >> 4u, local);
                let end = min(begin + 128u, p.width) >> p.log;
                for (var block = begin >> p.log; block < end; block++) {
                    var dots: array<vec2<i32>, 4>;
                    var all: array<vec2<i32>, 4>;
                    let last = (block + 1u) << (p.log - 4u);
                    for (var piece = block << (p.log - 4u); piece < last; piece++) {
                        let w = codes_at(tile * (p.width >> 4u) + piece, output);
                        for (var r = 0u; r < 4u; r++) {
                            let at = (own + r) * 8u + (piece & 7u);
                            dots[r] += vec2(dot16(w, staged[2u * at]),
                                dot16(w, staged[2u * at + 1u]));
                            if wanted {
                                all[r] += halves_of(staged_sums[at]);
                            }
                        }
                    }
                    let affine = affine_at(tile, blocks, block, output);
                    for (var r = 0u; r < 4u; r++) {
                        acc[r] = fused(float_of(dots[r] + p.zero * all[r]), affine.x, acc[r]);
                        if OFFSETS {
                            acc[r] = fused(float_of(all[r]), affine.y, acc[r]);
                        }
                    }
                }
            }
            for (var r = 0u; r < 4u; r++) {
                let step = steps[min(first + own + r, p.rows - 1u) * p.slices + slice];
                g[r] = fused(acc[r], step, g[r]);
            }
        }
        for (var r = 0u; r < 4u; r++) {
            var sum = g[r];
            if (k & 1u) == 0u {
                level0[r] = sum;
                continue;
            }
            sum = level0[r] + sum;
            if (k & 2u) == 0u {
                level1[r] = sum;
                continue;
            }
            sum = level1[r] + sum;
            if (k & 4u) == 0u {
                level2[r] = sum;
            } else {
                total[r] = level2[r] + sum;
            }
        }
    }
    let n = tile * 16u + output;
    for (var r = 0u; r < 4u; r++) {
        let row = first + own + r;
        if row < p.rows && n < p.outputs {
            let spoiled = (bitcast<u32>(total[r]) & 0x7fffffffu) >= 0x7f800000u;
            out[row * p.stride + p.first + n] = finished(total[r], spoiled);
        }
    }
}
