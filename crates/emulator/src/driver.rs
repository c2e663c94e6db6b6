//! The driver: cards, memory, streams, graphs and the functions of `libcuda.so.1` over them.

mod calls;
mod capture;
mod card;
mod code;
mod handle;
pub(crate) mod memory;
mod stream;
mod work;

/// Says on standard error what a code alone can't.
pub(crate) fn say(words: &str) {
    eprintln!("emulator: {words}");
}
