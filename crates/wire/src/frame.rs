//! Frames: a 32-byte header and a payload. Rows alone may travel in parts.

use arith::base::Round;

use crate::beat::{BEAT_BYTES, Beat};
use crate::bytes::Take;
use crate::cancel::{CANCEL_BYTES, Cancel};
use crate::error::{Fault, WireError};
use crate::limit::{
    BERTH_BYTES, CONTROL_BYTES_MAX, HEADER_BYTES, PART_BYTES_MAX, PLAN_BYTES_MAX, REASON_BYTES_MAX,
    VERSION,
};
use crate::rows;
use crate::stop::Stop;
use crate::tally::{TALLY_BYTES, Tally};

pub use crate::reader::Reader;

/// The bytes "BATF".
const MAGIC: u32 = u32::from_le_bytes(*b"BATF");
/// Flag bit 0: more parts of this rows frame follow.
const MORE: u32 = 1;
/// Bytes of a row's value.
const VALUE_BYTES: usize = size_of::<f32>();

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Describe, agree, ready or fields.
    Control = 1,
    /// A round's plan.
    Plan = 2,
    /// A round's rows.
    Rows = 3,
    /// The ring stops, with a reason.
    Stop = 4,
    /// The sender is alive.
    Beat = 5,
    /// A stream was given up; overtakes plans and rows.
    Cancel = 6,
    /// What a rank says of its work.
    Tally = 7,
    /// A round's rows lie in a berth of the receiver's device.
    Berth = 8,
}

impl Kind {
    /// Most payload bytes of one frame of this kind (of one part, for rows).
    pub fn payload_bytes_max(self) -> usize {
        match self {
            Self::Control => CONTROL_BYTES_MAX,
            Self::Plan => PLAN_BYTES_MAX,
            Self::Rows => PART_BYTES_MAX,
            Self::Stop => 4 + REASON_BYTES_MAX,
            Self::Beat => BEAT_BYTES,
            Self::Cancel => CANCEL_BYTES,
            Self::Tally => TALLY_BYTES,
            Self::Berth => BERTH_BYTES,
        }
    }

    /// Whether a frame of this kind may come between the parts of a rows frame.
    pub fn overtakes(self) -> bool {
        matches!(self, Self::Stop | Self::Beat | Self::Cancel | Self::Tally)
    }

    /// Whether frames of this kind belong to a round; all others carry round 0.
    fn numbered(self) -> bool {
        matches!(self, Self::Plan | Self::Rows | Self::Berth)
    }

    /// Whether frames of this kind say of how many rows they are; all others carry 0.
    fn counts(self) -> bool {
        matches!(self, Self::Rows | Self::Berth)
    }
}

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the payload is.
    pub kind: Kind,
    /// The round, from 1, of a plan, of rows or of a berth; else 0.
    pub round: Round,
    /// Rows of this hop in all, at least 1, for rows and a berth; else 0.
    pub rows: u32,
    /// More parts follow; only for rows.
    pub more: bool,
    /// Payload bytes of this frame or part.
    pub payload_bytes: u64,
}

impl Header {
    /// The 32 bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        out[8..16].copy_from_slice(&self.round.0.to_le_bytes());
        out[16..20].copy_from_slice(&self.rows.to_le_bytes());
        out[20..24].copy_from_slice(&(if self.more { MORE } else { 0 }).to_le_bytes());
        out[24..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out
    }

