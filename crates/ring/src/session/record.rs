//! Records: what a link carries after the handshake.
//!
//! A record is a u16 length and that many bytes: ciphertext with its 16-byte tag, or, with
//! encryption off, the clear body with 16 bytes of HMAC-SHA256. Either way a body has at most
//! 65,519 bytes. Each frame starts a new record, and all its records but the last are full.

use aes_gcm::Aes256Gcm;
use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit};
use sha2::{Digest, Sha256};
use wire::preamble::Cipher;
use zeroize::Zeroize;

use super::SessionError;

/// Most bytes of a record after its length.
pub const RECORD_BYTES_MAX: usize = 65_535;
/// Bytes of a record's tag.
pub const TAG_BYTES: usize = 16;
/// Most bytes of a record's body.
pub const BODY_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;
/// Bytes of a record's length.
pub const LENGTH_BYTES: usize = 2;

/// How the records of one direction are protected, where they lie.
#[derive(Clone)]
pub(super) enum Guard {
    /// Noise ciphertext, nonces from the least byte up.
    ChaCha(Box<ChaCha20Poly1305>),
    /// Noise ciphertext, nonces from the greatest byte down.
    Aes(Box<Aes256Gcm>),
    /// Clear body and MAC.
    Mac(Box<Mac>),
}

impl Guard {
    /// Noise's transport messages under a key of its split.
    pub(super) fn noise(cipher: Cipher, key: &[u8; 32]) -> Self {
        match cipher {
            Cipher::ChaChaPoly => Self::ChaCha(Box::new(ChaCha20Poly1305::new(key.into()))),
            Cipher::AesGcm => Self::Aes(Box::new(Aes256Gcm::new(key.into()))),
        }
    }

    /// Seals record `number`'s body; its tag.
    fn seal(&self, number: u64, body: &mut [u8]) -> [u8; TAG_BYTES] {
        let sealed = match self {
            Self::ChaCha(cipher) => {
                let nonce = nonce(number.to_le_bytes());
                cipher.encrypt_in_place_detached(&nonce.into(), &[], body)
            }
            Self::Aes(cipher) => {
                let nonce = nonce(number.to_be_bytes());
                cipher.encrypt_in_place_detached(&nonce.into(), &[], body)
            }
            Self::Mac(mac) => return mac.tag(number, body),
        };
        match sealed {
            Ok(tag) => tag.into(),
            Err(_) => unreachable!("a body of legal size always seals"),
        }
    }

    /// Opens record `number`'s body, where the tag is its own.
    fn open(&self, number: u64, body: &mut [u8], tag: &[u8; TAG_BYTES]) -> bool {
        match self {
            Self::ChaCha(cipher) => {
                let nonce = nonce(number.to_le_bytes());
                cipher.decrypt_in_place_detached(&nonce.into(), &[], body, tag.into()).is_ok()
            }
            Self::Aes(cipher) => {
                let nonce = nonce(number.to_be_bytes());
                cipher.decrypt_in_place_detached(&nonce.into(), &[], body, tag.into()).is_ok()
            }
            Self::Mac(mac) => equal(tag, &mac.tag(number, body)),
        }
    }
}

/// Noise's: four zero bytes, then the counter in the cipher's order.
fn nonce(counter: [u8; 8]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter);
    nonce
}

/// Turns frames into records, in one direction of one session.
pub struct Sealer {
    guard: Guard,
    counter: u64,
}

impl Sealer {
    pub(super) fn new(guard: Guard) -> Self {
        Self { guard, counter: 0 }
    }

    /// Appends the records of one frame, given in two pieces, to `out`, and seals them there.
    pub fn seal(&mut self, head: &[u8], payload: &[u8], out: &mut Vec<u8>) {
        let total = head.len() + payload.len();
        let records = total.div_ceil(BODY_BYTES_MAX);
        out.reserve(total + records * (LENGTH_BYTES + TAG_BYTES));
        let (first, rest) = payload.split_at(payload.len().min(BODY_BYTES_MAX - head.len()));
        self.append([head, first], out);
        rest.chunks(BODY_BYTES_MAX).for_each(|body| self.append([body, &[]], out));
    }

