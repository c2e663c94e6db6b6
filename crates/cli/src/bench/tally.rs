//! What a load came to: percentiles, a line a rate, CSV.

use std::fmt::Write;
use std::time::Duration;

use super::load::{Outcome, Run, Sample};

/// The percentiles that are shown.
pub const SHOWN: [f64; 3] = [50.0, 90.0, 99.0];

/// Over [`line()`].
pub const HEAD: &str = concat!(
    "                                 first token, ms       token to token, ms       tokens\n",
    "  rate   sent   done  no  broke     p50    p90    p99     p50    p90    p99   a second"
);

/// The value that `percent` of them do not exceed; `None` of none.
pub fn percentile(sorted: &[Duration], percent: f64) -> Option<Duration> {
    let at = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(at.max(1) - 1).copied()
}

/// First tokens and gaps of all replies, sorted.
pub fn times(run: &Run) -> [Vec<Duration>; 2] {
    let mut first: Vec<_> = run.samples.iter().filter_map(|sample| sample.first).collect();
    let mut gaps: Vec<_> = run.samples.iter().flat_map(|s| s.gaps.iter().copied()).collect();
    first.sort();
    gaps.sort();
    [first, gaps]
}

/// One rate.
pub fn line(run: &Run) -> String {
    let count = |is: fn(&Outcome) -> bool| run.samples.iter().filter(|s| is(&s.outcome)).count();
    let done = count(|o| *o == Outcome::Done);
    let refused = count(|o| matches!(o, Outcome::Refused(_) | Outcome::LeftOut));
    let broke = count(|o| *o == Outcome::Broke);
    let mut out =
        format!("{:>6} {:>6} {done:>6} {refused:>3} {broke:>6} ", run.rate, run.samples.len());
    for sorted in times(run) {
        for percent in SHOWN {
            let _ = write!(out, " {:>6}", ms(percentile(&sorted, percent)));
        }
        out.push(' ');
    }
    let tokens: u32 = run.samples.iter().map(|sample| sample.tokens).sum();
    let _ = write!(out, "{:>15.1}", f64::from(tokens) / run.took.as_secs_f64().max(1e-9));
    out
}

fn ms(time: Option<Duration>) -> String {
    let Some(time) = time else { return "-".into() };
    let ms = time.as_secs_f64() * 1e3;
    if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}

/// A line a request.
pub fn csv(runs: &[Run]) -> String {
    let mut out =
        String::from("rate,due_s,outcome,tokens,first_ms,whole_ms,gap_p50_ms,gap_max_ms\n");
    for (run, sample) in runs.iter().flat_map(|run| run.samples.iter().map(move |s| (run, s))) {
        let mut gaps = sample.gaps.clone();
        gaps.sort();
        let cell = |time: Option<Duration>| {
            time.map(|time| format!("{:.3}", time.as_secs_f64() * 1e3)).unwrap_or_default()
        };
        let _ = writeln!(
            out,
            "{},{:.3},{},{},{},{},{},{}",
            run.rate,
            sample.due.as_secs_f64(),
            name(sample),
            sample.tokens,
            cell(sample.first),
            cell(Some(sample.whole)),
            cell(percentile(&gaps, 50.0)),
            cell(gaps.last().copied()),
        );
    }
    out
}

fn name(sample: &Sample) -> String {
    match sample.outcome {
        Outcome::Done => "done".into(),
        Outcome::Refused(status) => status.to_string(),
        Outcome::Broke => "broke".into(),
        Outcome::LeftOut => "left out".into(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Four replies at a rate, the last one refused.
    pub fn run(rate: f64, ms: u64) -> Run {
        let time = Duration::from_millis;
        let sample = |n: u64, outcome| Sample {
            due: time(n * 250),
            first: (outcome == Outcome::Done).then(|| time(ms * n)),
            gaps: vec![time(ms); 3],
            whole: time(ms * n + 3 * ms),
            tokens: 4,
            outcome,
        };
        let mut samples: Vec<Sample> = (1..=3).map(|n| sample(n, Outcome::Done)).collect();
        samples.push(sample(4, Outcome::Refused(429)));
        Run { rate, took: Duration::from_secs(2), samples }
    }

    #[test]
    fn percentiles_are_values_that_were_there() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        let found = [1.0, 50.0, 90.0, 99.0, 100.0].map(|p| percentile(&times, p));
        let expected = [1, 50, 90, 99, 100].map(|ms| Some(Duration::from_millis(ms)));
        assert_eq!(found, expected);
        assert_eq!(percentile(&times[..1], 99.0), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn a_line_and_a_table_count_what_was_refused() {
        let said = line(&run(2.0, 10));
        let words: Vec<&str> = said.split_whitespace().collect();
        assert_eq!(words[..5], ["2", "4", "3", "1", "0"], "{said}");
        assert_eq!(words[5..8], ["20.0", "30.0", "30.0"], "{said}");
        assert_eq!(words.last(), Some(&"8.0"), "{said}");
        let csv = csv(&[run(2.0, 10)]);
        assert_eq!(csv.lines().count(), 5);
        assert!(csv.contains("\n2,0.250,done,4,10.000,40.000,10.000,10.000\n"), "{csv}");
        assert!(csv.contains(",429,4,,"), "{csv}");
    }
}
