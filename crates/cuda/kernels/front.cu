// What linear layers over one row have before and after them. A row may come as it was before its
// norm: every block then norms it and makes it integers by itself, which takes less time than a
// kernel that all wait for. And what they give may be added to a residual at once.

struct Front {
    // No row where it comes as integers.
    const float *x;
    const float *w;
    // The normed row.
    float *out;
    int width;
    float eps;
    float inverse;
};

struct One {
    Project project;
    Front front;
    float *residual;
};

// A slice of the row: both planes of each 64 values, sums of its blocks, its scale first of four.
template <int LOG> struct RowSlice {
    uint4 q[32];
    float sums[256 >> LOG];
    float d[4];
};

// The row to shared memory.
template <int LOG>
__device__ __forceinline__ void take_row(const Quantised &x, RowSlice<LOG> *row) {
    const int BLOCKS = 256 >> LOG;
    int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    const uint4 *q = (const uint4 *)x.q + lane / 8 * 32 + lane % 8;
    const float *one = lane < BLOCKS ? sums_of(x, LOG) + lane * TILE_ROWS : x.d;
    int step = lane < BLOCKS ? BLOCKS * TILE_ROWS : TILE_ROWS;
#pragma unroll 4
    for (int s = warp; s < x.slices; s += warps) {
        uint4 planes = q[s * 128];
        float value = one[s * step];
        row[s].q[lane] = planes;
        if (lane < BLOCKS) row[s].sums[lane] = value;
        if (lane == BLOCKS) row[s].d[0] = value;
    }
}

// Asks for the weights of the norm, which depend on nothing that still runs; they come with the
// slice that is asked for next.
__device__ __forceinline__ void fetch_norm(const Front &f, float *weights) {
    for (int i = threadIdx.x * 4; i < f.width; i += blockDim.x * 4) bring_16(weights + i, f.w + i);
}

// All that a thread asked for before its ring of `RING` slices has come, or, of no slice, at all.
template <int RING> __device__ __forceinline__ void arrived(int slices) {
    if (slices > 0)
        asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1) : "memory");
    else
        asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
}

// Norms the row and makes it integers. `values` and `weights` have room for a whole row.
template <int LOG>
__device__ __forceinline__ void make_row(const Front &f, int slices, RowSlice<LOG> *row,
                                         float *values, const float *weights) {
    // In a place that nobody else uses: more shared memory of the kernel's own would move the rings.
    float &factor = row[0].d[1];
    int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    bool bad = false;
#pragma unroll 2
    for (int i = threadIdx.x * 4; i < f.width; i += blockDim.x * 4) {
        float4 x = *(const float4 *)(f.x + i);
        bad |= spoilt(x.x) || spoilt(x.y) || spoilt(x.z) || spoilt(x.w);
        *(float4 *)(values + i) = x;
    }
    bool any = __syncthreads_or(bad);
    if (warp == 0) {
        float sum = 0.0f;
#pragma unroll 32
        for (int i = lane; i < f.width; i += 32) sum = __fmaf_rn(values[i], values[i], sum);
        float mean = __fmaf_rn(folded(sum), f.inverse, f.eps);
        if (lane == 0) factor = __fdiv_rn(1.0f, __fsqrt_rn(mean));
    }
    __syncthreads();
    float r = factor;
    for (int s = warp; s < slices; s += warps) {
        float v[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int from = s * SLICE + h * 128 + lane * 4;
            bool in = from < f.width;
            float4 none = make_float4(0, 0, 0, 0);
            float4 a = in ? *(const float4 *)(values + from) : none;
            float4 b = in ? *(const float4 *)(weights + from) : none;
            v[h][0] = flushed(__fmul_rn(__fmul_rn(a.x, r), b.x));
            v[h][1] = flushed(__fmul_rn(__fmul_rn(a.y, r), b.y));
            v[h][2] = flushed(__fmul_rn(__fmul_rn(a.z, r), b.z));
            v[h][3] = flushed(__fmul_rn(__fmul_rn(a.w, r), b.w));
            for (int j = 0; j < 4; j++) v[h][j] = !in ? 0.0f : any ? SPOILT : v[h][j];
            if (in && blockIdx.x == 0)
                *(float4 *)(f.out + from) = make_float4(v[h][0], v[h][1], v[h][2], v[h][3]);
        }
        Scaled by = scaled(v);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int LANES = 1 << (LOG - 2);
            int in = lane % 16;
            u32 high, low, *q = (u32 *)row[s].q + (h * 2 + lane / 16) * 32;
            int sum = integers(v[h], by, high, low);
            q += in % 4 * 4 + in / 8 * 2 + in % 8 / 4;
            q[0] = high, q[16] = low;
            for (int lanes = 2; lanes <= LANES; lanes *= 2) sum = joined(sum, lanes);
            if (lane % LANES == 0) row[s].sums[h * (128 >> LOG) + lane / LANES] = (float)sum;
        }
        if (lane == 0) row[s].d[0] = by.scale;
    }
}

// Waits for the row and brings it to shared memory, where behind it is room for `fetch_norm`.
template <int LOG, int RING>
__device__ __forceinline__ void begin_row(const One &o, RowSlice<LOG> *row, int own) {
    int slices = o.project.x.slices;
    float *values = (float *)(row + slices);
    if (o.front.x) arrived<RING>(own);
    WAIT;
    if (o.front.x)
        make_row<LOG>(o.front, slices, row, values, values + o.front.width);
    else
        take_row<LOG>(o.project.x, row);
    __syncthreads();
}

// An output, added to the residual's value `before` where there is one.
__device__ __forceinline__ void give(const One &o, float *out, int n, float y, float before) {
    y = y != y ? SPOILT : y;
    out[n] = y;
    if (o.residual) o.residual[n] = flushed(__fadd_rn(before, y));
}
