//! Roofline of this machine, measured by one rank: `cargo run --release -p regatta-measure
//! --example roofline [gemm|copy|disk]`.

use std::sync::atomic::AtomicBool;

use regatta_measure::roofline::outliers::{self, DEFAULT_TOLERANCE};
use regatta_measure::roofline::{RooflineError, copy, disk, gemm, text, to_rooflines};

fn main() -> Result<(), RooflineError> {
    let selected: Vec<String> = std::env::args().skip(1).collect();
    let is_selected = |name: &str| selected.is_empty() || selected.iter().any(|word| word == name);
    let (stop, mut rows) = (AtomicBool::new(false), Vec::new());
    if is_selected("gemm") {
        rows.extend(gemm::measure(&gemm::GemmSettings::default(), &stop, &mut |_| ())?);
    }
    if is_selected("copy") {
        rows.extend(copy::measure(&copy::CopySettings::default(), &stop, &mut |_| ())?);
    }
    if is_selected("disk") {
        rows.extend(disk::measure(&disk::DiskSettings::default(), &stop, &mut |_| ())?);
    }
    let all = to_rooflines(vec![(0, rows)], |_| "localhost".to_owned());
    let outliers = outliers::find(&[(0, "localhost".to_owned())], &all, DEFAULT_TOLERANCE);
    for line in text::table(&all, &outliers).into_iter().chain(text::notes(&all)) {
        println!("{line}");
    }
    Ok(())
}
