// Rows as 16-bit integers, docs/arithmetic.md section 2: a workgroup a slice. q = 256 hi + lo, the
// bytes in two planes; sums of both over 16 values, since a block is some of those.

struct Params {
    nothing: u32,
    // Rows times slices, and workgroups along x.
    count: u32,
    across: u32,
    width: u32,
    slices: u32,
}

var<immediate> p: Params;

// Words of 4 bytes: for a row and 16 values 4 of the upper bytes, then 4 of the lower ones.
@group(0) @binding(0) var<storage, read_write> planes: array<u32>;
// The sum of the upper bytes above that of the lower ones, of 16 values.
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;
// A scale a slice; that of a spoilt one is no number.
@group(0) @binding(2) var<storage, read_write> scales: array<f32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;

var<workgroup> largest: array<u32, 64>;
var<workgroup> halves: array<vec2<i32>, 64>;

@compute @workgroup_size(64)
fn quantise(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = group.y * p.across + group.x;
    let within = index < p.count;
    let row = index / p.slices;
    let slice = index % p.slices;
    let begin = slice * 256u + 4u * local;
    var values = vec4(0.0);
    var most = 0u;
    for (var i = 0u; i < 4u; i++) {
        if within && begin + i < p.width {
            let value = x[row * p.width + begin + i];
            values[i] = value;
            most = max(most, bitcast<u32>(value) & 0x7fffffffu);
        }
    }
    largest[local] = most;
    for (var width = 32u; width > 0u; width >>= 1u) {
        workgroupBarrier();
        if local < width {
            largest[local] = max(largest[local], largest[local + width]);
        }
    }
    workgroupBarrier();
    let bits = largest[0];
    let amax = bitcast<f32>(bits);
    // 2^-30 and 2^60.
    let some = bits >= 0x30800000u && bits < 0x5d800000u;
    let inv = over(32639.0, select(1.0, amax, some));
    var high = 0u;
    var low = 0u;
    var sum = vec2(0);
    for (var i = 0u; i < 4u; i++) {
        let q = i32(clamp(round(select(0.0, values[i] * inv, some)), -32639.0, 32639.0));
        let lo = (q << 24u) >> 24u;
        let hi = (q - lo) >> 8u;
        sum += vec2(hi, lo);
        high |= (u32(hi) & 255u) << (8u * i);
        low |= (u32(lo) & 255u) << (8u * i);
    }
    halves[local] = sum;
    workgroupBarrier();
    if !within {
        return;
    }
    let piece = (row * p.slices + slice) * 16u + local / 4u;
    planes[piece * 8u + local % 4u] = high;
    planes[piece * 8u + 4u + local % 4u] = low;
    if local % 4u == 0u {
        let all = halves[local] + halves[local + 1u] + halves[local + 2u] + halves[local + 3u];
        sums[piece] = (u32(all.x) << 16u) | (u32(all.y) & 0xffffu);
    }
    if local == 0u {
        let d = select(0.0, over(select(1.0, amax, some), 32639.0), some);
        scales[index] = select(d, spoilt(), bits >= 0x5d800000u);
    }
}
