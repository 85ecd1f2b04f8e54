//! Payloads cut out of a stream of bytes: each has its length in front, as a big-endian `u32`.

use super::outgoing::Outgoing;
use super::{LONGEST, LinkError, Step};

/// Stands where a length would: a sign of life, nothing follows.
const BEAT: u32 = u32::MAX;

/// Where in the stream we are.
#[derive(Debug)]
pub(super) enum Frames {
    /// So many bytes of a length are here.
    Length([u8; 4], usize),
    /// So many bytes of this payload are to come.
    Payload(Vec<u8>, usize),
}

impl Default for Frames {
    fn default() -> Self {
        Self::Length([0; 4], 0)
    }
}

impl Frames {
    /// Takes bytes, and adds the payloads that end in them.
    pub(super) fn receive(
        &mut self,
        mut bytes: &[u8],
        steps: &mut Vec<Step>,
    ) -> Result<(), LinkError> {
        while !bytes.is_empty() {
            bytes = match self {
                Self::Length(length, have) => {
                    let (mine, rest) = bytes.split_at(bytes.len().min(4 - *have));
                    length[*have..*have + mine.len()].copy_from_slice(mine);
                    *have += mine.len();
                    rest
                }
                Self::Payload(payload, missing) => {
                    // It grows with what comes. What is announced is only a promise.
                    let (mine, rest) = bytes.split_at(bytes.len().min(*missing));
                    payload.extend_from_slice(mine);
                    *missing -= mine.len();
                    rest
                }
            };
            self.end_part(steps)?;
        }
        Ok(())
    }

    /// Goes on to the next part if this one is complete.
    fn end_part(&mut self, steps: &mut Vec<Step>) -> Result<(), LinkError> {
        if let Self::Length(length, 4) = self {
            *self = match u32::from_be_bytes(*length) {
                BEAT => Self::default(),
                length if length as usize > LONGEST => {
                    return Err(LinkError::TooLong { bytes: length as usize });
                }
                length => Self::Payload(Vec::new(), length as usize),
            };
        }
        if let Self::Payload(payload, 0) = self {
            steps.push(Step::Frame(std::mem::take(payload)));
            *self = Self::default();
        }
        Ok(())
    }
}

/// Queues a payload. False: it is too long.
pub(super) fn write(payload: &[u8], out: &mut Outgoing) -> bool {
    let Some(length) = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= LONGEST)
    else {
        return false;
    };
    out.push(&length.to_be_bytes());
    out.push(payload);
    true
}

/// Queues a sign of life.
pub(super) fn write_beat(out: &mut Outgoing) {
    out.push(&BEAT.to_be_bytes());
}
