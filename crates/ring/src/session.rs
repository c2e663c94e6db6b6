//! A link's session without I/O: Noise handshake, then records. `docs/wire.md`, "Link".

pub mod handshake;
pub mod record;

use wire::WireError;

/// Why a session could not begin or go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The other end does not hold this ring's secret.
    #[error("BadSecret: its first message was not made with this ring's secret")]
    BadSecret,
    /// The same, seen from the other end.
    #[error("BadSecret: it closed the link on this rank's first message: is the secret the same?")]
    Unanswered,
    /// Message 2 was not made for this handshake.
    #[error("BadAnswer: its second message was not made for this handshake")]
    BadAnswer,
    /// A handshake message of a size that none has.
    #[error("BadMessage: a handshake message of {found} bytes, expected {min}..={max}")]
    BadMessage {
        /// Fewest bytes.
        min: usize,
        /// Most bytes.
        max: usize,
        /// Bytes announced.
        found: usize,
    },
    /// The system has no randomness for a fresh key.
    #[error("NoRandom: {0}")]
    NoRandom(String),
    /// A preamble or hello that is not this protocol's.
    #[error(transparent)]
    Hello(#[from] WireError),
    /// A record that the other end did not seal at this place.
    #[error("BadRecord: record {number} of {bytes} bytes is not what the other end sealed")]
    BadRecord {
        /// Records before it in this direction.
        number: u64,
        /// Its bytes.
        bytes: usize,
    },
    /// A frame that does not begin with a record and end with one, all but the last full.
    #[error("BadCut: a record of {bytes} bytes where the frame has {left} left")]
    BadCut {
        /// Bytes of the record's body.
        bytes: usize,
        /// Bytes of the frame still to come.
        left: u64,
    },
}

impl SessionError {
    /// The error's name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadSecret | Self::Unanswered => "BadSecret",
            Self::BadAnswer => "BadAnswer",
            Self::BadMessage { .. } => "BadMessage",
            Self::NoRandom(_) => "NoRandom",
            Self::Hello(error) => error.code(),
            Self::BadRecord { .. } => "BadRecord",
            Self::BadCut { .. } => "BadCut",
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::handshake::{self, Finished};
    use super::*;
    use crate::key::Key;
    use wire::preamble::Cipher;

    const PROLOGUE: [u8; 16] = *b"connectacceptors";

    fn shake(
        cipher: Cipher,
        ours: &Key,
        theirs: &Key,
    ) -> Result<(Finished, Finished), SessionError> {
        let (called, one) = handshake::connect(ours, cipher, &PROLOGUE).call(b"hello")?;
        let (answering, payload) = handshake::accept(theirs, cipher, &PROLOGUE).called(&one)?;
        assert_eq!(payload, b"hello");
        let (acceptor, two) = answering.answer(b"welcome")?;
        let (connector, payload) = called.answered(&two)?;
        assert_eq!(payload, b"welcome");
        Ok((connector, acceptor))
    }

    fn key(byte: u8) -> Key {
        Key::from_bytes(&[byte; 32]).unwrap()
    }

    #[test]
    fn both_ciphers_and_both_modes_carry_records_both_ways() {
        for cipher in [Cipher::ChaChaPoly, Cipher::AesGcm] {
            for encrypt in [true, false] {
                let (connector, acceptor) = shake(cipher, &key(1), &key(1)).unwrap();
                let ((mut s1, mut o1), (mut s2, mut o2)) =
                    (connector.records(encrypt), acceptor.records(encrypt));
                for n in 0..3u8 {
                    let (mut there, mut back) = (Vec::new(), Vec::new());
                    s1.seal(b"there", &[n; 100], &mut there);
                    s2.seal(b"back", &[n; 100], &mut back);
                    assert_eq!(there[2..].windows(5).any(|w| w == b"there"), !encrypt);
                    assert_eq!(o2.open(&mut there[2..]).unwrap()[..5], *b"there");
                    assert_eq!(o1.open(&mut back[2..]).unwrap()[..4], *b"back");
                }
            }
        }
    }

    #[test]
    fn a_record_does_not_open_in_the_other_direction_or_session() {
        for encrypt in [true, false] {
            let (connector, acceptor) = shake(Cipher::ChaChaPoly, &key(1), &key(1)).unwrap();
            let (_, other) = shake(Cipher::ChaChaPoly, &key(1), &key(1)).unwrap();
            let (mut sealer, mut own) = connector.records(encrypt);
            let mut out = Vec::new();
            sealer.seal(b"head", b"body", &mut out);
            assert!(own.open(&mut out[2..]).is_err(), "reflected");
            assert!(other.records(encrypt).1.open(&mut out[2..]).is_err(), "of another session");
            assert!(acceptor.records(encrypt).1.open(&mut out[2..]).is_ok());
        }
    }

    #[test]
    fn another_key_or_none_is_a_bad_secret() {
        for theirs in [key(2), Key::loopback()] {
            let refused = shake(Cipher::AesGcm, &key(1), &theirs).err();
            assert_eq!(refused, Some(SessionError::BadSecret));
        }
        assert!(shake(Cipher::AesGcm, &Key::loopback(), &Key::loopback()).is_ok());
    }

    #[test]
    fn another_prologue_is_refused() {
        let (_, one) =
            handshake::connect(&key(1), Cipher::AesGcm, &PROLOGUE).call(b"hello").unwrap();
        let acceptor = handshake::accept(&key(1), Cipher::AesGcm, b"connectacceptorz");
        assert_eq!(acceptor.called(&one).err(), Some(SessionError::BadSecret));
    }
}
