//! Percentiles by rate as an SVG picture.

use std::fmt::Write;
use std::time::Duration;

use super::load::Run;
use super::tally::{SHOWN, percentile, times};

/// Size of a panel's plot, and its place in the picture.
const WIDE: f64 = 320.0;
const HIGH: f64 = 220.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
/// From panel to panel.
const STEP: f64 = WIDE + 90.0;
/// Colours of the percentiles, told apart by any eye.
const COLOURS: [&str; 3] = ["#0072b2", "#e69f00", "#d55e00"];
/// Marks on the upright axis.
const MARKS: u32 = 4;

/// Two panels: the first token, and from token to token; a line a percentile.
pub fn svg(runs: &[Run]) -> String {
    let (wide, high) = (LEFT + STEP + WIDE + 70.0, TOP + HIGH + 50.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {high}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{wide}\" height=\"{high}\" fill=\"white\"/>\n"
    );
    let all: Vec<[Vec<Duration>; 2]> = runs.iter().map(times).collect();
    for (at, title) in ["first token", "token to token"].into_iter().enumerate() {
        let lines = SHOWN.map(|percent| {
            let points = runs.iter().zip(&all).filter_map(|(run, times)| {
                let time = percentile(&times[at], percent)?;
                Some((run.rate, time.as_secs_f64() * 1e3))
            });
            points.collect::<Vec<(f64, f64)>>()
        });
        panel(&mut out, LEFT + at as f64 * STEP, title, &lines);
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, left: f64, title: &str, lines: &[Vec<(f64, f64)>; 3]) {
    let points = || lines.iter().flatten();
    let top = nice(points().map(|point| point.1).fold(0.0, f64::max));
    let most = points().map(|point| point.0).fold(0.0, f64::max).max(1e-9);
    let x = |rate: f64| left + rate / most * WIDE;
    let y = |ms: f64| TOP + HIGH - ms / top * HIGH;
    let _ = writeln!(out, "<text x=\"{left}\" y=\"{:.1}\">{title}, ms</text>", TOP - 14.0);
    for mark in 0..=MARKS {
        let ms = top * f64::from(mark) / f64::from(MARKS);
        let (at, right) = (y(ms), left + WIDE);
        let _ = writeln!(
            out,
            "<path d=\"M{left:.1} {at:.1}H{right:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" \
             y=\"{:.1}\" text-anchor=\"end\">{ms}</text>",
            left - 6.0,
            at + 4.0
        );
    }
    let mut rates: Vec<f64> = points().map(|point| point.0).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    for rate in rates {
        let (at, low) = (x(rate), TOP + HIGH + 18.0);
        let _ = writeln!(
            out,
            "<text x=\"{at:.1}\" y=\"{low:.1}\" text-anchor=\"middle\">{rate}</text>"
        );
    }
    let (middle, low) = (left + WIDE / 2.0, TOP + HIGH + 38.0);
    let _ = writeln!(
        out,
        "<text x=\"{middle:.1}\" y=\"{low:.1}\" text-anchor=\"middle\">requests a second</text>"
    );
    for ((line, colour), percent) in lines.iter().zip(COLOURS).zip(SHOWN) {
        let path: Vec<String> =
            line.iter().map(|(rate, ms)| format!("{:.1},{:.1}", x(*rate), y(*ms))).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (rate, ms) in line {
            let (x, y) = (x(*rate), y(*ms));
            let _ =
                writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        if let Some((rate, ms)) = line.last() {
            let (x, y) = (x(*rate) + 6.0, y(*ms) + 4.0);
            let _ = writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">p{percent}</text>"
            );
        }
    }
}

/// The next number of 1, 2, 4 or 5 times a power of ten.
fn nice(value: f64) -> f64 {
    let mut step = 1e-3;
    loop {
        for times in [1.0, 2.0, 4.0, 5.0] {
            if value <= times * step {
                return times * step;
            }
        }
        step *= 10.0;
        if !step.is_finite() {
            return 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::tests::run;
    use super::*;

    #[test]
    fn a_plot_has_two_panels_a_line_a_percentile_and_a_point_a_rate() {
        let svg = svg(&[run(1.0, 10), run(2.0, 20), run(4.0, 80)]);
        assert_eq!(svg.matches("<polyline").count(), 6);
        assert_eq!(svg.matches("<circle").count(), 18);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        let opened = svg.matches("<text").count();
        assert_eq!(opened, svg.matches("</text>").count());
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_load_without_replies_is_an_empty_plot() {
        let none = Run { samples: Vec::new(), ..run(1.0, 1) };
        let svg = svg(&[none]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn an_axis_ends_at_a_round_number() {
        for (value, end) in [(0.0, 0.001), (3.0, 4.0), (10.0, 10.0), (11.0, 20.0), (450.0, 500.0)] {
            assert!((nice(value) - end).abs() < 1e-9, "{value}: {}", nice(value));
        }
    }
}
