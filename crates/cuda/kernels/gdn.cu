// Gated DeltaNet: the convolution with its norms, and the delta rule with the state in registers.

#define TAPS_MAX 8

// Rows of a stream: `first .. end` of the round, its state before and after; -1 is a fresh one.
struct Walk {
    int first;
    int end;
    int from;
    int to;
};

struct Conv {
    const float *x;
    const float *taps;
    float *tails;
    const int *walk_of;
    const Walk *walks;
    float *out;
    int channels;
    int count;
};

extern "C" __global__ void __launch_bounds__(256) convolve(const Conv p) {
    BEGIN;
    int c = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
    int w = p.walk_of[row];
    if (c >= p.channels || w < 0) return;
    Walk walk = p.walks[w];
    int before = p.count - 1;
    float sum = 0.0f;
    for (int j = 0; j < p.count; j++) {
        int at = row - before + j;
        float x = 0.0f;
        if (at >= walk.first) {
            x = p.x[(u64)at * p.channels + c];
        } else if (walk.from >= 0) {
            int tail = at - walk.first + before;
            x = p.tails[((u64)walk.from * before + tail) * p.channels + c];
        }
        sum = __fmaf_rn(p.taps[j * p.channels + c], x, sum);
    }
    p.out[(u64)row * p.channels + c] = flushed(silu_f32(sum));
}

// The tail after a walk's last row; a thread takes a channel whole, since `to` may be `from`.
extern "C" __global__ void __launch_bounds__(256) tail(const Conv p) {
    BEGIN;
    int c = blockIdx.x * 256 + threadIdx.x;
    if (c >= p.channels) return;
    Walk walk = p.walks[blockIdx.y];
    int before = p.count - 1;
    float kept[TAPS_MAX];
#pragma unroll
    for (int j = 0; j < TAPS_MAX - 1; j++) {
        if (j >= before) break;
        int at = walk.end - before + j;
        float x = 0.0f;
        if (at >= walk.first) {
            x = p.x[(u64)at * p.channels + c];
        } else if (walk.from >= 0) {
            int tail = at - walk.first + before;
            x = p.tails[((u64)walk.from * before + tail) * p.channels + c];
        }
        kept[j] = x;
    }
#pragma unroll
    for (int j = 0; j < TAPS_MAX - 1; j++) {
        if (j >= before) break;
        p.tails[((u64)walk.to * before + j) * p.channels + c] = kept[j];
    }
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

struct Delta {
    const float *x;
    const float *gates;
    float *s;
    const Walk *walks;
    float *out;
    int keys;
    int values;
    int key_dim;
    int value_dim;
    int tiled;
};

// Four threads a column, a strided lane of its sums each; 32 columns a block. Dims of the key past
// the shape's are zeros, which add nothing.
template <int OWN> __device__ __forceinline__ void delta_rule(const Delta &p) {
    // A lane's dims lie together, the lanes a bank's width further apart.
    __shared__ __align__(16) float key[2][4][OWN + 4];
    __shared__ __align__(16) float query[2][4][OWN + 4];
    int lane = threadIdx.x % 4, column = blockIdx.x * 32 + threadIdx.x / 4;
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
    // A row is loaded while the one before it is computed.
    const int LOADS = (OWN * 4 + 127) / 128;
    float next_query[LOADS], next_key[LOADS], next_value, next_beta, next_decay;
    auto load = [&](int row) {
        const float *x = p.x + (u64)row * channels;
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            int i = n * 128 + threadIdx.x;
            bool in = i < p.key_dim;
            next_query[n] = in ? x[kh * p.key_dim + i] : 0.0f;
            next_key[n] = in ? x[width + kh * p.key_dim + i] : 0.0f;
        }
        next_value = live ? x[2 * width + h * p.value_dim + column] : 0.0f;
        next_beta = p.gates[(u64)row * 2 * p.values + h];
        next_decay = p.gates[(u64)row * 2 * p.values + p.values + h];
    };
    if (walk.first < walk.end) load(walk.first);
    for (int row = walk.first; row < walk.end; row++) {
        int side = (row - walk.first) & 1;
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            int i = n * 128 + threadIdx.x;
            if (i >= OWN * 4) continue;
            query[side][i % 4][i / 4] = next_query[n];
            key[side][i % 4][i / 4] = next_key[n];
        }
        float value = next_value, beta = next_beta, decay = next_decay;
        __syncthreads();
        if (row + 1 < walk.end) load(row + 1);
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
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int k = 4 * i + lane;
        u64 at = ((u64)walk.to * p.values + h) * head_values + (u64)k * p.value_dim + column;
        if (live && k < p.key_dim) p.s[at] = s[i];
    }
}

extern "C" __global__ void __launch_bounds__(128) delta_32(const Delta p) { BEGIN; delta_rule<8>(p); }
extern "C" __global__ void __launch_bounds__(128) delta_64(const Delta p) { BEGIN; delta_rule<16>(p); }
extern "C" __global__ void __launch_bounds__(128) delta_128(const Delta p) { BEGIN; delta_rule<32>(p); }
extern "C" __global__ void __launch_bounds__(128) delta_256(const Delta p) { BEGIN; delta_rule<64>(p); }
