//! What a header may hold at most. Far above real models, low enough that a hostile header stays
//! cheap.

/// Metadata keys.
pub const KEYS_MAX: u64 = 4_096;
/// Tensors.
pub const TENSORS_MAX: u64 = 65_536;
/// Bytes of a key or of a tensor's name.
pub const NAME_BYTES_MAX: u64 = 256;
/// Bytes of one string value (a chat template, a licence).
pub const STRING_BYTES_MAX: u64 = 4 << 20;
/// Items of one array (a vocabulary, its merges).
pub const ARRAY_ITEMS_MAX: u64 = 4 << 20;
/// Arrays inside arrays.
pub const NESTING_MAX: u32 = 2;
/// Dims of one tensor.
pub const DIMS_MAX: u32 = 4;
/// Size of one dim.
pub const DIM_MAX: u64 = 1 << 31;
/// Bytes from the start of the file to the end of the tensor infos.
pub const HEADER_BYTES_MAX: u64 = 128 << 20;
/// Alignment of the tensor data.
pub const ALIGNMENT_MAX: u64 = 1 << 16;
