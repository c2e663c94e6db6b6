//! The axes of a check and the cells that cover them: every combination, or every pair of values.

use anyhow::{Result, bail, ensure};
use arith::sample::mix;
use wire::layout::Layout;

/// Most cells of one check.
pub const CELLS_MAX: usize = 10_000;

/// One layout as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Ranges.
    pub layout: Layout,
    /// Boundary through the codec after every layer.
    pub loop_mode: bool,
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.loop_mode { write!(f, "loop") } else { self.layout.fmt(f) }
    }
}

/// Reads layouts: ranges, a number for an even world, `rN` for N random ones, `loop`.
///
/// # Errors
/// A layout that does not fit the model, by name.
pub fn placements(texts: &[String], layers: u32, seed: u64) -> Result<Vec<Placement>> {
    let mut found = Vec::new();
    let mut random = SplitMix(seed);
    for text in texts {
        let text = text.trim();
        if text == "loop" {
            found.push(Placement { layout: Layout::even(layers, 1)?, loop_mode: true });
        } else if let Some(count) = text.strip_prefix('r').and_then(|n| n.parse::<u32>().ok()) {
            ensure!(count <= 1000, "{text}: at most r1000");
            for _ in 0..count {
                found.push(Placement {
                    layout: random_layout(layers, &mut random)?,
                    loop_mode: false,
                });
            }
        } else if let Ok(world) = text.parse::<u32>() {
            found.push(Placement { layout: Layout::even(layers, world)?, loop_mode: false });
        } else if text.contains(':') {
            let layout = Layout::parse(text)?;
            layout.check(layers)?;
            found.push(Placement { layout, loop_mode: false });
        } else {
            bail!("{text}: expected ranges like 0:10,10:{layers}, a number of ranks, rN or loop");
        }
    }
    ensure!(!found.is_empty(), "no layout to check");
    Ok(found)
}

/// 2 to 5 ranks with random cuts.
fn random_layout(layers: u32, random: &mut SplitMix) -> Result<Layout> {
    let world = 2 + random.below(4.min(layers.saturating_sub(1)));
    let mut cuts = std::collections::BTreeSet::new();
    while cuts.len() + 1 < world as usize {
        cuts.insert(1 + random.below(layers - 1));
    }
    let edges: Vec<u32> = std::iter::once(0).chain(cuts).chain([layers]).collect();
    Ok(Layout::new(edges.windows(2).map(|e| e[0]..e[1]).collect())?)
}

/// A small generator for layouts and prompts: the same seed gives the same check everywhere.
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next value.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A value below `limit` (0 for a limit of 0).
    pub fn below(&mut self, limit: u32) -> u32 {
        if limit == 0 { 0 } else { (self.next() % u64::from(limit)) as u32 }
    }
}

/// Indices into each axis, every combination; axes' sizes in `sizes`.
pub fn every(sizes: &[usize]) -> Vec<Vec<usize>> {
    sizes.iter().fold(vec![Vec::new()], |cells, &size| {
        cells
            .iter()
            .flat_map(|cell| {
                (0..size).map(move |value| {
                    let mut longer = cell.clone();
                    longer.push(value);
                    longer
                })
            })
            .collect()
    })
}

/// Indices into each axis so that any two values of two axes meet in some cell: each new cell is
/// the best of a few greedy tries.
pub fn pairwise(sizes: &[usize]) -> Vec<Vec<usize>> {
    let mut missing = std::collections::BTreeSet::new();
    for (a, &size_a) in sizes.iter().enumerate() {
        for (b, &size_b) in sizes.iter().enumerate().skip(a + 1) {
            missing.extend((0..size_a).flat_map(|i| (0..size_b).map(move |j| (a, i, b, j))));
        }
    }
    let mut random = SplitMix(7);
    let mut cells = Vec::new();
    let covered = |cell: &[usize], missing: &std::collections::BTreeSet<_>| {
        let pairs = pairs_of(cell);
        pairs.iter().filter(|pair| missing.contains(*pair)).count()
    };
    while let Some(&(a, i, b, j)) = missing.iter().next() {
        let mut best: Option<(usize, Vec<usize>)> = None;
        for _ in 0..30 {
            let mut cell: Vec<usize> =
                sizes.iter().map(|&size| random.below(size as u32) as usize).collect();
            (cell[a], cell[b]) = (i, j);
            let count = covered(&cell, &missing);
            if best.as_ref().is_none_or(|(most, _)| count > *most) {
                best = Some((count, cell));
            }
        }
        if let Some((_, cell)) = best {
            for pair in pairs_of(&cell) {
                missing.remove(&pair);
            }
            cells.push(cell);
        }
    }
    cells
}

fn pairs_of(cell: &[usize]) -> Vec<(usize, usize, usize, usize)> {
    let mut pairs = Vec::new();
    for (a, &i) in cell.iter().enumerate() {
        pairs.extend(cell.iter().enumerate().skip(a + 1).map(|(b, &j)| (a, i, b, j)));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairwise_meets_every_pair_with_far_fewer_cells() {
        let sizes = [13, 2, 4, 2, 2];
        let cells = pairwise(&sizes);
        for (a, &size_a) in sizes.iter().enumerate() {
            for (b, &size_b) in sizes.iter().enumerate().skip(a + 1) {
                for (i, j) in (0..size_a).flat_map(|i| (0..size_b).map(move |j| (i, j))) {
                    assert!(cells.iter().any(|c| c[a] == i && c[b] == j), "{a}={i} {b}={j}");
                }
            }
        }
        assert!(cells.len() < every(&sizes).len() / 4, "{} cells", cells.len());
    }

    #[test]
    fn random_layouts_fit_the_model_and_repeat() {
        let texts = ["r20".to_owned()];
        let found = placements(&texts, 30, 5).expect("layouts");
        assert_eq!(found.len(), 20);
        for placement in &found {
            placement.layout.check(30).expect("fits");
        }
        assert_eq!(found, placements(&texts, 30, 5).expect("layouts"));
    }

    #[test]
    fn layouts_are_refused_by_name() {
        let text = "0:10,11:30".to_owned();
        let error = placements(&[text], 30, 1).expect_err("a gap").to_string();
        assert!(error.contains("LayoutGap"), "{error}");
        assert!(placements(&["x".to_owned()], 30, 1).is_err());
    }
}
