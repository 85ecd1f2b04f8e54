//! Memory that operations in flight use is given back before the host program frees it.

use std::time::{Duration, Instant};

use super::Connection;
use crate::atexit_guard::enter;
use crate::memory::Region;

/// Time for the provider to give up operations that are cancelled. After it, the endpoint is closed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const RELEASE_SLEEP: Duration = Duration::from_micros(50);

impl Connection {
    /// Ends the registration of memory. NCCL does so after an abort, too, with requests in flight: then the
    /// connection fails, and the memory is not accessed afterwards.
    pub fn deregister(&self, region: Region, registration: usize) {
        let Some(_guard) = enter() else { return };
        if self.uses(registration) {
            self.release();
        }
        if region != Region::NONE {
            // A region that is still in use is closed with the endpoint.
            self.nic.engine.io().endpoint.deregister(region);
        }
    }

    /// Whether a request uses memory of a registration. If so, the connection fails.
    fn uses(&self, registration: usize) -> bool {
        let mut state = self.nic.engine.state();
        let Some(connection) = state.connections.get_mut(&self.id) else { return false };
        let is_used = connection.requests().any(|request| {
            let buffers = &request.buffers[..request.count];
            buffers.iter().any(|buffer| buffer.registration == registration)
        });
        if is_used {
            connection.fail("its memory was deregistered while it was in use");
        }
        is_used
    }

    /// Cancels all operations of the connection, and waits until its memory is not accessed any more.
    fn release(&self) {
        let engine = &self.nic.engine;
        let mut io = engine.io();
        engine.state().drop_work(self.id);
        if io.endpoint.info.is_connection_oriented {
            let why = match io.close_connected(self.id) {
                Ok(true) => return,
                Ok(false) => "the provider did not close the endpoint of a connection".to_owned(),
                Err(why) => why,
            };
            return engine.fail(&mut io, why);
        }
        if !io.uses(self.id) {
            return;
        }
        engine.state().is_retired = true;
        io.cancel(self.id);
        let until = Instant::now() + RELEASE_TIMEOUT;
        while io.uses(self.id) && engine.state().failure.is_none() {
            if Instant::now() >= until {
                engine
                    .fail(&mut io, "the provider did not give up cancelled operations".to_owned());
                break;
            }
            engine.progress(&mut io);
            drop(io);
            std::thread::sleep(RELEASE_SLEEP);
            io = engine.io();
        }
    }
}

impl Drop for Connection {
    /// Closes the connection; its memory is not accessed afterwards.
    fn drop(&mut self) {
        let Some(_guard) = enter() else { return };
        if let Some(connection) = self.nic.engine.state().connections.get_mut(&self.id) {
            connection.fail("closed");
        }
        self.release();
        let io = self.nic.engine.io();
        let connection = self.nic.engine.state().remove(self.id);
        if let Some(peer) = connection.and_then(|connection| connection.peer) {
            io.liveness.forget(&peer.stream);
        }
    }
}
