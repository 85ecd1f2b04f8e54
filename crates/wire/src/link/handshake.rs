//! Mutual challenge-response authentication: both sides prove that they know the secret without
//! revealing it.
//!
//! ```text
//! initiator                           responder
//! magic, version, nonce        ->
//!                              <-     magic, version, nonce, proof
//! proof                        ->
//! ```
//!
//! Each side receives a hello followed by a proof. The initiator sends its proof only after it has
//! verified the responder's, so a fake server learns nothing but the version. A proof is an HMAC
//! over the sender's role and both nonces, which rules out reflection and replay. The keys of the
//! frames are derived in the same way.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::cipher::FrameCipher;
use super::send_buffer::SendBuffer;
use super::{LinkError, PROTOCOL_VERSION, Result, Role};
use crate::secret::Secret;

/// Magic and version keep their position in every protocol version, so that any two versions can
/// report a mismatch.
const MAGIC: [u8; 8] = *b"REGATTA\n";
pub(super) const PREFIX_LEN: usize = MAGIC.len() + 2;
pub(super) const HELLO_LEN: usize = PREFIX_LEN + 32;
const PROOF_LEN: usize = 32;
pub(super) const HANDSHAKE_LEN: usize = HELLO_LEN + PROOF_LEN;

/// Sent in place of a proof to report that the responder's proof was wrong.
const REJECTION: [u8; PROOF_LEN] = [0; PROOF_LEN];

/// A handshake in progress.
pub(super) struct Handshake {
    role: Role,
    secret: Secret,
    nonce: [u8; 32],
    /// The peer's hello and proof, as far as received.
    received: [u8; HANDSHAKE_LEN],
    received_len: usize,
}

impl Handshake {
    pub(super) fn new(role: Role, secret: Secret, nonce: [u8; 32]) -> Self {
        Self { role, secret, nonce, received: [0; HANDSHAKE_LEN], received_len: 0 }
    }

    /// Consumes the bytes that belong to the handshake and returns the rest.
    pub(super) fn receive<'a>(
        &mut self,
        bytes: &'a [u8],
        out: &mut SendBuffer,
    ) -> Result<&'a [u8]> {
        let before = self.received_len;
        let (consumed, rest) = bytes.split_at(bytes.len().min(HANDSHAKE_LEN - before));
        self.received_len += consumed.len();
        self.received[before..self.received_len].copy_from_slice(consumed);
        let just_reached = |end: usize| before < end && end <= self.received_len;

        self.check_magic()?;
        if just_reached(PREFIX_LEN) {
            self.check_version(out)?;
        }
        if just_reached(HELLO_LEN) && self.role == Role::Responder {
            self.write_hello(out);
            out.push(&self.proof_mac(Role::Responder).finalize().into_bytes());
        }
        if just_reached(HANDSHAKE_LEN) {
            self.check_proof(out)?;
        }
        Ok(rest)
    }

    /// Whether the peer has authenticated.
    pub(super) fn is_complete(&self) -> bool {
        self.received_len == HANDSHAKE_LEN
    }

    /// Checks a partial magic, too: a foreign program is rejected at its first wrong byte.
    fn check_magic(&self) -> Result {
        let len = self.received_len.min(MAGIC.len());
        if self.received[..len] == MAGIC[..len] { Ok(()) } else { Err(LinkError::BadMagic) }
    }

    fn check_version(&self, out: &mut SendBuffer) -> Result {
        let theirs =
            u16::from_be_bytes([self.received[MAGIC.len()], self.received[MAGIC.len() + 1]]);
        if theirs == PROTOCOL_VERSION {
            return Ok(());
        }
        // The initiator has sent its version already.
        if self.role == Role::Responder {
            self.write_version(out);
        }
        Err(LinkError::VersionMismatch { theirs, ours: PROTOCOL_VERSION })
    }

    fn check_proof(&self, out: &mut SendBuffer) -> Result {
        let peer = match self.role {
            Role::Initiator => Role::Responder,
            Role::Responder => Role::Initiator,
        };
        // Constant-time comparison.
        let valid = self.proof_mac(peer).verify_slice(&self.received[HELLO_LEN..]).is_ok();
        match (self.role, valid) {
            (Role::Initiator, true) => {
                out.push(&self.proof_mac(Role::Initiator).finalize().into_bytes());
            }
            (Role::Initiator, false) => out.push(&REJECTION),
            (Role::Responder, _) => {}
        }
        if valid { Ok(()) } else { Err(LinkError::AuthenticationFailed) }
    }

    /// The ciphers for sending and receiving, once both nonces are known.
    pub(super) fn frame_ciphers(&self) -> (FrameCipher, FrameCipher) {
        let cipher =
            |label: &[u8]| FrameCipher::new(self.mac(label).finalize().into_bytes().into());
        let initiator = cipher(b"regatta initiator frames");
        let responder = cipher(b"regatta responder frames");
        match self.role {
            Role::Initiator => (initiator, responder),
            Role::Responder => (responder, initiator),
        }
    }

    fn proof_mac(&self, role: Role) -> Hmac<Sha256> {
        // The labels are part of protocol version 1.
        self.mac(match role {
            Role::Initiator => b"regatta caller",
            Role::Responder => b"regatta listener",
        })
    }

    /// An HMAC over a label and both nonces.
    fn mac(&self, label: &[u8]) -> Hmac<Sha256> {
        let theirs = &self.received[PREFIX_LEN..HELLO_LEN];
        let (initiator, responder) = match self.role {
            Role::Initiator => (&self.nonce[..], theirs),
            Role::Responder => (theirs, &self.nonce[..]),
        };
        let mut mac = self.secret.mac();
        for part in [label, &PROTOCOL_VERSION.to_be_bytes(), initiator, responder] {
            mac.update(part);
        }
        mac
    }

    fn write_version(&self, out: &mut SendBuffer) {
        out.push(&MAGIC);
        out.push(&PROTOCOL_VERSION.to_be_bytes());
    }

    /// The initiator sends the first hello.
    pub(super) fn write_hello(&self, out: &mut SendBuffer) {
        self.write_version(out);
        out.push(&self.nonce);
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake")
            .field("role", &self.role)
            .field("received_len", &self.received_len)
            .finish_non_exhaustive()
    }
}
