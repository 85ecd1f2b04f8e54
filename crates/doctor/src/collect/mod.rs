//! Collects the facts of the node that this process runs on.
