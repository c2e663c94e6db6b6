//! MLX's affine quantisation: what config.json says of it, and the three tensors that hold one
//! matrix: `X.weight` (words of codes), `X.scales` and `X.biases`.

use std::collections::BTreeMap;

use arith::format::{Format, Mlx, Scales};
use serde_json::{Map, Value};

use crate::WeightsError;
use crate::tensor::{Dtype, Piece, TensorInfo};

/// Most modules with an entry of their own.
const OVERRIDES_MAX: usize = 1 << 18;
/// The modes that this is not.
const OTHER_MODES: &str = "`affine`";

/// How the modules of a checkpoint are quantised, where their scales say that they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quantisation {
    /// Of every module without an entry of its own.
    default: Option<Width>,
    /// By the module's path without `language_model`.
    overrides: BTreeMap<String, Width>,
}

/// Bits and group of a module, and where config.json says so.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Width {
    key: String,
    bits: u8,
    group: u8,
    /// A mode that is not read.
    other_mode: Option<String>,
}

impl Quantisation {
    /// What `config` says: `quantization`, or `quantization_config` where it is MLX's; in
    /// `text_config` where the top level is silent.
    ///
    /// # Errors
    /// Another method than MLX's, and a width, group or entry that cannot be, each by its key.
    pub fn read(config: &Value) -> Result<Self, WeightsError> {
        for (within, prefix) in [(config, ""), (&config["text_config"], "text_config.")] {
            for key in ["quantization", "quantization_config"] {
                let at = format!("{prefix}{key}");
                match within.get(key) {
                    None | Some(Value::Null) => {}
                    Some(Value::Object(entries)) => return Self::parse(&at, entries),
                    Some(other) => return Err(value(&at, "an object", other)),
                }
            }
        }
        Ok(Self::default())
    }

    fn parse(key: &str, entries: &Map<String, Value>) -> Result<Self, WeightsError> {
        if let Some(method) = entries.get("quant_method") {
            return Err(WeightsError::UnsupportedKey {
                key: format!("{key}.quant_method"),
                expected: "MLX's affine quantisation, which has no such key".to_owned(),
                found: WeightsError::excerpt(&method.to_string()),
            });
        }
        if entries.len() > OVERRIDES_MAX {
            return Err(WeightsError::Limit {
                what: format!("the entry count of `{key}`"),
                limit: OVERRIDES_MAX as u64,
                found: entries.len() as u64,
            });
        }
        let mut all = Self { default: Some(Width::parse(key, entries)?), ..Self::default() };
        for (path, entry) in entries {
            let at = format!("{key}.{path}");
            let width = match entry {
                Value::Object(entry) => Width::parse(&at, entry)?,
                // Whether a module is quantised its scales say; how, the default.
                Value::Bool(_) => continue,
                _ if ["group_size", "bits", "mode"].contains(&path.as_str()) => continue,
                other => return Err(value(&at, "an object, true or false", other)),
            };
            if let Some(twice) = all.overrides.insert(plain(path), width) {
                let what = "a module of config.json's quantisation,";
                return Err(WeightsError::Duplicate { what, name: twice.key });
            }
        }
        Ok(all)
    }

    /// How the quantised module at `path` is stored.
    ///
    /// # Errors
    /// [`WeightsError::MissingKey`] where config.json does not say;
    /// [`WeightsError::UnsupportedKey`] for another mode.
    pub fn of(&self, path: &str, scales: Scales) -> Result<Mlx, WeightsError> {
        let width = self.overrides.get(&plain(path)).or(self.default.as_ref());
        let width = width.ok_or_else(|| WeightsError::MissingKey {
            key: "quantization".to_owned(),
            expected: format!("bits and group_size of the quantised `{path}`"),
        })?;
        match &width.other_mode {
            Some(found) => Err(WeightsError::UnsupportedKey {
                key: format!("{}.mode", width.key),
                expected: OTHER_MODES.to_owned(),
                found: found.clone(),
            }),
            None => Ok(Mlx { bits: width.bits, group: width.group, scales }),
        }
    }
}

