//! What rank 0 requires of the ring's descriptions before a round runs.

use arith::attention::KvDtype;
use arith::base::{Rank, TILE_KEYS};

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
        Ok(Self {
            shapes,
            depth,
            settings,
        })
    }
}

fn check_kind(one: &Describe, expected: &Expected<'_>) -> Result<(), WireError> {
    let world = expected.layout.world();
    if one.world != world {
        return Err(WireError::OtherWorld(Fault::new(
            "describe.world",
            world,
            one.world,
        )));
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
        return Err(WireError::OtherBoundary(Fault::new(
            "describe.row_dtype",
            ours,
            theirs,
        )));
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
        Err(WireError::OtherTensor(Fault::new(
            field,
            show(ours),
            show(theirs),
        )))
    };
    if !expected.layer_digests.is_empty() {
        for (at, layer) in one.range.clone().enumerate() {
            let (ours, theirs) = (
                expected.layer_digests.get(layer as usize),
                one.layers.get(at),
            );
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
    let pages = expected.context_min.div_ceil(TILE_KEYS as u32);
    if one.shapes.pages < pages {
        let fault = Fault::new(
            "describe.pages",
            format!("{pages} or more"),
            one.shapes.pages,
        );
        return Err(WireError::TooFewPages(fault));
    }
    if one.states < expected.streams_min {
        let least = format!("{} or more", expected.streams_min);
        return Err(WireError::TooFewStates(Fault::new(
            "describe.states",
            least,
            one.states,
        )));
    }
    Ok(())
}
