//! The built-in dataset: the documentation of this project.

/// The documentation, concatenated.
pub fn text() -> String {
    PAGES.join("\n")
}

const PAGES: [&str; 13] = [
    include_str!("../../../../README.md"),
    include_str!("../../../../docs/map.md"),
    include_str!("../../../../docs/env.md"),
    include_str!("../../../../docs/launch.md"),
    include_str!("../../../../docs/comm.md"),
    include_str!("../../../../docs/bench.md"),
    include_str!("../../../../docs/train/tutorial.md"),
    include_str!("../../../../docs/train/reference.md"),
    include_str!("../../../../docs/train/performance.md"),
    include_str!("../../../../docs/data.md"),
    include_str!("../../../../docs/checkpoints.md"),
    include_str!("../../../../docs/architecture.md"),
    include_str!("../../../../CHANGELOG.md"),
];
