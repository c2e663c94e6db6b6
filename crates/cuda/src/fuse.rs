//! Small ops of a few rows wait for the op that takes what they give, and run with it as one kernel
//! of kernels/fused.cu. Whatever else the card is asked for runs them first, one by one.

use crate::attention::{Cache, Kv};
use crate::device::{Device, Params};
use crate::gdn::{Conv, Delta, Unit};
use crate::map::Map;
use crate::project::{OneLaunch, Quantised};
use crate::rows::{Each, Gates, HeadNorm, Norm, Pairs, Rows, blocks};

/// Most rows of ops that wait.
pub(crate) const ROWS_MAX: usize = 8;
/// Widest row whose norm waits.
pub(crate) const NORM_WIDTH_MAX: usize = 8192;
/// Values of a head whose gated norm or delta rule waits.
pub(crate) const HEAD: usize = 128;
const SLICE: usize = 256;
/// Shared memory that a block of a few rows' products takes, so that those that come while others
/// still run don't crowd the first multiprocessors that are free.
pub(crate) const MUL_SHARED_BYTES: u32 = 48 << 10;
/// Threads of a block of the delta rule.
const DELTA_THREADS: u32 = 352;
/// Rows of a block of the convolution alone.
const CONV_ROWS: usize = 16;

/// An op that waits, with what its own kernel takes.
#[derive(Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "four wait at most")]
pub(crate) enum Op {
    /// In place.
    Add {
        each: Each,
        rows: usize,
        width: usize,
    },
    Norm {
        norm: Norm,
        rows: usize,
    },
    /// `silu_mul` or `gate`.
    Mul {
        kernel: &'static str,
        each: Each,
        rows: usize,
        width: usize,
    },
    /// With `z`, in place.
    Gated {
        norm: HeadNorm,
        rows: usize,
        width: usize,
    },
    HeadNorm {
        norm: HeadNorm,
    },
    Rope {
        pairs: Pairs,
    },
    Gates {
        gates: Gates,
    },
    Convolve {
        conv: Conv,
        unit: Unit,
        walks: usize,
        /// Whether nothing that may still run writes the state.
        settled: bool,
    },
    /// A product of one row, which may add to a residual what it gives.
    One {
        launch: OneLaunch,
    },
    /// What [`delta`] has left to do of a convolution.
    Tail {
        conv: Conv,
        walks: usize,
    },
}

impl Op {
    /// Whether it may wait beside those that wait already.
    pub(crate) fn follows(&self, ops: &[Self]) -> bool {
        match (ops, self) {
            ([], _) => true,
            ([Self::Add { each, rows, width }], Self::Norm { norm, rows: own }) => {
                each.out == norm.x && rows == own && *width == norm.width as usize
            }
            ([Self::Tail { .. }], Self::Gated { rows, .. }) => ops[0].walks() <= *rows,
            ([Self::Gates { gates }], Self::Convolve { unit, .. }) => gates.rows == unit.rows,
            ([Self::HeadNorm { .. }], Self::HeadNorm { .. }) => true,
            ([Self::HeadNorm { .. }, Self::HeadNorm { .. }], Self::Rope { .. }) => true,
            ([.., Self::Rope { .. }], Self::Rope { .. }) => matches!(ops.len(), 1 | 3),
            _ => false,
        }
    }

    fn walks(&self) -> usize {
        match self {
            Self::Convolve { walks, .. } | Self::Tail { walks, .. } => *walks,
            _ => 0,
        }
    }

    /// Launches it alone.
    pub(crate) fn launch(&self, device: &Device) {
        match self {
            Self::Add { each, rows, width } => {
                device.launch_now("add", blocks(rows * width, 256), 256, each);
            }
            Self::Norm { norm, rows } => {
                device.launch_now("rms_norm", [*rows as u32, 1, 1], 512, norm);
            }
            Self::Mul { kernel, each, rows, width } => {
                device.launch_now(kernel, blocks(rows * width, 256), 256, each);
            }
            Self::Gated { norm, .. } | Self::HeadNorm { norm } => {
                device.launch_now("head_norm", blocks(norm.heads as usize, 4), 128, norm);
            }
            Self::Rope { pairs } => {
                let all = (pairs.rows * pairs.heads * pairs.pairs) as usize;
                device.launch_now("rope", blocks(all, 256), 256, pairs);
            }
            Self::Gates { gates } => {
                let all = (gates.rows * gates.heads) as usize;
                device.launch_now("gates", blocks(all, 256), 256, gates);
            }
            Self::Convolve { conv, unit, walks, .. } => {
                let [across, ..] = blocks(conv.channels as usize, 256);
                let down = (unit.rows as usize).div_ceil(CONV_ROWS) as u32;
                device.launch_now("convolve", [across, down, 1], 256, conv);
                device.launch_now("tail", [across, *walks as u32, 1], 256, conv);
                let heads = (unit.rows * 2 * unit.keys) as usize;
                device.launch_now("l2_norm", blocks(heads, 4), 128, unit);
            }
            Self::One { launch } => launch.run(device),
            Self::Tail { conv, walks } => {
                let [across, ..] = blocks(conv.channels as usize, 256);
                device.launch_now("tail", [across, *walks as u32, 1], 256, conv);
            }
        }
    }

