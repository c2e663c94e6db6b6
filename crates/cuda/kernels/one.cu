// Linear layers over one row, for hot forms of blocks of 64: each of the four pairs of columns of a
// product has the row's planes for one block of every four, so a lane ends up with the dots of its
// own block alone.
//
// A block a multiprocessor goes on from one tile of outputs to the next, or as many tiles at once as
// its shared memory has room for: a set of eight warps each. A warp has one group of K: its weights
// come through a ring of its own, which never empties between tiles, and the row stays in shared
// memory. Before the row is there a ring fills slice by slice: what the small kernels before read
// would wait behind all that is asked for at once.

#define WARPS 8
#define SETS_MAX 3

// Slices that a warp has on their way.
#define RING 3

// Of one slice on its way: codes, scales, units.
template <int KIND, int LOG> struct Place {
    static const int CODES = 128, SCALES = sizeof(Slice<KIND, LOG>) / 16 - CODES,
                     UNITS = KIND == KIND_K ? 4 : 0, ALL = CODES + SCALES + UNITS;
};

// What a warp fetches next.
struct Fetch {
    const uint4 *codes, *scales, *units;
    int tile, left;
};

__device__ __forceinline__ int matrix_of(const Project &p, int tile) {
    int i = 0;
    while (i + 1 < p.count && tile >= p.matrices[i + 1].tile) i++;
    return i;
}

template <int KIND, int LOG>
__device__ __forceinline__ void fetch(const Project &p, Fetch &f, int tiles, int step, int first,
                                      int count, uint4 *to) {
    typedef Place<KIND, LOG> P;
    int lane = threadIdx.x % 32;
    if (f.left == 0 && f.tile < tiles) {
        const Matrix &m = p.matrices[matrix_of(p, f.tile)];
        u64 slice = (u64)(f.tile - m.tile) * m.slices + first;
        f.codes = (const uint4 *)m.codes + slice * P::CODES + lane;
        f.scales = (const uint4 *)m.scales + slice * P::SCALES + lane;
        f.units = (const uint4 *)m.units + slice * P::UNITS + lane;
        f.left = count, f.tile += step;
    }
    if (f.left > 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) bring_16(to + i * 32 + lane, f.codes + i * 32);
#pragma unroll
        for (int i = 0; i < P::SCALES; i += 32)
            if (i + lane < P::SCALES) bring_16(to + P::CODES + i + lane, f.scales + i);
        if (lane < P::UNITS) bring_16(to + P::CODES + P::SCALES + lane, f.units);
        f.codes += P::CODES, f.scales += P::SCALES, f.units += P::UNITS, f.left--;
    }
    asm volatile("cp.async.commit_group;");
}

// The sums of a slice's blocks for outputs g and g + 8, in order.
template <int KIND, int LOG>
__device__ __forceinline__ void one_slice(const uint4 *from, const RowSlice<LOG> &row,
                                          float acc[2]) {
    typedef Place<KIND, LOG> P;
    // Sets of four blocks in a slice.
    const int SETS = 64 >> LOG;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint2 *scales = (const uint2 *)(from + P::CODES);
    float dot[SETS][2];
    uint4 q = LOG == 6 ? row.q[lane] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int set = 0; set < SETS; set++) {
        // Columns of other blocks come out too, and are left.
        int c[4][4];
        uint2 half = make_uint2(0, 0);
        // Column g has plane g % 2 of the block g / 2 of each set.
        if (LOG == 5)
            half = *((const uint2 *)&row.q[(set * 2 + g / 4) * 8 + g % 2 * 4 + t] + g / 2 % 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 a[4];
            uint4 w = from[(LOG == 6 ? i : set * 2 + i / 2) * 32 + lane];
            if (LOG == 6) {
                nibbles(a, w.x, w.y);
                product_first(c[i], a, q.x, q.y);
                nibbles(a, w.z, w.w);
                product_32(c[i], a, q.z, q.w);
            } else {
                nibbles(a, i % 2 ? w.z : w.x, i % 2 ? w.w : w.y);
                product_first(c[i], a, half.x, half.y);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int both[2];
#pragma unroll
            for (int plane = 0; plane < 2; plane++) {
                int at = 2 * h + plane;
                both[plane] = t & 2 ? t & 1 ? c[3][at] : c[2][at] : t & 1 ? c[1][at] : c[0][at];
            }
            dot[set][h] = (float)(both[0] * 256 + both[1]);
        }
    }
    uint2 unit;
    if (KIND == KIND_K) unit = ((const uint2 *)(from + P::CODES + P::SCALES))[g];
    // Every lane of four takes all dots of its outputs, then the blocks in order.
    acc[0] = acc[1] = 0.0f;
#pragma unroll
    for (int set = 0; set < SETS; set++) {
        float both[4][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            both[i][0] = __shfl_sync(FULL, dot[set][0], i, 4);
            both[i][1] = __shfl_sync(FULL, dot[set][1], i, 4);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 low, high;
            int block = set * 4 + i;
            if (KIND == KIND_K) {
                // Two blocks of a tile of 64 share eight bytes.
                uint2 two = scales[block / 2 * 8 + g];
                u32 factors = block % 2 ? two.y : two.x;
                low = affine_of_unit(factors & 0xffffu, unit.x);
                high = affine_of_unit(factors >> 16, unit.y);
            } else {
                uint2 pair = scales[block * 8 + g];
                low = affine_of(pair.x, KIND), high = affine_of(pair.y, KIND);
            }
            float sum = row.sums[block];
            acc[0] = __fmaf_rn(sum, low.y, __fmaf_rn(both[i][0], low.x, acc[0]));
            acc[1] = __fmaf_rn(sum, high.y, __fmaf_rn(both[i][1], high.x, acc[1]));
        }
    }
}

