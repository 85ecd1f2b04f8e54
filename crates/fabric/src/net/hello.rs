//! The message that both sides of a connection send each other over TCP.

use super::handle::{TOKEN_BYTES, Token};
use crate::endpoint::MAX_ADDRESS_BYTES;

const MAGIC: [u8; 4] = *b"RGH2";
/// Longer names are truncated.
const MAX_NAME_BYTES: usize = 128;
/// The longest encoded message.
pub const MAX_HELLO_BYTES: usize =
    4 + TOKEN_BYTES + 8 + 4 + 4 + 6 + 2 * MAX_NAME_BYTES + MAX_ADDRESS_BYTES;

/// What a side tells the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The listener's token. The listener returns it.
    pub token: Token,
    /// A random key of this side's connection.
    pub key: u64,
    /// Number of this side's connection.
    pub connection: u32,
    /// Process ID.
    pub process: u32,
    /// libfabric provider.
    pub provider: String,
    /// Host name.
    pub host: String,
    /// Address of the endpoint.
    pub address: Vec<u8>,
}

impl Hello {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAX_HELLO_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(self.token);
        bytes.extend(self.key.to_le_bytes());
        bytes.extend(self.connection.to_le_bytes());
        bytes.extend(self.process.to_le_bytes());
        let name =
            |name: &str| name.as_bytes()[..name.floor_char_boundary(MAX_NAME_BYTES)].to_vec();
        for field in [name(&self.provider), name(&self.host), self.address.clone()] {
            bytes.extend((field.len() as u16).to_le_bytes());
            bytes.extend(field);
        }
        bytes
    }

    /// Decodes a message; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (token, rest) = rest.split_first_chunk::<TOKEN_BYTES>()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (connection, rest) = rest.split_first_chunk()?;
        let (process, rest) = rest.split_first_chunk()?;
        let (provider, rest) = field(rest, MAX_NAME_BYTES)?;
        let (host, rest) = field(rest, MAX_NAME_BYTES)?;
        let (address, rest) = field(rest, MAX_ADDRESS_BYTES)?;
        let text = |bytes: &[u8]| Some(std::str::from_utf8(bytes).ok()?.to_owned());
        let hello = Self {
            token: *token,
            key: u64::from_le_bytes(*key),
            connection: u32::from_le_bytes(*connection),
            process: u32::from_le_bytes(*process),
            provider: text(provider)?,
            host: text(host)?,
            address: address.to_vec(),
        };
        (*magic == MAGIC && rest.is_empty()).then_some(hello)
    }
}

/// A field with its length, and what follows it.
fn field(bytes: &[u8], max: usize) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::from(u16::from_le_bytes(*length));
    if length > max { None } else { rest.split_at_checked(length) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_survive_the_wire(
            token: Token, key: u64, connection: u32, process: u32,
            provider in "[a-z;_]{0,40}", host in "\\PC{0,30}",
            address in proptest::collection::vec(any::<u8>(), 0..=MAX_ADDRESS_BYTES),
        ) {
            let hello = Hello { token, key, connection, process, provider, host, address };
            let bytes = hello.encode();
            prop_assert!(bytes.len() <= MAX_HELLO_BYTES);
            prop_assert_eq!(Hello::decode(&bytes), Some(hello));
            prop_assert_eq!(Hello::decode(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn any_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Some(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(hello.encode(), bytes);
            }
        }
    }

    #[test]
    fn long_host_names_are_truncated() {
        let host = "ü".repeat(100);
        let hello = Hello {
            token: [1; TOKEN_BYTES],
            key: 2,
            connection: 3,
            process: 4,
            provider: "tcp".to_owned(),
            host: host.clone(),
            address: vec![5],
        };
        let decoded = Hello::decode(&hello.encode()).unwrap();
        assert_eq!(decoded.host, "ü".repeat(64));
    }
}
