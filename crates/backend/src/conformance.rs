//! The conformance suite: every op of a backend against `arith`, by bytes.
//!
//! Each check computes a pool of rows with the reference once, then calls the op with many subsets
//! of the pool: the row counts of [`Level`], permuted, and cut in two everywhere. As a row's result
//! depends on that row alone, all of them must give the pool's bytes. Rows that hold NaN, infinity
//! or 2^60 and more must come out non-finite; their values are not compared. The reference itself
//! must meet no subnormal result on the way. Ops with a state are called with rounds of several
//! streams that add up to the same rows in every way, and the state is compared after each round.

use std::fmt;
use std::ops::Range;

use arith::count;

use crate::Backend;

mod attention;
mod candidates;
mod chains;
mod fused;
mod heads;
mod input;
mod linear;
mod recurrent;
mod rowwise;

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every op, a few shapes: seconds.
    Quick,
    /// Shapes of every supported family, row counts up to 513: minutes.
    Full,
}

impl Level {
    /// Row counts that every op is called with.
    fn row_counts(self) -> &'static [usize] {
        match self {
            Self::Quick => &[1, 2, 3, 4, 7, 8, 9, 17, 33],
            Self::Full => &[1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 64, 128, 513],
        }
    }

    /// Rows of a pool: the largest count, and enough for every kind of row.
    fn pool_rows(self) -> usize {
        match self {
            Self::Quick => 40,
            Self::Full => 513,
        }
    }

    /// The first of the two for `Quick`, the second for `Full`.
    fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// What a run found. A check is one call of one op, all its rows compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Checks that held.
    pub passed: u64,
    /// Checks that did not.
    pub failed: u64,
    /// The first that did not: op, shape, row, value.
    pub first_failure: Option<String>,
}

impl Report {
    /// Whether every check held, and there was one.
    pub fn ok(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} checks passed, {} failed", self.passed, self.failed)?;
        match &self.first_failure {
            Some(first) => write!(f, "; first: {first}"),
            None => Ok(()),
        }
    }
}

/// Runs every check, by the arithmetic of the backend.
pub fn run(backend: &impl Backend, level: Level) -> Report {
    suite(backend, level, false, 0..PARTS)
}

/// Runs checks until the first that fails, for probes of a device and for planted defects.
pub fn run_to_failure(backend: &impl Backend, level: Level) -> Report {
    suite(backend, level, true, 0..PARTS)
}

/// Runs the checks of linear layers alone: all that a backend's other arithmetic can change.
pub fn run_linears(backend: &impl Backend, level: Level) -> Report {
    suite(backend, level, false, LINEARS..LINEARS + 1)
}

/// Runs one of the [`PARTS`], for devices that are tested by several threads at once.
pub fn run_part(backend: &impl Backend, level: Level, part: usize) -> Report {
    assert!(part < PARTS, "part {part} of {PARTS}");
    suite(backend, level, false, part..part + 1)
}

/// As [`run_part`], until the first check that fails.
pub fn run_part_to_failure(backend: &impl Backend, level: Level, part: usize) -> Report {
    assert!(part < PARTS, "part {part} of {PARTS}");
    suite(backend, level, true, part..part + 1)
}

/// Parts of the suite: ops on rows, linear layers, attention, ops on heads, recurrent layers, all
/// of them in a model's order.
pub const PARTS: usize = 6;
/// The part of [`run_linears`].
pub const LINEARS: usize = 1;

fn suite<B: Backend>(backend: &B, level: Level, stop: bool, parts: Range<usize>) -> Report {
    let mut checks = Checks { backend, level, stop, report: Report::default() };
    for part in parts {
        match part {
            0 => {
                rowwise::run(&mut checks);
                candidates::run(&mut checks);
            }
            LINEARS => linear::run(&mut checks),
            2 => attention::run(&mut checks),
            3 => heads::run(&mut checks),
            4 => recurrent::run(&mut checks),
            _ => chains::run(&mut checks),
        }
    }
    checks.report
}

/// The run so far.
struct Checks<'a, B> {
    backend: &'a B,
    level: Level,
    stop: bool,
    report: Report,
}

