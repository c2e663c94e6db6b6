//! What two cards give each other, by each other's memory and by NCCL: every bit of it, how long it
//! takes, what ends a card that waits for nothing, and two ends on one card, which are refused.

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use arith::format::Format;
use arith::linear::join;
use backend::{Backend, BackendError, Together};
use baton_cuda::end::End;
use baton_cuda::nccl::Nccl;
use baton_cuda::peers::Peers;
use baton_cuda::{Cuda, CudaError};

use crate::bench::MLX;
use crate::model::{self, Model, Part, half};

const RUNS: usize = 20;
const GIVEN_UP_MS: u64 = 2_000;
/// Rows and values of them: of lines, of copies, and around where one becomes the other.
const SIZES: [(usize, usize); 8] =
    [(1, 1), (3, 5), (1, 5_120), (8, 5_120), (12, 5_461), (13, 5_461), (256, 5_120), (512, 5_120)];
/// Meetings of each size.
const AGAIN: usize = 13;
const LATE: Duration = Duration::from_millis(2);
/// Meetings in a row that are timed as one.
const IN_A_ROW: usize = 128;
const FEW_IN_A_ROW: usize = 4;

/// A member's way to the other.
fn end(cuda: &Arc<Cuda>, by: &str) -> Result<Box<dyn End>, CudaError> {
    Ok(match by {
        "memory" => Box::new(Peers::new(cuda)?),
        _ => Box::new(Nccl::open(cuda, None)?),
    })
}

/// Two members, each on a thread and a card of its own, and how far both are.
fn both<T: Send>(
    by: &str,
    cards: [&Arc<Cuda>; 2],
    run: impl Fn(usize, &Arc<Cuda>, &mut dyn End, &dyn Fn()) -> T + Sync,
) -> Result<[T; 2], CudaError> {
    let mut ends = [end(cards[0], by)?, end(cards[1], by)?];
    let offers = [ends[0].offer(2)?, ends[1].offer(2)?];
    let barrier = Barrier::new(2);
    let done: Vec<_> = std::thread::scope(|scope| {
        let jobs: Vec<_> = ends
            .iter_mut()
            .enumerate()
            .map(|(index, end)| {
                let (run, barrier) = (&run, &barrier);
                scope.spawn(move || {
                    let start = Instant::now();
                    let over = || start.elapsed() > Duration::from_secs(20);
                    let connected = end.connect(&offers, index, &over);
                    barrier.wait();
                    connected?;
                    let met = || {
                        barrier.wait();
                    };
                    let done = run(index, cards[index], &mut **end, &met);
                    barrier.wait();
                    Ok(done)
                })
            })
            .collect();
        jobs.into_iter().filter_map(|job| job.join().ok()).collect()
    });
    let done: Vec<T> = done.into_iter().collect::<Result<_, CudaError>>()?;
    done.try_into().map_err(|_| CudaError::Memory { words: "a member's thread ended".into() })
}

/// Values without a pattern, and some of every kind.
fn values(member: usize, count: usize) -> Vec<f32> {
    let word = |i: u32| (i ^ (member as u32) << 20).wrapping_mul(2_654_435_761);
    let value = |i: u32| match word(i) % 97 {
        0 => f32::from_bits(word(i)),
        _ => (word(i) as i32 >> 8) as f32 / 65_536.0,
    };
    (0..count as u32).map(value).collect()
}

/// All of it, or without the times.
pub fn run(
    open: &dyn Fn(u32) -> Result<Cuda, CudaError>,
    is_timed: bool,
) -> Result<bool, CudaError> {
    let first = Arc::new(open(0)?);
    let one = both("memory", [&first, &first], |_, _, _, _| ()).map(drop);
    println!("memory: two ends on one card: {one:?}");
    let mut good = one.is_err();
    let second = match open(1) {
        Ok(second) => Arc::new(second),
        Err(error) => {
            println!("two cards: not run: {error}");
            return Ok(good);
        }
    };
    for by in ["memory", "nccl"] {
        good &= meet(by, [&first, &second], is_timed)?;
    }
    Ok(good)
}

/// Steps of a half of the 27B model on each of two cards, with what they give each other and
/// without, beside the whole model on one.
pub fn shares(open: &dyn Fn(u32) -> Result<Cuda, CudaError>, by: &str) -> Result<bool, CudaError> {
    let cards = [Arc::new(open(0)?), Arc::new(open(1)?)];
    let done = both(by, [&cards[0], &cards[1]], |index, cuda, end, both| {
        let done = [MLX, Format::Q4K].map(|format| steps(by, index, cuda, format, both));
        let failed = done.into_iter().filter_map(Result::err).map(|error| error.to_string());
        let failed: Vec<String> = failed.chain(end.trouble()).collect();
        println!("member {index}: {failed:?}");
        failed.is_empty()
    })?;
    Ok(done == [true, true])
}

