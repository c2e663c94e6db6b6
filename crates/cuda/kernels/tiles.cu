// Attention of few rows: a block has one tile of keys, one row and the query heads of one kv head;
// then the tiles of each head are merged in order. For a cache in binary16.

#define GROUP 8
#define TILES_MAX 2048

struct Tiles {
    Cache cache;
    const float *q;
    float *out;
    // [row, head, tile]: dim values of o, m and l.
    float *parts;
    const int *rows;
    // Of each row, tiles at the start that no row of this round writes; none if not given.
    const int *clean;
    int heads;
    int tiles;
    float scale;
};

extern __shared__ __align__(16) u8 memory[];

__device__ __forceinline__ void bring(u16 *to, const u16 *from, int values) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    for (int i = threadIdx.x * 8; i < values; i += 256 * 8)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + 2 * i),
                     "l"(from + i));
    asm volatile("cp.async.commit_group;");
}

extern "C" __global__ void __launch_bounds__(256, 3) attend_tile(const Tiles p) {
    COME;
    __shared__ float weights[TILE_KEYS][GROUP];
    const Cache &c = p.cache;
    int dim = c.dim, group = p.heads / c.kv_heads;
    int tile = blockIdx.x, kv = blockIdx.y % c.kv_heads, first = blockIdx.y / c.kv_heads * GROUP;
    int row = p.rows ? p.rows[blockIdx.z] : blockIdx.z;
    int keys = min(TILE_KEYS, c.positions[row] + 1 - tile * TILE_KEYS);
    if (keys <= 0) return;
    int heads = min(GROUP, group - first), head = kv * group + first;
    u16 *k = (u16 *)memory, *v = k + dim * TILE_KEYS;
    float *q = (float *)(v + dim * TILE_KEYS);
    u64 page = c.pages[c.tables[row] + tile];
    u64 start = (page * c.kv_heads + kv) * dim * TILE_KEYS;
    bool clean = p.clean && tile < p.clean[row];
    if (!clean) WAIT;
    bring(k, (const u16 *)c.k + start, dim * TILE_KEYS);
    // One after the other: the kernels before read too.
    if (clean) asm volatile("cp.async.wait_group 0;");
    bring(v, (const u16 *)c.v + start, keys * dim);
    WAIT;
    // [dim][GROUP]
    for (int i = threadIdx.x; i < dim * GROUP; i += 256) {
        int h = i / dim, d = i % dim;
        q[d * GROUP + h] = h < heads ? p.q[((u64)row * p.heads + head + h) * dim + d] : 0.0f;
    }
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    int key = threadIdx.x % TILE_KEYS, pair = threadIdx.x / TILE_KEYS * 2;
    if (pair < heads) {
        float s0 = 0.0f, s1 = 0.0f;
#pragma unroll 8
        for (int d = 0; d < dim; d++) {
            float x = half_to_float(k[d * TILE_KEYS + key]);
            float2 both = *(const float2 *)&q[d * GROUP + pair];
            s0 = __fmaf_rn(both.x, x, s0);
            s1 = __fmaf_rn(both.y, x, s1);
        }
        weights[key][pair] = __fmul_rn(s0, p.scale);
        weights[key][pair + 1] = __fmul_rn(s1, p.scale);
    }
    __syncthreads();
    // A warp a head.
    int h = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *part = p.parts + (((u64)blockIdx.z * p.heads + head + h) * p.tiles + tile) * (dim + 2);
    if (h < heads) {
        float none = __int_as_float(0xff800000);
        float a = lane < keys ? weights[lane][h] : none;
        float b = lane + 32 < keys ? weights[lane + 32][h] : none;
        float m = largest(fmaxf(a, b));
        a = lane < keys ? exp_f32(__fsub_rn(a, m)) : 0.0f;
        b = lane + 32 < keys ? exp_f32(__fsub_rn(b, m)) : 0.0f;
        weights[lane][h] = a;
        weights[lane + 32][h] = b;
        float l = folded(__fadd_rn(a, b));
        if (lane == 0) part[dim] = m, part[dim + 1] = l;
    }
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    float *parts = p.parts + ((u64)blockIdx.z * p.heads + head) * p.tiles * (dim + 2);
    for (int d = threadIdx.x; d < dim; d += 256) {
        float o[GROUP];
#pragma unroll
        for (int i = 0; i < GROUP; i++) o[i] = 0.0f;
#pragma unroll 4
        for (int i = 0; i < keys; i++) {
            float x = half_to_float(v[i * dim + d]);
            float4 w0 = *(const float4 *)&weights[i][0], w1 = *(const float4 *)&weights[i][4];
            o[0] = __fmaf_rn(w0.x, x, o[0]), o[1] = __fmaf_rn(w0.y, x, o[1]);
            o[2] = __fmaf_rn(w0.z, x, o[2]), o[3] = __fmaf_rn(w0.w, x, o[3]);
            o[4] = __fmaf_rn(w1.x, x, o[4]), o[5] = __fmaf_rn(w1.y, x, o[5]);
            o[6] = __fmaf_rn(w1.z, x, o[6]), o[7] = __fmaf_rn(w1.w, x, o[7]);
        }
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (i < heads) parts[((u64)i * p.tiles + tile) * (dim + 2) + d] = flushed(o[i]);
    }
}

