// What a few rows pass between two linear layers, in one launch each: the small ops of a decode
// step take longer to begin than to run. Every value is what the ops alone give, and is written
// where they write it.

// A residual sum where `y` is given, a norm, and integers of it.
struct NormQuantise {
    float *x;
    const float *y;
    const float *w;
    float *out;
    Quantised to;
    int width;
    float eps;
    float inverse;
};

#define NORM_WARPS 32
#define NORM_WIDTH_MAX 8192
#define NORM_SLICES (NORM_WIDTH_MAX / SLICE / NORM_WARPS)
#define NORM_LOADS (NORM_WIDTH_MAX / NORM_WARPS / 128)

__device__ __forceinline__ float4 four_of(const float *from) { return *(const float4 *)from; }

// One block a row; one warp holds the 32 lanes of the sum.
extern "C" __global__ void __launch_bounds__(NORM_WARPS * 32) norm_quantise(const NormQuantise p) {
    COME;
    __shared__ __align__(16) float row[NORM_WIDTH_MAX];
    __shared__ float factor;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float4 w[NORM_SLICES][2];
#pragma unroll
    for (int i = 0; i < NORM_SLICES; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int from = (warp + i * NORM_WARPS) * SLICE + h * 128 + lane * 4;
            w[i][h] = from < p.width ? four_of(p.w + from) : make_float4(0, 0, 0, 0);
        }
    WAIT;
    float *x = p.x + (u64)blockIdx.x * p.width, *out = p.out + (u64)blockIdx.x * p.width;
    const float *y = p.y ? p.y + (u64)blockIdx.x * p.width : nullptr;
    // All loads before the first store, behind which they could not come.
    float4 own[NORM_LOADS], other[NORM_LOADS];
#pragma unroll
    for (int i = 0; i < NORM_LOADS; i++) {
        int from = (i * NORM_WARPS * 32 + threadIdx.x) * 4;
        own[i] = from < p.width ? four_of(x + from) : make_float4(0, 0, 0, 0);
        other[i] = y && from < p.width ? four_of(y + from) : make_float4(0, 0, 0, 0);
    }
    bool bad = false;
#pragma unroll
    for (int i = 0; i < NORM_LOADS; i++) {
        int from = (i * NORM_WARPS * 32 + threadIdx.x) * 4;
        if (from >= p.width) break;
        float4 a = own[i];
        if (y) {
            float4 b = other[i];
            a.x = flushed(__fadd_rn(a.x, b.x)), a.y = flushed(__fadd_rn(a.y, b.y));
            a.z = flushed(__fadd_rn(a.z, b.z)), a.w = flushed(__fadd_rn(a.w, b.w));
            *(float4 *)(x + from) = a;
        }
        bad |= spoilt(a.x) || spoilt(a.y) || spoilt(a.z) || spoilt(a.w);
        *(float4 *)(row + from) = a;
    }
    bool any = __syncthreads_or(bad);
    if (warp == 0) {
        float sum = 0.0f;
#pragma unroll 32
        for (int i = lane; i < p.width; i += 32) sum = __fmaf_rn(row[i], row[i], sum);
        float mean = __fmaf_rn(folded(sum), p.inverse, p.eps);
        if (lane == 0) factor = __fdiv_rn(1.0f, __fsqrt_rn(mean));
    }
    __syncthreads();
    float r = factor;
#pragma unroll
    for (int i = 0; i < NORM_SLICES; i++) {
        int slice = warp + i * NORM_WARPS;
        if (slice >= p.to.slices) break;
        float v[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int from = slice * SLICE + h * 128 + lane * 4;
            bool in = from < p.width;
            float4 a = in ? four_of(row + from) : make_float4(0, 0, 0, 0), b = w[i][h];
            v[h][0] = flushed(__fmul_rn(__fmul_rn(a.x, r), b.x));
            v[h][1] = flushed(__fmul_rn(__fmul_rn(a.y, r), b.y));
            v[h][2] = flushed(__fmul_rn(__fmul_rn(a.z, r), b.z));
            v[h][3] = flushed(__fmul_rn(__fmul_rn(a.w, r), b.w));
            for (int j = 0; j < 4; j++) v[h][j] = !in ? 0.0f : any ? SPOILT : v[h][j];
            if (in) *(float4 *)(out + from) = make_float4(v[h][0], v[h][1], v[h][2], v[h][3]);
        }
        quantise_slice(p.to, blockIdx.x, slice, v, false);
    }
}

