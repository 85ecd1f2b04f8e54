//! Port exchange between rank processes: rank 0 listens on a free port and writes it to a file.

use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than a process takes to start.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Rank 0 publishes its port, the others read it.
pub fn exchange_port(file: &Path, own: Option<u16>) -> u16 {
    if let Some(port) = own {
        let temporary = file.with_extension("tmp");
        std::fs::write(&temporary, port.to_string()).unwrap();
        std::fs::rename(&temporary, file).unwrap();
        return port;
    }
    let until = Instant::now() + TIMEOUT;
    loop {
        match std::fs::read_to_string(file) {
            Ok(port) => return port.parse().unwrap(),
            Err(error) => assert!(Instant::now() < until, "{}: {error}", file.display()),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
