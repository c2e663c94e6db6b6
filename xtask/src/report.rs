//! What a `cargo test` run says, summed up: a test that skips itself passes for the harness, so
//! its own word is looked for in its output.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::silence;

/// How the line begins, in any case, of a test that skips itself.
const SKIPPED: &str = "skipped";
/// A run that says nothing for so long is stuck in some test, and is ended. The harness itself
/// speaks once of each test that takes over a minute.
const SILENCE_MAX: Duration = Duration::from_secs(5 * 60);

/// Counts of one run.
#[derive(Debug, Default)]
pub struct Report {
    passed: usize,
    failed: usize,
    ended_ill: bool,
    /// Tests that did not run, each with its reason.
    skipped: Vec<String>,
    /// Skipped tests that the harness counts as passed.
    counted: usize,
    /// The test whose output is being read, until it says that it skips itself.
    current: Option<String>,
    /// Inside the output of tests that passed.
    quiet: bool,
}

impl Report {
    /// Whether every test passed and the run came to its end.
    pub fn success(&self) -> bool {
        !self.ended_ill && self.failed == 0
    }

    /// Both runs as one.
    pub fn and(mut self, other: Self) -> Self {
        self.passed += other.passed;
        self.failed += other.failed;
        self.counted += other.counted;
        self.ended_ill |= other.ended_ill;
        self.skipped.extend(other.skipped);
        self
    }

    /// One line.
    pub fn verdict(&self) -> String {
        let passed = self.passed.saturating_sub(self.counted);
        format!("{passed} passed, {} failed, {} skipped", self.failed, self.skipped.len())
    }

    /// Each skipped test and why.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// Takes one line of the harness; whether a reader wants to see it.
    fn take(&mut self, line: &str) -> bool {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.quiet = false;
            self.current = None;
            self.passed += count(counts, "passed");
            self.failed += count(counts, "failed");
            return true;
        }
        if let Some((test, reason)) = ignored(line) {
            self.skipped.push(format!("{test}: {reason}"));
            return true;
        }
        if let Some(test) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"))
        {
            self.current = Some(test.to_owned());
            return !self.quiet;
        }
        match line {
            "successes:" => self.quiet = true,
            "failures:" => self.quiet = false,
            _ if is_skip(line) => {
                if let Some(test) = self.current.take() {
                    self.note(format!("{test}: {}", reason(line)));
                }
            }
            _ => {}
        }
        !self.quiet
    }

    /// A test that says itself that it does not run.
    fn note(&mut self, skip: String) {
        self.skipped.push(skip);
        self.counted += 1;
    }
}

/// `7` of `ok. 7 passed; 0 failed; ...`.
fn count(counts: &str, what: &str) -> usize {
    let words: Vec<&str> = counts.split([' ', ';']).filter(|w| !w.is_empty()).collect();
    let pair = words.windows(2).find(|pair| pair[1] == what);
    pair.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

/// Name and reason of `test NAME ... ignored, REASON`.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (test, rest) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    let reason = rest.trim_start_matches([',', ' ']);
    Some((test, if reason.is_empty() { "ignored" } else { reason }))
}

/// What follows the word.
fn reason(skip: &str) -> &str {
    skip[SKIPPED.len()..].trim_start_matches([':', ' '])
}

fn is_skip(line: &str) -> bool {
    line.get(..7).is_some_and(|word| word.eq_ignore_ascii_case("skipped"))
}

/// Runs `cargo test`, shows its output and sums it up; a run that is stuck is ended.
pub fn run(command: &mut Command) -> Result<Report> {
    run_within(command, SILENCE_MAX)
}

fn run_within(command: &mut Command, silence_max: Duration) -> Result<Report> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("can't run {command:?}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let report = Mutex::<Report>::default();
    let locked = || report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let id = child.id();
    std::thread::scope(|scope| -> Result<()> {
        let (heard, silence) = channel();
        scope.spawn(move || silence::watch(id, &silence, silence_max));
        let heard_too = heard.clone();
        let errors = scope.spawn(move || -> Result<()> {
            for line in BufReader::new(err.context("a pipe")?).lines() {
                let line = line?;
                let _ = heard_too.send(()); // the watch ends last
                eprintln!("{line}");
                // A test that writes past the harness's capture.
                if is_skip(&line) {
                    locked().note(reason(&line).to_owned());
                }
            }
            Ok(())
        });
        for line in BufReader::new(out.context("a pipe")?).lines() {
            let line = line?;
            let _ = heard.send(());
            if locked().take(&line) {
                println!("{line}");
            }
        }
        drop(heard);
        errors.join().map_err(|_| anyhow::anyhow!("the reader of errors panicked"))?
    })?;
    let mut report = report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.ended_ill = !child.wait()?.success();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Report, Vec<&str>) {
        let mut report = Report::default();
        let shown = text.lines().filter(|line| report.take(line)).collect();
        (report, shown)
    }

    const RUN: &str = "\
running 3 tests
test a ... ok
test slow ... ignored, minutes; by hand
test model ... ok

successes:

---- a stdout ----
figures nobody asked for
---- model stdout ----
skipped: no model
SKIPPED: no model, said again

successes:
    a
    model

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    #[test]
    fn skipped_tests_are_counted_once_and_not_as_passed() {
        let (report, shown) = read(RUN);
        assert_eq!(report.verdict(), "1 passed, 0 failed, 2 skipped");
        assert!(report.success());
        assert_eq!(report.skipped(), ["slow: minutes; by hand", "model: no model"]);
        assert!(!shown.contains(&"figures nobody asked for"));
        assert!(shown.contains(&"test a ... ok"));
    }

    #[test]
    fn a_failure_is_shown_and_makes_the_run_fail() {
        let (report, shown) = read(
            "failures:\n\n---- b stdout ----\npanicked\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured\n",
        );
        assert!(!report.success());
        assert_eq!(report.verdict(), "0 passed, 1 failed, 0 skipped");
        assert!(shown.contains(&"panicked"));
    }

    #[test]
    fn counts_of_several_binaries_and_runs_add_up() {
        let (report, _) = read(&RUN.repeat(2));
        assert_eq!(report.verdict(), "2 passed, 0 failed, 4 skipped");
        assert!(report.success());
        let (broken, _) = read("test result: FAILED. 3 passed; 1 failed; 0 ignored");
        let both = report.and(broken);
        assert_eq!(
            (both.verdict().as_str(), both.success()),
            ("5 passed, 1 failed, 4 skipped", false)
        );
    }

    #[test]
    fn a_run_that_is_stuck_is_ended_with_all_it_started() {
        let started = std::time::Instant::now();
        let mut stuck = Command::new("sh");
        stuck.args(["-c", "echo 'test result: ok. 1 passed; 0 failed'; sleep 600; echo late"]);
        let report = run_within(&mut stuck, Duration::from_millis(300)).expect("sh runs");
        assert!(!report.success());
        assert_eq!(report.passed, 1);
        assert!(started.elapsed() < Duration::from_secs(300), "{:?}", started.elapsed());
    }
}
