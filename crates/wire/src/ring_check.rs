//! What rank 0 requires of the ring's descriptions before a round runs.

use arith::attention::KvDtype;
use arith::base::{Rank, pages_of};

use crate::control::Agree;
use crate::describe::{Describe, Digest, Ends, RowDtype, Shapes};
use crate::error::{Fault, WireError};
use crate::fingerprint::Fields;
use crate::hello::hex;
use crate::layout::Layout;

/// The model and the ring as rank 0 knows them.
#[derive(Clone, Debug)]
pub struct Expected<'a> {
    /// Who holds what.
    pub layout: &'a Layout,
    /// Layers of the model.
    pub layers: u32,
    /// Version of the engine.
    pub engine: &'a str,
    /// Number of the arithmetic.
    pub arith: u32,
    /// Whether ranks may compute with other arithmetics.
    pub mixed: bool,
    /// Width of a boundary row's plane.
    pub hidden: u32,
    /// Residual planes a row.
    pub planes: u8,
    /// How rows travel.
    pub row_dtype: RowDtype,
    /// How KV is kept.
    pub kv: KvDtype,
    /// Positions that a stream must have room for.
    pub context_min: u32,
    /// Streams that must have room at once.
    pub streams_min: u32,
    /// A digest a layer of the model; empty where rank 0 has no manifest.
    pub layer_digests: &'a [Digest],
    /// The ends' digests; `None` where rank 0 has no manifest.
    pub ends: Option<Ends>,
}

/// Checks the descriptions, in rank order, against `expected`.
///
/// # Errors
/// The first of, rank by rank: `NotDescribed`, `OtherWorld`, `OtherVersion`, `OtherArith`,
/// `OtherBoundary`, `OtherKv`; then `LayoutGap`, `LayoutOverlap`, `LayoutOverrun` where the ranges
/// do not cover the model and `OtherRange` where they are not the layout's; then, rank by rank,
/// `OtherTensor`, `TooFewPages`, `TooFewStates`.
pub fn check_ring(described: &[Describe], expected: &Expected<'_>) -> Result<(), WireError> {
    let world = expected.layout.world();
    for rank in (0..world).map(Rank) {
        match described.get(rank.0 as usize) {
            Some(one) if one.rank == rank => check_kind(one, expected).map_err(|e| e.at(rank))?,
            Some(one) => {
                let fault = Fault::new("describe.rank", rank, one.rank);
                return Err(WireError::NotDescribed(fault).at(rank));
            }
            None => {
                let fault = Fault::new("describe", "a description", "none");
                return Err(WireError::NotDescribed(fault).at(rank));
            }
        }
    }
    if described.len() > world as usize {
        let fault = Fault::new("describe.world", world, described.len());
        return Err(WireError::OtherWorld(fault));
    }
    Layout::new(described.iter().map(|one| one.range.clone()).collect())?.check(expected.layers)?;
    for one in described {
        let range = expected.layout.range(one.rank);
        if one.range != range {
            let show = |range: &std::ops::Range<u32>| format!("{}:{}", range.start, range.end);
            let fault = Fault::new("describe.range", show(&range), show(&one.range));
            return Err(WireError::OtherRange(fault).at(one.rank));
        }
    }
    described.iter().try_for_each(|one| {
        check_tensors(one, expected)
            .and_then(|()| check_capacity(one, expected))
            .map_err(|e| e.at(one.rank))
    })
}

/// The shapes that every rank can do.
///
/// # Errors
/// `NotDescribed` for no descriptions.
pub fn smallest_shapes(described: &[Describe]) -> Result<Shapes, WireError> {
    described
        .iter()
        .map(|one| one.shapes)
        .reduce(Shapes::min)
        .ok_or_else(|| WireError::NotDescribed(Fault::new("describe", "a description", "none")))
}

impl Agree {
    /// What rank 0 tells all after [`check_ring`]: the smallest shapes, cut to `asked`.
    ///
    /// # Errors
    /// `NotDescribed` for no descriptions.
    pub fn of(
        described: &[Describe],
        asked: Shapes,
        depth: u32,
        settings: Fields,
    ) -> Result<Self, WireError> {
        let shapes = smallest_shapes(described)?.min(asked);
        Ok(Self { shapes, depth, settings })
    }
}

