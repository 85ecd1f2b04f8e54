//! What this machine can do, measured by one rank: `cargo run --release -p regatta-measure
//! --example ceilings [gemm|copy|disk]`.

use std::sync::atomic::AtomicBool;

use regatta_measure::ceiling::judge::{TOLERANCE, judge};
use regatta_measure::ceiling::{CeilingError, ceilings, copy, disk, gemm, text};

fn main() -> Result<(), CeilingError> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| asked.is_empty() || asked.iter().any(|word| word == name);
    let (stop, mut rows) = (AtomicBool::new(false), Vec::new());
    if wanted("gemm") {
        rows.extend(gemm::measure(&gemm::Settings::default(), &stop, &mut |_| ())?);
    }
    if wanted("copy") {
        rows.extend(copy::measure(&copy::Settings::default(), &stop, &mut |_| ())?);
    }
    if wanted("disk") {
        rows.extend(disk::measure(&disk::Settings::default(), &stop, &mut |_| ())?);
    }
    let all = ceilings(vec![(0, rows)], |_| "here".to_owned());
    let verdict = judge(&[(0, "here".to_owned())], &all, TOLERANCE);
    for line in text::table(&all, &verdict).into_iter().chain(text::notes(&all)) {
        println!("{line}");
    }
    Ok(())
}
