// Attention of prompts: 64 rows of one stream and one query head a block. A tile's scores, then its
// outputs, are products in f32 whose sums run in the order of the reference: over the dims, over
// the keys.

#define ROWS 64
#define THREADS 256

// Rows `first ..` of the round, `count` of them, at successive positions of one table.
struct Span {
    int first;
    int count;
};

struct Prompt {
    Cache cache;
    const float *q;
    float *out;
    const Span *spans;
    int heads;
    float scale;
};

template <int DIM> struct Shared {
    // [dim][row], [dim][key], [key][dim], then weights [key][row].
    float q[DIM][ROWS];
    float k[DIM][TILE_KEYS];
    float v[TILE_KEYS][DIM];
    float p[TILE_KEYS][ROWS + 4];
    float f1[ROWS], f2[ROWS], m[ROWS], l[ROWS], all_m[ROWS], all_l[ROWS];
};

__device__ __forceinline__ void halves(float *to, uint4 from) {
    to[0] = half_to_float(from.x), to[1] = half_to_float(from.x >> 16);
    to[2] = half_to_float(from.y), to[3] = half_to_float(from.y >> 16);
    to[4] = half_to_float(from.z), to[5] = half_to_float(from.z >> 16);
    to[6] = half_to_float(from.w), to[7] = half_to_float(from.w >> 16);
}

__device__ __forceinline__ void four(float *to, const float *from) {
    float4 x = *(const float4 *)from;
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

// `count` values of the cache, eight a thread at a time.
template <int COUNT> __device__ __forceinline__ void take(float *to, const Cache &c,
                                                          const void *from, u64 start) {
#pragma unroll
    for (int i = threadIdx.x * 8; i < COUNT; i += THREADS * 8) {
        if (c.half) {
            halves(to + i, *(const uint4 *)((const u16 *)from + start + i));
        } else {
            four(to + i, (const float *)from + start + i);
            four(to + i + 4, (const float *)from + start + i + 4);
        }
    }
}

// Dims of the output that a thread has: groups of four, 128 apart.
template <int DIM> struct Groups {
    static const int COUNT = DIM / 128 > 0 ? DIM / 128 : 1;
};

// Adds the keys of a tile to a warp's eight rows; row i sees those up to `seen + 8 warp + i`.
template <int DIM, bool WHOLE>
__device__ __forceinline__ void weigh(float (&sum)[Groups<DIM>::COUNT][8][4],
                                      const Shared<DIM> &s, int warp, int lane, int keys,
                                      int seen) {
#pragma unroll 4
    for (int key = 0; key < keys; key++) {
        float w[8];
        four(w, &s.p[key][warp * 8]);
        four(w + 4, &s.p[key][warp * 8 + 4]);
#pragma unroll
        for (int g = 0; g < Groups<DIM>::COUNT; g++) {
            float v[4];
            four(v, &s.v[key][g * 128 + lane * 4]);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                bool sees = WHOLE || key <= seen + warp * 8 + i;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float next = __fmaf_rn(w[i], v[j], sum[g][i][j]);
                    sum[g][i][j] = sees ? next : sum[g][i][j];
                }
            }
        }
    }
}

template <int DIM> __device__ __forceinline__ void attend_rows(const Prompt &p) {
    extern __shared__ __align__(16) u8 memory[];
    Shared<DIM> &s = *(Shared<DIM> *)memory;
    const Cache &c = p.cache;
    const int GROUPS = Groups<DIM>::COUNT;
    Span span = p.spans[gridDim.x - 1 - blockIdx.x];
    int head = blockIdx.y, kv = head / (p.heads / c.kv_heads);
    int first = c.positions[span.first], table = c.tables[span.first];
    int last = first + span.count - 1, tiles = last / TILE_KEYS + 1;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < ROWS * DIM; i += THREADS) {
        int row = i / DIM, d = i % DIM;
        u64 at = ((u64)(span.first + row) * p.heads + head) * DIM + d;
        s.q[d][row] = row < span.count ? p.q[at] : 0.0f;
    }
    float o[GROUPS][8][4], all_o[GROUPS][8][4];
