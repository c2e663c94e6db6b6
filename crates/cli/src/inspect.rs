//! `baton inspect`: what a model is, from its headers alone.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Result;
use arith::attention::KvDtype;
use serde_json::{Value, json};
use text::Text;
use weights::{Checkpoint, Config};

use crate::source;

/// Bytes of a value of a recurrent state.
const STATE_VALUE_BYTES: usize = 4;

/// Prints what MODEL is, as a table or as one line of JSON.
///
/// # Errors
/// A model that can't be found, or that is refused.
pub fn run(model: &str, as_json: bool) -> Result<()> {
    let checkpoint = Checkpoint::open(&source::resolve(model)?)?;
    let facts = Facts::of(&checkpoint);
    match as_json {
        true => println!("{}", facts.json()),
        false => print!("{}", facts.table()),
    }
    Ok(())
}

/// What there is to say of a model.
struct Facts<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    /// Tensors and bytes by format, most bytes first.
    formats: Vec<(String, usize, u64)>,
    /// Bytes of each layer of the trunk.
    layers_bytes: Vec<u64>,
    ends_bytes: u64,
    draft_bytes: u64,
    /// Layers that these files hold.
    held: Vec<Range<u32>>,
    /// The tokenizer, or why it can't be used.
    text: Result<Text, String>,
}

