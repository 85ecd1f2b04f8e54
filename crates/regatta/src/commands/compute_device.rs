//! The compute device of a rank: its cores or a GPU.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use regatta_comm::gather::all_gather;
use regatta_comm::nccl::{self, NcclConfig, Vendor};
use regatta_comm::{Collectives, Comm, ReduceOp};
use regatta_device::ops::{AttentionShape, Device, Fp8};
use regatta_device::precision::Precision;
use regatta_kernels_cpu::Cpu;
use regatta_kernels_cuda::{CudaDevice, device_count};
use regatta_model::CpuSet;
use regatta_model::units::format_memory;
use regatta_train::config::{Config, DeviceKind};
use regatta_train::training::gemm_peak::{RankGemm, gemm_peak};
use regatta_train::training::gpu_micro_batch::{self, RankGpu};

use super::gpu_detection::{common_vendor, local_vendor, sees_no_gpu, unused_gpu_note};

/// Timeout of a collective between GPUs.
const DESYNC_AFTER: Duration = Duration::from_secs(600);

/// The compute device of a rank.
pub enum ComputeDevice {
    /// The cores that the rank may use.
    Cpu {
        /// Its kernels.
        device: Box<Cpu>,
        /// Compute threads.
        threads: usize,
    },
    /// A GPU.
    Gpu {
        /// The device.
        device: Box<CudaDevice>,
        /// Its index among the visible ones.
        index: u32,
        /// The lowest rank that uses the GPU of each rank: indices of ranks that see different GPUs may
        /// be equal.
        first_ranks: Vec<u32>,
    },
}

/// Resolves `train.device` and `train.precision` if they are auto, the same on all ranks. Returns a note if
/// CPUs train although a rank has a GPU.
pub fn resolve(config: &mut Config, comm: &dyn Comm) -> Result<Option<String>> {
    let mut note = None;
    if config.train.device.is_none() {
        let kind = match common_vendor(comm)? {
            Some(_) => DeviceKind::Gpu,
            None => DeviceKind::Cpu,
        };
        if kind == DeviceKind::Cpu {
            note = unused_gpu_note(comm)?;
        }
        config.train.device = Some(kind);
    }
    if config.train.precision.is_none() {
        let is_slow = match config.train.device {
            Some(DeviceKind::Gpu) => false,
            _ => Cpu::fastest_precision() == Precision::F32,
        };
        let mut f32_ranks = [i32::from(is_slow)];
        comm.all_reduce(&mut f32_ranks, ReduceOp::Max)?;
        let all_fast = f32_ranks == [0];
        config.train.precision = Some(if all_fast { Precision::Bf16 } else { Precision::F32 });
    }
    Ok(note)
}

/// Resolves `train.device` and `train.precision` for a run on this machine, without opening a GPU.
pub fn resolve_here(config: &mut Config) {
    let has_driver = Vendor::ALL.into_iter().any(Vendor::has_kernel_driver);
    let kind = if has_driver { DeviceKind::Gpu } else { DeviceKind::Cpu };
    let kind = *config.train.device.get_or_insert(kind);
    config.train.precision.get_or_insert_with(|| match kind {
        DeviceKind::Gpu => Precision::Bf16,
        DeviceKind::Cpu => Cpu::fastest_precision(),
    });
}

/// The kernels of a resolved configuration in a few words.
pub fn describe(config: &Config, threads: usize) -> String {
    match config.train.device {
        Some(DeviceKind::Gpu) => format!("{} on a GPU", config.precision().name()),
        _ => Cpu::new(threads, config.precision()).describe(),
    }
}

/// Rejects settings that CPUs would ignore.
fn check_cpu_settings(config: &Config) -> Result<()> {
    let train = &config.train;
    let setting = if train.residual == Precision::Bf16 {
        "train.residual=bf16".to_owned()
    } else if train.residual_gradient == Some(Precision::Bf16) {
        "train.residual_gradient=bf16".to_owned()
    } else if train.fp8 != Fp8::Off {
        format!("train.fp8={}", train.fp8.name())
    } else {
        return Ok(());
    };
    bail!("{setting} needs GPUs: remove it, or set train.device=gpu")
}

