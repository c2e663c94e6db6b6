// The paged cache, docs/arithmetic.md sections 1 and 4. A page of a kv head holds its keys by dims,
// words of 64 keys side by side, and its values by keys, the dims of one side by side. A word is an
// f32, or two binary16 of dims that follow each other.

struct Params {
    nothing: u32,
    // Rows of the map; the first of this launch.
    rows: u32,
    first: u32,
    heads: u32,
    kv_heads: u32,
    dim: u32,
    // 1 where the cache holds binary16.
    half: u32,
    // Pieces of the row with the most; 0 where a workgroup finishes its rows. Tiles of a piece, one
    // or a chunk's eight.
    pieces: u32,
    span: u32,
    scale: f32,
    // kv_write: words to write, workgroups along x.
    count: u32,
    across: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> out: array<f32>;
// For each row where its table begins, then the positions, then the pages of all tables.
@group(0) @binding(1) var<storage, read> map: array<u32>;

// Words of a key.
fn words() -> u32 {
    return select(p.dim, (p.dim + 1u) >> 1u, p.half == 1u);
}

fn page_of(row: u32, tile: u32) -> u32 {
    return map[2u * p.rows + map[row] + tile];
}
