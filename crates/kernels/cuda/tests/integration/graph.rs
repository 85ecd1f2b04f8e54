//! Captured operations give the results of operations that run at once: on the fake GPU, and on a real one if
//! there is one.

use regatta_comm::DType;
use regatta_comm::gpu_runtime::Vendor;
use regatta_device::ops::{
    AttentionArgs, AttentionBackwardArgs, AttentionDropout, AttentionSaved, AttentionShape,
    CrossEntropyArgs, Device, Graph, GraphMasks, LinearArgs, LinearShape, OptimizerState,
};
use regatta_device::optimizer::AdamW;
use regatta_device::precision::Precision;
use regatta_device::random::{DropoutMask, key};
use regatta_device::tensor::{Tensor, View};
use regatta_device::{DeviceMemory, ElementwiseOps, GraphOps, LossOps};
use regatta_kernels_cuda::fake::{self, FakeDevice, GraphFault};
use regatta_kernels_cuda::{CudaDevice, device_count};

/// The fake GPU, and a real one.
fn devices(precision: Precision) -> Vec<CudaDevice> {
    let mut devices = vec![fake::device(precision)];
    match device_count(Vendor::Nvidia) {
        0 => eprintln!("skipped: no NVIDIA GPU"),
        _ => devices.push(CudaDevice::open(0, precision).unwrap()),
    }
    devices
}

const SHAPE: AttentionShape =
    AttentionShape { batch: 2, seq_len: 64, heads: 2, kv_heads: 2, head_dim: 64 };

fn filled(device: &dyn Device, len: usize) -> Tensor {
    let mut tensor = device.zeros_activation(len);
    let values: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) / 60.0).collect();
    device.copy_from_host(&values, tensor.view_mut());
    tensor
}

fn read(device: &dyn Device, tensor: &Tensor) -> Vec<f32> {
    let mut values = vec![0.0; tensor.len()];
    device.copy_to_host(tensor.view(), &mut values);
    values
}

/// A linear layer, attention with dropout in both directions, and dropout of its output.
struct Pass {
    x: Tensor,
    weight: Tensor,
    qkv: Tensor,
    y: Tensor,
    lse: Tensor,
    dqkv: Tensor,
}

impl Pass {
    fn new(device: &dyn Device) -> Self {
        let (rows, dim) = (SHAPE.rows(), SHAPE.out_dim());
        Self {
            x: filled(device, rows * dim),
            weight: filled(device, SHAPE.qkv_dim() * dim),
            qkv: device.zeros_activation(rows * SHAPE.qkv_dim()),
            y: device.zeros_activation(rows * dim),
            lse: device.zeros(rows * SHAPE.heads, DType::F32),
            dqkv: device.zeros_activation(rows * SHAPE.qkv_dim()),
        }
    }

    fn queue(&mut self, device: &dyn Device, [weights, output]: [DropoutMask; 2]) {
        let Self { x, weight, qkv, y, lse, dqkv } = self;
        let (rows, inputs, outputs) = (SHAPE.rows(), SHAPE.out_dim(), SHAPE.qkv_dim());
        let shape = LinearShape { rows, inputs, outputs };
        let args =
            LinearArgs { shape, x: x.view(), weight: weight.view(), bias: None, y: qkv.view_mut() };
        device.linear(args);
        let dropout = AttentionDropout::new(weights, SHAPE.heads, SHAPE.seq_len);
        let dropout = Some(dropout.shard([0, 1, 0, 0]));
        device.attention(AttentionArgs {
            shape: SHAPE,
            qkv: qkv.view(),
            dropout,
            y: y.view_mut(),
            lse: lse.view_mut(),
        });
        let saved = AttentionSaved { qkv: qkv.view(), y: y.view(), lse: lse.view() };
        device.attention_backward(AttentionBackwardArgs {
            shape: SHAPE,
            saved,
            dropout,
            dy: x.view(),
            dqkv: dqkv.view_mut(),
        });
        device.dropout(DropoutMask { offset: output.offset + 5, ..output }, y.view_mut());
    }

    fn results(&self, device: &dyn Device) -> [Vec<f32>; 3] {
        [&self.qkv, &self.y, &self.dqkv].map(|tensor| read(device, tensor))
    }
}

fn masks(step: u64) -> [DropoutMask; 2] {
    [0, 1].map(|site| DropoutMask { p: 0.3, key: key(7, &[step, site]), offset: 1000 * step })
}

fn mask_words(device: &dyn Device, masks: &[DropoutMask]) -> Tensor {
    let mut words = device.zeros(masks.len() * DropoutMask::WORDS, DType::I32);
    upload(device, masks, &mut words);
    words
}

fn upload(device: &dyn Device, masks: &[DropoutMask], words: &mut Tensor) {
    let values: Vec<u32> = masks.iter().flat_map(DropoutMask::words).collect();
    device.copy_tokens_from_host(&values, words.view_mut());
}

