//! Tests the network between the nodes.
