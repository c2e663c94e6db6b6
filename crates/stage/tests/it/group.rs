//! The members of a group in threads of this process, driven as one engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arith::base::StreamId;
use baton_stage::exchange::{Local, local};
use baton_stage::{
    Chain, Engine, Exchange, ExchangeError, Fault, Input, Member, Pick, Shapes, SlotState, Split,
    Stage, StageConfig, StageError,
};
use weights::Checkpoint;
use wire::plan::Plan;

use crate::chain::{cpu, same};

/// What all members have given each other.
#[derive(Debug, Default)]
pub struct Meter {
    pub exchanges: AtomicUsize,
    /// Values, those to each other member counted.
    pub sent: AtomicUsize,
}

/// An exchange that is counted.
struct Counted(Local, Arc<Meter>);

impl Exchange for Counted {
    fn member(&self) -> Member {
        self.0.member()
    }

    fn gather(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        self.1.exchanges.fetch_add(1, Ordering::Relaxed);
        self.1.sent.fetch_add(own.len() * (sizes.len() - 1), Ordering::Relaxed);
        self.0.gather(own, sizes, all)
    }

    fn collect(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        self.1.exchanges.fetch_add(1, Ordering::Relaxed);
        let sent = if self.member().index == 0 { 0 } else { own.len() };
        self.1.sent.fetch_add(sent, Ordering::Relaxed);
        self.0.collect(own, sizes, all)
    }
}

/// A group as one engine: every call goes to every member, and what they give must be equal.
pub struct Together {
    members: Vec<Box<dyn Engine>>,
    pub meter: Arc<Meter>,
}

impl Together {
    /// `count` members; with a draft head on the first where the model has one.
    pub fn new(checkpoint: &Checkpoint, config: &StageConfig, split: Split, count: usize) -> Self {
        Self::planted(checkpoint, config, (split, count), None)
    }

    /// The same, with a defect in every member.
    pub fn planted(
        checkpoint: &Checkpoint,
        config: &StageConfig,
        group: (Split, usize),
        fault: Option<Fault>,
    ) -> Self {
        Self::pairing(checkpoint, config, group, fault, |_| true)
    }

    /// The same, of which those members that `pairs` says run prompts in pairs.
    pub fn pairing(
        checkpoint: &Checkpoint,
        config: &StageConfig,
        (split, count): (Split, usize),
        fault: Option<Fault>,
        pairs: impl Fn(usize) -> bool,
    ) -> Self {
        let meter = Arc::<Meter>::default();
        let open = |exchange: Local| {
            let exchange = Box::new(Counted(exchange, meter.clone()));
            let (backend, config) = (cpu().clone(), config.clone());
            let index = exchange.member().index;
            let opened = match fault {
                None => Stage::open_share(backend, checkpoint, config, split, exchange),
                Some(fault) => {
                    Stage::open_faulty_share(backend, checkpoint, config, split, exchange, fault)
                }
            };
            let mut stage = opened.unwrap();
            // Fewer rows than in earnest, so that short prompts do.
            stage.set_prompt_pair(pairs(index).then_some(32));
            if index == 0 {
                stage.add_draft_head(checkpoint).unwrap();
            }
            Box::new(stage) as Box<dyn Engine>
        };
        Self { members: local(count).into_iter().map(open).collect(), meter }
    }

    /// Calls every member at once; an error is one of all.
    fn each<T: Send>(
        &mut self,
        call: impl Fn(&mut dyn Engine) -> Result<T, StageError> + Sync,
    ) -> Result<Vec<T>, StageError> {
        std::thread::scope(|scope| {
            let call = &call;
            let calls = self.members.iter_mut().map(|member| scope.spawn(|| call(&mut **member)));
            let calls: Vec<_> = calls.collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        })
    }

    fn rows(
        &mut self,
        out: &mut Vec<f32>,
        call: impl Fn(&mut dyn Engine, &mut Vec<f32>) -> Result<(), StageError> + Sync,
    ) -> Result<(), StageError> {
        let all = self.each(|member| {
            let mut rows = Vec::new();
            call(member, &mut rows).map(|()| rows)
        })?;
        all[1..].iter().for_each(|rows| same(rows, &all[0], "members"));
        out.clone_from(&all[0]);
        Ok(())
    }
}

impl Engine for Together {
    fn hidden(&self) -> usize {
        self.members[0].hidden()
    }

    fn vocab(&self) -> usize {
        self.members[0].vocab()
    }

    fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError> {
        self.each(|member| member.prepare(shapes)).map(drop)
    }

    fn step(
        &mut self,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        self.rows(out, |member, out| member.step(plan, input, out))?;
        let (table, held) = (self.members[0].table(), self.members[0].held().to_vec());
        for member in &self.members[1..] {
            assert_eq!((member.table(), member.held()), (table.clone(), &held[..]));
        }
        Ok(())
    }

    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError> {
        self.best_logits(rows, &vec![0; rows.len() / self.hidden()], out)
    }

    fn best_logits(
        &mut self,
        rows: &[f32],
        best: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        let mut all = self.each(|member| {
            let mut logits = Vec::new();
            member.best_logits(rows, best, &mut logits).map(|()| logits)
        })?;
        assert!(all[1..].iter().all(Vec::is_empty), "the first member alone has logits");
        *out = all.swap_remove(0);
        Ok(())
    }

    fn drafts(&self) -> bool {
        self.members[0].drafts()
    }

    fn draft(
        &mut self,
        chains: &[Chain<'_>],
        rows: &[f32],
        pick: Pick<'_>,
    ) -> Result<Vec<Vec<u32>>, StageError> {
        self.members[0].draft(chains, rows, pick)
    }

    fn skip(&mut self, id: StreamId) {
        self.members.iter_mut().for_each(|member| member.skip(id));
    }

    fn reset(&mut self) {
        self.members.iter_mut().for_each(|member| member.reset());
    }

    fn held(&self) -> &[bool] {
        self.members[0].held()
    }

    fn table(&self) -> Vec<SlotState> {
        self.members[0].table()
    }
}