    /// Reads and checks the 32 bytes.
    ///
    /// # Errors
    /// `BadMagic`, `OtherVersion`, `OtherKind`, `BadFlags`, and those of [`Header::check`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let mut take = Take::new("frame", bytes);
        let magic = take.u32("magic")?;
        if magic != MAGIC {
            let found = format!("{magic:#010x}");
            return Err(WireError::BadMagic(take.fault("magic", format!("{MAGIC:#010x}"), found)));
        }
        let version = take.u16("version")?;
        if version != VERSION {
            return Err(WireError::OtherVersion(take.fault("version", VERSION, version)));
        }
        let kind = match take.u16("kind")? {
            1 => Kind::Control,
            2 => Kind::Plan,
            3 => Kind::Rows,
            4 => Kind::Stop,
            5 => Kind::Beat,
            6 => Kind::Cancel,
            7 => Kind::Tally,
            8 => Kind::Berth,
            other => return Err(WireError::OtherKind(take.fault("kind", "1..8", other))),
        };
        let round = Round(take.u64("round")?);
        let rows = take.u32("rows")?;
        let flags = take.u32("flags")?;
        let most = if kind == Kind::Rows { MORE } else { 0 };
        if flags > most {
            let expected = format!("at most {most}");
            return Err(WireError::BadFlags(take.fault("flags", expected, format!("{flags:#x}"))));
        }
        let payload_bytes = take.u64("payload_bytes")?;
        let header = Self { kind, round, rows, more: flags == MORE, payload_bytes };
        header.check()?;
        Ok(header)
    }

    /// The rules that tie the fields together.
    ///
    /// # Errors
    /// `TooLarge` past the kind's limit, `OutOfTurn` for a round number where none belongs or none
    /// where one does, `OtherRows` likewise for rows and for an empty part.
    pub fn check(&self) -> Result<(), WireError> {
        let max = self.kind.payload_bytes_max() as u64;
        if self.payload_bytes > max {
            let expected = format!("at most {max} for {:?}", self.kind);
            let fault = Fault::new("frame.payload_bytes", expected, self.payload_bytes);
            return Err(WireError::TooLarge(fault));
        }
        if self.kind.numbered() != (self.round != Round(0)) {
            let expected = if self.kind.numbered() { "1 or more" } else { "0" };
            return Err(WireError::OutOfTurn(Fault::new("frame.round", expected, self.round)));
        }
        if self.kind.counts() != (self.rows != 0) {
            let expected = if self.kind.counts() { "1 or more" } else { "0" };
            return Err(WireError::OtherRows(Fault::new("frame.rows", expected, self.rows)));
        }
        if self.kind == Kind::Rows && self.payload_bytes == 0 {
            return Err(WireError::OtherRows(Fault::new("frame.payload_bytes", "1 or more", 0)));
        }
        Ok(())
    }
}

/// A whole frame; a rows frame's parts are joined.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What it carries.
    pub kind: Kind,
    /// The round of a plan, of rows or of a berth; else 0.
    pub round: Round,
    /// Rows of this hop, for rows and a berth; else 0.
    pub rows: u32,
    /// The message, unless it is rows.
    pub payload: Vec<u8>,
    /// The rows' values, for rows.
    pub values: Vec<f32>,
}

/// Values are equal where their bits are.
impl PartialEq for Frame {
    fn eq(&self, other: &Self) -> bool {
        let head = |frame: &Self| (frame.kind, frame.round, frame.rows, frame.values.len());
        let mut pairs = self.values.iter().zip(&other.values);
        head(self) == head(other)
            && self.payload == other.payload
            && pairs.all(|(own, its)| own.to_bits() == its.to_bits())
    }
}

impl Eq for Frame {}

impl Frame {
    fn message(kind: Kind, payload: Vec<u8>) -> Self {
        Self { kind, round: Round(0), rows: 0, payload, values: Vec::new() }
    }

    /// A control message's frame ([`crate::control::Message::encode`]).
    pub fn control(payload: Vec<u8>) -> Self {
        Self::message(Kind::Control, payload)
    }

    /// A plan's frame ([`crate::plan::Plan::encode`]).
    pub fn plan(round: Round, payload: Vec<u8>) -> Self {
        Self { round, ..Self::message(Kind::Plan, payload) }
    }

    /// A rows frame of `rows` rows of as many values each; a hop of 0 rows sends none.
    pub fn rows(round: Round, rows: u32, values: Vec<f32>) -> Self {
        Self { kind: Kind::Rows, round, rows, payload: Vec::new(), values }
    }

    /// A frame that says in which berth of the receiver `rows` rows lie.
    pub fn berth(round: Round, rows: u32, berth: u32) -> Self {
        Self { round, rows, ..Self::message(Kind::Berth, berth.to_le_bytes().into()) }
    }

    /// A stop's frame.
    pub fn stop(stop: &Stop) -> Self {
        Self::message(Kind::Stop, stop.encode())
    }

