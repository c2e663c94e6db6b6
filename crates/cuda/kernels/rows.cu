// Ops on rows alone: norms, RoPE, gates and sums.

struct Norm {
    const float *x;
    const float *w;
    float *out;
    int width;
    float eps;
    float inverse;
};

#define NORM_PIECE 8192
#define NORM_THREADS 512

// One block a row; one warp holds the 32 lanes of the sum.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) rms_norm(const Norm p) {
    BEGIN;
    __shared__ float piece[NORM_PIECE];
    __shared__ float scale;
    const float *x = p.x + (u64)blockIdx.x * p.width;
    float *out = p.out + (u64)blockIdx.x * p.width;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum = 0.0f;
    bool bad = false;
    for (int from = 0; from < p.width; from += NORM_PIECE) {
        int count = min(p.width - from, NORM_PIECE);
        for (int i = threadIdx.x; i < count; i += NORM_THREADS) {
            float value = x[from + i];
            bad |= spoilt(value);
            piece[i] = value;
        }
        __syncthreads();
        if (warp == 0) {
#pragma unroll 16
            for (int i = lane; i < count; i += 32) sum = __fmaf_rn(piece[i], piece[i], sum);
        }
        if (from + NORM_PIECE < p.width) __syncthreads();
    }
    if (warp == 0) {
        float mean = __fmaf_rn(folded(sum), p.inverse, p.eps);
        if (lane == 0) scale = __fdiv_rn(1.0f, __fsqrt_rn(mean));
    }
    bool any = __syncthreads_or(bad);
    float r = scale;
    bool kept = p.width <= NORM_PIECE;
    for (int i = threadIdx.x; i < p.width; i += NORM_THREADS) {
        float value = kept ? piece[i] : x[i];
        float y = flushed(__fmul_rn(__fmul_rn(value, r), p.w[i]));
        out[i] = any ? SPOILT : y;
    }
}

// A warp a head, in place; with z its silu is multiplied.
extern "C" __global__ void __launch_bounds__(128) head_norm(const HeadNorm p) {
    BEGIN;
    int head = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= p.heads) return;
    float *x = p.x + (u64)head * p.dim;
    float sum = 0.0f;
    bool bad = false;
    for (int i = lane; i < p.dim; i += 32) {
        float value = x[i];
        bad |= spoilt(value);
        sum = __fmaf_rn(value, value, sum);
    }
    bad = __any_sync(FULL, bad);
    float r = __fdiv_rn(1.0f, __fsqrt_rn(__fmaf_rn(folded(sum), p.inverse, p.eps)));
    for (int i = lane; i < p.dim; i += 32) {
        float y = __fmul_rn(__fmul_rn(x[i], r), p.w[i]);
        if (p.z) y = __fmul_rn(y, silu_f32(p.z[(u64)head * p.dim + i]));
        x[i] = bad ? SPOILT : flushed(y);
    }
}

struct Pairs {
    float *x;
    const float *cos;
    const float *sin;
    int rows;
    int heads;
    int dim;
    int pairs;
    int adjacent;
};

extern "C" __global__ void rope(const Pairs p) {
    BEGIN;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (u64)p.rows * p.heads * p.pairs) return;
    int pair = i % p.pairs;
    u64 head = i / p.pairs;
    u64 row = head / p.heads;
    float c = p.cos[row * p.pairs + pair], s = p.sin[row * p.pairs + pair];
    int at = p.adjacent ? 2 * pair : pair;
    int bt = p.adjacent ? at + 1 : pair + p.pairs;
    float *x = p.x + head * p.dim;
    float a = x[at], b = x[bt];
    x[at] = flushed(__fmaf_rn(a, c, -__fmul_rn(b, s)));
    x[bt] = flushed(__fmaf_rn(b, c, __fmul_rn(a, s)));
}

struct Each {
    const float *x;
    const float *y;
    float *out;
    u64 values;
};

// Bits as they are.
extern "C" __global__ void copy(const Each p) {
    BEGIN;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.values) ((u32 *)p.out)[i] = ((const u32 *)p.x)[i];
}

extern "C" __global__ void add(const Each p) {
    BEGIN;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.values) p.out[i] = flushed(__fadd_rn(p.x[i], p.y[i]));
}

extern "C" __global__ void silu_mul(const Each p) {
    BEGIN;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.values) p.out[i] = flushed(__fmul_rn(silu_f32(p.x[i]), p.y[i]));
}

extern "C" __global__ void gate(const Each p) {
    BEGIN;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.values) p.out[i] = flushed(__fmul_rn(p.x[i], sigmoid_f32(p.y[i])));
}

extern "C" __global__ void gates(const Gates p) {
    BEGIN;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.rows * p.heads) return;
    int row = i / p.heads, h = i % p.heads;
    float *out = p.out + (u64)row * 2 * p.heads;
    out[h] = flushed(sigmoid_f32(p.b[i]));
    float soft = softplus_f32(__fadd_rn(p.a[i], p.bias[h]));
    out[p.heads + h] = flushed(exp_f32(-__fmul_rn(p.amplitude[h], soft)));
}
