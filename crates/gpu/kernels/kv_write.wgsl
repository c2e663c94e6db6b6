// Keys and values of a round into the cache.

@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read_write> keys: array<u32>;
@group(0) @binding(5) var<storage, read_write> values: array<u32>;

@compute @workgroup_size(64)
fn kv_write(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = (group.y * p.across + group.x) * 64u + local;
    if index >= p.count {
        return;
    }
    let many = words();
    let word = index % many;
    let head = index / many % p.kv_heads;
    let row = index / many / p.kv_heads;
    let position = map[p.rows + row];
    let page = page_of(row, position >> 6u) * p.kv_heads + head;
    let key = position & 63u;
    let begin = (row * p.kv_heads + head) * p.dim;
    var pair: vec2<u32>;
    if p.half == 1u {
        let at = begin + 2u * word;
        pair = vec2(narrowed(k[at]), narrowed(v[at]));
        if 2u * word + 1u < p.dim {
            pair |= vec2(narrowed(k[at + 1u]), narrowed(v[at + 1u])) << vec2(16u);
        }
    } else {
        pair = vec2(bitcast<u32>(k[begin + word]), bitcast<u32>(v[begin + word]));
    }
    keys[(page * many + word) * 64u + key] = pair.x;
    values[(page * 64u + key) * many + word] = pair.y;
}
