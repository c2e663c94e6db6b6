//! Faults that [`Scalar`](super::Scalar) can carry, each one that a real kernel could have.

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
    /// Results of add and silu_mul are not flushed.
    UnflushedRows,
    /// Embeddings leave out the offset of their blocks.
    NoOffset,
}

impl Defect {
    /// Every defect.
    pub const ALL: [Self; 24] = [
        Self::DroppedSlice,
        Self::SwappedTree,
        Self::UnfusedDot,
        Self::TieAway,
        Self::UnflushedLinear,
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
        Self::NoOffset,
    ];
}
