//! Topology of a LUMI-G node, for tests that emulate one.

/// The published CPU masks of the eight local ranks, in rank order.
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

/// hwloc synthetic topology: 64 cores in eight L3 groups, four NUMA nodes; the second hardware thread
/// of core i is CPU 64 + i.
pub const HWLOC: &str = "pack:1 numa:4 l3:2 core:8 pu:2(indexes=2*64:1*2)";
