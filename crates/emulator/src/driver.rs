//! The driver: cards, memory, streams, graphs and the functions of `libcuda.so.1` over them.

mod calls;
mod capture;
mod card;
mod code;
mod handle;
pub(crate) mod memory;
mod stream;
mod work;

pub(crate) use card::sound;
pub(crate) use handle::{Handle, Handles};
pub(crate) use stream::current;
pub(crate) use work::{Job, Work};

/// Says on standard error what a code alone can't.
pub(crate) fn say(words: &str) {
    eprintln!("emulator: {words}");
}
