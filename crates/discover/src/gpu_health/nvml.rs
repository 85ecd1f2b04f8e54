//! Health of NVIDIA GPUs from NVML.

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ClockId, ComputeMode, EccCounter, MemoryError, TemperatureSensor,
};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use regatta_model::{Gpu, GpuVendor};

use super::{GpuHealth, GpuProcess};

/// Rows remapped after correctable and uncorrectable errors, whether a remapping is pending, and
/// whether one failed (`NVML_FI_DEV_REMAPPED_*`).
const REMAPPED_FIELDS: [u32; 4] = [142, 143, 144, 145];

/// Upper bound; NVML rejects higher link indices before that.
const MAX_LINKS: u32 = 36;

/// Fills in the health of the NVIDIA GPUs; an error if NVML cannot be used.
pub(super) fn read(gpus: &[Gpu], health: &mut [GpuHealth]) -> Result<(), String> {
    let unavailable = |error: NvmlError| format!("NVML is unavailable: {error}");
    let nvml = Nvml::init().map_err(unavailable)?;
    let nvidia = gpus.iter().zip(health).filter(|(gpu, _)| gpu.vendor == GpuVendor::Nvidia);
    for (gpu, health) in nvidia {
        let Some(address) = &gpu.pci else { continue };
        match nvml.device_by_pci_bus_id(address.as_str()) {
            Ok(device) => read_device(&device, health),
            Err(error) => health.error = Some(error.to_string()),
        }
    }
    Ok(())
}

fn read_device(device: &Device<'_>, health: &mut GpuHealth) {
    let temperature = device.temperature(TemperatureSensor::Gpu);
    // Other queries of a lost GPU fail in the same way, most of them as unsupported.
    if let Err(error @ (NvmlError::GpuLost | NvmlError::Unknown)) = &temperature {
        health.error = Some(error.to_string());
        return;
    }
    health.temperature = temperature.ok();
    read_memory_errors(device, health);
    read_clocks(device, health);
    let watts = |milliwatts: u32| milliwatts / 1000;
    health.power_limit = device.enforced_power_limit().ok().map(watts);
    health.default_power_limit = device.power_management_limit_default().ok().map(watts);
    let pair = |now: Result<u32, NvmlError>, max: Result<u32, NvmlError>| now.ok().zip(max.ok());
    let generation = pair(device.current_pcie_link_gen(), device.max_pcie_link_gen());
    health.pcie_generation = generation.or(health.pcie_generation);
    let width = pair(device.current_pcie_link_width(), device.max_pcie_link_width());
    health.pcie_width = width.or(health.pcie_width);
    health.active_links = active_links(device);
    health.memory_used = device.memory_info().ok().map(|memory| memory.used);
    health.compute_mode = device.compute_mode().ok().map(|mode| compute_mode(mode).to_owned());
    health.processes = processes(device);
}

fn read_memory_errors(device: &Device<'_>, health: &mut GpuHealth) {
    health.ecc_enabled = device.is_ecc_enabled().ok().map(|mode| mode.currently_enabled);
    let errors = |counter| device.total_ecc_errors(MemoryError::Uncorrected, counter).ok();
    health.uncorrectable_errors = errors(EccCounter::Volatile);
    health.lifetime_uncorrectable_errors = errors(EccCounter::Aggregate);
    let Ok(fields) = device.field_values_for(&REMAPPED_FIELDS.map(FieldId)) else { return };
    let number = |index: usize| {
        let sample = fields.get(index)?.as_ref().ok()?;
        match sample.value.as_ref().ok()? {
            SampleValue::U32(value) => Some(*value),
            SampleValue::U64(value) => u32::try_from(*value).ok(),
            SampleValue::I64(value) => u32::try_from(*value).ok(),
            SampleValue::F64(_) => None,
        }
    };
    health.remapped_rows = number(1);
    health.remap_pending = number(2).map(|value| value != 0);
    health.remap_failed = number(3).map(|value| value != 0);
}

fn read_clocks(device: &Device<'_>, health: &mut GpuHealth) {
    let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE);
    let faults = [
        (ThrottleReasons::HW_SLOWDOWN, "hw-slowdown"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hw-thermal-slowdown"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "hw-power-brake"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "sw-thermal-slowdown"),
    ];
    let active = faults.iter().filter(|(flag, _)| reasons.contains(*flag));
    health.throttle_reasons = active.map(|(_, name)| (*name).to_owned()).collect();
    let clock = |id| device.clock(Clock::SM, id).ok();
    let clocks = clock(ClockId::TargetAppClock).zip(clock(ClockId::DefaultAppClock));
    health.max_clock = clocks.filter(|(now, default)| now < default).map(|(now, _)| now);
}

/// The number of active NVLinks; `None` if the GPU has no links.
fn active_links(device: &Device<'_>) -> Option<u32> {
    let state = |number| device.link_wrapper_for(number).is_active();
    let exists = |state: &Result<bool, NvmlError>| {
        !matches!(state, Err(NvmlError::InvalidArg | NvmlError::NotSupported))
    };
    let states: Vec<_> = (0..MAX_LINKS).map(state).take_while(exists).collect();
    let active = states.iter().filter(|state| matches!(state, Ok(true))).count();
    (!states.is_empty()).then_some(active as u32)
}

fn compute_mode(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::ExclusiveThread => "exclusive-thread",
        ComputeMode::ExclusiveProcess => "exclusive-process",
    }
}

fn processes(device: &Device<'_>) -> Vec<GpuProcess> {
    let processes = device.running_compute_processes().unwrap_or_default();
    let process = |p: nvml_wrapper::struct_wrappers::device::ProcessInfo| GpuProcess {
        pid: p.pid,
        command: None,
        uid: None,
        memory: match p.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    };
    processes.into_iter().map(process).collect()
}
