//! NCCL on one card: a communicator of one that gives itself values, what ends one that waits for
//! nothing, and two ends on one card, which the library refuses.

use std::time::{Duration, Instant};

use baton_cuda::nccl::Nccl;
use baton_cuda::{Cuda, CudaError};

/// Values of an exchange of 27B's hidden row for eight rows, and some around the buffers' sizes.
const SIZES: [usize; 6] = [1, 3, 5_120, 16_384, 16_385, 1_500_000];
const RUNS: usize = 20;
const GIVEN_UP_MS: u64 = 500;

pub fn run(open: &dyn Fn() -> Result<Cuda, CudaError>) -> Result<bool, CudaError> {
    let cuda = open()?;
    let mut nccl = Nccl::open(&cuda, None)?;
    let start = Instant::now();
    let id = nccl.draw()?;
    nccl.connect(&id, (0, 1), &|| false)?;
    let connected = start.elapsed().as_secs_f64();
    println!("nccl {}: a communicator of one in {connected:.2} s", nccl.version());
    let mut equal = true;
    for size in SIZES {
        // All bits that a value can have, numbers or not.
        let own: Vec<f32> =
            (0..size as u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
        let mut came = vec![0.0; size];
        let mut times = Vec::new();
        for _ in 0..RUNS {
            came.fill(0.0);
            let start = Instant::now();
            nccl.exchange(&own, &[0], &mut [(0, &mut came)], &|| false)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        let same = own.iter().zip(&came).all(|(a, b)| a.to_bits() == b.to_bits());
        equal &= same;
        println!(
            "  {size} values: {}, {:.0} us ({:.0} to {:.0})",
            if same { "every bit came" } else { "OTHER BITS CAME" },
            times[RUNS / 2],
            times[0],
            times[RUNS - 1]
        );
    }
    let limit = Duration::from_millis(GIVEN_UP_MS);
    let start = Instant::now();
    let mut place = [0.0; 8];
    let waits = nccl.exchange(&[], &[], &mut [(0, &mut place)], &|| start.elapsed() > limit);
    let took = start.elapsed();
    let given_up = waits.is_err() && took < 4 * limit;
    println!("  a value that nobody gives: {waits:?} after {} ms", took.as_millis());
    nccl.connect(&nccl.draw()?, (0, 1), &|| false)?;
    println!("  connected again after that");
    let refused = both(open)?;
    Ok(equal && given_up && refused)
}

/// Two ends of one card, each on a thread of its own.
fn both(open: &dyn Fn() -> Result<Cuda, CudaError>) -> Result<bool, CudaError> {
    let cards = [open()?, open()?];
    let id = Nccl::open(&cards[0], None)?.draw()?;
    let start = Instant::now();
    let ends: Vec<Result<(), CudaError>> = std::thread::scope(|scope| {
        let jobs: Vec<_> = cards
            .iter()
            .enumerate()
            .map(|(index, cuda)| {
                scope.spawn(move || {
                    let limit = Duration::from_secs(20);
                    let mut nccl = Nccl::open(cuda, None)?;
                    nccl.connect(&id, (index, 2), &|| start.elapsed() > limit)
                })
            })
            .collect();
        jobs.into_iter().filter_map(|job| job.join().ok()).collect()
    });
    println!("  two ends on one card: {ends:?} after {} ms", start.elapsed().as_millis());
    Ok(ends.len() == 2 && ends.iter().all(Result::is_err))
}