impl<B: Backend> Checks<'_, B> {
    /// Whether the rest may be left out.
    fn over(&self) -> bool {
        self.stop && self.report.failed > 0
    }

    fn fail(&mut self, what: String) {
        self.report.failed += 1;
        self.report.first_failure.get_or_insert(what);
    }

    /// Computes expected values with the reference; its subnormal results are failures.
    fn reference<T>(&mut self, case: &str, work: impl FnOnce() -> T) -> T {
        let (value, subnormals) = count::subnormals(work);
        if subnormals > 0 {
            self.fail(format!("{case}: the reference met {subnormals} subnormal results"));
        }
        value
    }

    /// Unwraps what the backend allocates; a refusal fails the case.
    fn made<T>(&mut self, case: &str, made: Result<T, crate::BackendError>) -> Option<T> {
        made.map_err(|e| self.fail(format!("{case}: {e}"))).ok()
    }

    /// One check: `got` against the rows `batch` of the pool `want`, and after them rows that the
    /// op must have left alone.
    fn compare(&mut self, case: &str, width: usize, want: &[f32], batch: &[usize], got: &[f32]) {
        let count = batch.len();
        for (r, got) in got.chunks_exact(width).enumerate() {
            let differs = match batch.get(r) {
                Some(&p) => first_difference(&want[p * width..(p + 1) * width], got),
                None => first_difference(&vec![input::POISON; width], got),
            };
            if let Some(i) = differs {
                let want = batch.get(r).map_or(input::POISON, |p| want[p * width + i]);
                return self.fail(format!(
                    "{case}: row {r} of {count}, value {i}: expected {}, found {}",
                    bits(want),
                    bits(got[i]),
                ));
            }
        }
        self.report.passed += 1;
    }

    /// One check of values that stand alone.
    fn compare_values(&mut self, case: &str, want: &[f32], got: &[f32]) {
        let same = |(w, g): (&f32, &f32)| match w.is_finite() {
            true => w.to_bits() == g.to_bits(),
            false => !g.is_finite(),
        };
        let equal =
            want.iter().zip(got).fold(true, |all, (w, g)| all & (w.to_bits() == g.to_bits()));
        let differs = if equal { None } else { want.iter().zip(got).position(|pair| !same(pair)) };
        match differs {
            Some(i) => self.fail(format!(
                "{case}: value {i} of {}: expected {}, found {}",
                want.len(),
                bits(want[i]),
                bits(got[i]),
            )),
            None => self.report.passed += 1,
        }
    }
}

/// The first value of a row that is not as expected. Where the expected row holds non-finite
/// values, those must be non-finite and the others may be anything.
fn first_difference(want: &[f32], got: &[f32]) -> Option<usize> {
    if want.iter().all(|x| x.is_finite()) {
        want.iter().zip(got).position(|(w, g)| w.to_bits() != g.to_bits())
    } else {
        want.iter().zip(got).position(|(w, g)| !w.is_finite() && g.is_finite())
    }
}

fn bits(x: f32) -> String {
    format!("{x:e} ({:#010x})", x.to_bits())
}

/// The subsets of a pool that a row-wise op is called with: each row count from the front and from
/// the back of the pool, the pool permuted, and one batch cut in two at every row.
fn batches(level: Level) -> Vec<Vec<usize>> {
    let pool = level.pool_rows();
    let mut all = Vec::new();
    for &n in level.row_counts() {
        all.push((0..n).collect());
        all.push((pool - n..pool).collect());
    }
    let mut noise = input::Noise::new(7);
    for _ in 0..level.pick(1, 3) {
        let mut order: Vec<usize> = (0..pool).collect();
        noise.shuffle(&mut order);
        all.push(order);
    }
    let whole = level.pick(9, 33);
    for cut in 1..whole {
        all.push((0..cut).collect());
        all.push((cut..whole).collect());
    }
    all
}

/// A few of them, where the rows of a batch matter less than what else is tried.
fn few_batches(level: Level) -> Vec<Vec<usize>> {
    [1, 3, 9, level.pool_rows()].map(|n| (0..n).collect()).to_vec()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use arith::base::Arith;

    use super::*;
    use crate::scalar::{Defect, Scalar};

    #[test]
    fn the_reference_passes() {
        for arith in Arith::ALL {
            let report = match arith {
                Arith::One => run(&Scalar::new(arith), Level::Quick),
                Arith::Two => run_linears(&Scalar::new(arith), Level::Quick),
            };
            println!("arith {arith}: {report}");
            assert!(report.ok(), "arith {arith}: {report}");
        }
    }

    #[test]
    fn every_planted_defect_is_caught() {
        // Defects stand in the order of the parts that find them: begin with the last that did.
        let mut first = 0;
        for defect in Defect::ALL {
            let found = (first..first + PARTS).find_map(|part| {
                first = part % PARTS;
                let scalar = Scalar::with_defect(defect.arith(), defect);
                suite(&scalar, Level::Quick, true, first..first + 1).first_failure
            });
            let found = found.unwrap_or_else(|| panic!("{defect:?} was not found"));
            println!("{defect:?}: {found}");
            assert!(!found.contains("the reference"), "{defect:?}: {found}");
        }
    }

    #[test]
    fn what_both_arithmetics_share_is_caught_in_arith_2_too() {
        for defect in [
            Defect::DroppedSlice,
            Defect::SwappedTree,
            Defect::UnfusedDot,
            Defect::TieAway,
            Defect::UnflushedLinear,
            Defect::FlushedNode,
            Defect::OwnGroups,
            Defect::SubnormalScale,
            Defect::HugeRow,
            Defect::BatchOrder,
            Defect::StaleRow,
            Defect::OffsetsApart,
            Defect::UnnormedRows,
            Defect::SwappedGate,
        ] {
            let scalar = Scalar::with_defect(Arith::Two, defect);
            let report = suite(&scalar, Level::Quick, true, LINEARS..LINEARS + 1);
            assert!(report.failed > 0, "{defect:?} was not found");
        }
    }

    #[test]
    #[ignore = "minutes; run by hand with --ignored after a change of the reference"]
    fn the_reference_passes_in_full() {
        for arith in Arith::ALL {
            let report = run(&Scalar::new(arith), Level::Full);
            println!("arith {arith}: {report}");
            assert!(report.ok());
        }
    }
}
