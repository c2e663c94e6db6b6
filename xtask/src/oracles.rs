//! The comparisons with other implementations, from what the tests of the crates say.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::step::{Steps, cargo};

/// Whose tests compare; each must.
const PACKAGES: [&str; 2] = ["baton-weights", "baton-stage"];

/// What the names of those tests have in common, the module's name included.
const TESTS: &str = "oracle";

/// How a test says what it found: `oracle: NAME FOUND of ALLOWED`.
const SAID: &str = "oracle: ";

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
struct Comparison {
    name: String,
    found: f64,
    allowed: f64,
}

impl Comparison {
    /// Reads a line of a test's output, wherever in it the words begin.
    ///
    /// # Errors
    /// Words that begin so and go on otherwise.
    fn read(line: &str) -> Result<Option<Self>> {
        let Some((_, said)) = line.split_once(SAID) else {
            return Ok(None);
        };
        let parts = said.rsplit_once(" of ").and_then(|(head, allowed)| {
            let (name, found) = head.rsplit_once(' ')?;
            let name = name.trim_end_matches(':').to_owned();
            Some(Self { name, found: found.parse().ok()?, allowed: allowed.trim().parse().ok()? })
        });
        parts.map(Some).with_context(|| format!("`{line}` is not `{SAID}NAME FOUND of ALLOWED`"))
    }

    fn holds(&self) -> bool {
        self.found <= self.allowed
    }

    /// The part of what is allowed; infinite where nothing is, or what was found is no number.
    fn share(&self) -> f64 {
        let share = if self.found == 0.0 { 0.0 } else { self.found / self.allowed };
        if share.is_nan() { f64::INFINITY } else { share }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, found, allowed } = self;
        let mark = if self.holds() { "" } else { "  TOO MUCH" };
        write!(f, "{:>9} {:>9}  {name}{mark}", figure(*found), figure(*allowed))
    }
}

/// Counts as they are, measures to three digits.
fn figure(x: f64) -> String {
    if x.fract() == 0.0 && x.abs() < 1e6 { format!("{x}") } else { format!("{x:.2e}") }
}

/// Runs the tests that compare, shows what they found, the worst last.
///
/// # Errors
/// A comparison that found more than is allowed, a test that failed, or a package without one.
pub fn run(steps: &mut Steps) -> Result<()> {
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    for package in PACKAGES {
        let mut command = cargo(&["test", "--locked", "--package", package, "--test", "it"]);
        command.args(["--", TESTS, "--nocapture"]).current_dir(steps.root());
        let (passed, said) = steps.time(package, || compare(&mut command))?;
        ensure!(!said.is_empty(), "{package}: no test compared anything");
        found.extend(said);
        failed.extend((!passed).then_some(package));
    }
    let verdict = table(found)?;
    ensure!(failed.is_empty(), "tests of {} failed", failed.join(", "));
    println!("{verdict}");
    Ok(())
}

/// Whether every test passed, and what they said. All other output is passed on.
fn compare(command: &mut Command) -> Result<(bool, Vec<Comparison>)> {
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("can't run {command:?}"))?;
    let mut found = Vec::new();
    for line in BufReader::new(child.stdout.take().context("a pipe")?).lines() {
        let line = line?;
        match Comparison::read(&line)? {
            Some(comparison) => found.push(comparison),
            None => println!("{line}"),
        }
    }
    Ok((child.wait()?.success(), found))
}

/// Prints the comparisons by their shares and gives the verdict.
fn table(mut found: Vec<Comparison>) -> Result<String> {
    found.sort_by(|a, b| a.share().total_cmp(&b.share()));
    println!("{:>9} {:>9}  comparison", "found", "allowed");
    for comparison in &found {
        println!("{comparison}");
    }
    let Some(worst) = found.last() else {
        bail!("no test compared anything");
    };
    let exceeding = found.iter().filter(|comparison| !comparison.holds()).count();
    ensure!(exceeding == 0, "{exceeding} of {} comparisons exceed what is allowed", found.len());
    Ok(format!("oracles: worst {} of {} allowed", figure(worst.found), figure(worst.allowed)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn found(said: &[&str]) -> Vec<Comparison> {
        said.iter().map(|line| Comparison::read(line).unwrap().unwrap()).collect()
    }

    #[test]
    fn a_test_s_words_are_found_wherever_they_begin() {
        let [read] = &found(&["test a ... oracle: bf16, logits: 1.25e-5 of 2e-4"])[..] else {
            panic!("one")
        };
        let want = Comparison { name: "bf16, logits".into(), found: 1.25e-5, allowed: 2e-4 };
        assert_eq!(*read, want);
        assert_eq!(Comparison::read("running 3 tests").unwrap(), None);
        for bad in ["oracle: logits", "oracle: logits 3 of some", "oracle: 3 of 4"] {
            assert!(Comparison::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_worst_is_the_one_nearest_to_what_it_may_be() {
        let said = ["oracle: a 9e-5 of 2e-4", "oracle: b 0 of 0", "oracle: c 2e-6 of 2.5e-6"];
        assert_eq!(table(found(&said)).unwrap(), "oracles: worst 2.00e-6 of 2.50e-6 allowed");
        assert_eq!(table(found(&said[1..2])).unwrap(), "oracles: worst 0 of 0 allowed");
    }

    #[test]
    fn more_than_allowed_no_number_and_nothing_at_all_are_failures() {
        for said in ["oracle: a 3e-4 of 2e-4", "oracle: a 1 of 0", "oracle: a NaN of 1"] {
            let error = table(found(&["oracle: b 0 of 0", said])).unwrap_err();
            assert_eq!(error.to_string(), "1 of 2 comparisons exceed what is allowed", "{said}");
        }
        assert!(table(Vec::new()).is_err());
    }
}
