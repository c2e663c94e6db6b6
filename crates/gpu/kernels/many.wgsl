// Linear layers over block formats for many rows: a tile of 32 outputs by four rows a thread, 128
// values of K at a time in the workgroup's memory, codes opened and scales read once for all rows.

// Rows of a workgroup, in fours; 16 at most.
override FOURS: u32 = 16u;

// Of a row eight pieces, both planes; one more keeps rows apart in the memory's banks.
const ROW_WORDS: u32 = 17u;

var<workgroup> staged: array<vec4<u32>, 1088>;
var<workgroup> staged_sums: array<u32, 512>;
// Eight pieces by 32 outputs.
var<workgroup> staged_codes: array<vec4<u32>, 256>;
// Blocks by 32 outputs: scales and offsets.
var<workgroup> staged_affine: array<vec2<f32>, 256>;

// Values `begin ..` along K of 32 outputs and of rows `first ..`.
fn stage(begin: u32, first: u32, pair: u32, local: u32) {
    let pieces = p.slices * 16u;
    let threads = 16u * FOURS;
    let piece = begin >> 4u;
    let last_tile = ((p.outputs + 15u) >> 4u) - 1u;
    let values = min(128u, p.width - begin);
    workgroupBarrier();
    for (var i = local; i < 32u * FOURS; i += threads) {
        let row = i >> 3u;
        let at = min(first + row, p.rows - 1u) * pieces + piece + (i & 7u);
        staged[row * ROW_WORDS + 2u * (i & 7u)] = planes[2u * at];
        staged[row * ROW_WORDS + 2u * (i & 7u) + 1u] = planes[2u * at + 1u];
        staged_sums[i] = sums[at];
    }
    for (var i = local; i < 2u * values; i += threads) {
        let tile = min(2u * pair + ((i >> 4u) & 1u), last_tile);
        staged_codes[i] = codes_at(tile * (p.width >> 4u) + piece + (i >> 5u), i & 15u);
    }
    for (var i = local; i < 32u * (values >> LOG); i += threads) {
        let tile = min(2u * pair + ((i >> 4u) & 1u), last_tile);
        let block = (begin >> LOG) + (i >> 5u);
        staged_affine[i] = affine_at(tile, p.width >> LOG, block, i & 15u);
    }
    workgroupBarrier();
}

@compute @workgroup_size(16u * FOURS)
fn many(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let output = local & 15u;
    let first = group.y * 4u * FOURS;
    let own = (local >> 4u) * 4u;
    var level0: array<vec2<f32>, 4>;
    var level1: array<vec2<f32>, 4>;
    var level2: array<vec2<f32>, 4>;
    var total: array<vec2<f32>, 4>;
    for (var k = 0u; k < 8u; k++) {
        var g: array<vec2<f32>, 4>;
        for (var slice = p.starts[k]; slice < p.starts[k + 1u]; slice++) {
            var acc: array<vec2<f32>, 4>;
            for (var half = 0u; half < 2u; half++) {
                let begin = 256u * slice + 128u * half;
                if begin >= p.width {
                    break;
                }
                stage(begin, first, group.x, local);
                for (var b = 0u; b < (128u >> LOG); b++) {
                    if begin + (b << LOG) >= p.width {
                        break;
                    }
                    var dots: array<vec4<i32>, 4>;
                    var all: array<vec2<i32>, 4>;
                    for (var i = 0u; i < (1u << (LOG - 4u)); i++) {
                        let piece = (b << (LOG - 4u)) + i;
                        let w = staged_codes[32u * piece + output];
                        let v = staged_codes[32u * piece + 16u + output];
                        for (var r = 0u; r < 4u; r++) {
                            let at = (own + r) * ROW_WORDS + 2u * piece;
                            let high = staged[at];
                            let low = staged[at + 1u];
                            dots[r] += vec4(dot16(w, high), dot16(w, low), dot16(v, high),
                                dot16(v, low));
                            if SUMS {
                                all[r] += halves_of(staged_sums[(own + r) * 8u + piece]);
                            }
                        }
                    }
                    let a = staged_affine[32u * b + output];
                    let c = staged_affine[32u * b + 16u + output];
                    for (var r = 0u; r < 4u; r++) {
                        let zeros = p.zero * all[r];
                        acc[r].x = fused(float_of(dots[r].xy + zeros), a.x, acc[r].x);
                        acc[r].y = fused(float_of(dots[r].zw + zeros), c.x, acc[r].y);
                        if OFFSETS {
                            acc[r].x = fused(float_of(all[r]), a.y, acc[r].x);
                            acc[r].y = fused(float_of(all[r]), c.y, acc[r].y);
                        }
                    }
                }
            }
            for (var r = 0u; r < 4u; r++) {
                let step = steps[min(first + own + r, p.rows - 1u) * p.slices + slice];
                g[r] = vec2(fused(acc[r].x, step, g[r].x), fused(acc[r].y, step, g[r].y));
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
    let n = 32u * group.x + output;
    for (var r = 0u; r < 4u; r++) {
        let row = first + own + r;
        if row < p.rows && n < p.outputs {
            out[row * p.stride + p.first + n] = settled(total[r].x);
        }
        if row < p.rows && n + 16u < p.outputs {
            out[row * p.stride + p.first + n + 16u] = settled(total[r].y);
        }
    }
}

fn settled(total: f32) -> f32 {
    return finished(total, (bitcast<u32>(total) & 0x7fffffffu) >= 0x7f800000u);
}
