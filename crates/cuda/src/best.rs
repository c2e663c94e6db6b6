//! The best candidates of rows of logits, found on the card: they alone leave it.

use std::sync::Arc;

use arith::candidates::{are_few, pack, spoilt};

use crate::device::{Buffer, Device, Params};
use crate::rows::Rows;

/// Most candidates of a row that the card looks for; for more the row goes to the host.
pub(crate) const COUNT_MAX: u32 = 64;
/// Most rows that it looks at; of more each goes to the host.
pub(crate) const ROWS_MAX: usize = 64;
/// As kernels/best.cu has them.
const THREADS: u32 = 256;
const PIECE: usize = 2_048;
const KEY_BYTES: usize = 8;
/// The key of a spoilt logit.
const SPOILT: u64 = u64::MAX;

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Best {
    logits: u64,
    keys: u64,
    out: u64,
    width: i32,
    count: i32,
}

// SAFETY: as kernels/best.cu declares it.
unsafe impl Params for Best {}

/// As [`backend::Backend::candidates`]; `scratch` holds what launches leave for the next, grown as
/// needed.
pub(crate) fn candidates(
    device: &Arc<Device>,
    scratch: &mut Buffer,
    (logits, width): (&Rows, usize),
    (first, best): (u32, &[u32]),
    to: &mut Vec<f32>,
) {
    assert_eq!(width, logits.width, "candidates of {logits:?}");
    logits.holds(best.len());
    let few = |best: u32| best <= COUNT_MAX && are_few(width, best);
    let rows = best.iter().rposition(|&best| few(best)).map_or(0, |last| last + 1);
    let count = best.iter().filter(|&&best| few(best)).max().map_or(0, |&best| best as usize);
    let keys = match rows {
        1..=ROWS_MAX => find(device, scratch, (logits, rows), count),
        _ => Vec::new(),
    };
    let mut keys = keys.chunks_exact(count.max(1));
    let mut whole = Vec::new();
    for (row, &best) in best.iter().enumerate() {
        match keys.next() {
            Some(keys) if few(best) && keys[0] == SPOILT => spoilt(width, first, best, to),
            Some(keys) if few(best) => read(&keys[..best as usize], first, to),
            _ => {
                whole.resize(width, 0.0);
                logits.buffer.download(row * width * 4, &mut whole);
                pack(&whole, first, best, to);
            }
        }
    }
}

/// The keys of the best `count` of each row, best first.
fn find(
    device: &Arc<Device>,
    scratch: &mut Buffer,
    (logits, rows): (&Rows, usize),
    count: usize,
) -> Vec<u64> {
    let pieces = |width: usize| width.div_ceil(PIECE);
    let bytes = |width: usize| rows * pieces(width) * count * KEY_BYTES;
    // Launches write to two places in turn.
    let second = bytes(logits.width);
    crate::put(device, scratch, "candidates", second + bytes(pieces(logits.width) * count));
    let name = if count == 1 { "best_one" } else { "best_few" };
    let (mut width, mut from, mut at) = (logits.width, (logits.at(), 0), 0);
    loop {
        let out = scratch.at() + at as u64;
        let (logits, keys) = from;
        let params = Best { logits, keys, out, width: width as i32, count: count as i32 };
        device.launch(name, [pieces(width) as u32, rows as u32, 1], THREADS, &params);
        if pieces(width) == 1 {
            break;
        }
        (width, from, at) = (pieces(width) * count, (0, out), second - at);
    }
    let mut halves = vec![0u32; rows * count * 2];
    scratch.download(at, &mut halves);
    halves.as_chunks().0.iter().map(|&[low, high]| u64::from(high) << 32 | u64::from(low)).collect()
}

/// Puts the candidates of a sound row behind `to`, whose ids begin at `first`.
fn read(keys: &[u64], first: u32, to: &mut Vec<f32>) {
    for key in keys {
        let (order, id) = ((key >> 32) as u32, !(*key as u32));
        let bits = if order >> 31 == 1 { order & 0x7fff_ffff } else { !order };
        to.extend([f32::from_bits(first + id), f32::from_bits(bits)]);
    }
}
