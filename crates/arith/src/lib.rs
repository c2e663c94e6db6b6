//! The one arithmetic: the scalar reference of every op, normative. `docs/arithmetic.md` is the
//! same in words.
pub mod a16;
pub mod a8;
pub mod attention;
pub mod base;
pub mod candidates;
pub mod count;
pub mod exp;
pub mod float;
pub mod format;
pub mod gdn;
pub mod head;
pub mod linear;
pub mod norm;
pub mod rope;
pub mod sample;
