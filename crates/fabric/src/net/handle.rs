//! The handle by which a sender finds a listener: its address, and a token that only the job knows.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of an encoded handle; the host has room for 128.
pub const HANDLE_BYTES: usize = 48;
/// Bytes of a token.
pub const TOKEN_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"RGT1";

/// A random number that authenticates the sender of a connection.
pub type Token = [u8; TOKEN_BYTES];

/// Where a listener is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// Address of its socket.
    pub address: SocketAddr,
    /// Its token.
    pub token: Token,
}

impl Handle {
    /// Encodes the handle.
    pub fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.address.port().to_le_bytes());
        bytes[8..24].copy_from_slice(&ip.octets());
        bytes[24..40].copy_from_slice(&self.token);
        bytes
    }

    /// Decodes a handle; `None` if it is not one of this plug-in.
    pub fn decode(bytes: &[u8; HANDLE_BYTES]) -> Option<Self> {
        let [m0, m1, m2, m3, p0, p1, _, _, rest @ ..] = *bytes;
        let (ip, rest) = rest.split_first_chunk::<16>()?;
        let ip = Ipv6Addr::from(*ip).to_canonical();
        let address = SocketAddr::new(ip, u16::from_le_bytes([p0, p1]));
        let handle = Self { address, token: *rest.first_chunk()? };
        ([m0, m1, m2, m3] == MAGIC).then_some(handle)
    }
}

/// A new token.
pub(super) fn new_token() -> Result<Token, String> {
    let mut token = [0; TOKEN_BYTES];
    fill_random(&mut token)?;
    Ok(token)
}

/// A new key of a connection.
pub(super) fn random_key() -> Result<u64, String> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn fill_random(bytes: &mut [u8]) -> Result<(), String> {
    let mut filled = 0;
    while filled < bytes.len() {
        let got =
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        filled += got.map_err(|error| format!("no random numbers: {error}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn handles_survive_the_way(v4: bool, ip: [u8; 16], port: u16, token: Token) {
            let [a, b, c, d, ..] = ip;
            let ip = if v4 { IpAddr::from([a, b, c, d]) } else { IpAddr::from(ip).to_canonical() };
            let handle = Handle { address: SocketAddr::new(ip, port), token };
            let mut bytes = handle.encode();
            prop_assert_eq!(Handle::decode(&bytes), Some(handle));
            bytes[0] ^= 1;
            prop_assert_eq!(Handle::decode(&bytes), None);
        }
    }
}
