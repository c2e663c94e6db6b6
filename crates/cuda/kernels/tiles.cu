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

// Of 256 threads.
__device__ __forceinline__ void bring(u16 *to, const u16 *from, int values) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    for (int i = threadIdx.x % 256 * 8; i < values; i += 256 * 8)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + 2 * i),
                     "l"(from + i));
    asm volatile("cp.async.commit_group;");
}

// Queries and weights in shared memory lie four words further apart than they are long, so that
// those that are read at once are in other banks.
#define QUERY (DIM_MAX + 4)
#define WEIGHTS (TILE_KEYS + 4)

// A query to shared memory, by a warp.
__device__ __forceinline__ void take_query(float *to, const float *from, int dim) {
    int lane = threadIdx.x % 32;
    if (dim % 4 == 0)
        for (int d = lane * 4; d < dim; d += 128) *(float4 *)(to + d) = *(const float4 *)(from + d);
    else
        for (int d = lane; d < dim; d += 32) to[d] = from[d];
}

// A thread has a key and H heads of the tile, whose queries and weights lie from its own on.
template <int H>
__device__ __forceinline__ void dots(const u16 *k, const float *q, int dim, float scale,
                                     float *weights) {
    float s[H];
#pragma unroll
    for (int h = 0; h < H; h++) s[h] = 0.0f;
    int d = 0;
#pragma unroll 4
    for (; d + 4 <= dim; d += 4) {
        float4 four[H];
#pragma unroll
        for (int h = 0; h < H; h++) four[h] = *(const float4 *)(q + h * QUERY + d);
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = half_to_float(k[(d + i) * TILE_KEYS]);
#pragma unroll
        for (int h = 0; h < H; h++) {
            s[h] = __fmaf_rn(four[h].x, x[0], s[h]), s[h] = __fmaf_rn(four[h].y, x[1], s[h]);
            s[h] = __fmaf_rn(four[h].z, x[2], s[h]), s[h] = __fmaf_rn(four[h].w, x[3], s[h]);
        }
    }
    for (; d < dim; d++) {
        float x = half_to_float(k[d * TILE_KEYS]);
#pragma unroll
        for (int h = 0; h < H; h++) s[h] = __fmaf_rn(q[h * QUERY + d], x, s[h]);
    }
#pragma unroll
    for (int h = 0; h < H; h++) weights[h] = __fmul_rn(s[h], scale);
}

// A thread has a dim of all heads, two halves of H each.
template <int H>
__device__ __forceinline__ void outputs(const u16 *v, const float (*weights)[GROUP], int keys,
                                        int dim, float *part, u64 apart, int heads) {
    float o[2 * H];
#pragma unroll
    for (int h = 0; h < 2 * H; h++) o[h] = 0.0f;
#pragma unroll 8
    for (int i = 0; i < keys; i++) {
        float x = half_to_float(v[i * dim]);
        float4 w0 = *(const float4 *)&weights[i][0], w1 = *(const float4 *)&weights[i][4];
        float w[GROUP] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
        for (int h = 0; h < 2 * H; h++)
            o[h] = __fmaf_rn(w[h], x, o[h]);
    }
#pragma unroll
    for (int h = 0; h < 2 * H; h++)
        if (h < heads) part[h * apart] = flushed(o[h]);
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
    float *q = (float *)memory + DIM_MAX * TILE_KEYS;
    u64 page = c.pages[c.tables[row] + tile];
    u64 start = (page * c.kv_heads + kv) * dim * TILE_KEYS;
    bool clean = p.clean && tile < p.clean[row];
    if (!clean) WAIT;
    bring(k, (const u16 *)c.k + start, dim * TILE_KEYS);
    // One after the other: the kernels before read too.
    if (clean) asm volatile("cp.async.wait_group 0;");
    bring(v, (const u16 *)c.v + start, keys * dim);
    WAIT;
    int h = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (h < heads) take_query(q + h * QUERY, p.q + ((u64)row * p.heads + head + h) * dim, dim);
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    // Half of the heads, as many of a thread: its key's and theirs.
    int half = (heads + 1) / 2, which = threadIdx.x / TILE_KEYS, key = threadIdx.x % TILE_KEYS;
    if (which < 2) {
        const float *own = q + which * half * QUERY;
        float *to = &weights[key][which * half];
        if (half == 1) dots<1>(k + key, own, dim, p.scale, to);
        if (half == 2) dots<2>(k + key, own, dim, p.scale, to);
        if (half == 3) dots<3>(k + key, own, dim, p.scale, to);
        if (half == 4) dots<4>(k + key, own, dim, p.scale, to);
    }
    __syncthreads();
    // A warp a head.
    u64 apart = (u64)p.tiles * (dim + 2);
    float *part = p.parts + (((u64)blockIdx.z * p.heads + head) * p.tiles + tile) * (dim + 2);
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
        if (lane == 0) part[h * apart + dim] = m, part[h * apart + dim + 1] = l;
    }
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    int d = threadIdx.x;
    if (d >= dim) return;
    if (half == 1) outputs<1>(v + d, weights, keys, dim, part + d, apart, heads);
    if (half == 2) outputs<2>(v + d, weights, keys, dim, part + d, apart, heads);
    if (half == 3) outputs<3>(v + d, weights, keys, dim, part + d, apart, heads);
    if (half == 4) outputs<4>(v + d, weights, keys, dim, part + d, apart, heads);
}

