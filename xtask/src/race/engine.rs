//! An engine in a race: a process that keeps a model loaded and times a run for each line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// A running engine; its process ends with it.
#[derive(Debug)]
pub struct Engine {
    /// As reports call it.
    pub name: String,
    /// What it said of itself.
    pub words: String,
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Seconds of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// The prompt; of many streams, until the last has its first token.
    pub prompt_s: f64,
    /// The tokens after it.
    pub decode_s: f64,
    /// How many those were, of all streams.
    pub tokens: f64,
    /// What the engine says of the run.
    pub note: String,
}

impl Engine {
    /// Starts it and waits until it has loaded its model.
    pub fn start(name: &str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("can't run {command:?}"))?;
        let (Some(asks), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{name}: its pipes are missing");
        };
        let answers = BufReader::new(answers);
        let mut engine = Self { name: name.into(), words: String::new(), child, asks, answers };
        let line = engine.line()?;
        let words = line.strip_prefix("ready ");
        engine.words = words.with_context(|| format!("{name}: found `{line}`"))?.into();
        Ok(engine)
    }

    /// Sends a line and reads one.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.asks, "{line}").and_then(|()| self.asks.flush())?;
        self.line()
    }

    /// One run.
    pub fn run(&mut self, prompt: u32, decode: u32, streams: u32) -> Result<Timing> {
        let line = self.ask(&format!("run {prompt} {decode} {streams}"))?;
        let timing = Timing::read(&line);
        timing.with_context(|| format!("{}: found `{line}`, expected seconds", self.name))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        let read = read.with_context(|| format!("{}: its output", self.name))?;
        ensure!(read > 0, "{} ended", self.name);
        Ok(line.trim_end().to_owned())
    }
}

impl Timing {
    /// `PROMPT_SECONDS DECODE_SECONDS TOKENS NOTE`.
    fn read(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let mut number = || words.next()?.parse().ok().filter(|n: &f64| *n > 0.0);
        let (prompt_s, decode_s, tokens) = (number()?, number()?, number()?);
        Some(Self { prompt_s, decode_s, tokens, note: words.next().unwrap_or_default().into() })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // It has nothing to lose; either may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_three_positive_numbers_and_may_say_more() {
        let timing = Timing::read("0.5 2 64 flash attention on").expect("a timing");
        assert_eq!((timing.prompt_s, timing.decode_s, timing.tokens), (0.5, 2.0, 64.0));
        assert_eq!(timing.note, "flash attention on");
        for line in ["", "1 2", "1 2 x", "0 1 2", "-1 1 1", "nan 1 1"] {
            assert_eq!(Timing::read(line), None, "{line}");
        }
    }
}
