//! Tests with a fake library.

mod fake_cudnn;
mod interpreter;

use std::ffi::c_void;
use std::ptr::null_mut;

use half::bf16;
use regatta_device::AttentionOps;
use regatta_device::ops::{AttentionArgs, AttentionBackwardArgs, AttentionSaved, AttentionShape};
use regatta_device::reference::Reference;
use regatta_device::tensor::{View, ViewMut};

use super::{Cudnn, Pass, TensorId};
use fake_cudnn::{functions, library};

const SHAPE: AttentionShape =
    AttentionShape { batch: 2, seq_len: 5, heads: 4, kv_heads: 4, head_dim: 8 };

/// Numbers between -1 and 1 that bf16 represents.
fn numbers(count: usize, seed: u64) -> Vec<bf16> {
    let number = |i| bf16::from_f64(2.0 * regatta_device::random::uniform(seed, i) - 1.0);
    (0..count as u64).map(number).collect()
}

fn to_f64(x: &[bf16]) -> Vec<f64> {
    x.iter().map(|x| x.to_f64()).collect()
}

/// The tensors of both passes in host memory, as cuDNN and as the reference have them.
struct Tensors {
    qkv: Vec<bf16>,
    dy: Vec<bf16>,
    y: Vec<f64>,
    lse: Vec<f64>,
    dqkv: Vec<f64>,
}

impl Tensors {
    fn new(shape: AttentionShape) -> Self {
        let rows = shape.rows();
        let qkv = numbers(rows * shape.qkv_dim(), 1);
        let dy = numbers(rows * shape.out_dim(), 2);
        let (qkv_f64, dy_f64) = (to_f64(&qkv), to_f64(&dy));
        let mut y = vec![0.0; dy.len()];
        let mut lse = vec![0.0; rows * shape.heads];
        let mut dqkv = vec![0.0; qkv.len()];
        let input = View::from_slice(&qkv_f64);
        Reference.attention(AttentionArgs {
            shape,
            qkv: input,
            dropout: None,
            y: ViewMut::from_slice(&mut y),
            lse: ViewMut::from_slice(&mut lse),
        });
        let saved =
            AttentionSaved { qkv: input, y: View::from_slice(&y), lse: View::from_slice(&lse) };
        Reference.attention_backward(AttentionBackwardArgs {
            shape,
            saved,
            dropout: None,
            dy: View::from_slice(&dy_f64),
            dqkv: ViewMut::from_slice(&mut dqkv),
        });
        Self { qkv, dy, y, lse, dqkv }
    }

    /// Queries, keys and values in packed memory.
    fn packed(shape: AttentionShape, start: *mut bf16) -> [*mut c_void; 3] {
        let k = shape.heads * shape.head_dim;
        let v = k + shape.kv_heads * shape.head_dim;
        [0, k, v].map(|offset| start.wrapping_add(offset).cast())
    }
}

fn assert_close(name: &str, actual: impl IntoIterator<Item = f64>, expected: &[f64]) {
    for (i, (actual, expected)) in actual.into_iter().zip(expected).enumerate() {
        let error = (actual - expected).abs();
        assert!(error < 0.02 * (1.0 + expected.abs()), "{name}[{i}]: {actual}, not {expected}");
    }
}

fn check_forward(shape: AttentionShape, operations: usize) {
    let cudnn = Cudnn::with_functions(functions(&[true]));
    let mut tensors = Tensors::new(shape);
    let (mut y, mut lse) = (vec![bf16::ZERO; tensors.y.len()], vec![0f32; tensors.lse.len()]);
    let [q, k, v] = Tensors::packed(shape, tensors.qkv.as_mut_ptr());
    let memory = [
        (TensorId::Q, q),
        (TensorId::K, k),
        (TensorId::V, v),
        (TensorId::Y, y.as_mut_ptr().cast()),
        (TensorId::Lse, lse.as_mut_ptr().cast()),
    ];
    // SAFETY: the memory has the sizes of the tensors; the fake library uses no stream or workspace.
    let executed =
        unsafe { cudnn.execute(null_mut(), (Pass::Forward, shape), &memory, null_mut()) };
    executed.unwrap();
    assert_eq!(library(|library| library.operations), operations);
    assert_close("y", to_f64(&y), &tensors.y);
    assert_close("lse", lse.into_iter().map(f64::from), &tensors.lse);
}

