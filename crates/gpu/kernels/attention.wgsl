// Attention of a row and a query head: a workgroup a tile of 64 keys, a chunk of 512 or all in turn.

@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> keys: array<u32>;
@group(0) @binding(4) var<storage, read> values: array<u32>;
// What pieces leave for `merge`: largest score, sum of weights, weighted values.
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

// What is read is asked for eight words at a time, before any of them is used.
fn score(page: u32, key: u32) -> f32 {
    let many = words();
    var s = 0.0;
    for (var begin = 0u; begin < many; begin += 8u) {
        var read: array<u32, 8>;
        for (var i = 0u; i < 8u; i++) {
            read[i] = keys[(page * many + min(begin + i, many - 1u)) * 64u + key];
        }
        for (var i = 0u; i < 8u; i++) {
            let word = begin + i;
            if word >= many {
                break;
            }
            if p.half == 1u {
                s = fused(query[2u * word], widened(read[i] & 0xffffu), s);
                if 2u * word + 1u < p.dim {
                    s = fused(query[2u * word + 1u], widened(read[i] >> 16u), s);
                }
            } else {
                s = fused(query[word], bitcast<f32>(read[i]), s);
            }
        }
    }
    return whole(s * p.scale);
}

fn weighted(page: u32, d: u32, visible: u32) -> f32 {
    let many = words();
    let word = select(d, d >> 1u, p.half == 1u);
    var o = 0.0;
    for (var begin = 0u; begin < visible; begin += 8u) {
        var read: array<u32, 8>;
        for (var i = 0u; i < 8u; i++) {
            read[i] = values[(page * 64u + min(begin + i, visible - 1u)) * many + word];
        }
        for (var i = 0u; i < 8u; i++) {
            let key = begin + i;
            if key >= visible {
                break;
            }
            var value = 0.0;
            if p.half == 1u {
                value = half_of(read[i], d);
            } else {
                value = bitcast<f32>(read[i]);
            }
            o = fused(weights[key], value, o);
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

// Tiles `first .. end` of a row's keys.
fn tiles_of(row: u32, head: u32, first: u32, end: u32, position: u32, local: u32) -> Partial {
    let kv_head = head / (p.heads / p.kv_heads);
    var part: Partial;
    for (var tile = first; tile < end; tile++) {
        let page = page_of(row, tile) * p.kv_heads + kv_head;
        let next = tile_of(page, min(64u, position + 1u - 64u * tile), local);
        if tile == first {
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
    let tiles = (position >> 6u) + 1u;
    if p.pieces == 0u {
        var all: Partial;
        for (var chunk = 0u; chunk <= position >> 9u; chunk++) {
            let end = min(8u * chunk + 8u, tiles);
            let next = tiles_of(row, head, 8u * chunk, end, position, local);
            if chunk == 0u {
                all = next;
            } else {
                all = merged(all, next);
            }
        }
        finish(all, at, local);
        return;
    }
    let first = group.z * p.span;
    if first >= tiles {
        return;
    }
    let part = tiles_of(row, head, first, min(first + p.span, tiles), position, local);
    let to = ((group.y * p.heads + head) * p.pieces + group.z) * (p.dim + 2u);
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

// What a piece left.
fn left(at: u32, local: u32) -> Partial {
    var part = Partial(parts[at], parts[at + 1u], vec4(0.0));
    for (var i = 0u; i < 4u; i++) {
        let d = local + 64u * i;
        if d < p.dim {
            part.o[i] = parts[at + 2u + d];
        }
    }
    return part;
}

// Pieces to chunks, chunks to the row.
@compute @workgroup_size(64)
fn merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let head = group.x;
    let row = p.first + group.y;
    let position = map[p.rows + row];
    let begin = (group.y * p.heads + head) * p.pieces;
    let many = 8u / p.span;
    let end = (position >> 6u) / p.span + 1u;
    var all: Partial;
    for (var first = 0u; first < end; first += many) {
        var part = left((begin + first) * (p.dim + 2u), local);
        for (var piece = first + 1u; piece < min(first + many, end); piece++) {
            part = merged(part, left((begin + piece) * (p.dim + 2u), local));
        }
        if first == 0u {
            all = part;
        } else {
            all = merged(all, part);
        }
    }
    finish(all, (row * p.heads + head) * p.dim, local);
}
