//! What a placement needs to know of a model.

use anyhow::Result;
use arith::base::{Rank, TILE_KEYS};
use placement::{Kind, Layer};
use stage::{PIECE_ROWS_MAX, Shapes, StageConfig, need_bytes};
use weights::config::{Config, Mixer};

use crate::model::Model;

/// What each layer mixes rows with.
pub fn kinds(config: &Config) -> Vec<Kind> {
    match config {
        Config::Qwen35(config) => {
            let kind = |mixer: &Mixer| match mixer {
                Mixer::Attention => Kind::Attention,
                Mixer::Recurrent => Kind::Recurrent,
            };
            config.mixers.iter().map(kind).collect()
        }
        other => vec![Kind::Attention; other.layers() as usize],
    }
}

/// What a second half of a prompt takes of a member of a group of two.
fn twin_bytes(model: &Model) -> Result<u64> {
    if !model.settings.prompt_pair {
        return Ok(0);
    }
    let range = 0..model.checkpoint.config().layers();
    let kv = model.settings.kv;
    let config = StageConfig { range, ends: true, kv, loop_mode: false };
    let share = stage::Share { index: 0, count: 2, ..stage::Share::default() };
    let need = stage::share_need_bytes(&model.checkpoint, &config, share, &model.shapes)?;
    Ok(need.twin_bytes)
}

/// Its layers, sizes and widths, as the stages themselves count them.
///
/// # Errors
/// Headers that can't be read.
pub fn shape(model: &Model) -> Result<placement::Model> {
    let (checkpoint, config) = (&model.checkpoint, model.checkpoint.config());
    let need = |range, ends, shapes: &Shapes| {
        let kv = model.settings.kv;
        need_bytes(checkpoint, &StageConfig { range, ends, kv, loop_mode: false }, shapes)
    };
    let kinds = kinds(config);
    let shapes = Shapes { streams_max: 1, ..model.shapes };
    let more = Shapes { pages: shapes.pages + 1, ..shapes };
    let one = |layer: u32, shapes: &Shapes| need(layer..layer + 1, false, shapes);
    let of = |kind: Kind| kinds.iter().position(|found| *found == kind).map(|at| at as u32);
    let page_bytes =
        |layer| Ok::<_, anyhow::Error>(one(layer, &more)?.kv_bytes - one(layer, &shapes)?.kv_bytes);
    let kv_bytes = of(Kind::Attention).map(page_bytes).transpose()?.unwrap_or(0) / TILE_KEYS as u64;
    let state = |layer| Ok::<_, anyhow::Error>(one(layer, &shapes)?.state_bytes);
    let state_bytes = of(Kind::Recurrent).map(state).transpose()?.unwrap_or(0);
    let layers = kinds.iter().zip(0..).map(|(kind, layer)| {
        Ok(Layer { kind: *kind, weight_bytes: one(layer, &shapes)?.weights_bytes })
    });
    let (with, without) = (need(0..1, true, &shapes)?, one(0, &shapes)?);
    let whole = need(0..config.layers(), false, &shapes)?;
    let rows_max = shapes.round_rows_max.min(PIECE_ROWS_MAX as u32);
    let drafts = model.settings.drafters.mtp && config.mtp();
    let first = model.stage_config(Rank(0))?;
    let drafter_bytes = match drafts {
        true => stage::draft_need_bytes(checkpoint, &first, &shapes)?,
        false => 0,
    };
    let heads = config.heads();
    Ok(placement::Model {
        layers: layers.collect::<Result<_>>()?,
        ends_bytes: with.total_bytes() - without.total_bytes(),
        drafter_bytes,
        hidden: config.hidden() as u64,
        attention_width: (heads.query * heads.dim) as u64,
        intermediate: config.intermediate() as u64,
        kv_bytes,
        state_bytes,
        row_bytes: whole.buffers_bytes.div_ceil(rows_max.into()),
        rows_max,
        twin_bytes: twin_bytes(model)?,
    })
}
