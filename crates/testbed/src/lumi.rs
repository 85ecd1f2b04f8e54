//! A node of LUMI-G for tests that imitate one.

/// The published masks of its eight local ranks, in their order.
pub const MASKS: [&str; 8] = [
    "fe000000000000",
    "fe00000000000000",
    "fe0000",
    "fe000000",
    "fe",
    "fe00",
    "fe00000000",
    "fe0000000000",
];

/// What hwloc makes one of: 64 cores in eight groups of one L3 cache, four NUMA nodes; thread 2 of
/// core i is CPU 64 + i.
pub const HWLOC: &str = "pack:1 numa:4 l3:2 core:8 pu:2(indexes=2*64:1*2)";
