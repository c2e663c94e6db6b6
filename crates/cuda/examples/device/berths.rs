//! Berths on one card: rows that another process, or another stage of this one, puts there.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::{Backend, Offer};
use baton_cuda::{Cuda, CudaError};

const WIDTH: usize = 5_120;
const ROWS: usize = 2_048;
const COUNT: usize = 3;
const RUNS: usize = 20;

fn value(at: usize) -> f32 {
    f32::from_bits((at as u32).wrapping_mul(0x9e37_79b9) & 0x7f7f_ffff)
}

fn refused(words: impl ToString) -> CudaError {
    CudaError::Memory { words: words.to_string() }
}

/// Whether every bit came, from this process and from another one; and what copies take.
pub fn run(cuda: &Arc<Cuda>) -> Result<bool, CudaError> {
    let (own, offer) = cuda.berths(COUNT, ROWS, WIDTH).map_err(refused)?;
    let mut came = cuda.rows(ROWS, WIDTH).map_err(refused)?;
    let fetched = |came: &mut _| {
        let mut found = vec![0.0; ROWS * WIDTH];
        cuda.fetch(&own, 2, (0, ROWS), came, 0);
        cuda.download(came, 0, &mut found);
        found.iter().enumerate().all(|(at, found)| found.to_bits() == value(at).to_bits())
    };
    put(cuda, &offer)?;
    let here = fetched(&mut came);
    cuda.upload(&vec![0.0; ROWS * WIDTH], &mut came);
    let (after, _) = cuda.reach(&offer, ROWS, WIDTH).map_err(refused)?;
    cuda.put(&came, (0, ROWS), &after, (2, 0));
    let cleared = !fetched(&mut came);
    let hex: String = offer.iter().map(|byte| format!("{byte:02x}")).collect();
    let program = std::env::current_exe().map_err(refused)?;
    let child = Command::new(program).args(["berths", &hex]).status().map_err(refused)?;
    let there = child.success() && fetched(&mut came);
    println!("berths: from this process {here}, cleared {cleared}, from another one {there}");
    for rows in [1, 8, ROWS] {
        times(cuda, rows, &after, &own)?;
    }
    Ok(here && cleared && there)
}

/// The other process, told by `hex`.
pub fn other(cuda: &Arc<Cuda>, hex: &str) -> Result<bool, CudaError> {
    let mut offer = [0; size_of::<Offer>()];
    for (at, byte) in offer.iter_mut().enumerate() {
        let digits = hex.get(2 * at..2 * at + 2).ok_or_else(|| refused("a short offer"))?;
        *byte = u8::from_str_radix(digits, 16).map_err(refused)?;
    }
    put(cuda, &offer).map(|()| true)
}

fn put(cuda: &Arc<Cuda>, offer: &Offer) -> Result<(), CudaError> {
    let (berths, count) = cuda.reach(offer, ROWS, WIDTH).map_err(refused)?;
    assert_eq!(count, COUNT as u32, "berths that were offered");
    let mut rows = cuda.rows(ROWS, WIDTH).map_err(refused)?;
    let values: Vec<f32> = (0..ROWS * WIDTH).map(value).collect();
    cuda.upload(&values, &mut rows);
    // In two runs, the second one first.
    cuda.put(&rows, (700, ROWS - 700), &berths, (2, 700));
    cuda.put(&rows, (0, 700), &berths, (2, 0));
    Ok(())
}

fn times<B: Backend>(
    cuda: &Arc<B>,
    rows: usize,
    after: &B::Berths,
    own: &B::Berths,
) -> Result<(), CudaError> {
    let mut x = cuda.rows(ROWS, WIDTH).map_err(refused)?;
    let (mut host, mut one) = (vec![1.0_f32; rows * WIDTH], vec![0.0; WIDTH]);
    let median = |run: &mut dyn FnMut()| -> Duration {
        let time = |_| {
            let start = Instant::now();
            run();
            start.elapsed()
        };
        let mut times: Vec<Duration> = (0..RUNS).map(time).collect();
        times.sort();
        times[RUNS / 2]
    };
    // A copy to the card is done once something that follows it has come.
    let nothing = median(&mut || cuda.download(&x, 0, &mut one));
    let down = median(&mut || cuda.download(&x, 0, &mut host));
    let up = median(&mut || {
        cuda.upload(&host, &mut x);
        cuda.download(&x, 0, &mut one);
    });
    let put = median(&mut || cuda.put(&x, (0, rows), after, (0, 0)));
    let fetch = median(&mut || {
        cuda.fetch(own, 0, (0, rows), &mut x, 0);
        cuda.download(&x, 0, &mut one);
    });
    println!(
        "berths: {rows} rows of {WIDTH}: to the host {down:?}, from it {up:?}; to a berth {put:?}, \
         from it {fetch:?}; a row to the host, which is part of both ways in: {nothing:?}"
    );
    Ok(())
}