// A product with silu or a gate, and integers of it: a warp a slice.
struct MulQuantise {
    const float *x;
    const float *y;
    float *out;
    Quantised to;
    int width;
    // out = x sigmoid(y), else silu(x) y.
    int gate;
};

extern "C" __global__ void __launch_bounds__(128) mul_quantise(const MulQuantise p) {
    BEGIN;
    int slice = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y;
    if (slice >= p.to.slices) return;
    float v[2][4];
    float4 both[2][2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int from = slice * SLICE + h * 128 + lane * 4;
        bool in = from < p.width;
        u64 at = (u64)row * p.width + from;
        both[h][0] = in ? four_of(p.x + at) : make_float4(0, 0, 0, 0);
        both[h][1] = in ? four_of(p.y + at) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int from = slice * SLICE + h * 128 + lane * 4;
        bool in = from < p.width;
        u64 at = (u64)row * p.width + from;
        float4 a = both[h][0], b = both[h][1];
        float x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float z = p.gate ? __fmul_rn(x[i], sigmoid_f32(y[i])) : __fmul_rn(silu_f32(x[i]), y[i]);
            v[h][i] = flushed(z);
        }
        if (in) *(float4 *)(p.out + at) = make_float4(v[h][0], v[h][1], v[h][2], v[h][3]);
    }
    quantise_slice(p.to, row, slice, v, false);
}

#define HEAD 128

// Norms of heads of 128 times silu of `z`, and integers of them, a warp two heads; the blocks after
// those write the tails that the convolution before has left to do.
struct GatedQuantise {
    HeadNorm norm;
    Quantised to;
    Conv tails;
    int width;
    int walks;
};

extern "C" __global__ void __launch_bounds__(128) gated_quantise(const GatedQuantise p) {
    COME;
    __shared__ __align__(16) float rows[4][SLICE];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, blocks = (p.to.slices + 3) / 4;
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = p.norm.w[i * 32 + lane];
    WAIT;
    if (blockIdx.x >= blocks) {
        int c = (blockIdx.x - blocks) * 128 + threadIdx.x;
        if (c < p.tails.channels && blockIdx.y < p.walks) keep_tail(p.tails, blockIdx.y, c);
        return;
    }
    int slice = blockIdx.x * 4 + warp, row = blockIdx.y;
    if (slice >= p.to.slices) return;
    u64 start = (u64)row * p.width + slice * SLICE;
    float xs[2][4], zs[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        xs[i / 4][i % 4] = p.norm.x[start + i * 32 + lane];
        zs[i / 4][i % 4] = p.norm.z[start + i * 32 + lane];
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float *x = xs[h], *z = zs[h];
        float sum = 0.0f;
        bool bad = false;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bad |= spoilt(x[i]);
            sum = __fmaf_rn(x[i], x[i], sum);
        }
        bad = __any_sync(FULL, bad);
        float mean = __fmaf_rn(folded(sum), p.norm.inverse, p.norm.eps);
        float r = __fdiv_rn(1.0f, __fsqrt_rn(mean));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float y = __fmul_rn(__fmul_rn(x[i], r), w[i]);
            y = bad ? SPOILT : flushed(__fmul_rn(y, silu_f32(z[i])));
            p.norm.x[start + h * HEAD + i * 32 + lane] = y;
            rows[warp][h * HEAD + i * 32 + lane] = y;
        }
    }
    __syncwarp();
    float v[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float4 four = four_of(&rows[warp][h * HEAD + lane * 4]);
        v[h][0] = four.x, v[h][1] = four.y, v[h][2] = four.z, v[h][3] = four.w;
    }
    quantise_slice(p.to, row, slice, v, false);
}

// The convolution, its norms, the gates where `gates.b` is given, and the delta rule, for heads of
// 128 by 128: two blocks a value head of a walk, for half of its columns each, four threads for two
// columns. Both have the head's query and key, which the first writes. Tails stay as they were,
// since other heads read them.
struct DeltaFew {
    Conv conv;
    Gates gates;
    Delta delta;
    float scale;
    // Whether nothing that still runs writes states or tails.
    int settled;
};

