//! Choice of algorithms.

use std::path::PathBuf;
use std::{fs, process};

use regatta_comm::DType;
use regatta_comm::gpu_runtime::Vendor;
use regatta_device::ops::LinearShape;

use super::super::{Epilogue, Gemm, GemmArgs, GemmError};
use super::Fake;
use crate::Ptr;
use crate::fake::blas::{Candidate, candidate, library};

/// The fastest that works is 7.
const CANDIDATES: [Candidate; 5] = [
    candidate(3, 1.0),
    Candidate { id: 4, ms: 0.1, works: false },
    candidate(5, 0.8),
    candidate(7, 0.5),
    candidate(9, 0.9),
];

/// Rows of a layer that is worth tuning.
const LARGE: usize = 50 << 20;
const SMALL: usize = 1 << 10;

/// Elements of the output.
const LEN: usize = 4;

fn fake() -> Fake {
    fake_with(&CANDIDATES)
}

fn fake_with(candidates: &[Candidate]) -> Fake {
    let fake = Fake::new(Vendor::Nvidia, candidates);
    library(|library| library.products_are_one = true);
    fake
}

fn gemm(rows: usize) -> Gemm {
    let shape = LinearShape { rows, inputs: 2, outputs: 2 };
    Gemm::backward_weight(shape, DType::Bf16, DType::F32)
}

/// Runs a GEMM whose output is `d`. The fake does not access the operands.
fn run(fake: &Fake, gemm: Gemm, d: &mut [f32; LEN]) -> Result<(), GemmError> {
    let args = GemmArgs::new(Ptr(256), Ptr(512), Ptr(d.as_mut_ptr() as u64));
    let bias = &[0.0f32; 2];
    fake.run(gemm, &GemmArgs { bias: Ptr(bias.as_ptr() as u64), ..args })
}

fn last_launch() -> Option<u8> {
    library(|library| library.launches.last().copied())
}

fn launches() -> usize {
    library(|library| library.launches.len())
}

#[test]
fn the_fastest_algorithm_is_used_and_the_output_is_written_once() {
    let fake = fake();
    let mut d = [2.0; LEN];
    run(&fake, gemm(LARGE), &mut d).unwrap();
    assert_eq!((last_launch(), d), (Some(7), [3.0; LEN]));
    let tuning = launches();
    run(&fake, gemm(LARGE), &mut d).unwrap();
    assert_eq!((last_launch(), d, launches()), (Some(7), [4.0; LEN], tuning + 1));
    assert_eq!(library(|library| library.heuristic_calls), 1);
    let overwriting = gemm(LARGE).accumulate(false);
    run(&fake, overwriting, &mut d).unwrap();
    assert_eq!((last_launch(), d), (Some(7), [1.0; LEN]));
}

#[test]
fn nothing_leaks() {
    let fake = fake();
    run(&fake, gemm(LARGE), &mut [0.0; LEN]).unwrap();
    let gpu = fake.gpu.clone();
    let live = || {
        let state = gpu.lock();
        (state.allocations, state.events)
    };
    assert_eq!(live(), (1, 0), "the workspace");
    drop(fake);
    assert_eq!((live(), library(|library| library.live_objects)), ((0, 0), 0));
}

#[test]
fn small_gemms_use_the_first_choice() {
    let fake = fake();
    let mut d = [0.0; LEN];
    run(&fake, gemm(SMALL), &mut d).unwrap();
    run(&fake, gemm(SMALL), &mut d).unwrap();
    assert_eq!(library(|library| library.launches.clone()), [3, 3]);
    assert_eq!((d, library(|library| library.heuristic_calls)), ([2.0; LEN], 1));
}

#[test]
fn captured_gemms_are_tuned_later() {
    let fake = fake();
    let mut d = [0.0; LEN];
    fake.gpu.lock().is_capturing = true;
    run(&fake, gemm(LARGE), &mut d).unwrap();
    run(&fake, gemm(LARGE), &mut d).unwrap();
    assert_eq!(library(|library| library.launches.clone()), [3, 3]);
    fake.gpu.lock().is_capturing = false;
    run(&fake, gemm(LARGE), &mut d).unwrap();
    assert_eq!(last_launch(), Some(7));
    fake.gpu.lock().is_capturing = true;
    run(&fake, gemm(LARGE), &mut d).unwrap();
    // Captured GEMMs do not run.
    assert_eq!((last_launch(), d), (Some(7), [1.0; LEN]));
}

