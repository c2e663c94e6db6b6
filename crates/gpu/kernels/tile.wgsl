// A tile of outputs by the eight groups of K: their tree, and its rows of `out`.

// Of ROWS rows, eight groups, 16 outputs each.
var<workgroup> parts: array<f32, 1024>;

// Rows `first ..` of tile `tile`, from `parts`, by a workgroup of `threads`.
fn write_tile(first: u32, tile: u32, local: u32, threads: u32) {
    workgroupBarrier();
    for (var i = local; i < ROWS * 16u; i += threads) {
        let r = i >> 4u;
        let n = tile * 16u + (i & 15u);
        if first + r < p.rows && n < p.outputs {
            out[(first + r) * p.stride + p.first + n] = rooted(r * 128u + (i & 15u));
        }
    }
}

// The tree over eight parts, spoilt where one is.
fn rooted(at: u32) -> f32 {
    var spoiled = false;
    for (var k = 0u; k < 8u; k++) {
        spoiled = spoiled || (bitcast<u32>(parts[at + 16u * k]) & 0x7fffffffu) >= 0x7f800000u;
    }
    let low = (parts[at] + parts[at + 16u]) + (parts[at + 32u] + parts[at + 48u]);
    let high = (parts[at + 64u] + parts[at + 80u]) + (parts[at + 96u] + parts[at + 112u]);
    return finished(low + high, spoiled);
}

fn finished(sum: f32, spoiled: bool) -> f32 {
    let value = select(z(sum), sum, p.node == 1u);
    return select(value, spoilt(), spoiled);
}
