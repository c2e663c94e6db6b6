// Gated DeltaNet: the convolution with its norms, and the delta rule with the state in registers.

// Rows of a block: those of one walk share what they read.
#define CONV_ROWS 16

extern "C" __global__ void __launch_bounds__(256) convolve(const Conv p) {
    BEGIN;
    int c = blockIdx.x * 256 + threadIdx.x, first = blockIdx.y * CONV_ROWS;
    if (c >= p.channels) return;
    int end = min(first + CONV_ROWS, p.rows), w = p.walk_of[first];
    // Four taps of rows that follow on one another: each is read once.
    if (p.count == 4 && w >= 0 && p.walk_of[end - 1] == w && first >= p.walks[w].first + 3) {
        const float *x = p.x + (u64)(first - 3) * p.channels + c;
        float taps[4], before[3];
#pragma unroll
        for (int j = 0; j < 4; j++) taps[j] = p.taps[j * p.channels + c];
#pragma unroll
        for (int j = 0; j < 3; j++, x += p.channels) before[j] = *x;
#pragma unroll 4
        for (int row = first; row < end; row++, x += p.channels) {
            float now = *x, sum = __fmaf_rn(taps[0], before[0], 0.0f);
            sum = __fmaf_rn(taps[2], before[2], __fmaf_rn(taps[1], before[1], sum));
            sum = __fmaf_rn(taps[3], now, sum);
            before[0] = before[1], before[1] = before[2], before[2] = now;
            p.out[(u64)row * p.channels + c] = flushed(silu_f32(sum));
        }
        return;
    }
    for (int row = first; row < end; row++) {
        w = p.walk_of[row];
        if (w < 0) continue;
        float sum = convolved(p, p.walks[w], row, c);
        p.out[(u64)row * p.channels + c] = flushed(silu_f32(sum));
    }
}

extern "C" __global__ void __launch_bounds__(256) tail(const Conv p) {
    BEGIN;
    int c = blockIdx.x * 256 + threadIdx.x;
    if (c < p.channels) keep_tail(p, blockIdx.y, c);
}

struct Unit {
    float *x;
    const int *walk_of;
    int rows;
    int keys;
    int dim;
    int channels;
    float scale;
};

// The L2 norm of every query and key head, in place: a warp a head.
extern "C" __global__ void __launch_bounds__(128) l2_norm(const Unit p) {
    BEGIN;
    int at = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = at / (2 * p.keys), head = at % (2 * p.keys);
    if (row >= p.rows || p.walk_of[row] < 0) return;
    float *x = p.x + (u64)row * p.channels + head * p.dim;
    float sum = 0.0f;
    bool bad = false;
    for (int i = lane; i < p.dim; i += 32) {
        bad |= spoilt(x[i]);
        sum = __fmaf_rn(x[i], x[i], sum);
    }
    bad = __any_sync(FULL, bad);
    float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(folded(sum), 1e-6f)));
    for (int i = lane; i < p.dim; i += 32) {
        float y = __fmul_rn(x[i], r);
        if (head < p.keys) y = __fmul_rn(y, p.scale);
        x[i] = bad ? SPOILT : flushed(y);
    }
}

// Four threads a column, a strided lane of its sums each; 64 columns a block. Dims of the key past
// the shape's are zeros, which add nothing.
#define DELTA_THREADS 256
// Rows on their way while one is computed; even, since sides take turns. Four spill after Hopper.
#if __CUDA_ARCH__ > 900
#define DEPTH 2
#else
#define DEPTH 4
#endif

// What a thread brings of a row.
template <int LOADS> struct Row {
    float query[LOADS], key[LOADS], value, beta, decay;
};

