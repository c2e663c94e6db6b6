//! What a node says of itself, and the links that follow from what nodes measured of each other.

use serde::{Deserialize, Serialize};

use crate::{Link, Links, Node, Path, PlacementError};

/// The form of [`Facts`]; others are measured again.
pub const FACTS_VERSION: u32 = 4;
/// Addresses that a node may listen on.
pub const LISTEN_MAX: usize = 16;
/// Paths that a node may tell of.
pub const PATHS_MAX: usize = 256;
/// Bytes of a row of which the best of several paths is chosen by: a decoded token's, about.
const PATH_BYTES: f64 = 16_384.0;

/// A node as it was measured, of what and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// [`FACTS_VERSION`].
    pub version: u32,
    /// The model's shapes, formats and settings, as a digest: models that share it take the same
    /// times.
    pub model: String,
    /// The engine that measured.
    pub engine: String,
    /// The arithmetic.
    pub arith: u32,
    /// What its rank computes on, as `--device` names it.
    pub device: String,
    /// Compute threads.
    pub threads: usize,
    /// Cores of the machine.
    pub cores: usize,
    /// Free bytes of the disk with the cache; 0 where unknown.
    pub disk_bytes: u64,
    /// When the times were measured, in seconds since 1970.
    pub measured_at: u64,
    /// Where its rank would listen, `host:port`.
    #[serde(default)]
    pub listen: Vec<String>,
    /// Ways from here to others, each with its own date.
    #[serde(default)]
    pub paths: Vec<Path>,
    /// Memory and times.
    pub node: Node,
}

impl Facts {
    /// Refuses what can't be planned with: facts in another form, of another model or arithmetic,
    /// with too many addresses or paths, or beside others of the same name.
    ///
    /// # Errors
    /// `OtherFacts`.
    pub fn check_all(facts: &[Self], model: &str) -> Result<(), PlacementError> {
        for (at, one) in facts.iter().enumerate() {
            let name = &one.node.name;
            let other = |what: &str, expected: String, found: String| {
                Err(PlacementError::OtherFacts {
                    node: name.clone(),
                    what: what.into(),
                    expected,
                    found,
                })
            };
            if one.version != FACTS_VERSION {
                return other("version", FACTS_VERSION.to_string(), one.version.to_string());
            }
            if one.model != model {
                return other("model", model.into(), one.model.clone());
            }
            if one.listen.len() > LISTEN_MAX {
                let most = format!("at most {LISTEN_MAX}");
                return other("listen", most, one.listen.len().to_string());
            }
            if one.paths.len() > PATHS_MAX {
                return other("paths", format!("at most {PATHS_MAX}"), one.paths.len().to_string());
            }
            let numbers =
                |path: &Path| [path.round_trip_s, path.bytes_per_s, path.back_bytes_per_s];
            let is_good = |number: &f64| number.is_finite() && *number >= 0.0;
            if let Some(bad) = one.paths.iter().flat_map(numbers).find(|number| !is_good(number)) {
                return other("paths", "times and rates of 0 or more".into(), bad.to_string());
            }
            if facts[..at].iter().any(|before| before.node.name == *name) {
                return other("name", "one node of a name".into(), "two".into());
            }
        }
        Ok(())
    }

    /// Whether `path` leads to the node of these facts.
    fn is_reached_by(&self, path: &Path) -> bool {
        match &path.node {
            Some(name) => *name == self.node.name,
            None => self.listen.contains(&path.address),
        }
    }

    /// The ways from here to `to` in the order of use, with their links there: of those that were
    /// measured here first, else those that `to` measured, turned round.
    fn ways<'a>(&'a self, to: &'a Self) -> Vec<Path> {
        let mut ways: Vec<Path> =
            self.paths.iter().filter(|path| to.is_reached_by(path)).cloned().collect();
        if ways.is_empty() {
            let back = to.paths.iter().filter(|path| self.is_reached_by(path));
            let turned = |path: &Path| Path {
                address: to.listen.first().cloned().unwrap_or_default(),
                node: Some(to.node.name.clone()),
                bytes_per_s: path.back_bytes_per_s,
                back_bytes_per_s: path.bytes_per_s,
                ..path.clone()
            };
            ways = back.map(turned).collect();
        }
        ways
    }

    /// Where a rank here finds the one on `to`, the best address first.
    pub(crate) fn addresses(&self, to: &Self) -> Vec<String> {
        let mut ways = self.ways(to);
        let mut found = Vec::new();
        while let Some((place, _)) = Link::best(&ways, PATH_BYTES) {
            found.push(ways.remove(place).address);
        }
        for address in &to.listen {
            if !found.contains(address) {
                found.push(address.clone());
            }
        }
        found
    }
}

impl Links {
    /// Links as they were measured, from either end; those that nobody measured are `rest`. Two
    /// nodes whose every path is dead do not reach each other.
    pub fn measured(facts: &[Facts], rest: Option<Link>) -> Self {
        let link = |from: &Facts, to: &Facts| {
            let ways = from.ways(to);
            match ways.is_empty() {
                true => rest,
                false => Link::best(&ways, PATH_BYTES).map(|(_, link)| link),
            }
        };
        let row = |from| facts.iter().map(|to| link(from, to)).collect();
        Self::of_rows(facts.iter().map(row).collect())
    }
}
