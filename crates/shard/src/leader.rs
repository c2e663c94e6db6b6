//! Member 0: a stage to whoever drives it, and every other member's caller.

use std::borrow::Cow;
use std::sync::Arc;

use arith::base::StreamId;
use stage::{Chain, Engine, ExchangeError, Input, Pick, Shapes, SlotState, StageError, Wake};
use wire::call::{self, Call, Report};
use wire::group::{Joiner, Kind};
use wire::plan::Plan;

use crate::epoch::Epoch;
use crate::group::draw_token;
use crate::link::Item;
use crate::memory::Memory;
use crate::{Group, ShardError, Through};

/// Most bytes of a report: a table of as many streams as there can be.
const REPORT_BYTES_MAX: usize = 8 + 20 * wire::limit::TABLE_STREAMS_MAX as usize;

/// The engine of a group: its own share, and every member's.
pub struct Leader {
    caller: Caller,
    engine: Box<dyn Engine>,
    held: Vec<bool>,
    compares: bool,
}

/// Calls members.
struct Caller {
    group: Group,
    /// The epoch of the last call, and that one's number.
    at: Option<(Arc<Epoch>, u64)>,
}

impl Leader {
    /// `engine` is this member's share, opened with [`Group::seat`].
    pub fn new(group: Group, engine: Box<dyn Engine>) -> Self {
        Self { caller: Caller { group, at: None }, engine, held: Vec::new(), compares: false }
    }

    /// Compares all members' tables after every step.
    #[must_use]
    pub fn comparing(mut self) -> Self {
        self.compares = true;
        self
    }

    /// Has every member say its table, and compares them with this one's.
    ///
    /// # Errors
    /// `ShardLost` with the first member whose table differs.
    pub fn compare_tables(&mut self) -> Result<(), StageError> {
        let (epoch, number) = self.caller.call(&Call::Table)?;
        let own = self.engine.table();
        for member in epoch.peers() {
            let Report::Table(theirs) = report(&epoch, member, number, epoch.stalled())? else {
                return Err(unasked(&epoch, member, "table").into());
            };
            if theirs != own {
                let reason = format!("OtherTable: expected {own:?}, found {theirs:?}");
                return Err(epoch.fail(member, reason).into());
            }
        }
        Ok(())
    }

    fn hear_held(&mut self, epoch: &Epoch, number: u64) -> Result<(), ExchangeError> {
        for member in epoch.peers() {
            match report(epoch, member, number, epoch.stalled())? {
                Report::Held(theirs) if theirs.len() == self.held.len() => {
                    self.held.iter_mut().zip(theirs).for_each(|(own, theirs)| *own &= theirs);
                }
                _ => return Err(unasked(epoch, member, "held")),
            }
        }
        Ok(())
    }
}

impl Caller {
    /// Sends a call to every member; its epoch and number.
    fn call(&mut self, call: &Call<'_>) -> Result<(Arc<Epoch>, u64), ExchangeError> {
        let live = self.group.live()?;
        let number = match &self.at {
            Some((epoch, last)) if Arc::ptr_eq(epoch, &live) => last + 1,
            _ => return Err(ExchangeError { member: 0, reason: "its group is unprepared".into() }),
        };
        let payload = call.encode().map_err(|e| live.fail(0, e.to_string()))?;
        let payload = Arc::new(payload);
        for member in live.peers() {
            match live.memory().filter(|memory| memory.has(member)) {
                Some(memory) => memory.call(&live, member, number, &payload)?,
                None => live.link(member)?.send(&live, Kind::Call, number, &payload)?,
            }
        }
        self.at = Some((live.clone(), number));
        Ok((live, number))
    }

    /// A share that failed here ends the epoch everywhere: members may hold other states now.
    fn ended<T>(&self, result: Result<T, StageError>) -> Result<T, StageError> {
        if let Err(error) = &result {
            self.group.end(&error.to_string());
        }
        result
    }

    /// Joins where there is no whole group, and hears that every member is loaded.
    fn assemble(&mut self) -> Result<(), ExchangeError> {
        if self.group.live().is_err() {
            self.group.join().map_err(ShardError::lost)?;
        }
        let live = self.group.live()?;
        if self.at.as_ref().is_some_and(|(epoch, _)| Arc::ptr_eq(epoch, &live)) {
            return Ok(());
        }
        for member in live.peers() {
            let wait = live.ready();
            if report(&live, member, 0, wait)? != Report::Ready {
                return Err(unasked(&live, member, "ready"));
            }
        }
        tracing::info!("group of {}: joined, epoch {:016x}", live.member.count, live.number);
        self.at = Some((live, 0));
        self.meet()
    }

