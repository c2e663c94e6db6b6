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

// Four threads a column, a strided lane of its sums each; 64 columns a block. Rows come some at a
// time, the next ones while these are computed. Dims of the key past the shape's are zeros, which
// add nothing.
#define DELTA_THREADS 256
#define DELTA_COLUMNS (DELTA_THREADS / 4)

// Rows on their way: a lane's dims lie together, the lanes a bank's width further apart.
template <int OWN> struct RowsAhead {
    static const int ROWS = OWN == 64 ? 4 : 8;
    float key[ROWS][4][OWN + 4];
    float query[ROWS][4][OWN + 4];
    float value[ROWS][DELTA_COLUMNS];
    float gates[ROWS][2];
};

__device__ __forceinline__ void bring_4(float *to, const float *from) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from));
}

template <int OWN>
__device__ __forceinline__ void bring_rows(const Delta &p, RowsAhead<OWN> &to, int row, int end,
                                           int h, int kh) {
    int width = p.keys * p.key_dim, channels = 2 * width + p.values * p.value_dim;
    const int DIMS = 4 * OWN, AT_ONCE = DELTA_THREADS / DIMS > 0 ? DELTA_THREADS / DIMS : 1;
    int k = threadIdx.x % DIMS, which = threadIdx.x / DIMS;
    int in = threadIdx.x % DELTA_COLUMNS, column = blockIdx.x * DELTA_COLUMNS + in;
#pragma unroll
    for (int i = 0; i < to.ROWS; i += AT_ONCE) {
        int r = i + which;
        const float *x = p.x + (u64)(row + r) * channels + kh * p.key_dim + k;
        if (r < to.ROWS && row + r < end && k < p.key_dim) {
            bring_4(&to.query[r][k % 4][k / 4], x);
            bring_4(&to.key[r][k % 4][k / 4], x + width);
        }
    }
#pragma unroll
    for (int i = 0; i < to.ROWS; i += 4) {
        int r = i + threadIdx.x / DELTA_COLUMNS;
        const float *x = p.x + (u64)(row + r) * channels + 2 * width + h * p.value_dim + column;
        if (row + r < end && column < p.value_dim) bring_4(&to.value[r][in], x);
    }
    int r = threadIdx.x / 2, side = threadIdx.x % 2;
    if (r < to.ROWS && row + r < end)
        bring_4(&to.gates[r][side], p.gates + ((u64)(row + r) * 2 + side) * p.values + h);
    asm volatile("cp.async.commit_group;");
}

template <int OWN> __device__ __forceinline__ void delta_rule(const Delta &p) {
    typedef RowsAhead<OWN> Ahead;
    __shared__ __align__(16) Ahead ahead[2];
    int lane = threadIdx.x % 4, in = threadIdx.x / 4, column = blockIdx.x * DELTA_COLUMNS + in;
    int h = blockIdx.y;
    Walk walk = p.walks[blockIdx.z];
    bool live = column < p.value_dim;
    int kh = p.tiled ? h % p.keys : h / (p.values / p.keys);
    u64 head_values = (u64)p.key_dim * p.value_dim;
    for (int i = threadIdx.x; i < sizeof(ahead) / 4; i += DELTA_THREADS) ((float *)ahead)[i] = 0.0f;
    __syncthreads();
    bring_rows<OWN>(p, ahead[0], walk.first, walk.end, h, kh);
    float s[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int k = 4 * i + lane;
        u64 at = ((u64)walk.from * p.values + h) * head_values + (u64)k * p.value_dim + column;
        s[i] = live && walk.from >= 0 && k < p.key_dim ? product_flushed(p.s[at], DOWN) : 0.0f;
    }
    float *out = p.out + ((u64)walk.first * p.values + h) * p.value_dim + column;
    int side = 0;
    for (int first = walk.first; first < walk.end; first += Ahead::ROWS, side ^= 1) {
        asm volatile("cp.async.wait_group 0;");
        __syncthreads();
        bring_rows<OWN>(p, ahead[side ^ 1], first + Ahead::ROWS, walk.end, h, kh);
        Ahead &rows = ahead[side];
        for (int i = threadIdx.x; i < sizeof(rows.query) / 4; i += DELTA_THREADS)
            (&rows.query[0][0][0])[i] = __fmul_rn((&rows.query[0][0][0])[i], UP);
        __syncthreads();
        int count = min(Ahead::ROWS, walk.end - first);
        float own[OWN];
        two_by_two<OWN>(own, rows.key[0][lane]);
        for (int r = 0; r < count; r++, out += p.values * p.value_dim) {
            float beta = rows.gates[r][0], decay = rows.gates[r][1], value = rows.value[r][in];
            // Loads before their use by the sums of the row, or of the row before.
            float query[OWN], next[OWN], m = 0.0f;
            two_by_two<OWN>(query, rows.query[r][lane]);
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                s[i] = product_flushed(s[i], decay);
                m = __fmaf_rn(s[i], __fmul_rn(own[i], UP), m);
            }
            two_by_two<OWN>(next, rows.key[min(r + 1, count - 1)][lane]);
            m = __fadd_rn(m, __shfl_xor_sync(FULL, m, 2));
            m = __fadd_rn(m, __shfl_xor_sync(FULL, m, 1));
            float delta = flushed(__fmul_rn(beta, __fsub_rn(value, m)));
            float down = __fmul_rn(delta, DOWN);
            float y = 0.0f;
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                s[i] = fused_flushed(own[i], down, s[i]);
                y = __fmaf_rn(s[i], query[i], y);
                own[i] = next[i];
            }
            y = __fadd_rn(y, __shfl_xor_sync(FULL, y, 2));
            y = __fadd_rn(y, __shfl_xor_sync(FULL, y, 1));
            if (live && lane == 0) *out = flushed(y);
        }
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int k = 4 * i + lane;
        u64 at = ((u64)walk.to * p.values + h) * head_values + (u64)k * p.value_dim + column;
        if (live && k < p.key_dim) p.s[at] = __fmaf_rn(s[i], UP, 0.0f);
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
