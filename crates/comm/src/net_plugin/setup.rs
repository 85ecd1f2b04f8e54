//! Connections that are established on first use: connecting and accepting never block.

use std::ffi::c_int;
use std::sync::Arc;

use regatta_plugin_abi::net::Object;

use super::connection::Connection;
use super::table::{Handle, Net, NetError, ObjectKind};

/// A connection in one direction.
pub enum Link<Setup> {
    /// Not needed, or the peer's listener is not known yet.
    Unused,
    /// Being established, or not needed yet.
    Pending(Setup),
    Ready(Connection),
    Broken,
}

/// A connection to a peer. The plug-in keeps its state in the handle, whose address must stay the same.
pub type SendLink = Link<Box<Handle>>;
/// A connection from a peer.
pub type RecvLink = Link<Listener>;

impl<Setup> Link<Setup> {
    pub fn get(&mut self) -> Option<&mut Connection> {
        if let Self::Ready(connection) = self { Some(connection) } else { None }
    }
}

impl SendLink {
    /// The connection, if it is established; makes progress on it if not.
    pub fn ready(
        &mut self,
        net: &Arc<Net>,
        device: c_int,
        bounce_bytes: usize,
    ) -> Result<Option<&mut Connection>, NetError> {
        if let Self::Pending(handle) = self
            && let Some(comm) = net.connect(device, handle)?
        {
            *self = Self::Ready(Connection::new(net.clone(), comm, ObjectKind::Send, bounce_bytes));
        }
        Ok(self.get())
    }
}

impl RecvLink {
    /// The connection, if the peer has connected.
    pub fn ready(&mut self, bounce_bytes: usize) -> Result<Option<&mut Connection>, NetError> {
        if let Self::Pending(listener) = self
            && let Some(comm) = listener.accept()?
        {
            let net = listener.net.clone();
            *self = Self::Ready(Connection::new(net, comm, ObjectKind::Recv, bounce_bytes));
        }
        Ok(self.get())
    }
}

/// Listens for one connection. NCCL never accepts a second one, so plug-ins may not support it.
pub struct Listener {
    net: Arc<Net>,
    object: Object,
}

// SAFETY: as for `Connection`.
unsafe impl Send for Listener {}

impl Listener {
    /// Listens on a NIC. The peer connects with the handle.
    pub fn new(net: &Arc<Net>, device: c_int) -> Result<(Handle, Self), NetError> {
        let (handle, object) = net.listen(device)?;
        Ok((handle, Self { net: net.clone(), object }))
    }

    fn accept(&mut self) -> Result<Option<Object>, NetError> {
        // SAFETY: the listener is open.
        unsafe { self.net.accept(self.object) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: nothing uses the listener afterwards. Its connection, if accepted, stays open.
        let _ = unsafe { self.net.close(self.object, ObjectKind::Listener) };
    }
}
