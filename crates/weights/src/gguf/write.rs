//! A GGUF writer that holds the header alone: a tensor's bytes are asked for when they are due, so
//! a file may be far larger than memory.

use std::io::{self, Write};

use arith::format::Format;

use super::{header, types};
use crate::shorten;

/// Writes the bytes of one tensor.
type Fill = Box<dyn Fn(&mut dyn Write) -> io::Result<()>>;

/// Collects pairs and tensors, then writes them as version 3.
pub struct Writer {
    alignment: u64,
    pairs: Vec<u8>,
    pair_count: u64,
    infos: Vec<u8>,
    bodies: Vec<Body>,
    data_bytes: u64,
}

struct Body {
    bytes: u64,
    fill: Fill,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            alignment: header::ALIGNMENT_DEFAULT,
            pairs: Vec::new(),
            pair_count: 0,
            infos: Vec::new(),
            bodies: Vec::new(),
            data_bytes: 0,
        }
    }
}

impl Writer {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With the pairs of another file as they are stored there, `count` of them, and the alignment
    /// that they speak of.
    pub(crate) fn with_pairs(pairs: Vec<u8>, count: u64, alignment: u64) -> Self {
        Self { alignment, pairs, pair_count: count, ..Self::default() }
    }

    /// Sets a u32 that is there already; `None` where it is not.
    pub(crate) fn set_u32(&mut self, key: &str, value: u32) -> Option<()> {
        let at = shorten::place_of_u32(&self.pairs, key)?;
        self.pairs.get_mut(at..at + 4)?.copy_from_slice(&value.to_le_bytes());
        Some(())
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
    ///
    /// # Panics
    /// For formats that GGUF does not have.
    pub fn tensor(&mut self, name: &str, format: Format, dims: &[u64], bytes: &[u8]) -> &mut Self {
        self.tensor_of_kind(name, number(format), dims, bytes)
    }

    /// Adds a tensor of any ggml type number, also of one that is not read.
    pub fn tensor_of_kind(
        &mut self,
        name: &str,
        kind: u32,
        dims: &[u64],
        bytes: &[u8],
    ) -> &mut Self {
        let (count, bytes) = (bytes.len() as u64, bytes.to_vec());
        let fill = move |out: &mut dyn Write| out.write_all(&bytes);
        self.announce(name, kind, dims, count, Box::new(fill))
    }

    /// Adds a tensor of `bytes` bytes that `fill` writes when they are due.
    pub fn tensor_from(
        &mut self,
        name: &str,
        format: Format,
        dims: &[u64],
        bytes: u64,
        fill: impl Fn(&mut dyn Write) -> io::Result<()> + 'static,
    ) -> &mut Self {
        self.announce(name, number(format), dims, bytes, Box::new(fill))
    }

    fn announce(
        &mut self,
        name: &str,
        kind: u32,
        dims: &[u64],
        bytes: u64,
        fill: Fill,
    ) -> &mut Self {
        let at = self.data_bytes.next_multiple_of(self.alignment);
        text(&mut self.infos, name);
        self.infos.extend((dims.len() as u32).to_le_bytes());
        self.infos.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        self.infos.extend(kind.to_le_bytes());
        self.infos.extend(at.to_le_bytes());
        self.bodies.push(Body { bytes, fill });
        self.data_bytes = at + bytes;
        self
    }

    /// Writes the file.
    ///
    /// # Errors
    /// What `out` or a tensor's source says, and a source that wrote another number of bytes than
    /// its tensor has.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut out = Counted { out, at: 0 };
        out.write_all(b"GGUF")?;
        out.write_all(&3u32.to_le_bytes())?;
        out.write_all(&(self.bodies.len() as u64).to_le_bytes())?;
        out.write_all(&self.pair_count.to_le_bytes())?;
        out.write_all(&self.pairs)?;
        out.write_all(&self.infos)?;
        for body in &self.bodies {
            out.pad(self.alignment)?;
            let start = out.at;
            (body.fill)(&mut out)?;
            let written = out.at - start;
            if written != body.bytes {
                let what = format!("a tensor of {} bytes got {written}", body.bytes);
                return Err(io::Error::other(what));
            }
        }
        if self.bodies.is_empty() {
            out.pad(self.alignment)?;
        }
        Ok(())
    }

    /// The file, in memory.
    pub fn finish(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Err(error) = self.write_to(&mut out) {
            panic!("writing to memory: {error}");
        }
        out
    }
}

/// Counts what passes.
struct Counted<'a> {
    out: &'a mut dyn Write,
    at: u64,
}

impl Counted<'_> {
    /// Zeros up to the next multiple of `alignment`.
    fn pad(&mut self, alignment: u64) -> io::Result<()> {
        let gap = self.at.next_multiple_of(alignment) - self.at;
        self.write_all(&vec![0; gap as usize])
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value.as_bytes());
}

fn number(format: Format) -> u32 {
    types::number(format).unwrap_or_else(|| panic!("GGUF has no {format}"))
}
