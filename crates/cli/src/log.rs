//! The log: lines on standard error, so that replies and verdicts on standard output stay clean,
//! and no more of them than a disk can take.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::Instant;

use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Lines that may come at once.
const BURST: f64 = 1_000.0;
/// Lines a second in the long run: at most some tens of MB a day, whatever strangers do.
const LINES_PER_S: f64 = 5.0;

/// Starts it; in colour on a terminal only. Whoever reads it may leave, and their disk may fill: a
/// server goes on without. Who asks for more than `info` gets every line.
pub fn start(filter: &str) {
    let is_bounded = matches!(filter, "error" | "warn" | "info");
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(io::stderr().is_terminal() && !plain)
        .log_internal_errors(false)
        .with_target(false)
        .compact();
    let log = if is_bounded {
        log.with_writer(Mutex::new(Bounded::new(io::stderr()))).with_filter(filter).boxed()
    } else {
        log.with_writer(io::stderr).with_filter(filter).boxed()
    };
    let registry = tracing_subscriber::registry().with(log);
    #[cfg(feature = "otlp")]
    let registry = registry.with(crate::otlp::Exporter::from_environment().map(|exporter| {
        let spans = tracing_subscriber::filter::Targets::new();
        exporter.with_filter(spans.with_target(ring::span::TARGET, tracing::Level::DEBUG))
    }));
    registry.init();
}

/// Passes on what comes in lines, a line a write, as many as the bounds allow; says how many it
/// left out once there is room again.
struct Bounded<W> {
    out: W,
    /// Lines that may come now.
    room: f64,
    filled: Instant,
    left_out: u64,
}

impl<W: Write> Bounded<W> {
    fn new(out: W) -> Self {
        Self { out, room: BURST, filled: Instant::now(), left_out: 0 }
    }

    fn line(&mut self, line: &[u8], now: Instant) -> io::Result<()> {
        let since = now.saturating_duration_since(self.filled);
        self.room = (self.room + since.as_secs_f64() * LINES_PER_S).min(BURST);
        self.filled = now;
        if self.room < 1.0 {
            self.left_out += 1;
            return Ok(());
        }
        self.room -= 1.0;
        let left_out = std::mem::take(&mut self.left_out);
        if left_out > 0 {
            writeln!(self.out, "{left_out} lines were left out here: too many at once")?;
        }
        self.out.write_all(line)
    }
}

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.line(line, Instant::now())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_of_lines_is_cut_and_counted_and_the_log_goes_on() {
        let mut log = Bounded::new(Vec::new());
        let start = Instant::now();
        for at in 0..50_000 {
            log.line(format!("line {at}\n").as_bytes(), start).unwrap();
        }
        let said = String::from_utf8(log.out.clone()).unwrap();
        assert_eq!(said.lines().count(), BURST as usize);
        // A day of it.
        for second in 1..=86_400 {
            for _ in 0..20 {
                log.line(b"again\n", start + Duration::from_secs(second)).unwrap();
            }
        }
        let said = String::from_utf8(log.out).unwrap();
        assert!(said.contains("\n49000 lines were left out here"), "{}", &said[said.len() - 99..]);
        assert!(said.len() < 40 << 20, "{}", said.len());
        assert!(said.lines().count() <= (BURST + 86_400.0 * (LINES_PER_S + 1.0)) as usize);
    }
}