    /// Has the members of this machine exchange through memory.
    fn meet(&mut self) -> Result<(), ExchangeError> {
        let through = self.group.0.config.through;
        let epoch = self.group.live()?;
        if through == Through::Links {
            return Ok(());
        }
        let token = draw_token().map_err(ShardError::lost)?;
        let mut memory = match Memory::create(epoch.member, &token) {
            Ok(memory) => memory,
            Err(error) if through != Through::Memory => {
                tracing::debug!("group of {}: no memory to share: {error}", epoch.member.count);
                return Ok(());
            }
            Err(error) => return Err(epoch.fail(0, format!("NotShared: {error}"))),
        };
        let (_, number) = self.call(&Call::Meet { place: memory.place(), token })?;
        let mut here = vec![true; epoch.member.count];
        for member in epoch.peers() {
            let Report::Met(yes) = report(&epoch, member, number, epoch.ready())? else {
                return Err(unasked(&epoch, member, "met"));
            };
            if !yes && through == Through::Memory {
                let reason = "NotShared: it does not reach the leader's memory: it is on another \
                              machine, of another user, or told to use links";
                return Err(epoch.fail(member, reason.into()));
            }
            here[member] = yes;
        }
        let met = here.iter().filter(|here| **here).count();
        if met > 1 {
            let bits = (0..).zip(&here).map(|(bit, here)| u8::from(*here) << bit);
            self.call(&Call::Met(bits.sum()))?;
            tracing::info!("group of {}: {met} exchange through memory", here.len());
            memory.set_here(here);
            epoch.meet_in(memory);
        }
        Ok(())
    }
}

fn unasked(epoch: &Epoch, member: usize, expected: &str) -> ExchangeError {
    epoch.fail(member, format!("OutOfTurn: expected its report {expected}, found another"))
}

/// A member's report on a call.
fn report(
    epoch: &Epoch,
    member: usize,
    number: u64,
    wait: std::time::Duration,
) -> Result<Report, ExchangeError> {
    let link = epoch.link(member)?;
    let mut joiner = Joiner::default();
    loop {
        let Item::Piece(came) = link.next(epoch, Some(wait))? else {
            return Err(epoch.fail(member, "its link has ended".into()));
        };
        let (kind, found) = (came.kind, came.number);
        if (kind, found) != (Kind::Report, number) {
            let reason = format!("OutOfTurn: expected report {number}, found {kind:?} {found}");
            return Err(epoch.fail(member, reason));
        }
        let whole = joiner.push(&came.piece(), REPORT_BYTES_MAX);
        link.put_back(came);
        match whole.and_then(|whole| whole.map(|bytes| Report::decode(&bytes)).transpose()) {
            Ok(Some(report)) => return Ok(report),
            Ok(None) => {}
            Err(error) => return Err(epoch.fail(member, error.to_string())),
        }
    }
}

impl Engine for Leader {
    fn hidden(&self) -> usize {
        self.engine.hidden()
    }

    fn vocab(&self) -> usize {
        self.engine.vocab()
    }

    fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError> {
        self.caller.assemble()?;
        let (epoch, number) = self.caller.call(&Call::Prepare(*shapes))?;
        let prepared = self.engine.prepare(shapes);
        self.caller.ended(prepared)?;
        for member in epoch.peers() {
            if report(&epoch, member, number, epoch.ready())? != Report::Ready {
                return Err(unasked(&epoch, member, "ready").into());
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        let given = match input {
            Input::Tokens(ids) => call::Input::Tokens(ids.into()),
            Input::Rows(rows) => call::Input::Rows(rows.into()),
            Input::Berth(berth) => return Err(StageError::OtherBerth { berth }),
        };
        let step = Call::Step { plan: Cow::Borrowed(plan), input: given };
        let (epoch, number) = self.caller.call(&step)?;
        let stepped = self.engine.step(plan, input, out);
        self.caller.ended(stepped)?;
        self.held = self.engine.held().to_vec();
        if !plan.keeps.is_empty() {
            self.hear_held(&epoch, number)?;
        }
        if self.compares { self.compare_tables() } else { Ok(()) }
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
        self.caller.call(&Call::Logits { best: best.into(), rows: rows.into() })?;
        let done = self.engine.best_logits(rows, best, out);
        self.caller.ended(done)
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
        // The head is whole here: nothing of it is another member's.
        self.engine.draft(chains, rows, pick)
    }

    fn skip(&mut self, id: StreamId) {
        // A group that is broken says so at its next step.
        let _ = self.caller.call(&Call::Skip(id));
        self.engine.skip(id);
    }

    fn reset(&mut self) {
        if self.caller.call(&Call::Reset).is_err() {
            self.caller.at = None;
        }
        self.engine.reset();
        self.held.clear();
    }

    fn held(&self) -> &[bool] {
        &self.held
    }

    fn table(&self) -> Vec<SlotState> {
        self.engine.table()
    }

    fn watch(&mut self, wake: Wake) {
        self.caller.group.watch(wake);
    }

    fn check(&self) -> Result<(), StageError> {
        let lost = self.caller.at.as_ref().and_then(|(epoch, _)| epoch.lost());
        lost.map_or(Ok(()), |lost| Err(lost.into()))
    }
}
