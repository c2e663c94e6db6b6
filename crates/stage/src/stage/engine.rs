//! A stage as the ring drives it.

use arith::base::{Round, StreamId};
use backend::Backend;
use wire::plan::Plan;

use super::Stage;
use super::need::sizes;
use crate::guess::Guessing;
use crate::model::Sizes;
use crate::pairs;
use crate::pass::{Out, pieces};
use crate::slots::Slots;
use crate::{Chain, Engine, Input, Offer, Over, Pick, Shapes, SlotState, StageError};

impl<B: Backend> Stage<B> {
    /// Whether the device still computes: a failed one gives no rows to anybody.
    fn works(&self) -> Result<(), StageError> {
        self.backend.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

impl<B: Backend> Engine for Stage<B> {
    fn state(&self, id: StreamId, layer: u32) -> Option<(Vec<f32>, Vec<f32>)> {
        Stage::state(self, id, layer)
    }

    fn hidden(&self) -> usize {
        self.hidden
    }

    fn vocab(&self) -> usize {
        self.vocab
    }

    fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError> {
        // The weights lie on a device that is gone: only a new process can have it again.
        if let Some(failure) = self.backend.failure() {
            panic!("{failure}");
        }
        let sizes = sizes(shapes)?;
        let least = self.prompt_pair.filter(|_| !self.config.loop_mode);
        let twin_rows = pairs::twin_rows(sizes.rows_max, least);
        let sizes = Sizes { keep_bytes_max: self.keep_bytes_max, twin_rows, ..sizes };
        if self.sizes != Some(sizes) {
            self.sizes = None;
            self.slots = Slots::default();
            self.program.allocate(sizes)?;
            self.sizes = Some(sizes);
        }
        self.pairs = false;
        self.slots = Slots::new(*shapes);
        self.held.clear();
        self.program.forget_all();
        self.warm()
    }

    fn heed(&mut self, over: Over) {
        self.over = over;
    }

    fn berths(&mut self, count: u32) -> Result<Option<Offer>, String> {
        let (rows, over) = (self.slots.shapes().round_rows_max as usize, self.over.clone());
        self.moors.then(|| self.program.berths(count as usize, rows, over)).transpose()
    }

    fn reach(&mut self, offer: &Offer) -> Result<String, String> {
        if !self.moors {
            return Err(format!("{} is not to give rows by itself", self.backend.device()));
        }
        let rows = self.slots.shapes().round_rows_max as usize;
        self.reached = Some(self.program.reach(offer, rows, self.over.clone())?);
        Ok(format!("by {} alone", self.backend.device()))
    }

    fn step(
        &mut self,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        let reached = self.reached.take();
        let stepped = self.step_on(Round(0), plan, input, out);
        self.reached = reached;
        stepped.map(|_| ())
    }

    fn step_on(
        &mut self,
        round: Round,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<Option<u32>, StageError> {
        let rows = plan.rows();
        input.check(rows, self.hidden, self.vocab)?;
        let effects = self.apply(plan)?;
        self.settle(&effects.settled);
        self.held = effects.keeps.iter().map(|keep| self.keep(keep)).collect::<Result<_, _>>()?;
        effects.copies.iter().for_each(|copy| self.program.copy_page(copy.from, copy.to));
        self.pairs = !self.config.loop_mode && pairs::may(plan, &effects.spans);
        let needs = self.needs(plan);
        out.clear();
        let berth = self.berth(round, &effects);
        let mut out = Out { berth, values: rows * self.hidden, rows: out };
        let sizes = self.sizes.ok_or(StageError::EmptyShape { what: "rows of a round" })?;
        // Cuts are rows of the plan: a tree has others.
        let cuts: &[u32] = if effects.origins.len() == rows { &plan.cuts } else { &[] };
        if let Input::Berth(berth) = input {
            self.program.come(berth, rows)?;
        }
        for piece in pieces(effects.origins.len(), cuts, sizes.rows_max) {
            self.run(&effects, piece, input, (&needs, &mut out))?;
        }
        match berth {
            Some(berth) => self.program.send(berth, rows)?,
            None => {
                out.rows();
            }
        }
        self.works().map(|()| berth)
    }

    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError> {
        self.best_logits(rows, &vec![0; rows.len() / self.hidden], out)
    }

    fn best_logits(
        &mut self,
        rows: &[f32],
        best: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        assert!(self.config.ends, "logits were asked of a rank without the ends");
        let sizes = self.sizes.ok_or(StageError::EmptyShape { what: "rows of a round" })?;
        assert_eq!(rows.len(), best.len() * self.hidden, "whole rows");
        out.clear();
        let rows = rows.chunks(sizes.head_rows_max * self.hidden);
        for (rows, best) in rows.zip(best.chunks(sizes.head_rows_max)) {
            self.program.head(rows, best, out)?;
        }
        self.works()
    }

    fn chunk_cost_rows(&self) -> u32 {
        self.program.chunk_cost_rows()
    }

    fn drafts(&self) -> bool {
        self.program.drafts()
    }

    fn draft(
        &mut self,
        chains: &[Chain<'_>],
        rows: &[f32],
        pick: Pick<'_>,
    ) -> Result<Vec<Vec<u32>>, StageError> {
        let sizes = self.sizes.ok_or(StageError::EmptyShape { what: "rows of a draft" })?;
        let (hidden, vocab) = (self.hidden, self.vocab);
        let (program, slots) = (&mut *self.program, &self.slots);
        let drafts = Guessing { program, slots, sizes, hidden, vocab }.run(chains, rows, pick);
        self.works().map(|()| drafts)
    }

    fn skip(&mut self, id: StreamId) {
        self.slots.skip(id);
    }

    fn reset(&mut self) {
        self.slots.reset();
        self.held.clear();
        self.program.forget_all();
        self.reached = None;
        self.program.leave();
    }

    fn held(&self) -> &[bool] {
        &self.held
    }

    fn table(&self) -> Vec<SlotState> {
        self.slots.table()
    }
}
