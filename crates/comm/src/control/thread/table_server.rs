//! Passes the world table on to other ranks.

use std::collections::VecDeque;
use std::sync::Arc;

use regatta_wire::reactor::{ConnId, Reactor};

/// Number of ranks that receive the table at the same time: each needs a copy, encrypted for it.
const MAX_CONCURRENT: usize = 64;

/// The ranks that request the table.
#[derive(Debug, Default)]
pub struct TableServer {
    /// The encoded [`FromRoot::Ready`](crate::control::FromRoot::Ready), and the number of ranks that
    /// may still request it.
    table: Option<(Arc<[u8]>, u32)>,
    waiting: VecDeque<ConnId>,
    sending: Vec<ConnId>,
}

impl TableServer {
    /// Serves a table to this many ranks; it is freed after the last one.
    pub fn set(&mut self, table: Arc<[u8]>, requests: u32) {
        self.table = Some((table, requests)).filter(|(_, requests)| *requests > 0);
    }

    /// Frees the table.
    pub fn clear(&mut self) {
        self.table = None;
    }

    pub fn request(&mut self, conn: ConnId) {
        self.waiting.push_back(conn);
    }

    /// Sends the table to as many ranks as are due.
    pub fn serve(&mut self, net: &mut Reactor) {
        self.sending.retain(|conn| net.backlog(*conn) > 0);
        while self.sending.len() < MAX_CONCURRENT
            && let Some((table, requests)) = &mut self.table
            && let Some(conn) = self.waiting.pop_front()
        {
            if net.send(conn, table) {
                self.sending.push(conn);
                *requests -= 1;
            }
            self.table.take_if(|(_, requests)| *requests == 0);
        }
    }
}