// As `take_query`, without a wait.
__device__ __forceinline__ void ask_query(float *to, const float *from, int dim) {
    if (dim % 4 > 0) return take_query(to, from, dim);
#pragma unroll 1
    for (int d = threadIdx.x % 32 * 4; d < dim; d += 128)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         (u32)__cvta_generic_to_shared(to + d)),
                     "l"(from + d));
}

// The same for a window of rows at successive positions of one table: 256 threads have one tile of
// keys and all query heads of one kv head of up to eight rows, whose queries the tiles of a block
// share.

// Rows `first ..` of the round, `count` of them, whose parts begin at part `part`.
struct Window {
    int first;
    int count;
    int part;
};

struct Windows {
    Tiles tiles;
    const Window *windows;
    // Whether values have a place of their own and weights the keys', else values have it.
    int apart;
};

// What the threads of a tile have of a window.
struct Span {
    int queries, group, position, tile, dim;
    // Keys that the last row sees, and those that every row does.
    int most, whole;
    const u16 *keys, *values;
    float *weights;
};

// All threads of a tile are here.
__device__ __forceinline__ void tile_sync() {
    asm volatile("bar.sync %0, 256;" ::"r"(threadIdx.x / 256 + 1) : "memory");
}

// A warp has so many queries in a row, each of its lanes two keys of each.
template <int SOME>
__device__ __forceinline__ void span_dots(const Span &s, const float *q, float dot[SOME][2]) {
    const u16 *keys = s.keys + threadIdx.x % 32 * 2;
#pragma unroll
    for (int i = 0; i < SOME; i++) dot[i][0] = dot[i][1] = 0.0f;
    auto add = [&](float q, const float x[2], float to[2]) {
        to[0] = __fmaf_rn(q, x[0], to[0]), to[1] = __fmaf_rn(q, x[1], to[1]);
    };
    auto two_keys = [&](int d, float x[2]) {
        u32 two = *(const u32 *)&keys[d * TILE_KEYS];
        x[0] = half_to_float(two), x[1] = half_to_float(two >> 16);
    };
    int d = 0;
#pragma unroll 2
    for (; d + 4 <= s.dim; d += 4) {
        float x[4][2];
        float4 four[SOME];
#pragma unroll
        for (int j = 0; j < 4; j++) two_keys(d + j, x[j]);
#pragma unroll
        for (int i = 0; i < SOME; i++) four[i] = *(const float4 *)(q + i * QUERY + d);
#pragma unroll
        for (int i = 0; i < SOME; i++) {
            add(four[i].x, x[0], dot[i]), add(four[i].y, x[1], dot[i]);
            add(four[i].z, x[2], dot[i]), add(four[i].w, x[3], dot[i]);
        }
    }
    for (; d < s.dim; d++) {
        float x[2];
        two_keys(d, x);
#pragma unroll
        for (int i = 0; i < SOME; i++) add(q[i * QUERY + d], x, dot[i]);
    }
}

