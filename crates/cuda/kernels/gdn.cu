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

// Four threads a column; a thread has so many COLUMNS, for all of which it reads keys and queries
// once.
#define DELTA_THREADS 128
#define DELTA_ACROSS (DELTA_THREADS / 4)

// What a pass reads. Dims past the shape's are zeros, which add nothing.
template <int OWN, int COLUMNS> struct __align__(16) Pass : Dims<OWN> {
    // Passes that are brought at once, of which a ring has three times as many: those at hand, the
    // next ones, and those on their way.
    static const int ROWS = OWN == 64 ? 4 : 8, RING = 3 * ROWS;
    float value[COLUMNS * DELTA_ACROSS];
    // Beta and decay.
    float2 gates;
};

__device__ __forceinline__ void bring_4(float *to, const float *from) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from));
}

// What a thread brings: a dim of keys and queries, or two or half of them, a column, a gate.
template <int OWN, int COLUMNS> struct Bringing {
    typedef Pass<OWN, COLUMNS> P;
    static const int DIMS = 4 * OWN, EACH = DIMS > DELTA_THREADS ? DIMS / DELTA_THREADS : 1;
    static const int AT_ONCE = DIMS > DELTA_THREADS ? 1 : DELTA_THREADS / DIMS;
    static const int ACROSS = COLUMNS * DELTA_ACROSS, VALUES = DELTA_THREADS / ACROSS;
    static const int WORDS = sizeof(P) / 4;
    const float *key, *value, *gate;
    int width, channels, gates, left;
    // Words from the first pass to where the thread's own go.
    int dim_at, value_at, gate_at;
    bool has_dim[EACH], has_value, begun;

    __device__ __forceinline__ Bringing(const Delta &p, const Walk &walk, int h, int kh) {
        int t = threadIdx.x, k = t % DIMS, column = blockIdx.x * ACROSS + t % ACROSS;
        width = p.keys * p.key_dim, channels = 2 * width + p.values * p.value_dim;
        gates = 2 * p.values, left = walk.end - walk.first, begun = false;
        const float *row = p.x + (u64)walk.first * channels;
        key = row + (u64)(t / DIMS) * channels + width + kh * p.key_dim + k;
        value = row + (u64)(t / ACROSS) * channels + 2 * width + h * p.value_dim + column;
        gate = p.gates + (u64)(walk.first + t / 2) * gates + t % 2 * p.values + h;
        dim_at = t / DIMS * WORDS + k / 16 * 16 + k % 4 * 4 + k / 4 % 4;
        value_at = t / ACROSS * WORDS + 2 * DIMS + t % ACROSS;
        gate_at = t / 2 * WORDS + 2 * DIMS + ACROSS + t % 2;
#pragma unroll
        for (int i = 0; i < EACH; i++) has_dim[i] = k + i * DELTA_THREADS < p.key_dim;
        has_value = column < p.value_dim;
    }

    // What passes read, all of which have rows or as far as they do.
    template <bool ALL> __device__ __forceinline__ void bring(float *to) {
#pragma unroll
        for (int r = 0; r < P::ROWS; r += AT_ONCE) {
            int row = r + threadIdx.x / DIMS;
            const float *x = key + r * channels, *before = x - width - channels;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                float *own = to + dim_at + r * WORDS + i * DELTA_THREADS;
                bool is = ALL || row < left, was = ALL || (row <= left && (begun || row > 0));
                if (has_dim[i] && is) bring_4(own, x + i * DELTA_THREADS);
                if (has_dim[i] && was) bring_4(own + DIMS, before + i * DELTA_THREADS);
            }
        }
#pragma unroll
        for (int r = 0; r < P::ROWS; r += VALUES) {
            int row = r + threadIdx.x / ACROSS;
            if (has_value && (ALL || row < left))
                bring_4(to + value_at + r * WORDS, value + r * channels);
        }
        if (threadIdx.x < 2 * P::ROWS && (ALL || (int)threadIdx.x < 2 * left))
            bring_4(to + gate_at, gate);
    }

    __device__ __forceinline__ void next(P *to) {
        if (begun && left >= P::ROWS)
            bring<true>((float *)to);
        else
            bring<false>((float *)to);
        asm volatile("cp.async.commit_group;");
        key += P::ROWS * channels, value += P::ROWS * channels, gate += P::ROWS * gates;
        left -= P::ROWS, begun = true;
    }

    // Keys and queries that this thread has brought, times what the state lacks.
    __device__ __forceinline__ void scale(P *to) {
        float *own = (float *)to + dim_at;
        asm volatile("cp.async.wait_group 0;" ::: "memory");
#pragma unroll
        for (int r = 0; r < P::ROWS; r += AT_ONCE) {
#pragma unroll
            for (int i = 0; i < EACH * DELTA_THREADS; i += DELTA_THREADS) {
                float &k = own[r * WORDS + i], &q = own[r * WORDS + i + DIMS];
                k = __fmul_rn(k, UP), q = __fmul_rn(q, UP);
            }
        }
    }
};

