//! Event handles.
//!
//! A handle is a number, not a pointer: nothing is allocated for an event, and the handle of an event
//! that ended long ago, or of a captured CUDA graph, can be passed back at any time.

use std::ffi::c_void;

/// What NCCL keeps of an event, and passes back as the event's handle or as a child's parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handle {
    /// No event, or one that is not recorded.
    None,
    /// A group of operations. NCCL up to 2.27 reports operations only in groups with a handle.
    Group,
    /// A call of the API.
    Api {
        /// Code of the call's data type.
        dtype: u8,
        /// Whether the call is captured into a CUDA graph.
        captured: bool,
    },
    /// A collective or message.
    Operation(u64),
    /// An operation's kernel on one channel.
    Channel {
        /// The operation.
        operation: u64,
        /// Whether stopping the event is the only sign of the end.
        ends_at_stop: bool,
    },
    /// A network transfer of an operation.
    Transfer {
        /// The operation.
        operation: u64,
        /// Tells the operation's transfers apart.
        lane: u8,
        /// Whether it sends.
        sends: bool,
    },
    /// A step of a network transfer.
    Step {
        /// The operation.
        operation: u64,
        /// Tells the operation's transfers apart.
        lane: u8,
        /// Number of the step, modulo 256.
        step: u8,
        /// Whether it sends.
        sends: bool,
    },
}

/// Operation numbers wrap at this many bits: at a million operations a second of a thread, in six
/// days. Only numbers
/// of operations in flight have to differ.
pub const OPERATION_BITS: u32 = 43;

const TAG_BITS: u32 = 3;
const FLAG: u64 = 1 << TAG_BITS;
const LANE: u32 = 5;
const STEP: u32 = 13;
const OPERATION: u32 = 21;

const GROUP: u64 = 1;
const API: u64 = 2;
const OPERATION_TAG: u64 = 3;
const CHANNEL: u64 = 4;
const TRANSFER: u64 = 5;
const STEP_TAG: u64 = 6;

const _: () = assert!(OPERATION + OPERATION_BITS == u64::BITS);
const _: () = assert!(size_of::<*mut c_void>() == size_of::<u64>());

impl Handle {
    /// The handle as NCCL keeps it. [`Handle::None`] is NULL, all others are not.
    #[inline]
    pub fn to_pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.encode() as usize)
    }

    /// The handle of a pointer that NCCL passed.
    #[inline]
    pub fn from_pointer(pointer: *mut c_void) -> Self {
        Self::decode(pointer.addr() as u64)
    }

    fn encode(self) -> u64 {
        let flag = |set: bool| if set { FLAG } else { 0 };
        let number = |operation: u64| operation << OPERATION;
        match self {
            Self::None => 0,
            Self::Group => GROUP,
            Self::Api { dtype, captured } => API | flag(captured) | u64::from(dtype) << LANE,
            Self::Operation(operation) => OPERATION_TAG | number(operation),
            Self::Channel { operation, ends_at_stop } => {
                CHANNEL | flag(ends_at_stop) | number(operation)
            }
            Self::Transfer { operation, lane, sends } => {
                TRANSFER | flag(sends) | u64::from(lane) << LANE | number(operation)
            }
            Self::Step { operation, lane, step, sends } => {
                let (lane, step) = (u64::from(lane) << LANE, u64::from(step) << STEP);
                STEP_TAG | flag(sends) | lane | step | number(operation)
            }
        }
    }

    fn decode(bits: u64) -> Self {
        let (flag, operation) = (bits & FLAG != 0, bits >> OPERATION);
        let (lane, step) = ((bits >> LANE) as u8, (bits >> STEP) as u8);
        match bits & ((1 << TAG_BITS) - 1) {
            GROUP => Self::Group,
            API => Self::Api { dtype: lane, captured: flag },
            OPERATION_TAG => Self::Operation(operation),
            CHANNEL => Self::Channel { operation, ends_at_stop: flag },
            TRANSFER => Self::Transfer { operation, lane, sends: flag },
            STEP_TAG => Self::Step { operation, lane, step, sends: flag },
            _ => Self::None,
        }
    }
}

/// A number that tells the transfers of an operation apart: those of a channel differ in their peers.
pub fn lane(channel: u8, peer: i32) -> u8 {
    // NCCL has up to 64 channels: the peers of one channel differ in the upper bits at least.
    channel.wrapping_add((peer as u8).wrapping_mul(67))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handles() -> impl Strategy<Value = Handle> {
        let number = 0..1u64 << OPERATION_BITS;
        prop_oneof![
            Just(Handle::None),
            Just(Handle::Group),
            any::<(u8, bool)>().prop_map(|(dtype, captured)| Handle::Api { dtype, captured }),
            number.clone().prop_map(Handle::Operation),
            (number.clone(), any::<bool>())
                .prop_map(|(operation, ends_at_stop)| Handle::Channel { operation, ends_at_stop }),
            (number.clone(), any::<(u8, bool)>()).prop_map(|(operation, (lane, sends))| {
                Handle::Transfer { operation, lane, sends }
            }),
            (number, any::<(u8, u8, bool)>()).prop_map(|(operation, (lane, step, sends))| {
                Handle::Step { operation, lane, step, sends }
            }),
        ]
    }

    proptest! {
        #[test]
        fn handles_survive_the_round_trip(handle in handles()) {
            let pointer = handle.to_pointer();
            prop_assert_eq!(Handle::from_pointer(pointer), handle);
            prop_assert_eq!(pointer.is_null(), handle == Handle::None);
        }

        #[test]
        fn any_pointer_is_decoded(bits in any::<u64>()) {
            // Garbage is some handle or none, never a crash.
            let handle = Handle::decode(bits);
            prop_assert_eq!(Handle::decode(handle.encode()), handle);
        }
    }

    #[test]
    fn peers_of_a_channel_have_different_lanes() {
        let lanes: Vec<u8> = (0..4).map(|peer| lane(3, peer)).collect();
        assert!(lanes.iter().all(|a| lanes.iter().filter(|b| a == *b).count() == 1));
    }
}
