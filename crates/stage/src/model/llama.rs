//! The llama family: RMSNorm, rotary grouped attention and a gated MLP in every layer.
//!
//! ```text
//! x = x + O(attention(rope(Q n), rope(K n), V n)),  n = rms_norm(x)
//! x = x + Down(silu(Gate n) * Up n),                n = rms_norm(x)
//! ```

use std::sync::Arc;

use arith::attention::KvDtype;
use arith::base::TILE_KEYS;
use backend::{Backend, BackendError, RopeRows, RowMap};
use weights::Checkpoint;
use weights::config::Llama as Config;

use super::{Part, Program, Sizes};
use crate::StageError;

/// A range of a llama on a device.
pub struct Llama<B: Backend> {
    backend: Arc<B>,
    config: Config,
    kv: KvDtype,
    first: u32,
    layers: Vec<Layer<B>>,
    caches: Vec<B::Kv>,
    ends: Option<Ends<B>>,
    buffers: Option<Buffers<B>>,
    map: RowMap,
    rope: RopeRows,
}

struct Layer<B: Backend> {
    attention_norm: B::Vector,
    q: B::Linear,
    k: B::Linear,
    v: B::Linear,
    o: B::Linear,
    mlp_norm: B::Vector,
    gate: B::Linear,
    up: B::Linear,
    down: B::Linear,
}

struct Ends<B: Backend> {
    embeddings: B::Linear,
    norm: B::Vector,
    /// `None` where the head is the embedding table.
    head: Option<B::Linear>,
}

/// Row buffers; widths in values.
struct Buffers<B: Backend> {
    /// The residual, hidden.
    x: B::Rows,
    /// A normed row, hidden.
    n: B::Rows,
    /// Queries, then attention's output in `a`: heads * dim.
    q: B::Rows,
    a: B::Rows,
    /// Keys and values, kv heads * dim.
    k: B::Rows,
    v: B::Rows,
    /// What is added to the residual, hidden.
    y: B::Rows,
    /// The MLP's rows, intermediate.
    gate: B::Rows,
    up: B::Rows,
    act: B::Rows,
    /// Logits, vocab, with the ends.
    logits: Option<B::Rows>,
}

impl<B: Backend> Llama<B> {
    /// Loads the part's tensors.
    pub fn open(
        backend: Arc<B>,
        checkpoint: &Checkpoint,
        config: Config,
        part: &Part,
    ) -> Result<Self, StageError> {
        let mut loader = Loader { backend: &*backend, checkpoint, buffer: Vec::new() };
        let ends = if part.ends { Some(loader.ends(config.tied)?) } else { None };
        let layers =
            part.range.clone().map(|layer| loader.layer(layer)).collect::<Result<_, _>>()?;
        Ok(Self {
            backend,
            config,
            kv: part.kv,
            first: part.range.start,
            layers,
            caches: Vec::new(),
            ends,
            buffers: None,
            map: RowMap::default(),
            rope: RopeRows::default(),
        })
    }

    fn buffers(&self, sizes: Sizes) -> Result<Buffers<B>, BackendError> {
        let Config { hidden, intermediate, heads, vocab, .. } = self.config;
        let rows = |width| self.backend.rows(sizes.rows_max, width);
        let logits = self.ends.as_ref().map(|_| self.backend.rows(sizes.head_rows_max, vocab));
        Ok(Buffers {
            x: rows(hidden)?,
            n: rows(hidden)?,
            q: rows(heads.query * heads.dim)?,
            a: rows(heads.query * heads.dim)?,
            k: rows(heads.kv * heads.dim)?,
            v: rows(heads.kv * heads.dim)?,
            y: rows(hidden)?,
            gate: rows(intermediate)?,
            up: rows(intermediate)?,
            act: rows(intermediate)?,
            logits: logits.transpose()?,
        })
    }
}

impl<B: Backend> Program for Llama<B> {
    fn allocate(&mut self, sizes: Sizes) -> Result<(), BackendError> {
        self.buffers = None;
        self.caches.clear();
        for _ in &self.layers {
            self.caches.push(self.backend.kv(self.kv, sizes.pages, self.config.heads)?);
        }
        self.buffers = Some(self.buffers(sizes)?);
        Ok(())
    }

    fn embed(&mut self, ids: &[u32]) {
        let ends = self.ends.as_ref().expect("tokens enter at the ends");
        self.backend.embed(&ends.embeddings, ids, &mut allocated(&mut self.buffers).x);
    }

    fn load(&mut self, rows: &[f32]) {
        self.backend.upload(rows, &mut allocated(&mut self.buffers).x);
    }

    fn store(&self, rows: &mut [f32]) {
        let buffers = self.buffers.as_ref().expect("allocate comes first");
        self.backend.download(&buffers.x, 0, rows);
    }

    fn begin(&mut self, map: RowMap) {
        let positions: Vec<u32> = map.rows.iter().map(|row| row.position).collect();
        self.rope = RopeRows::new(self.config.theta, self.config.rope_dims, &positions);
        self.map = map;
    }

