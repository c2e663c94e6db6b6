//! Berths on one card: rows that another process, or another stage of this one, puts there; and
//! rows that NCCL carries from one card to another.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use backend::{Backend, Offer, Over};
use baton_cuda::{Cuda, CudaError};

use crate::stranger::Stranger;

const WIDTH: usize = 5_120;
const ROWS: usize = 2_048;
const COUNT: usize = 3;
const RUNS: usize = 20;
const GIVEN_UP_MS: u64 = 2_000;
/// Longer than an end waits for the greeting of one that has come.
const FREED_MS_MAX: u64 = 25_000;

fn value(at: usize) -> f32 {
    f32::from_bits((at as u32).wrapping_mul(0x9e37_79b9) & 0x7f7f_ffff)
}

fn refused(words: impl ToString) -> CudaError {
    CudaError::Memory { words: words.to_string() }
}

fn never() -> Over {
    Arc::new(|| false)
}

/// Whether every bit came, from this process and from another one; and what copies take.
pub fn run(cuda: &Arc<Cuda>) -> Result<bool, CudaError> {
    let (own, offer) = cuda.berths(COUNT, ROWS, WIDTH, never()).map_err(refused)?;
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
    let (after, _) = cuda.reach(&offer, ROWS, WIDTH, never()).map_err(refused)?;
    cuda.put(&came, (0, ROWS), &after, (2, 0)).map_err(refused)?;
    cuda.send(&after, 2, ROWS * WIDTH).map_err(refused)?;
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
    let (berths, count) = cuda.reach(offer, ROWS, WIDTH, never()).map_err(refused)?;
    assert_eq!(count, COUNT as u32, "berths that were offered");
    let mut rows = cuda.rows(ROWS, WIDTH).map_err(refused)?;
    let values: Vec<f32> = (0..ROWS * WIDTH).map(value).collect();
    cuda.upload(&values, &mut rows);
    // In two runs, the second one first.
    cuda.put(&rows, (700, ROWS - 700), &berths, (2, 700)).map_err(refused)?;
    cuda.put(&rows, (0, 700), &berths, (2, 0)).map_err(refused)?;
    cuda.send(&berths, 2, ROWS * WIDTH).map_err(refused)
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
    let put = median(&mut || {
        let put = cuda.put(&x, (0, rows), after, (0, 0));
        put.and_then(|()| cuda.send(after, 0, rows * WIDTH)).expect("berths by memory");
    });
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

/// Rows between two cards by NCCL: every bit of them, a sender that is as far ahead as may be, ends
/// that are given up on, and two ends on one card, which are refused.
pub fn carried(open: &dyn Fn(u32) -> Result<Cuda, CudaError>) -> Result<bool, CudaError> {
    let cards = [Arc::new(open(0)?), Arc::new(open(1)?)];
    for card in &cards {
        println!("nccl: {}: {}", card.device(), card.mail_by_nccl(None)?);
    }
    let one = Pair::new([&cards[0], &cards[0]]).map(drop);
    println!("nccl: two ends on one card: {one:?}");
    let mut right = one.is_err();
    for receives in [false, true] {
        let start = Instant::now();
        let pair = Pair::new([&cards[0], &cards[1]]).map_err(refused)?;
        println!("nccl: found in {:?}", start.elapsed());
        right &= pair.rounds().map_err(refused)?;
        right &= pair.gives_up(receives).map_err(refused)?;
        right &= cards[0].part(&pair.after) && cards[1].part(&pair.own);
    }
    right &= silent([&cards[0], &cards[1]]).map_err(refused)?;
    let failed = cards.iter().any(|card| {
        card.wait();
        card.failure().is_some()
    });
    println!("nccl: failed {failed}");
    Ok(right && !failed)
}

/// A rank before that comes and never greets: memory of this rank's card is freed after a while all
/// the same, in the midst of the epoch.
fn silent(cards: [&Arc<Cuda>; 2]) -> Result<bool, String> {
    let over = Arc::new(AtomicBool::new(false));
    let (is_over, ends) = (over.clone(), over);
    let is_over: Over = Arc::new(move || is_over.load(Ordering::Acquire));
    let (own, offer) = cards[1].berths(COUNT, ROWS, WIDTH, is_over)?;
    let spare = cards[1].rows(ROWS, WIDTH).map_err(|error| error.to_string())?;
    cards[0].wait();
    let stranger = Stranger::join(&offer)?;
    // Long enough for this rank to greet.
    std::thread::sleep(Duration::from_millis(500));
    let (freed, waits) = mpsc::channel::<()>();
    let took = std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = waits.recv_timeout(Duration::from_millis(FREED_MS_MAX));
            ends.store(true, Ordering::Release);
        });
        let start = Instant::now();
        drop((spare, freed));
        start.elapsed().as_millis() as u64
    });
    let came = cards[1].come(&own, 0, WIDTH);
    println!("nccl: not greeted: memory freed after {took} ms; {came:?}");
    drop(stranger);
    let named = came.is_err_and(|words| words.contains("the rank before did not greet"));
    Ok(named && took < FREED_MS_MAX && cards[1].part(&own))
}