#define FEW 8
#define COLUMNS (HEAD / 2)
// Channels of a block: of query, key and value.
#define MIXED (2 * HEAD + COLUMNS)
// Columns of a thread, apart.
#define EACH 2
#define APART (COLUMNS / EACH)
// Warps: those that have a channel of query, key or value a thread, of which the first rule columns
// later, and one whose threads have a row's gates each.
#define DELTA_WARPS 11

// What a channel gives of some rows, which are computed side by side.
template <int ROWS>
__device__ __forceinline__ void mix(const Conv &conv, const float taps[TAPS_MAX],
                                    float seen[TAPS_MAX], const float *x, float *given) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < TAPS_MAX; i++) {
            seen[i] = i + 1 < TAPS_MAX ? seen[i + 1] : x[r];
            if (i >= TAPS_MAX - conv.count) sum = __fmaf_rn(taps[i], seen[i], sum);
        }
        given[r] = flushed(silu_f32(sum));
    }
}

extern "C" __global__ void __launch_bounds__(DELTA_WARPS * 32) delta_few(const DeltaFew p) {
    COME;
    // Of each row: query, key, value; what its pass reads; beta and decay.
    __shared__ float mixed[FEW][MIXED];
    __shared__ __align__(16) Dims<HEAD / 4> normed[FEW + 1];
    __shared__ float2 both[FEW];
    const Delta &q = p.delta;
    const Conv &conv = p.conv;
    Ruled<HEAD / 4, EACH> own;
    int lane = own.lane(), half = blockIdx.x % 2, h = blockIdx.x / 2;
    int column = half * COLUMNS + own.column();
    int warp = threadIdx.x / 32, in_warp = threadIdx.x % 32;
    Walk walk = q.walks[blockIdx.y];
    int rep = q.values / q.keys, kh = q.tiled ? h % q.keys : h / rep, rows = walk.end - walk.first;
    bool first = half == 0, owner = first && (q.tiled ? h < q.keys : h % rep == 0);
    bool rules = threadIdx.x < 4 * APART, convolves = threadIdx.x < MIXED;
    // The channel that a thread convolves.
    int which = threadIdx.x / HEAD, in_head = threadIdx.x % HEAD;
    int channel = (which * q.keys + kh) * HEAD + in_head;
    if (which == 2) channel = (2 * q.keys + h) * HEAD + half * COLUMNS + in_head;
    // What was there before this round comes while others still run.
    if (!p.settled) WAIT;
    u64 places = (u64)HEAD * HEAD;
    const float *before = q.s + ((u64)walk.from * q.values + h) * places + column;
#pragma unroll
    for (int i = 0; i < HEAD / 4 * EACH; i++) {
        bool live = rules && walk.from >= 0;
        own.s[i % EACH][i / EACH] =
            live ? before[(i / EACH * 4 + lane) * HEAD + i % EACH * APART] : 0.0f;
    }
    // Taps and the rows that they see, the row at hand last.
    float taps[TAPS_MAX], seen[TAPS_MAX];
#pragma unroll
    for (int i = 0; i < TAPS_MAX; i++) {
        int j = i - (TAPS_MAX - conv.count);
        bool tap = convolves && j >= 0, tail = tap && j > 0 && walk.from >= 0;
        u64 at = (u64)walk.from * (conv.count - 1) + j - 1;
        taps[i] = tap ? conv.taps[j * conv.channels + channel] : 0.0f;
        seen[i] = tail ? conv.tails[at * conv.channels + channel] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < HEAD / 4 * EACH; i++) {
        float &s = own.s[i % EACH][i / EACH];
        s = product_flushed(s, DOWN);
    }
    WAIT;
    if (convolves) {
        u64 start = (u64)walk.first * conv.channels + channel;
        float x[FEW], given[FEW];
#pragma unroll
        for (int r = 0; r < FEW; r++)
            x[r] = r < rows ? conv.x[start + (u64)r * conv.channels] : 0.0f;
        if (rows == 1) {
            mix<1>(conv, taps, seen, x, given);
        } else {
            mix<FEW / 2>(conv, taps, seen, x, given);
            if (rows > FEW / 2) mix<FEW / 2>(conv, taps, seen, x + FEW / 2, given + FEW / 2);
        }
#pragma unroll
        for (int r = 0; r < FEW; r++) {
            if (r >= rows) break;
            mixed[r][threadIdx.x] = given[r];
            if (which == 2) conv.out[start + (u64)r * conv.channels] = given[r];
        }
    } else if (in_warp < rows) {
        u64 row = walk.first + in_warp, at = row * q.values + h;
        const float *from = q.gates + row * 2 * q.values;
        float beta, decay;
        if (p.gates.b) {
            beta = flushed(sigmoid_f32(p.gates.b[at]));
            float soft = softplus_f32(__fadd_rn(p.gates.a[at], p.gates.bias[h]));
            decay = flushed(exp_f32(-__fmul_rn(p.gates.amplitude[h], soft)));
            float *out = p.gates.out + row * 2 * q.values;
            if (first) out[h] = beta, out[q.values + h] = decay;
        } else {
            beta = from[h], decay = from[q.values + h];
        }
        both[in_warp] = make_float2(beta, decay);
    }
    __syncthreads();
    // A warp a row.
    if (warp < rows) {
        float x[2][4], sum[2], root[2];
        bool bad[2];
#pragma unroll
        for (int side = 0; side < 2; side++) {
            sum[side] = 0.0f, bad[side] = false;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &own = x[side][i];
                own = mixed[warp][side * HEAD + i * 32 + in_warp];
                bad[side] |= spoilt(own);
                sum[side] = __fmaf_rn(own, own, sum[side]);
            }
            bad[side] = __any_sync(FULL, bad[side]);
        }
        // Side by side: each is a long wait.
#pragma unroll
        for (int w = 16; w > 0; w /= 2)
            for (int side = 0; side < 2; side++)
                sum[side] = __fadd_rn(sum[side], __shfl_down_sync(FULL, sum[side], w));
#pragma unroll
        for (int side = 0; side < 2; side++) {
            sum[side] = __shfl_sync(FULL, sum[side], 0);
            root[side] = reciprocal(__fsqrt_rn(__fadd_rn(sum[side], 1e-6f)));
        }
        float *out = conv.out + (u64)(walk.first + warp) * conv.channels;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = i * 32 + in_warp;
            float query = __fmul_rn(__fmul_rn(x[0][i], root[0]), p.scale);
            float key = __fmul_rn(x[1][i], root[1]);
            query = bad[0] ? SPOILT : flushed(query), key = bad[1] ? SPOILT : flushed(key);
            normed[warp + 1].query[k / 16][k % 4][k / 4 % 4] = __fmul_rn(query, UP);
            normed[warp].key[k / 16][k % 4][k / 4 % 4] = __fmul_rn(key, UP);
            if (owner) out[kh * HEAD + k] = query, out[(q.keys + kh) * HEAD + k] = key;
        }
    }
    __syncthreads();
    if (!rules) return;
    float value[EACH];
    bool gives = lane < EACH;
    u64 apart = (u64)q.values * HEAD;
    float *out = q.out + walk.first * apart + h * HEAD + column + lane * APART;
    auto takes = [&](int r) {
#pragma unroll
        for (int c = 0; c < EACH; c++) value[c] = mixed[r][2 * HEAD + own.column() + c * APART];
        own.takes(both[r].x, value);
    };
    own.read_ahead(normed[0]);
    own.pass<false, true>(normed[0], normed[1], both[0].y);
    takes(0);
    for (int r = 1; r < rows; r++, out += apart) {
        own.pass<true, true>(normed[r], normed[r + 1], both[r].y);
        takes(r);
        if (gives) *out = own.output();
    }
    own.pass<true, false>(normed[rows], normed[rows], 1.0f);
    if (gives) *out = own.output();
    float *after = q.s + ((u64)walk.to * q.values + h) * places + column;