fn launch(device: &dyn Device, graph: &Graph) {
    // SAFETY: the tests keep the tensors of their graphs.
    unsafe { device.launch_graph(graph) }.unwrap();
}

#[test]
fn launches_read_their_masks_from_device_memory() {
    for precision in [Precision::F32, Precision::Bf16] {
        for device in devices(precision) {
            let (mut eager, mut captured) = (Pass::new(&device), Pass::new(&device));
            // The first launches compile, tune and allocate.
            captured.queue(&device, masks(0));
            let mut words = mask_words(&device, &masks(0));
            let graph_masks = GraphMasks { masks: &masks(0), words: words.view() };
            let mut queue = || captured.queue(&device, masks(0));
            let graph = device.capture(graph_masks, &mut queue).unwrap();
            for step in [1, 2, 5] {
                eager.queue(&device, masks(step));
                upload(&device, &masks(step), &mut words);
                launch(&device, &graph);
                let (expected, found) = (eager.results(&device), captured.results(&device));
                assert_eq!(expected, found, "{}, step {step}", device.describe());
            }
        }
    }
}

/// Parameters and moments of an optimizer, and the scale of gradients.
struct Update {
    grad: Tensor,
    state: [Tensor; 3],
    scale: Tensor,
}

impl Update {
    const LEN: usize = 5000;

    fn new(device: &dyn Device) -> Self {
        let zeros = || device.zeros_master(Self::LEN);
        let (mut grad, mut param, mut scale) = (zeros(), zeros(), device.zeros(1, DType::F64));
        let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 60.0;
        let values: Vec<f32> = (0..Self::LEN).map(value).collect();
        device.copy_from_host(&values, grad.view_mut());
        device.copy_from_host(&values, param.view_mut());
        device.fill(0.5, scale.view_mut());
        Self { grad, state: [zeros(), zeros(), param], scale }
    }

    fn queue(&mut self, device: &dyn Device, config: &AdamW, factors: Option<View<'_>>) {
        let [moment1, moment2, param] = self.state.each_mut().map(Tensor::view_mut);
        let (grad, grad_scale, weight) = (self.grad.view(), self.scale.view(), None);
        let decayed = &[7..4000, 4100..Self::LEN];
        device.adamw(
            config,
            OptimizerState { factors, grad, grad_scale, moment1, moment2, param, weight, decayed },
        );
    }
}

#[test]
fn launches_read_the_factors_of_the_optimizer_from_device_memory() {
    let emulated = FakeDevice::running_sources(Precision::F32).map(|fake| fake.open().unwrap());
    for device in devices(Precision::F32).into_iter().chain(emulated) {
        let config = |step: u64| {
            let (lr, weight_decay) = (0.01 * step as f64, 0.1);
            AdamW { lr, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay, step }
        };
        let [mut eager, mut captured, mut warmup] = [(); 3].map(|()| Update::new(&device));
        warmup.queue(&device, &config(1), None);
        let mut factors = device.zeros(config(1).factor_words().len(), DType::I32);
        let words = device.zeros(0, DType::I32);
        let graph_masks = GraphMasks { masks: &[], words: words.view() };
        let mut queue = || captured.queue(&device, &config(1), Some(factors.view()));
        let graph = device.capture(graph_masks, &mut queue).unwrap();
        for step in 1..4 {
            eager.queue(&device, &config(step), None);
            device.copy_tokens_from_host(&config(step).factor_words(), factors.view_mut());
            launch(&device, &graph);
            for (expected, found) in eager.state.iter().zip(&captured.state) {
                let about = format!("{}, step {step}", device.describe());
                assert_eq!(read(&device, expected), read(&device, found), "{about}");
            }
        }
    }
}

#[test]
fn a_capture_runs_nothing() {
    for device in devices(Precision::F32) {
        let mut x = filled(&device, 100);
        device.scale(1.0, x.view_mut());
        let before = read(&device, &x);
        let words = device.zeros(0, DType::I32);
        let graph_masks = GraphMasks { masks: &[], words: words.view() };
        let graph = device.capture(graph_masks, &mut || device.scale(2.0, x.view_mut())).unwrap();
        assert_eq!(read(&device, &x), before);
        launch(&device, &graph);
        launch(&device, &graph);
        let expected: Vec<f32> = before.iter().map(|value| 4.0 * value).collect();
        assert_eq!(read(&device, &x), expected);
    }
}

