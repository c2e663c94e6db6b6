//! What this machine can do at most, as measured: reads from memory and integer products a second.

use std::hint::black_box;
use std::time::Instant;

use crate::memory::Floats;

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
    /// 16-bit multiply-adds into 32-bit sums a second, with the widest instructions that the CPU
    /// has of AVX2 and AVX-512 with VNNI; `None` without either.
    pub multiply_16: Option<f64>,
    /// 8-bit multiply-adds a second, the same; AVX2 has 16-bit sums, which are soon full: kernels
    /// get near it at best.
    pub multiply_8: Option<f64>,
}

/// Measures for about half a second, in 512 MiB of memory.
pub fn limits(threads: usize) -> Limits {
    let start = Instant::now();
    limits_by(threads, &|| start.elapsed().as_secs_f64())
}

/// [`limits`] by a clock that gives seconds: one of the time that threads really ran leaves busy
/// neighbours out.
pub fn limits_by(threads: usize, clock: &dyn Fn() -> f64) -> Limits {
    let threads = threads.max(1);
    let [multiply_16, multiply_8] = multiply(threads, clock);
    Limits { read_bytes: read(threads, clock), multiply_16, multiply_8 }
}

/// Seconds that `work` takes on every thread at once.
fn seconds(threads: usize, clock: &dyn Fn() -> f64, work: impl Fn(usize) + Sync) -> f64 {
    let started = clock();
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
        work(0);
    });
    clock() - started
}

fn read(threads: usize, clock: &dyn Fn() -> f64) -> f64 {
    // In huge pages, as weights lie.
    let mut words = Floats::zeros(READ_BYTES / size_of::<f32>());
    words.iter_mut().enumerate().for_each(|(i, word)| *word = f32::from_bits(i as u32));
    let parts: Vec<&[f32]> = words.chunks(words.len().div_ceil(threads)).collect();
    let pass = |thread: usize| {
        let Some(part) = parts.get(thread) else { return };
        let mut sums = [0_u32; 32];
        for block in part.chunks_exact(sums.len()) {
            let words = sums.iter_mut().zip(block);
            words.for_each(|(sum, word)| *sum = sum.wrapping_add(word.to_bits()));
        }
        black_box(sums);
    };
    let passes = (0..READ_PASSES).map(|_| seconds(threads, clock, pass));
    READ_BYTES as f64 / passes.fold(f64::INFINITY, f64::min)
}

/// 16-bit and 8-bit multiply-adds a second.
#[cfg(target_arch = "x86_64")]
fn multiply(threads: usize, clock: &dyn Fn() -> f64) -> [Option<f64>; 2] {
    let rate = |products: usize, work: fn()| {
        let tries = (0..TRIES).map(|_| seconds(threads, clock, |_| work()));
        let all = (threads * ROUNDS * x86::CHAINS * products) as f64;
        Some(all / tries.fold(f64::INFINITY, f64::min))
    };
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the CPU has AVX-512 with VNNI.
        let (wide, narrow) = (|| unsafe { x86::vnni_16() }, || unsafe { x86::vnni_8() });
        return [rate(32, wide), rate(64, narrow)];
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        let (wide, narrow) = (|| unsafe { x86::avx2_16() }, || unsafe { x86::avx2_8() });
        return [rate(16, wide), rate(32, narrow)];
    }
    [None; 2]
}

#[cfg(not(target_arch = "x86_64"))]
fn multiply(_threads: usize, _clock: &dyn Fn() -> f64) -> [Option<f64>; 2] {
    [None; 2]
}

/// [`ROUNDS`] of [`x86::CHAINS`] products each. A product takes its own sum, so that none can be
/// left out.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm256_add_epi16, _mm256_add_epi32, _mm256_madd_epi16, _mm256_maddubs_epi16,
        _mm256_set1_epi8, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32, _mm512_set1_epi8,
    };
    use std::hint::black_box;

    use super::ROUNDS;

    /// Sums that don't wait for each other: enough to hide a multiply's latency, few enough for
    /// the registers.
    pub const CHAINS: usize = 12;

    /// Where the sums start.
    fn starts() -> [i8; CHAINS] {
        black_box([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    }

    /// Of 16 pairs.
    #[target_feature(enable = "avx2")]
    pub fn avx2_16() {
        let (mut sums, weights) = (starts().map(|x| _mm256_set1_epi8(x)), _mm256_set1_epi8(3));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(*sum, weights));
            }
        }
        black_box(sums);
    }

    /// Of 32 pairs.
    #[target_feature(enable = "avx2")]
    pub fn avx2_8() {
        let (mut sums, weights) = (starts().map(|x| _mm256_set1_epi8(x)), _mm256_set1_epi8(3));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(*sum, weights));
            }
        }
        black_box(sums);
    }

    /// Of 32 pairs.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn vnni_16() {
        let (mut sums, weights) = (starts().map(|x| _mm512_set1_epi8(x)), _mm512_set1_epi8(3));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpwssd_epi32(*sum, *sum, weights);
            }
        }
        black_box(sums);
    }

    /// Of 64 pairs.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn vnni_8() {
        let (mut sums, weights) = (starts().map(|x| _mm512_set1_epi8(x)), _mm512_set1_epi8(3));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, *sum, weights);
            }
        }
        black_box(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_every_thread_at_once() {
        let seen = std::sync::Mutex::new(Vec::new());
        seconds(3, &|| 0.0, |thread| seen.lock().unwrap_or_else(|e| e.into_inner()).push(thread));
        let mut seen = seen.into_inner().unwrap_or_else(|e| e.into_inner());
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
    }
}
