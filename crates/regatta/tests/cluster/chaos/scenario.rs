//! The scenarios from which cases are generated.

use regatta_testbed::Random;

use crate::chaos::case::{
    AgentLauncher, Case, Condition, HEARTBEAT_TIMEOUT, JobFault, ProcessRole, When,
};
use crate::chaos::env_number;

/// Nodes of the largest cases.
pub const MANY_NODES: u32 = 40;

const ROLES: [ProcessRole; 4] =
    [ProcessRole::Original, ProcessRole::Reaper, ProcessRole::Worker, ProcessRole::All];
/// The processes that are not needed for the job to end.
const NOT_WORKER: [ProcessRole; 2] = [ProcessRole::Original, ProcessRole::Reaper];

/// The scenarios; consecutive seeds cycle through them.
pub const SCENARIOS: [fn(&mut Case, &mut Random); 43] = [
    |c, r| c.conditions = vec![Condition::Daemons { rank: c.rank(r) }],
    |c, r| c.faults = vec![JobFault::Killed { rank: c.rank(r) }],
    |c, r| c.faults = vec![c.exit(r)],
    |c, r| c.faults = vec![JobFault::Agent { node: c.node(r), role: ProcessRole::Worker }],
    |c, r| c.faults = vec![JobFault::Agent { node: c.node(r), role: ProcessRole::Reaper }],
    |c, r| c.faults = vec![JobFault::Agent { node: c.node(r), role: ProcessRole::Original }],
    |c, r| c.faults = vec![JobFault::Agent { node: c.node(r), role: ProcessRole::All }],
    |c, _| c.faults = vec![JobFault::Launcher { role: ProcessRole::Worker }],
    |c, _| c.faults = vec![JobFault::Launcher { role: ProcessRole::Reaper }],
    |c, _| c.faults = vec![JobFault::Launcher { role: ProcessRole::Original }],
    |c, _| c.faults = vec![JobFault::Launcher { role: ProcessRole::All }],
    |c, _| c.faults = vec![JobFault::Cut { node: c.nodes - 1 }],
    |c, r| {
        (c.nodes, c.fan_out) = (r.within(4, 8), 2);
        c.faults = vec![JobFault::Cut { node: r.within(0, c.nodes / 2 - 2) }];
    },
    |c, r| c.faults = vec![JobFault::Crash { node: c.node(r) }],
    |c, r| c.faults = vec![JobFault::Flap { node: c.node(r), ms: 300 }],
    |c, r| {
        let ms = HEARTBEAT_TIMEOUT * 1000 + r.within(500, 4000);
        c.faults = vec![JobFault::Flap { node: c.node(r), ms }];
    },
    |c, r| c.conditions = vec![Condition::FullLog { rank: c.rank(r) }],
    |c, _| c.conditions = vec![Condition::SmallDisk { kib: 256 }, Condition::Writes { mib: 1 }],
    |c, r| {
        c.faults = vec![c.exit(r)];
        c.conditions = vec![c.ignores_term(0)];
    },
    |c, r| {
        c.nodes = r.within(2, 3);
        c.conditions = vec![Condition::WritesAtExit { rank: c.rank(r), mib: large_output() }];
    },
    |c, r| {
        let rank = c.rank(r);
        c.faults = vec![JobFault::Killed { rank }];
        c.conditions = vec![Condition::Daemons { rank: c.rank(r) }, Condition::Daemons { rank }];
    },
    |c, r| {
        let node = c.node(r);
        c.faults = vec![JobFault::Agent { node, role: r.pick(&ROLES) }];
        c.conditions = vec![Condition::Daemons { rank: node * c.ranks_per_node }];
    },
    |c, r| {
        c.faults = vec![JobFault::Launcher { role: r.pick(&ROLES) }];
        c.conditions = vec![Condition::Daemons { rank: c.rank(r) }];
    },
    two_faults,
    |c, r| {
        c.when = When::Starting;
        c.faults = vec![JobFault::Agent { node: c.node(r), role: r.pick(&ROLES) }];
    },
    |c, r| {
        c.when = When::Starting;
        c.faults = vec![JobFault::Launcher { role: r.pick(&ROLES) }];
    },
    fault_while_ending,
    |c, r| {
        c.faults = vec![JobFault::Term];
        c.conditions = vec![Condition::Daemons { rank: c.rank(r) }];
    },
    |c, r| {
        c.launcher = AgentLauncher::Srun;
        c.faults = vec![JobFault::Cancel];
        c.conditions = vec![Condition::Daemons { rank: c.rank(r) }];
    },
    |c, _| c.faults = vec![JobFault::Pause],
    |c, _| (c.launcher, c.faults) = (AgentLauncher::Batch, vec![JobFault::Suspend]),
    |c, r| {
        c.faults = vec![JobFault::TimeoutTerm];
        c.conditions = vec![Condition::Saves { ms: r.within(200, 1200) }];
    },
    |c, r| {
        c.faults = vec![JobFault::TermTwice { us: r.pick(&[0, 30, 1000, 100_000, 300_000]) }];
        c.conditions = vec![Condition::Saves { ms: r.within(400, 1200) }];
    },
    |c, r| c.faults = vec![JobFault::AgentHangs { node: c.node(r), role: ProcessRole::Worker }],
    |c, r| c.faults = vec![JobFault::AgentHangs { node: c.node(r), role: r.pick(&NOT_WORKER) }],
    |c, _| c.faults = vec![JobFault::LauncherHangs { role: ProcessRole::Worker }],
    |c, r| c.faults = vec![JobFault::LauncherHangs { role: r.pick(&NOT_WORKER) }],
    |c, r| {
        let rank = c.rank(r);
        let exits = JobFault::Exits { rank: (rank + 1) % c.ranks(), code: 19 };
        c.faults = vec![JobFault::RankHangs { rank }, exits];
    },
    |c, r| {
        with_spare(c, r);
        c.faults = vec![JobFault::AgentHangs { node: c.node(r), role: ProcessRole::Worker }];
    },
    |c, r| {
        with_spare(c, r);
        let node = c.node(r);
        c.faults = match r.within(0, 2) {
            0 => vec![JobFault::Cut { node }],
            _ => vec![JobFault::Agent { node, role: r.pick(&ROLES) }],
        };
    },
    |c, r| {
        c.fan_out = 2;
        c.conditions = vec![Condition::Lines { count: r.pick(&[1, 100, 1000]) }];
    },
    many_nodes,
    |c, r| {
        (c.nodes, c.ranks_per_node, c.fan_out) = (MANY_NODES, r.within(1, 2), 32);
        c.launcher = AgentLauncher::Srun;
        c.conditions = vec![Condition::Lines { count: r.pick(&[1, 1, 20, 1000]) }];
    },
];

