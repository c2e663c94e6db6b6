// Linear layers over one row, for hot forms of blocks of 32, whose f32 work would take as long as
// their bytes: as kernels/one.cu, but a warp has two tiles of outputs, a pair. All columns of a
// product have the row's planes, so that each of the four lanes of an output's row gets the dots of
// both tiles, and goes on with one output of its own: f32 work is done once.

#define WARPS 8
#define SETS_MAX 2
// Tiles of a pair, and its outputs.
#define PAIR 2
#define OUTPUTS 32

// Slices that a warp has on their way.
#define RING 2

// Of one slice of a tile on its way: codes, scales, units. `ALL` is of both tiles.
template <int KIND, int LOG> struct Place {
    static const int CODES = 128, SCALES = sizeof(Slice<KIND, LOG>) / 16 - CODES,
                     UNITS = KIND == KIND_K ? 4 : 0, TILE = CODES + SCALES + UNITS,
                     ALL = PAIR * TILE;
};

// What a warp fetches next. `apart` is slices from a tile to the pair's other one, none if the last
// tile of an odd number is taken twice.
struct Fetch {
    const uint4 *codes, *scales, *units;
    int apart, part, left;
    bool whole;
};

template <int KIND, int LOG>
__device__ __forceinline__ void fetch(const Project &p, Fetch &f, int step, int first, int count,
                                      uint4 *to) {
    typedef Place<KIND, LOG> P;
    int lane = threadIdx.x % 32;
    if (f.left == 0 && f.part < p.parts) {
        Part part = part_of(p, f.part);
        const Matrix &m = p.matrices[part.matrix];
        u64 slice = (u64)part.tile * m.slices + first;
        f.codes = (const uint4 *)m.codes + slice * P::CODES + lane;
        f.scales = (const uint4 *)m.scales + slice * P::SCALES + lane;
        f.units = (const uint4 *)m.units + slice * P::UNITS + lane;
        f.apart = (part.tile + 1) * 16 < m.n ? m.slices : 0, f.whole = part.whole;
        f.left = count, f.part += step;
    }
    if (f.left > 0) {
        to += lane;
#pragma unroll
        for (int n = 0; n < PAIR; n++, to += P::TILE) {
            if (n > 0 && !f.whole) break;
            const uint4 *codes = f.codes + n * f.apart * P::CODES;
            const uint4 *scales = f.scales + n * f.apart * P::SCALES;
#pragma unroll
            for (int i = 0; i < P::CODES; i += 32) bring_16(to + i, codes + i);
#pragma unroll
            for (int i = 0; i < P::SCALES; i += 32)
                if (i + lane < P::SCALES) bring_16(to + P::CODES + i, scales + i);
            if (lane < P::UNITS)
                bring_16(to + P::CODES + P::SCALES, f.units + n * f.apart * P::UNITS);
        }
        f.codes += P::CODES, f.scales += P::SCALES, f.units += P::UNITS, f.left--;
    }
    asm volatile("cp.async.commit_group;");
}

// Fills a ring with what depends on nothing that still runs.
template <int KIND, int LOG>
__device__ __forceinline__ void fill(const Project &p, Fetch &f, int step, int first, int count,
                                     uint4 *ring) {
#pragma unroll 1
    for (int i = 0; i < RING && count > 0; i++) {
#if __CUDA_ARCH__ >= 900
        asm volatile("cp.async.wait_group 0;");
#endif
        fetch<KIND, LOG>(p, f, step, first, count, ring + i * Place<KIND, LOG>::ALL);
    }
}

// All `wide` warps of a set are here.
__device__ __forceinline__ void set_sync(int set, int wide) {
    asm volatile("bar.sync %0, %1;" ::"r"(set + 1), "r"(wide * 32) : "memory");
}

// The dot of a lane's own output among those of so many tiles, of columns that are all alike.
template <int TILES> __device__ __forceinline__ float own_dot(const int c[TILES][4], int t) {
    int dot[TILES][2];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        dot[n][0] = c[n][0] * 256 + c[n][1];
        dot[n][1] = c[n][2] * 256 + c[n][3];
    }
    const int LAST = TILES - 1;
    int low = t & 1 ? dot[0][1] : dot[0][0], high = t & 1 ? dot[LAST][1] : dot[LAST][0];
    return (float)(t & 2 ? high : low);
}

