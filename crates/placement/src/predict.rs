//! What a placement does, from measured times.

use serde::{Deserialize, Serialize};

use crate::problem::{Load, Problem};
use crate::{Ask, Memory, Objective, Placement, Stage};

/// Prompts whose time to the first token is told.
pub const PROMPTS: [u32; 3] = [1_024, 8_192, 32_768];
/// The fewest rows that a prompt is cut into.
const CHUNK_ROWS_MIN: u32 = 32;

/// What bounds a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The stage of that rank.
    Stage(usize),
    /// The hop from that rank to the next.
    Hop(usize),
}

/// Speeds and memory of a placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Tokens a second of one stream.
    pub decode_per_s: f64,
    /// Tokens a second of all asked streams together.
    pub throughput_per_s: f64,
    /// Prompt tokens and the time to the first token after them, of the prompts that fit.
    pub first_token_s: Vec<(u32, f64)>,
    /// The same of the asked prompt.
    pub prompt_s: f64,
    /// Rows that the asked prompt is cut into.
    pub chunk_rows: u32,
    /// Rounds that the replies of all streams ride in at once.
    #[serde(default)]
    pub groups: u32,
    /// What each rank's nodes hold.
    pub memory: Vec<Memory>,
    /// What the objective waits for longest.
    pub bound: Bound,
}

/// What rounds of one size cost in a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// One trip.
    pub sum_s: f64,
    /// The busiest stage or link.
    pub most_s: f64,
}

impl Cost {
    pub fn and(self, time_s: f64, busy_s: f64) -> Self {
        Self { sum_s: self.sum_s + time_s, most_s: self.most_s.max(busy_s) }
    }
}

/// A way of sending rounds: what a round is, and the time that a ring's cost makes of it. The
/// objective's time is least where it is best.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drive {
    pub load: Load,
    /// Trips that follow each other closely, beside the first.
    following: f64,
    /// Whether the time is that of the slower of a trip and `following` busy times.
    steady: bool,
    /// Whether every trip wants rows back, and not the last alone.
    pub wants_all: bool,
}

impl Drive {
    /// One stream's token.
    pub fn decode(ask: &Ask) -> Self {
        let load = Load { rows: 1.0, context: ask.decode_context(), wanted: 1.0 };
        Self { load, following: 0.0, steady: false, wants_all: true }
    }

    /// A token of each stream, in so many groups.
    pub fn throughput(ask: &Ask, groups: u32) -> Self {
        let rows = f64::from(ask.streams.div_ceil(groups));
        let load = Load { rows, context: ask.decode_context(), wanted: rows };
        Self { load, following: f64::from(groups), steady: true, wants_all: true }
    }

    /// A prompt in chunks of `rows`; they see half of it on the average.
    pub fn prompt(prompt: u32, rows: u32) -> Self {
        let rows = rows.min(prompt).max(1);
        let following = prompt.div_ceil(rows) - 1;
        let context = f64::from(prompt.saturating_sub(rows)) / 2.0;
        let load = Load { rows: f64::from(rows), context, wanted: 1.0 };
        Self { load, following: f64::from(following), steady: false, wants_all: false }
    }

    /// Its ways to send the asked work through `world` stages; the best of them counts.
    pub fn of(ask: &Ask, world: usize) -> Vec<Self> {
        match ask.objective {
            Objective::Decode => vec![Self::decode(ask)],
            Objective::Throughput => {
                groups(ask, world).map(|groups| Self::throughput(ask, groups)).collect()
            }
            Objective::Prompt => chunks(ask).map(|rows| Self::prompt(ask.prompt, rows)).collect(),
        }
    }

    pub fn time_s(&self, cost: Cost) -> f64 {
        match self.steady {
            true => cost.sum_s.max(self.following * cost.most_s),
            false => cost.sum_s + self.following * cost.most_s,
        }
    }
}

impl Ask {
    /// Tokens before the decoded ones: the asked prompt, as far as the context holds it.
    fn decode_context(&self) -> f64 {
        f64::from(self.prompt.min(self.context.saturating_sub(1)))
    }
}

/// Rounds that replies may ride in at once: as many as there are stages, as a server has it by
/// itself, or fewer with more rows each, where all streams' tokens are what counts.
fn groups(ask: &Ask, world: usize) -> impl Iterator<Item = u32> {
    let most = (world as u32).min(ask.streams).max(1);
    let least = if ask.objective == Objective::Throughput { 1 } else { most };
    (least..=most).rev()
}

