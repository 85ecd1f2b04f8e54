use super::*;

fn running_job(nodes: u32, fan_out: u32, ranks_per_node: u32, seed: u64) -> Simulation {
    let mut sim = Simulation::new(nodes, fan_out, ranks_per_node, seed);
    let joined = sim.run_until(Duration::from_secs(60), Simulation::all_registered);
    assert!(joined, "not all agents joined");
    sim.start_ranks();
    sim
}

proptest! {
    /// Under any faults, the coordinator learns the exit of every rank or declares it lost, and the
    /// job finishes exactly once; then all agents exit and no rank is left. Frames and lines arrive in
    /// order, and all of them if the job succeeded.
    #[test]
    fn every_job_finishes_once_under_faults(
        nodes in 1u32..14, fan_out in 1u32..4, ranks_per_node in 1u32..3, seed: u64, faults in 0usize..5,
    ) {
        let mut sim = running_job(nodes, fan_out, ranks_per_node, seed);
        for _ in 0..faults {
            for _ in 0..sim.rng.below(40) {
                sim.step();
            }
            sim.inject_fault();
        }
        let mut rounds = 0;
        while sim.finished_count == 0 {
            sim.let_ranks_exit();
            sim.run_until(Duration::from_secs(2), |w| w.finished_count > 0);
            rounds += 1;
            prop_assert!(rounds < 200, "the job does not finish");
        }
        let (table, supervisor) = sim.root.as_ref().unwrap();
        prop_assert_eq!(supervisor.rank_exits.len() as u32, nodes * ranks_per_node);
        for (rank, reported) in &supervisor.rank_exits {
            let actual = sim.actual_exits.get(rank).copied().unwrap_or(NEVER_STARTED);
            prop_assert!(*reported == RankExit::NodeLost || actual == *reported);
        }
        if !sim.faults_injected {
            prop_assert_eq!(supervisor.code(), 0);
        }
        let any_failed = sim.actual_exits.values().any(|e| !e.is_success());
        prop_assert!(!any_failed || supervisor.code() != 0);
        for (rank, &sent) in &sim.frames_sent {
            let received = sim.frames_received.get(rank).map_or(&[][..], Vec::as_slice);
            prop_assert!(received.is_sorted_by(|a, b| a < b), "rank {}: {:?}", rank, received);
            prop_assert!(supervisor.code() != 0 || received.len() as u32 == sent);
        }
        for (rank, received) in &sim.lines_received {
            prop_assert!(received.is_sorted_by(|a, b| a < b), "rank {}: {:?}", rank, received);
        }
        prop_assert!(supervisor.code() != 0 || sim.has_all_lines());
        let outputs = table.broadcast(&Downstream::Shutdown);
        sim.apply_outputs(outputs);
        // The coordinator exits afterwards.
        sim.run_until(Duration::from_millis(500), Simulation::is_quiescent);
        sim.root = None;
        sim.break_conns_of(Endpoint::Root, false);
        prop_assert!(sim.run_until(EXIT_TIMEOUT, Simulation::is_quiescent), "an agent is still running");
        prop_assert_eq!(sim.finished_count, 1);
    }

    /// If the coordinator dies, all agents terminate their ranks and exit.
    #[test]
    fn all_agents_exit_when_the_coordinator_dies(
        nodes in 1u32..14, fan_out in 1u32..4, seed: u64, steps in 0usize..200,
    ) {
        let mut sim = running_job(nodes, fan_out, 2, seed);
        for _ in 0..steps {
            sim.step();
        }
        sim.root = None;
        sim.break_conns_of(Endpoint::Root, false);
        prop_assert!(sim.run_until(EXIT_TIMEOUT, Simulation::is_quiescent), "an agent is still running");
        prop_assert!(sim.nodes.iter().all(|s| s.exited));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// On more nodes than the default fan-out.
    #[test]
    fn every_line_arrives_once_before_the_exit_of_its_rank(
        nodes in 33u32..80, fan_out in 2u32..33, seed: u64,
    ) {
        let mut sim = running_job(nodes, fan_out, 2, seed);
        while sim.finished_count == 0 {
            sim.let_ranks_exit();
            sim.run_until(Duration::from_millis(100), |sim| sim.finished_count > 0);
        }
        prop_assert!(!sim.lines_written.is_empty());
        prop_assert!(sim.has_all_lines(), "exits before lines: {:?}", sim.early_exits);
    }
}

/// Neither the coordinator nor an agent kills ranks that save after a signal, however long that takes.
#[test]
fn ranks_that_save_outlive_the_grace_period_after_a_signal() {
    let mut sim = running_job(5, 2, 1, 7);
    let limits = JobLimits { signal_grace: None, may_stop_early: true, ..JobLimits::new(GRACE) };
    sim.root.as_mut().unwrap().1 = Supervisor::new(5, limits, sim.now);
    let running =
        |sim: &Simulation| sim.nodes.iter().map(|node| node.ranks.running.len()).sum::<usize>();
    assert!(sim.run_until(GRACE, |sim| running(sim) == 5), "not all ranks started");
    sim.nodes.iter_mut().for_each(|node| node.ranks.ignores_term = true);
    sim.supervise(SupervisorInput::Signal(15));
    assert!(!sim.run_until(GRACE * 10, |sim| running(sim) < 5), "a rank was killed");
    (0..5).for_each(|rank| sim.exit_rank(rank, rank, RankExit::Exit(0)));
    assert!(sim.run_until(GRACE, |sim| sim.finished_count == 1));
}
