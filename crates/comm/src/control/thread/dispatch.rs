//! Handling of control-plane messages.

use regatta_wire::clock;
use regatta_wire::reactor::ConnId;

use super::{ControlPlane, RoleState};
use crate::control::dial::set_socket_options;
use crate::control::messages::{
    ACCEPTED, ACCEPTED_REUSE, Fault, FromRoot, Hello, MAX_CONNECTIONS, ToRoot, decode, encode,
};

impl ControlPlane {
    pub(super) fn handle_frame(&mut self, conn: ConnId, frame: &[u8]) {
        match (&mut self.role, self.ranks.get(&conn)) {
            (RoleState::Root(root), Some(rank)) => match decode::<ToRoot>(frame) {
                Some(ToRoot::HasTable) => root.has_table(*rank),
                Some(message) => root.coordinator.handle(*rank, message, clock::now()),
                None => {}
            },
            (RoleState::Member { root, .. }, _) if *root == conn => self.handle_root_frame(frame),
            _ => self.hello(conn, frame),
        }
    }

    /// Handles a message from rank 0.
    pub(super) fn handle_root_frame(&mut self, frame: &[u8]) {
        let answer = decode::<FromRoot>(frame).and_then(|message| self.apply(message));
        if let (RoleState::Member { root, .. }, Some(answer)) = (&self.role, answer) {
            self.net.send(*root, &encode(&answer));
        }
    }

    /// Handles the first frame of an authenticated peer.
    fn hello(&mut self, conn: ConnId, frame: &[u8]) {
        match (decode::<Hello>(frame), &mut self.role) {
            (Some(Hello::Data { rank, index }), _) if index < MAX_CONNECTIONS => {
                self.hand_to_data_plane(conn, rank, index);
            }
            (Some(Hello::WorldTable), _) => self.tables.request(conn),
            (Some(Hello::Join { world_size, member }), RoleState::Root(root)) => {
                let rank = member.rank;
                match root.register(conn, world_size, member) {
                    Ok(()) => drop(self.ranks.insert(conn, rank)),
                    Err(rejected) => {
                        self.net.send(conn, &encode(&rejected));
                        self.net.close(conn);
                    }
                }
            }
            _ => self.net.abort(conn),
        }
    }

    /// Hands a data connection to the data plane. The first one of a peer may be written to as soon
    /// as the data plane has it; the others must be in the data plane before data arrives, that is,
    /// before the reply is sent.
    fn hand_to_data_plane(&mut self, conn: ConnId, rank: u32, index: u8) {
        let Ok(stream) = self.net.duplicate(conn) else { return self.net.abort(conn) };
        set_socket_options(&stream, self.lost_after);
        let is_sending = index == 0 && self.sockets.connections_to(rank) > 0;
        let reply = if is_sending { ACCEPTED_REUSE } else { ACCEPTED };
        if index == 0 {
            self.net.release(conn, reply);
            self.sockets.add_incoming(rank, index, stream);
        } else {
            self.sockets.add_incoming(rank, index, stream);
            self.net.release(conn, reply);
        }
    }

    /// Applies a message from rank 0 and returns the answer, if it asks for one.
    pub(super) fn apply(&mut self, message: FromRoot) -> Option<ToRoot> {
        if let (FromRoot::Shutdown, RoleState::Member { root_shut_down, .. }) =
            (&message, &mut self.role)
        {
            *root_shut_down = true;
        }
        self.registry.apply(message)
    }

    /// Handles the end of a connection.
    pub(super) fn connection_ended(&mut self, conn: ConnId, why: &str) {
        match &mut self.role {
            RoleState::Root(root) => {
                if let Some(rank) = self.ranks.remove(&conn) {
                    root.connection_closed(rank, why);
                }
            }
            RoleState::Member { root, root_shut_down: false } if *root == conn => {
                self.registry.abort(None, Fault::Lost { rank: 0, why: why.to_owned() });
            }
            RoleState::Member { .. } => {}
        }
    }
}