fn steps(
    by: &str,
    index: usize,
    cuda: &Arc<Cuda>,
    format: Format,
    both: &dyn Fn(),
) -> Result<(), BackendError> {
    let pages = 8_192 / 64;
    for (name, size, meets) in [
        ("whole", model::SIZES[0], false),
        ("half", half(model::SIZES[0]), false),
        ("half that meets", half(model::SIZES[0]), true),
    ] {
        let mut model = Model::new(cuda, size, format, size.layers, pages)?;
        model.set_meets(meets);
        for (rows, runs) in [(1, RUNS), (8, RUNS), (256, 5), (512, 5), (1_024, 5), (2_048, 5)] {
            let mut round = model.round(4_000, rows)?;
            // Few rows are launched as one graph; what copies are part of is not.
            let is_graph = rows <= 8 && by == "memory";
            model.run(&mut round, Part::All, rows <= 8);
            cuda.wait();
            let graph = is_graph.then(|| cuda.record(|| model.run(&mut round, Part::All, true)));
            let mut times = [const { Vec::new() }; 2];
            for _ in 0..runs {
                both();
                times[0].push(cuda.timed(|| match &graph {
                    Some(graph) => graph.launch(),
                    None => model.run(&mut round, Part::All, rows <= 8),
                }));
                both();
                let start = Instant::now();
                model.step(&mut round);
                times[1].push(start.elapsed().as_secs_f64());
            }
            times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
            if index == 0 {
                let [card, step] = times.map(|times| {
                    format!(
                        "{:.3} ms ({:.3} to {:.3})",
                        1e3 * times[runs / 2],
                        1e3 * times[0],
                        1e3 * times[runs - 1]
                    )
                });
                println!(
                    "{by}: 27B {format}, {name}, {rows} rows: {card}; as a stage asks: {step}"
                );
            }
        }
    }
    Ok(())
}

fn meet(by: &str, cards: [&Arc<Cuda>; 2], is_timed: bool) -> Result<bool, CudaError> {
    let start = Instant::now();
    let ends = both(by, cards, |index, cuda, end, both| {
        if index == 0 {
            println!("{by}: met in {:.2} s", start.elapsed().as_secs_f64());
        }
        member((by, is_timed), index, cuda, end, both)
    })?;
    println!("{by}: {}", if ends == [true, true] { "every bit came" } else { "OTHER BITS CAME" });
    Ok(ends == [true, true])
}

fn member(
    (by, is_timed): (&str, bool),
    index: usize,
    cuda: &Arc<Cuda>,
    end: &dyn End,
    both: &dyn Fn(),
) -> bool {
    let (mut right, replayed) = (true, cuda.replayed());
    for (rows, width) in SIZES {
        let nodes = Together::Nodes { width, members: 2 };
        right &= meets(index, cuda, rows, nodes, both);
        // Pieces of several runs, and of other widths.
        let cut = width / 3;
        let middle = std::iter::once(cut..width - cut).collect();
        let runs = [vec![0..cut, width - cut..width], middle];
        let pieces = Together::Pieces { width, members: &runs };
        right &= match cut {
            0 => !cuda.gives(rows, pieces),
            _ => meets(index, cuda, rows, pieces, both),
        };
    }
    right &= paired(index, cuda, both);
    right &= frees(by, index, cuda, both);
    if let Some(trouble) = end.trouble() {
        println!("{by}: member {index}: {trouble}");
        return false;
    }
    if by == "nccl" && index == 0 {
        let graphs = cuda.replayed() - replayed;
        println!("{by}: {graphs} exchanges by graphs");
        right &= graphs > 0;
    }
    both();
    let sizes = [(1, 5_120), (8, 5_120), (256, 5_120), (512, 5_120)];
    for (rows, width) in sizes.into_iter().filter(|_| is_timed) {
        times(by, index, cuda, (rows, width), both);
    }
    both();
    right & stops(by, index, cuda, end, if is_timed { IN_A_ROW } else { FEW_IN_A_ROW })
}

/// Whether a meeting gives what the host has of the same values, again and again: an exchange that
/// comes the third time to its place is a graph by then. Now one member is late and then the other,
/// so that who need not wait would be ahead.
fn meets(
    index: usize,
    cuda: &Arc<Cuda>,
    rows: usize,
    together: Together<'_>,
    both: &dyn Fn(),
) -> bool {
    let width = together.width();
    let given: Vec<Vec<f32>> =
        (0..2).map(|member| values(member, rows * together.values(member))).collect();
    let mut expected = vec![0.0; rows * width];
    match together {
        Together::Nodes { .. } => join(&given.concat(), &mut expected),
        Together::Pieces { members, .. } => {
            for (member, runs) in members.iter().enumerate() {
                let mut from = given[member].iter();
                for row in expected.chunks_exact_mut(width) {
                    for at in runs.iter().cloned().flatten() {
                        row[at] = *from.next().unwrap_or(&0.0);
                    }
                }
            }
        }
    }
    let own_width = together.values(index);
    let (Ok(mut own), Ok(mut out)) = (cuda.rows(rows, own_width), cuda.rows(rows, width)) else {
        return false;
    };
    cuda.upload(&given[index], &mut own);
    cuda.download(&out, 0, &mut vec![0.0; rows * width]);
    both();
    let right = (0..AGAIN).all(|again| {
        if again / 4 % 2 == index {
            std::thread::sleep(LATE);
        }
        let mut came = vec![0.0; rows * width];
        cuda.upload(&given[index], &mut own);
        cuda.give(0, &own, rows, together);
        cuda.take(0, &mut out, rows, together);
        cuda.download(&out, 0, &mut came);
        let same = came.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
        if !same {
            println!("member {index}: {rows} rows of {together:?}: other bits");
        }
        same
    });
    both();
    right
}

