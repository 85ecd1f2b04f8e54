//! The job's secret, shared by all its processes and no other.

use std::fmt;
use std::io;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A job's secret. It is never sent, displayed or logged; links prove knowledge of it.
#[derive(Clone)]
pub struct Secret([u8; 32]);

/// The text is not a valid secret. The message does not quote it: it may be a mistyped secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid job secret: expected 64 hexadecimal digits, as written by `regatta launch`")]
pub struct SecretError;

impl Secret {
    /// Generates a secret with the kernel's random number generator.
    pub fn generate() -> io::Result<Self> {
        random_bytes().map(Self)
    }

    /// 64 hexadecimal digits, for a pipe or a file that only the user can read.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses the output of [`Self::to_hex`].
    pub fn from_hex(text: &str) -> Result<Self, SecretError> {
        let digits = text.as_bytes();
        let mut secret = Self([0; 32]);
        if digits.len() != 2 * secret.0.len() {
            return Err(SecretError);
        }
        let value = |digit: u8| char::from(digit).to_digit(16).ok_or(SecretError);
        for (byte, pair) in secret.0.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (value(pair[0])? * 16 + value(pair[1])?) as u8;
        }
        Ok(secret)
    }

    /// Derives a secret for another purpose. It does not reveal this one.
    pub fn derive(&self, purpose: &str) -> Self {
        let mut mac = self.mac();
        mac.update(b"regatta purpose ");
        mac.update(purpose.as_bytes());
        Self(mac.finalize().into_bytes().into())
    }

    /// The raw bytes, for tests that search for leaks.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// An HMAC keyed with the secret.
    pub(crate) fn mac(&self) -> Hmac<Sha256> {
        // HMAC pads a key shorter than the hash's block with zeros.
        let mut key = [0; 64];
        key[..32].copy_from_slice(&self.0);
        Hmac::<Sha256>::new(&key.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from eliminating the stores as dead.
        std::hint::black_box(&self.0);
    }
}

/// 32 cryptographically secure random bytes.
pub fn random_bytes() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    loop {
        // SAFETY: the kernel writes at most `len` bytes to the array, which outlives the call.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got == bytes.len() as isize {
            return Ok(bytes);
        }
        // Requests of up to 256 bytes are never short; a signal may interrupt the wait for entropy
        // after boot.
        let error = io::Error::last_os_error();
        if got >= 0 || error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trip() {
        let secret = Secret::generate().unwrap();
        let text = secret.to_hex();
        assert_eq!(text.len(), 64);
        assert_eq!(Secret::from_hex(&text).unwrap().to_hex(), text);
        assert_eq!(Secret::from_hex(&text.to_uppercase()).unwrap().to_hex(), text);
    }

    #[test]
    fn generated_secrets_differ() {
        assert_ne!(Secret::generate().unwrap().to_hex(), Secret::generate().unwrap().to_hex());
    }

    #[test]
    fn debug_output_does_not_reveal_the_secret() {
        let secret = Secret::from_hex(&"a7".repeat(32)).unwrap();
        let shown = format!("{secret:?} {secret:#?}");
        assert!(!shown.contains("a7") && !shown.contains("167"), "{shown}");
    }

    #[test]
    fn invalid_text_is_rejected_without_being_quoted() {
        let lengths = [("", 0), ("a7", 1), ("g7", 32), ("a7", 33), ("+7", 32), ("é", 32)];
        for text in lengths.map(|(pair, times)| pair.repeat(times)) {
            let error = Secret::from_hex(&text).unwrap_err().to_string();
            assert!(text.is_empty() || !error.contains(&text), "{error}");
        }
    }
}
