// Quantised rows, and the matrix products over them.

// `q`: for each tile of four rows and each 64 values of K, 64 bytes a plane of each row, as the
// lanes of a product take them. `d`: `[rows / 4, slices, 4]`. `sums`: of each 16, 32, 64 and 128
// values, in this order, `[rows / 4, slices * (16, 8, 4, 2), 4]` each, `rows_max` rows apart; each
// is below 2^24, so exact.
struct Quantised {
    u32 *q;
    float *d;
    float *sums;
    int *spoilt;
    int slices;
    int rows_max;
};

__device__ __forceinline__ float *sums_of(const Quantised &x, int log) {
    u64 all = (u64)x.rows_max * x.slices;
    return x.sums + all * (log == 4 ? 0 : log == 5 ? 16 : log == 6 ? 24 : 28);
}

// c = a b + from, over 32 values of K.
__device__ __forceinline__ void product_32(int c[4], const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same from zero, without registers to be cleared first.
__device__ __forceinline__ void product_first(int c[4], const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

__device__ __forceinline__ void product_16(int c[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

// The nibbles of a lane's two words of 32 values, as a product takes them.
__device__ __forceinline__ void nibbles(u32 a[4], u32 low, u32 high) {
    a[0] = low & 0x0f0f0f0f, a[1] = high & 0x0f0f0f0f;
    a[2] = low >> 4 & 0x0f0f0f0f, a[3] = high >> 4 & 0x0f0f0f0f;
}

// Adds one block to the sums of outputs g and g + 8 of a row: both planes' dots, then the offset.
__device__ __forceinline__ void block_into(float acc[2], const int c[4], float sum, int zero,
                                           float2 low, float2 high) {
    int shift = zero * (int)sum;
    float dot = (float)(c[0] * 256 + c[1] + shift);
    acc[0] = __fmaf_rn(sum, low.y, __fmaf_rn(dot, low.x, acc[0]));
    dot = (float)(c[2] * 256 + c[3] + shift);
    acc[1] = __fmaf_rn(sum, high.y, __fmaf_rn(dot, high.x, acc[1]));
}

#define MATRICES_MAX 4

struct Project {
    Matrix matrices[MATRICES_MAX];
    Quantised x;
    int count;
    int rows;
    // Of kernels that take pairs of tiles: parts, and how many whole pairs come before those that are
    // a tile each.
    int parts;
    int pairs;
};

// A part of a launch: a pair of tiles or one of it, and the pair's matrix.
struct Part {
    int pair, tile, matrix;
    bool whole;
};

// In `tile` of a matrix is the first pair of it.
__device__ __forceinline__ Part part_of(const Project &p, int part) {
    bool whole = part < p.pairs;
    int tile = whole ? 2 * part : p.pairs + part, pair = tile / 2, i = 0;
    while (i + 1 < p.count && pair >= p.matrices[i + 1].tile) i++;
    return {pair, tile - 2 * p.matrices[i].tile, i, whole};
}

__device__ __forceinline__ u32 shared_at(const void *at) {
    return (u32)__cvta_generic_to_shared(at);
}

__device__ __forceinline__ void bring_16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from));
}

// A slice of a tile of 16 outputs of nibbles: codes, then scales as they lie.
template <int KIND, int LOG> struct Slice {
    uint4 codes[4][32];
    uint2 scales[(KIND == KIND_K ? 4 : 256 >> LOG) * 8];
};

// The group of K of a warp of a set: those of an odd number have fewer slices than those of an even
// one, and the warps whose turns a scheduler gives are four apart.
__device__ __forceinline__ int group_of(int warp, int set) { return warp ^ (warp / 4 + set) % 2; }

// The slices of K that a warp takes: of a group, and of its neighbour every other time, since one of
// both may have one more.
struct Turns {
    const KGroups &groups;
    int group;

    __device__ __forceinline__ int first(int turn) const { return groups.starts[group ^ turn]; }

    __device__ __forceinline__ int count(int turn) const {
        return groups.starts[(group ^ turn) + 1] - first(turn);
    }

    // From the last slice of a turn to the first of the next one that has some.
    __device__ __forceinline__ int back(int turn) const {
        int next = turn ^ (count(turn ^ 1) > 0);
        return first(next) - groups.starts[(group ^ turn) + 1] + 1;
    }
};