/// A module's path however its container is nested.
fn plain(path: &str) -> String {
    path.split('.').filter(|part| *part != "language_model").collect::<Vec<_>>().join(".")
}

fn value(key: &str, expected: &str, found: &Value) -> WeightsError {
    WeightsError::KeyValue {
        key: key.to_owned(),
        expected: expected.to_owned(),
        found: WeightsError::excerpt(&found.to_string()),
    }
}

impl Width {
    fn parse(key: &str, entry: &Map<String, Value>) -> Result<Self, WeightsError> {
        let other_mode = match entry.get("mode") {
            None | Some(Value::Null) => None,
            Some(Value::String(mode)) if mode == "affine" => None,
            Some(Value::String(mode)) => Some(format!("`{}`", WeightsError::excerpt(mode))),
            Some(other) => return Err(value(&format!("{key}.mode"), "a name", other)),
        };
        let number = |name: &str, known: &[u8]| {
            let at = format!("{key}.{name}");
            let found = entry.get(name).ok_or_else(|| WeightsError::MissingKey {
                key: at.clone(),
                expected: format!("one of {known:?}"),
            })?;
            let known_here = found.as_u64().and_then(|n| u8::try_from(n).ok());
            match known_here.filter(|n| known.contains(n) || other_mode.is_some()) {
                Some(number) => Ok(number),
                None => Err(value(&at, &format!("one of {known:?}"), found)),
            }
        };
        let (bits, group) = (number("bits", &Mlx::BITS)?, number("group_size", &Mlx::GROUPS)?);
        Ok(Self { key: key.to_owned(), bits, group, other_mode })
    }
}

/// One matrix of its codes, scales and biases, whose shapes must fit each other and `width`.
///
/// # Errors
/// [`WeightsError::UnsupportedType`]; [`WeightsError::Quantised`] with what does not fit.
pub(crate) fn join(
    name: &str,
    quantisation: &Quantisation,
    [weight, scales, biases]: [Piece; 3],
) -> Result<TensorInfo, WeightsError> {
    let unsupported = |piece: &Piece, expected| WeightsError::UnsupportedType {
        name: piece.name.clone(),
        found: piece.dtype.to_string(),
        expected,
    };
    let kind = match scales.dtype {
        Dtype::Values(Format::F32) => Scales::F32,
        Dtype::Values(Format::F16) => Scales::F16,
        Dtype::Values(Format::Bf16) => Scales::Bf16,
        _ => return Err(unsupported(&scales, "F32, F16 or BF16 for scales")),
    };
    if weight.dtype != Dtype::Words {
        return Err(unsupported(&weight, "U32 beside scales"));
    }
    let path = weight.name.strip_suffix(".weight").unwrap_or(&weight.name);
    let mlx = quantisation.of(path, kind)?;
    let (&[rows, words], &[scale_rows, groups]) = (&weight.dims[..], &scales.dims[..]) else {
        return Err(mismatch(&weight, "two dims, of it and its scales", &scales));
    };
    if biases.dims != scales.dims || biases.dtype != scales.dtype {
        return Err(mismatch(&biases, "the shape and dtype of its scales", &scales));
    }
    let cols = groups.saturating_mul(mlx.group.into());
    let packed = cols.checked_mul(mlx.bits.into()).map(|bits| bits / 32);
    if scale_rows != rows || packed != Some(words) {
        let expected = format!(
            "[rows, {}] for {} groups of {} codes of {} bits",
            packed.unwrap_or(u64::MAX),
            groups,
            mlx.group,
            mlx.bits
        );
        return Err(mismatch(&weight, &expected, &scales));
    }
    let mut tensor = TensorInfo::new(name, Format::Mlx(mlx), &[cols, rows])?;
    tensor.pieces = vec![weight, scales, biases];
    Ok(tensor)
}

fn mismatch(piece: &Piece, expected: &str, scales: &Piece) -> WeightsError {
    WeightsError::Quantised {
        name: piece.name.clone(),
        expected: expected.to_owned(),
        found: format!(
            "{} {:?} beside scales {} {:?}",
            piece.dtype, piece.dims, scales.dtype, scales.dims
        ),
    }
}
