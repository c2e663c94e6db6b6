//! Faults that a driver could have, planted in the kernels: the probe or the suite must catch each.

use crate::forms::Unit;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A product and a sum made one fma, where the probe looks.
    Contraction,
    /// An fma that rounds its product.
    Unfused,
    /// Subnormal binary16 values taken for zero.
    Flush,
    /// A score's scale and the difference from the largest made one fma.
    ContractedScore,
    /// As [`Defect::Unfused`], in the linear layers alone, where the probe does not look.
    UnfusedLinear,
    /// Two groups of K added in another order.
    SwappedTree,
    /// Chunks of keys that begin a tile apart, where a workgroup takes a chunk.
    OverlappingChunks,
}

impl Defect {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Contraction,
        Self::Unfused,
        Self::Flush,
        Self::ContractedScore,
        Self::UnfusedLinear,
        Self::SwappedTree,
        Self::OverlappingChunks,
    ];

    /// The rule of the probe that catches it; the others are the suite's.
    pub fn rule(self) -> Option<&'static str> {
        match self {
            Self::Contraction => Some("contraction"),
            Self::Unfused => Some("fma"),
            Self::Flush => Some("halves"),
            Self::ContractedScore
            | Self::UnfusedLinear
            | Self::SwappedTree
            | Self::OverlappingChunks => None,
        }
    }

    fn edits(self) -> (Option<Unit>, &'static [(&'static str, &'static str)]) {
        match self {
            Self::Contraction => {
                (Some(Unit::Probe), &[("value = whole(a * b) + c;", "value = fused(a, b, c);")])
            }
            Self::Unfused => (None, &[("fn fused(", UNFUSED)]),
            Self::Flush => (None, &[("let steps = f32(mantissa) * 0x1p-24f;", "let steps = 0.0;")]),
            Self::ContractedScore => (
                Some(Unit::Attention),
                &[
                    ("return whole(s * p.scale);", "return s;"),
                    ("exp_own(s - m)", "exp_own(fused(s, p.scale, -(m * p.scale)))"),
                ],
            ),
            Self::OverlappingChunks => (
                Some(Unit::Attention),
                &[("let first = group.z * p.span;", "let first = group.z;")],
            ),
            Self::UnfusedLinear => (Some(Unit::Linear), &[("fn fused(", UNFUSED)]),
            Self::SwappedTree => (
                Some(Unit::Linear),
                &[(
                    "(parts[at] + parts[at + 16u]) + (parts[at + 32u]",
                    "(parts[at] + parts[at + 32u]) + (parts[at + 16u]",
                )],
            ),
        }
    }

    /// The source of a unit with the fault in it.
    pub(crate) fn planted(self, unit: Unit, mut source: String) -> String {
        let (place, edits) = self.edits();
        if place.is_none_or(|only| only == unit) {
            for (from, to) in edits {
                assert!(source.contains(from), "{self:?} finds no place in {unit:?}");
                source = source.replacen(from, to, 1);
            }
        }
        source
    }
}

const UNFUSED: &str = "\
fn fused(a: f32, b: f32, c: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(a * b) ^ p.nothing) + c;
}

fn fused_right(";