#pragma unroll
    for (int i = 0; i < GROUPS * 32; i++) {
        (&o[0][0][0])[i] = 0.0f;
        (&all_o[0][0][0])[i] = 0.0f;
    }
    int key0 = threadIdx.x % 16 * 4, row0 = threadIdx.x / 16 * 4;
    int mine = threadIdx.x / 4, part = threadIdx.x % 4;
    bool works = lane * 4 < DIM;
    for (int tile = 0; tile < tiles; tile++) {
        u64 page = c.pages[table + tile];
        u64 start = (page * c.kv_heads + kv) * DIM * TILE_KEYS;
        __syncthreads();
        take<DIM * TILE_KEYS>(&s.k[0][0], c, c.k, start);
        take<DIM * TILE_KEYS>(&s.v[0][0], c, c.v, start);
        __syncthreads();
        float dot[4][4];
#pragma unroll
        for (int i = 0; i < 16; i++) dot[i / 4][i % 4] = 0.0f;
#pragma unroll 8
        for (int d = 0; d < DIM; d++) {
            float q[4], k[4];
            four(q, &s.q[d][row0]);
            four(k, &s.k[d][key0]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) dot[i][j] = __fmaf_rn(q[i], k[j], dot[i][j]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 x = make_float4(__fmul_rn(dot[0][j], p.scale), __fmul_rn(dot[1][j], p.scale),
                                   __fmul_rn(dot[2][j], p.scale), __fmul_rn(dot[3][j], p.scale));
            *(float4 *)&s.p[key0 + j][row0] = x;
        }
        __syncthreads();
        // Four threads a row: thread `part` has keys that are `part` modulo 4.
        int seen = first + mine - tile * TILE_KEYS + 1;
        float m = __int_as_float(0xff800000);
        for (int i = part; i < TILE_KEYS && i < seen; i += 4) m = fmaxf(m, s.p[i][mine]);
        m = fmaxf(m, __shfl_xor_sync(FULL, m, 1));
        m = fmaxf(m, __shfl_xor_sync(FULL, m, 2));
        float lanes[8];
#pragma unroll
        for (int i = 0; i < 8; i++) lanes[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int key = 4 * i + part;
            float x = key < seen ? exp_f32(__fsub_rn(s.p[key][mine], m)) : 0.0f;
            s.p[key][mine] = x;
            lanes[i % 8] = __fadd_rn(lanes[i % 8], x);
        }
        // Lane 4 i + part: those 16, 8 and 4 apart are this thread's.
#pragma unroll
        for (int w = 4; w > 0; w /= 2)
#pragma unroll
            for (int i = 0; i < w; i++) lanes[i] = __fadd_rn(lanes[i], lanes[i + w]);
        float l = __fadd_rn(lanes[0], __shfl_xor_sync(FULL, lanes[0], 2));
        l = __fadd_rn(l, __shfl_xor_sync(FULL, l, 1));
        bool begins = tile % CHUNK_TILES == 0;
        if (part == 0) {
            if (begins) {
                s.m[mine] = m, s.l[mine] = l;
            } else if (seen > 0) {
                float next = fmaxf(s.m[mine], m);
                float f1 = exp_f32(__fsub_rn(s.m[mine], next)), f2 = exp_f32(__fsub_rn(m, next));
                s.f1[mine] = f1, s.f2[mine] = f2, s.m[mine] = next;
                s.l[mine] = __fmaf_rn(s.l[mine], f1, __fmul_rn(l, f2));
            }
        }
        __syncthreads();
        float sum[GROUPS][8][4];
#pragma unroll
        for (int i = 0; i < GROUPS * 32; i++) (&sum[0][0][0])[i] = 0.0f;
        if (works) {
            int keys = min(TILE_KEYS, last - tile * TILE_KEYS + 1);
            if (first >= tile * TILE_KEYS + TILE_KEYS - 1) {
                weigh<DIM, true>(sum, s, warp, lane, keys, 0);
            } else {
                weigh<DIM, false>(sum, s, warp, lane, keys, first - tile * TILE_KEYS);
            }
        }
        bool ends = tile % CHUNK_TILES == CHUNK_TILES - 1 || tile == tiles - 1;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = warp * 8 + i;
            bool some = first + row >= tile * TILE_KEYS;
            float f1 = begins ? 0.0f : s.f1[row], f2 = begins ? 0.0f : s.f2[row];
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float x = flushed(sum[g][i][j]);
                    float joined = __fmaf_rn(o[g][i][j], f1, __fmul_rn(x, f2));
                    if (some) o[g][i][j] = begins ? x : joined;
                }
        }
        if (!ends) continue;
        // The chunk joins those before it, for rows that see any of it.
        __syncthreads();
        bool one = tile < CHUNK_TILES;
        int chunk = tile / CHUNK_TILES * CHUNK_TILES * TILE_KEYS;
        if (part == 0 && first + mine >= chunk) {
            if (one) {
                s.all_m[mine] = s.m[mine], s.all_l[mine] = s.l[mine];
            } else {
                float next = fmaxf(s.all_m[mine], s.m[mine]);
                float f1 = exp_f32(__fsub_rn(s.all_m[mine], next));
                float f2 = exp_f32(__fsub_rn(s.m[mine], next));
                s.f1[mine] = f1, s.f2[mine] = f2, s.all_m[mine] = next;
                s.all_l[mine] = __fmaf_rn(s.all_l[mine], f1, __fmul_rn(s.l[mine], f2));
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = warp * 8 + i;
            if (first + row < chunk) continue;
            float f1 = one ? 0.0f : s.f1[row], f2 = one ? 0.0f : s.f2[row];
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float x = o[g][i][j];
                    float joined = __fmaf_rn(all_o[g][i][j], f1, __fmul_rn(x, f2));
                    all_o[g][i][j] = one ? x : joined;
                }
        }
    }
    if (!works) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int row = warp * 8 + i;
        if (row >= span.count) continue;
        float r = __fdiv_rn(1.0f, s.all_l[row]);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u64 at = ((u64)(span.first + row) * p.heads + head) * DIM + g * 128 + lane * 4 + j;
                p.out[at] = flushed(__fmul_rn(all_o[g][i][j], r));
            }
    }
}

#define ATTEND(dim)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_rows_##dim(const Prompt p) {   \
        BEGIN; attend_rows<dim>(p);                                                                       \
    }

ATTEND(64)
ATTEND(128)
ATTEND(256)
