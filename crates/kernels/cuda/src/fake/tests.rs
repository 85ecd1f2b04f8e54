//! Faults of the fake GPU, and the errors that they become.

use std::collections::BTreeSet;

use regatta_comm::DType;
use regatta_comm::gpu_runtime::Vendor;
use regatta_device::ops::{
    ArenaOverflow, ArenaUse, Device, GraphMasks, GraphOps, LinearArgs, LinearShape,
};
use regatta_device::precision::Precision;
use regatta_device::tensor::{Tensor, View};
use regatta_device::{DeviceMemory, ElementwiseOps, HostTensor, LinearOps, OptimizerOps};

use super::declarations::{self, Defines};
use super::kernels::emulation;
use super::{FakeDevice, Probe, device};
use crate::blaslt::BlasLt;
use crate::compiler::Compiler;
use crate::driver::Driver;
use crate::{Arg, CudaDevice, Grid, Kernel, Ptr, elementwise, sources};

fn open(fake: FakeDevice) -> (CudaDevice, Probe) {
    fake.open_with_probe().unwrap()
}

fn f32_device() -> FakeDevice {
    FakeDevice::new(Precision::F32)
}

fn filled(device: &dyn Device, len: usize, value: f64) -> Tensor {
    let mut tensor = device.zeros_master(len);
    device.fill(value, tensor.view_mut());
    tensor
}

fn read(device: &dyn Device, tensor: &Tensor) -> Vec<f32> {
    let mut values = vec![0.0; tensor.len()];
    device.copy_to_host(tensor.view(), &mut values);
    values
}

/// The error of the device, by its text.
fn error(device: &CudaDevice) -> String {
    device.synchronize().unwrap_err().to_string()
}

#[test]
fn every_kernel_is_emulated() {
    let kernels = [Vendor::Nvidia, Vendor::Amd].map(sources::representative_kernels);
    for Kernel { source, defines, .. } in kernels.into_iter().flatten() {
        let defines: Defines =
            defines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let kernels = declarations::kernels(source.text, &defines);
        assert!(!kernels.is_empty(), "{}", source.name);
        for function in kernels.keys() {
            assert!(emulation(source.name, function).is_some(), "{}: {function}", source.name);
        }
    }
}

#[test]
fn the_device_says_that_it_is_fake() {
    let device = device(Precision::Bf16);
    assert_eq!(device.info().name, "Fake NVIDIA GPU (host memory)");
    assert!(device.describe().starts_with("Fake NVIDIA GPU (host memory) (sm_90a), bf16"));
    let device = FakeDevice::amd(Precision::Bf16).open().unwrap();
    let expected = "Fake AMD GPU (host memory) (gfx90a), bf16, hipBLASLt, own attention kernels";
    assert_eq!(device.describe(), expected);
    assert_eq!(device.info().warp_size, 64);
}

#[test]
fn only_the_first_error_is_kept() {
    let device = device(Precision::F32);
    assert!(!device.has_failed() && device.check().is_ok());
    device.fail("add", "out of memory");
    device.fail("scale", "out of memory");
    assert!(device.has_failed());
    let error = device.check().unwrap_err();
    assert_eq!(error, device.error("add", "out of memory"));
    let name = format!("Fake NVIDIA GPU (host memory) (device {})", device.index);
    assert_eq!(error.to_string(), format!("{name}: add failed: out of memory"));
}

#[test]
fn nothing_leaks() {
    let (device, probe) = open(f32_device());
    let tensor = filled(&device, 100, 1.0);
    device.sum_of_squares(tensor.view(), device.zeros(1, DType::F64).view_mut());
    let shape = LinearShape { rows: 4, inputs: 5, outputs: 20 };
    let (x, mut y) = (filled(&device, 20, 1.0), device.zeros_master(80));
    let (input, weight, to) = (x.view(), tensor.view(), y.view_mut());
    device.linear(LinearArgs { shape, x: input, weight, bias: None, y: to });
    let mut tokens = device.zeros(3, DType::I32);
    device.copy_tokens_from_host(&[1, 2, 3], tokens.view_mut());
    device.start_kernel_times();
    assert_eq!(read(&device, &y), [5.0; 80]);
    assert!(device.take_kernel_times().iter().any(|time| time.name == "memcpy"));
    assert!(probe.allocations() > 0);
    // Tensors may outlive their device.
    drop(device);
    drop((tensor, x, y, tokens));
    assert_eq!((probe.allocations(), probe.gpu.lock().events), (0, 0));
}