/// Size of a large output, in MiB.
fn large_output() -> u32 {
    env_number("REGATTA_CHAOS_MIB", 16) as u32
}

fn two_faults(c: &mut Case, r: &mut Random) {
    c.nodes = r.within(3, 8);
    let mut any = |node: u32, rank: u32| match r.within(0, 4) {
        0 => JobFault::Killed { rank },
        1 => JobFault::Exits { rank, code: 9 },
        2 => JobFault::Agent { node, role: ProcessRole::Worker },
        3 => JobFault::Agent { node, role: ProcessRole::Reaper },
        _ => JobFault::Crash { node },
    };
    c.faults = vec![any(0, 0), any(c.nodes - 1, c.nodes * c.ranks_per_node - 1)];
    c.conditions = vec![Condition::Daemons { rank: c.ranks_per_node }];
}

fn fault_while_ending(c: &mut Case, r: &mut Random) {
    c.when = When::Ending;
    let node = r.within(1, c.nodes - 1);
    let second = match r.within(0, 4) {
        0 => JobFault::Agent { node, role: r.pick(&ROLES) },
        1 => JobFault::AgentHangs { node, role: ProcessRole::Worker },
        2 => JobFault::Launcher { role: r.pick(&ROLES) },
        3 => JobFault::Cut { node },
        _ => JobFault::Crash { node },
    };
    c.faults = vec![JobFault::Exits { rank: 0, code: 17 }, second];
    c.conditions = vec![c.ignores_term(node * c.ranks_per_node)];
}

/// The last node is a spare.
fn with_spare(c: &mut Case, r: &mut Random) {
    (c.nodes, c.spares) = (r.within(3, 8), 1);
}

/// More nodes than the default fan-out. Mostly the complete output matters.
fn many_nodes(c: &mut Case, r: &mut Random) {
    (c.nodes, c.ranks_per_node) = (MANY_NODES, 1);
    c.fan_out = r.pick(&[32, 32, 6, 3]);
    // Logins to so many nodes take seconds.
    c.launcher = r.pick(&[AgentLauncher::Srun, AgentLauncher::Srun, AgentLauncher::Ssh]);
    let node = c.node(r);
    match r.within(0, 7) {
        0 => c.faults = vec![JobFault::Killed { rank: c.rank(r) }],
        1 => c.faults = vec![JobFault::Pause],
        2 => c.faults = vec![JobFault::Agent { node, role: r.pick(&ROLES) }],
        3 => c.faults = vec![JobFault::AgentHangs { node, role: ProcessRole::Worker }],
        4 => {
            c.faults = vec![JobFault::TimeoutTerm];
            c.conditions = vec![Condition::Saves { ms: 500 }];
        }
        _ => c.conditions = vec![Condition::Lines { count: r.pick(&[1, 1, 100, 1000]) }],
    }
}
