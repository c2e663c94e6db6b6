// Attention of prompts: 64 rows of one stream and one query head a block, eight rows a warp. A
// tile's scores, then its outputs, are products in f32 whose sums run in the order of the
// reference: over the dims, over the keys. A warp's rows meet no other warp's: only tiles are
// shared, and the next one is on its way while one is computed.

#define ROWS 64
#define THREADS 256
#define OWN_ROWS 8

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

// A cache of halves has two tiles here, one of floats has room for one.
template <int DIM, class T> struct Shared {
    static const int SIDES = sizeof(T) == 2 ? 2 : 1;
    // Four more a row, so that dims lie in other banks.
    float q[DIM][ROWS + 4];
    T k[SIDES][DIM][TILE_KEYS];
    T v[SIDES][TILE_KEYS][DIM];
    // The weights of a warp's rows at each key.
    float p[THREADS / 32][TILE_KEYS][OWN_ROWS];
};

__device__ __forceinline__ float2 two(const u16 *from) {
    float2 x;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(x.x), "=f"(x.y)
        : "r"(*(const u32 *)from));
    return x;
}

__device__ __forceinline__ float2 two(const float *from) { return *(const float2 *)from; }

__device__ __forceinline__ void four(float *to, const float *from) {
    float4 x = *(const float4 *)from;
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

__device__ __forceinline__ void four(float *to, const u16 *from) {
    uint2 both = *(const uint2 *)from;
    asm("{.reg .b16 a, b, c, d; mov.b32 {a, b}, %4; mov.b32 {c, d}, %5; cvt.f32.f16 %0, a; "
        "cvt.f32.f16 %1, b; cvt.f32.f16 %2, c; cvt.f32.f16 %3, d;}"
        : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
        : "r"(both.x), "r"(both.y));
}

// `BYTES` bytes of the cache.
template <int BYTES> __device__ __forceinline__ void bring(void *to, const u8 *from) {
    u32 at = (u32)__cvta_generic_to_shared(to);
#pragma unroll
    for (int i = threadIdx.x * 16; i < BYTES; i += THREADS * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + i), "l"(from + i));
}

// Dims of the output that a thread has: groups of four, 128 apart.
template <int DIM> struct Groups {
    static const int COUNT = DIM / 128 > 0 ? DIM / 128 : 1;
};

// Of eight values a lane, one a row, what `join` makes of row `lane / 4` over all lanes: at each
// step a lane hands half of its rows to its partner.
template <class Join>
__device__ __forceinline__ float of_row(const float x[OWN_ROWS], int lane, Join join) {
    float four[4], two[2];
    bool upper = lane & 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float mine = upper ? x[i + 4] : x[i], other = upper ? x[i] : x[i + 4];
        four[i] = join(mine, __shfl_xor_sync(FULL, other, 16));
    }
    upper = lane & 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float mine = upper ? four[i + 2] : four[i], other = upper ? four[i] : four[i + 2];
        two[i] = join(mine, __shfl_xor_sync(FULL, other, 8));
    }
    upper = lane & 4;
    float mine = upper ? two[1] : two[0], other = upper ? two[0] : two[1];
    float one = join(mine, __shfl_xor_sync(FULL, other, 4));
    one = join(one, __shfl_xor_sync(FULL, one, 2));
    return join(one, __shfl_xor_sync(FULL, one, 1));
}

// Adds the keys of a tile to a warp's rows; row i sees those up to `seen + i`.
template <int DIM, bool WHOLE, class T>
__device__ __forceinline__ void weigh(float (&sum)[Groups<DIM>::COUNT][OWN_ROWS][4],
                                      const float (*p)[OWN_ROWS], const T (*tile)[DIM], int lane,
                                      int keys, int seen) {
    const float *ps = p[0];
    const T *vs = tile[0] + lane * 4;
#pragma unroll (WHOLE ? 4 : 1)
    for (int key = 0; key < keys; key++, ps += OWN_ROWS, vs += DIM) {
        float w[OWN_ROWS];
        four(w, ps);
        four(w + 4, ps + 4);
#pragma unroll
        for (int g = 0; g < Groups<DIM>::COUNT; g++) {
            float v[4];
            four(v, vs + g * 128);
#pragma unroll
            for (int i = 0; i < OWN_ROWS; i++) {
                if (!WHOLE && key > seen + i) continue;
#pragma unroll
                for (int j = 0; j < 4; j++) sum[g][i][j] = __fmaf_rn(w[i], v[j], sum[g][i][j]);
            }
        }
    }
}

