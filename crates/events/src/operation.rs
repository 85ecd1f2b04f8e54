//! Operations and what they refer to: communicators, names, clocks.

use std::fmt;

/// Declares an enum with a code of one byte and a name per variant. Codes from [`Name::CUSTOM`] on are
/// names that the file defines.
macro_rules! coded_enum {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal $name:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)+
            /// A name that this version does not know.
            Other(Name),
        }

        impl $type {
            /// All known variants.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The code in event files.
            pub const fn code(self) -> u8 {
                match self {
                    $(Self::$variant => $code,)+
                    Self::Other(name) => name.0,
                }
            }

            /// The variant with a code.
            pub const fn from_code(code: u8) -> Self {
                match code {
                    $($code => Self::$variant,)+
                    _ => Self::Other(Name(code)),
                }
            }

            /// The name of a known variant.
            pub const fn known_name(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($name),)+
                    Self::Other(_) => None,
                }
            }
        }
    };
}

/// A name that an event file defines, such as that of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub u8);

impl Name {
    /// First code of names that the file defines. Lower codes are built in.
    pub const CUSTOM: u8 = 128;
    /// The number of names that a file can define; the last one stands for all further ones.
    pub const MAX_CUSTOM: usize = 127;
    /// No name: the operation has no algorithm or protocol.
    pub const NONE: Self = Self(0);
}

coded_enum! {
    /// The kind of an operation.
    OperationKind {
        /// All ranks get the reduction of all inputs.
        AllReduce = 1 "all-reduce",
        /// The root gets the reduction of all inputs.
        Reduce = 2 "reduce",
        /// All ranks get the root's data.
        Broadcast = 3 "broadcast",
        /// All ranks get the parts of all ranks.
        AllGather = 4 "all-gather",
        /// Each rank gets its part of the reduction.
        ReduceScatter = 5 "reduce-scatter",
        /// The root gets the parts of all ranks.
        Gather = 6 "gather",
        /// Each rank gets its part of the root's data.
        Scatter = 7 "scatter",
        /// Each rank sends a part to every rank.
        AllToAll = 8 "all-to-all",
        /// Returns when all ranks have entered it.
        Barrier = 9 "barrier",
        /// Sends to one rank.
        Send = 10 "send",
        /// Receives from one rank.
        Receive = 11 "receive",
    }
}

impl OperationKind {
    /// Whether it is a point-to-point operation.
    pub const fn is_p2p(self) -> bool {
        matches!(self, Self::Send | Self::Receive)
    }

    /// Whether its element count is that of one rank's part of the message.
    pub const fn counts_one_part(self) -> bool {
        matches!(
            self,
            Self::AllGather | Self::ReduceScatter | Self::Gather | Self::Scatter | Self::AllToAll
        )
    }

    /// The message size as nccl-tests counts it: of all parts together for operations on parts.
    pub fn message_bytes(self, count: u64, element_bytes: u64, ranks: u32) -> u64 {
        let parts = if self.counts_one_part() { u64::from(ranks.max(1)) } else { 1 };
        count.saturating_mul(element_bytes).saturating_mul(parts)
    }
}

coded_enum! {
    /// The data type of the elements.
    DataType {
        /// Bytes, and 8-bit integers.
        I8 = 1 "i8",
        /// 8-bit unsigned integers.
        U8 = 2 "u8",
        /// 32-bit integers.
        I32 = 3 "i32",
        /// 32-bit unsigned integers.
        U32 = 4 "u32",
        /// 64-bit integers.
        I64 = 5 "i64",
        /// 64-bit unsigned integers.
        U64 = 6 "u64",
        /// Half precision.
        F16 = 7 "f16",
        /// Single precision.
        F32 = 8 "f32",
        /// Double precision.
        F64 = 9 "f64",
        /// bfloat16.
        Bf16 = 10 "bf16",
        /// fp8 with four exponent bits.
        F8E4M3 = 11 "f8e4m3",
        /// fp8 with five exponent bits.
        F8E5M2 = 12 "f8e5m2",
        /// 16-bit integers.
        I16 = 13 "i16",
    }
}

impl DataType {
    /// The size of an element, if the type is known.
    pub const fn bytes(self) -> Option<u64> {
        Some(match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
            Self::Other(_) => return None,
        })
    }
}

coded_enum! {
    /// The algorithm of a collective, by NCCL's names.
    Algorithm {
        /// None: point-to-point, or not recorded.
        None = 0 "",
        /// Double binary trees.
        Tree = 1 "tree",
        /// Rings.
        Ring = 2 "ring",
        /// In-network reduction, direct.
        CollNetDirect = 3 "collnet-direct",
        /// In-network reduction, chain.
        CollNetChain = 4 "collnet-chain",
        /// NVLink SHARP.
        Nvls = 5 "nvls",
        /// NVLink SHARP within, trees between nodes.
        NvlsTree = 6 "nvls-tree",
        /// Parallel aggregated trees.
        Pat = 7 "pat",
    }
}

