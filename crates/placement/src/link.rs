//! What lies between two nodes.

use serde::{Deserialize, Serialize};

use crate::PlacementError;

/// A way from one node to another, as it was measured over a stage's own port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Where the other end listens.
    pub address: String,
    /// The node there, where it is known; else the one that says it listens there.
    #[serde(default)]
    pub node: Option<String>,
    /// There and back.
    pub round_trip_s: f64,
    /// Bytes a second there; 0 where none came through.
    pub bytes_per_s: f64,
    /// Bytes a second from there.
    pub back_bytes_per_s: f64,
    /// When, in seconds since 1970.
    #[serde(default)]
    pub measured_at: u64,
}

/// The best way between two nodes, one way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Half of a round trip.
    pub latency_s: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
}

impl Link {
    /// Time until the last of `bytes` is there.
    pub fn time_s(&self, bytes: f64) -> f64 {
        self.latency_s + bytes / self.bytes_per_s
    }

    /// The path that carries `bytes` soonest, with its place; the first address of equal ones, so
    /// that both ends choose the same. Paths without a rate are dead.
    pub fn best(paths: &[Path], bytes: f64) -> Option<(usize, Self)> {
        let link = |path: &Path| Self {
            latency_s: path.round_trip_s / 2.0,
            bytes_per_s: path.bytes_per_s,
        };
        let alive = |path: &&Path| {
            path.bytes_per_s > 0.0 && path.bytes_per_s.is_finite() && path.round_trip_s.is_finite()
        };
        let soonest = paths.iter().filter(alive).min_by(|a, b| {
            let times = link(a).time_s(bytes).total_cmp(&link(b).time_s(bytes));
            times.then_with(|| a.address.cmp(&b.address))
        })?;
        let place = paths.iter().position(|path| std::ptr::eq(path, soonest))?;
        Some((place, link(soonest)))
    }
}

/// Links between nodes: `[from][to]`, `None` where two nodes do not reach each other. What stands
/// on the diagonal is between two ranks of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Links(Vec<Vec<Option<Link>>>);

impl Links {
    /// Of a square table.
    ///
    /// # Errors
    /// Another number of rows or columns than nodes, a rate of 0 or less, a latency below 0, or
    /// either no number.
    pub fn new(nodes: usize, table: Vec<Vec<Option<Link>>>) -> Result<Self, PlacementError> {
        let bad = |link: &Link| {
            !(link.latency_s >= 0.0 && link.latency_s.is_finite() && link.bytes_per_s > 0.0)
        };
        if table.len() != nodes || table.iter().any(|row| row.len() != nodes) {
            return Err(PlacementError::BadLinks {
                found: format!("not {nodes} rows of {nodes} links"),
            });
        }
        match table.iter().flatten().flatten().find(|link| bad(link)) {
            Some(link) => Err(PlacementError::BadLinks { found: format!("{link:?}") }),
            None => Ok(Self(table)),
        }
    }

    /// Of a square table of links that were checked where they were read.
    pub(crate) fn of_rows(rows: Vec<Vec<Option<Link>>>) -> Self {
        Self(rows)
    }

    /// Puts a link, or none, between two nodes, both ways.
    ///
    /// # Errors
    /// As [`Links::new`]'s; a node that there is not.
    pub fn put(&mut self, a: usize, b: usize, link: Option<Link>) -> Result<(), PlacementError> {
        let count = self.0.len();
        if a >= count || b >= count {
            return Err(PlacementError::BadLinks { found: format!("{a} and {b} of {count}") });
        }
        let mut rows = self.0.clone();
        (rows[a][b], rows[b][a]) = (link, link);
        *self = Self::new(count, rows)?;
        Ok(())
    }

    /// The same link between any two of `nodes`.
    pub fn alike(nodes: usize, link: Link) -> Self {
        Self(vec![vec![Some(link); nodes]; nodes])
    }

    /// The link from one node to another.
    pub fn get(&self, from: usize, to: usize) -> Option<Link> {
        *self.0.get(from)?.get(to)?
    }
}