#pragma unroll
    for (int i = 0; i < HEAD / 4 * EACH; i++)
        after[(i / EACH * 4 + lane) * HEAD + i % EACH * APART] =
            __fmaf_rn(own.s[i % EACH][i / EACH], UP, 0.0f);
}

// Norms where their weights are given, RoPE of queries and keys, and the row's place in the cache:
// a warp a head of either.
struct HeadsWrite {
    Cache cache;
    float *q;
    float *k;
    const float *v;
    const float *q_weights;
    const float *k_weights;
    const float *cos;
    const float *sin;
    int rows;
    int heads;
    int pairs;
    int adjacent;
    float q_eps;
    float k_eps;
    float inverse;
};

extern "C" __global__ void __launch_bounds__(128) heads_write(const HeadsWrite p) {
    COME;
    __shared__ float heads[4][DIM_MAX];
    const int LANE = DIM_MAX / 32;
    const Cache &c = p.cache;
    int lane = threadIdx.x % 32, all = p.heads + c.kv_heads, dim = c.dim;
    int at = blockIdx.x * 4 + threadIdx.x / 32, row = at / all, head = at % all;
    if (row >= p.rows) return;
    float *own = heads[threadIdx.x / 32];
    bool keys = head >= p.heads;
    int kv = head - p.heads;
    float *x = keys ? p.k + ((u64)row * c.kv_heads + kv) * dim
                    : p.q + ((u64)row * p.heads + head) * dim;
    const float *weights = keys ? p.k_weights : p.q_weights;
    int position = c.positions[row], key = position % TILE_KEYS;
    u64 page = keys ? c.pages[c.tables[row] + position / TILE_KEYS] : 0;
    // Loads first, of what no other kernel writes before all others.
    float w[LANE], values[LANE], other[LANE], cos[LANE / 2], sin[LANE / 2];
#pragma unroll
    for (int i = 0; i < LANE; i++) {
        int d = i * 32 + lane;
        w[i] = weights && d < dim ? weights[d] : 0.0f;
        if (i >= LANE / 2) continue;
        cos[i] = d < p.pairs ? p.cos[row * p.pairs + d] : 0.0f;
        sin[i] = d < p.pairs ? p.sin[row * p.pairs + d] : 0.0f;
    }
    WAIT;
    const float *v = p.v + ((u64)row * c.kv_heads + kv) * dim;
#pragma unroll
    for (int i = 0; i < LANE; i++) {
        int d = i * 32 + lane;
        values[i] = d < dim ? x[d] : 0.0f;
        other[i] = keys && d < dim ? v[d] : 0.0f;
    }
    float sum = 0.0f;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < LANE; i++) {
        if (i * 32 + lane >= dim) break;
        bad |= spoilt(values[i]);
        sum = __fmaf_rn(values[i], values[i], sum);
    }
    if (weights) {
        bad = __any_sync(FULL, bad);
        float mean = __fmaf_rn(folded(sum), p.inverse, keys ? p.k_eps : p.q_eps);
        float r = __fdiv_rn(1.0f, __fsqrt_rn(mean));
#pragma unroll
        for (int i = 0; i < LANE; i++) {
            float y = __fmul_rn(__fmul_rn(values[i], r), w[i]);
            values[i] = bad ? SPOILT : flushed(y);
        }
    }
