//! How ranks that are processes come to know the port of the first: it takes one that is free, and
//! writes it to a file.

use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than a process takes to begin.
const LIMIT: Duration = Duration::from_secs(20);

/// The first rank says which port it has, the others read it.
pub fn port(file: &Path, own: Option<u16>) -> u16 {
    if let Some(port) = own {
        let whole = file.with_extension("whole");
        std::fs::write(&whole, port.to_string()).unwrap();
        std::fs::rename(&whole, file).unwrap();
        return port;
    }
    let until = Instant::now() + LIMIT;
    loop {
        match std::fs::read_to_string(file) {
            Ok(port) => return port.parse().unwrap(),
            Err(error) => assert!(Instant::now() < until, "{}: {error}", file.display()),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
