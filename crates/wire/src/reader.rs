//! Bytes of a link into frames, a piece at a time.

use arith::base::Round;

use crate::error::{Fault, WireError};
use crate::frame::{Frame, Header, Kind};
use crate::limit::HEADER_BYTES;
use crate::rows::Gather;

/// Rebuilds frames from a stream of bytes and joins the parts of rows.
///
/// Memory is bounded by the largest frame that is allowed plus `rows_bytes_max`. After an error
/// the stream may be mid-frame, so every later push raises the same error.
#[derive(Debug, Default)]
pub struct Reader {
    head: [u8; HEADER_BYTES],
    /// Bytes of `head` that have come.
    head_bytes: usize,
    /// The header whose payload is coming.
    current: Option<Header>,
    /// Payload of a frame that is not rows.
    payload: Vec<u8>,
    /// Payload bytes of `current` that are still to come.
    missing: usize,
    /// The rows frame whose parts are coming.
    rows: Option<Coming>,
    rows_bytes_max: usize,
    /// Where the values of the next rows may lie.
    room: Vec<f32>,
    broken: Option<WireError>,
}

/// Rows on their way.
#[derive(Debug)]
struct Coming {
    round: Round,
    rows: u32,
    gather: Gather,
}

impl Reader {
    /// A reader that takes no rows until [`Reader::set_rows_bytes_max`].
    pub fn new() -> Self {
        Self::default()
    }

    /// The receiver's buffer: most bytes of one rows frame, its parts together.
    pub fn set_rows_bytes_max(&mut self, rows_bytes_max: usize) {
        self.rows_bytes_max = rows_bytes_max;
    }

    /// Gives room for the values of the next rows that come in parts; what is in it is lost.
    /// Without it their room is taken as they come.
    pub fn set_room(&mut self, room: Vec<f32>) {
        self.room = room;
    }

    /// Whether there is such room.
    pub fn has_room(&self) -> bool {
        self.room.capacity() > 0
    }

    /// Takes the next bytes; complete frames are appended to `frames`.
    ///
    /// # Errors
    /// Those of [`Header::decode`]; `OutOfTurn` for a frame that may not come between parts or a
    /// part of another round; `TooLarge` past `rows_bytes_max`; `OtherRows` for parts that do not
    /// add up to whole rows. Frames before the bad one are in `frames`.
    pub fn push(&mut self, bytes: &[u8], frames: &mut Vec<Frame>) -> Result<(), WireError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        self.take(bytes, frames).inspect_err(|error| {
            self.broken = Some(error.clone());
            self.rows = None;
            self.payload = Vec::new();
        })
    }

    /// Whether the next byte starts a header.
    pub fn at_frame_start(&self) -> bool {
        self.head_bytes == 0 && self.current.is_none()
    }

    /// Says that no more bytes will come.
    ///
    /// # Errors
    /// `Truncated` inside a frame or between parts.
    pub fn finish(&self) -> Result<(), WireError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if self.at_frame_start() && self.rows.is_none() {
            return Ok(());
        }
        let missing = if self.current.is_some() {
            format!("{} more bytes", self.missing)
        } else if self.head_bytes > 0 {
            format!("{} more bytes of a header", HEADER_BYTES - self.head_bytes)
        } else {
            "another part".into()
        };
        Err(WireError::Truncated(Fault::new("frame", missing, "the link's end")))
    }

    fn take(&mut self, mut bytes: &[u8], frames: &mut Vec<Frame>) -> Result<(), WireError> {
        loop {
            if self.current.is_none() {
                let count = bytes.len().min(HEADER_BYTES - self.head_bytes);
                let (now, later) = bytes.split_at(count);
                self.head[self.head_bytes..][..count].copy_from_slice(now);
                self.head_bytes += count;
                bytes = later;
                if self.head_bytes < HEADER_BYTES {
                    return Ok(());
                }
                self.head_bytes = 0;
                self.begin(Header::decode(&self.head)?)?;
            }
            let count = bytes.len().min(self.missing);
            let (now, later) = bytes.split_at(count);
            match (&self.current, &mut self.rows) {
                (Some(Header { kind: Kind::Rows, .. }), Some(coming)) => coming.gather.push(now),
                _ => self.payload.extend_from_slice(now),
            }
            self.missing -= count;
            bytes = later;
            if self.missing > 0 {
                return Ok(());
            }
            if let Some(frame) = self.end()? {
                frames.push(frame);
            }
        }
    }

    /// Checks a header against what is under way and makes room for its payload.
    fn begin(&mut self, header: Header) -> Result<(), WireError> {
        // `Header::check` has bounded it by a constant.
        let bytes = header.payload_bytes as usize;
        if header.kind == Kind::Rows {
            let room = &mut self.room;
            let coming = self.rows.get_or_insert_with(|| {
                let room = if header.more { std::mem::take(room) } else { Vec::new() };
                let gather = Gather::new(room);
                Coming { round: header.round, rows: header.rows, gather }
            });
            if (coming.round, coming.rows) != (header.round, header.rows) {
                let expected = format!("round {} of {} rows", coming.round, coming.rows);
                let found = format!("round {} of {} rows", header.round, header.rows);
                return Err(WireError::OutOfTurn(Fault::new("frame.round", expected, found)));
            }
            let total = coming.gather.bytes() + bytes;
            if total > self.rows_bytes_max {
                let expected = format!("at most {}", self.rows_bytes_max);
                return Err(WireError::TooLarge(Fault::new("frame.rows_bytes", expected, total)));
            }
            let values = &mut coming.gather.values;
            if 4 * values.capacity() < total {
                // Doubling, but never past the receiver's buffer.
                let room = (2 * total).min(self.rows_bytes_max);
                let room = if header.more { room } else { total };
                values.reserve_exact(room.div_ceil(4) - values.len());
            }
        } else {
            if let Some(rows) = self.rows.as_ref().filter(|_| !header.kind.overtakes()) {
                let expected = format!("the next part of round {}", rows.round);
                let found = format!("{:?}", header.kind);
                return Err(WireError::OutOfTurn(Fault::new("frame.kind", expected, found)));
            }
            self.payload = Vec::with_capacity(bytes);
        }
        self.missing = bytes;
        self.current = Some(header);
        Ok(())
    }

    /// The frame that `current` completes, if it does.
    fn end(&mut self) -> Result<Option<Frame>, WireError> {
        let Some(header) = self.current.take() else {
            return Ok(None);
        };
        if header.kind != Kind::Rows {
            let payload = std::mem::take(&mut self.payload);
            let Header { kind, round, rows, .. } = header;
            return Ok(Some(Frame { kind, round, rows, payload, values: Vec::new() }));
        }
        if header.more {
            return Ok(None);
        }
        let Some(Coming { round, rows, gather }) = self.rows.take() else {
            return Ok(None);
        };
        let bytes = gather.bytes();
        if bytes % 4 != 0 || gather.values.len() % rows as usize != 0 {
            let (expected, found) = (format!("{rows} equal rows of f32"), format!("{bytes} bytes"));
            return Err(WireError::OtherRows(Fault::new("frame.rows", expected, found)));
        }
        Ok(Some(Frame::rows(round, rows, gather.values)))
    }
}