    fn append(&mut self, body: [&[u8]; 2], out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        body.iter().for_each(|part| out.extend_from_slice(part));
        out.extend_from_slice(&[0; TAG_BYTES]);
        self.finish(&mut out[at..]);
    }

    /// Makes `record` one whole record, of a body of `bytes` bytes that `write` writes over what
    /// was there, and seals it there. A buffer that is used again is not cleared.
    pub fn seal_in(&mut self, record: &mut Vec<u8>, bytes: usize, write: impl FnOnce(&mut [u8])) {
        record.resize(LENGTH_BYTES + bytes + TAG_BYTES, 0);
        write(&mut record[LENGTH_BYTES..LENGTH_BYTES + bytes]);
        self.finish(record);
    }

    /// Seals a body between room for its length and for its tag.
    fn finish(&mut self, record: &mut [u8]) {
        let sealed = record.len() - LENGTH_BYTES;
        assert!((TAG_BYTES + 1..=RECORD_BYTES_MAX).contains(&sealed), "a record of {sealed}");
        record[..LENGTH_BYTES].copy_from_slice(&(sealed as u16).to_le_bytes());
        let (body, tag) = record[LENGTH_BYTES..].split_at_mut(sealed - TAG_BYTES);
        tag.copy_from_slice(&self.guard.seal(self.counter, body));
        self.counter += 1;
    }
}

/// Turns records back into bodies, in one direction of one session.
pub struct Opener {
    guard: Guard,
    counter: u64,
}

impl Opener {
    pub(super) fn new(guard: Guard) -> Self {
        Self { guard, counter: 0 }
    }

    /// The body of the next record, given without its length, opened where it lies.
    ///
    /// # Errors
    /// `BadRecord` when the record is not what the other end sealed at this place. Nothing after
    /// that can be trusted: the link ends.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<&'a [u8], SessionError> {
        let (number, bytes) = (self.counter, record.len());
        let bad = SessionError::BadRecord { number, bytes };
        if bytes <= TAG_BYTES || bytes > RECORD_BYTES_MAX {
            return Err(bad);
        }
        let Some((body, tag)) = record.split_last_chunk_mut() else { return Err(bad) };
        self.counter += 1;
        if self.guard.open(number, body, tag) { Ok(body) } else { Err(bad) }
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
        let (mut first, mut second) = (first, second.to_vec());
        let mut opener = Opener::new(guard.clone());
        assert_eq!(opener.open(&mut first).ok(), Some(&b"headone"[..]));
        assert!(opener.open(&mut first).is_err(), "a replayed record");
        assert!(Opener::new(guard.clone()).open(&mut second).is_err(), "one taken out of turn");
        assert!(Opener::new(guard).open(&mut first[..TAG_BYTES]).is_err(), "one without a body");
    }

    #[test]
    fn a_body_is_sealed_and_opened_where_it_lies() {
        for cipher in [Cipher::ChaChaPoly, Cipher::AesGcm] {
            let guard = Guard::noise(cipher, &[5; 32]);
            let (mut sealer, mut opener) = (Sealer::new(guard.clone()), Opener::new(guard));
            let mut record = Vec::with_capacity(LENGTH_BYTES + RECORD_BYTES_MAX);
            let place = record.as_ptr_range().start;
            for bytes in [BODY_BYTES_MAX, 1, 20_480] {
                sealer.seal_in(&mut record, bytes, |body| body.fill(7));
                assert_eq!(record.as_ptr(), place, "no other buffer");
                assert!(record[LENGTH_BYTES..].iter().filter(|byte| **byte == 7).count() < 1_000);
                let body = opener.open(&mut record[LENGTH_BYTES..]).ok();
                assert_eq!(body.map(<[u8]>::as_ptr), Some(place.wrapping_add(LENGTH_BYTES)));
                assert!(body.is_some_and(|body| body == vec![7; bytes]));
            }
            // One bit more, and nothing of it is opened.
            sealer.seal_in(&mut record, 64, |body| body.fill(7));
            record[LENGTH_BYTES + 9] ^= 1;
            let sealed = record.clone();
            assert!(opener.open(&mut record[LENGTH_BYTES..]).is_err());
            assert!(record == sealed, "a record that does not open stays sealed");
        }
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
