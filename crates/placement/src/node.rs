//! What a node is and how long its kernels take.

use serde::{Deserialize, Serialize};

use crate::{Kind, PlacementError};

/// A machine's device, as it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its name; unique.
    pub name: String,
    /// The device in words. Nodes of one group have the same.
    pub device: String,
    /// Memory that a rank may use: what is left after the system's floor.
    pub memory_bytes: u64,
    /// What a rank takes there before it holds any weight: code, runtime, a device's context.
    pub runtime_bytes: u64,
    /// What the endpoint takes there beside the rank, where it serves: the tokenizer's tables.
    #[serde(default)]
    pub endpoint_bytes: u64,
    /// How weights lie there, where pages are large.
    #[serde(default)]
    pub runs: Runs,
    /// Measured times.
    pub costs: Costs,
}

/// Runs of memory that weights fill one after another; the last page of each is filled in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runs {
    /// Bytes of a run; 0 where weights lie without gaps.
    pub bytes: u64,
    /// What stays empty of each, on the average.
    pub gap_bytes: u64,
}

impl Runs {
    /// What stays empty beside so many bytes of weights.
    pub fn gaps_bytes(&self, weight_bytes: u64) -> u64 {
        match self.bytes {
            0 => 0,
            bytes => weight_bytes.div_ceil(bytes) * self.gap_bytes,
        }
    }
}

/// Times of one layer of each kind, and of the ends, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// A layer of attention.
    pub attention: Curve,
    /// A recurrent layer; empty for models without.
    #[serde(default)]
    pub recurrent: Curve,
    /// Final norm and head of that many rows; the context has no part in it.
    pub ends: Curve,
    /// What a round costs beside its layers: plan, wake-ups, copies.
    #[serde(default)]
    pub round_s: f64,
    /// How much faster few layers are, by what they weigh; empty where they are not.
    #[serde(default)]
    pub stacks: Vec<Stack>,
}

/// Layers that are run one after another, again and again: the less they weigh, the more of them
/// caches still hold when a round comes to them anew.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    /// What they weigh.
    pub bytes: u64,
    /// What a row takes of the time that it would take in layers of any weight.
    pub part: f64,
}

impl Costs {
    /// One layer's time.
    pub fn layer_s(&self, kind: Kind, rows: f64, context: f64) -> f64 {
        match kind {
            Kind::Attention => self.attention.at(rows, context),
            Kind::Recurrent => self.recurrent.at(rows, context),
        }
    }

    /// The part of a row's time that layers of so many bytes take: on the line between what was
    /// measured, of the outermost beyond it.
    pub fn part(&self, bytes: u64) -> f64 {
        let (Some(first), Some(last)) = (self.stacks.first(), self.stacks.last()) else {
            return 1.0;
        };
        let at = bytes.clamp(first.bytes, last.bytes.max(first.bytes));
        let points = self.stacks.iter().map(|stack| (stack.bytes as f64, stack.part));
        let part = line(points, at as f64);
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 1.0 }
    }
}

/// A measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Tokens before the rows.
    pub context: u32,
    /// Rows of the round.
    pub rows: u32,
    /// How long it took.
    pub time_s: f64,
}

/// Times by rows and context: straight lines between what was measured, and on beyond it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Curve(Vec<Point>);

impl Curve {
    /// Of points in any order; of two at one place the later counts.
    ///
    /// # Errors
    /// A time that is negative or no number, no rows, or a context with other row counts than the
    /// rest: `what` names the curve.
    pub fn new(what: &str, mut points: Vec<Point>) -> Result<Self, PlacementError> {
        let bad = |point: &Point| !point.time_s.is_finite() || point.time_s < 0.0;
        if let Some(point) = points.iter().find(|point| bad(point) || point.rows == 0) {
            let found = format!("{} s for {} rows", point.time_s, point.rows);
            return Err(PlacementError::BadCost { what: what.into(), found });
        }
        points.reverse();
        points.sort_by_key(|point| (point.context, point.rows));
        points.dedup_by_key(|point| (point.context, point.rows));
        let rows = |context| points.iter().filter(move |p| p.context == context).map(|p| p.rows);
        if let Some(first) = points.first().map(|point| point.context) {
            for point in &points {
                if !rows(point.context).eq(rows(first)) {
                    let found = format!("other row counts at context {}", point.context);
                    return Err(PlacementError::BadCost { what: what.into(), found });
                }
            }
        }
        Ok(Self(points))
    }

    /// The measured points, by context and rows.
    pub fn points(&self) -> &[Point] {
        &self.0
    }

    /// The time at a place; 0 of an empty curve, never negative.
    pub fn at(&self, rows: f64, context: f64) -> f64 {
        let contexts: Vec<&[Point]> = self.0.chunk_by(|a, b| a.context == b.context).collect();
        let by_rows = |points: &[Point]| {
            line(points.iter().map(|point| (f64::from(point.rows), point.time_s)), rows)
        };
        let by_context =
            contexts.iter().map(|points| (f64::from(points[0].context), by_rows(points)));
        line(by_context, context).max(0.0)
    }
}

/// The value at `x` on the lines through `points`, by ascending x; the outer lines go on.
fn line(points: impl Iterator<Item = (f64, f64)>, x: f64) -> f64 {
    let points: Vec<_> = points.collect();
    match points[..] {
        [] => 0.0,
        [(_, y)] => y,
        _ => {
            let above = points.partition_point(|point| point.0 < x).clamp(1, points.len() - 1);
            let ((x0, y0), (x1, y1)) = (points[above - 1], points[above]);
            y0 + (x - x0) * (y1 - y0) / (x1 - x0)
        }
    }
}
