//! Collectives, algorithms and protocols, by NCCL's numbers and names.

use std::fmt;

/// Defines an enum with NCCL's numbers and the names that tables have.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $name {
            /// All of them, in the order of NCCL's numbers.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$variant),*];

            /// The one with a number of NCCL's, if it is known.
            pub fn from_number(number: i32) -> Option<Self> {
                Self::ALL.get(usize::try_from(number).ok()?).copied()
            }

            /// The one with a name, in any case.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(name))
            }

            /// Its name in tables.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

named! {
    /// A collective that NCCL has several algorithms or protocols for.
    Function {
        /// Broadcast.
        Broadcast = 0 "broadcast",
        /// Reduce.
        Reduce = 1 "reduce",
        /// All-gather.
        AllGather = 2 "all-gather",
        /// Reduce-scatter.
        ReduceScatter = 3 "reduce-scatter",
        /// All-reduce.
        AllReduce = 4 "all-reduce",
    }
}

named! {
    /// An algorithm. The names are those that `NCCL_ALGO` takes.
    Algorithm {
        /// Double binary tree.
        Tree = 0 "tree",
        /// Ring.
        Ring = 1 "ring",
        /// In-network reduction, from all GPUs of a node.
        CollNetDirect = 2 "collnetdirect",
        /// In-network reduction, at the end of a chain of the node's GPUs.
        CollNetChain = 3 "collnetchain",
        /// NVLink SHARP.
        Nvls = 4 "nvls",
        /// NVLink SHARP within nodes, a tree between them.
        NvlsTree = 5 "nvlstree",
        /// Parallel aggregated trees.
        Pat = 6 "pat",
    }
}

named! {
    /// A protocol. The names are those that `NCCL_PROTO` takes.
    Protocol {
        /// Low latency: 4 bytes of data with each flag.
        Ll = 0 "ll",
        /// Low latency: 120 bytes of data with each flag.
        Ll128 = 1 "ll128",
        /// Full bandwidth.
        Simple = 2 "simple",
    }
}

impl Function {
    /// The name that `NCCL_ALGO` and `NCCL_PROTO` take.
    pub fn nccl_name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllGather => "allgather",
            Self::ReduceScatter => "reducescatter",
            Self::AllReduce => "allreduce",
        }
    }
}

impl Algorithm {
    /// Whether NCCL has the algorithm for a collective and a protocol.
    pub fn supports(self, function: Function, protocol: Protocol) -> bool {
        use Function::{AllGather, AllReduce, ReduceScatter};
        match self {
            Self::Ring => true,
            Self::Tree => function == AllReduce,
            Self::CollNetChain | Self::NvlsTree => {
                function == AllReduce && protocol == Protocol::Simple
            }
            Self::CollNetDirect | Self::Nvls => {
                matches!(function, AllReduce | AllGather | ReduceScatter)
                    && protocol == Protocol::Simple
            }
            Self::Pat => {
                matches!(function, AllGather | ReduceScatter) && protocol == Protocol::Simple
            }
        }
    }

    /// Whether a number of channels may be chosen. NCCL limits it to those that exist for these
    /// algorithms only.
    pub fn has_channel_choice(self) -> bool {
        matches!(self, Self::Tree | Self::Ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        for (number, function) in (0..).zip(Function::ALL) {
            assert_eq!(function as i32, number);
            assert_eq!(Function::from_number(number), Some(function));
            assert_eq!(Function::from_name(function.name()), Some(function));
            assert_eq!(function.name().replace('-', ""), function.nccl_name());
        }
        for (number, algorithm) in (0..).zip(Algorithm::ALL) {
            assert_eq!(algorithm as i32, number);
            assert_eq!(Algorithm::from_name(&algorithm.name().to_uppercase()), Some(algorithm));
        }
        for (number, protocol) in (0..).zip(Protocol::ALL) {
            assert_eq!(protocol as i32, number);
            assert_eq!(Protocol::from_name(protocol.name()), Some(protocol));
        }
        assert_eq!((Function::from_number(-1), Function::from_number(5)), (None, None));
        assert_eq!(Algorithm::from_name("rings"), None);
    }
}
