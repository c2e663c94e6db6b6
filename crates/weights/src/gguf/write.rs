//! A small GGUF writer, for tests and for cut checkpoints.

use arith::format::Format;

use super::{header, types};

/// Collects pairs and tensors, then writes them as version 3.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    pairs: Vec<u8>,
    pair_count: u64,
    infos: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

impl Writer {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn pair(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.pair_count += 1;
        text(&mut self.pairs, key);
        self.pairs.extend(kind.to_le_bytes());
        &mut self.pairs
    }

    /// Adds a u32.
    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.pair(key, 4).extend(value.to_le_bytes());
        self
    }

    /// Adds an f32.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.pair(key, 6).extend(value.to_le_bytes());
        self
    }

    /// Adds a truth value.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.pair(key, 7).push(u8::from(value));
        self
    }

    /// Adds a text.
    pub fn string(&mut self, key: &str, value: &str) -> &mut Self {
        text(self.pair(key, 8), value);
        self
    }

    /// Adds an array of texts.
    pub fn strings<S: AsRef<str>>(&mut self, key: &str, values: &[S]) -> &mut Self {
        let out = self.pair(key, 9);
        out.extend(8u32.to_le_bytes());
        out.extend((values.len() as u64).to_le_bytes());
        for value in values {
            text(out, value.as_ref());
        }
        self
    }

    /// Adds an array of i32.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let out = self.pair(key, 9);
        out.extend(5u32.to_le_bytes());
        out.extend((values.len() as u64).to_le_bytes());
        for value in values {
            out.extend(value.to_le_bytes());
        }
        self
    }

    /// Adds a tensor; `dims` with K (columns) first, `bytes` its stored form.
    pub fn tensor(&mut self, name: &str, format: Format, dims: &[u64], bytes: &[u8]) -> &mut Self {
        self.tensor_of_kind(name, types::number(format), dims, bytes)
    }

    /// Adds a tensor of any ggml type number, also of one that is not read.
    pub fn tensor_of_kind(
        &mut self,
        name: &str,
        kind: u32,
        dims: &[u64],
        bytes: &[u8],
    ) -> &mut Self {
        self.tensor_count += 1;
        self.data.resize(aligned(self.data.len()), 0);
        text(&mut self.infos, name);
        self.infos.extend((dims.len() as u32).to_le_bytes());
        self.infos
            .extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        self.infos.extend(kind.to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(bytes);
        self
    }

    /// The file.
    pub fn finish(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.pair_count.to_le_bytes());
        out.extend(&self.pairs);
        out.extend(&self.infos);
        out.resize(aligned(out.len()), 0);
        out.extend(&self.data);
        out
    }
}

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value.as_bytes());
}

fn aligned(at: usize) -> usize {
    at.next_multiple_of(header::ALIGNMENT_DEFAULT as usize)
}