impl ComputeDevice {
    /// Opens the device of a resolved configuration.
    pub fn open(config: &Config, threads: usize, comm: &dyn Comm) -> Result<Self> {
        if config.train.device != Some(DeviceKind::Gpu) {
            check_cpu_settings(config)?;
            let device = Box::new(Cpu::new(threads, config.precision()));
            return Ok(Self::Cpu { device, threads });
        }
        let Some(vendor) = common_vendor(comm)? else {
            let (rank, host) = (comm.rank(), comm.peer(comm.rank()).host);
            match local_vendor() {
                Some(_) => bail!(
                    "rank {rank} on {host} has a GPU, but not all ranks see GPUs of one vendor: give \
                     every rank one, or train on CPUs with train.device=cpu"
                ),
                None => {
                    let why = sees_no_gpu("train on CPUs with train.device=cpu");
                    bail!("rank {rank} on {host} {why}")
                }
            }
        };
        let index = local_rank(comm) % device_count(vendor).max(1);
        let device = CudaDevice::open_vendor(vendor, index, config.precision())
            .map_err(|error| anyhow!("{error}; train on CPUs with train.device=cpu"))?;
        let device = device
            .with_residual(config.train.residual)
            .with_residual_gradient(config.residual_gradient())
            .with_fp8(config.train.fp8)?;
        let device = match config.train.deterministic {
            true => device.deterministic_results(),
            false => device,
        };
        let first_ranks = first_ranks(comm, &device, index)?;
        Ok(Self::Gpu { device: Box::new(device), index, first_ranks })
    }

    /// Its kernels in a few words: for a GPU also the attention kernels of the configured model.
    pub fn kernels(&self, config: &Config, ranks: usize) -> String {
        match self {
            Self::Cpu { device, .. } => device.gemm_kernel().to_owned(),
            Self::Gpu { device, .. } => {
                let name = &device.info().name;
                let Ok(shape) = config.shape(1) else { return name.clone() };
                if !shape.has_attention() {
                    return name.clone();
                }
                // The shape of the run, because cuDNN's plan for it is used again.
                let tp = config.parallel.tp.max(1);
                let attention = AttentionShape {
                    batch: config.validate(ranks).map_or(1, |layout| layout.micro_batch),
                    seq_len: shape.seq_len / config.parallel.cp.max(1),
                    heads: shape.num_heads / tp,
                    kv_heads: shape.num_kv_heads / tp,
                    head_dim: shape.head_dim(),
                };
                let has_dropout = config.model.dropout > 0.0;
                let attention = device.attention_backend(attention, has_dropout);
                format!("{name}, attention: {attention}")
            }
        }
    }

    /// GEMM peak of the devices of all ranks in FLOP/s. They measure at the same time, because cores
    /// share caches and power.
    pub fn measure_gemm_peak(&self, comm: &dyn Comm) -> Result<f64> {
        comm.barrier()?;
        let host = comm.peer(comm.rank()).host;
        match self {
            Self::Cpu { device, threads } => {
                let (threads, flops_per_second) = (*threads, device.measure_gemm());
                let cpus = regatta_discover::live_affinity().unwrap_or_default();
                Ok(gemm_peak(comm, &RankGemm { host, cpus, threads, flops_per_second })?)
            }
            Self::Gpu { device, first_ranks, .. } => {
                // Ranks that share a GPU measure what each gets of it.
                let (host, flops_per_second) = (format!("{host}, GPUs"), device.measure_gemm());
                let cpus = CpuSet::from_iter([first_ranks[comm.rank() as usize] as usize]);
                Ok(gemm_peak(comm, &RankGemm { host, cpus, threads: 1, flops_per_second })?)
            }
        }
    }

    /// Chooses the micro-batch size of a GPU if it is `auto`, and checks that the ranks that share it do not
    /// need more memory than it has. Returns a note for the user.
    pub fn fit_memory(
        &self,
        config: &mut Config,
        vocab_size: usize,
        run_folder: &Path,
        comm: &dyn Comm,
    ) -> Result<Option<String>> {
        let Self::Gpu { device, index, first_ranks } = self else { return Ok(None) };
        let own = first_ranks[comm.rank() as usize];
        let ranks = (0..).zip(first_ranks).filter(|(_, first)| **first == own);
        let ranks = ranks.map(|(rank, _)| rank).collect();
        let gpu = RankGpu { free: device.free_bytes()?, ranks };
        let note = gpu_micro_batch::resolve(config, vocab_size, &gpu, run_folder, comm)?;
        let need = gpu.predicted_need(config, vocab_size, comm)?;
        if config.train.check_memory && need > gpu.free {
            let host = comm.peer(comm.rank()).host;
            let name = format!("{} (device {index}) of {host}", device.info().name);
            bail!(insufficient_memory(&name, &gpu, need));
        }
        comm.barrier()?;
        Ok(note)
    }

