//! The one arithmetic: the scalar reference of every op, normative. `docs/arithmetic.md` is the
//! same in words.
pub mod attention;
pub mod base;
pub mod float;
pub mod format;
pub mod rope;
