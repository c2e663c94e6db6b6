//! Named limits of every count and length on the wire.

/// Version of the protocol: in the preamble, the frame header and the message prefix.
pub const VERSION: u16 = 1;
/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 32;
/// Most payload bytes of a control frame.
pub const CONTROL_BYTES_MAX: usize = 1 << 20;
/// Most payload bytes of a plan.
pub const PLAN_BYTES_MAX: usize = 1 << 20;
/// Most payload bytes of one part of a rows frame.
pub const PART_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a stop's reason.
pub const REASON_BYTES_MAX: usize = 4096;
/// Most keeps of a plan, and most that a rank holds.
pub const KEEPS_MAX: usize = 4096;
/// Most rows of a window that may settle in part.
pub const WINDOW_ROWS_MAX: u32 = 32;
/// Most rows of a round, whatever the agreed shapes say.
pub const ROUND_ROWS_MAX: u32 = 1 << 20;
/// Most layers of a model.
pub const LAYERS_MAX: u32 = 4096;
/// Most tap layers of a stage.
pub const TAPS_MAX: usize = 256;
/// Most residual planes of a boundary row.
pub const PLANES_MAX: u8 = 16;
/// Most rounds in flight, and most berths of a rank.
pub const DEPTH_MAX: u32 = 64;
/// Bytes by which a rank's berths are found.
pub const OFFER_BYTES: usize = 128;
/// Bytes of a berth's number.
pub const BERTH_BYTES: usize = 4;
/// Most bytes of a name: engine version, backend, device, a fingerprint field's name.
pub const NAME_BYTES_MAX: usize = 256;
/// Most bytes of a fingerprint field's value.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Most bytes of a fingerprint's field list, encoded without the message prefix.
pub const FIELDS_BYTES_MAX: usize = CONTROL_BYTES_MAX - 64;
/// Most bytes of `expected` and of `found` in a refusal.
pub const REFUSAL_TEXT_BYTES_MAX: usize = 64;
/// Most bytes that a measurement sends at once.
pub const MEASURE_BYTES_MAX: u64 = 64 << 20;
/// Most messages of a measurement.
pub const MEASURES_MAX: u32 = 256;
/// Most streams of a table, in a group's reports.
pub const TABLE_STREAMS_MAX: u32 = 4096;