// Weights of so many queries from their dots, to shared memory; gives the largest dot and the sum
// of each. All queries go from step to step together, since each step is a wait.
template <int SOME>
__device__ __forceinline__ void span_weights(const Span &s, int first, float dot[SOME][2],
                                             float scale, float m[SOME], float l[SOME]) {
    int key = threadIdx.x % 32 * 2, row = first / s.group, head = first % s.group;
#pragma unroll
    for (int i = 0; i < SOME; i++) {
        int keys = s.position + row + 1 - s.tile * TILE_KEYS;
        float none = __int_as_float(0xff800000);
#pragma unroll
        for (int k = 0; k < 2; k++)
            dot[i][k] = key + k < keys ? __fmul_rn(dot[i][k], scale) : none;
        m[i] = fmaxf(dot[i][0], dot[i][1]);
        head = head + 1 < s.group ? head + 1 : 0, row += head == 0;
    }
#pragma unroll
    for (int w = 16; w > 0; w /= 2)
#pragma unroll
        for (int i = 0; i < SOME; i++) m[i] = fmaxf(m[i], __shfl_xor_sync(FULL, m[i], w));
    // Of a key that is not visible this is +0, where the row sees another one.
#pragma unroll
    for (int i = 0; i < SOME; i++) {
#pragma unroll
        for (int k = 0; k < 2; k++) dot[i][k] = exp_f32(__fsub_rn(dot[i][k], m[i]));
        *(float2 *)(s.weights + (first + i) * WEIGHTS + key) = make_float2(dot[i][0], dot[i][1]);
    }
    // The reference's lanes j and j + 1 are a lane's two keys here.
#pragma unroll
    for (int apart = 32; apart > 1; apart /= 2)
#pragma unroll
        for (int i = 0; i < SOME; i++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float other = __shfl_xor_sync(FULL, dot[i][k], apart / 2);
                dot[i][k] = __fadd_rn(dot[i][k], other);
            }
#pragma unroll
    for (int i = 0; i < SOME; i++) l[i] = __fadd_rn(dot[i][0], dot[i][1]);
}

// Where part `part` of all rows and heads has value `d` of the tile.
__device__ __forceinline__ float *span_part(const Tiles &t, const Span &s, u32 part, int d) {
    u32 bytes = (s.dim + 2) * 4;
    return (float *)((u8 *)(t.parts + d) + s.tile * bytes + (u64)part * (t.tiles * bytes));
}

// A thread has four dims and so many queries.
template <int SOME>
__device__ __forceinline__ void span_outputs(const Span &s, int from, int d, float o[SOME][4]) {
#pragma unroll
    for (int i = 0; i < SOME * 4; i++) o[i / 4][i % 4] = 0.0f;
    auto four_dims = [&](int i, float x[4]) {
        if (s.dim % 4 == 0) {
            uint2 four = *(const uint2 *)&s.values[i * s.dim + d];
            x[0] = half_to_float(four.x), x[1] = half_to_float(four.x >> 16);
            x[2] = half_to_float(four.y), x[3] = half_to_float(four.y >> 16);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = half_to_float(s.values[i * s.dim + d + j]);
        }
    };
    const float *weights = s.weights + from * WEIGHTS;
    int i = 0;
    // Keys that every row sees, then those that only later ones do, from some query on.
    for (; i + 4 <= s.whole; i += 4) {
        float x[4][4];
#pragma unroll
        for (int k = 0; k < 4; k++) four_dims(i + k, x[k]);
#pragma unroll
        for (int q = 0; q < SOME; q++) {
            float4 four = *(const float4 *)(weights + q * WEIGHTS + i);
            float w[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int j = 0; j < 4; j++) o[q][j] = __fmaf_rn(w[k], x[k][j], o[q][j]);
        }
    }
    for (; i < s.most; i++) {
        float x[4];
        four_dims(i, x);
        int seeing = (s.tile * TILE_KEYS + i - s.position) * s.group;
#pragma unroll
        for (int q = 0; q < SOME; q++) {
            if (from + q < seeing) continue;
            float w = weights[q * WEIGHTS + i];
#pragma unroll
            for (int j = 0; j < 4; j++) o[q][j] = __fmaf_rn(w, x[j], o[q][j]);
        }
    }
}

// Four dims of the outputs of `count` queries in a row, or of as many as there are: from part
// `part` and head `head` of the group on.
template <int SOME>
__device__ __forceinline__ void span_give(const Tiles &t, const Span &s, u32 part, int head,
                                          int count, int d, const float o[SOME][4]) {
#pragma unroll
    for (int i = 0; i < SOME; i++) {
        if (i >= count) break;
        float *to = span_part(t, s, part, d), y[4];
        bool last = ++head == s.group;
        part += last ? t.heads - s.group + 1 : 1, head = last ? 0 : head;
#pragma unroll
        for (int j = 0; j < 4; j++) y[j] = flushed(o[i][j]);
        if (s.dim % 4 == 0) {
            __stcg((float2 *)to, make_float2(y[0], y[1]));
            __stcg((float2 *)(to + 2), make_float2(y[2], y[3]));
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (d + j < s.dim) to[j] = y[j];
        }
    }
}

