// Norms of rows or heads, a workgroup each; squares in 32 strided lanes.

struct Params {
    nothing: u32,
    // Rows or heads, and workgroups along x.
    count: u32,
    across: u32,
    width: u32,
    eps: f32,
    // 1 / width.
    share: f32,
    // L2: heads a row, values a row, query heads, the queries' scale.
    heads: u32,
    stride: u32,
    queries: u32,
    scale: f32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read> other: array<f32>;

// Threads of a workgroup; 256 at most.
override THREADS: u32 = 64u;
// Values that are in the workgroup's memory at once.
const STAGED: u32 = 2048u;

var<workgroup> lanes: array<f32, 32>;
var<workgroup> spoils_any: array<u32, 256>;
var<workgroup> staged: array<f32, 2048>;

fn fold(local: u32) {
    for (var width = 16u; width > 0u; width >>= 1u) {
        workgroupBarrier();
        var sum = 0.0;
        if local < width {
            sum = lanes[local] + lanes[local + width];
        }
        workgroupBarrier();
        if local < width {
            lanes[local] = sum;
        }
    }
    workgroupBarrier();
}

fn flag(local: u32, spoilt: bool) -> bool {
    spoils_any[local] = select(0u, 1u, spoilt);
    for (var width = THREADS / 2u; width > 0u; width >>= 1u) {
        workgroupBarrier();
        if local < width {
            spoils_any[local] |= spoils_any[local + width];
        }
    }
    workgroupBarrier();
    return spoils_any[0] != 0u;
}

// A row of `other`, times `weights`, to `out`.
@compute @workgroup_size(THREADS)
fn rms(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let row = group.y * p.across + group.x;
    let at = row * p.width;
    let within = row < p.count;
    let spoiled = others(at, within, local);
    let r = inverse(root(fused(lanes[0], p.share, p.eps)));
    if within {
        for (var i = local; i < p.width; i += THREADS) {
            let y = z((other[at + i] * r) * weights[i]);
            out[at + i] = select(y, spoilt(), spoiled);
        }
    }
}

// A head of `out` in place, times `weights`.
@compute @workgroup_size(THREADS)
fn head(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let row = group.y * p.across + group.x;
    let at = row * p.width;
    let within = row < p.count;
    let spoiled = squares(at, within, local);
    let r = inverse(root(fused(lanes[0], p.share, p.eps)));
    if within {
        for (var i = local; i < p.width; i += THREADS) {
            let y = z((out[at + i] * r) * weights[i]);
            out[at + i] = select(y, spoilt(), spoiled);
        }
    }
}

// As `head`, times silu of the same place of `other`.
@compute @workgroup_size(THREADS)
fn gated(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let row = group.y * p.across + group.x;
    let at = row * p.width;
    let within = row < p.count;
    let spoiled = squares(at, within, local);
    let r = inverse(root(fused(lanes[0], p.share, p.eps)));
    if within {
        for (var i = local; i < p.width; i += THREADS) {
            let y = z(((out[at + i] * r) * weights[i]) * silu(other[at + i]));
            out[at + i] = select(y, spoilt(), spoiled);
        }
    }
}

// Query and key heads of channels after the convolution, in place.
@compute @workgroup_size(THREADS)
fn unit(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = group.y * p.across + group.x;
    let within = index < p.count;
    let head = index % p.heads;
    let at = index / p.heads * p.stride + head * p.width;
    let spoiled = squares(at, within, local);
    let r = inverse(root(lanes[0] + p.eps));
    if within {
        for (var i = local; i < p.width; i += THREADS) {
            let x = out[at + i] * r;
            let y = z(select(x, x * p.scale, head < p.queries));
            out[at + i] = select(y, spoilt(), spoiled);
        }
    }
}

// The folded squares of a head of `out` to the first lane, and whether it is spoilt. All threads
// read; the 32 lanes add up.
fn squares(at: u32, within: bool, local: u32) -> bool {
    var sum = 0.0;
    var bad = false;
    for (var begin = 0u; begin < p.width; begin += STAGED) {
        let values = min(STAGED, p.width - begin);
        workgroupBarrier();
        for (var i = local; within && i < values; i += THREADS) {
            staged[i] = out[at + begin + i];
            bad = bad || spoils(staged[i]);
        }
        workgroupBarrier();
        sum = added(sum, values, within, local);
    }
    return settled(sum, bad, local);
}

// The same of a row of `other`.
fn others(at: u32, within: bool, local: u32) -> bool {
    var sum = 0.0;
    var bad = false;
    for (var begin = 0u; begin < p.width; begin += STAGED) {
        let values = min(STAGED, p.width - begin);
        workgroupBarrier();
        for (var i = local; within && i < values; i += THREADS) {
            staged[i] = other[at + begin + i];
            bad = bad || spoils(staged[i]);
        }
        workgroupBarrier();
        sum = added(sum, values, within, local);
    }
    return settled(sum, bad, local);
}

// A lane's sum with the squares of what is staged.
fn added(before: f32, values: u32, within: bool, local: u32) -> f32 {
    var sum = before;
    if within && local < 32u {
        for (var i = local; i < values; i += 32u) {
            sum = fused(staged[i], staged[i], sum);
        }
    }
    return sum;
}

fn settled(sum: f32, bad: bool, local: u32) -> bool {
    if local < 32u {
        lanes[local] = sum;
    }
    let spoiled = flag(local, bad);
    fold(local);
    return spoiled;
}
