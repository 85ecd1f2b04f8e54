//! Two strangers prove to each other that they know the same secret, without telling it.
//!
//! ```text
//! caller                              listener
//! magic, version, nonce        ->
//!                              <-     magic, version, nonce, proof
//! proof                        ->
//! ```
//!
//! So each side reads a hello and then a proof. The listener proves itself first: whoever connects
//! to a port learns nothing from it but the version. A proof covers who makes it and both nonces,
//! so neither one's own nor that of another connection can be used.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::outgoing::Outgoing;
use super::{LinkError, Role, VERSION};
use crate::secret::Secret;

/// Magic and version stay where they are in every version, so that any two can tell each other.
const MAGIC: [u8; 8] = *b"REGATTA\n";
pub(super) const PREFIX: usize = MAGIC.len() + 2;
pub(super) const HELLO: usize = PREFIX + 32;
const PROOF: usize = 32;
pub(super) const WHOLE: usize = HELLO + PROOF;

/// Instead of a proof: says that the other side's was wrong, so that it too can report it.
const NO_PROOF: [u8; PROOF] = [0; PROOF];

/// A handshake that is not through.
pub(super) struct Handshake {
    role: Role,
    secret: Secret,
    nonce: [u8; 32],
    /// The other side's hello and proof, as far as they came.
    heard: [u8; WHOLE],
    length: usize,
}

impl Handshake {
    /// The caller speaks first.
    pub(super) fn start(role: Role, secret: &Secret, nonce: [u8; 32], out: &mut Outgoing) -> Self {
        let new = Self { role, secret: secret.clone(), nonce, heard: [0; WHOLE], length: 0 };
        if role == Role::Caller {
            new.say_hello(out);
        }
        new
    }

    /// Takes what belongs to the handshake and returns the rest.
    pub(super) fn receive<'a>(
        &mut self,
        bytes: &'a [u8],
        out: &mut Outgoing,
    ) -> Result<&'a [u8], LinkError> {
        let before = self.length;
        let (mine, rest) = bytes.split_at(bytes.len().min(WHOLE - before));
        self.length += mine.len();
        self.heard[before..self.length].copy_from_slice(mine);
        let now_has = |end: usize| before < end && end <= self.length;

        self.check_magic()?;
        if now_has(PREFIX) {
            self.check_version(out)?;
        }
        if now_has(HELLO) && self.role == Role::Listener {
            self.say_hello(out);
            out.push(&self.proof_of(Role::Listener).finalize().into_bytes());
        }
        if now_has(WHOLE) {
            self.check_proof(out)?;
        }
        Ok(rest)
    }

    /// Whether the other side has proved itself.
    pub(super) fn is_through(&self) -> bool {
        self.length == WHOLE
    }

    /// Also of a part of it, so that what is no regatta need not be waited for.
    fn check_magic(&self) -> Result<(), LinkError> {
        let length = self.length.min(MAGIC.len());
        if self.heard[..length] == MAGIC[..length] { Ok(()) } else { Err(LinkError::Garbage) }
    }

    fn check_version(&self, out: &mut Outgoing) -> Result<(), LinkError> {
        let theirs = u16::from_be_bytes([self.heard[MAGIC.len()], self.heard[MAGIC.len() + 1]]);
        if theirs == VERSION {
            return Ok(());
        }
        // The caller has told its version already.
        if self.role == Role::Listener {
            self.say_version(out);
        }
        Err(LinkError::Version { theirs, ours: VERSION })
    }

    fn check_proof(&self, out: &mut Outgoing) -> Result<(), LinkError> {
        let other = match self.role {
            Role::Caller => Role::Listener,
            Role::Listener => Role::Caller,
        };
        // Compares in constant time.
        let right = self.proof_of(other).verify_slice(&self.heard[HELLO..]).is_ok();
        if self.role == Role::Caller {
            if right {
                out.push(&self.proof_of(Role::Caller).finalize().into_bytes());
            } else {
                out.push(&NO_PROOF);
            }
        }
        if right { Ok(()) } else { Err(LinkError::WrongSecret) }
    }

    fn proof_of(&self, role: Role) -> Hmac<Sha256> {
        let theirs = &self.heard[PREFIX..HELLO];
        let (caller, listener) = match self.role {
            Role::Caller => (&self.nonce[..], theirs),
            Role::Listener => (theirs, &self.nonce[..]),
        };
        let label: &[u8] = match role {
            Role::Caller => b"regatta caller",
            Role::Listener => b"regatta listener",
        };
        let mut mac = self.secret.mac();
        for part in [label, &VERSION.to_be_bytes(), caller, listener] {
            mac.update(part);
        }
        mac
    }

    fn say_version(&self, out: &mut Outgoing) {
        out.push(&MAGIC);
        out.push(&VERSION.to_be_bytes());
    }

    fn say_hello(&self, out: &mut Outgoing) {
        self.say_version(out);
        out.push(&self.nonce);
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake")
            .field("role", &self.role)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
