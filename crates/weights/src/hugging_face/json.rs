//! The keys of a `config.json`, each read so that a bad value names its key.

use arith::attention::Heads;
use serde_json::Value;

use crate::WeightsError;
use crate::config::limits;

/// Most characters of a value that an error repeats.
const FOUND_CHARS_MAX: usize = 64;

/// The text model's keys, and the whole file's. A key that is null is as if absent.
pub(crate) struct Json<'a> {
    top: &'a Value,
    text: &'a Value,
    /// Where the text model's keys are, `text_config.` or nothing.
    place: &'static str,
}

/// What may be said of a key that would change what the model computes.
type Switch = (&'static str, fn(&Value) -> bool, &'static str);

/// Keys that may hold nothing but what is implemented.
const SWITCHES: [Switch; 18] = [
    ("hidden_act", |v| *v == "silu" || *v == "swish", "`silu`"),
    ("attention_bias", is_false, "false"),
    ("mlp_bias", is_false, "false"),
    ("use_qk_norm", is_false, "false"),
    ("qk_norm", is_false, "false"),
    ("attention_chunk_size", never, "no such key"),
    ("no_rope_layers", is_empty, "no such key"),
    ("num_experts", is_zero, "0: a model without experts"),
    ("num_local_experts", is_zero, "0: a model without experts"),
    ("n_routed_experts", is_zero, "0: a model without experts"),
    ("attn_logit_softcapping", never, "no such key"),
    ("final_logit_softcapping", never, "no such key"),
    ("query_pre_attn_scalar", never, "no such key"),
    ("logits_scaling", is_one, "1"),
    ("embedding_multiplier", is_one, "1"),
    ("residual_multiplier", is_one, "1"),
    ("attention_multiplier", never, "no such key"),
    ("pruned_heads", is_empty, "no pruned heads"),
];

fn is_false(value: &Value) -> bool {
    *value == false
}