    fn layer(&mut self, layer: u32) {
        let Self { backend, config, map, rope, .. } = self;
        let (index, rows) = ((layer - self.first) as usize, map.rows.len());
        let (weights, cache) = (&self.layers[index], &mut self.caches[index]);
        let Config { heads, pairing, eps, .. } = *config;
        let b = allocated(&mut self.buffers);

        backend.rms_norm(&b.x, &weights.attention_norm, eps, rows, &mut b.n);
        let (qkv, outs) =
            ([&weights.q, &weights.k, &weights.v], &mut [&mut b.q, &mut b.k, &mut b.v]);
        backend.project(&b.n, rows, &qkv, outs);
        backend.rope(&mut b.q, heads.query, heads.dim, pairing, rope);
        backend.rope(&mut b.k, heads.kv, heads.dim, pairing, rope);
        backend.kv_write(cache, &b.k, &b.v, map);
        backend.attention(&b.q, cache, map, &mut b.a);
        backend.project(&b.a, rows, &[&weights.o], &mut [&mut b.y]);
        backend.add(&mut b.x, &b.y, rows);

        backend.rms_norm(&b.x, &weights.mlp_norm, eps, rows, &mut b.n);
        let gate_up = [&weights.gate, &weights.up];
        backend.project(&b.n, rows, &gate_up, &mut [&mut b.gate, &mut b.up]);
        backend.silu_mul(&b.gate, &b.up, rows, &mut b.act);
        backend.project(&b.act, rows, &[&weights.down], &mut [&mut b.y]);
        backend.add(&mut b.x, &b.y, rows);
    }

    fn head(&mut self, rows: &[f32], logits: &mut [f32]) {
        let ends = self.ends.as_ref().expect("logits leave at the ends");
        let b = allocated(&mut self.buffers);
        let out = b.logits.as_mut().expect("the ends have a logits buffer");
        let count = rows.len() / self.config.hidden;
        let head = ends.head.as_ref().unwrap_or(&ends.embeddings);
        self.backend.upload(rows, &mut b.x);
        self.backend.rms_norm(&b.x, &ends.norm, self.config.eps, count, &mut b.n);
        self.backend.project(&b.n, count, &[head], &mut [&mut *out]);
        self.backend.download(out, 0, logits);
    }
}

fn allocated<B: Backend>(buffers: &mut Option<Buffers<B>>) -> &mut Buffers<B> {
    buffers.as_mut().expect("allocate comes first")
}

/// Loads tensors of one checkpoint, whose shapes were checked when it was opened. One at a time is
/// in memory as the file stores it.
struct Loader<'a, B> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    buffer: Vec<u8>,
}

impl<B: Backend> Loader<'_, B> {
    fn linear(&mut self, name: &str) -> Result<B::Linear, StageError> {
        let matrix = self.checkpoint.read(name, &mut self.buffer)?;
        Ok(self.backend.linear(&matrix)?)
    }

    fn vector(&mut self, name: &str) -> Result<B::Vector, StageError> {
        let matrix = self.checkpoint.read(name, &mut self.buffer)?;
        Ok(self.backend.vector(&matrix)?)
    }

    fn ends(&mut self, tied: bool) -> Result<Ends<B>, StageError> {
        Ok(Ends {
            embeddings: self.linear("token_embd.weight")?,
            norm: self.vector("output_norm.weight")?,
            head: if tied { None } else { Some(self.linear("output.weight")?) },
        })
    }

    fn layer(&mut self, layer: u32) -> Result<Layer<B>, StageError> {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        Ok(Layer {
            attention_norm: self.vector(&name("attn_norm"))?,
            q: self.linear(&name("attn_q"))?,
            k: self.linear(&name("attn_k"))?,
            v: self.linear(&name("attn_v"))?,
            o: self.linear(&name("attn_output"))?,
            mlp_norm: self.vector(&name("ffn_norm"))?,
            gate: self.linear(&name("ffn_gate"))?,
            up: self.linear(&name("ffn_up"))?,
            down: self.linear(&name("ffn_down"))?,
        })
    }
}

/// Bytes of the caches of a part.
pub fn kv_bytes(config: &Config, part: &Part, sizes: Sizes) -> u64 {
    let keys = part.range.len() * sizes.pages * TILE_KEYS;
    (keys * 2 * config.heads.kv * config.heads.dim * part.kv.bytes()) as u64
}

/// Bytes of the row buffers of a part.
pub fn buffers_bytes(config: &Config, part: &Part, sizes: Sizes) -> u64 {
    let heads = config.heads;
    let row =
        3 * config.hidden + 2 * (heads.query + heads.kv) * heads.dim + 3 * config.intermediate;
    let logits = if part.ends { sizes.head_rows_max * config.vocab } else { 0 };
    4 * (sizes.rows_max * row + logits) as u64
}
