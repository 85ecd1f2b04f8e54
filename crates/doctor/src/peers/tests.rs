use std::net::Ipv4Addr;

use regatta_model::machine::NicAddress;

use super::*;

/// Nodes on this machine: each has its own loopback address, all listen on different ports.
fn table(nodes: usize, ports: Vec<u16>) -> PeerTable {
    let node = |i: usize| {
        let address = Ipv4Addr::new(127, 0, 7, i as u8 + 1).into();
        let networks = vec![("lo".to_owned(), NicAddress { address, prefix: 24 })];
        PeerNode { host: format!("n{}", i + 1), networks }
    };
    let token = Secret::generate().unwrap().to_hex();
    PeerTable { token, ports, nodes: (0..nodes).map(node).collect() }
}

/// Short limits for tests in which a connection fails; long enough for a busy machine.
fn short_limits() -> PeerLimits {
    let seconds = Duration::from_secs;
    PeerLimits { answer: seconds(2), start: seconds(2), total: seconds(4) }
}

/// Free ports of this machine for nodes that share it, and some more if other programs take them.
fn free_ports(nodes: usize) -> Vec<u16> {
    let count = nodes + 4;
    let bind = || std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let listeners: Vec<_> = (0..count).map(|_| bind()).collect();
    listeners.iter().map(|l| l.local_addr().unwrap().port()).collect()
}

fn run(table: &PeerTable, own: usize, limits: PeerLimits) -> Vec<Peer> {
    PeerTest::start(table, own, limits).unwrap().run()
}

fn run_all(table: &PeerTable, nodes: &[usize], limits: PeerLimits) -> Vec<Vec<Peer>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            nodes.iter().map(|&own| scope.spawn(move || run(table, own, limits))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn all_pairs_of_three_nodes_connect_and_neighbours_measure_bandwidth() {
    let table = table(3, free_ports(3));
    let peers = run_all(&table, &[0, 1, 2], PeerLimits::default());
    for (own, peers) in peers.iter().enumerate() {
        assert_eq!(peers.len(), 1, "{peers:?}");
        let peer = &peers[0];
        assert_eq!((peer.node as usize, peer.error.as_deref()), ((own + 1) % 3, None));
        assert!(peer.round_trip.unwrap() > 0.0);
        assert!(peer.clock_offset.unwrap().abs() < 10.0, "{peer:?}");
        let (to, from) = peer.bandwidth.unwrap();
        assert!(to > 0.0 && from > 0.0);
    }
}

#[test]
fn a_node_that_does_not_listen_is_reported_and_the_others_end() {
    let table = table(3, free_ports(3));
    let peers = run_all(&table, &[0, 2], short_limits());
    assert_eq!(peers[0][0].host, "n2");
    assert!(peers[0][0].error.is_some(), "{:?}", peers[0]);
    assert_eq!((peers[1][0].host.as_str(), peers[1][0].error.as_deref()), ("n1", None));
}

#[test]
fn a_process_with_another_token_is_rejected() {
    let good = table(2, free_ports(2));
    let other = PeerTable { token: Secret::generate().unwrap().to_hex(), ..good.clone() };
    let limits = short_limits();
    let peers = std::thread::scope(|scope| {
        let server = scope.spawn(|| run(&good, 1, limits));
        let peers = run(&other, 0, limits);
        server.join().unwrap();
        peers
    });
    assert!(peers[0].error.is_some() && peers[0].bandwidth.is_none(), "{peers:?}");
}