// Of 8 OWN queries.
template <int OWN> __device__ __forceinline__ void attend_span(const Windows &p) {
    const int QUERIES = 8 * OWN, KEYS = DIM_MAX * TILE_KEYS;
    const Tiles &t = p.tiles;
    const Cache &c = t.cache;
    Window window = p.windows[blockIdx.z];
    int at_once = blockDim.x / 256, own = threadIdx.x / 256, kv = blockIdx.y;
    Span s;
    s.dim = c.dim, s.group = t.heads / c.kv_heads, s.tile = blockIdx.x * at_once + own;
    s.position = c.positions[window.first], s.queries = window.count * s.group;
    s.most = min(TILE_KEYS, s.position + window.count - s.tile * TILE_KEYS);
    s.whole = min(TILE_KEYS, max(0, s.position + 1 - s.tile * TILE_KEYS));
    if (s.most + own * TILE_KEYS <= 0) return;
    bool live = s.most > 0, clean = t.clean && s.tile < t.clean[window.first];
    float *q = (float *)memory;
    u16 *keys = (u16 *)(q + QUERIES * QUERY);
    keys += own * (KEYS + (p.apart ? KEYS : 2 * QUERIES * WEIGHTS));
    u16 *values = keys + (p.apart ? KEYS : 0);
    s.keys = keys, s.values = values, s.weights = (float *)(keys + (p.apart ? 0 : KEYS));
    u64 page = live ? c.pages[c.tables[window.first] + s.tile] : 0;
    u64 start = (page * c.kv_heads + kv) * s.dim * TILE_KEYS;
    if (!clean) WAIT;
    if (live) bring(keys, (const u16 *)c.k + start, s.dim * TILE_KEYS);
    if (live && clean && p.apart) bring(values, (const u16 *)c.v + start, s.most * s.dim);
    WAIT;
    int step = blockDim.x / 32, row = threadIdx.x / 32 / s.group, head = threadIdx.x / 32 % s.group;
#pragma unroll 1
    for (int at = threadIdx.x / 32; at < s.queries; at += step) {
        u64 from = (u64)(window.first + row) * t.heads + kv * s.group + head;
        ask_query(q + at * QUERY, t.q + from * s.dim, s.dim);
        for (head += step; head >= s.group; head -= s.group) row++;
    }
    asm volatile("cp.async.commit_group;");
    // Of tiles that are not clean the values come last.
    if (live && !clean && p.apart) {
        bring(values, (const u16 *)c.v + start, s.most * s.dim);
        asm volatile("cp.async.wait_group 1;");
    } else {
        asm volatile("cp.async.wait_group 0;");
    }
    __syncthreads();
    if (!live) return;
    int in = threadIdx.x % 256, first = in / 32 * OWN;
    float dot[OWN][2];
    span_dots<OWN>(s, q + first * QUERY, dot);
    tile_sync();
    if (!p.apart) bring(values, (const u16 *)c.v + start, s.most * s.dim);
    float m[OWN], l[OWN];
    span_weights<OWN>(s, first, dot, t.scale, m, l);
    // A lane a query.
    u32 first_part = window.part * t.heads + kv * s.group;
    int lane = threadIdx.x % 32, own_row = (first + lane) / s.group;
#pragma unroll
    for (int i = 1; i < OWN; i++)
        if (lane == i) m[0] = m[i], l[0] = l[i];
    bool sees = s.position + own_row >= s.tile * TILE_KEYS;
    if (lane < OWN && first + lane < s.queries && sees) {
        u32 part = first_part + own_row * t.heads + (first + lane) % s.group;
        float *to = span_part(t, s, part, s.dim);
        to[0] = m[0], to[1] = l[0];
    }
    asm volatile("cp.async.wait_group 0;");
    tile_sync();
    const int MORE = 2 * OWN;
    int d = in % 64 * 4, from = in / 64 * MORE;
    if (d >= s.dim || from >= s.queries) return;
    float o[MORE][4];
    // Else the compiler works out anew for every few keys where they are.
    u32 at_values = (u8 *)s.values - memory, at_weights = (u8 *)s.weights - memory;
    asm("" : "+r"(at_values), "+r"(at_weights));
    s.values = (u16 *)(memory + at_values), s.weights = (float *)(memory + at_weights);
    span_outputs<MORE>(s, from, d, o);
    row = from / s.group, head = from % s.group;
    span_give<MORE>(t, s, first_part + row * t.heads + head, head, s.queries - from, d, o);
}

#define SPAN(own)                                                                                  \
    extern "C" __global__ void __launch_bounds__(512) attend_span_##own(const Windows p) {         \
        COME;                                                                                      \
        attend_span<own>(p);                                                                       \
    }

SPAN(2)
SPAN(4)
SPAN(6)
SPAN(8)