/// Rows of a chunk: the asked ones and halves of them.
fn chunks(ask: &Ask) -> impl Iterator<Item = u32> {
    let most = ask.chunk_rows.max(1);
    let least = most.min(CHUNK_ROWS_MIN);
    std::iter::successors(Some(most), |rows| Some(rows / 2)).take_while(move |rows| *rows >= least)
}

impl Problem<'_> {
    /// What a round costs; `None` where a link is missing.
    pub(crate) fn cost(&self, placement: &Placement, drive: &Drive) -> Option<Cost> {
        let mut cost = Cost::default();
        for rank in 0..placement.world() {
            let [stage_s, hop_s, busy_s] = self.terms(placement, rank, drive)?;
            let stage = &placement.stages[rank];
            cost = cost.and(stage_s, self.busy_s(stage, rank == 0, drive, stage_s)?);
            cost = cost.and(hop_s, busy_s);
        }
        Some(cost)
    }

    /// How long a round keeps a stage busy that takes `stage_s` where rows are wanted.
    pub(crate) fn busy_s(
        &self,
        stage: &Stage,
        is_first: bool,
        drive: &Drive,
        stage_s: f64,
    ) -> Option<f64> {
        let without = Load { wanted: 0.0, ..drive.load };
        match drive.wants_all || !is_first {
            true => Some(stage_s),
            false => self.stage_s(stage, is_first, without),
        }
    }

    /// Of a rank: its stage's time, its hop's, and how long that keeps the link busy. The last hop
    /// carries the wanted rows only.
    fn terms(&self, placement: &Placement, rank: usize, drive: &Drive) -> Option<[f64; 3]> {
        let stage: &Stage = &placement.stages[rank];
        let next = &placement.stages[(rank + 1) % placement.world()];
        let is_last = rank + 1 == placement.world();
        let rows = if is_last { drive.load.wanted } else { drive.load.rows };
        let stage_s = self.stage_s(stage, rank == 0, drive.load)?;
        let [hop_s, busy_s] = self.hop_s(stage.nodes[0], next.nodes[0], rows)?;
        Some([stage_s, hop_s, busy_s])
    }

    /// The objective's time of a placement, the least over its ways of sending.
    pub(crate) fn best_drive(&self, placement: &Placement) -> Option<(f64, Drive)> {
        let drives = Drive::of(self.ask, placement.world());
        let timed = drives
            .into_iter()
            .filter_map(|drive| Some((drive.time_s(self.cost(placement, &drive)?), drive)));
        timed.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The objective's time, seconds: a token's, a prompt's, or a token's of every stream. `None`
    /// where a link is missing.
    pub fn time_s(&self, placement: &Placement) -> Option<f64> {
        self.best_drive(placement).map(|(time_s, _)| time_s)
    }
}

/// What `placement` does; `None` where two of its nodes do not reach each other.
pub fn predict(problem: &Problem<'_>, placement: &Placement) -> Option<Prediction> {
    let ask = problem.ask;
    let time = |drive: Drive| Some(drive.time_s(problem.cost(placement, &drive)?));
    let first = |prompt: u32| {
        let timed = chunks(ask).map(|rows| Some((time(Drive::prompt(prompt, rows))?, rows)));
        timed.collect::<Option<Vec<_>>>()?.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let (prompt_s, chunk_rows) = first(ask.prompt)?;
    let told = PROMPTS.into_iter().filter(|prompt| *prompt <= ask.context);
    let first_token_s = told.map(|prompt| Some((prompt, first(prompt)?.0)));
    let round = |groups| Some((time(Drive::throughput(ask, groups))?, groups));
    let rounds = groups(ask, placement.world()).map(round).collect::<Option<Vec<_>>>()?;
    let (round_s, groups) = rounds.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let (_, drive) = problem.best_drive(placement)?;
    let terms = |rank| Some((rank, problem.terms(placement, rank, &drive)?));
    let terms = (0..placement.world()).map(terms).collect::<Option<Vec<_>>>()?;
    let stages = terms.iter().map(|(rank, [stage_s, ..])| (Bound::Stage(*rank), *stage_s));
    let hops = terms.iter().map(|(rank, [_, hop_s, _])| (Bound::Hop(*rank), *hop_s));
    let (bound, _) = stages.chain(hops).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let memory = |(rank, stage): (usize, &Stage)| problem.memory(stage, rank == 0, stage.nodes[0]);
    Some(Prediction {
        decode_per_s: 1.0 / time(Drive::decode(ask))?,
        throughput_per_s: f64::from(ask.streams) / round_s,
        first_token_s: first_token_s.collect::<Option<_>>()?,
        prompt_s,
        chunk_rows,
        groups,
        memory: placement.stages.iter().enumerate().map(memory).collect(),
        bound,
    })
}
