//! What the processes of one job know and nobody else does.

use std::fmt;
use std::io;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A job's secret. It is never sent, shown or logged: a link proves that it knows it.
#[derive(Clone)]
pub struct Secret([u8; 32]);

/// Why a text is no secret. It does not quote the text, which may be one with a slip in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the job's secret must be 64 hexadecimal digits, as `regatta launch` hands it on")]
pub struct SecretError;

impl Secret {
    /// A new one from the kernel.
    pub fn generate() -> io::Result<Self> {
        random().map(Self)
    }

    /// As 64 digits, to be handed on through a pipe or a file that only the user can read.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what [`Self::to_hex`] wrote.
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

    /// Another one that is made of this one, for another purpose: who knows it does not know this.
    pub fn derive(&self, purpose: &str) -> Self {
        let mut mac = self.mac();
        mac.update(b"regatta purpose ");
        mac.update(purpose.as_bytes());
        Self(mac.finalize().into_bytes().into())
    }

    /// The bytes, to look for them where they must not be.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A proof to be made with it, for this crate alone.
    pub(crate) fn mac(&self) -> Hmac<Sha256> {
        // A key shorter than the hash's block is filled up with zeros by definition.
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
        // Or the compiler would see that nobody reads the zeros, and leave them out.
        std::hint::black_box(&self.0);
    }
}

/// Bytes that nobody can guess.
pub fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    loop {
        // SAFETY: the kernel writes at most `len` bytes to the array, which lives on.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got == bytes.len() as isize {
            return Ok(bytes);
        }
        // So few bytes come whole or not at all; a signal may end the wait for them after a boot.
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
    fn survives_being_written_and_read() {
        let secret = Secret::generate().unwrap();
        let text = secret.to_hex();
        assert_eq!(text.len(), 64);
        assert_eq!(Secret::from_hex(&text).unwrap().to_hex(), text);
        assert_eq!(Secret::from_hex(&text.to_uppercase()).unwrap().to_hex(), text);
    }

    #[test]
    fn no_two_are_alike() {
        assert_ne!(Secret::generate().unwrap().to_hex(), Secret::generate().unwrap().to_hex());
    }

    #[test]
    fn shows_nothing() {
        let secret = Secret::from_hex(&"a7".repeat(32)).unwrap();
        let shown = format!("{secret:?} {secret:#?}");
        assert!(!shown.contains("a7") && !shown.contains("167"), "{shown}");
    }

    #[test]
    fn other_texts_are_refused_without_being_quoted() {
        for text in
            ["", "a7", &"g7".repeat(32), &"a7".repeat(33), &"+7".repeat(32), &"é".repeat(32)]
        {
            let error = Secret::from_hex(text).unwrap_err().to_string();
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
    }
}
