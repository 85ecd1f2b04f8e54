//! The bytes between two nodes: a handshake that proves knowledge of the job's token, then commands.
//!
//! The token itself is never sent. What follows the handshake is neither secret nor trusted: the
//! commands only transfer bytes that are discarded.

use std::io::{self, Read, Write};

use regatta_model::text::hex;
use regatta_wire::secret::{Secret, random_bytes};

const MAGIC: &[u8; 8] = b"regatta1";
/// Bytes of a nonce, and of a proof.
const LEN: usize = 32;
/// Bytes of a proof in hexadecimal digits.
const PROOF_LEN: usize = 64;
/// Most bytes of one transfer.
pub(super) const MAX_TRANSFER: u64 = 1 << 30;

/// What the connecting node asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// Answer with the time.
    Time,
    /// Receive this many bytes, then acknowledge.
    Receive(u64),
    /// Send this many bytes.
    Send(u64),
    /// All tests of the connecting node have ended.
    End,
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

fn proof(secret: &Secret, role: &str, node: u32, nonce: &[u8; LEN]) -> String {
    secret.derive(&format!("peer test {role} {node} {}", hex(nonce))).to_hex()
}

fn check_proof(stream: &mut impl Read, expected: &str) -> io::Result<()> {
    let found: [u8; PROOF_LEN] = read_array(stream)?;
    // Constant time: a byte that differs must not end the comparison earlier.
    let differing = found.iter().zip(expected.as_bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    match differing {
        0 => Ok(()),
        _ => Err(invalid("the other process is not of this job")),
    }
}

fn read_array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Proves to be node `own` and checks that the other end is `expected`.
pub(super) fn connect(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    own: u32,
    expected: u32,
) -> io::Result<()> {
    let nonce = random_bytes()?;
    stream.write_all(&[&MAGIC[..], &own.to_le_bytes(), &nonce].concat())?;
    let node = u32::from_le_bytes(read_array(stream)?);
    if node != expected {
        return Err(invalid("another node of the job has this address"));
    }
    check_proof(stream, &proof(secret, "server", node, &nonce))?;
    let challenge = read_array::<LEN>(stream)?;
    stream.write_all(proof(secret, "client", own, &challenge).as_bytes())
}

/// Answers the handshake as node `own`; returns the connecting node.
pub(super) fn accept(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    own: u32,
) -> io::Result<u32> {
    if read_array::<8>(stream)? != *MAGIC {
        return Err(invalid("not a peer test"));
    }
    let node = u32::from_le_bytes(read_array(stream)?);
    let nonce = read_array::<LEN>(stream)?;
    let challenge = random_bytes()?;
    let answer = proof(secret, "server", own, &nonce);
    stream.write_all(&[&own.to_le_bytes()[..], answer.as_bytes(), &challenge].concat())?;
    check_proof(stream, &proof(secret, "client", node, &challenge))?;
    Ok(node)
}

pub(super) fn write_command(stream: &mut impl Write, command: Command) -> io::Result<()> {
    let (tag, bytes) = match command {
        Command::Time => (b'T', 0),
        Command::Receive(bytes) => (b'R', bytes),
        Command::Send(bytes) => (b'S', bytes),
        Command::End => (b'E', 0),
    };
    let mut frame = [tag; 9];
    frame[1..].copy_from_slice(&bytes.to_le_bytes());
    stream.write_all(&frame)
}

pub(super) fn read_command(stream: &mut impl Read) -> io::Result<Command> {
    let [tag] = read_array(stream)?;
    let bytes = u64::from_le_bytes(read_array(stream)?);
    match tag {
        _ if bytes > MAX_TRANSFER => Err(invalid("the transfer is too long")),
        b'T' => Ok(Command::Time),
        b'R' => Ok(Command::Receive(bytes)),
        b'S' => Ok(Command::Send(bytes)),
        b'E' => Ok(Command::End),
        _ => Err(invalid("unknown command")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_round_trip_and_long_transfers_are_rejected() {
        let commands =
            [Command::Time, Command::Receive(7), Command::Send(MAX_TRANSFER), Command::End];
        for command in commands {
            let mut bytes = Vec::new();
            write_command(&mut bytes, command).unwrap();
            assert_eq!(read_command(&mut &bytes[..]).unwrap(), command);
        }
        let mut bytes = Vec::new();
        write_command(&mut bytes, Command::Send(MAX_TRANSFER + 1)).unwrap();
        assert!(read_command(&mut &bytes[..]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_command_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(command) = read_command(&mut &bytes[..]) {
                let mut again = Vec::new();
                write_command(&mut again, command).unwrap();
                prop_assert_eq!(again[0], bytes[0]);
            }
        }
    }
}