/// A device, a tensor of ones and zeros in pinned memory.
fn pinned() -> (CudaDevice, Tensor, HostTensor) {
    let device = device(Precision::F32);
    let (ones, host) = (filled(&device, 8, 1.0), device.zeros_pinned(8, DType::F32).unwrap());
    (device, ones, host)
}

#[test]
fn copies_of_pinned_memory_run_when_they_are_waited_for() {
    let (device, mut tensor, mut host) = pinned();
    let after = device.record_event();
    let stored = device.store_async(tensor.view(), &mut host, after.as_ref()).unwrap();
    // SAFETY: the fake does not copy before something waits for the copy.
    let early: f32 = unsafe { host.view_for_copy().view().address().cast().read() };
    assert_eq!(early, 0.0);
    assert_eq!(host.view().unwrap().as_slice::<f32>(), [1.0; 8]);
    device.wait_event(&stored).unwrap();
    host.view_mut().unwrap().as_slice::<f32>().fill(5.0);
    let after = device.record_event();
    let loaded = device.load_async(&mut host, tensor.view_mut(), after.as_ref()).unwrap();
    device.wait_event(&loaded).unwrap();
    assert_eq!(read(&device, &tensor), [5.0; 8]);
}

/// Stores and loads without one of the waits that they need.
#[test]
fn missing_waits_are_detected() {
    let error = |misuse: fn(&CudaDevice, &mut Tensor, &mut HostTensor)| {
        let (device, mut tensor, mut host) = pinned();
        misuse(&device, &mut tensor, &mut host);
        let error = error(&device);
        // The memory is in use until all streams are idle.
        device.copies.synchronize(&device.runtime);
        error
    };
    let expected = "accessed by two streams without an order";
    let before_the_kernel = error(|device, tensor, host| {
        device.store_async(tensor.view(), host, None);
    });
    assert!(before_the_kernel.contains(expected), "{before_the_kernel}");
    let kernel_before_the_copy = error(|device, tensor, host| {
        let after = device.record_event();
        device.load_async(host, tensor.view_mut(), after.as_ref());
        device.scale(2.0, tensor.view_mut());
    });
    assert!(kernel_before_the_copy.contains(expected), "{kernel_before_the_copy}");
}

/// The device orders copies of the same pinned memory.
#[test]
fn a_load_runs_after_the_store_of_the_same_memory() {
    let (device, ones, mut host) = pinned();
    let mut tensor = filled(&device, 8, 3.0);
    let after = device.record_event();
    let stored = device.store_async(ones.view(), &mut host, after.as_ref());
    let loaded = device.load_async(&mut host, tensor.view_mut(), after.as_ref());
    for event in [stored, loaded] {
        device.wait_event(&event.unwrap()).unwrap();
    }
    assert_eq!(read(&device, &tensor), [1.0; 8]);
}

#[test]
fn pinned_allocations_beyond_the_limit_and_failed_copies_are_errors() {
    let (device, _) = open(f32_device().pinned_bytes(64));
    let error = device.zeros_pinned(17, DType::F32).unwrap_err().to_string();
    assert!(error.contains("allocating pinned host memory failed: 68 bytes: out of memory"));
    let (device, probe) = open(f32_device().fail_copy(1));
    let tensor = filled(&device, 8, 1.0);
    let mut host = device.zeros_pinned(8, DType::F32).unwrap();
    device.store_async(tensor.view(), &mut host, device.record_event().as_ref());
    let error = host.view().unwrap_err().to_string();
    assert!(error.contains("an illegal memory access was encountered"), "{error}");
    assert!(device.synchronize().is_err());
    drop((tensor, host, device));
    assert_eq!((probe.allocations(), probe.peak_pinned_bytes()), (0, 32));
}

#[test]
fn memory_is_not_initialised() {
    let device = device(Precision::F32);
    let memory = device.allocate(64).unwrap();
    // SAFETY: the memory lives until the end of the test.
    let buffer = unsafe { device.gpu().adopt(memory.address(), 64, Box::new(memory)) };
    let tensor = Tensor::from_buffer(buffer, DType::F32);
    assert!(read(&device, &tensor).iter().all(|value| value.is_nan()));
}

#[test]
fn allocations_beyond_the_memory_fail() {
    let (device, probe) = open(f32_device().memory_bytes(1 << 20));
    let first = filled(&device, 1 << 17, 2.0);
    assert_eq!(device.free_bytes().unwrap(), 1 << 19);
    let second = filled(&device, 1 << 18, 2.0);
    let expected = "allocating device memory failed: out of memory: 1 MiB requested, 1 MiB free; \
                    reduce train.micro_batch, set train.recompute=true, shard the state with \
                    parallel.zero, or offload it (offload.optimizer, offload.parameters)";
    assert!(error(&device).ends_with(expected), "{}", error(&device));
    // Later operations do nothing, not even on memory that there is.
    device.scale(3.0, filled(&device, 4, 1.0).view_mut());
    assert!(error(&device).ends_with(expected));
    drop((first, second, device));
    assert_eq!((probe.allocations(), probe.peak_bytes()), (0, 1 << 19));
}

