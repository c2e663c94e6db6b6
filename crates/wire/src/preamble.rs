//! The eight clear bytes that each end sends before the handshake.

use crate::error::{Fault, WireError};
use crate::limit::VERSION;

/// Bytes of a preamble.
pub const PREAMBLE_BYTES: usize = 8;

const MAGIC: [u8; 4] = *b"BATN";

/// The cipher of a link; both ends must say the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// ChaCha20-Poly1305.
    #[default]
    ChaChaPoly = 1,
    /// AES-256-GCM.
    AesGcm = 2,
}

impl Cipher {
    /// The Noise protocol that this cipher completes.
    pub fn noise(self) -> &'static str {
        match self {
            Self::ChaChaPoly => "Noise_NNpsk0_25519_ChaChaPoly_SHA256",
            Self::AesGcm => "Noise_NNpsk0_25519_AESGCM_SHA256",
        }
    }

    /// The name in configuration and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChaChaPoly => "chachapoly",
            Self::AesGcm => "aesgcm",
        }
    }
}

/// "BATN", version u16, cipher u8, 0.
pub fn encode(cipher: Cipher) -> [u8; PREAMBLE_BYTES] {
    let [low, high] = VERSION.to_le_bytes();
    let [b, a, t, n] = MAGIC;
    [b, a, t, n, low, high, cipher as u8, 0]
}

/// Reads the other end's preamble and requires our version and cipher.
///
/// # Errors
/// `BadMagic`, `OtherVersion`, `OtherCipher`, `BadReserved`.
pub fn check(ours: Cipher, theirs: &[u8; PREAMBLE_BYTES]) -> Result<(), WireError> {
    let [b, a, t, n, low, high, cipher, reserved] = *theirs;
    if [b, a, t, n] != MAGIC {
        let found = format!("{:02x?}", [b, a, t, n]);
        return Err(WireError::BadMagic(Fault::new("preamble.magic", "BATN", found)));
    }
    // The version comes first: another version may mean other things by the bytes after it.
    let version = u16::from_le_bytes([low, high]);
    if version != VERSION {
        return Err(WireError::OtherVersion(Fault::new("preamble.version", VERSION, version)));
    }
    if cipher != ours as u8 {
        let found = match cipher {
            1 => Cipher::ChaChaPoly.name().into(),
            2 => Cipher::AesGcm.name().into(),
            other => format!("cipher {other}"),
        };
        return Err(WireError::OtherCipher(Fault::new("preamble.cipher", ours.name(), found)));
    }
    if reserved != 0 {
        return Err(WireError::BadReserved(Fault::new("preamble.reserved", 0, reserved)));
    }
    Ok(())
}

/// The Noise prologue: the connector's preamble, then the acceptor's.
pub fn prologue(
    connector: &[u8; PREAMBLE_BYTES],
    acceptor: &[u8; PREAMBLE_BYTES],
) -> [u8; 2 * PREAMBLE_BYTES] {
    let mut both = [0; 2 * PREAMBLE_BYTES];
    both[..PREAMBLE_BYTES].copy_from_slice(connector);
    both[PREAMBLE_BYTES..].copy_from_slice(acceptor);
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prologue_is_the_same_at_both_ends() {
        let (connector, acceptor) = (*b"connects", *b"accepts ");
        assert_eq!(&prologue(&connector, &acceptor), b"connectsaccepts ");
    }

    #[test]
    fn each_cipher_takes_itself_alone() {
        for ours in [Cipher::ChaChaPoly, Cipher::AesGcm] {
            assert_eq!(check(ours, &encode(ours)), Ok(()));
        }
        let error = check(Cipher::AesGcm, &encode(Cipher::ChaChaPoly));
        let text = "OtherCipher: preamble.cipher: expected aesgcm, found chachapoly";
        assert_eq!(error.map_err(|e| e.to_string()), Err(text.into()));
    }
}
