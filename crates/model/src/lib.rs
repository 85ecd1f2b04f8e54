//! The data model and its file formats: machine, allocation, job specification, placement, run
//! folder, run result and benchmark result. Every stage reads and writes these types. This crate does no I/O.

pub mod allocation;
pub mod bench;
pub mod cpuset;
pub mod document;
pub mod finite_or_null;
pub mod hash;
pub mod hostlist;
pub mod job;
pub mod machine;
pub mod placement;
pub mod rank_bytes;
pub mod result;
pub mod run_folder;
pub mod shell;
pub mod suggest;
pub mod text;
pub mod train_event;
pub mod units;

pub use allocation::{AllocatedNode, Allocation, Distribution, Launcher, RankId, Scheduler};
pub use bench::{
    BenchResult, BenchRow, BenchTable, Measurement, Operation, RankRoofline, RateUnit,
    RooflineKind, RooflineRow,
};
pub use cpuset::CpuSet;
pub use document::{Document, DocumentError};
pub use job::{GpuVisibility, JobSpec, MemoryBinding, ReservedCores, SmtPolicy};
pub use machine::{
    Core, Distance, Gpu, GpuLink, GpuVendor, L3Group, LinkKind, LinkState, Machine, Nic, NicKind,
    NumaNode, Os, Package, PciDevice, Software, UsableResources,
};
pub use placement::{
    MemoryPolicy, NodeLayout, PlacedNode, PlacedRank, Placement, PlacementReasons, Warning,
};
