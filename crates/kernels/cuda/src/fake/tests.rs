//! Faults and observations of the fake GPU.
