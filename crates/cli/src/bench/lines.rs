//! `baton bench --lines`: one run for each line of standard input, for whoever alternates engines.

use std::io::{BufRead, Write};

use anyhow::{Context, Result, bail, ensure};

use super::Seat;
use super::case::{Case, Timing};
use super::work::Work;

/// Says `ready BYTES MULTIPLY-ADDS DEVICE` (of a decoded token and a prompt token). Answers
/// `run PROMPT DECODE STREAMS` by `PROMPT_SECONDS DECODE_SECONDS TOKENS`, of a ring also by ` busy`
/// and the share of the two times that each rank computed, as `0.97,0.48`; answers `limits` by
/// `READ MULTIPLY16 MULTIPLY8`, a second.
pub fn serve(seat: &Seat, cases: &[Case], chunk: u32, work: Work) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {} {} {}", work.read_bytes, work.multiply_adds, seat.device)?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["run", prompt, decode, streams] => {
                let number = |word: &str| word.parse::<u32>().with_context(|| format!("`{line}`"));
                let case = Case {
                    prompt: number(prompt)?,
                    decode: number(decode)?,
                    streams: number(streams)?,
                };
                let known = cases.iter().any(|c| case.fits(*c));
                ensure!(known, "`{line}`: beyond --prompt, --decode and --streams");
                let timing = seat.cell.run(case.run(&seat.cell, chunk))?;
                let (prompt_s, decode_s) = (timing.prompt_s, timing.decode_s);
                let busy = busy_of(&timing);
                writeln!(out, "{prompt_s:.6} {decode_s:.6} {}{busy}", timing.tokens)?;
            }
            ["limits"] => {
                let found = cpu::limits(seat.threads);
                let [wide, narrow] = [found.multiply_16, found.multiply_8];
                let (wide, narrow) = (wide.unwrap_or(0.0), narrow.unwrap_or(0.0));
                writeln!(out, "{:.0} {wide:.0} {narrow:.0}", found.read_bytes)?;
            }
            _ => bail!("`{line}`: expected run PROMPT DECODE STREAMS or limits"),
        }
        out.flush()?;
    }
    Ok(())
}

/// Of a ring.
fn busy_of(timing: &Timing) -> String {
    if timing.busy.len() < 2 {
        return String::new();
    }
    let ranks = timing.busy.iter().map(|[prompt, decode]| format!(" {prompt:.3},{decode:.3}"));
    format!(" busy{}", ranks.collect::<String>())
}