    /// A beat's frame.
    pub fn beat(beat: &Beat) -> Self {
        Self::message(Kind::Beat, beat.encode().into())
    }

    /// A cancel's frame.
    pub fn cancel(cancel: &Cancel) -> Self {
        Self::message(Kind::Cancel, cancel.encode().into())
    }

    /// A tally's frame.
    pub fn tally(tally: &Tally) -> Self {
        Self::message(Kind::Tally, tally.encode().into())
    }

    /// Bytes of what it carries, its parts together.
    pub fn payload_bytes(&self) -> usize {
        match self.kind {
            Kind::Rows => VALUE_BYTES * self.values.len(),
            _ => self.payload.len(),
        }
    }

    /// The berth in which `rows` rows lie.
    ///
    /// # Errors
    /// `OtherRows` where there are more or fewer; `Truncated`, `Trailing`.
    pub fn into_berth(self, rows: usize) -> Result<u32, WireError> {
        if self.rows as usize != rows {
            let expected = format!("{rows} in a berth");
            return Err(WireError::OtherRows(Fault::new("frame.rows", expected, self.rows)));
        }
        let mut take = Take::new("berth", &self.payload);
        let berth = take.u32("number")?;
        take.end().map(|()| berth)
    }

    /// The values of `rows` rows of `width` each.
    ///
    /// # Errors
    /// `OtherRows` where there are more or fewer.
    pub fn into_rows(self, rows: usize, width: usize) -> Result<Vec<f32>, WireError> {
        if rows.checked_mul(width) == Some(self.values.len()) {
            return Ok(self.values);
        }
        Err(rows::other(rows, width, self.payload_bytes()))
    }
}

/// One header and the payload bytes that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The encoded header.
    pub header: [u8; HEADER_BYTES],
    /// Its payload.
    pub payload: &'a [u8],
}

impl Part<'_> {
    /// Header and payload in one piece.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.header[..], self.payload].concat()
    }
}

/// Gives a frame's parts in order; other frames may be sent between them.
#[derive(Clone, Debug)]
pub struct Writer {
    frame: Frame,
    /// Bytes that were given.
    at: usize,
    done: bool,
    /// Of rows, the part that was given last.
    part: Vec<u8>,
}

impl Writer {
    /// Starts writing `frame`.
    ///
    /// # Errors
    /// Those that the reader at the other end would raise ([`Header::check`]).
    pub fn new(frame: Frame) -> Result<Self, WireError> {
        let writer = Self { frame, at: 0, done: false, part: Vec::new() };
        writer.header().check()?;
        Ok(writer)
    }

    /// The next part, or `None` after the last.
    pub fn next_part(&mut self) -> Option<Part<'_>> {
        if self.done {
            return None;
        }
        let header = self.header();
        let start = self.at;
        self.at += header.payload_bytes as usize;
        self.done = !header.more;
        let payload = match self.frame.kind {
            Kind::Rows => {
                // A part ends with a value.
                let values = start / VALUE_BYTES..self.at / VALUE_BYTES;
                rows::encode_into(&self.frame.values[values], &mut self.part);
                &self.part
            }
            _ => &self.frame.payload[start..self.at],
        };
        Some(Part { header: header.encode(), payload })
    }

    /// The frame, to be used again.
    pub fn into_frame(self) -> Frame {
        self.frame
    }

    /// What is being written.
    pub fn kind(&self) -> Kind {
        self.frame.kind
    }

    /// All parts that are left, in one buffer.
    pub fn into_bytes(mut self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.frame.payload_bytes());
        while let Some(part) = self.next_part() {
            out.extend(part.header);
            out.extend(part.payload);
        }
        out
    }

    fn header(&self) -> Header {
        let left = self.frame.payload_bytes() - self.at;
        let is_rows = self.frame.kind == Kind::Rows;
        let bytes = if is_rows { left.min(PART_BYTES_MAX) } else { left };
        Header {
            kind: self.frame.kind,
            round: self.frame.round,
            rows: self.frame.rows,
            more: bytes < left,
            payload_bytes: bytes as u64,
        }
    }
}
