// Attention of a row and a query head: a workgroup a chunk of 512 keys, or all of them in turn.

@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> keys: array<u32>;
@group(0) @binding(4) var<storage, read> values: array<u32>;
// What chunks leave for `merge`: largest score, sum of weights, weighted values.
@group(0) @binding(5) var<storage, read_write> parts: array<f32>;

const LEAST: f32 = -0x1.fffffep127f;

var<workgroup> query: array<f32, 256>;
var<workgroup> weights: array<f32, 64>;
var<workgroup> shared_lanes: array<f32, 64>;

struct Partial {
    m: f32,
    l: f32,
    // Dims local, local + 64, local + 128, local + 192.
    o: vec4<f32>,
}

// The largest of 64 values.
fn largest(value: f32, local: u32) -> f32 {
    workgroupBarrier();
    shared_lanes[local] = value;
    for (var width = 32u; width > 0u; width >>= 1u) {
        workgroupBarrier();
        if local < width {
            shared_lanes[local] = max(shared_lanes[local], shared_lanes[local + width]);
        }
    }
    workgroupBarrier();
    return shared_lanes[0];
}

// 64 values in 32 lanes, folded.
fn folded(value: f32, local: u32) -> f32 {
    workgroupBarrier();
    shared_lanes[local] = value;
    for (var width = 32u; width > 0u; width >>= 1u) {
        workgroupBarrier();
        if local < width {
            shared_lanes[local] = shared_lanes[local] + shared_lanes[local + width];
        }
    }
    workgroupBarrier();
    return shared_lanes[0];
}

fn half_of(word: u32, i: u32) -> f32 {
    return widened((word >> (16u * (i & 1u))) & 0xffffu);
}

fn score(page: u32, key: u32) -> f32 {
    let many = words();
    var s = 0.0;
    if p.half == 1u {
        for (var d = 0u; d < p.dim; d += 2u) {
            let pair = keys[(page * many + (d >> 1u)) * 64u + key];
            s = fused(query[d], widened(pair & 0xffffu), s);
            if d + 1u < p.dim {
                s = fused(query[d + 1u], widened(pair >> 16u), s);
            }
        }
    } else {
        for (var d = 0u; d < p.dim; d++) {
            s = fused(query[d], bitcast<f32>(keys[(page * many + d) * 64u + key]), s);
        }
    }
    return whole(s * p.scale);
}

fn weighted(page: u32, d: u32, visible: u32) -> f32 {
    let many = words();
    var o = 0.0;
    if p.half == 1u {
        for (var key = 0u; key < visible; key++) {
            o = fused(weights[key], half_of(values[(page * 64u + key) * many + (d >> 1u)], d), o);
        }
    } else {
        for (var key = 0u; key < visible; key++) {
            o = fused(weights[key], bitcast<f32>(values[(page * 64u + key) * many + d]), o);
        }
    }
    return z(o);
}

fn tile_of(page: u32, visible: u32, local: u32) -> Partial {
    var s = LEAST;
    if local < visible {
        s = score(page, local);
    }
    let m = largest(s, local);
    var weight = 0.0;
    if local < visible {
        weight = exp_own(s - m);
    }
    weights[local] = weight;
    let l = folded(weight, local);
    var o = vec4(0.0);
    for (var i = 0u; i < 4u; i++) {
        let d = local + 64u * i;
        if d < p.dim {
            o[i] = weighted(page, d, visible);
        }
    }
    return Partial(m, l, o);
}

fn merged(one: Partial, next: Partial) -> Partial {
    let m = max(one.m, next.m);
    let f1 = exp_own(one.m - m);
    let f2 = exp_own(next.m - m);
    var o = vec4(0.0);
    for (var i = 0u; i < 4u; i++) {
        o[i] = fused(one.o[i], f1, next.o[i] * f2);
    }
    return Partial(m, fused(one.l, f1, next.l * f2), o);
}

fn finish(part: Partial, at: u32, local: u32) {
    let r = inverse(part.l);
    for (var i = 0u; i < 4u; i++) {
        let d = local + 64u * i;
        if d < p.dim {
            out[at + d] = z(part.o[i] * r);
        }
    }
}

fn chunk_of(row: u32, head: u32, chunk: u32, position: u32, local: u32) -> Partial {
    let kv_head = head / (p.heads / p.kv_heads);
    let end = min(8u * chunk + 8u, (position >> 6u) + 1u);
    var part: Partial;
    for (var tile = 8u * chunk; tile < end; tile++) {
        let page = page_of(row, tile) * p.kv_heads + kv_head;
        let next = tile_of(page, min(64u, position + 1u - 64u * tile), local);
        if tile == 8u * chunk {
            part = next;
        } else {
            part = merged(part, next);
        }
    }
    return part;
}

@compute @workgroup_size(64)
fn attend(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let head = group.x;
    let row = p.first + group.y;
    let at = (row * p.heads + head) * p.dim;
    for (var d = local; d < p.dim; d += 64u) {
        query[d] = q[at + d];
    }
    workgroupBarrier();
    let position = map[p.rows + row];
    if p.chunks == 0u {
        var all: Partial;
        for (var chunk = 0u; chunk <= position >> 9u; chunk++) {
            let next = chunk_of(row, head, chunk, position, local);
            if chunk == 0u {
                all = next;
            } else {
                all = merged(all, next);
            }
        }
        finish(all, at, local);
        return;
    }
    let chunk = group.z;
    if chunk > position >> 9u {
        return;
    }
    let part = chunk_of(row, head, chunk, position, local);
    let to = ((group.y * p.heads + head) * p.chunks + chunk) * (p.dim + 2u);
    if local == 0u {
        parts[to] = part.m;
        parts[to + 1u] = part.l;
    }
    for (var i = 0u; i < 4u; i++) {
        let d = local + 64u * i;
        if d < p.dim {
            parts[to + 2u + d] = part.o[i];
        }
    }
}

@compute @workgroup_size(64)
fn merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let head = group.x;
    let row = p.first + group.y;
    let position = map[p.rows + row];
    var all: Partial;
    for (var chunk = 0u; chunk <= position >> 9u; chunk++) {
        let begin = ((group.y * p.heads + head) * p.chunks + chunk) * (p.dim + 2u);
        var next = Partial(parts[begin], parts[begin + 1u], vec4(0.0));
        for (var i = 0u; i < 4u; i++) {
            let d = local + 64u * i;
            if d < p.dim {
                next.o[i] = parts[begin + 2u + d];
            }
        }
        if chunk == 0u {
            all = next;
        } else {
            all = merged(all, next);
        }
    }
    finish(all, (row * p.heads + head) * p.dim, local);
}
