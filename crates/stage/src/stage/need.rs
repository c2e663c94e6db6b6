//! What a range takes of a device's memory, known before it is loaded.

use std::ops::Range;

use weights::Checkpoint;

use super::{HEAD_ROWS_MAX, KEEP_BYTES_MAX, PIECE_ROWS_MAX, StageConfig};
use crate::model::{self, Choice, Need, Share, Sizes};
use crate::pairs::{self, PAIR_ROWS_MIN};
use crate::{Shapes, StageError};

/// Bytes that a range takes once it is prepared for `shapes`.
pub fn need_bytes(
    checkpoint: &Checkpoint,
    config: &StageConfig,
    shapes: &Shapes,
) -> Result<Need, StageError> {
    share_need_bytes(checkpoint, config, Share::default(), shapes)
}

/// Bytes that a share of a range takes once it is prepared for `shapes`.
pub fn share_need_bytes(
    checkpoint: &Checkpoint,
    config: &StageConfig,
    share: Share,
    shapes: &Shapes,
) -> Result<Need, StageError> {
    check_range(checkpoint.config().layers(), &config.range)?;
    let sizes = sizes(shapes)?;
    let least = Some(PAIR_ROWS_MIN).filter(|_| share.count > 1 && !config.loop_mode);
    let twin_rows = pairs::twin_rows(sizes.rows_max, least);
    model::need(checkpoint, &config.part(share, None), Sizes { twin_rows, ..sizes })
}

/// How a share of a range meets the other members, by the model's config alone.
///
/// # Errors
/// A range that the model does not have; a family without a layer program.
pub fn choices(
    model: &weights::Config,
    config: &StageConfig,
    share: Share,
) -> Result<Vec<Choice>, StageError> {
    check_range(model.layers(), &config.range)?;
    model::choices(model, &config.part(share, None))
}

/// Bytes that a draft head adds to the range with the ends.
pub fn draft_need_bytes(
    checkpoint: &Checkpoint,
    config: &StageConfig,
    shapes: &Shapes,
) -> Result<u64, StageError> {
    share_draft_need_bytes(checkpoint, config, Share::default(), shapes)
}

/// Bytes that a draft head adds to a share of the range with the ends; it is whole there.
pub fn share_draft_need_bytes(
    checkpoint: &Checkpoint,
    config: &StageConfig,
    share: Share,
    shapes: &Shapes,
) -> Result<u64, StageError> {
    model::draft_need(checkpoint, &config.part(share, None), sizes(shapes)?)
}

pub(super) fn check_range(layers: u32, range: &Range<u32>) -> Result<(), StageError> {
    if range.start < range.end && range.end <= layers {
        return Ok(());
    }
    Err(StageError::OtherRange { layers, first: range.start, end: range.end })
}

pub(super) fn sizes(shapes: &Shapes) -> Result<Sizes, StageError> {
    let fields = [
        ("rows of a stream", shapes.chunk_rows_max),
        ("rows of a round", shapes.round_rows_max),
        ("streams", shapes.streams_max),
        ("positions of a stream", shapes.context_max),
        ("pages", shapes.pages),
    ];
    if let Some(&(what, _)) = fields.iter().find(|(_, value)| *value == 0) {
        return Err(StageError::EmptyShape { what });
    }
    let rows = shapes.round_rows_max as usize;
    Ok(Sizes {
        rows_max: rows.min(PIECE_ROWS_MAX),
        twin_rows: 0,
        head_rows_max: rows.min(HEAD_ROWS_MAX),
        pages: shapes.pages as usize,
        slots: shapes.streams_max as usize,
        keep_bytes_max: KEEP_BYTES_MAX,
    })
}