template <int OWN> __device__ __forceinline__ void delta_rule(const Delta &p) {
    // A lane's dims lie together, the lanes a bank's width further apart.
    __shared__ __align__(16) float key[2][4][OWN + 4];
    __shared__ __align__(16) float query[2][4][OWN + 4];
    int lane = threadIdx.x % 4, column = (blockIdx.x * DELTA_THREADS + threadIdx.x) / 4;
    int h = blockIdx.y;
    Walk walk = p.walks[blockIdx.z];
    bool live = column < p.value_dim;
    int kh = p.tiled ? h % p.keys : h / (p.values / p.keys);
    int width = p.keys * p.key_dim, channels = 2 * width + p.values * p.value_dim;
    u64 head_values = (u64)p.key_dim * p.value_dim;
    float s[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int k = 4 * i + lane;
        u64 at = ((u64)walk.from * p.values + h) * head_values + (u64)k * p.value_dim + column;
        s[i] = live && walk.from >= 0 && k < p.key_dim ? p.s[at] : 0.0f;
    }
    const int LOADS = (OWN * 4 + DELTA_THREADS - 1) / DELTA_THREADS;
    auto load = [&](int row) {
        Row<LOADS> to;
        const float *x = p.x + (u64)row * channels;
        bool some = row < walk.end;
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            int i = n * DELTA_THREADS + threadIdx.x;
            bool in = i < p.key_dim && some;
            to.query[n] = in ? x[kh * p.key_dim + i] : 0.0f;
            to.key[n] = in ? x[width + kh * p.key_dim + i] : 0.0f;
        }
        to.value = live && some ? x[2 * width + h * p.value_dim + column] : 0.0f;
        to.beta = some ? p.gates[(u64)row * 2 * p.values + h] : 0.0f;
        to.decay = some ? p.gates[(u64)row * 2 * p.values + p.values + h] : 0.0f;
        return to;
    };
    Row<LOADS> rows[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; i++) rows[i] = load(walk.first + i);
    for (int first = walk.first; first < walk.end; first += DEPTH) {
#pragma unroll
        for (int ahead = 0; ahead < DEPTH; ahead++) {
            int row = first + ahead, side = ahead & 1;
            if (row >= walk.end) break;
#pragma unroll
            for (int n = 0; n < LOADS; n++) {
                int i = n * DELTA_THREADS + threadIdx.x;
                if (i >= OWN * 4) continue;
                query[side][i % 4][i / 4] = rows[ahead].query[n];
                key[side][i % 4][i / 4] = rows[ahead].key[n];
            }
            float value = rows[ahead].value, beta = rows[ahead].beta, decay = rows[ahead].decay;
            __syncthreads();
            rows[ahead] = load(row + DEPTH);
            float own[OWN];
#pragma unroll
            for (int i = 0; i < OWN; i += 4) {
                float4 four = *(const float4 *)&key[side][lane][i];
                own[i] = four.x, own[i + 1] = four.y, own[i + 2] = four.z, own[i + 3] = four.w;
            }
            float m = 0.0f;
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                s[i] = flushed(__fmul_rn(s[i], decay));
                m = __fmaf_rn(s[i], own[i], m);
            }
            m = __fadd_rn(m, __shfl_xor_sync(FULL, m, 2));
            m = __fadd_rn(m, __shfl_xor_sync(FULL, m, 1));
            float delta = flushed(__fmul_rn(beta, __fsub_rn(value, m)));
            float y = 0.0f;
#pragma unroll
            for (int i = 0; i < OWN; i += 4) {
                float4 four = *(const float4 *)&query[side][lane][i];
                float q[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    s[i + j] = flushed(__fmaf_rn(own[i + j], delta, s[i + j]));
                    y = __fmaf_rn(s[i + j], q[j], y);
                }
            }
            y = __fadd_rn(y, __shfl_xor_sync(FULL, y, 2));
            y = __fadd_rn(y, __shfl_xor_sync(FULL, y, 1));
            if (live && lane == 0)
                p.out[((u64)row * p.values + h) * p.value_dim + column] = flushed(y);
        }
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int k = 4 * i + lane;
        u64 at = ((u64)walk.to * p.values + h) * head_values + (u64)k * p.value_dim + column;
        if (live && k < p.key_dim) p.s[at] = s[i];
    }
}

#define DELTA(name, own)                                                                           \
    extern "C" __global__ void __launch_bounds__(DELTA_THREADS) name(const Delta p) {              \
        BEGIN;                                                                                     \
        delta_rule<own>(p);                                                                        \
    }

DELTA(delta_32, 8)
DELTA(delta_64, 16)
DELTA(delta_128, 32)
DELTA(delta_256, 64)