coded_enum! {
    /// The protocol of a collective, by NCCL's names.
    Protocol {
        /// None: not recorded.
        None = 0 "",
        /// Low latency.
        Ll = 1 "ll",
        /// Low latency, 128 bytes.
        Ll128 = 2 "ll128",
        /// Simple.
        Simple = 3 "simple",
    }
}

/// The clock of an operation's start and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Timing {
    /// Not measured: the operation did not end, or nothing reported when it did.
    #[default]
    None,
    /// `CLOCK_MONOTONIC` of the host.
    Host,
    /// The GPU's global timer.
    Device,
}

/// An operation of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Index of its communicator in the file.
    pub communicator: u32,
    /// Its number, from 0: among the collectives of the communicator, which all ranks issue in the same
    /// order, or among the messages to, or from, the same peer.
    pub index: u64,
    /// The library's own sequence number; NCCL counts per kind.
    pub sequence: u64,
    /// The kind.
    pub kind: OperationKind,
    /// The data type.
    pub dtype: DataType,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// The number of channels; 0 if unknown.
    pub channels: u16,
    /// Root of the collective, or peer of the message, as a rank of the communicator.
    pub peer: Option<u32>,
    /// The element count as the program passed it.
    pub count: u64,
    /// The message size as nccl-tests counts it.
    pub bytes: u64,
    /// When it was enqueued, on the host clock.
    pub enqueued: u64,
    /// Whether it ended. Of some operations NCCL does not report when: they have no duration.
    pub completed: bool,
    /// The clock of `start` and `end`.
    pub timing: Timing,
    /// When it started to run.
    pub start: u64,
    /// When it ended. Not before `start`.
    pub end: u64,
    /// Its network transfers, if there were any.
    pub network: Option<Network>,
    /// Whether it was captured into a CUDA graph.
    pub captured: bool,
}

impl Operation {
    /// Its duration in nanoseconds, if it was measured.
    pub fn duration(&self) -> Option<u64> {
        (self.timing != Timing::None).then(|| self.end.saturating_sub(self.start))
    }
}

/// The network transfers of an operation, on the host clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Network {
    /// When the first transfer started.
    pub start: u64,
    /// When the last transfer ended.
    pub end: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Time in which a send was in the network, of all channels together. Only with network steps
    /// recorded.
    pub send_wait: u64,
    /// Time in which a receive waited for the network, of all channels together. Only with network steps
    /// recorded.
    pub receive_wait: u64,
}

/// A communicator of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Communicator {
    /// Its index in the file.
    pub index: u32,
    /// The same number on all of its ranks; 0 if unknown.
    pub id: u64,
    /// Its name, or empty.
    pub name: String,
    /// The number of its ranks; 0 if unknown.
    pub ranks: u32,
    /// The number of its nodes; 0 if unknown.
    pub nodes: u32,
    /// This process's rank in it.
    pub rank: u32,
}

impl Communicator {
    /// Its id as a hexadecimal number, or empty.
    pub fn hex_id(&self) -> String {
        if self.id == 0 { String::new() } else { format!("0x{:x}", self.id) }
    }

    /// Its name, else its id.
    pub fn label(&self) -> String {
        match (self.name.as_str(), self.id) {
            ("", 0) => "unknown".to_owned(),
            ("", _) => self.hex_id(),
            (name, _) => name.to_owned(),
        }
    }
}

/// Reads all clocks of a process at about one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSync {
    /// `CLOCK_MONOTONIC`, in nanoseconds: the host clock.
    pub host: u64,
    /// `CLOCK_REALTIME`, in nanoseconds since 1970.
    pub realtime: u64,
    /// How far the device clock is ahead of the host clock, if operations were timed on a device. An
    /// estimate from below: device times are seen by the host with a delay.
    pub device_ahead: Option<i64>,
}

/// The library that ran the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// NCCL or RCCL, by the profiler plug-in.
    Nccl,
    /// Regatta's own collectives.
    Regatta,
}

impl Source {
    /// The name in file names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::Regatta => "regatta",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The process that wrote a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The library.
    pub source: Source,
    /// Rank of the job, if the environment has one.
    pub rank: Option<u32>,
    /// Ranks of the job, if the environment has them.
    pub world_size: Option<u32>,
    /// How many times the job had been restarted.
    pub restart: u32,
    /// Process ID.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Identifies a boot of the host: processes with the same one share their host clock.
    pub boot_id: String,
}