fn check_kind(one: &Describe, expected: &Expected<'_>) -> Result<(), WireError> {
    let world = expected.layout.world();
    if one.world != world {
        return Err(WireError::OtherWorld(Fault::new("describe.world", world, one.world)));
    }
    if one.engine != expected.engine {
        let fault = Fault::new("describe.engine", expected.engine, &one.engine);
        return Err(WireError::OtherVersion(fault));
    }
    if one.arith != expected.arith && !expected.mixed {
        let fault = Fault::new("describe.arith", expected.arith, one.arith);
        return Err(WireError::OtherArith(fault));
    }
    if one.hidden != expected.hidden {
        let fault = Fault::new("describe.hidden", expected.hidden, one.hidden);
        return Err(WireError::OtherBoundary(fault));
    }
    if one.planes != expected.planes {
        let fault = Fault::new("describe.planes", expected.planes, one.planes);
        return Err(WireError::OtherBoundary(fault));
    }
    if one.row_dtype != expected.row_dtype {
        let (ours, theirs) = (expected.row_dtype.name(), one.row_dtype.name());
        return Err(WireError::OtherBoundary(Fault::new("describe.row_dtype", ours, theirs)));
    }
    if one.kv != expected.kv {
        let fault = Fault::new("describe.kv", expected.kv.name(), one.kv.name());
        return Err(WireError::OtherKv(fault));
    }
    Ok(())
}

fn check_tensors(one: &Describe, expected: &Expected<'_>) -> Result<(), WireError> {
    let other = |field: String, ours: Option<&Digest>, theirs: Option<&Digest>| {
        let show = |digest: Option<&Digest>| digest.map_or("none".into(), |d| hex(&d[..8]));
        Err(WireError::OtherTensor(Fault::new(field, show(ours), show(theirs))))
    };
    if !expected.layer_digests.is_empty() {
        for (at, layer) in one.range.clone().enumerate() {
            let (ours, theirs) = (expected.layer_digests.get(layer as usize), one.layers.get(at));
            if ours != theirs {
                return other(format!("describe.layer {layer}"), ours, theirs);
            }
        }
    }
    if one.rank != Rank(0) {
        return Ok(());
    }
    if let Some(ours) = &expected.ends {
        let theirs = one.ends.as_ref();
        if Some(&ours.embedding) != theirs.map(|ends| &ends.embedding) {
            let found = theirs.map(|ends| &ends.embedding);
            return other("describe.embedding".into(), Some(&ours.embedding), found);
        }
        if Some(&ours.head) != theirs.map(|ends| &ends.head) {
            let found = theirs.map(|ends| &ends.head);
            return other("describe.head".into(), Some(&ours.head), found);
        }
    }
    Ok(())
}