// The maximum and the sum of a row's weights, joined with those of later keys: the factors of what
// was and of what comes.
__device__ __forceinline__ float2 joined(float &m, float &l, float next_m, float next_l) {
    float most = fmaxf(m, next_m);
    float2 f = make_float2(exp_f32(__fsub_rn(m, most)), exp_f32(__fsub_rn(next_m, most)));
    m = most;
    l = __fmaf_rn(l, f.x, __fmul_rn(next_l, f.y));
    return f;
}

template <int DIM, class T> __device__ __forceinline__ void attend_rows(const Prompt &p) {
    extern __shared__ __align__(16) u8 memory[];
    Shared<DIM, T> &s = *(Shared<DIM, T> *)memory;
    const Cache &c = p.cache;
    const int GROUPS = Groups<DIM>::COUNT, SIDES = Shared<DIM, T>::SIDES;
    const int BYTES = DIM * TILE_KEYS * sizeof(T);
    Span span = p.spans[gridDim.x - 1 - blockIdx.x];
    int head = blockIdx.y, kv = head / (p.heads / c.kv_heads);
    int first = c.positions[span.first], table = c.tables[span.first];
    int last = first + span.count - 1, tiles = last / TILE_KEYS + 1;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = warp * OWN_ROWS;
    auto fetch = [&](int tile) {
        u64 at = ((u64)c.pages[table + tile] * c.kv_heads + kv) * BYTES;
        bring<BYTES>(s.k[tile % SIDES], (const u8 *)c.k + at);
        bring<BYTES>(s.v[tile % SIDES], (const u8 *)c.v + at);
        asm volatile("cp.async.commit_group;");
    };
    fetch(0);
    for (int i = threadIdx.x; i < ROWS * DIM; i += THREADS) {
        int row = i / DIM, d = i % DIM;
        u64 at = ((u64)(span.first + row) * p.heads + head) * DIM + d;
        s.q[d][row] = row < span.count ? p.q[at] : 0.0f;
    }
    float o[GROUPS][OWN_ROWS][4], all_o[GROUPS][OWN_ROWS][4];
#pragma unroll
    for (int i = 0; i < GROUPS * 32; i++) {
        (&o[0][0][0])[i] = 0.0f;
        (&all_o[0][0][0])[i] = 0.0f;
    }
    // Of row `row0 + lane / 4`.
    float m = 0, l = 0, all_m = 0, all_l = 0;
    int mine = row0 + lane / 4;
    bool works = lane * 4 < DIM;
    for (int tile = 0; tile < tiles; tile++) {
        asm volatile("cp.async.wait_group 0;");
        __syncthreads();
        if (SIDES == 2 && tile + 1 < tiles) fetch(tile + 1);
        const T(*k)[TILE_KEYS] = s.k[tile % SIDES];
        float dot[2][OWN_ROWS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) dot[0][i] = dot[1][i] = 0.0f;
        const float *qs = &s.q[0][row0];
        const T *ks = &k[0][lane * 2];
#pragma unroll 32
        for (int d = 0; d < DIM; d++, qs += ROWS + 4, ks += TILE_KEYS) {
            float q[OWN_ROWS];
            four(q, qs);
            four(q + 4, qs + 4);
            float2 x = two(ks);
#pragma unroll
            for (int i = 0; i < OWN_ROWS; i++) {
                dot[0][i] = __fmaf_rn(q[i], x.x, dot[0][i]);
                dot[1][i] = __fmaf_rn(q[i], x.y, dot[1][i]);
            }
        }
        // Keys of the tile that row `row0` sees; a row further on sees one more.
        int seen = first + row0 - tile * TILE_KEYS + 1, key = lane * 2;
        bool whole = seen >= TILE_KEYS;
        float none = __int_as_float(0xff800000), most[OWN_ROWS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            dot[0][i] = __fmul_rn(dot[0][i], p.scale), dot[1][i] = __fmul_rn(dot[1][i], p.scale);
            if (!whole && key >= seen + i) dot[0][i] = none;
            if (!whole && key + 1 >= seen + i) dot[1][i] = none;
            most[i] = fmaxf(dot[0][i], dot[1][i]);
        }
        float tile_m = of_row(most, lane, [](float x, float y) { return fmaxf(x, y); });
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            float top = __shfl_sync(FULL, tile_m, 4 * i);
            dot[0][i] = exp_f32(__fsub_rn(dot[0][i], top));
            dot[1][i] = exp_f32(__fsub_rn(dot[1][i], top));
            if (!whole && key >= seen + i) dot[0][i] = 0.0f;
            if (!whole && key + 1 >= seen + i) dot[1][i] = 0.0f;
        }
        float *weights = s.p[warp][key];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = &dot[i / 2][i % 2 * 4];
            *(float4 *)(weights + 4 * i) = make_float4(x[0], x[1], x[2], x[3]);
        }
        // The reference's lanes j and j + 1 are a lane's two keys here.
        auto plus = [](float x, float y) { return __fadd_rn(x, y); };
        float tile_l = __fadd_rn(of_row(dot[0], lane, plus), of_row(dot[1], lane, plus));
        bool begins = tile % CHUNK_TILES == 0;
        // A row that sees nothing here stays as it is; a chunk begins from zeros.
        float2 f = make_float2(1.0f, 0.0f);
        if (begins) {
            m = tile_m, l = tile_l, f = make_float2(0.0f, 1.0f);
        } else if (seen + lane / 4 > 0) {
            f = joined(m, l, tile_m, tile_l);
        }
        __syncwarp();
        float sum[GROUPS][OWN_ROWS][4];