fn check_backward(shape: AttentionShape, operations: usize) {
    let cudnn = Cudnn::with_functions(functions(&[true]));
    let mut tensors = Tensors::new(shape);
    let mut y: Vec<bf16> = tensors.y.iter().map(|y| bf16::from_f64(*y)).collect();
    let mut lse: Vec<f32> = tensors.lse.iter().map(|lse| *lse as f32).collect();
    let mut dqkv = vec![bf16::ZERO; tensors.qkv.len()];
    let (mut delta, mut dq_sum) = (vec![0f32; lse.len()], vec![0f32; y.len()]);
    let [q, k, v] = Tensors::packed(shape, tensors.qkv.as_mut_ptr());
    let [dq, dk, dv] = Tensors::packed(shape, dqkv.as_mut_ptr());
    let memory = [
        (TensorId::Q, q),
        (TensorId::K, k),
        (TensorId::V, v),
        (TensorId::Y, y.as_mut_ptr().cast()),
        (TensorId::Lse, lse.as_mut_ptr().cast()),
        (TensorId::Dy, tensors.dy.as_mut_ptr().cast()),
        (TensorId::Dq, dq),
        (TensorId::Dk, dk),
        (TensorId::Dv, dv),
        (TensorId::Delta, delta.as_mut_ptr().cast()),
        (TensorId::DqSum, dq_sum.as_mut_ptr().cast()),
    ];
    // SAFETY: as in the forward pass.
    let executed =
        unsafe { cudnn.execute(null_mut(), (Pass::Backward, shape), &memory, null_mut()) };
    executed.unwrap();
    assert_eq!(library(|library| library.operations), operations);
    assert_close("dqkv", to_f64(&dqkv), &tensors.dqkv);
}

#[test]
fn graphs_compute_attention() {
    check_forward(SHAPE, 14);
    check_backward(SHAPE, 22);
}

#[test]
fn graphs_compute_attention_with_shared_key_value_heads() {
    let grouped = AttentionShape { kv_heads: 2, ..SHAPE };
    check_forward(grouped, 14);
    check_backward(grouped, 24);
}

#[test]
fn plans_are_made_once_by_the_first_engine_that_supports_the_graph() {
    let cudnn = Cudnn::with_functions(functions(&[false, true, true]));
    for _ in 0..2 {
        assert_eq!(cudnn.prepare(Pass::Forward, SHAPE), Ok(4096));
    }
    assert_eq!(library(|library| library.heuristics), 1);
    let longer = AttentionShape { seq_len: 6, ..SHAPE };
    assert!(cudnn.prepare(Pass::Forward, longer).is_ok());
    assert!(cudnn.prepare(Pass::Backward, SHAPE).is_ok());
    assert_eq!(library(|library| library.heuristics), 3);
    drop(cudnn);
    let live = library(|library| library.descriptors.len() + library.live_handles);
    assert_eq!(live, 0, "all descriptors and the handle are destroyed");
}

#[test]
fn unsupported_shapes_are_remembered() {
    for engines in [&[][..], &[false, false]] {
        let cudnn = Cudnn::with_functions(functions(engines));
        for _ in 0..2 {
            let error = cudnn.prepare(Pass::Forward, SHAPE).unwrap_err().to_string();
            let wanted = match engines.is_empty() {
                true => "choosing an engine: there is none",
                false => "finalising ExecutionPlan: CUDNN_STATUS_NOT_SUPPORTED",
            };
            assert_eq!(error, wanted);
        }
        assert_eq!(library(|library| library.heuristics), 1);
        drop(cudnn);
        assert_eq!(library(|library| library.descriptors.len()), 0);
    }
}

#[test]
fn long_sequences_with_usual_heads_are_accepted() {
    let accepts = |seq_len, head_dim| {
        Cudnn::accepts(AttentionShape { batch: 1, seq_len, heads: 1, kv_heads: 1, head_dim })
    };
    assert!(accepts(1024, 64) && accepts(128, 128) && accepts(256, 80));
    assert!(!accepts(1000, 64) && !accepts(128, 256) && !accepts(128, 60) && !accepts(0, 64));
}

#[test]
fn versions_have_two_parts() {
    assert_eq!(Cudnn::with_functions(functions(&[])).version(), "9.14");
}