/// A rank's berths as it has them and as the rank before does, in one epoch.
struct Pair<'a> {
    cards: [&'a Arc<Cuda>; 2],
    own: <Cuda as Backend>::Berths,
    after: <Cuda as Backend>::Berths,
    over: Arc<AtomicBool>,
}

impl<'a> Pair<'a> {
    fn new(cards: [&'a Arc<Cuda>; 2]) -> Result<Self, String> {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = || -> Over {
            let over = over.clone();
            Arc::new(move || over.load(Ordering::Acquire))
        };
        let (own, offer) = cards[1].berths(COUNT, ROWS, WIDTH, is_over())?;
        let (after, count) = cards[0].reach(&offer, ROWS, WIDTH, is_over())?;
        assert_eq!(count, COUNT as u32, "berths that were offered");
        Ok(Self { cards, own, after, over })
    }

    /// Rounds of one row, of a few and of many, as many on their way as there are berths.
    fn rounds(&self) -> Result<bool, String> {
        let Self { cards, own, after, .. } = self;
        let mut from = cards[0].rows(ROWS, WIDTH).map_err(|error| error.to_string())?;
        let mut to = cards[1].rows(ROWS, WIDTH).map_err(|error| error.to_string())?;
        let sizes = [1, 8, ROWS, 3, 700, ROWS, 1];
        let mut right = true;
        for (round, ahead) in (0..6).zip([1, COUNT].into_iter().cycle()) {
            let of = |at: usize| (((round + at) % COUNT) as u32, sizes[(round + at) % sizes.len()]);
            for at in 0..ahead {
                let (berth, rows) = of(at);
                let values: Vec<f32> =
                    (0..rows * WIDTH).map(|i| value(i + 31 * at + round)).collect();
                cards[0].upload(&values, &mut from);
                let half = rows / 2;
                cards[0].put(&from, (half, rows - half), after, (berth, half))?;
                cards[0].put(&from, (0, half), after, (berth, 0))?;
                cards[0].send(after, berth, rows * WIDTH)?;
            }
            for at in 0..ahead {
                let (berth, rows) = of(at);
                cards[1].come(own, berth, rows * WIDTH)?;
                cards[1].fetch(own, berth, (0, rows), &mut to, 0);
                let mut found = vec![0.0; rows * WIDTH];
                cards[1].download(&to, 0, &mut found);
                let is = |(i, found): (usize, &f32)| {
                    found.to_bits() == value(i + 31 * at + round).to_bits()
                };
                right &= found.iter().enumerate().all(is);
            }
        }
        println!("nccl: {}", if right { "every bit came" } else { "OTHER BITS CAME" });
        Ok(right)
    }

    /// An end that nobody answers, until the epoch is over: whoever waits ends soon after, and so
    /// does the card, of which memory may be freed meanwhile.
    fn gives_up(&self, receives: bool) -> Result<bool, String> {
        let Self { cards, own, after, over } = self;
        let card = cards[usize::from(receives)];
        let [from, spare] = [card.rows(ROWS, WIDTH), card.rows(ROWS, WIDTH)];
        let from = from.map_err(|error| error.to_string())?;
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                over.store(true, Ordering::Release);
            });
            let start = Instant::now();
            let ended = match receives {
                true => card.come(own, 1, WIDTH),
                false => (0..=COUNT).try_for_each(|berth| {
                    let berth = (berth % COUNT) as u32;
                    // The first one's rows have not been taken when its turn comes again.
                    card.put(&from, (0, ROWS), after, (berth, 0))?;
                    card.send(after, berth, ROWS * WIDTH)
                }),
            };
            drop(spare);
            (ended, start.elapsed().as_millis() as u64)
        });
        println!("nccl: given up after {} ms: {:?}", ended.1, ended.0);
        Ok(ended.0.is_err() && (250..GIVEN_UP_MS).contains(&ended.1))
    }
}