// The same for a window of rows at successive positions of one table: a block has one tile of keys
// and all query heads of one kv head of up to eight rows. Keys, then values, in one place.

// Rows `first ..` of the round, `count` of them, whose parts begin at part `part`.
struct Window {
    int first;
    int count;
    int part;
};

struct Windows {
    Tiles tiles;
    const Window *windows;
};

#define SPAN_WARPS 8

template <int OWN> struct SpanShared {
    // Keys [dim][key], then values [key][dim].
    u16 tile[DIM_MAX * TILE_KEYS];
    // Two more a row, so that dims lie in other banks.
    float q[DIM_MAX][SPAN_WARPS * OWN + 2];
    float weights[TILE_KEYS][SPAN_WARPS * OWN];
};

// A warp has OWN queries in a row, a lane two keys of each, then all eight warps a dim a thread.
template <int OWN> __device__ __forceinline__ void attend_span(const Windows &p) {
    SpanShared<OWN> &s = *(SpanShared<OWN> *)memory;
    const Tiles &t = p.tiles;
    const Cache &c = t.cache;
    Window window = p.windows[blockIdx.z];
    int dim = c.dim, group = t.heads / c.kv_heads, tile = blockIdx.x, kv = blockIdx.y;
    int table = c.tables[window.first], position = c.positions[window.first];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, queries = window.count * group;
    // Keys of this tile that the last row sees.
    int most = min(TILE_KEYS, position + window.count - tile * TILE_KEYS);
    if (most <= 0) return;
    u64 page = c.pages[table + tile], start = (page * c.kv_heads + kv) * dim * TILE_KEYS;
    if (!t.clean || tile >= t.clean[window.first]) WAIT;
    bring(s.tile, (const u16 *)c.k + start, dim * TILE_KEYS);
    WAIT;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int at = warp * OWN + i;
        u64 row = window.first + at / group, head = kv * group + at % group;
        const float *q = t.q + (row * t.heads + head) * dim;
#pragma unroll
        for (int d = lane; d < DIM_MAX; d += 32)
            if (d < dim) s.q[d][at] = at < queries ? q[d] : 0.0f;
    }
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    float dot[OWN][2];
#pragma unroll
    for (int i = 0; i < OWN; i++) dot[i][0] = dot[i][1] = 0.0f;