#[test]
fn a_failed_launch_is_reported_with_its_kernel() {
    let (device, _) = open(f32_device().fail_launch("scale_f32"));
    let mut tensor = filled(&device, 4, 1.0);
    device.scale(2.0, tensor.view_mut());
    assert!(error(&device).ends_with("scale_f32 failed: unspecified launch failure"));
}

#[test]
fn a_kernel_that_fails_later_is_reported_by_the_next_synchronisation() {
    let (device, _) = open(f32_device().fail_kernel("scale_f32"));
    let mut tensor = filled(&device, 4, 1.0);
    device.scale(2.0, tensor.view_mut());
    device.scale(2.0, tensor.view_mut());
    let expected = "an operation that was queued before this point failed: an illegal memory access \
                    was encountered; set REGATTA_LAUNCH_BLOCKING=1 to find the kernel";
    for _ in 0..2 {
        assert!(error(&device).ends_with(expected), "{}", error(&device));
    }
    assert!(device.read_scalars(device.zeros(1, DType::F64).view()).is_err());
}

#[test]
fn a_missing_kernel_is_an_error() {
    let (device, _) = open(f32_device().without_kernel("clip_coefficient"));
    let scalar = || device.zeros(1, DType::F64);
    device.clip_coefficient(scalar().view(), 1.0, 1.0, scalar().view_mut());
    assert!(error(&device).ends_with("clip_coefficient failed: named symbol not found"));
}

#[test]
fn old_devices_are_rejected() {
    let error = f32_device().compute_capability(7, 5).open().err().unwrap().to_string();
    assert!(error.contains("Fake NVIDIA GPU (host memory) has compute capability 7.5"), "{error}");
    // Each command has another option to use CPUs, and names its own.
    assert!(error.ends_with("bf16 tensor cores need 8.0 (Ampere) or newer"), "{error}");
    let error = |fake: FakeDevice| fake.open().err().unwrap().to_string();
    let radeon = error(FakeDevice::amd(Precision::F32).arch("gfx1100"));
    assert!(radeon.contains("architecture gfx1100; gfx90a and gfx942 are supported"), "{radeon}");
    let old = error(FakeDevice::amd(Precision::F32).hip_version(50_731_921));
    assert!(old.contains("version 5.7: use ROCm 6.1 or newer"), "{old}");
}

#[test]
fn faults_of_an_amd_gpu_are_reported() {
    let amd = || FakeDevice::amd(Precision::F32);
    let scaled = |fake: FakeDevice| {
        let device = fake.open().unwrap();
        device.scale(2.0, filled(&device, 1 << 18, 1.0).view_mut());
        error(&device)
    };
    let compilation = scaled(amd().fail_compilation("elementwise"));
    assert!(compilation.contains("compilation failed: elementwise(1): error"), "{compilation}");
    assert!(compilation.contains("--gpu-architecture=gfx90a"), "{compilation}");
    assert!(compilation.contains("-munsafe-fp-atomics"), "{compilation}");
    let memory = scaled(amd().memory_bytes(1 << 19));
    assert!(memory.contains("out of memory: 1 MiB requested"), "{memory}");
    let kernel = scaled(amd().fail_kernel("scale_f32"));
    assert!(kernel.contains("an illegal memory access was encountered"), "{kernel}");
    let launch = scaled(amd().fail_launch("scale_f32"));
    assert!(launch.ends_with("scale_f32 failed: unspecified launch failure"), "{launch}");
}

/// On a machine without ROCm, the error of every library names its override and the fix.
#[test]
fn missing_rocm_libraries_are_named() {
    let errors = [
        ("REGATTA_HIP", Driver::open(Vendor::Amd).err()),
        ("REGATTA_HIPRTC", Compiler::open(Vendor::Amd).err()),
        ("REGATTA_HIPBLASLT", BlasLt::open(Vendor::Amd).err()),
    ];
    for (variable, error) in errors {
        let Some(error) = error.map(|error| error.to_string()) else {
            eprintln!("skipped: ROCm has the library of {variable}");
            continue;
        };
        assert!(error.contains(&format!("set {variable} to its path")), "{error}");
        assert!(error.contains("ROCM_PATH"), "{error}");
    }
}

/// The arguments of a kernel for a tensor.
type MakeArgs<'a> = &'a dyn Fn(Ptr) -> Vec<Arg>;

