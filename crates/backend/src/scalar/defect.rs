//! Faults that [`Scalar`](super::Scalar) can carry, each one that a real kernel could have.

use arith::base::Arith;

/// One planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Defect {
    /// The last slice of K is left out (where there is more than one).
    DroppedSlice,
    /// Groups are added as `(g0 + g2) + (g1 + g3)`, and so on.
    SwappedTree,
    /// `acc + dot * a` with two roundings instead of one fma.
    UnfusedDot,
    /// Quantisation rounds ties away from zero.
    TieAway,
    /// Linear outputs are not flushed.
    UnflushedLinear,
    /// Nodes of a share of K are flushed, as outputs are.
    FlushedNode,
    /// A share of K is cut in eight groups of its own.
    OwnGroups,
    /// Scales below binary16's normal values count as 0.
    SubnormalScale,
    /// Rows of magnitude 2^60 and more are computed with instead of marked.
    HugeRow,
    /// Eight rows and more take another order than fewer.
    BatchOrder,
    /// The last row of a tail of three is not computed: its output stays as it was.
    StaleRow,
    /// Norm lanes are folded 1, 2, 4, 8, 16 instead of 16, 8, 4, 2, 1.
    WrongFold,
    /// The norm divides its sum by n instead of multiplying by f32(1/n).
    NormDivides,
    /// RoPE rotates the pairs of the other pairing.
    OtherPairing,
    /// Keys past the row's own position, up to the end of their tile, are seen.
    StaleTail,
    /// A row reads its own key before rounding.
    UnroundedOwnKey,
    /// Subnormal binary16 keys and values keep their value.
    SubnormalHalf,
    /// Keys and values beyond 65504 become infinite.
    InfiniteHalf,
    /// Tiles are merged in one run, without chunks.
    NoChunks,
    /// A tile's sums are not flushed before they are merged.
    UnflushedTile,
    /// Tile edges are 32 keys off.
    ShiftedTiles,
    /// Every row reads the pages of the round's first stream.
    FirstTable,
    /// silu goes on below -40.
    SiluTail,
    /// silu through another exponential, more exact than ours.
    OtherExp,
    /// Results of gate and silu_mul are not flushed.
    UnflushedRows,
    /// Sums of two rows are not flushed.
    UnflushedAdd,
    /// Of equal candidates the last is the best.
    LastOfEqual,
    /// Of a spoilt row candidates are given, where it holds no NaN.
    UnseenSpoilt,
    /// Candidates have the ids of the member's own rows.
    OwnIds,
    /// Embeddings leave out the offset of their blocks.
    NoOffset,
    /// Codes of formats without offsets are not lessened by their zero point.
    NoZeroPoint,
    /// Codes of five bits lose the fifth.
    NoFifthBit,
    /// Q6_K's factors are read without their sign.
    UnsignedFactor,
    /// Offsets are summed on their own and added at a slice's end.
    OffsetsApart,
    /// norm_project takes rows as they come.
    UnnormedRows,
    /// norm_gated takes silu of the factor.
    SwappedGate,
    /// MLX scales and biases are exchanged.
    SwappedAffine,
    /// MLX codes end with their byte.
    CutCode,
    /// copy_rows begins at the first row.
    ShiftedRows,
    /// copy_page leaves the values behind.
    KeysOnly,
    /// head_norm takes the mean of the whole row.
    WideHead,
    /// gated_norm multiplies by the gate before the weight.
    GateFirst,
    /// beta and decay are not flushed.
    UnflushedGates,
    /// softplus goes on above 20.
    OpenSoftplus,
    /// softplus as max(x, 0) + log1p(exp(-|x|)), more exact than ours.
    OtherSoftplus,
    /// The convolution takes its taps newest first.
    ReversedTaps,
    /// A tail lacks the walk's last row.
    StaleConvTail,
    /// A resumed walk has no rows before its first.
    FreshTail,
    /// The L2 norm adds its eps outside the root.
    OuterEps,
    /// Queries are not scaled.
    UnscaledQuery,
    /// Value heads go with the key heads of the other order.
    OtherKeyHead,
    /// Key lanes are folded 1, 2 instead of 2, 1.
    WrongKeyFold,
    /// S is not flushed after its decay.
    UnflushedDecay,
    /// S is not flushed after its update.
    UnflushedUpdate,
    /// S decays after its update.
    LateDecay,
    /// The query reads S before its update.
    EarlyRead,
    /// S is updated with two roundings.
    UnfusedUpdate,
    /// A fresh walk goes on from what its place holds.
    StaleState,
    /// A walk goes on from the place that it writes.
    OwnPlace,
    /// copy_state leaves the tail behind.
    NoTailCopy,
    /// Arith 2: the pieces of a slice take the scale of its first activation block.
    FirstScale,
    /// Arith 2: `dot * a * d` with the product of the scales unrounded.
    UnroundedScale,
    /// Arith 2: sums of activations run over the whole weight block, under its first scale.
    WideSums,
    /// Arith 2: the scale is left to the slice's end, as in arith 1.
    SliceScale,
    /// Arith 2: two pieces of 16 are added before they are scaled.
    PairedBlocks,
}

impl Defect {
    /// Every defect.
    pub const ALL: [Self; 65] = [
        Self::DroppedSlice,
        Self::SwappedTree,
        Self::UnfusedDot,
        Self::TieAway,
        Self::UnflushedLinear,
        Self::FlushedNode,
        Self::OwnGroups,
        Self::SubnormalScale,
        Self::HugeRow,
        Self::BatchOrder,
        Self::StaleRow,
        Self::WrongFold,
        Self::NormDivides,
        Self::OtherPairing,
        Self::StaleTail,
        Self::UnroundedOwnKey,
        Self::SubnormalHalf,
        Self::InfiniteHalf,
        Self::NoChunks,
        Self::UnflushedTile,
        Self::ShiftedTiles,
        Self::FirstTable,
        Self::SiluTail,
        Self::OtherExp,
        Self::UnflushedRows,
        Self::UnflushedAdd,
        Self::LastOfEqual,
        Self::UnseenSpoilt,
        Self::OwnIds,
        Self::NoOffset,
        Self::NoZeroPoint,
        Self::NoFifthBit,
        Self::UnsignedFactor,
        Self::OffsetsApart,
        Self::UnnormedRows,
        Self::SwappedGate,
        Self::SwappedAffine,
        Self::CutCode,
        Self::ShiftedRows,
        Self::KeysOnly,
        Self::WideHead,
        Self::GateFirst,
        Self::UnflushedGates,
        Self::OpenSoftplus,
        Self::OtherSoftplus,
        Self::ReversedTaps,
        Self::StaleConvTail,
        Self::FreshTail,
        Self::OuterEps,
        Self::UnscaledQuery,
        Self::OtherKeyHead,
        Self::WrongKeyFold,
        Self::UnflushedDecay,
        Self::UnflushedUpdate,
        Self::LateDecay,
        Self::EarlyRead,
        Self::UnfusedUpdate,
        Self::StaleState,
        Self::OwnPlace,
        Self::NoTailCopy,
        Self::FirstScale,
        Self::UnroundedScale,
        Self::WideSums,
        Self::SliceScale,
        Self::PairedBlocks,
    ];

    /// The arithmetic that it is a fault of; for most, both.
    pub fn arith(self) -> Arith {
        match self {
            Self::FirstScale
            | Self::UnroundedScale
            | Self::WideSums
            | Self::SliceScale
            | Self::PairedBlocks => Arith::Two,
            _ => Arith::One,
        }
    }
}