#pragma unroll
    for (int i = 0; i < LANE; i++) own[i * 32 + lane] = values[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < LANE / 2; i++) {
        int pair = i * 32 + lane;
        if (pair >= p.pairs) break;
        int first = p.adjacent ? 2 * pair : pair;
        int second = p.adjacent ? first + 1 : pair + p.pairs;
        float a = own[first], b = own[second];
        own[first] = flushed(__fmaf_rn(a, cos[i], -__fmul_rn(b, sin[i])));
        own[second] = flushed(__fmaf_rn(b, cos[i], __fmul_rn(a, sin[i])));
    }
    __syncwarp();
    u64 start = (page * c.kv_heads + kv) * dim * TILE_KEYS;
#pragma unroll
    for (int i = 0; i < LANE; i++) {
        int d = i * 32 + lane;
        if (d >= dim) break;
        float mine = own[d];
        x[d] = mine;
        if (!keys) continue;
        u64 kt = start + d * TILE_KEYS + key, vt = start + key * dim + d;
        if (c.half) {
            ((u16 *)c.k)[kt] = float_to_half(mine);
            ((u16 *)c.v)[vt] = float_to_half(other[i]);
        } else {
            ((float *)c.k)[kt] = mine;
            ((float *)c.v)[vt] = other[i];
        }
    }
}