/// Launches `scale` with arguments of a wrong type, of a wrong length or in host memory.
#[test]
fn wrong_arguments_are_detected() {
    let host = [0.0f32; 8];
    let launch = |kernel: &'static str, args: MakeArgs<'_>| {
        let device = device(Precision::F32);
        let tensor = filled(&device, 8, 1.0);
        let kernel = Kernel::new(&elementwise::SOURCE, kernel);
        device.launch(&kernel, Grid::new(1, 256), &args(Ptr::of(tensor.view())));
        error(&device)
    };
    let scale = |x: Ptr, len: u64| vec![x.into(), 2f32.into(), len.into(), 0u64.into()];
    let host_address = Ptr(host.as_ptr() as u64);
    let cases: [(&str, MakeArgs<'_>, &str); 6] = [
        ("scale_f32", &|x| vec![x.into(), 2f32.into(), 8u64.into()], "the source declares"),
        ("scale_f32", &|x| vec![x.into(), 2f64.into(), 8u64.into(), 0u64.into()], "F64"),
        ("scale_f32", &|x| scale(x, 9), "the allocation ends after 32 bytes"),
        ("scale_f32", &|_| scale(host_address, 8), "are not in device memory"),
        ("scale_f32", &|x| scale(x.offset_bytes(2), 4), "is not aligned"),
        ("scale_f16", &|x| scale(x, 8), "named symbol not found"),
    ];
    for (kernel, args, expected) in cases {
        let error = launch(kernel, args);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn unaligned_vectors_are_detected() {
    let device = device(Precision::F32);
    let tensor = filled(&device, 16, 1.0);
    let x = Ptr::of(tensor.view()).offset_bytes(4);
    let kernel = Kernel::new(&elementwise::SOURCE, "scale_f32");
    device.launch(&kernel, Grid::new(1, 256), &[x.into(), 2f32.into(), 8u64.into(), 8u64.into()]);
    assert!(error(&device).contains("a vector of 8 at"));
}

#[test]
fn several_devices_share_a_thread() {
    let (first, second) = (device(Precision::F32), device(Precision::F32));
    for device in [&first, &second, &first] {
        assert_eq!(read(device, &filled(device, 3, 4.0)), [4.0; 3]);
    }
}

#[test]
fn tensors_are_parts_of_reserved_memory() {
    const MIB: u64 = 1 << 20;
    let (device, probe) = open(f32_device());
    assert_eq!(device.arena_use(), None);
    device.reserve(8 * MIB, 1).unwrap();
    // Only the first call has an effect.
    device.reserve(16 * MIB, 1).unwrap();
    let first = filled(&device, 1 << 20, 1.0);
    let address = first.view().address();
    drop(first);
    let second = device.zeros_master(1 << 20);
    assert_eq!(second.view().address(), address);
    assert_eq!(read(&device, &second)[..3], [0.0; 3]);
    let expected = ArenaUse { bytes: 8 * MIB + 512, used: 4 * MIB, peak: 4 * MIB, overflow: None };
    assert_eq!(device.arena_use(), Some(expected));
    let large = filled(&device, 2 << 20, 2.0);
    assert_eq!(read(&device, &large)[..3], [2.0; 3]);
    let free = 4 * MIB + 512;
    let overflow = ArenaOverflow { requested: 8 * MIB, free, largest_free: free };
    assert_eq!(device.arena_use().unwrap().overflow, Some(overflow));
    assert_eq!(probe.device_allocations(), [8 * MIB as usize + 512, 8 * MIB as usize]);
    // Tensors may outlive their device.
    drop(device);
    assert_eq!(probe.allocations(), 2);
    drop((second, large));
    assert_eq!(probe.allocations(), 0);
}

#[test]
fn reserved_memory_that_is_freed_in_a_capture_is_reused_after_it() {
    let (device, probe) = open(f32_device());
    device.reserve(1 << 20, 0).unwrap();
    let address = |tensor: &Tensor| tensor.view().address();
    let before = device.zeros_master(100);
    let mut captured = Vec::new();
    let mut before = Some(before);
    let words = View::from_slice::<i32>(&[]);
    let graph = device.capture(GraphMasks { masks: &[], words }, &mut || {
        captured.extend(before.take().map(|tensor| address(&tensor)));
        for _ in 0..2 {
            captured.push(address(&device.zeros_master(100)));
        }
    });
    graph.unwrap();
    assert_eq!(captured.iter().collect::<BTreeSet<_>>().len(), 3);
    assert!(captured.contains(&address(&device.zeros_master(100))));
    assert_eq!((device.arena_use().unwrap().used, probe.device_allocations().len()), (0, 1));
}