impl<'a> Facts<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        let config = checkpoint.config();
        let layers = config.layers();
        let mut formats: BTreeMap<String, (usize, u64)> = BTreeMap::new();
        for tensor in checkpoint.tensors() {
            let (count, bytes) = formats.entry(tensor.format.to_string()).or_default();
            (*count, *bytes) = (*count + 1, *bytes + tensor.bytes as u64);
        }
        let mut formats: Vec<_> = formats.into_iter().map(|(f, (n, b))| (f, n, b)).collect();
        formats.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
        let mut held: Vec<Range<u32>> = Vec::new();
        for layer in 0..layers {
            if checkpoint.check_held(layer..layer + 1, false).is_ok() {
                match held.last_mut().filter(|range| range.end == layer) {
                    Some(range) => range.end += 1,
                    None => held.push(layer..layer + 1),
                }
            }
        }
        Self {
            checkpoint,
            config,
            formats,
            layers_bytes: (0..layers).map(|n| checkpoint.bytes_of(n..n + 1, false)).collect(),
            ends_bytes: checkpoint.bytes_of(0..0, true),
            draft_bytes: checkpoint.bytes_of(layers..layers + 1, false),
            held,
            text: Text::from_checkpoint(checkpoint).map_err(|error| error.to_string()),
        }
    }

    fn total_bytes(&self) -> u64 {
        self.formats.iter().map(|(_, _, bytes)| bytes).sum()
    }

    /// The least and the most bytes of a layer.
    fn layer_bytes(&self) -> (u64, u64) {
        let all = || self.layers_bytes.iter().copied();
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    }

    fn kv_bytes(&self, kv: KvDtype) -> usize {
        self.config.kv_values() * kv.bytes()
    }

    fn state_bytes(&self) -> usize {
        self.config.state_values() * STATE_VALUE_BYTES
    }

    /// How the tokenizer splits words, where the container says so.
    fn pre_tokenizer(&self) -> Option<&str> {
        let metadata = self.checkpoint.metadata()?;
        metadata.str("tokenizer.ggml.pre").ok().flatten()
    }

    fn json(&self) -> Value {
        let (config, heads) = (self.config, self.config.heads());
        let format = |(name, tensors, bytes): &(String, usize, u64)| json!({"format": name, "tensors": tensors, "bytes": bytes});
        let gdn = config.gdn().map(|gdn| {
            json!({
                "key_heads": gdn.keys, "value_heads": gdn.values, "key_dim": gdn.key_dim,
                "value_dim": gdn.value_dim, "taps": gdn.taps,
            })
        });
        let tokenizer = match &self.text {
            Ok(text) => json!({
                "kind": "byte-level BPE", "pre": self.pre_tokenizer(), "tokens": text.vocab(),
                "stop_tokens": text.stop_tokens(),
            }),
            Err(error) => json!({ "error": error }),
        };
        let held: Vec<String> =
            self.held.iter().map(|r| format!("{}:{}", r.start, r.end)).collect();
        json!({
            "path": self.checkpoint.path(),
            "family": config.family(),
            "layers": config.layers(),
            "attention_layers": config.layers() - config.recurrent_layers(),
            "recurrent_layers": config.recurrent_layers(),
            "held": held,
            "hidden": config.hidden(),
            "intermediate": config.intermediate(),
            "vocab": config.vocab(),
            "tied": config.tied(),
            "heads": {
                "query": heads.query, "kv": heads.kv, "dim": heads.dim,
                "rotated": config.rope_dims(),
            },
            "gated_delta_net": gdn,
            "draft_head": config.mtp(),
            "context_max": config.context_max(),
            "formats": self.formats.iter().map(format).collect::<Vec<_>>(),
            "weights_bytes": self.total_bytes(),
            "layers_bytes": self.layers_bytes,
            "ends_bytes": self.ends_bytes,
            "draft_head_bytes": self.draft_bytes,
            "kv_bytes_a_token": {
                "f16": self.kv_bytes(KvDtype::F16), "f32": self.kv_bytes(KvDtype::F32),
            },
            "state_bytes_a_stream": self.state_bytes(),
            "tokenizer": tokenizer,
        })
    }

    /// Lines of a name and what there is to say.
    fn table(&self) -> String {
        let mut out = format!("{}\n", self.checkpoint.path().display());
        let mut line = |name: &str, says: String| out += &format!("{name:<12}{says}\n");
        line("family", self.config.family().to_owned());
        line("layers", self.layers_line());
        line("widths", self.widths_line());
        line("attention", self.attention_line());
        if let Some(gdn) = self.config.gdn() {
            let heads = format!(
                "{} key heads of {}, {} value heads of {}",
                gdn.keys, gdn.key_dim, gdn.values, gdn.value_dim
            );
            line("recurrence", format!("{heads}, convolution of {}", gdn.taps));
        }
        for (at, (format, tensors, bytes)) in self.formats.iter().enumerate() {
            let name = if at == 0 { "formats" } else { "" };
            let tensors = format!("{tensors} tensor{}", if *tensors == 1 { "" } else { "s" });
            line(name, format!("{format}, {tensors}, {}", size(*bytes)));
        }
        line("weights", self.weights_line());
        if self.config.mtp() {
            line("draft head", size(self.draft_bytes));
        }
        line("context", format!("{} tokens", self.config.context_max()));
        let [half, single] = [KvDtype::F16, KvDtype::F32].map(|kv| size(self.kv_bytes(kv) as u64));
        line("KV cache", format!("{half} a token in f16, {single} in f32"));
        if self.state_bytes() > 0 {
            line("state", format!("{} a stream", size(self.state_bytes() as u64)));
        }
        line("tokenizer", self.tokenizer_line());
        out
    }

    fn layers_line(&self) -> String {
        let (layers, recurrent) = (self.config.layers(), self.config.recurrent_layers());
        let kinds = match recurrent {
            0 => format!("{layers}, all attention"),
            _ => format!("{layers}: {recurrent} Gated DeltaNet, {} attention", layers - recurrent),
        };
        let whole = self.held.len() == 1 && self.held[0] == (0..layers);
        let held: Vec<String> =
            self.held.iter().map(|r| format!("{}:{}", r.start, r.end)).collect();
        match (whole, held.is_empty()) {
            (true, _) => kinds,
            (false, true) => format!("{kinds}; none is in this file"),
            (false, false) => format!("{kinds}; {} in this file", held.join(", ")),
        }
    }

    fn widths_line(&self) -> String {
        let config = self.config;
        let head = if config.tied() { "the head is the embedding table" } else { "its own head" };
        format!(
            "{} residual, {} MLP, {} tokens ({head})",
            config.hidden(),
            config.intermediate(),
            config.vocab()
        )
    }

    fn attention_line(&self) -> String {
        let heads = self.config.heads();
        format!(
            "{} query heads, {} KV heads of {}, {} rotated",
            heads.query,
            heads.kv,
            heads.dim,
            self.config.rope_dims()
        )
    }

    fn weights_line(&self) -> String {
        let (total, ends) = (size(self.total_bytes()), size(self.ends_bytes));
        let (least, most) = self.layer_bytes();
        let (least, most) = (size(least), size(most));
        let layer = if least == most { most } else { format!("{least} to {most}") };
        format!("{total}: {layer} a layer, {ends} the ends")
    }

    fn tokenizer_line(&self) -> String {
        let text = match &self.text {
            Ok(text) => text,
            Err(error) => return format!("none that works: {error}"),
        };
        let pre = self.pre_tokenizer().unwrap_or("tokenizer.json");
        let stops: Vec<String> =
            text.stop_tokens().iter().map(|&id| name(text.token_bytes(id), id)).collect();
        let stops = if stops.is_empty() { "nothing".to_owned() } else { stops.join(" or ") };
        format!("byte-level BPE ({pre}), {} tokens, {stops} ends a reply", text.vocab())
    }
}

/// A token as a user knows it, else its number.
fn name(bytes: &[u8], id: u32) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && !text.contains(char::is_control) => text.to_owned(),
        _ => id.to_string(),
    }
}

/// Bytes in the largest unit that leaves one before the point.
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_largest_unit_that_leaves_one() {
        for (bytes, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_024, "1.0 KiB"),
            (98_362_432, "93.8 MiB"),
            (3 << 40, "3072.0 GiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
