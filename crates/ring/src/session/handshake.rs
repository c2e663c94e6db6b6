//! The Noise handshake, one state a type, so that no step can be taken out of turn.
//!
//! `NNpsk0_25519_<cipher>_SHA256`: each end draws a fresh key, and the ring's secret is mixed in
//! before message 1, so that a stranger's first message already fails. The payloads are opaque
//! here. Messages are given and returned without their u16 length.

use snow::{Builder, HandshakeState, params::NoiseParams};
use wire::preamble::Cipher;
use zeroize::Zeroize;

use super::SessionError;
use super::record::{Guard, Mac, Opener, Sealer};
use crate::key::Key;

/// Bytes of a handshake message beside its payload: a public key and a tag.
pub const MESSAGE_OVERHEAD_BYTES: usize = 32 + 16;

/// The end that connected, before message 1.
pub struct Connector(Noise);

/// The same, while message 2 is awaited.
pub struct Called(Noise);

/// The end that accepted, before message 1.
pub struct Acceptor(Noise);

/// The same, with message 1 read and message 2 to be written.
pub struct Answering(Noise);

/// A finished handshake.
pub struct Finished {
    noise: Noise,
    connector: bool,
}

struct Noise {
    state: HandshakeState,
    key: Key,
    cipher: Cipher,
}

impl Noise {
    fn new(key: &Key, cipher: Cipher, prologue: &[u8; 16], connector: bool) -> Self {
        let name = cipher.noise();
        let built = name.parse().and_then(|params: NoiseParams| {
            let builder = Builder::new(params).psk(0, key.bytes())?.prologue(prologue)?;
            if connector { builder.build_initiator() } else { builder.build_responder() }
        });
        match built {
            Ok(state) => Self { state, key: key.clone(), cipher },
            Err(error) => unreachable!("{name} is built with all it needs: {error}"),
        }
    }

    fn write(&mut self, payload: &[u8]) -> Result<Vec<u8>, SessionError> {
        let mut message = vec![0; payload.len() + MESSAGE_OVERHEAD_BYTES];
        // The types leave one way to fail: no randomness for the fresh key.
        let written = self.state.write_message(payload, &mut message);
        let bytes = written.map_err(|error| SessionError::NoRandom(error.to_string()))?;
        assert_eq!(bytes, message.len(), "a key, the payload and a tag");
        Ok(message)
    }

    fn read(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let mut payload = vec![0; message.len()];
        let bytes = self.state.read_message(message, &mut payload).ok()?;
        payload.truncate(bytes);
        Some(payload)
    }
}

/// Begins at the end that connected. `prologue` is the connector's preamble, then the acceptor's.
pub fn connect(key: &Key, cipher: Cipher, prologue: &[u8; 16]) -> Connector {
    Connector(Noise::new(key, cipher, prologue, true))
}

/// Begins at the end that accepted, with the same `prologue`.
pub fn accept(key: &Key, cipher: Cipher, prologue: &[u8; 16]) -> Acceptor {
    Acceptor(Noise::new(key, cipher, prologue, false))
}

impl Connector {
    /// Message 1.
    ///
    /// # Errors
    /// `NoRandom`.
    pub fn call(mut self, payload: &[u8]) -> Result<(Called, Vec<u8>), SessionError> {
        let message = self.0.write(payload)?;
        Ok((Called(self.0), message))
    }
}

impl Called {
    /// Reads message 2; its payload.
    ///
    /// # Errors
    /// `BadAnswer` when it was not made for this handshake.
    pub fn answered(mut self, message: &[u8]) -> Result<(Finished, Vec<u8>), SessionError> {
        let payload = self.0.read(message).ok_or(SessionError::BadAnswer)?;
        Ok((Finished { noise: self.0, connector: true }, payload))
    }
}

impl Acceptor {
    /// Reads message 1; its payload. It may be a replay: only a record proves the other end.
    ///
    /// # Errors
    /// `BadSecret` when the other end has another key, or none.
    pub fn called(mut self, message: &[u8]) -> Result<(Answering, Vec<u8>), SessionError> {
        let payload = self.0.read(message).ok_or(SessionError::BadSecret)?;
        Ok((Answering(self.0), payload))
    }
}

impl Answering {
    /// Message 2.
    ///
    /// # Errors
    /// `NoRandom`.
    pub fn answer(mut self, payload: &[u8]) -> Result<(Finished, Vec<u8>), SessionError> {
        let message = self.0.write(payload)?;
        let finished = Finished { noise: self.0, connector: false };
        Ok((finished, message))
    }
}

impl Finished {
    /// The two directions of the session; `encrypt` is what both ends said. Without encryption
    /// each direction has its own MAC key: HMAC-SHA256(key, "baton mac" | 0 from the connector or
    /// 1 from the acceptor | handshake hash).
    pub fn records(self, encrypt: bool) -> (Sealer, Opener) {
        let Noise { mut state, key, cipher } = self.noise;
        if encrypt {
            // The session's two keys themselves: snow's transport copies what it seals and opens.
            let mut keys = state.dangerously_get_raw_split();
            let [mut sends, mut reads] = [&keys.0, &keys.1].map(|key| Guard::noise(cipher, key));
            keys.0.zeroize();
            keys.1.zeroize();
            if !self.connector {
                std::mem::swap(&mut sends, &mut reads);
            }
            return (Sealer::new(sends), Opener::new(reads));
        }
        let base = Mac::new(key.bytes());
        let direction = |connector_sends: bool| {
            let direction = [u8::from(!connector_sends)];
            let pieces = [&b"baton mac"[..], &direction, state.get_handshake_hash()];
            Guard::Mac(Box::new(Mac::new(&base.whole(&pieces))))
        };
        let (sends, reads) = (direction(self.connector), direction(!self.connector));
        (Sealer::new(sends), Opener::new(reads))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::session::record::first_record;

    fn finished(cipher: Cipher) -> [Finished; 2] {
        let key = Key::from_bytes(&[9; 32]).unwrap();
        let (called, message) = connect(&key, cipher, &[1; 16]).call(b"").unwrap();
        let (answering, _) = accept(&key, cipher, &[1; 16]).called(&message).unwrap();
        let (acceptor, message) = answering.answer(b"").unwrap();
        [called.answered(&message).unwrap().0, acceptor]
    }

    #[test]
    fn records_are_the_transport_messages_of_noise() {
        for (cipher, connector_sends) in [
            (Cipher::ChaChaPoly, true),
            (Cipher::ChaChaPoly, false),
            (Cipher::AesGcm, true),
            (Cipher::AesGcm, false),
        ] {
            let [first, second] = finished(cipher);
            let [ours, theirs] = if connector_sends { [first, second] } else { [second, first] };
            let transport = theirs.noise.state.into_stateless_transport_mode().unwrap();
            let (mut sealer, mut opener) = ours.records(true);
            for number in 0..3 {
                let mut out = Vec::new();
                sealer.seal(b"a head", b" and a body", &mut out);
                let mut body = [0; 64];
                let record = first_record(&out).unwrap();
                let bytes = transport.read_message(number, record, &mut body).unwrap();
                assert_eq!(&body[..bytes], b"a head and a body");
                let mut answer = [0; 64];
                let bytes = transport.write_message(number, b"an answer", &mut answer).unwrap();
                assert_eq!(opener.open(&mut answer[..bytes]).unwrap(), b"an answer");
            }
        }
    }
}
