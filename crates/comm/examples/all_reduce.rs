//! Sums the ranks: `regatta launch -n 4 -- target/release/examples/all_reduce`.

use regatta_comm::{
    Collectives, Comm, CommError, ReduceOp, bootstrap::BootstrapConfig, hierarchical,
};

fn main() -> Result<(), CommError> {
    let comm = hierarchical::join(BootstrapConfig::from_env()?)?;
    let mut sum = [comm.rank() as f32];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    println!("rank {} of {}: the sum is {}", comm.rank(), comm.size(), sum[0]);
    Ok(())
}