template <int KIND, int LOG> __device__ __forceinline__ void one_all(const One &o) {
    const Project &p = o.project;
    typedef Place<KIND, LOG> P;
    extern __shared__ __align__(16) u8 memory[];
    __shared__ float parts[SETS_MAX * 2 * WARPS * 16];
    // Of a share of K no more than half of the groups have slices.
    const KGroups &groups = p.matrices[0].groups;
    int wide = groups.node ? WARPS / 2 : WARPS;
    int warp = threadIdx.x / 32, set = warp / wide, group = group_of(warp % wide, set);
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, in_set = threadIdx.x % (wide * 32);
    const Matrix &last = p.matrices[p.count - 1];
    int slices = p.x.slices, tiles = last.tile + (last.n + 15) / 16;
    int first = groups.starts[group], count = groups.starts[group + 1] - first;
    int start = set * gridDim.x + blockIdx.x, step = blockDim.x / (wide * 32) * gridDim.x;
    uint4 *ring = (uint4 *)memory + warp * (RING * P::ALL);
    RowSlice<LOG> *row = (RowSlice<LOG> *)((uint4 *)memory + blockDim.x / 32 * RING * P::ALL);
    Fetch f = {nullptr, nullptr, nullptr, start, 0};
    if (o.front.x) fetch_norm(o.front, (float *)(row + slices) + o.front.width);
    // Weights depend on nothing that still runs.
#pragma unroll 1
    for (int i = 0; i < RING && count > 0; i++) {
#if __CUDA_ARCH__ >= 900
        asm volatile("cp.async.wait_group 0;");
#endif
        fetch<KIND, LOG>(p, f, tiles, step, first, count, ring + i * P::ALL);
    }
    begin_row<LOG, RING>(o, row, count);
    row += first;
    int place = 0, side = 0;
#pragma unroll 1
    for (int tile = start; tile < tiles; tile += step, side ^= 1) {
        // Of a residual there is one matrix.
        int at = tile * 16 + in_set;
        bool adds = o.residual && in_set < 16 && at < p.matrices[0].n;
        float before = adds ? o.residual[at] : 0.0f;
        float total[2] = {0.0f, 0.0f};
#pragma unroll 1
        for (int s = 0; s < count; s++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1));
            __syncwarp();
            float acc[2];
            one_slice<KIND, LOG>(ring + place * P::ALL, row[s], acc);
            total[0] = __fmaf_rn(acc[0], row[s].d[0], total[0]);
            total[1] = __fmaf_rn(acc[1], row[s].d[0], total[1]);
            __syncwarp();
            fetch<KIND, LOG>(p, f, tiles, step, first, count, ring + place * P::ALL);
            place = place == RING - 1 ? 0 : place + 1;
        }
        float *mine = parts + (set * 2 + side) * wide * 16;
        if (t == 0) mine[group * 16 + g] = total[0], mine[group * 16 + g + 8] = total[1];
        asm volatile("bar.sync %0, %1;" ::"r"(set + 1), "r"(wide * 32) : "memory");
        const Matrix &m = p.matrices[matrix_of(p, tile)];
        int n = (tile - m.tile) * 16 + in_set;
        if (in_set < 16 && n < m.n)
            give(o, m.out, n, rooted_few(groups, mine + in_set, 16), before);
    }
}

#define ONE(name, kind, log)                                                                       \
    extern "C" __global__ void __launch_bounds__(SETS_MAX *WARPS * 32, 1) name(const One o) {      \
        COME;                                                                                      \
        one_all<kind, log>(o);                                                                     \
    }

ONE(one_nibbles_bf16_64, KIND_BF16, 6)
