//! Every member but the leader: joins, is called, and joins again.

use std::convert::Infallible;
use std::sync::Arc;

use stage::{Engine, ExchangeError, Input, Member, StageError};
use wire::call::{self, Call, Report};
use wire::group::{Joiner, Kind, PIECE_BYTES_MAX};
use wire::limit::PLAN_BYTES_MAX;

use crate::epoch::Epoch;
use crate::link::Item;
use crate::memory::Memory;
use crate::{Group, ShardError, Through};

/// Bytes of a step beside its plan and its values.
const STEP_BYTES: usize = 12;

/// The life of a member.
pub struct Follower {
    group: Group,
}

/// One epoch as the member sees it.
struct Called<'a> {
    epoch: &'a Epoch,
    /// Number of the last call.
    number: u64,
    /// Most bytes of a call.
    bytes_max: usize,
    /// Whether it may exchange through memory.
    through: Through,
    /// The memory that the leader offered.
    offered: Option<Memory>,
}

impl Follower {
    /// A member of `group`.
    pub fn new(group: Group) -> Self {
        Self { group }
    }

    /// Serves epochs until the group is shut down. Whatever breaks one, weights stay loaded and the
    /// member joins the next. `engine` is its share, opened with [`Group::seat`].
    pub fn run(&self, engine: &mut dyn Engine) {
        let index = self.group.member().index;
        loop {
            let joined = match self.group.live() {
                Ok(_) => Ok(()),
                Err(_) => self.group.join(),
            };
            match joined {
                Ok(()) => {}
                Err(ShardError::Shutdown) => return,
                Err(error) => {
                    tracing::warn!("member {index}: {error}");
                    self.group.rest();
                    continue;
                }
            }
            let Err(error) = self.epoch(engine);
            engine.reset();
            if self.group.0.is_over() {
                return;
            }
            let text = format!("member {index}: the group broke: {error}; weights stay loaded");
            if is_shutdown(&error) {
                tracing::info!("{text}");
            } else {
                tracing::warn!("{text}");
            }
        }
    }

    fn epoch(&self, engine: &mut dyn Engine) -> Result<Infallible, StageError> {
        let epoch = self.group.live()?;
        tracing::info!("member {}: joined, epoch {:016x}", epoch.member.index, epoch.number);
        let through = self.group.0.config.through;
        let bytes_max = PIECE_BYTES_MAX;
        let mut called = Called { epoch: &epoch, number: 0, bytes_max, through, offered: None };
        called.report(&Report::Ready)?;
        let mut out = Vec::new();
        loop {
            let call = called.next()?;
            if let Err(error) = called.run(call, engine, &mut out) {
                // Where the epoch has ended for another reason, that one stays.
                let lost = epoch.fail(epoch.member.index, error.to_string());
                return Err(lost.into());
            }
        }
    }
}

/// Whether a member ended the group because it was asked to, and not because something broke.
fn is_shutdown(error: &StageError) -> bool {
    matches!(error, StageError::ShardLost { reason, .. }
        if *reason == ShardError::Shutdown.to_string())
}

impl Called<'_> {
    /// The leader's next call, which it may take its time for.
    fn next(&mut self) -> Result<Call<'static>, ExchangeError> {
        let due = self.number + 1;
        let bytes = match self.epoch.memory() {
            Some(memory) => memory.next_call(self.epoch, due, self.bytes_max)?,
            None => self.received(due)?,
        };
        self.number = due;
        Call::decode(&bytes).map_err(|error| self.epoch.fail(0, error.to_string()))
    }

    /// Call `due`, by the leader's link.
    fn received(&self, due: u64) -> Result<Vec<u8>, ExchangeError> {
        let link = self.epoch.link(0)?;
        let mut joiner = Joiner::default();
        loop {
            let Item::Piece(came) = link.next(self.epoch, None)? else {
                return Err(self.epoch.fail(0, "its link has ended".into()));
            };
            let (kind, number) = (came.kind, came.number);
            if (kind, number) != (Kind::Call, due) {
                let reason = format!("OutOfTurn: expected call {due}, found {kind:?} {number}");
                return Err(self.epoch.fail(0, reason));
            }
            let whole = joiner.push(&came.piece(), self.bytes_max);
            link.put_back(came);
            match whole {
                Ok(Some(bytes)) => return Ok(bytes),
                Ok(None) => {}
                Err(error) => return Err(self.epoch.fail(0, error.to_string())),
            }
        }
    }

    fn report(&self, report: &Report) -> Result<(), ExchangeError> {
        let payload = Arc::new(report.encode());
        self.epoch.link(0)?.send(self.epoch, Kind::Report, self.number, &payload)
    }

    /// Does on this share what the leader does on its own.
    fn run(
        &mut self,
        call: Call<'static>,
        engine: &mut dyn Engine,
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        match call {
            Call::Prepare(shapes) => {
                let values = shapes.round_rows_max as usize * engine.hidden().max(1);
                let rows = shapes.round_rows_max as usize;
                self.bytes_max = 4 * (values + rows) + PLAN_BYTES_MAX + STEP_BYTES;
                engine.reset();
                engine.prepare(&shapes)?;
                self.report(&Report::Ready)?;
            }
            Call::Step { plan, input } => {
                let input = match &input {
                    call::Input::Tokens(ids) => Input::Tokens(ids),
                    call::Input::Rows(rows) => Input::Rows(rows),
                };
                engine.step(&plan, input, out)?;
                if !plan.keeps.is_empty() {
                    self.report(&Report::Held(engine.held().to_vec()))?;
                }
            }
            Call::Logits { best, rows } => engine.best_logits(&rows, &best, out)?,
            Call::Skip(id) => engine.skip(id),
            Call::Reset => engine.reset(),
            Call::Table => self.report(&Report::Table(engine.table()))?,
            Call::Meet { place, token } => {
                let opened = Memory::open(self.epoch.member, &place, &token);
                self.offered = opened.ok().filter(|_| self.through != Through::Links);
                self.report(&Report::Met(self.offered.is_some()))?;
            }
            Call::Met(bits) => {
                let Member { index, count } = self.epoch.member;
                let here: Vec<bool> = (0..count).map(|member| bits >> member & 1 == 1).collect();
                if let Some(mut memory) = self.offered.take().filter(|_| here[index]) {
                    memory.set_here(here);
                    self.epoch.meet_in(memory);
                }
            }
        }
        Ok(())
    }
}
