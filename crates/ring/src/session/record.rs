//! Records: what a link carries after the handshake.
//!
//! A record is a u16 length and that many bytes: ciphertext with its 16-byte tag, or, with
//! encryption off, the clear body with 16 bytes of HMAC-SHA256. Either way a body has at most
//! 65,519 bytes. Each frame starts a new record, and all its records but the last are full.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use snow::StatelessTransportState;
use zeroize::Zeroize;

use super::SessionError;

/// Most bytes of a record after its length.
pub const RECORD_BYTES_MAX: usize = 65_535;
/// Bytes of a record's tag.
pub const TAG_BYTES: usize = 16;
/// Most bytes of a record's body.
pub const BODY_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;

/// How the records of a session are protected.
#[derive(Clone)]
pub(super) enum Guard {
    /// Noise ciphertext.
    Noise(Arc<StatelessTransportState>),
    /// Clear body and MAC.
    Mac(Box<Mac>),
}

/// Turns frames into records, in one direction of one session.
pub struct Sealer {
    guard: Guard,
    counter: u64,
    /// The first record of a frame, joined from its two pieces.
    first: Vec<u8>,
}

impl Sealer {
    pub(super) fn new(guard: Guard) -> Self {
        Self { guard, counter: 0, first: Vec::new() }
    }

    /// Appends the records of one frame, given in two pieces, to `out`.
    pub fn seal(&mut self, head: &[u8], payload: &[u8], out: &mut Vec<u8>) {
        let total = head.len() + payload.len();
        let records = total.div_ceil(BODY_BYTES_MAX);
        out.reserve(total + records * (2 + TAG_BYTES));
        // Only the first record holds bytes of both pieces; the others are sealed in place.
        let first = payload.len().min(BODY_BYTES_MAX - head.len());
        let mut body = std::mem::take(&mut self.first);
        body.clear();
        body.extend_from_slice(head);
        body.extend_from_slice(&payload[..first]);
        self.record(&body, out);
        self.first = body;
        for body in payload[first..].chunks(BODY_BYTES_MAX) {
            self.record(body, out);
        }
    }

    fn record(&mut self, body: &[u8], out: &mut Vec<u8>) {
        assert!(!body.is_empty() && body.len() <= BODY_BYTES_MAX, "a record of {}", body.len());
        let sealed = body.len() + TAG_BYTES;
        out.extend_from_slice(&(sealed as u16).to_le_bytes());
        match &self.guard {
            Guard::Noise(noise) => {
                let start = out.len();
                out.resize(start + sealed, 0);
                let written = noise.write_message(self.counter, body, &mut out[start..]);
                assert_eq!(written.ok(), Some(sealed), "a body of legal size always seals");
            }
            Guard::Mac(mac) => {
                out.extend_from_slice(body);
                out.extend_from_slice(&mac.tag(self.counter, body));
            }
        }
        self.counter += 1;
    }
}

/// Turns records back into bodies, in one direction of one session.
pub struct Opener {
    guard: Guard,
    counter: u64,
    body: Vec<u8>,
}

impl Opener {
    pub(super) fn new(guard: Guard) -> Self {
        let body = match &guard {
            Guard::Noise(_) => vec![0; BODY_BYTES_MAX],
            Guard::Mac(_) => Vec::new(),
        };
        Self { guard, counter: 0, body }
    }

    /// The body of the next record, given without its length.
    ///
    /// # Errors
    /// `BadRecord` when the record is not what the other end sealed at this place. Nothing after
    /// that can be trusted: the link ends.
    pub fn open<'a>(&'a mut self, record: &'a [u8]) -> Result<&'a [u8], SessionError> {
        let number = self.counter;
        let bad = || SessionError::BadRecord { number, bytes: record.len() };
        if record.len() <= TAG_BYTES || record.len() > RECORD_BYTES_MAX {
            return Err(bad());
        }
        self.counter += 1;
        match &self.guard {
            Guard::Noise(noise) => {
                let read = noise.read_message(number, record, &mut self.body);
                read.map(|n| &self.body[..n]).map_err(|_| bad())
            }
            Guard::Mac(mac) => {
                let (body, tag) = record.split_at(record.len() - TAG_BYTES);
                if equal(tag, &mac.tag(number, body)) { Ok(body) } else { Err(bad()) }
            }
        }
    }
}

/// The first whole record in `bytes`, without its length; `None` while more must come.
pub fn first_record(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.get(..u16::from_le_bytes(*length) as usize)
}

/// HMAC-SHA256 with its two padded keys already absorbed.
#[derive(Clone)]
pub(super) struct Mac {
    inner: Sha256,
    outer: Sha256,
}

impl Mac {
    /// The MAC under `key`, RFC 2104.
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let padded = |with: u8| {
            let mut pad = [with; 64];
            pad.iter_mut().zip(key).for_each(|(p, k)| *p ^= k);
            let state = Sha256::new().chain_update(pad);
            pad.zeroize();
            state
        };
        Self { inner: padded(0x36), outer: padded(0x5c) }
    }

    /// The whole MAC of the pieces, one after the other.
    pub(super) fn whole(&self, pieces: &[&[u8]]) -> [u8; 32] {
        let mut inner = self.inner.clone();
        pieces.iter().for_each(|p| inner.update(p));
        self.outer.clone().chain_update(inner.finalize()).finalize().into()
    }

    fn tag(&self, counter: u64, body: &[u8]) -> [u8; TAG_BYTES] {
        let whole = self.whole(&[&counter.to_le_bytes(), body]);
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&whole[..TAG_BYTES]);
        tag
    }
}

/// Compares without telling by its time where the first difference is.
fn equal(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn the_mac_is_hmac_sha256() {
        // RFC 4231, test case 1; its 20-byte key is zero-padded to the block either way.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        assert_eq!(
            hex(&Mac::new(&key).whole(&[b"Hi ", b"There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
    }

    #[test]
    fn records_of_a_mac_session_open_in_order_only() {
        let guard = Guard::Mac(Box::new(Mac::new(&[3; 32])));
        let mut out = Vec::new();
        let mut sealer = Sealer::new(guard.clone());
        sealer.seal(b"head", b"one", &mut out);
        sealer.seal(b"head", b"two", &mut out);
        let first = first_record(&out).map(<[u8]>::to_vec).unwrap_or_default();
        let second = first_record(&out[2 + first.len()..]).unwrap_or_default();
        let mut opener = Opener::new(guard.clone());
        assert_eq!(opener.open(&first).ok(), Some(&b"headone"[..]));
        assert!(opener.open(&first).is_err(), "a replayed record");
        assert!(Opener::new(guard.clone()).open(second).is_err(), "a record taken out of turn");
        assert!(Opener::new(guard).open(&first[..TAG_BYTES]).is_err(), "a record without a body");
    }

    #[test]
    fn all_records_of_a_frame_but_the_last_are_full() {
        let mut out = Vec::new();
        let payload = vec![9; 2 * BODY_BYTES_MAX];
        Sealer::new(Guard::Mac(Box::new(Mac::new(&[3; 32])))).seal(&[1; 32], &payload, &mut out);
        let (mut at, mut sizes) = (0, Vec::new());
        while let Some(record) = first_record(&out[at..]) {
            sizes.push(record.len());
            at += 2 + record.len();
        }
        assert_eq!(sizes, [RECORD_BYTES_MAX, RECORD_BYTES_MAX, 32 + TAG_BYTES]);
        assert_eq!(at, out.len());
    }
}
