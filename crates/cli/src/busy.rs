//! How long a rank's device has computed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arith::base::{Round, StreamId};
use stage::{Chain, Engine, Input, Offer, Over, Pick, Shapes, SlotState, StageError, Wake};
use wire::plan::Plan;

/// Reads what a [`Busy`] engine has computed, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<Reading>>);

#[derive(Debug, Default)]
struct Reading {
    done: Duration,
    /// Of what is at work.
    since: Option<Instant>,
}

impl Meter {
    /// Time computing until now, the round at work included.
    pub fn computed(&self) -> Duration {
        let reading = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reading.done + reading.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = Instant::now();
        lock().since = Some(since);
        let done = work();
        let mut reading = lock();
        reading.since = None;
        reading.done += since.elapsed();
        done
    }
}

/// An engine whose rounds and heads are timed.
pub struct Busy {
    engine: Box<dyn Engine>,
    meter: Meter,
}

impl Busy {
    /// Times `engine`.
    pub fn new(engine: Box<dyn Engine>, meter: Meter) -> Self {
        Self { engine, meter }
    }
}

impl Engine for Busy {
    fn hidden(&self) -> usize {
        self.engine.hidden()
    }
    fn vocab(&self) -> usize {
        self.engine.vocab()
    }
    fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError> {
        self.engine.prepare(shapes)
    }
    fn step(
        &mut self,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        self.meter.time(|| self.engine.step(plan, input, out))
    }
    fn heed(&mut self, over: Over) {
        self.engine.heed(over);
    }
    fn berths(&mut self, count: u32) -> Result<Option<Offer>, String> {
        self.engine.berths(count)
    }
    fn reach(&mut self, offer: &Offer) -> Result<String, String> {
        self.engine.reach(offer)
    }
    fn step_on(
        &mut self,
        round: Round,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<Option<u32>, StageError> {
        self.meter.time(|| self.engine.step_on(round, plan, input, out))
    }
    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError> {
        self.meter.time(|| self.engine.logits(rows, out))
    }
    fn best_logits(
        &mut self,
        rows: &[f32],
        best: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        self.meter.time(|| self.engine.best_logits(rows, best, out))
    }
    fn chunk_cost_rows(&self) -> u32 {
        self.engine.chunk_cost_rows()
    }
    fn drafts(&self) -> bool {
        self.engine.drafts()
    }
    fn draft(
        &mut self,
        chains: &[Chain<'_>],
        rows: &[f32],
        pick: Pick<'_>,
    ) -> Result<Vec<Vec<u32>>, StageError> {
        self.meter.time(|| self.engine.draft(chains, rows, pick))
    }
    fn skip(&mut self, id: StreamId) {
        self.engine.skip(id);
    }
    fn reset(&mut self) {
        self.engine.reset();
    }
    fn held(&self) -> &[bool] {
        self.engine.held()
    }
    fn table(&self) -> Vec<SlotState> {
        self.engine.table()
    }
    fn watch(&mut self, wake: Wake) {
        self.engine.watch(wake);
    }
    fn check(&self) -> Result<(), StageError> {
        self.engine.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_while_it_goes_on_and_rest_does_not() {
        let ms = Duration::from_millis;
        let meter = Meter::default();
        let during = meter.time(|| {
            std::thread::sleep(ms(20));
            meter.computed()
        });
        assert!(during >= ms(20), "{during:?}");
        let after = meter.computed();
        assert!(after >= during);
        std::thread::sleep(ms(5));
        assert_eq!(meter.computed(), after);
    }
}