fn check_capacity(one: &Describe, expected: &Expected<'_>) -> Result<(), WireError> {
    let pages = pages_of(expected.context_min);
    if one.shapes.pages < pages {
        let fault = Fault::new("describe.pages", format!("{pages} or more"), one.shapes.pages);
        return Err(WireError::TooFewPages(fault));
    }
    if one.states < expected.streams_min {
        let least = format!("{} or more", expected.streams_min);
        return Err(WireError::TooFewStates(Fault::new("describe.states", least, one.states)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const DIGESTS: [Digest; 6] = [[0; 32], [1; 32], [2; 32], [3; 32], [4; 32], [5; 32]];
    const ENDS: Ends = Ends { embedding: [8; 32], head: [9; 32] };

    fn describe(rank: u32) -> Describe {
        Describe {
            rank: Rank(rank),
            world: 3,
            engine: "0.1.0".into(),
            backend: "cpu".into(),
            arith: 1,
            device: "d".into(),
            range: 2 * rank..2 * rank + 2,
            hidden: 64,
            planes: 1,
            row_dtype: RowDtype::F32,
            kv: KvDtype::F16,
            shapes: Shapes {
                chunk_rows_max: 64,
                round_rows_max: 128,
                streams_max: 8,
                context_max: 1000,
                pages: 16,
            },
            states: 8,
            taps: vec![],
            drafter_width: 0,
            layers: DIGESTS[2 * rank as usize..][..2].to_vec(),
            ends: (rank == 0).then_some(ENDS),
            layer_us: None,
        }
    }

    fn ring() -> Vec<Describe> {
        (0..3).map(describe).collect()
    }

    fn checked(described: &[Describe], change: impl FnOnce(&mut Expected<'_>)) -> String {
        let layout = Layout::parse("0:2,2:4,4:6").unwrap();
        let mut expected = Expected {
            layout: &layout,
            layers: 6,
            engine: "0.1.0",
            arith: 1,
            mixed: false,
            hidden: 64,
            planes: 1,
            row_dtype: RowDtype::F32,
            kv: KvDtype::F16,
            context_min: 1000,
            streams_min: 8,
            layer_digests: &DIGESTS,
            ends: Some(ENDS),
        };
        change(&mut expected);
        let verdict = check_ring(described, &expected);
        verdict.map_or_else(|error| error.to_string(), |()| "ok".into())
    }

    /// The verdict on the ring after a change of rank 1's description.
    fn refused(change: impl FnOnce(&mut Describe)) -> String {
        let mut ring = ring();
        change(&mut ring[1]);
        checked(&ring, |_| ())
    }

    #[test]
    fn a_ring_as_rank_0_knows_it_passes() {
        assert_eq!(checked(&ring(), |_| ()), "ok");
    }

    #[test]
    fn another_kind_of_rank_is_refused_by_field() {
        let version = "OtherVersion: rank 1: describe.engine: expected 0.1.0, found 0.2.0";
        assert_eq!(refused(|d| d.engine = "0.2.0".into()), version);
        let arith = "OtherArith: rank 1: describe.arith: expected 1, found 2";
        assert_eq!(refused(|d| d.arith = 2), arith);
        let hidden = "OtherBoundary: rank 1: describe.hidden: expected 64, found 65";
        assert_eq!(refused(|d| d.hidden = 65), hidden);
        let planes = "OtherBoundary: rank 1: describe.planes: expected 1, found 2";
        assert_eq!(refused(|d| d.planes = 2), planes);
        let kv = "OtherKv: rank 1: describe.kv: expected f16, found f32";
        assert_eq!(refused(|d| d.kv = KvDtype::F32), kv);
        let world = "OtherWorld: rank 1: describe.world: expected 3, found 4";
        assert_eq!(refused(|d| d.world = 4), world);
    }

    #[test]
    fn another_arithmetic_passes_where_a_mixed_placement_was_asked_for() {
        let mut ring = ring();
        ring[2].arith = 2;
        assert_eq!(checked(&ring, |expected| expected.mixed = true), "ok");
    }

    #[test]
    fn ranges_that_do_not_tile_the_model_are_refused_by_rank() {
        let gap = "LayoutGap: rank 1: layout.first: expected 2, found 3";
        assert_eq!(refused(|d| d.range = 3..4), gap);
        let overlap = "LayoutOverlap: rank 1: layout.first: expected 2, found 1";
        assert_eq!(refused(|d| d.range = 1..4), overlap);
        let short = "LayoutGap: rank 2: layout.first: expected 3, found 4";
        assert_eq!(refused(|d| d.range = 2..3), short);
        let overrun = "LayoutOverrun: rank 1: layout.end: expected at most 6, found 7";
        assert_eq!(refused(|d| d.range = 2..7), overrun);
    }

    #[test]
    fn ranges_that_tile_the_model_otherwise_are_refused() {
        let mut ring = ring();
        (ring[1].range, ring[2].range) = (2..5, 5..6);
        let other = "OtherRange: rank 1: describe.range: expected 2:4, found 2:5";
        assert_eq!(checked(&ring, |_| ()), other);
    }

    #[test]
    fn another_tensor_is_refused_by_layer_or_end() {
        let layer = refused(|d| d.layers[1] = [7; 32]);
        assert!(layer.starts_with("OtherTensor: rank 1: describe.layer 3: expected 0303"));
        let missing = refused(|d| d.layers.truncate(1));
        assert!(missing.ends_with("found none"), "{missing}");
        let mut ring = ring();
        ring[0].ends = Some(Ends { head: [7; 32], ..ENDS });
        let head = checked(&ring, |_| ());
        assert!(head.starts_with("OtherTensor: rank 0: describe.head: expected 0909"), "{head}");
        ring[0].ends = None;
        let none = checked(&ring, |_| ());
        assert!(none.starts_with("OtherTensor: rank 0: describe.embedding"), "{none}");
    }

    #[test]
    fn too_little_room_is_refused() {
        let pages = "TooFewPages: rank 1: describe.pages: expected 16 or more, found 15";
        assert_eq!(refused(|d| d.shapes.pages = 15), pages);
        let states = "TooFewStates: rank 1: describe.states: expected 8 or more, found 7";
        assert_eq!(refused(|d| d.states = 7), states);
    }

    #[test]
    fn a_silent_rank_is_named() {
        let silent = "NotDescribed: rank 2: describe: expected a description, found none";
        assert_eq!(checked(&ring()[..2], |_| ()), silent);
        let mut swapped = ring();
        swapped.swap(1, 2);
        let named = "NotDescribed: rank 1: describe.rank: expected 1, found 2";
        assert_eq!(checked(&swapped, |_| ()), named);
        let mut more = ring();
        more.push(more[2].clone());
        assert_eq!(checked(&more, |_| ()), "OtherWorld: describe.world: expected 3, found 4");
    }

    #[test]
    fn the_ring_agrees_on_the_smallest_of_each_shape() {
        let mut ring = ring();
        ring[1].shapes.pages = 9;
        ring[2].shapes.chunk_rows_max = 32;
        let asked = Shapes { streams_max: 4, ..ring[0].shapes };
        let agree = Agree::of(&ring, asked, 2, Fields::new()).unwrap();
        let least = Shapes { pages: 9, chunk_rows_max: 32, streams_max: 4, ..ring[0].shapes };
        assert_eq!((agree.shapes, agree.depth), (least, 2));
    }
}
