//! What a rank tells the ring about itself at boot.

use std::ops::Range;

use arith::attention::KvDtype;
use arith::base::Rank;

use crate::bytes::{Tag, Take, check_rank, put_prefix, put_text, take_prefix};
use crate::error::{Fault, WireError};
use crate::limit::{LAYERS_MAX, NAME_BYTES_MAX, PLANES_MAX, ROUND_ROWS_MAX, TAPS_MAX};

/// The number, where an arithmetic's stands, of a device's own function: it is like no other's, and
/// the device's words say which rule it breaks.
pub const ARITH_OWN: u32 = 0;

/// A SHA-256.
pub type Digest = [u8; 32];

/// How a boundary row's values travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RowDtype {
    /// binary32.
    #[default]
    F32 = 1,
}

impl RowDtype {
    /// The name in messages and the fingerprint.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
        }
    }
}

/// The ends of the model, which rank 0 holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Digest over the embedding's tensors.
    pub embedding: Digest,
    /// Digest over the final norm's and the head's tensors.
    pub head: Digest,
}

/// The shapes that a rank can do, or that all agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shapes {
    /// Most prompt rows of one stream in a round.
    pub chunk_rows_max: u32,
    /// Most rows of a round.
    pub round_rows_max: u32,
    /// Most streams at once.
    pub streams_max: u32,
    /// Most positions of a stream.
    pub context_max: u32,
    /// KV pages of 64 positions.
    pub pages: u32,
}

/// A rank's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Describe {
    /// The rank.
    pub rank: Rank,
    /// Ranks of the ring.
    pub world: u32,
    /// Version of the engine.
    pub engine: String,
    /// Backend: `cpu`, `cuda`, ...
    pub backend: String,
    /// Number of the arithmetic, or [`ARITH_OWN`].
    pub arith: u32,
    /// The device, for people.
    pub device: String,
    /// Layers held, half-open.
    pub range: Range<u32>,
    /// Width of a boundary row's plane.
    pub hidden: u32,
    /// Residual planes a row.
    pub planes: u8,
    /// How rows travel.
    pub row_dtype: RowDtype,
    /// How KV is kept.
    pub kv: KvDtype,
    /// What the rank can do; `pages` is its capacity.
    pub shapes: Shapes,
    /// Capacity in recurrent states; the most streams, where a family has none.
    pub states: u32,
    /// Layers whose output a drafter taps here, ascending, inside `range`.
    pub taps: Vec<u32>,
    /// Width of a drafter's partial sums; 0 without taps.
    pub drafter_width: u32,
    /// A digest a layer of `range`: SHA-256 over its tensors' digests in name order.
    pub layers: Vec<Digest>,
    /// Rank 0's ends.
    pub ends: Option<Ends>,
    /// Measured microseconds a layer for one row, when known.
    pub layer_us: Option<u32>,
}

impl Shapes {
    pub(crate) fn put_into(&self, out: &mut Vec<u8>) {
        for value in [
            self.chunk_rows_max,
            self.round_rows_max,
            self.streams_max,
            self.context_max,
            self.pages,
        ] {
            out.extend(value.to_le_bytes());
        }
    }

    /// All at least 1; the round within [`ROUND_ROWS_MAX`].
    pub(crate) fn take_from(take: &mut Take<'_>) -> Result<Self, WireError> {
        let mut value = |field| match take.u32(field)? {
            0 => Err(WireError::BadValue(take.fault(field, "1 or more", 0))),
            value => Ok(value),
        };
        let shapes = Self {
            chunk_rows_max: value("chunk_rows_max")?,
            round_rows_max: value("round_rows_max")?,
            streams_max: value("streams_max")?,
            context_max: value("context_max")?,
            pages: value("pages")?,
        };
        let rows = u64::from(shapes.round_rows_max);
        take.at_most("round_rows_max", u64::from(ROUND_ROWS_MAX), rows)?;
        Ok(shapes)
    }

    /// The smaller of each.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            chunk_rows_max: self.chunk_rows_max.min(other.chunk_rows_max),
            round_rows_max: self.round_rows_max.min(other.round_rows_max),
            streams_max: self.streams_max.min(other.streams_max),
            context_max: self.context_max.min(other.context_max),
            pages: self.pages.min(other.pages),
        }
    }
}

