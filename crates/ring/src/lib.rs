//! ring

pub mod head;