#pragma unroll
        for (int i = 0; i < GROUPS * 32; i++) (&sum[0][0][0])[i] = 0.0f;
        if (works) {
            int keys = min(TILE_KEYS, last - tile * TILE_KEYS + 1);
            const T(*v)[DIM] = s.v[tile % SIDES];
            if (first >= tile * TILE_KEYS + TILE_KEYS - 1) {
                weigh<DIM, true>(sum, s.p[warp], v, lane, keys, 0);
            } else {
                weigh<DIM, false>(sum, s.p[warp], v, lane, keys, seen - 1);
            }
        }
        __syncwarp();
        if (SIDES == 1) {
            __syncthreads();
            if (tile + 1 < tiles) fetch(tile + 1);
        }
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            float f1 = __shfl_sync(FULL, f.x, 4 * i), f2 = __shfl_sync(FULL, f.y, 4 * i);
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float x = flushed(sum[g][i][j]);
                    o[g][i][j] = __fmaf_rn(o[g][i][j], f1, __fmul_rn(x, f2));
                }
        }
        if (tile % CHUNK_TILES != CHUNK_TILES - 1 && tile != tiles - 1) continue;
        // The chunk joins those before it, for rows that see any of it.
        int chunk = tile / CHUNK_TILES * CHUNK_TILES * TILE_KEYS;
        f = make_float2(1.0f, 0.0f);
        if (tile < CHUNK_TILES) {
            all_m = m, all_l = l, f = make_float2(0.0f, 1.0f);
        } else if (first + mine >= chunk) {
            f = joined(all_m, all_l, m, l);
        }
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            float f1 = __shfl_sync(FULL, f.x, 4 * i), f2 = __shfl_sync(FULL, f.y, 4 * i);
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float x = o[g][i][j];
                    all_o[g][i][j] = __fmaf_rn(all_o[g][i][j], f1, __fmul_rn(x, f2));
                    o[g][i][j] = 0.0f;
                }
        }
    }
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) {
        float r = __fdiv_rn(1.0f, __shfl_sync(FULL, all_l, 4 * i));
        if (!works || row0 + i >= span.count) continue;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u64 row = span.first + row0 + i;
                u64 at = (row * p.heads + head) * DIM + g * 128 + lane * 4 + j;
                p.out[at] = flushed(__fmul_rn(all_o[g][i][j], r));
            }
    }
}

#define ATTEND(dim)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_rows_##dim(const Prompt p) {   \
        BEGIN;                                                                                     \
        attend_rows<dim, u16>(p);                                                                  \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_floats_##dim(const Prompt p) { \
        BEGIN;                                                                                     \
        attend_rows<dim, float>(p);                                                                \
    }

ATTEND(64)
ATTEND(128)
ATTEND(256)