fn is_zero(value: &Value) -> bool {
    value.as_u64() == Some(0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(|o| o.is_empty())
}

fn never(_: &Value) -> bool {
    false
}

fn describe(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(FOUND_CHARS_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "another number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn get<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

impl<'a> Json<'a> {
    /// Of a model of text only.
    pub fn flat(top: &'a Value) -> Self {
        Self { top, text: top, place: "" }
    }

    /// Of a model whose text part is under `key`.
    pub fn nested(top: &'a Value, key: &'static str) -> Result<Self, WeightsError> {
        match get(top, key) {
            Some(text) if text.is_object() => Ok(Self { top, text, place: "text_config." }),
            found => Err(WeightsError::KeyType {
                key: key.to_owned(),
                expected: "an object",
                found: found.map_or("nothing", kind),
            }),
        }
    }

    pub fn get(&self, name: &str) -> Option<&'a Value> {
        get(self.text, name)
    }

    pub fn name(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// The refusal of key `name`, which holds `found`.
    pub fn bad(&self, name: &str, expected: String, found: impl ToString) -> WeightsError {
        WeightsError::KeyValue { key: self.name(name), expected, found: found.to_string() }
    }

    /// The refusal of key `name`, whose value is not implemented.
    pub fn unsupported(&self, name: &str, expected: &str, found: &Value) -> WeightsError {
        WeightsError::UnsupportedKey {
            key: self.name(name),
            expected: expected.to_owned(),
            found: describe(found),
        }
    }

    fn mistyped(&self, name: &str, expected: &'static str, found: &Value) -> WeightsError {
        WeightsError::KeyType { key: self.name(name), expected, found: kind(found) }
    }

    fn missing(&self, name: &str, expected: String) -> WeightsError {
        WeightsError::MissingKey { key: self.name(name), expected }
    }

    /// A text.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, WeightsError> {
        let value = self.get(name);
        let text = |v: &'a Value| v.as_str().ok_or_else(|| self.mistyped(name, "a string", v));
        value.map(text).transpose()
    }

    /// A truth value.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, WeightsError> {
        let value = self.get(name);
        let truth = |v: &'a Value| v.as_bool().ok_or_else(|| self.mistyped(name, "a bool", v));
        value.map(truth).transpose()
    }

    /// A count within limits, where there is one.
    pub fn optional(&self, name: &str, min: u32, max: u32) -> Result<Option<u32>, WeightsError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        if !value.is_number() {
            return Err(self.mistyped(name, "an integer", value));
        }
        let within = |n: &u32| (min..=max).contains(n);
        let found = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(within);
        found.map(Some).ok_or_else(|| self.bad(name, format!("{min} to {max}"), value))
    }

    /// A count of at least 1.
    pub fn required(&self, name: &str, max: u32) -> Result<u32, WeightsError> {
        let found = self.optional(name, 1, max)?;
        found.ok_or_else(|| self.missing(name, format!("1 to {max}")))
    }

    /// A number above 0.
    pub fn float(&self, name: &str, default: Option<f64>, max: f64) -> Result<f64, WeightsError> {
        self.float_in(self.text, name, max)?
            .or(default)
            .ok_or_else(|| self.missing(name, format!("a number above 0, at most {max}")))
    }

    fn float_in(
        &self,
        object: &'a Value,
        name: &str,
        max: f64,
    ) -> Result<Option<f64>, WeightsError> {
        match get(object, name) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(x) if x > 0.0 && x <= max => Ok(Some(x)),
                Some(x) => Err(self.bad(name, format!("a number above 0, at most {max}"), x)),
                None => Err(self.mistyped(name, "a number", value)),
            },
        }
    }

    /// Whether the head is the embedding table: the text model's word before the file's.
    pub fn tied(&self) -> Result<bool, WeightsError> {
        const KEY: &str = "tie_word_embeddings";
        let own = self.bool(KEY)?;
        Ok(own.or(Json::flat(self.top).bool(KEY)?).unwrap_or(false))
    }

    /// Attention heads; without `head_dim` they share the width.
    pub fn heads(&self, hidden: u32) -> Result<Heads, WeightsError> {
        let query = self.required("num_attention_heads", limits::HEADS_MAX)?;
        let kv = self.optional("num_key_value_heads", 1, query)?.unwrap_or(query);
        if !query.is_multiple_of(kv) {
            let expected = format!("a divisor of the {query} query heads");
            return Err(self.bad("num_key_value_heads", expected, kv));
        }
        let most = limits::HEAD_DIM_MAX;
        let dim = match self.optional("head_dim", 2, most)? {
            Some(dim) => dim,
            None if hidden.is_multiple_of(query) && (2..=most).contains(&(hidden / query)) => {
                hidden / query
            }
            None => {
                let expected = format!("a divisor of the width {hidden} with heads of 2 to {most}");
                return Err(self.bad("num_attention_heads", expected, query));
            }
        };
        Ok(Heads { query: query as usize, kv: kv as usize, dim: dim as usize })
    }

    /// The base of RoPE and the dims of a head that it rotates, of `dim`: in `rope_parameters`, or
    /// beside the other keys as older files have them. `rotated` is the part where none is given.
    pub fn rope(
        &self,
        dim: usize,
        theta: Option<f64>,
        rotated: f64,
    ) -> Result<(f64, usize), WeightsError> {
        let nested = ["rope_parameters", "rope_scaling"].map(|name| (name, self.get(name)));
        let mut found = [None, None];
        for (name, value) in nested.into_iter().chain([("", Some(self.text))]) {
            let Some(value) = value else { continue };
            if !value.is_object() {
                return Err(self.mistyped(name, "an object", value));
            }
            for key in ["rope_type", "type"].into_iter().filter(|_| !name.is_empty()) {
                match get(value, key) {
                    // Positions of text are the same in all three of M-RoPE's directions.
                    Some(v) if *v == "default" || *v == "mrope" => {}
                    Some(v) => {
                        return Err(self.unsupported(&format!("{name}.{key}"), "`default`", v));
                    }
                    None => {}
                }
            }
            let factor = self.float_in(value, "partial_rotary_factor", 1.0)?;
            found = [
                found[0].or(self.float_in(value, "rope_theta", limits::THETA_MAX)?),
                found[1].or(factor),
            ];
        }
        let theta = found[0].or(theta);
        let theta = theta.ok_or_else(|| self.missing("rope_theta", "RoPE's base".to_owned()))?;
        let factor = found[1].unwrap_or(rotated);
        let dims = (dim as f64 * factor) as usize;
        if dims < 2 || !dims.is_multiple_of(2) {
            let expected = format!("an even part of the {dim} dims of a head");
            return Err(self.bad("partial_rotary_factor", expected, factor));
        }
        Ok((theta, dims))
    }

    /// Refuses what would change what the model computes and is not implemented.
    pub fn refuse_switches(&self) -> Result<(), WeightsError> {
        for (name, is_known, expected) in SWITCHES {
            if let Some(found) = self.get(name).filter(|v| !is_known(v)) {
                return Err(self.unsupported(name, expected, found));
            }
        }
        let window = self.get("sliding_window");
        if let Some(found) =
            window.filter(|_| self.get("use_sliding_window") != Some(&false.into()))
        {
            return Err(self.unsupported("sliding_window", "null: no window", found));
        }
        self.refuse_quantisation()?;
        Json::flat(self.top).refuse_quantisation()
    }

    /// A mistral without the key has a window, as its transformers class says.
    pub fn refuse_hidden_window(&self) -> Result<(), WeightsError> {
        match self.text.get("sliding_window") {
            Some(_) => Ok(()),
            None => Err(self.missing("sliding_window", "null: no window".to_owned())),
        }
    }

    /// Refuses stored forms other than MLX's affine one, which has no `quant_method`.
    fn refuse_quantisation(&self) -> Result<(), WeightsError> {
        for name in ["quantization_config", "quantization"] {
            let Some(value) = self.get(name) else { continue };
            if let Some(found) = get(value, "quant_method") {
                let name = format!("{name}.quant_method");
                return Err(self.unsupported(&name, "MLX's affine quantisation", found));
            }
            if let Some(found) = get(value, "mode").filter(|v| **v != "affine") {
                return Err(self.unsupported(&format!("{name}.mode"), "`affine`", found));
            }
        }
        Ok(())
    }
}
