//! What a message holds, as words of a ring: values, two a word, or bytes, eight a word.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is given.
#[derive(Clone, Copy)]
pub(crate) enum Load<'a> {
    /// Of an exchange.
    Values(&'a [f32]),
    /// Of a call.
    Bytes(&'a [u8]),
}

/// Where it comes.
pub(crate) enum Place<'a> {
    /// Of an exchange.
    Values(&'a mut [f32]),
    /// Of a call.
    Bytes(&'a mut [u8]),
}

impl Load<'_> {
    /// Values or bytes.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Values(values) => values.len() as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Words that it takes.
    pub(crate) fn words(&self) -> usize {
        match self {
            Self::Values(values) => values.len().div_ceil(2),
            Self::Bytes(bytes) => bytes.len().div_ceil(8),
        }
    }

    /// Writes from word `first` on, as far as there are words; how many words.
    pub(crate) fn write(&self, first: usize, words: &[AtomicU64]) -> usize {
        match self {
            Self::Values(values) => write_values(words, &values[2 * first..]),
            Self::Bytes(bytes) => {
                for (word, bytes) in words.iter().zip(bytes[8 * first..].chunks(8)) {
                    let mut whole = [0; 8];
                    whole[..bytes.len()].copy_from_slice(bytes);
                    word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
                }
            }
        }
        words.len()
    }
}

impl Place<'_> {
    /// What comes, as it is given.
    pub(crate) fn load(&self) -> Load<'_> {
        match self {
            Self::Values(values) => Load::Values(values),
            Self::Bytes(bytes) => Load::Bytes(bytes),
        }
    }

    /// Reads from word `first` on, as far as there are words; how many words.
    pub(crate) fn read(&mut self, first: usize, words: &[AtomicU64]) -> usize {
        match self {
            Self::Values(values) => read_values(words, &mut values[2 * first..]),
            Self::Bytes(bytes) => {
                for (word, bytes) in words.iter().zip(bytes[8 * first..].chunks_mut(8)) {
                    let whole = word.load(Ordering::Relaxed).to_le_bytes();
                    bytes.copy_from_slice(&whole[..bytes.len()]);
                }
            }
        }
        words.len()
    }
}

/// Writes values as far as there are words.
fn write_values(words: &[AtomicU64], values: &[f32]) {
    let (pairs, last) = values.as_chunks::<2>();
    let bits = |value: f32| u64::from(value.to_bits());
    for (word, [first, second]) in words.iter().zip(pairs) {
        word.store(bits(*first) | bits(*second) << 32, Ordering::Relaxed);
    }
    if let (Some(word), [value]) = (words.get(pairs.len()), last) {
        word.store(bits(*value), Ordering::Relaxed);
    }
}

/// Reads values as far as there are words.
fn read_values(words: &[AtomicU64], place: &mut [f32]) {
    let (pairs, last) = place.as_chunks_mut::<2>();
    let whole = pairs.len();
    for (word, pair) in words.iter().zip(pairs) {
        let word = word.load(Ordering::Relaxed);
        *pair = [word, word >> 32].map(|half| f32::from_bits(half as u32));
    }
    if let (Some(word), [value]) = (words.get(whole), last) {
        *value = f32::from_bits(word.load(Ordering::Relaxed) as u32);
    }
}
