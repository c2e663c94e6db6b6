// What every kernel file begins with: the numbers and functions of docs/arithmetic.md. Compiled
// with -fmad=false; a product is fused only where __fmaf_rn says so.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A kernel is launched while the one before it still runs: it begins by letting the next one come
// and by waiting for what it reads.
#if __CUDA_ARCH__ >= 900
#define COME asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define WAIT asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define COME
#define WAIT
#endif
#define BEGIN                                                                                      \
    COME;                                                                                          \
    WAIT

#define FULL 0xffffffffu
#define SPOILT __int_as_float(0x7fc00000)

// Rows of an activation tile: two byte planes of each are the eight columns of a matrix product.
#define TILE_ROWS 4
#define SLICE 256

__device__ __forceinline__ float flushed(float x) {
    return fabsf(x) < __int_as_float(0x2d800000) ? 0.0f : x;
}

__device__ __forceinline__ float flushed_scale(float a) {
    return fabsf(a) < __int_as_float(0x30800000) ? 0.0f : a;
}

__device__ __forceinline__ bool spoilt(float x) {
    return (__float_as_uint(x) & 0x7fffffffu) >= 0x5d800000u;
}

__device__ __forceinline__ float round_half_even(float x) {
    const float magic = 12582912.0f;
    return __fsub_rn(__fadd_rn(x, magic), magic);
}

__device__ __forceinline__ float half_to_float(u32 half) {
    float x;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(half & 0xffffu));
    return x;
}

__device__ __forceinline__ float bf16_to_float(u32 half) { return __uint_as_float(half << 16); }

// To nearest even, saturating; below 2^-14 it is +0, every NaN 0x7e00.
__device__ __forceinline__ u32 float_to_half(float x) {
    u32 bits = __float_as_uint(x);
    u32 sign = (bits >> 16) & 0x8000u;
    u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7e00u;
    if (magnitude >= 0x477ff000u) return sign | 0x7bffu;
    if (magnitude < 0x387fe000u) return 0u;
    if (magnitude < 0x38800000u) return sign | 0x0400u;
    u32 even = (magnitude >> 13) & 1u;
    return sign | (((magnitude + 0x0fffu + even) >> 13) - (112u << 10));
}

__device__ __forceinline__ float exp_f32(float x) {
    bool none = x < -40.0f;
    x = x > 60.0f ? 60.0f : x;
    // The nearest integer is in the last bits of this sum.
    const float magic = 12582912.0f;
    float bits = __fadd_rn(__fmul_rn(x, __int_as_float(0x3fb8aa3b)), magic);
    float n = __fsub_rn(bits, magic);
    float r = __fmaf_rn(n, -__int_as_float(0x3f317218), x);
    r = __fmaf_rn(n, -__int_as_float(0xb102e308), r);
    float p = __int_as_float(0x3ab527b9);
    p = __fmaf_rn(p, r, __int_as_float(0x3c091cc0));
    p = __fmaf_rn(p, r, __int_as_float(0x3d2aac57));
    p = __fmaf_rn(p, r, __int_as_float(0x3e2aaa49));
    p = __fmaf_rn(p, r, __int_as_float(0x3efffffe));
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    float y = __fmul_rn(p, __int_as_float((__float_as_int(bits) << 23) + 0x3f800000));
    return none ? 0.0f : y;
}

__device__ __forceinline__ float log1p_f32(float x) {
    if (x != x || x == __int_as_float(0x7f800000)) return x;
    int i = (int)((__float_as_uint(__fadd_rn(1.0f, x)) - 0x3f400000u) & 0xff800000u);
    float k = (float)(i >> 23);
    float s = __uint_as_float(0x3f800000u - (u32)i);
    float f = __fmaf_rn(x, s, __fsub_rn(s, 1.0f));
    float p = __int_as_float(0xbd38d103);
    p = __fmaf_rn(p, f, __int_as_float(0x3dd66b94));
    p = __fmaf_rn(p, f, __int_as_float(0xbe06cca1));
    p = __fmaf_rn(p, f, __int_as_float(0x3e1441df));
    p = __fmaf_rn(p, f, __int_as_float(0xbe2a7714));
    p = __fmaf_rn(p, f, __int_as_float(0x3e4cb4bd));
    p = __fmaf_rn(p, f, __int_as_float(0xbe800023));
    p = __fmaf_rn(p, f, __int_as_float(0x3eaaaad2));
    p = __fmaf_rn(p, f, __int_as_float(0xbf000000));
    p = __fmaf_rn(__fmul_rn(f, f), p, f);
    return __fmaf_rn(k, __int_as_float(0x3f317218), p);
}

// 1 / y to nearest even, of y in 2^-100 .. 2^100: as the card's own `rcp.rn` does for those, without
// its branch for others.
__device__ __forceinline__ float reciprocal(float y) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
    return __fmaf_rn(r, __fmaf_rn(-y, r, 1.0f), r);
}

__device__ __forceinline__ float sigmoid_f32(float x) {
    return reciprocal(__fadd_rn(1.0f, exp_f32(-x)));
}

__device__ __forceinline__ float silu_f32(float x) {
    return __fmul_rn(x < -40.0f ? 0.0f : x, sigmoid_f32(x));
}

__device__ __forceinline__ float softplus_f32(float x) {
    return x > 20.0f ? x : log1p_f32(exp_f32(x));
}

// Lane j adds lane j + w for w = 16, 8, 4, 2, 1; every lane gets lane 0's sum.
__device__ __forceinline__ float folded(float lane) {
    for (int w = 16; w > 0; w /= 2) lane = __fadd_rn(lane, __shfl_down_sync(FULL, lane, w));
    return __shfl_sync(FULL, lane, 0);
}

__device__ __forceinline__ float largest(float x) {
    for (int w = 16; w > 0; w /= 2) x = fmaxf(x, __shfl_xor_sync(FULL, x, w));
    return x;
}

// ceil(group * slices / 8).
__device__ __forceinline__ int group_start(int group, int slices) {
    return (group * slices + 7) / 8;
}

// What is flushed is the root alone, not a node that other members add to theirs.
__device__ __forceinline__ float tree_node(const float *g, int stride) {
    float a = __fadd_rn(__fadd_rn(g[0], g[stride]), __fadd_rn(g[2 * stride], g[3 * stride]));
    float b = __fadd_rn(__fadd_rn(g[4 * stride], g[5 * stride]),
                        __fadd_rn(g[6 * stride], g[7 * stride]));
    return __fadd_rn(a, b);
}

__device__ __forceinline__ float tree(const float *g, int stride) {
    return flushed(tree_node(g, stride));
}

// Which slices of K each group has: `starts[group] .. starts[group + 1]`. Of a share of K its own
// groups come first and the rest is empty, and outputs are a node of the tree: +0 and a node are
// that node.
struct KGroups {
    int starts[9];
    int node;
};

// What is flushed is the root alone.
__device__ __forceinline__ float ended(const KGroups &groups, float y) {
    return groups.node ? y : flushed(y);
}

__device__ __forceinline__ float rooted(const KGroups &groups, const float *g, int stride) {
    float y = tree_node(g, stride);
    y = ended(groups, y);
    return y != y ? SPOILT : y;
}

// As `rooted`; of a share of K only the first half of the sums is there.
__device__ __forceinline__ float rooted_few(const KGroups &groups, const float *g, int stride) {
    if (!groups.node) return rooted(groups, g, stride);
    float y = __fadd_rn(__fadd_rn(g[0], g[stride]), __fadd_rn(g[2 * stride], g[3 * stride]));
    return y != y ? SPOILT : y;
}
