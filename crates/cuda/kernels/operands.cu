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
