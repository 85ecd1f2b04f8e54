//! The profiler plug-in of NCCL and RCCL.
