//! Unmodified programs of training frameworks under `regatta launch` on this machine, where the
//! frameworks are installed.

use std::process::Command;

use regatta_testbed::assert_contains;

use crate::support::process::{regatta_in, run_command};
use crate::support::python::{
    ACCELERATE, DDP, DEEPSPEED, FSDP2, HOROVOD, JAX, LIGHTNING, Program, RAY,
};
use crate::support::{REGATTA, TempDir, clean_env};

const RANKS: u32 = 2;

/// Launches a program on this machine, and asserts that every rank has printed its line.
fn assert_runs(program: Program) {
    let folder = TempDir::new();
    let Some(installed) = program.install(folder.path()) else { return };
    let words = format!("launch --run-dir run -n {RANKS} {}", installed.launch_words(1, RANKS));
    let mut job = regatta_in(&folder, &words);
    job.envs(installed.variables()).env("HOME", folder.path());
    let run = run_command(&mut job);
    assert_eq!(run.code, Some(0), "{}: {run:?}", program.name);
    for line in program.lines(RANKS) {
        assert_contains(&run.out, &*line);
    }
}

#[test]
fn torch_ddp_averages_gradients() {
    assert_runs(DDP);
}

#[test]
fn torch_fsdp2_shards_parameters() {
    assert_runs(FSDP2);
}

#[test]
fn accelerate_detects_the_ranks() {
    assert_runs(ACCELERATE);
}

#[test]
fn deepspeed_zero2_shards_gradients() {
    assert_runs(DEEPSPEED);
}

#[test]
fn lightning_detects_the_ranks() {
    assert_runs(LIGHTNING);
}

#[test]
fn jax_initialises_without_arguments() {
    assert_runs(JAX);
}

#[test]
fn horovod_connects_to_a_rendezvous_server() {
    assert_runs(HOROVOD);
}

/// The workers of Ray Train are ranks already: a launcher inside of them is refused at once.
#[test]
fn launch_in_a_worker_of_ray_is_refused() {
    let folder = TempDir::new();
    let Some(installed) = RAY.install(folder.path()) else { return };
    let mut words = shlex::split(&installed.command(1, RANKS)).unwrap();
    words.truncate(2);
    let launch = format!("{REGATTA} launch -n {RANKS} --oversubscribe -- true");
    words.extend(shlex::split(&launch).unwrap());
    let mut ray = clean_env(Command::new(&words[0]));
    ray.args(&words[1..]).current_dir(folder.path()).envs(installed.variables());
    let out = run_command(ray.env("HOME", folder.path()).env("RAY_TMPDIR", folder.path())).ok();
    let error = "of 2 already (RANK and WORLD_SIZE, set by Ray)";
    assert_contains(&out, ["exit code 1: error: this process is rank ", error]);
}
