//! Logits of every position of a text, for comparison with other implementations.
//!
//! `logits MODEL.gguf IDS f16|f32 OUT [ARITH]`: IDS holds little-endian u32 token ids; OUT gets
//! `ids * vocab` little-endian f32 values.

use std::sync::Arc;

use arith::attention::KvDtype;
use arith::base::{Arith, Generation, StreamId};
use baton_stage::{Engine, Input, Shapes, Stage, StageConfig};
use wire::plan::{Entry, Mode, Op, Plan, Want};

const CHUNK: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, model, ids, kv, out, arith @ ..] = args.as_slice() else {
        return Err("usage: logits MODEL.gguf IDS f16|f32 OUT [ARITH]".into());
    };
    let arith: Arith = arith.first().map_or(Ok(Arith::One), |number| number.parse())?;
    let kv = if kv == "f32" { KvDtype::F32 } else { KvDtype::F16 };
    let bytes = std::fs::read(ids)?;
    let ids: Vec<u32> =
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let checkpoint = weights::Checkpoint::open(model.as_ref())?;
    let cpu = Arc::new(cpu::Cpu::new(2, cpu::Isa::Auto, arith)?);
    let range = 0..checkpoint.config().layers();
    let config = StageConfig { range, ends: true, kv, loop_mode: false };
    let mut stage = Stage::open(cpu, &checkpoint, config)?;
    let positions = u32::try_from(ids.len())?;
    stage.prepare(&Shapes {
        chunk_rows_max: CHUNK as u32,
        round_rows_max: CHUNK as u32,
        streams_max: 1,
        context_max: positions,
        pages: positions.div_ceil(64),
    })?;
    let (mut rows, mut logits, mut file) = (Vec::new(), Vec::new(), Vec::new());
    for (index, chunk) in ids.chunks(CHUNK).enumerate() {
        let first = u32::try_from(index * CHUNK)?;
        let entry = Entry {
            id: StreamId(0),
            op: if index == 0 { Op::Open } else { Op::Continue },
            want: Want::All,
            first,
            rows: u32::try_from(chunk.len())?,
            accepted: if index == 0 { 0 } else { CHUNK as u32 },
            resume: 0,
            generation: Generation(u32::try_from(index)?),
            parents: None,
            tokens: None,
        };
        let plan = Plan { mode: Mode::Prompt, entries: vec![entry], ..Plan::default() };
        stage.step(&plan, Input::Tokens(chunk), &mut rows)?;
        stage.logits(&rows, &mut logits)?;
        file.extend(logits.iter().flat_map(|v| v.to_le_bytes()));
    }
    Ok(std::fs::write(out, file)?)
}
