// What kernels of one op and kernels of several share: operands, and the convolution's sums.

struct HeadNorm {
    float *x;
    const float *w;
    const float *z;
    int heads;
    int dim;
    float eps;
    float inverse;
};

struct Gates {
    const float *b;
    const float *a;
    const float *bias;
    const float *amplitude;
    float *out;
    int rows;
    int heads;
};

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
    int rows;
};

// The taps' sum of one channel of a row.
__device__ __forceinline__ float convolved(const Conv &p, const Walk &walk, int row, int c) {
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
    return sum;
}

// The tail after a walk's last row; a thread takes a channel whole, since `to` may be `from`.
__device__ __forceinline__ void keep_tail(const Conv &p, int w, int c) {
    Walk walk = p.walks[w];
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

// A state is held times 2^-90: what is to be flushed, below 2^-36, is then what the hardware flushes
// by itself, and nothing else is rounded differently. Keys and queries, which are normed, come times
// 2^90 where a sum takes them with the state. A zero may be below zero meanwhile: no sum, which
// begins at +0, and no product can tell, and the state that is kept is +0 again.
#define UP __int_as_float(0x6c800000)
#define DOWN __int_as_float(0x12800000)

__device__ __forceinline__ float product_flushed(float a, float b) {
    float y;
    asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

__device__ __forceinline__ float fused_flushed(float a, float b, float c) {
    float y;
    asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}

// What a pass of the delta rule reads: a row's key and the query of the row before, times what the
// state lacks. A lane's dims, every fourth one, lie together by four.
template <int OWN> struct Dims {
    float key[OWN / 4][4][4];
    float query[OWN / 4][4][4];
};

// Columns of the state, of which a thread has the dims of a lane. A lane's threads are neighbours,
// which read the same.
template <int OWN, int COLUMNS> struct Ruled {
    // Fours of dims that are read ahead.
    static const int FOURS = OWN / 4, AHEAD = FOURS < 8 ? FOURS / 2 : 4;
    float s[COLUMNS][OWN], key[OWN], query[OWN], next[OWN];
    // Of the last row, what its key is multiplied by, and outputs; of the next one, its sums.
    float down[COLUMNS], y[COLUMNS], m[COLUMNS];

    __device__ __forceinline__ static int lane() { return threadIdx.x % 32 / 8; }

    __device__ __forceinline__ static int column() {
        return threadIdx.x / 32 * 8 + threadIdx.x % 8;
    }

    __device__ __forceinline__ void read(const Dims<OWN> &from, int i) {
        float4 q = *(const float4 *)from.query[i][lane()], k = *(const float4 *)from.key[i][lane()];
        i *= 4;
        query[i] = q.x, query[i + 1] = q.y, query[i + 2] = q.z, query[i + 3] = q.w;
        next[i] = k.x, next[i + 1] = k.y, next[i + 2] = k.z, next[i + 3] = k.w;
    }

    __device__ __forceinline__ void read_ahead(const Dims<OWN> &from) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) read(from, i);
    }

    // What the last row adds and its outputs, then what decays and the next row's sums: one pass
    // over the dims does both, as far as there are such rows.
    template <bool ADDS, bool DECAYS>
    __device__ __forceinline__ void pass(const Dims<OWN> &here, const Dims<OWN> &later,
                                         float decay) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) y[c] = m[c] = 0.0f;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            int ahead = i / 4 + AHEAD;
            if (i % 4 == 0) read(ahead < FOURS ? here : later, ahead % FOURS);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                if (ADDS) s[c][i] = fused_flushed(key[i], down[c], s[c][i]);
                if (ADDS) y[c] = __fmaf_rn(s[c][i], query[i], y[c]);
                if (DECAYS) s[c][i] = product_flushed(s[c][i], decay);
                if (DECAYS) m[c] = __fmaf_rn(s[c][i], next[i], m[c]);
            }
            key[i] = __fmul_rn(next[i], DOWN);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            m[c] = __fadd_rn(m[c], __shfl_xor_sync(FULL, m[c], 16));
            y[c] = __fadd_rn(y[c], __shfl_xor_sync(FULL, y[c], 16));
            m[c] = __fadd_rn(m[c], __shfl_xor_sync(FULL, m[c], 8));
            y[c] = __fadd_rn(y[c], __shfl_xor_sync(FULL, y[c], 8));
        }
    }

    __device__ __forceinline__ void takes(float beta, const float value[COLUMNS]) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float delta = flushed(__fmul_rn(beta, __fsub_rn(value[c], m[c])));
            down[c] = __fmul_rn(delta, DOWN);
        }
    }

    // A lane gives the output of a column.
    __device__ __forceinline__ float output() const {
        return flushed(lane() == 0 ? y[0] : y[COLUMNS - 1]);
    }
};
