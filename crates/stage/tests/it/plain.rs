//! The llama family once more, one token after the other over `arith`: no pages, no rounds.

use arith::attention::{KvDtype, attend};
use arith::base::Arith;
use arith::exp::silu;
use arith::float::flush;
use arith::format::{read_float, read_row};
use arith::linear::linear;
use arith::norm::rms_norm;
use arith::rope::{RopeRows, rotate};
use weights::config::Llama;
use weights::{Checkpoint, Config};

pub struct Plain<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Llama,
    /// Keys and values of each layer, `[kv head][position * dim]`.
    keys: Vec<Vec<Vec<f32>>>,
    values: Vec<Vec<Vec<f32>>>,
    position: u32,
}

impl<'a> Plain<'a> {
    pub fn new(checkpoint: &'a Checkpoint) -> Self {
        let Config::Llama(config) = checkpoint.config() else { panic!("no llama") };
        let empty = vec![vec![Vec::new(); config.heads.kv]; config.layers as usize];
        Self { checkpoint, config, keys: empty.clone(), values: empty, position: 0 }
    }

    /// The residual of the next token after the last layer.
    pub fn row(&mut self, token: u32) -> Vec<f32> {
        let mut x = vec![0.0; self.config.hidden];
        let mut buffer = Vec::new();
        let table = self.checkpoint.read("token_embd.weight", &mut buffer).unwrap();
        read_row(&table, token as usize, &mut x);
        for layer in 0..self.config.layers {
            self.attention(layer, &mut x);
            self.mlp(layer, &mut x);
        }
        self.position += 1;
        x
    }

    pub fn logits(&self, row: &[f32]) -> Vec<f32> {
        let normed = self.norm("output_norm.weight", row);
        let tied = if self.config.tied { "token_embd.weight" } else { "output.weight" };
        self.linear(tied, &normed)
    }

    fn attention(&mut self, layer: u32, x: &mut [f32]) {
        let (heads, at) = (self.config.heads, layer as usize);
        let normed = self.norm(&format!("blk.{layer}.attn_norm.weight"), x);
        let project = |name| self.linear(&format!("blk.{layer}.{name}.weight"), &normed);
        let (mut q, mut k, v) = (project("attn_q"), project("attn_k"), project("attn_v"));
        let rope = RopeRows::new(self.config.theta, self.config.rope_dims, &[self.position]);
        rotate(&mut q, heads.query, heads.dim, self.config.pairing, &rope, 0);
        rotate(&mut k, heads.kv, heads.dim, self.config.pairing, &rope, 0);
        for (head, (k, v)) in k.chunks(heads.dim).zip(v.chunks(heads.dim)).enumerate() {
            self.keys[at][head].extend(k.iter().map(|k| KvDtype::F16.round(*k)));
            self.values[at][head].extend(v.iter().map(|v| KvDtype::F16.round(*v)));
        }
        let mut out = vec![0.0; q.len()];
        let queries = q.chunks(heads.dim).zip(out.chunks_mut(heads.dim)).enumerate();
        for (head, (q, out)) in queries {
            let head = head / (heads.query / heads.kv);
            attend(q, &self.keys[at][head], &self.values[at][head], heads.dim, out);
        }
        add(x, &self.linear(&format!("blk.{layer}.attn_output.weight"), &out));
    }

    fn mlp(&self, layer: u32, x: &mut [f32]) {
        let normed = self.norm(&format!("blk.{layer}.ffn_norm.weight"), x);
        let project = |name, x: &[f32]| self.linear(&format!("blk.{layer}.{name}.weight"), x);
        let (gate, up) = (project("ffn_gate", &normed), project("ffn_up", &normed));
        let both = gate.iter().zip(&up).map(|(gate, up)| flush(silu(*gate) * up));
        add(x, &project("ffn_down", &both.collect::<Vec<_>>()));
    }

    fn norm(&self, name: &str, x: &[f32]) -> Vec<f32> {
        let mut buffer = Vec::new();
        let stored = self.checkpoint.read(name, &mut buffer).unwrap();
        let weights = (0..x.len()).map(|i| read_float(stored.format, stored.bytes, i));
        let mut out = vec![0.0; x.len()];
        rms_norm(x, &weights.collect::<Vec<_>>(), self.config.eps, &mut out);
        out
    }

    fn linear(&self, name: &str, x: &[f32]) -> Vec<f32> {
        let mut buffer = Vec::new();
        let matrix = self.checkpoint.read(name, &mut buffer).unwrap();
        let mut out = vec![0.0; matrix.rows];
        linear(Arith::One, &matrix, x, &mut out);
        out
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x = flush(*x + y));
}