// The sum of a slice's blocks, in order, for a lane's own output: g of the first tile, g + 8 of it,
// then of the second; of a tile alone half of the lanes have none.
template <int KIND, int LOG, int TILES>
__device__ __forceinline__ float one_slice(const uint4 *from, const RowSlice<LOG> &row) {
    typedef Place<KIND, LOG> P;
    const int HALVES = LOG == 5 ? 2 : 1;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint4 *own = from + t / 2 * P::TILE + P::CODES;
    u32 unit = 0;
    if (KIND == KIND_K) unit = ((const u32 *)(own + P::SCALES))[g * 2 + t % 2];
    float acc = 0.0f;
#pragma unroll
    for (int kt = 0; kt < 4; kt++) {
        int c[HALVES][TILES][4];
        uint4 q = row.q[kt * 8 + g % 2 * 4 + t];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            uint4 w = from[n * P::TILE + kt * 32 + lane];
            u32 a[4];
            nibbles(a, w.x, w.y);
            product_first(c[0][n], a, q.x, q.y);
            nibbles(a, w.z, w.w);
            if (LOG == 5)
                product_first(c[HALVES - 1][n], a, q.z, q.w);
            else
                product_32(c[0][n], a, q.z, q.w);
        }
        uint2 two = make_uint2(0, 0);
        // Two blocks of a tile of 64 share eight bytes.
        if (KIND == KIND_K) two = ((const uint2 *)own)[kt * 8 + g];
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            int block = kt * HALVES + half;
            float2 affine;
            if (KIND == KIND_K) {
                u32 word = half ? two.y : two.x;
                affine = affine_of_unit(t & 1 ? word >> 16 : word, unit);
            } else {
                affine = affine_of(((const u32 *)own)[(block * 8 + g) * 2 + t % 2], KIND);
            }
            acc = __fmaf_rn(own_dot<TILES>(c[half], t), affine.x, acc);
            acc = __fmaf_rn(row.sums[block], affine.y, acc);
        }
    }
    return acc;
}

template <int KIND, int LOG> __device__ __forceinline__ void one_all(const One &o) {
    const Project &p = o.project;
    typedef Place<KIND, LOG> P;
    extern __shared__ __align__(16) u8 memory[];
    __shared__ float parts[SETS_MAX * 2 * WARPS * OUTPUTS];
    // Of a share of K no more than half of the groups have slices.
    const KGroups &groups = p.matrices[0].groups;
    int wide = groups.node ? WARPS / 2 : WARPS;
    int warp = threadIdx.x / 32, set = warp / wide, group = group_of(warp % wide, set);
    int lane = threadIdx.x % 32, in_set = threadIdx.x % (wide * 32);
    int slices = p.x.slices;
    int first = groups.starts[group], count = groups.starts[group + 1] - first;
    int start = set * gridDim.x + blockIdx.x, step = blockDim.x / (wide * 32) * gridDim.x;
    uint4 *ring = (uint4 *)memory + warp * (RING * P::ALL);
    RowSlice<LOG> *row = (RowSlice<LOG> *)((uint4 *)memory + blockDim.x / 32 * RING * P::ALL);
    Fetch f = {nullptr, nullptr, nullptr, 0, start, 0, false};
    if (o.front.x) fetch_norm(o.front, (float *)(row + slices) + o.front.width);
    fill<KIND, LOG>(p, f, step, first, count, ring);
    begin_row<LOG, RING>(o, row, count);
    row += first;
    int place = 0, side = 0, own = lane % 4 * 8 + lane / 4;
#pragma unroll 1
    for (int at = start; at < p.parts; at += step, side ^= 1) {
        Part part = part_of(p, at);
        const Matrix &m = p.matrices[part.matrix];
        int n = part.tile * 16 + in_set;
        bool gives = in_set < (part.whole ? OUTPUTS : OUTPUTS / 2) && n < m.n;
        float before = o.residual && gives ? o.residual[n] : 0.0f;
        float total = 0.0f;
#pragma unroll 1
        for (int s = 0; s < count; s++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1));
            __syncwarp();
            const uint4 *here = ring + place * P::ALL;
            float acc = part.whole ? one_slice<KIND, LOG, 2>(here, row[s])
                                   : one_slice<KIND, LOG, 1>(here, row[s]);
            total = __fmaf_rn(acc, row[s].d[0], total);
            __syncwarp();
            fetch<KIND, LOG>(p, f, step, first, count, ring + place * P::ALL);
            place = place == RING - 1 ? 0 : place + 1;
        }
        float *mine = parts + (set * 2 + side) * wide * OUTPUTS;
        mine[group * OUTPUTS + own] = total;
        set_sync(set, wide);
        if (gives) give(o, m.out, n, rooted_few(groups, mine + in_set, OUTPUTS), before);
    }
}

#define ONE(name, kind, log)                                                                       \
    extern "C" __global__ void __launch_bounds__(SETS_MAX *WARPS * 32, 1) name(const One o) {      \
        COME;                                                                                      \
        one_all<kind, log>(o);                                                                     \
    }

ONE(one_nibbles_f16_32, KIND_F16, 5)
ONE(one_nibbles_k_32, KIND_K, 5)
