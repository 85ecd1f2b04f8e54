//! Port exchange between rank processes: rank 0 listens on a free port and writes it to a file.

use std::path::Path;

use regatta_testbed::wait_until;

/// Rank 0 publishes its port, the others read it.
pub fn exchange_port(file: &Path, own: Option<u16>) -> u16 {
    if let Some(port) = own {
        let temporary = file.with_extension("tmp");
        std::fs::write(&temporary, port.to_string()).unwrap();
        std::fs::rename(&temporary, file).unwrap();
        return port;
    }
    wait_until("the port of rank 0", || file.exists());
    std::fs::read_to_string(file).unwrap().parse().unwrap()
}
