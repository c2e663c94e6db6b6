//! Which form each exact operation takes on a device, and the sources made of them.

use std::fmt;

/// How an operation that a device may round in its own way is made exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forms {
    /// `fma(a, b, c)`, rounded once.
    pub fma: Fma,
    /// Whether the device's `a / b` is corrected.
    pub over_corrected: bool,
    /// Whether its `1 / x` is.
    pub inverse_corrected: bool,
    /// Whether its `sqrt` is.
    pub root_corrected: bool,
    /// Whether products that feed sums are kept from being contracted with them.
    pub products_kept: bool,
}

/// How an fma is rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fma {
    /// The device's own.
    Device,
    /// By f64.
    Wide,
    /// By integers.
    Whole,
}

impl Forms {
    /// The device's own operations, for the first half of the probe.
    pub const DEVICE: Self = Self {
        fma: Fma::Device,
        over_corrected: false,
        inverse_corrected: false,
        root_corrected: false,
        products_kept: false,
    };

    /// Forms that need nothing of a device.
    pub const CAREFUL: Self = Self {
        fma: Fma::Whole,
        over_corrected: true,
        inverse_corrected: true,
        root_corrected: true,
        products_kept: true,
    };

    pub(crate) fn sources(self) -> [&'static str; 5] {
        let pick = |yes, one, other| if yes { one } else { other };
        [
            match self.fma {
                Fma::Device => include_str!("../kernels/forms/fma_device.wgsl"),
                Fma::Wide => include_str!("../kernels/forms/fma_wide.wgsl"),
                Fma::Whole => include_str!("../kernels/forms/fma_whole.wgsl"),
            },
            pick(
                self.over_corrected || self.inverse_corrected,
                include_str!("../kernels/forms/over_corrected.wgsl"),
                include_str!("../kernels/forms/over_device.wgsl"),
            ),
            pick(
                self.inverse_corrected,
                include_str!("../kernels/forms/inverse_corrected.wgsl"),
                include_str!("../kernels/forms/inverse_device.wgsl"),
            ),
            pick(
                self.root_corrected,
                include_str!("../kernels/forms/root_corrected.wgsl"),
                include_str!("../kernels/forms/root_device.wgsl"),
            ),
            pick(
                self.products_kept,
                include_str!("../kernels/forms/whole_kept.wgsl"),
                include_str!("../kernels/forms/whole_device.wgsl"),
            ),
        ]
    }
}

/// What is not the device's own, in words.
impl fmt::Display for Forms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = vec![match self.fma {
            Fma::Device => "its own fma",
            Fma::Wide => "fma by f64",
            Fma::Whole => "fma by integers",
        }];
        let corrected = [
            (self.over_corrected, "division corrected"),
            (self.inverse_corrected, "reciprocals corrected"),
            (self.root_corrected, "roots corrected"),
            (self.products_kept, "products kept"),
        ];
        words.extend(corrected.iter().filter(|(is, _)| *is).map(|(_, words)| *words));
        f.write_str(&words.join(", "))
    }
}

/// A file of kernels, or some that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Rows value by value.
    Rows,
    /// Norms.
    Norm,
    /// Rows as integers.
    Quantise,
    /// Linear layers over block formats.
    Linear,
    /// Linear layers over float formats.
    Floats,
    /// Rows of tables of block formats.
    Embed,
    /// Rows of float tables.
    EmbedFloats,
    /// Keys and values into the cache.
    KvWrite,
    /// Attention.
    Attention,
    /// Recurrent layers.
    Gdn,
    /// The start-up probe.
    Probe,
}

impl Unit {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Rows,
        Self::Norm,
        Self::Quantise,
        Self::Linear,
        Self::Floats,
        Self::Embed,
        Self::EmbedFloats,
        Self::KvWrite,
        Self::Attention,
        Self::Gdn,
        Self::Probe,
    ];

    fn files(self) -> &'static [&'static str] {
        const MATRIX: &str = include_str!("../kernels/matrix.wgsl");
        const TILE: &str = include_str!("../kernels/tile.wgsl");
        const CACHE: &str = include_str!("../kernels/cache.wgsl");
        match self {
            Self::Rows => &[include_str!("../kernels/rows.wgsl")],
            Self::Norm => &[include_str!("../kernels/norm.wgsl")],
            Self::Quantise => &[include_str!("../kernels/quantise.wgsl")],
            Self::Linear => &[
                MATRIX,
                TILE,
                include_str!("../kernels/linear.wgsl"),
                include_str!("../kernels/many.wgsl"),
            ],
            Self::Floats => &[TILE, include_str!("../kernels/floats.wgsl")],
            Self::Embed => &[MATRIX, include_str!("../kernels/embed.wgsl")],
            Self::EmbedFloats => &[include_str!("../kernels/embed_floats.wgsl")],
            Self::KvWrite => &[CACHE, include_str!("../kernels/kv_write.wgsl")],
            Self::Attention => &[CACHE, include_str!("../kernels/attention.wgsl")],
            Self::Gdn => &[include_str!("../kernels/gdn.wgsl")],
            Self::Probe => &[include_str!("../kernels/probe.wgsl")],
        }
    }

    /// The source of its module, its forms first.
    pub fn source(self, forms: Forms) -> String {
        let mut source = forms.sources().join("\n");
        source.push_str(include_str!("../kernels/prelude.wgsl"));
        for file in self.files() {
            source.push('\n');
            source.push_str(file);
        }
        source
    }
}
