// The tiles of each head of few rows, merged in order: behind kernels/tiles.cu.

// Most chunks whose sums are taken at once: as many as a block has threads for all dims.
#define AT_ONCE 4

// What the tiles of a head are merged by: m and l of each, then its factors in its chunk; the
// factors of each chunk, and one over the sum of all.
struct Merging {
    float2 marks[TILES_MAX], factors[TILES_MAX], chunks[TILES_MAX / CHUNK_TILES];
    float all;
};

// What a sum up to some part, of maximum `m`, and the part's own are multiplied by.
__device__ __forceinline__ float2 factors_of(float m, float own) {
    float most = fmaxf(m, own);
    return make_float2(exp_f32(__fsub_rn(m, most)), exp_f32(__fsub_rn(own, most)));
}

// The factors of every tile but the first of a chunk, a thread a tile.
__device__ __forceinline__ void tile_factors(Merging &to, const float *part, int tiles, int dim) {
    for (int tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        const float *own = part + (u64)tile * (dim + 2) + dim;
        to.marks[tile] = make_float2(own[0], own[1]);
    }
    __syncthreads();
    for (int tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        int first = tile / CHUNK_TILES * CHUNK_TILES;
        float m = to.marks[first].x;
        for (int before = first + 1; before < tile; before++) m = fmaxf(m, to.marks[before].x);
        to.factors[tile] = factors_of(m, to.marks[tile].x);
    }
}

// The factors of every chunk but the first, by a warp: a lane a chunk, 32 of them at a time.
__device__ __forceinline__ void chunk_factors(Merging &to, int tiles, int count) {
    int lane = threadIdx.x % 32;
    float all_m = 0.0f, all_l = 0.0f;
    for (int from = 0; from < count; from += 32) {
        int chunk = from + lane, first = min(chunk, count - 1) * CHUNK_TILES;
        int here = min(tiles - first, CHUNK_TILES);
        float m = to.marks[first].x, l = to.marks[first].y;
        for (int i = 1; i < here; i++) {
            float2 f = to.factors[first + i], own = to.marks[first + i];
            m = fmaxf(m, own.x);
            l = __fmaf_rn(l, f.x, __fmul_rn(own.y, f.y));
        }
        // The maximum up to a chunk, then before it.
        float most = m;
#pragma unroll
        for (int w = 1; w < 32; w *= 2) {
            float other = __shfl_up_sync(FULL, most, w);
            if (lane >= w) most = fmaxf(other, most);
        }
        if (from > 0) most = fmaxf(all_m, most);
        float before = __shfl_up_sync(FULL, most, 1);
        float2 f = factors_of(lane > 0 ? before : all_m, m);
        if (chunk < count) to.chunks[chunk] = f;
        float mine = __fmul_rn(l, f.y);
        for (int i = 0; i < 32 && from + i < count; i++) {
            float next = __shfl_sync(FULL, mine, i), by = __shfl_sync(FULL, f.x, i);
            float only = __shfl_sync(FULL, l, i);
            all_l = from + i == 0 ? only : __fmaf_rn(all_l, by, next);
        }
        all_m = __shfl_sync(FULL, most, 31);
    }
    if (lane == 0) to.all = __fdiv_rn(1.0f, all_l);
}

// A block a head of a row: first the factors of every tile in its chunk, then those of the chunks by
// one warp, while the others begin with the sums, some chunks at once.
extern "C" __global__ void __launch_bounds__(DIM_MAX *AT_ONCE) merge_tiles(const Tiles p) {
    COME;
    __shared__ Merging by;
    __shared__ float sums[AT_ONCE][DIM_MAX];
    const Cache &c = p.cache;
    int head = blockIdx.x, dim = c.dim, stride = dim + 2;
    // The map is older than this round's kernels.
    int row = p.rows ? p.rows[blockIdx.y] : blockIdx.y;
    int tiles = c.positions[row] / TILE_KEYS + 1, count = (tiles + CHUNK_TILES - 1) / CHUNK_TILES;
    WAIT;
    const float *part = p.parts + ((u64)blockIdx.y * p.heads + head) * p.tiles * stride;
    int d = threadIdx.x % DIM_MAX, which = threadIdx.x / DIM_MAX, at_once = blockDim.x / DIM_MAX;
    float x[CHUNK_TILES];
    auto load = [&](int from) {
        int first = (from + which) * CHUNK_TILES;
#pragma unroll
        for (int i = 0; i < CHUNK_TILES; i++)
            x[i] = first + i < tiles && d < dim ? part[(u64)(first + i) * stride + d] : 0.0f;
    };
    load(0);
    tile_factors(by, part, tiles, dim);
    __syncthreads();
    if (threadIdx.x < 32) chunk_factors(by, tiles, count);
    float total = 0.0f;
    for (int from = 0; from < count; from += at_once) {
        int chunk = from + which, first = chunk * CHUNK_TILES;
        if (chunk < count && d < dim) {
            int here = min(tiles - first, CHUNK_TILES);
            float o = x[0];
#pragma unroll
            for (int i = 1; i < CHUNK_TILES; i++) {
                if (i >= here) break;
                float2 f = by.factors[first + i];
                o = __fmaf_rn(o, f.x, __fmul_rn(x[i], f.y));
            }
            sums[which][d] = o;
        }
        load(from + at_once);
        __syncthreads();
        for (int i = 0; which == 0 && i < at_once && from + i < count; i++) {
            float2 f = by.chunks[from + i];
            float o = sums[i][d];
            total = from + i == 0 ? o : __fmaf_rn(total, f.x, __fmul_rn(o, f.y));
        }
        __syncthreads();
    }
    if (which == 0 && d < dim)
        p.out[((u64)row * p.heads + head) * dim + d] = flushed(__fmul_rn(total, by.all));
}
