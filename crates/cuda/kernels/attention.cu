// Writes to the paged cache and attention over it, a block a row and head.

struct Write {
    Cache cache;
    const float *k;
    const float *v;
    int rows;
};

extern "C" __global__ void kv_write(const Write p) {
    BEGIN;
    const Cache &c = p.cache;
    int width = c.kv_heads * c.dim;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (u64)p.rows * width) return;
    int row = i / width, value = i % width;
    int head = value / c.dim, d = value % c.dim;
    int position = c.positions[row];
    u64 page = c.pages[c.tables[row] + position / TILE_KEYS];
    int key = position % TILE_KEYS;
    u64 start = (page * c.kv_heads + head) * c.dim * TILE_KEYS;
    u64 kt = start + d * TILE_KEYS + key, vt = start + key * c.dim + d;
    if (c.half) {
        ((u16 *)c.k)[kt] = float_to_half(p.k[i]);
        ((u16 *)c.v)[vt] = float_to_half(p.v[i]);
    } else {
        ((float *)c.k)[kt] = p.k[i];
        ((float *)c.v)[vt] = p.v[i];
    }
}

struct Attend {
    Cache cache;
    const float *q;
    float *out;
    float *parts;
    const int *rows;
    const int *clean;
    int heads;
    int chunks;
    float scale;
};

// One query head of one row, over one chunk where `parts` is given, else over all of them. Thread
// d holds dim d of the output.
extern "C" __global__ void __launch_bounds__(256) attend(const Attend p) {
    BEGIN;
    __shared__ float q[DIM_MAX];
    __shared__ float score[TILE_KEYS];
    const Cache &c = p.cache;
    int head = blockIdx.y, row = p.rows ? p.rows[blockIdx.z] : blockIdx.z, dim = c.dim;
    int lane = threadIdx.x % 32, d = threadIdx.x;
    int visible = c.positions[row] + 1;
    int tiles = (visible + TILE_KEYS - 1) / TILE_KEYS;
    int first = p.parts ? blockIdx.x * CHUNK_TILES : 0;
    int end = p.parts ? min(tiles, first + CHUNK_TILES) : tiles;
    if (first >= tiles) return;
    int kv = head / (p.heads / c.kv_heads);
    if (d < dim) q[d] = p.q[((u64)row * p.heads + head) * dim + d];
    float m = 0, l = 0, o = 0, all_m = 0, all_l = 0, all_o = 0;
    for (int tile = first; tile < end; tile++) {
        u64 page = c.pages[c.tables[row] + tile];
        u64 start = (page * c.kv_heads + kv) * dim * TILE_KEYS;
        int keys = min(TILE_KEYS, visible - tile * TILE_KEYS);
        __syncthreads();
        float s = __int_as_float(0xff800000);
        if (d < TILE_KEYS && d < keys) {
            s = 0.0f;
#pragma unroll 4
            for (int i = 0; i < dim; i++)
                s = __fmaf_rn(q[i], cached(c.k, start + i * TILE_KEYS + d, c.half), s);
            s = __fmul_rn(s, p.scale);
        }
        if (d < TILE_KEYS) score[d] = s;
        __syncthreads();
        float tile_m = largest(fmaxf(score[lane], score[lane + 32]));
        __syncthreads();
        if (d < TILE_KEYS) score[d] = d < keys ? exp_f32(__fsub_rn(s, tile_m)) : 0.0f;
        __syncthreads();
        float tile_l = folded(__fadd_rn(score[lane], score[lane + 32]));
        float tile_o = 0.0f;
        if (d < dim) {
#pragma unroll 4
            for (int i = 0; i < keys; i++)
                tile_o = __fmaf_rn(score[i], cached(c.v, start + i * dim + d, c.half), tile_o);
        }
        tile_o = flushed(tile_o);
        if (tile % CHUNK_TILES == 0) {
            m = tile_m, l = tile_l, o = tile_o;
        } else {
            float next = fmaxf(m, tile_m);
            float f1 = exp_f32(__fsub_rn(m, next)), f2 = exp_f32(__fsub_rn(tile_m, next));
            m = next;
            l = __fmaf_rn(l, f1, __fmul_rn(tile_l, f2));
            o = __fmaf_rn(o, f1, __fmul_rn(tile_o, f2));
        }
        if (p.parts || (tile % CHUNK_TILES != CHUNK_TILES - 1 && tile != end - 1)) continue;
        if (tile < CHUNK_TILES) {
            all_m = m, all_l = l, all_o = o;
        } else {
            float next = fmaxf(all_m, m);
            float f1 = exp_f32(__fsub_rn(all_m, next)), f2 = exp_f32(__fsub_rn(m, next));
            all_m = next;
            all_l = __fmaf_rn(all_l, f1, __fmul_rn(l, f2));
            all_o = __fmaf_rn(all_o, f1, __fmul_rn(o, f2));
        }
    }
    u64 at = (u64)row * p.heads + head;
    if (p.parts) {
        at = (u64)blockIdx.z * p.heads + head;
        float *part = p.parts + (at * p.chunks + blockIdx.x) * (dim + 2);
        if (d < dim) part[d] = o;
        if (d == 0) part[dim] = m, part[dim + 1] = l;
    } else if (d < dim) {
        p.out[at * dim + d] = flushed(__fmul_rn(all_o, __fdiv_rn(1.0f, all_l)));
    }
}

// Merges the chunks of a row's head in order.
extern "C" __global__ void __launch_bounds__(256) merge(const Attend p) {
    BEGIN;
    const Cache &c = p.cache;
    int head = blockIdx.x, row = p.rows ? p.rows[blockIdx.y] : blockIdx.y;
    int dim = c.dim, d = threadIdx.x;
    if (d >= dim) return;
    int chunks = c.positions[row] / (TILE_KEYS * CHUNK_TILES) + 1;
    u64 at = (u64)row * p.heads + head;
    const float *part = p.parts + ((u64)blockIdx.y * p.heads + head) * p.chunks * (dim + 2);
    float m = part[dim], l = part[dim + 1], o = part[d];
    for (int chunk = 1; chunk < chunks; chunk++) {
        part += dim + 2;
        float next = fmaxf(m, part[dim]);
        float f1 = exp_f32(__fsub_rn(m, next)), f2 = exp_f32(__fsub_rn(part[dim], next));
        m = next;
        l = __fmaf_rn(l, f1, __fmul_rn(part[dim + 1], f2));
        o = __fmaf_rn(o, f1, __fmul_rn(part[d], f2));
    }
    p.out[at * dim + d] = flushed(__fmul_rn(o, __fdiv_rn(1.0f, l)));
}
