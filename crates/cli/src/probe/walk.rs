//! One stream through some layers, timed.

use std::time::Instant;

use anyhow::Result;
use arith::base::{Generation, StreamId};
use stage::{Engine, Input};
use wire::plan::{Entry, Mode, Op, Plan, Want};

/// The stream of a stage that takes rows.
pub struct Walk<'a> {
    engine: &'a mut dyn Engine,
    generation: u32,
    accepted: u32,
    /// Where its next row stands.
    pub position: u32,
    rows: Vec<f32>,
    out: Vec<f32>,
}

impl<'a> Walk<'a> {
    /// A stage without a stream.
    pub fn new(engine: &'a mut dyn Engine, rows_max: u32) -> Self {
        let values = rows_max as usize * engine.hidden();
        // Values of the size that a normed residual has; their exact size moves no time.
        let value = |i: usize| ((i * 7_919) % 2_003) as f32 / 1_001.5 - 1.0;
        let rows = (0..values).map(value).collect();
        Self { engine, generation: 0, accepted: 0, position: 0, rows, out: Vec::new() }
    }

    /// The time of the stream's next rows, seconds.
    ///
    /// # Errors
    /// What the stage refuses.
    pub fn step_s(&mut self, rows: u32) -> Result<f64> {
        let op = if self.position == 0 { Op::Open } else { Op::Continue };
        let started = Instant::now();
        self.round(op, self.position, rows)?;
        let time_s = started.elapsed().as_secs_f64();
        self.position += rows;
        self.accepted = rows;
        Ok(time_s)
    }

    /// Ends the stream; the next rows begin another.
    ///
    /// # Errors
    /// What the stage refuses.
    pub fn close(&mut self) -> Result<()> {
        if self.position > 0 {
            self.accepted = 0;
            self.round(Op::Close, 0, 0)?;
        }
        (self.position, self.accepted, self.generation) = (0, 0, 0);
        Ok(())
    }

    fn round(&mut self, op: Op, first: u32, rows: u32) -> Result<()> {
        let entry = Entry {
            id: StreamId(0),
            op,
            want: if rows == 0 { Want::None } else { Want::Last },
            first,
            rows,
            accepted: self.accepted,
            resume: 0,
            generation: Generation(self.generation),
            parents: None,
            tokens: None,
        };
        let mode = if rows > 1 { Mode::Prompt } else { Mode::Window };
        let plan = Plan { mode, entries: vec![entry], ..Plan::default() };
        let values = rows as usize * self.engine.hidden();
        self.engine.step(&plan, Input::Rows(&self.rows[..values]), &mut self.out)?;
        self.generation += 1;
        Ok(())
    }
}