#pragma unroll (OWN == 8 ? 4 : 8)
    for (int d = 0; d < dim; d++) {
        u32 both = *(const u32 *)&s.tile[d * TILE_KEYS + lane * 2];
        float x = half_to_float(both), y = half_to_float(both >> 16);
#pragma unroll
        for (int i = 0; i < OWN; i += 2) {
            float2 q = *(const float2 *)&s.q[d][warp * OWN + i];
            dot[i][0] = __fmaf_rn(q.x, x, dot[i][0]), dot[i][1] = __fmaf_rn(q.x, y, dot[i][1]);
            dot[i + 1][0] = __fmaf_rn(q.y, x, dot[i + 1][0]);
            dot[i + 1][1] = __fmaf_rn(q.y, y, dot[i + 1][1]);
        }
    }
    __syncthreads();
    bring(s.tile, (const u16 *)c.v + start, most * dim);
    int key = lane * 2;
    float none = __int_as_float(0xff800000);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int at = warp * OWN + i, row = at / group;
        int keys = position + row + 1 - tile * TILE_KEYS;
        float a = key < keys ? __fmul_rn(dot[i][0], t.scale) : none;
        float b = key + 1 < keys ? __fmul_rn(dot[i][1], t.scale) : none;
        float m = largest(fmaxf(a, b));
        a = key < keys ? exp_f32(__fsub_rn(a, m)) : 0.0f;
        b = key + 1 < keys ? exp_f32(__fsub_rn(b, m)) : 0.0f;
        s.weights[key][at] = a, s.weights[key + 1][at] = b;
        // The reference's lanes j and j + 1 are a lane's two keys here.
#pragma unroll
        for (int w = 16; w > 0; w /= 2) {
            a = __fadd_rn(a, __shfl_xor_sync(FULL, a, w));
            b = __fadd_rn(b, __shfl_xor_sync(FULL, b, w));
        }
        float l = __fadd_rn(a, b);
        if (lane > 0 || at >= queries || keys <= 0) continue;
        int head = kv * group + at % group;
        u64 part = ((u64)(window.part + row) * t.heads + head) * t.tiles + tile;
        t.parts[part * (dim + 2) + dim] = m, t.parts[part * (dim + 2) + dim + 1] = l;
    }
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    // A thread has four dims and a quarter of the queries.
    const int SOME = OWN * SPAN_WARPS / 4;
    int d = threadIdx.x % 64 * 4, from = threadIdx.x / 64 * SOME;
    if (d >= dim) return;
    float o[SOME][4];
#pragma unroll
    for (int i = 0; i < SOME * 4; i++) o[i / 4][i % 4] = 0.0f;
    auto add = [&](int i, int seeing) {
        float x[4];
        if (dim % 4 == 0) {
            uint2 four = *(const uint2 *)&s.tile[i * dim + d];
            x[0] = half_to_float(four.x), x[1] = half_to_float(four.x >> 16);
            x[2] = half_to_float(four.y), x[3] = half_to_float(four.y >> 16);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = half_to_float(s.tile[i * dim + d + j]);
        }
#pragma unroll
        for (int at = 0; at < SOME; at += 4) {
            float4 four = *(const float4 *)&s.weights[i][from + at];
            float w[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int q = 0; q < 4; q++) {
                if (from + at + q < seeing) continue;
#pragma unroll
                for (int j = 0; j < 4; j++) o[at + q][j] = __fmaf_rn(w[q], x[j], o[at + q][j]);
            }
        }
    };
    // Keys that every row sees, then those that only later ones do, from some query on.
    int whole = min(TILE_KEYS, max(0, position + 1 - tile * TILE_KEYS));
#pragma unroll 4
    for (int i = 0; i < whole; i++) add(i, from);
    for (int i = whole; i < most; i++) add(i, (tile * TILE_KEYS + i - position) * group);
#pragma unroll
    for (int i = 0; i < SOME; i++) {
        int at = from + i;
        if (at >= queries) break;
        u64 row = window.part + at / group, head = kv * group + at % group;
        float *part = t.parts + ((row * t.heads + head) * t.tiles + tile) * (dim + 2) + d;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (d + j < dim) part[j] = flushed(o[i][j]);
    }
}

#define SPAN(own)                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, own < 8 ? 2 : 1)                             \
        attend_span_##own(const Windows p) {                                                       \
        COME;                                                                                      \
        attend_span<own>(p);                                                                       \
    }

SPAN(2)
SPAN(4)
SPAN(6)
SPAN(8)

// Chunks whose sums are taken at once.
#define AT_ONCE 4

