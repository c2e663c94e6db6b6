//! What this machine can do at most, as measured: reads from memory and integer products a second.

use std::hint::black_box;
use std::time::Instant;

/// Bytes that are read: many times what caches hold.
const READ_BYTES: usize = 512 << 20;
/// Passes over them; the fastest counts.
const READ_PASSES: usize = 4;
/// Multiply-adds of each of several tries; the fastest counts.
#[cfg(target_arch = "x86_64")]
const ROUNDS: usize = 1 << 22;
#[cfg(target_arch = "x86_64")]
const TRIES: usize = 4;

/// Rates of some threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes read from memory a second.
    pub read_bytes: f64,
    /// 16-bit multiply-adds into 32-bit sums a second, with AVX2; `None` without it.
    pub multiply_16: Option<f64>,
    /// 8-bit multiply-adds into 16-bit sums a second, with AVX2; `None` without it. Sums of 16 bits
    /// are soon full: kernels get near it at best.
    pub multiply_8: Option<f64>,
}

/// Measures for about half a second, in 512 MiB of memory.
pub fn limits(threads: usize) -> Limits {
    let threads = threads.max(1);
    let [multiply_16, multiply_8] = multiply(threads);
    Limits { read_bytes: read(threads), multiply_16, multiply_8 }
}

/// Seconds that `work` takes on every thread at once.
fn seconds(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
        work(0);
    });
    started.elapsed().as_secs_f64()
}

fn read(threads: usize) -> f64 {
    let words: Vec<u64> = (0..READ_BYTES as u64 / 8).collect();
    let parts: Vec<&[u64]> = words.chunks(words.len().div_ceil(threads)).collect();
    let pass = |thread: usize| {
        let Some(part) = parts.get(thread) else { return };
        let mut sums = [0_u64; 16];
        for block in part.chunks_exact(sums.len()) {
            sums.iter_mut().zip(block).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        }
        black_box(sums);
    };
    let passes = (0..READ_PASSES).map(|_| seconds(threads, pass));
    READ_BYTES as f64 / passes.fold(f64::INFINITY, f64::min)
}

/// 16-bit and 8-bit multiply-adds a second.
#[cfg(target_arch = "x86_64")]
fn multiply(threads: usize) -> [Option<f64>; 2] {
    if !is_x86_feature_detected!("avx2") {
        return [None; 2];
    }
    let fastest = |work: fn()| {
        let tries = (0..TRIES).map(|_| seconds(threads, |_| work()));
        tries.fold(f64::INFINITY, f64::min)
    };
    let rate = |products: usize, seconds: f64| {
        let all = (threads * ROUNDS * x86::CHAINS * products) as f64;
        Some(all / seconds)
    };
    // SAFETY: the CPU has AVX2.
    let (wide, narrow) = (|| unsafe { x86::multiply_16() }, || unsafe { x86::multiply_8() });
    [rate(16, fastest(wide)), rate(32, fastest(narrow))]
}

#[cfg(not(target_arch = "x86_64"))]
fn multiply(_threads: usize) -> [Option<f64>; 2] {
    [None; 2]
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi16, _mm256_add_epi32, _mm256_madd_epi16, _mm256_maddubs_epi16,
        _mm256_set1_epi8,
    };
    use std::hint::black_box;

    use super::ROUNDS;

    /// Sums that don't wait for each other: enough to hide a multiply's latency, few enough for
    /// the registers.
    pub const CHAINS: usize = 12;

    /// [`ROUNDS`] of [`CHAINS`] products of 16 pairs. Each product takes its own sum, so that none
    /// can be left out.
    #[target_feature(enable = "avx2")]
    pub fn multiply_16() {
        let (mut sums, weights) = start();
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(*sum, weights));
            }
        }
        black_box(sums);
    }

    /// The same of 32 pairs.
    #[target_feature(enable = "avx2")]
    pub fn multiply_8() {
        let (mut sums, weights) = start();
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(*sum, weights));
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2")]
    fn start() -> ([__m256i; CHAINS], __m256i) {
        let mut sums = [_mm256_set1_epi8(0); CHAINS];
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum = _mm256_set1_epi8(black_box(at as i8 + 1));
        }
        (sums, _mm256_set1_epi8(black_box(3)))
    }
}