/// The temporary results of a graph have memory also after a larger operation needed more.
#[test]
fn graphs_keep_their_workspace() {
    let (device, probe) = FakeDevice::new(Precision::F32).open_with_probe().unwrap();
    let (x, mut sum) = (filled(&device, 5000), device.zeros(1, DType::F64));
    device.sum_of_squares(x.view(), sum.view_mut());
    let words = device.zeros(0, DType::I32);
    let graph_masks = GraphMasks { masks: &[], words: words.view() };
    let mut queue = || device.sum_of_squares(x.view(), sum.view_mut());
    let graph = device.capture(graph_masks, &mut queue).unwrap();
    // More temporary results than the first workspace of 32 MiB has room for.
    let (rows, mut loss) = (2 << 20, device.zeros(1, DType::F64));
    let (targets, mut logits) = (device.zeros(rows, DType::I32), device.zeros_master(rows));
    device.cross_entropy(CrossEntropyArgs {
        targets: targets.view(),
        vocab: 1,
        logits: logits.view_mut(),
        grad_scale: None,
        loss: loss.view_mut(),
    });
    launch(&device, &graph);
    let allocations = probe.allocations();
    drop(graph);
    assert_eq!(probe.allocations(), allocations - 1);
}

/// What a graph cannot have.
#[test]
fn operations_that_depend_on_the_host_fail_the_capture() {
    for device in devices(Precision::F32) {
        let (mut x, mut tokens) = (filled(&device, 8), device.zeros(2, DType::I32));
        device.dropout(masks(0)[0], x.view_mut());
        let words = mask_words(&device, &masks(0));
        let graph_masks = GraphMasks { masks: &masks(0), words: words.view() };
        let cases: [(&str, &mut dyn FnMut()); 4] = [
            ("waiting for the stream failed", &mut || drop(device.synchronize())),
            ("copying tokens from the host failed", &mut || {
                device.copy_tokens_from_host(&[1, 2], tokens.view_mut())
            }),
            ("recording an event failed", &mut || drop(device.record_event())),
            ("dropout failed: the mask is not among those of the graph", &mut || {
                device.dropout(masks(1)[0], x.view_mut())
            }),
        ];
        for (expected, queue) in cases {
            let error = device.capture(graph_masks, queue).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
        // The device is as before.
        let before = read(&device, &x);
        device.scale(2.0, x.view_mut());
        assert_eq!(read(&device, &x)[0], 2.0 * before[0]);
        device.synchronize().unwrap();
    }
}

/// Memory that is allocated or freed in a capture does not become part of the graph.
#[test]
fn tensors_may_be_allocated_and_dropped_in_a_capture() {
    for device in devices(Precision::F32) {
        let (mut x, dropped) = (filled(&device, 64), filled(&device, 64));
        device.add_assign(dropped.view(), x.view_mut());
        let words = device.zeros(0, DType::I32);
        let graph_masks = GraphMasks { masks: &[], words: words.view() };
        let (mut allocated, mut dropped) = (None, Some(dropped));
        let mut queue = || {
            let new = allocated.insert(device.zeros_activation(64));
            device.copy(x.view(), new.view_mut());
            device.add_assign(new.view(), x.view_mut());
            dropped = None;
        };
        let graph = device.capture(graph_masks, &mut queue).unwrap();
        let before = read(&device, &x);
        launch(&device, &graph);
        assert_eq!(read(&device, &x)[1], 2.0 * before[1]);
        device.synchronize().unwrap();
    }
}

#[test]
fn a_panic_ends_the_capture() {
    for device in devices(Precision::F32) {
        let mut x = filled(&device, 8);
        let words = device.zeros(0, DType::I32);
        let graph_masks = GraphMasks { masks: &[], words: words.view() };
        let capture = || device.capture(graph_masks, &mut || panic!("in a capture")).map(drop);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(capture));
        assert!(result.is_err() && device.can_capture());
        device.scale(2.0, x.view_mut());
        device.synchronize().unwrap();
    }
}

#[test]
fn failed_graphs_leave_nothing_behind() {
    use GraphFault::{BeginCapture, EndCapture, Instantiate};
    for fault in [BeginCapture, EndCapture, Instantiate] {
        let fake = FakeDevice::new(Precision::F32).fail_graph(fault);
        let (device, probe) = fake.open_with_probe().unwrap();
        let mut x = filled(&device, 8);
        let words = device.zeros(0, DType::I32);
        let graph_masks = GraphMasks { masks: &[], words: words.view() };
        let error = device.capture(graph_masks, &mut || device.scale(2.0, x.view_mut())).err();
        let error = error.unwrap().to_string();
        assert!(error.ends_with("unspecified launch failure"), "{fault:?}: {error}");
        device.scale(2.0, x.view_mut());
        device.synchronize().unwrap();
        assert_eq!(probe.graphs(), 0, "{fault:?}");
    }
}

#[test]
fn timing_and_other_captures_prevent_a_capture() {
    let device = fake::device(Precision::F32);
    assert!(device.can_capture());
    device.start_kernel_times();
    assert!(!device.can_capture());
    device.take_kernel_times();
    let words = device.zeros(0, DType::I32);
    let graph_masks = GraphMasks { masks: &[], words: words.view() };
    device.capture(graph_masks, &mut || assert!(!device.can_capture())).unwrap();
    assert!(device.can_capture());
}
