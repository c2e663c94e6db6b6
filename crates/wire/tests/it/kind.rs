//! The decoders by name, as manifest lines and property tests call them.

use wire::beat::Beat;
use wire::call::{Call, Report};
use wire::cancel::Cancel;
use wire::control::Message;
use wire::frame::{Frame, Reader, Writer};
use wire::group::Piece;
use wire::hello::{Answer, Hello};
use wire::measure::Measure;
use wire::plan::Plan;
use wire::preamble::{self, Cipher};
use wire::stop::Stop;
use wire::tally::Tally;
use wire::{WireError, rows};

/// The receiver's buffer in golden files and properties.
pub const ROWS_BYTES_MAX: usize = 4096;

/// Every decoder that takes any bytes.
pub const KINDS: [&str; 14] = [
    "hello", "answer", "frame", "control", "plan", "rows", "stop", "beat", "cancel", "piece",
    "call", "report", "tally", "measure",
];

/// Decodes and encodes again; `None` where the encoder may choose other parts.
pub fn recode(kind: &str, bytes: &[u8]) -> Result<Option<Vec<u8>>, WireError> {
    let again = match kind {
        "preamble" => {
            let theirs = bytes.try_into().unwrap();
            preamble::check(Cipher::ChaChaPoly, theirs)?;
            preamble::encode(Cipher::ChaChaPoly).to_vec()
        }
        "hello" => Hello::decode(bytes)?.encode()?,
        "answer" => Answer::decode(bytes)?.encode()?,
        "control" => Message::decode(bytes)?.encode()?,
        "plan" => Plan::decode(bytes)?.encode()?,
        "rows" => rows::encode(&rows::decode(bytes, 2, 3)?),
        "stop" => Stop::decode(bytes)?.encode(),
        "beat" => Beat::decode(bytes)?.encode().to_vec(),
        "cancel" => Cancel::decode(bytes)?.encode().to_vec(),
        "piece" => crate::cases_group::written(&Piece::decode(bytes)?),
        "call" => Call::decode(bytes)?.encode()?,
        "report" => Report::decode(bytes)?.encode(),
        "measure" => Measure::decode(bytes)?.encode().to_vec(),
        "tally" => Tally::decode(bytes)?.encode().to_vec(),
        "frame" => frames(bytes)?.into_iter().flat_map(written).collect(),
        "parts" => {
            frames(bytes)?;
            return Ok(None);
        }
        other => panic!("no decoder {other}"),
    };
    Ok(Some(again))
}

/// All frames of a stream that must end between two of them.
pub fn frames(bytes: &[u8]) -> Result<Vec<Frame>, WireError> {
    let mut reader = Reader::new();
    reader.set_rows_bytes_max(ROWS_BYTES_MAX);
    let mut frames = Vec::new();
    reader.push(bytes, &mut frames)?;
    reader.finish()?;
    Ok(frames)
}

/// A frame's bytes on the link.
pub fn written(frame: Frame) -> Vec<u8> {
    Writer::new(frame).unwrap().into_bytes()
}
