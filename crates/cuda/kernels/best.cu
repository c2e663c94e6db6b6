// The best candidates of rows of logits. A candidate is one number, its key: greater for the better
// value, then for the lower id. What is no candidate is 0, and a spoilt logit is better than any.

#define BEST_THREADS 256
// Logits, or keys, that a block looks at.
#define BEST_PIECE 2048

struct Best {
    // [rows, width], or where there are none, keys of an earlier launch, as many.
    const float *logits;
    const u64 *keys;
    // [rows, blocks, count]
    u64 *out;
    int width;
    int count;
};

__device__ __forceinline__ u64 best_key(const Best &p, int id) {
    if (id >= p.width) return 0ull;
    u64 at = (u64)blockIdx.y * p.width + id;
    if (!p.logits) return p.keys[at];
    float x = p.logits[at];
    if (spoilt(x)) return ~0ull;
    // Zeros of both signs are one value.
    u32 bits = __float_as_uint(__fadd_rn(x, 0.0f));
    u32 order = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)order << 32 | ~(u32)id;
}

__device__ __forceinline__ u64 better(u64 key, u64 best) { return key > best ? key : best; }

// The one best of a block's piece.
extern "C" __global__ void __launch_bounds__(BEST_THREADS) best_one(const Best p) {
    BEGIN;
    __shared__ u64 warps[BEST_THREADS / 32];
    int from = blockIdx.x * BEST_PIECE + threadIdx.x, lane = threadIdx.x % 32;
    u64 best = 0ull;
#pragma unroll
    for (int i = 0; i < BEST_PIECE; i += BEST_THREADS) best = better(best_key(p, from + i), best);
#pragma unroll
    for (int by = 16; by > 0; by /= 2) best = better(__shfl_down_sync(FULL, best, by), best);
    if (lane == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < BEST_THREADS / 32; i++) best = better(warps[i], best);
    p.out[(u64)blockIdx.y * gridDim.x + blockIdx.x] = best;
}

// The best `count` of a block's piece, in order: a bitonic sort.
extern "C" __global__ void __launch_bounds__(BEST_THREADS) best_few(const Best p) {
    BEGIN;
    __shared__ u64 keys[BEST_PIECE];
    for (int i = threadIdx.x; i < BEST_PIECE; i += BEST_THREADS)
        keys[i] = best_key(p, blockIdx.x * BEST_PIECE + i);
    for (int run = 2; run <= BEST_PIECE; run *= 2) {
        for (int apart = run / 2; apart > 0; apart /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < BEST_PIECE / 2; i += BEST_THREADS) {
                int left = 2 * i - (i & (apart - 1)), right = left + apart;
                bool falls = (left & run) == 0;
                u64 a = keys[left], b = keys[right];
                if ((a < b) == falls) {
                    keys[left] = b;
                    keys[right] = a;
                }
            }
        }
    }
    __syncthreads();
    u64 *out = p.out + ((u64)blockIdx.y * gridDim.x + blockIdx.x) * p.count;
    for (int i = threadIdx.x; i < p.count; i += BEST_THREADS) out[i] = keys[i];
}
