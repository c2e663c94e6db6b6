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

// Two at a time: what lanes read alike is then read once, which it is not four at a time.
template <int OWN>
__device__ __forceinline__ void two_by_two(float to[OWN], const float *from) {
    u32 at = (u32)__cvta_generic_to_shared(from);
#pragma unroll
    for (int i = 0; i < OWN; i += 2)
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(to[i]), "=f"(to[i + 1])
                     : "r"(at + 4 * i));
}