// A block a head of a row: first the factors of every tile in its chunk, then those of the chunks,
// then the sums, some chunks at once.
extern "C" __global__ void __launch_bounds__(DIM_MAX *AT_ONCE) merge_tiles(const Tiles p) {
    BEGIN;
    __shared__ float2 factors[TILES_MAX], chunks[TILES_MAX / CHUNK_TILES];
    __shared__ float sums[AT_ONCE][DIM_MAX];
    __shared__ float all;
    const Cache &c = p.cache;
    int head = blockIdx.x, dim = c.dim, stride = dim + 2;
    int row = p.rows ? p.rows[blockIdx.y] : blockIdx.y;
    int tiles = c.positions[row] / TILE_KEYS + 1, count = (tiles + CHUNK_TILES - 1) / CHUNK_TILES;
    const float *part = p.parts + ((u64)blockIdx.y * p.heads + head) * p.tiles * stride;
    int d = threadIdx.x % DIM_MAX, which = threadIdx.x / DIM_MAX;
    float x[CHUNK_TILES];
    auto load = [&](int from) {
        int first = (from + which) * CHUNK_TILES;
#pragma unroll
        for (int i = 0; i < CHUNK_TILES; i++)
            x[i] = first + i < tiles && d < dim ? part[(u64)(first + i) * stride + d] : 0.0f;
    };
    load(0);
    for (int chunk = threadIdx.x; chunk < count; chunk += blockDim.x) {
        int first = chunk * CHUNK_TILES, here = min(tiles - first, CHUNK_TILES);
        float ms[CHUNK_TILES], ls[CHUNK_TILES];
#pragma unroll
        for (int i = 0; i < CHUNK_TILES; i++) {
            ms[i] = i < here ? part[(u64)(first + i) * stride + dim] : 0.0f;
            ls[i] = i < here ? part[(u64)(first + i) * stride + dim + 1] : 0.0f;
        }
        float m = ms[0], l = ls[0];
#pragma unroll
        for (int i = 1; i < CHUNK_TILES; i++) {
            if (i >= here) break;
            float next = fmaxf(m, ms[i]);
            float f1 = exp_f32(__fsub_rn(m, next)), f2 = exp_f32(__fsub_rn(ms[i], next));
            factors[first + i] = make_float2(f1, f2);
            m = next;
            l = __fmaf_rn(l, f1, __fmul_rn(ls[i], f2));
        }
        chunks[chunk] = make_float2(m, l);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float m = chunks[0].x, l = chunks[0].y;
        for (int chunk = 1; chunk < count; chunk++) {
            float2 next = chunks[chunk];
            float most = fmaxf(m, next.x);
            float f1 = exp_f32(__fsub_rn(m, most)), f2 = exp_f32(__fsub_rn(next.x, most));
            chunks[chunk] = make_float2(f1, f2);
            m = most;
            l = __fmaf_rn(l, f1, __fmul_rn(next.y, f2));
        }
        all = __fdiv_rn(1.0f, l);
    }
    float total = 0.0f;
    for (int from = 0; from < count; from += AT_ONCE) {
        __syncthreads();
        int chunk = from + which, first = chunk * CHUNK_TILES;
        if (chunk < count && d < dim) {
            int here = min(tiles - first, CHUNK_TILES);
            float o = x[0];
#pragma unroll
            for (int i = 1; i < CHUNK_TILES; i++) {
                if (i >= here) break;
                float2 f = factors[first + i];
                o = __fmaf_rn(o, f.x, __fmul_rn(x[i], f.y));
            }
            sums[which][d] = o;
        }
        load(from + AT_ONCE);
        __syncthreads();
        if (which > 0) continue;
        for (int i = 0; i < AT_ONCE && from + i < count; i++) {
            float2 f = chunks[from + i];
            float o = sums[i][d];
            total = from + i == 0 ? o : __fmaf_rn(total, f.x, __fmul_rn(o, f.y));
        }
    }
    if (which == 0 && d < dim)
        p.out[((u64)row * p.heads + head) * dim + d] = flushed(__fmul_rn(total, all));
}
