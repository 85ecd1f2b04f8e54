//! Regatta's nouns and their file formats: what a machine, an allocation, a job, a placement and a
//! benchmark's result are. Every stage reads and writes these; none of them does any I/O.

pub mod allocation;
pub mod bench;
pub mod cpuset;
pub mod document;
pub mod hostlist;
pub mod job;
pub mod machine;
pub mod placement;
pub mod result;
pub mod units;

pub use allocation::{AllocatedNode, Allocation, Distribution, Launcher, RankId, Scheduler};
pub use bench::{
    BenchResult, BenchRow, BenchTable, Ceiling, CeilingKind, CeilingRow, Measurement, Operation,
    RateUnit,
};
pub use cpuset::CpuSet;
pub use document::{Document, DocumentError};
pub use job::{Job, MemoryChoice, Reserve, SmtUse, Visibility};
pub use machine::{
    Core, Distance, Gpu, GpuLink, GpuVendor, L3Group, LinkKind, LinkState, Machine, Nic, NicKind,
    NumaNode, Os, Package, PciDevice, Software, Usable,
};
pub use placement::{Layout, MemoryPolicy, PlacedNode, PlacedRank, Placement, Reasons, Warning};