template <int OWN, int COLUMNS> __device__ __forceinline__ void delta_rule(const Delta &p) {
    typedef Pass<OWN, COLUMNS> P;
    __shared__ __align__(16) P ring[P::RING];
    Ruled<OWN, COLUMNS> own;
    int lane = own.lane(), in = own.column(), h = blockIdx.y;
    int column = blockIdx.x * COLUMNS * DELTA_ACROSS + in;
    Walk walk = p.walks[blockIdx.z];
    int kh = p.tiled ? h % p.keys : h / (p.values / p.keys), rows = walk.end - walk.first;
    u64 head_values = (u64)p.key_dim * p.value_dim;
    for (int i = threadIdx.x; i < sizeof(ring) / 4; i += DELTA_THREADS) ((float *)ring)[i] = 0.0f;
    __syncthreads();
    Bringing<OWN, COLUMNS> bringing(p, walk, h, kh);
    bringing.next(ring);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int k = 4 * i + lane;
        u64 at = ((u64)walk.from * p.values + h) * head_values + (u64)k * p.value_dim + column;
        own.key[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++, at += DELTA_ACROSS) {
            bool live = column + c * DELTA_ACROSS < p.value_dim && walk.from >= 0 && k < p.key_dim;
            own.s[c][i] = live ? product_flushed(p.s[at], DOWN) : 0.0f;
            own.down[c] = 0.0f;
        }
    }
    bringing.scale(ring);
    bringing.next(ring + P::ROWS);
    __syncthreads();
    own.read_ahead(ring[0]);
    float2 gates = ring[0].gates;
    u64 apart = (u64)p.values * p.value_dim;
    // Of the row before, which the first pass lacks.
    float *out = p.out + walk.first * apart - apart + h * p.value_dim + column;
    out += lane * DELTA_ACROSS;
    bool gives = lane < COLUMNS && column + lane * DELTA_ACROSS < p.value_dim;
    for (int row = 0, at = 0; row <= rows; row++, out += apart) {
        const P &here = ring[at];
        at = at + 1 < P::RING ? at + 1 : 0;
        if (at % P::ROWS == 0) {
            // Those are there for all threads then, and nobody reads the ones before these.
            bringing.scale(ring + at);
            __syncthreads();
            bringing.next(ring + (at + P::ROWS) % P::RING);
        }
        float2 then = ring[at].gates;
        float value[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) value[c] = here.value[in + c * DELTA_ACROSS];
        // After the last row nothing decays.
        own.template pass<true, true>(here, ring[at], row < rows ? gates.y : 1.0f);
        own.takes(gates.x, value);
        if (gives && row > 0) *out = own.output();
        gates = then;
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int k = 4 * i + lane;
        u64 at = ((u64)walk.to * p.values + h) * head_values + (u64)k * p.value_dim + column;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++, at += DELTA_ACROSS) {
            bool live = column + c * DELTA_ACROSS < p.value_dim && k < p.key_dim;
            if (live) p.s[at] = __fmaf_rn(own.s[c][i], UP, 0.0f);
        }
    }
}

#define DELTA(name, own, columns)                                                                  \
    extern "C" __global__ void __launch_bounds__(DELTA_THREADS) name(const Delta p) {              \
        BEGIN;                                                                                     \
        delta_rule<own, columns>(p);                                                               \
    }

DELTA(delta_32, 8, 1)
DELTA(delta_64, 16, 1)
DELTA(delta_128, 32, 1)
DELTA(delta_128_two, 32, 2)
DELTA(delta_256, 64, 1)