    /// A communicator of the same ranks for device memory, if there are several.
    pub fn device_comm(&self, comm: &dyn Comm) -> Result<Option<Arc<dyn Comm>>> {
        let Self::Gpu { device, index, first_ranks } = self else { return Ok(None) };
        if comm.size() == 1 {
            return Ok(None);
        }
        let Some(bootstrap) = comm.split(Some(0), i64::from(comm.rank()))? else {
            return Ok(None);
        };
        let shares_gpu = (0..).zip(first_ranks).any(|(rank, first)| rank != *first);
        if shares_gpu && std::env::var_os("NCCL_HOSTID").is_none() {
            bail!(
                "several ranks share a GPU, which NCCL and RCCL refuse: start one rank per GPU, or for a \
                 test add --launch \"--wrap 'env NCCL_HOSTID={{rank}}'\""
            );
        }
        let config = NcclConfig {
            vendor: device.vendor(),
            device: *index,
            desync_after: DESYNC_AFTER,
            debug: false,
            blocking: false,
        };
        Ok(Some(Arc::new(nccl::init(bootstrap, config)?)))
    }

    /// Starts to record the intervals of kernels and collectives; whether the device is a GPU.
    pub fn start_trace(&self) -> bool {
        let Self::Gpu { device, .. } = self else { return false };
        device.start_trace();
        true
    }

    /// What a user should know about its libraries and the model's sizes.
    pub fn notes(&self, vocab_size: usize) -> Vec<String> {
        let Self::Gpu { device, .. } = self else { return Vec::new() };
        device.notes().into_iter().chain(vocab_note(vocab_size)).collect()
    }

    /// The device of the training engine.
    pub fn into_device(self) -> Box<dyn Device> {
        match self {
            Self::Cpu { device, .. } => device,
            Self::Gpu { device, .. } => device,
        }
    }
}

/// The error of ranks that need more memory than their GPU has.
fn insufficient_memory(name: &str, gpu: &RankGpu, need: u64) -> String {
    let ranks = match gpu.ranks[..] {
        [rank] => format!("rank {rank} needs"),
        ref ranks => format!("{} ranks need", ranks.len()),
    };
    format!(
        "not enough memory on {name}: {ranks} about {}, but only {} are free; lower train.micro_batch, \
         set train.recompute=true, shard the state with parallel.zero, offload it (offload.optimizer, \
         offload.parameters), or train anyway with train.check_memory=false",
        format_memory(need),
        format_memory(gpu.free),
    )
}

/// A note if tensor cores cannot access rows of logits by vectors of 16 bytes.
fn vocab_note(vocab_size: usize) -> Option<String> {
    const LARGE: usize = 1000;
    (vocab_size > LARGE && !vocab_size.is_multiple_of(8)).then(|| {
        let padded = vocab_size.next_multiple_of(64);
        format!(
            "the vocabulary size {vocab_size} is not a multiple of 8, so that rows of logits are not \
             aligned for tensor cores: set model.vocab_size={padded}"
        )
    })
}

/// For each rank, the lowest one of its host that uses the same GPU, by its PCI bus id: the index does not
/// identify it if ranks see different GPUs.
fn first_ranks(comm: &dyn Comm, device: &CudaDevice, index: u32) -> Result<Vec<u32>> {
    let id = device.pci_bus_id().unwrap_or_else(|| format!("index {index}"));
    let all = (0..).zip(all_gather(comm, &id)?);
    let gpus: Vec<_> = all.map(|(rank, id)| (comm.peer(rank).host, id)).collect();
    let first = |gpu| gpus.iter().position(|one| one == gpu).unwrap_or_default() as u32;
    Ok(gpus.iter().map(first).collect())
}

/// The index of this rank among those of its host.
fn local_rank(comm: &dyn Comm) -> u32 {
    let host = comm.peer(comm.rank()).host;
    (0..comm.rank()).filter(|rank| comm.peer(*rank).host == host).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insufficient_memory_names_ranks_gpu_and_sizes() {
        let text = |ranks: &[u32]| {
            let gpu = RankGpu { free: 3 << 30, ranks: ranks.to_vec() };
            insufficient_memory("NVIDIA H200 (device 0) of n1", &gpu, 4 << 30)
        };
        let one = "not enough memory on NVIDIA H200 (device 0) of n1: rank 2 needs about 4.0 GiB, but only \
                   3.0 GiB are free; lower train.micro_batch";
        assert!(text(&[2]).starts_with(one), "{}", text(&[2]));
        assert!(text(&[0, 2]).contains(": 2 ranks need about 4.0 GiB, "), "{}", text(&[0, 2]));
    }

    #[test]
    fn large_vocabularies_should_be_multiples_of_8() {
        assert_eq!((vocab_note(65), vocab_note(50_304)), (None, None));
        assert!(vocab_note(50_257).is_some_and(|note| note.ends_with("model.vocab_size=50304")));
    }
}