#[test]
fn reproducible_results_forbid_tuning() {
    let fake = Fake { tune: false, ..fake() };
    run(&fake, gemm(LARGE), &mut [0.0; LEN]).unwrap();
    assert_eq!(library(|library| library.launches.clone()), [3]);
}

#[test]
fn without_memory_to_tune_in_the_first_choice_is_used() {
    let fake = fake();
    run(&fake, gemm(SMALL), &mut [0.0; LEN]).unwrap();
    fake.gpu.lock().max_allocation_bytes = 0;
    let mut d = [0.0; LEN];
    run(&fake, gemm(LARGE), &mut d).unwrap();
    assert_eq!((last_launch(), d), (Some(3), [1.0; LEN]));
}

#[test]
fn a_missing_workspace_is_an_error() {
    let fake = fake();
    fake.gpu.lock().max_allocation_bytes = 1 << 20;
    let error = run(&fake, gemm(LARGE), &mut [0.0; LEN]).unwrap_err();
    assert_eq!(error.to_string(), "allocating 64 MiB of GEMM workspace: out of memory");
}

#[test]
fn unsupported_epilogues_are_remembered() {
    for status in [0, 15] {
        let fake = fake();
        library(|library| {
            library.unsupported_epilogues.push(4);
            library.no_algorithm_status = status;
        });
        let with_bias = gemm(LARGE).with_epilogue(Epilogue::Bias(DType::F32));
        for _ in 0..2 {
            let error = run(&fake, with_bias, &mut [0.0; LEN]).unwrap_err();
            assert!(matches!(error, GemmError::Unsupported { .. }), "{error}");
        }
        assert_eq!(library(|library| library.heuristic_calls), 1);
        run(&fake, gemm(LARGE), &mut [0.0; LEN]).unwrap();
    }
}

#[test]
fn errors_name_the_gemm() {
    let fake = fake_with(&[Candidate { id: 1, ms: 1.0, works: false }]);
    let error = run(&fake, gemm(LARGE), &mut [0.0; LEN]).unwrap_err();
    let expected = "cublasLt has no algorithm for m=2, n=2, k=52428800, bf16 to f32, epilogue None \
                    (cublasLtMatmul returned status 15)";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn the_heuristic_knows_the_alignment() {
    let fake = fake();
    let mut d = [0.0f32; 128];
    let start = d.as_mut_ptr();
    let aligned = start.align_offset(256);
    let args = |at| GemmArgs::new(Ptr(256), Ptr(512), Ptr(start.wrapping_add(at) as u64));
    for (at, alignment) in [(aligned + 1, 4), (aligned + 4, 16), (aligned, 256)] {
        fake.run(gemm(SMALL), &args(at)).unwrap();
        assert_eq!(library(|library| library.alignments.clone()), [alignment; 4]);
    }
    assert_eq!(library(|library| library.heuristic_calls), 3);
}

/// A cache directory that is removed when dropped.
struct CacheDirectory(PathBuf);

impl CacheDirectory {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("regatta-tuning-{name}-{}", process::id())))
    }

    /// A new process that uses the directory.
    fn fake(&self, candidates: &[Candidate]) -> Fake {
        let mut fake = fake_with(candidates);
        fake.blas.cache_dir = Some(self.0.clone());
        fake
    }
}

impl Drop for CacheDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn cached_algorithms_need_no_tuning() {
    let directory = CacheDirectory::new("cached");
    run(&directory.fake(&CANDIDATES), gemm(LARGE), &mut [0.0; LEN]).unwrap();
    let fake = directory.fake(&CANDIDATES);
    let mut d = [0.0; LEN];
    run(&fake, gemm(LARGE), &mut d).unwrap();
    assert_eq!((library(|library| library.launches.clone()), d), (vec![7], [1.0; LEN]));
    assert_eq!(library(|library| library.heuristic_calls), 0);
}

#[test]
fn cached_algorithms_that_fail_are_tuned_again() {
    let directory = CacheDirectory::new("failed");
    run(&directory.fake(&CANDIDATES), gemm(LARGE), &mut [0.0; LEN]).unwrap();
    let others = [candidate(3, 1.0), candidate(5, 0.8)];
    for (heuristic_calls, fake) in [(1, directory.fake(&others)), (0, directory.fake(&others))] {
        fake.make_current();
        let mut d = [0.0; LEN];
        run(&fake, gemm(LARGE), &mut d).unwrap();
        assert_eq!((last_launch(), d), (Some(5), [1.0; LEN]));
        assert_eq!(library(|library| library.heuristic_calls), heuristic_calls);
    }
}
