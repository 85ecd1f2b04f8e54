//! Ranks as threads of one process, connected as the ranks of one node.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

use regatta_comm::bootstrap::{self, BootstrapConfig};
use regatta_comm::{Communicator, hierarchical, shm};
use regatta_wire::secret::Secret;

/// The communicators of a world.
pub fn world(ranks: u32) -> Vec<Communicator> {
    world_with(ranks, shm::CHUNK_BYTES, |_| {})
}

/// [`world`] with this many bytes of a buffer per slot in shared memory, and a configuration.
pub fn world_with(
    ranks: u32,
    chunk_bytes: usize,
    configure: impl Fn(&mut BootstrapConfig),
) -> Vec<Communicator> {
    let address = std::net::Ipv4Addr::LOCALHOST;
    let listener = bootstrap::listen((address, 0).into()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let secret = Secret::generate().unwrap();
    // Isolates the shared memory of worlds that are joined at the same time.
    let node = secret.derive("node").to_hex();
    let configured = |rank: u32, listener| {
        let (master, secret) = (address.to_string(), secret.clone());
        let mut config = BootstrapConfig::new(rank, ranks, &master, port, secret);
        (config.host, config.node, config.listener) =
            ("this node".to_owned(), node.clone(), listener);
        configure(&mut config);
        config
    };
    let mut listener = Some(listener);
    let configs: Vec<BootstrapConfig> =
        (0..ranks).map(|rank| configured(rank, listener.take())).collect();
    std::thread::scope(|scope| {
        let join = |config| hierarchical::join_with(config, chunk_bytes).unwrap();
        let threads: Vec<_> =
            configs.into_iter().map(|config| scope.spawn(move || join(config))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