impl Describe {
    /// The payload, prefix included.
    ///
    /// # Errors
    /// Those that [`Describe::decode`] would raise at the other end.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut out = Vec::with_capacity(256 + 32 * self.layers.len());
        put_prefix(&mut out, Tag::Describe);
        for value in
            [self.rank.0, self.world, self.arith, self.range.start, self.range.end, self.hidden]
        {
            out.extend(value.to_le_bytes());
        }
        let kv = match self.kv {
            KvDtype::F16 => 1,
            KvDtype::F32 => 2,
        };
        let ends = u8::from(self.ends.is_some());
        out.extend([self.planes, self.row_dtype as u8, kv, ends]);
        self.shapes.put_into(&mut out);
        let taps = u32::try_from(self.taps.len()).unwrap_or(u32::MAX);
        for value in [self.states, self.drafter_width, taps, self.layer_us.unwrap_or(0)] {
            out.extend(value.to_le_bytes());
        }
        for (field, text) in [
            ("describe.engine", &self.engine),
            ("describe.backend", &self.backend),
            ("describe.device", &self.device),
        ] {
            put_text(&mut out, field, text, NAME_BYTES_MAX)?;
        }
        out.extend(self.taps.iter().flat_map(|tap| tap.to_le_bytes()));
        out.extend(self.layers.iter().flatten());
        if let Some(ends) = &self.ends {
            out.extend(ends.embedding);
            out.extend(ends.head);
        }
        // Reading it back applies every rule once, in one place; it is sent once a boot.
        Self::decode(&out)?;
        Ok(out)
    }

    /// Reads the payload, prefix included.
    ///
    /// # Errors
    /// `BadRank`, `BadValue`, `BadText`, `TooLarge`, `Truncated`, `Trailing` and the prefix's.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("describe", payload);
        match take_prefix(&mut take)? {
            Tag::Describe => Self::take_from(take),
            other => Err(WireError::OtherMessage(take.fault("message", "describe", other.name()))),
        }
    }

    pub(crate) fn take_from(mut take: Take<'_>) -> Result<Self, WireError> {
        let (rank, world) = (take.u32("rank")?, take.u32("world")?);
        check_rank("describe.rank", rank, world)?;
        let arith = take.u32("arith")?;
        let range = take.u32("first")?..take.u32("end")?;
        take.at_most("end", u64::from(LAYERS_MAX), u64::from(range.end))?;
        if range.is_empty() {
            let found = format!("{}:{}", range.start, range.end);
            return Err(WireError::BadValue(take.fault("range", "at least one layer", found)));
        }
        let hidden = take.u32("hidden")?;
        let planes = take.u8("planes")?;
        take.at_most("planes", u64::from(PLANES_MAX), u64::from(planes))?;
        if hidden == 0 || planes == 0 {
            return Err(WireError::BadValue(take.fault("hidden", "1 or more", 0)));
        }
        let (row_dtype, kv) = take_dtypes(&mut take)?;
        let has_ends = match take.u8("ends")? {
            0 => false,
            1 => true,
            other => return Err(WireError::BadValue(take.fault("ends", "0 or 1", other))),
        };
        let shapes = Shapes::take_from(&mut take)?;
        let states = take.u32("states")?;
        let drafter_width = take.u32("drafter_width")?;
        let tap_count = take.u32("taps")?;
        let layer_us = Some(take.u32("layer_us")?).filter(|&us| us > 0);
        let engine = take.text("engine", NAME_BYTES_MAX)?.to_owned();
        let backend = take.text("backend", NAME_BYTES_MAX)?.to_owned();
        let device = take.text("device", NAME_BYTES_MAX)?.to_owned();
        let taps = take_taps(&mut take, tap_count, &range)?;
        take.fits("layers", 32 * range.len())?;
        let layers = range.clone().map(|_| take.array("layers")).collect::<Result<_, _>>()?;
        let ends = if has_ends {
            let (embedding, head) = (take.array("embedding")?, take.array("head")?);
            Some(Ends { embedding, head })
        } else {
            None
        };
        take.end()?;
        Ok(Self {
            rank: Rank(rank),
            world,
            engine,
            backend,
            arith,
            device,
            range,
            hidden,
            planes,
            row_dtype,
            kv,
            shapes,
            states,
            taps,
            drafter_width,
            layers,
            ends,
            layer_us,
        })
    }
}

fn take_dtypes(take: &mut Take<'_>) -> Result<(RowDtype, KvDtype), WireError> {
    let row = match take.u8("row_dtype")? {
        1 => RowDtype::F32,
        other => return Err(WireError::BadValue(take.fault("row_dtype", 1, other))),
    };
    let kv = match take.u8("kv")? {
        1 => KvDtype::F16,
        2 => KvDtype::F32,
        other => return Err(WireError::BadValue(take.fault("kv", "1 or 2", other))),
    };
    Ok((row, kv))
}

fn take_taps(take: &mut Take<'_>, count: u32, range: &Range<u32>) -> Result<Vec<u32>, WireError> {
    take.at_most("taps", TAPS_MAX as u64, u64::from(count))?;
    take.fits("taps", 4 * count as usize)?;
    let taps: Vec<u32> = (0..count).map(|_| take.u32("taps")).collect::<Result<_, _>>()?;
    let ascending = taps.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || taps.iter().any(|tap| !range.contains(tap)) {
        let expected = format!("ascending layers inside {}:{}", range.start, range.end);
        let fault = Fault::new("describe.taps", expected, format!("{taps:?}"));
        return Err(WireError::BadValue(fault));
    }
    Ok(taps)
}
