//! What a rank's device is given, and what the core is told when it is done.

use arith::base::Rank;
use ring::error::RingError;
use ring::step::{Action, Computed};
use stage::StageError;
use wire::control::Agree;

use crate::device::Seen;
use crate::node::{Core, State};
use crate::world::{Broken, Happening, World};

/// What a device has done.
pub enum Outcome {
    Prepared(Result<(), RingError>),
    Staged(Result<Seen, RingError>),
    Logits(Vec<f32>),
    Guesses(Vec<Vec<u32>>),
}

impl World {
    /// Has a rank's device make room.
    pub fn prepare(&mut self, rank: usize, agree: &Agree) {
        let (node, shapes) = (&mut self.nodes[rank], &agree.shapes);
        node.rows_bytes_max = shapes.round_rows_max as usize * node.device.hidden() * 4;
        let prepared = node.device.prepare(shapes);
        node.offer = node.device.berths(agree.depth).filter(|_| rank > 0);
        if prepared.is_err() {
            self.faults.push((self.now, self.now));
        }
        let prepared =
            prepared.map_err(|error| RingError::Stage { rank: Rank(rank as u32), error });
        self.busy(rank, 0, Outcome::Prepared(prepared));
    }

    /// Gives a rank's device what its core wants computed.
    pub fn compute(&mut self, rank: usize, work: Action) -> Result<(), Broken> {
        let (round, plan, rows) = match work {
            Action::Stage { round, plan, rows } => (round, plan, rows),
            Action::Head { rows, best, .. } => {
                let count = rows.len() / self.nodes[rank].device.hidden();
                let logits = self.nodes[rank].device.logits(&rows, &best);
                self.busy(rank, count, Outcome::Logits(logits));
                return Ok(());
            }
            Action::Draft { jobs, .. } => {
                let guesses = jobs.iter().map(|job| self.guess(job)).collect();
                self.busy(rank, jobs.len(), Outcome::Guesses(guesses));
                return Ok(());
            }
            other => return Err(Broken(format!("rank {rank}: no work: {other:?}"))),
        };
        let count = plan.rows();
        let stepped = self.nodes[rank].device.step(round, &plan, rows.input());
        let stepped = stepped.map_err(|why| Broken(format!("rank {rank}, {round}: {why}")))?;
        self.trace.note(self.now, 5 + round.0, || {
            let entries: Vec<_> = plan.entries.iter().map(|e| (e.id.0, e.op, e.rows)).collect();
            format!("rank {rank} computes round {round}: {entries:?}")
        });
        match &stepped {
            Ok(seen) => self.check_round(rank, round, seen)?,
            Err(StageError::EmptyShape { .. }) => self.faults.push((self.now, self.now)),
            Err(error) => return Err(Broken(format!("rank {rank}, {round}: {error}"))),
        }
        let stepped = stepped.map_err(|error| RingError::Stage { rank: Rank(rank as u32), error });
        self.busy(rank, count, Outcome::Staged(stepped));
        Ok(())
    }

    fn busy(&mut self, rank: usize, rows: usize, outcome: Outcome) {
        let cost = self.setting.costs[rank];
        let mut takes = cost.round + cost.row * rows as u64;
        takes += self.rng.below(takes / 4 + 1);
        let node = &mut self.nodes[rank];
        if node.slow.1 > self.now {
            takes *= node.slow.0;
        }
        if rows > 0 && node.hang > 0 {
            takes += node.hang;
            self.faults.push((self.now, self.now + node.hang));
            node.hang = 0;
        }
        node.state = State::Busy(outcome);
        let life = node.life;
        self.after(takes, Happening::Done(rank, life));
    }

    /// A rank's device is done.
    pub fn done(&mut self, rank: usize) -> Result<(), Broken> {
        let now = self.clock();
        let node = &mut self.nodes[rank];
        let State::Busy(outcome) = std::mem::replace(&mut node.state, State::Awake) else {
            return Err(Broken(format!("rank {rank}: its device had nothing to do")));
        };
        let stepped = match (&mut node.core, outcome) {
            (Core::Lead(core), Outcome::Prepared(Ok(()))) => {
                core.prepared();
                Ok(Vec::new())
            }
            (Core::Follow(core), Outcome::Prepared(Ok(()))) => {
                core.prepared(node.offer.take());
                Ok(Vec::new())
            }
            (Core::Lead(core), Outcome::Staged(Ok(seen))) => {
                core.computed(now, seen.computed);
                Ok(Vec::new())
            }
            (Core::Follow(core), Outcome::Staged(Ok(seen))) => core.computed(seen.computed),
            (Core::Lead(core), Outcome::Logits(logits)) => {
                core.computed(now, Computed { values: logits, ..Computed::default() });
                Ok(Vec::new())
            }
            (Core::Lead(core), Outcome::Guesses(guesses)) => {
                core.drafted(now, guesses);
                Ok(Vec::new())
            }
            (Core::Follow(_), Outcome::Logits(_) | Outcome::Guesses(_)) => {
                unreachable!("only rank 0 has a head")
            }
            (_, Outcome::Prepared(Err(error)) | Outcome::Staged(Err(error))) => Err(error),
        };
        self.stepped(rank, stepped)?;
        self.turn(rank)
    }
}