    /// Whether it gives the first `rows` rows at `at`.
    fn gives(&self, at: u64, rows: usize) -> bool {
        match self {
            Self::Norm { norm, rows: own } => norm.out == at && *own == rows,
            Self::Mul { each, rows: own, .. } => each.out == at && *own == rows,
            Self::Gated { norm, rows: own, .. } => norm.x == at && *own == rows,
            _ => false,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct NormQuantise {
    x: u64,
    y: u64,
    w: u64,
    out: u64,
    to: Quantised,
    width: i32,
    eps: f32,
    inverse: f32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct MulQuantise {
    x: u64,
    y: u64,
    out: u64,
    to: Quantised,
    width: i32,
    gate: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct GatedQuantise {
    norm: HeadNorm,
    to: Quantised,
    tails: Conv,
    width: i32,
    walks: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct DeltaFew {
    conv: Conv,
    gates: Gates,
    delta: Delta,
    scale: f32,
    settled: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct HeadsWrite {
    cache: Cache,
    q: u64,
    k: u64,
    v: u64,
    q_weights: u64,
    k_weights: u64,
    cos: u64,
    sin: u64,
    rows: i32,
    heads: i32,
    pairs: i32,
    adjacent: i32,
    q_eps: f32,
    k_eps: f32,
    inverse: f32,
}

// SAFETY: as kernels/fused.cu declares it.
unsafe impl Params for NormQuantise {}
// SAFETY: as above.
unsafe impl Params for MulQuantise {}
// SAFETY: as above.
unsafe impl Params for GatedQuantise {}
// SAFETY: as above.
unsafe impl Params for DeltaFew {}
// SAFETY: as above.
unsafe impl Params for HeadsWrite {}

/// The norm that gives the row `x`, if it alone waits: it is the caller's to run.
pub(crate) fn norm(device: &Device, x: &Rows) -> Option<Norm> {
    let ops = device.take(|ops| matches!(ops, [op @ Op::Norm { .. }] if op.gives(x.at(), 1)));
    match ops[..] {
        [Op::Norm { norm, .. }] => Some(norm),
        _ => None,
    }
}

/// Adds to `x` what a product that waits gives as `y`, one row of `width` values.
pub(crate) fn added(device: &Device, x: u64, y: u64, width: usize) -> bool {
    let with = |ops: &[Op]| match ops {
        [Op::One { launch }] => launch.added(x, y, width),
        _ => None,
    };
    let ops = device.take(|ops| with(ops).is_some());
    let launch = with(&ops);
    launch.iter().for_each(|launch| launch.run(device));
    launch.is_some()
}

/// Quantises the first `rows` rows of `x` together with the ops that give them, if they wait.
pub(crate) fn quantise(device: &Device, x: &Rows, rows: usize, to: Quantised) -> bool {
    let ops = device.take(|ops| ops.last().is_some_and(|op| op.gives(x.at(), rows)));
    let slices = to.slices as u32;
    match ops[..] {
        [Op::Norm { norm, .. }] => norm_quantise(device, 0, &norm, rows, to),
        [Op::Add { each, .. }, Op::Norm { norm, .. }] => {
            norm_quantise(device, each.y, &norm, rows, to);
        }
        [Op::Mul { kernel, each, width, .. }] => {
            let Each { x, y, out, .. } = each;
            let gate = i32::from(kernel == "gate");
            let params = MulQuantise { x, y, out, to, width: width as i32, gate };
            let grid = [slices.div_ceil(4), rows as u32, 1];
            let shared = if rows > 1 { MUL_SHARED_BYTES } else { 0 };
            device.launch_with("mul_quantise", grid, 128, shared, &params);
        }
        [Op::Gated { norm, width, .. }] => {
            gated_quantise(device, &norm, (Conv::default(), 0), (rows, width), to);
        }
        [Op::Tail { conv, walks }, Op::Gated { norm, width, .. }] => {
            gated_quantise(device, &norm, (conv, walks), (rows, width), to);
        }
        _ => return false,
    }
    true
}

fn norm_quantise(device: &Device, y: u64, norm: &Norm, rows: usize, to: Quantised) {
    let Norm { x, w, out, width, eps, inverse } = *norm;
    let params = NormQuantise { x, y, w, out, to, width, eps, inverse };
    device.launch_now("norm_quantise", [rows as u32, 1, 1], 1024, &params);
}

fn gated_quantise(
    device: &Device,
    norm: &HeadNorm,
    (tails, walks): (Conv, usize),
    (rows, width): (usize, usize),
    to: Quantised,
) {
    let tail_blocks = (tails.channels as u32).div_ceil(HEAD as u32);
    let grid = [(to.slices as u32).div_ceil(4) + tail_blocks, rows as u32, 1];
    let params = GatedQuantise { norm: *norm, to, tails, width: width as i32, walks: walks as i32 };
    device.launch_now("gated_quantise", grid, 128, &params);
}

/// Whether a gated norm can wait.
pub(crate) fn gated_waits(norm: &HeadNorm, rows: usize, width: usize) -> bool {
    rows <= ROWS_MAX && norm.dim as usize == HEAD && width.is_multiple_of(SLICE)
}

/// Whether a row can be quantised by the op that gives it.
pub(crate) fn row_waits(rows: usize, width: usize) -> bool {
    rows <= ROWS_MAX && width.is_multiple_of(4)
}

/// The delta rule together with the convolution that gives `x`, and the gates, if they wait; the
/// tails are left to what comes next.
pub(crate) fn delta(device: &Device, delta: &Delta, whole: bool, scale: f32) -> bool {
    let ops = device.take(|ops| match ops {
        [Op::Convolve { conv, .. }] => conv.out == delta.x,
        [Op::Gates { gates }, Op::Convolve { conv, .. }] => {
            whole && gates.out == delta.gates && conv.out == delta.x
        }
        _ => false,
    });
    let (gates, conv, walks, settled) = match ops[..] {
        [Op::Convolve { conv, walks, settled, .. }] => (Gates::default(), conv, walks, settled),
        [Op::Gates { gates }, Op::Convolve { conv, walks, settled, .. }] => {
            (gates, conv, walks, settled)
        }
        _ => return false,
    };
    let params = DeltaFew { conv, gates, delta: *delta, scale, settled: settled.into() };
    let grid = [2 * delta.values as u32, walks as u32, 1];
    device.launch_now("delta_few", grid, DELTA_THREADS, &params);
    device.defer(Op::Tail { conv, walks });
    true
}

/// Keys and values to the cache together with norms and RoPE of queries and keys, if they wait.
pub(crate) fn heads_write(device: &Device, kv: &Kv, k: &Rows, v: &Rows, map: &Map) -> bool {
    let (cache, rows) = (map.cache(kv), map.rows() as i32);
    let fits = |pairs: &Pairs| pairs.dim == cache.dim && pairs.rows == rows;
    let own = |norm: &HeadNorm, pairs: &Pairs| {
        norm.x == pairs.x && norm.dim == cache.dim && norm.heads == rows * pairs.heads
    };
    let ropes = |a: &Pairs, b: &Pairs| fits(a) && fits(b) && b.x == k.at() && a.x != b.x;
    let ops = device.take(|ops| match ops {
        [Op::Rope { pairs: a }, Op::Rope { pairs: b }] => ropes(a, b),
        [
            Op::HeadNorm { norm: q },
            Op::HeadNorm { norm: k },
            Op::Rope { pairs: a },
            Op::Rope { pairs: b },
        ] => ropes(a, b) && own(q, a) && own(k, b),
        _ => false,
    });
    let (norms, a, b) = match ops[..] {
        [Op::Rope { pairs: a }, Op::Rope { pairs: b }] => (None, a, b),
        [
            Op::HeadNorm { norm: q },
            Op::HeadNorm { norm: k },
            Op::Rope { pairs: a },
            Op::Rope { pairs: b },
        ] => (Some((q, k)), a, b),
        _ => return false,
    };
    let params = HeadsWrite {
        cache,
        q: a.x,
        k: b.x,
        v: v.at(),
        q_weights: norms.map_or(0, |(q, _)| q.w),
        k_weights: norms.map_or(0, |(_, k)| k.w),
        cos: a.cos,
        sin: a.sin,
        rows,
        heads: a.heads,
        pairs: a.pairs,
        adjacent: a.adjacent,
        q_eps: norms.map_or(0.0, |(q, _)| q.eps),
        k_eps: norms.map_or(0.0, |(_, k)| k.eps),
        inverse: norms.map_or(0.0, |(q, _)| q.inverse),
    };
    let heads = (rows * (a.heads + cache.kv_heads)) as usize;
    device.launch_now("heads_write", blocks(heads, 4), 128, &params);
    true
}