/// Two lanes that are on their way at once, again and again.
fn paired(index: usize, cuda: &Arc<Cuda>, both: &dyn Fn()) -> bool {
    let (rows, width) = (256, 5_120);
    let together = Together::Nodes { width, members: 2 };
    let given: Vec<Vec<f32>> = (0..2).map(|member| values(member, rows * width)).collect();
    let mut expected = vec![0.0; rows * width];
    join(&given.concat(), &mut expected);
    let (Ok(first), Ok(second)) = (cuda.rows(rows, width), cuda.rows(rows, width)) else {
        return false;
    };
    let mut lanes = [first, second];
    let mut right = true;
    both();
    for _ in 0..8 {
        for (lane, own) in lanes.iter_mut().enumerate() {
            cuda.upload(&given[index], own);
            cuda.give(lane, own, rows, together);
        }
        for (lane, own) in lanes.iter_mut().enumerate() {
            cuda.take(lane, own, rows, together);
            let mut came = vec![0.0; rows * width];
            cuda.download(own, 0, &mut came);
            right &= came.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
        }
    }
    both();
    right
}

/// Frees memory while the card waits for the other one, which gives its rows only then.
fn frees(by: &str, index: usize, cuda: &Arc<Cuda>, both: &dyn Fn()) -> bool {
    let (rows, width) = (512, 5_120);
    let together = Together::Nodes { width, members: 2 };
    let (Ok(mut own), Ok(spare)) = (cuda.rows(rows, width), cuda.rows(rows, width)) else {
        return false;
    };
    cuda.wait();
    both();
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let by = by.to_owned();
    let watch = std::thread::spawn(move || {
        // A card that another's host waits for by a lock of the driver's is past being told to end.
        if ended.recv_timeout(Duration::from_millis(GIVEN_UP_MS)) == Err(RecvTimeoutError::Timeout)
        {
            println!("{by}: member {index}: memory that is freed HOLDS BACK what the other gives");
            std::process::abort();
        }
    });
    if index == 1 {
        std::thread::sleep(Duration::from_millis(100));
    }
    cuda.give(0, &own, rows, together);
    cuda.take(0, &mut own, rows, together);
    drop(spare);
    cuda.wait();
    drop(done);
    both();
    watch.join().is_ok()
}

fn times(by: &str, index: usize, cuda: &Arc<Cuda>, (rows, width): (usize, usize), both: &dyn Fn()) {
    let together = Together::Nodes { width, members: 2 };
    let Ok(mut own) = cuda.rows(rows, width) else { return };
    let mut times = Vec::new();
    for _ in 0..RUNS {
        both();
        let seconds = cuda.timed(|| {
            for _ in 0..IN_A_ROW {
                cuda.give(0, &own, rows, together);
                cuda.take(0, &mut own, rows, together);
            }
        });
        times.push(seconds * 1e6 / IN_A_ROW as f64);
    }
    times.sort_by(f64::total_cmp);
    if index == 0 {
        let (middle, least, most) = (times[RUNS / 2], times[0], times[RUNS - 1]);
        let rate = (4 * rows * width) as f64 / middle / 1e3;
        println!(
            "{by}: {rows} rows of {width}: {middle:.1} us ({least:.1} to {most:.1}), {rate:.1} GB/s \
             each way"
        );
    }
}

/// A member that gives nothing, and the other one's device, which is told to wait no more. Nobody
/// waits for who tells it: NCCL answers once what was recorded is forgotten, when the end is left.
fn stops(by: &str, index: usize, cuda: &Arc<Cuda>, end: &dyn End, count: usize) -> bool {
    let stop = Arc::new(end.stopper());
    let stops_after = |ms| {
        let stop = stop.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(ms));
            stop();
        })
    };
    if index == 1 {
        std::thread::sleep(Duration::from_millis(600));
        stops_after(0);
        return true;
    }
    let mut right = true;
    for rows in [1, 512] {
        let together = Together::Nodes { width: 5_120, members: 2 };
        let Ok(mut own) = cuda.rows(rows, 5_120) else { return false };
        // What was aborted for one size has ended for the other; few are graphs by now.
        if by == "nccl" && rows > 1 {
            continue;
        }
        let start = Instant::now();
        stops_after(100);
        for _ in 0..count {
            cuda.give(0, &own, rows, together);
            cuda.take(0, &mut own, rows, together);
        }
        cuda.wait();
        let ms = start.elapsed().as_millis() as u64;
        println!("{by}: {count} times {rows} rows that nobody gives: ended after {ms} ms");
        right &= ms < GIVEN_UP_MS;
    }
    right && cuda.failure().is_none()
}
