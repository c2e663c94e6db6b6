// What the members of a group give each other, card to card: nodes of the tree are added in its
// order, pieces are put into whole rows. Nothing else is computed here.

#define MEMBERS_MAX 8
#define RUNS_MAX 48

// Values of a row that lie together: `len` from `first` on of a member's piece go to `to`.
struct Run {
    int from;
    int first;
    int to;
    int len;
};

struct Meet {
    const float *own;
    float *out;
    // Of few values, a place of lines of each other member; of many, its values.
    const void *came[MEMBERS_MAX];
    // Where each other member finds ours, of few values.
    uint4 *gone[MEMBERS_MAX];
    // How many meetings there were, and the blocks that are through this one.
    u32 *count;
    // Not 0 once nobody is waited for any more; the host's memory.
    const u32 *stop;
    // Lines from one place to the other.
    u64 lines;
    int index;
    int members;
    int rows;
    // Of a whole row.
    int width;
    // Of each member's row.
    int widths[MEMBERS_MAX];
    // None where they are nodes.
    int runs;
    Run run[RUNS_MAX];
};

// Looks between two at `stop`.
#define LOOKS 2048

// Two values, each with the number of the meeting, which comes with it.
__device__ __forceinline__ void give(uint4 *to, float a, float b, u32 number) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to),
                 "r"(__float_as_uint(a)), "r"(number), "r"(__float_as_uint(b))
                 : "memory");
}

__device__ __forceinline__ float2 take(const uint4 *from, u32 number, const u32 *stop) {
    u32 a, b, a_number, b_number;
    for (int look = 1;; look++) {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a), "=r"(a_number), "=r"(b), "=r"(b_number)
                     : "l"(from)
                     : "memory");
        if (a_number == number && b_number == number) break;
        if (look % LOOKS == 0 && *(const volatile u32 *)stop != 0) break;
    }
    return make_float2(__uint_as_float(a), __uint_as_float(b));
}

// Values 2 line and 2 line + 1 of a member.
template <bool FEW>
__device__ __forceinline__ float2 values_of(const Meet &p, int member, int line, int all,
                                            u32 number) {
    if (FEW && member != p.index)
        return take((const uint4 *)p.came[member] + (number & 1) * p.lines + line, number, p.stop);
    const float *from = member == p.index ? p.own : (const float *)p.came[member];
    return make_float2(from[2 * line], 2 * line + 1 < all ? from[2 * line + 1] : 0.0f);
}

template <bool FEW> __device__ __forceinline__ void meet(const Meet &p) {
    int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    int mine = p.rows * p.widths[p.index];
    u32 number = 0;
    if (FEW) {
        number = *(volatile u32 *)p.count + 1;
        for (int line = first; 2 * line < mine; line += step) {
            float2 two = values_of<FEW>(p, p.index, line, mine, number);
            for (int to = 0; to < p.members; to++)
                if (to != p.index)
                    give(p.gone[to] + (number & 1) * p.lines + line, two.x, two.y, number);
        }
    }
    if (p.runs == 0) {
        // A node stands for its first group, the others are +0.
        int apart = MEMBERS_MAX / p.members;
        for (int line = first; 2 * line < mine; line += step) {
            float a[MEMBERS_MAX], b[MEMBERS_MAX];
#pragma unroll
            for (int group = 0; group < MEMBERS_MAX; group++) {
                float2 two = make_float2(0.0f, 0.0f);
                if (group % apart == 0) two = values_of<FEW>(p, group / apart, line, mine, number);
                a[group] = two.x, b[group] = two.y;
            }
            float x = tree(a, 1), y = tree(b, 1);
            p.out[2 * line] = x != x ? SPOILT : x;
            if (2 * line + 1 < mine) p.out[2 * line + 1] = y != y ? SPOILT : y;
        }
    }
    for (int i = 0; i < p.runs; i++) {
        Run run = p.run[i];
        int width = p.widths[run.from], all = p.rows * width;
        for (int at = first; at < p.rows * run.len; at += step) {
            int row = at / run.len, in = at % run.len;
            int value = row * width + run.first + in;
            float2 two = values_of<FEW>(p, run.from, value / 2, all, number);
            p.out[(u64)row * p.width + run.to + in] = value % 2 ? two.y : two.x;
        }
    }
    if (!FEW) return;
    // The last block to be through counts the meeting.
    __syncthreads();
    if (threadIdx.x > 0) return;
    __threadfence();
    if (atomicAdd(p.count + 1, 1) == gridDim.x - 1) {
        p.count[1] = 0;
        p.count[0] = number;
    }
}

// One block a multiprocessor is enough: where more are hoped for, registers spill.
extern "C" __global__ void __launch_bounds__(256, 1) meet_few(const Meet p) {
    BEGIN;
    meet<true>(p);
}

extern "C" __global__ void __launch_bounds__(256) meet_many(const Meet p) {
    BEGIN;
    meet<false>(p);
}
