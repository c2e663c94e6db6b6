//! Tiled attention over a paged cache (section 4).

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// binary16, rounded to nearest even, saturating (the default).
    #[default]
    F16,
    /// binary32; another fingerprint.
    F32,
}

impl KvDtype {
    /// The name in flags, messages and the fingerprint.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Bytes a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// The heads of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads, a multiple of `kv`.
    pub query: usize,
    /// Key/value heads.
    pub kv: usize,
    /// Values a head.
    pub dim: usize,
}
