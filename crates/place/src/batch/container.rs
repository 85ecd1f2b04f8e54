//! How the program of a job is run in a container.

use regatta_model::GpuVendor;
use regatta_model::shell::quote;

use super::{BatchError, BatchJob, BatchScheduler, ContainerRuntime, gpu_vendor, quote_all};
use crate::site_profile::Profile;

/// The parts of a script that run the program in a container; all are empty without one.
#[derive(Debug, Default)]
pub(super) struct ContainerCommands {
    /// Lines before the launcher.
    pub(super) setup: String,
    /// Options of `regatta launch`.
    pub(super) launch_options: String,
    /// Words before the program.
    pub(super) prefix: String,
}

/// Variables that a container of podman-hpc gets: those of regatta, the libraries and Slurm. `PATH`,
/// `LD_LIBRARY_PATH` and the like stay those of the image.
const PASSED_TO_PODMAN: [&[&str]; 3] = [
    &["RANK", "WORLD_SIZE", "LOCAL_*", "GROUP_*", "CROSS_*", "MASTER_*", "REGATTA_*", "SLURM_*"],
    &["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP*", "NCCL_*", "GLOO_*", "FI_*"],
    &["TORCH*", "TRITON_*", "HF_*", "JAX_*", "HOROVOD_*"],
];

/// The commands for the job's container.
pub(super) fn container(
    scheduler: BatchScheduler,
    job: &BatchJob,
    site: &Profile,
) -> Result<ContainerCommands, BatchError> {
    let Some(image) = &job.container else { return Ok(ContainerCommands::default()) };
    let runtime = job.container_runtime.or(site.batch.container);
    let has_gpus = job.gpus_per_node.map_or(gpu_vendor(job, site).is_some(), |gpus| gpus > 0);
    let gpus = has_gpus.then(|| gpu_vendor(job, site).unwrap_or(GpuVendor::Nvidia));
    let of_vendor = || gpu_option(gpus).map(str::to_owned).into_iter().collect();
    let options: Vec<String> = site.batch.container_options.clone().unwrap_or_else(of_vendor);
    let prefix = match runtime.unwrap_or(ContainerRuntime::Apptainer) {
        ContainerRuntime::Apptainer => apptainer("apptainer", &options, image),
        ContainerRuntime::Singularity => apptainer("singularity", &options, image),
        ContainerRuntime::PodmanHpc => podman_hpc(gpus, image),
        ContainerRuntime::Edf => return container_engine(scheduler, job, gpus, image),
    };
    Ok(ContainerCommands { prefix, ..ContainerCommands::default() })
}

fn gpu_option(gpus: Option<GpuVendor>) -> Option<&'static str> {
    match gpus? {
        GpuVendor::Amd => Some("--rocm"),
        GpuVendor::Nvidia => Some("--nv"),
        // There is none: the devices are visible in any container.
        GpuVendor::Intel => None,
    }
}

fn apptainer(program: &str, options: &[String], image: &str) -> String {
    format!(" {program} exec{} --bind \"$PWD\" {}", quote_all(options), quote(image))
}

/// One container per rank. The network and the shared memory are those of the node: ranks of a node
/// communicate with each other, and over the node's interfaces.
fn podman_hpc(gpus: Option<GpuVendor>, image: &str) -> String {
    // `--nccl` adds the site's libfabric and network plug-in.
    let gpu = if gpus.is_some() { " --gpu --nccl" } else { "" };
    let option = |name: &&str| format!(" -e {}", quote(name));
    let line =
        |names: &&[&str]| format!("   {} \\\n", names.iter().map(option).collect::<String>());
    let passed: String = PASSED_TO_PODMAN.iter().map(line).collect();
    format!(
        " podman-hpc run --rm{gpu} --network=host --ipc=host \\\n{passed}    \
         --volume \"$PWD:$PWD\" --workdir \"$PWD\" {}",
        quote(image)
    )
}

/// `srun --environment` starts the agents in the container, which start the ranks in it.
fn container_engine(
    scheduler: BatchScheduler,
    job: &BatchJob,
    gpus: Option<GpuVendor>,
    image: &str,
) -> Result<ContainerCommands, BatchError> {
    if scheduler != BatchScheduler::Slurm {
        return Err(BatchError::Unsupported {
            scheduler,
            what: "cannot start containers of the container engine, which is an option of srun",
            fix: "choose another --container-runtime",
        });
    }
    let option = |path: &str| format!(" --launcher-option=--environment={path}");
    if image.ends_with(".toml") {
        let launch_options = option(&match image.starts_with('/') {
            true => quote(image),
            false => format!("\"$PWD\"/{}", quote(image)),
        });
        return Ok(ContainerCommands { launch_options, ..ContainerCommands::default() });
    }
    if !is_image_name(image) {
        return Err(BatchError::BadValue {
            option: "--container",
            value: image.to_owned(),
            expected: "expected a .toml file (EDF), or an image of letters, digits and any of \
                       _ . - + : / @ # =",
        });
    }
    // Tasks of an array start at the same time: each has a file of its own.
    let name = if job.array.is_some() { "environment-$task.toml" } else { "environment.toml" };
    // The container engine looks for other than absolute paths in `EDF_PATH`.
    let base = if job.job_dir.starts_with('/') { "" } else { "$PWD/" };
    let file = format!("\"{base}{}/{name}\"", job.job_dir);
    Ok(ContainerCommands {
        setup: environment_file(&file, image, &job.regatta, gpus),
        launch_options: option(&file),
        prefix: String::new(),
    })
}

/// Whether a name needs no quotes, neither in a shell's here-document nor in TOML.
fn is_image_name(image: &str) -> bool {
    image.chars().all(|c| c.is_ascii_alphanumeric() || "_.-+:/@#=".contains(c))
}

/// Commands that write an environment definition file (EDF) of the container engine.
fn environment_file(file: &str, image: &str, regatta: &str, gpus: Option<GpuVendor>) -> String {
    // CSCS: the plug-in that is linked dynamically works with any version of CUDA.
    let variant = match gpus {
        Some(GpuVendor::Nvidia) => Some("cuda-dl"),
        Some(GpuVendor::Amd) => Some("rocm6"),
        Some(GpuVendor::Intel) | None => None,
    };
    let annotations = variant.map_or(String::new(), |variant| {
        format!(
            "\n[annotations]\ncom.hooks.aws_ofi_nccl.enabled = \"true\"\n\
             com.hooks.aws_ofi_nccl.variant = \"{variant}\"\n"
        )
    });
    format!(
        "\n# The container of the agents, which start the ranks in it. It must have regatta, too.\n\
         regatta=$(readlink -f \"$(command -v {})\") || exit\n\
         cat >{file} <<EOF || exit\n\
         image = \"{image}\"\n\
         mounts = [\"$PWD:$PWD\", \"$regatta:$regatta\"]\n\
         workdir = \"$PWD\"\n{annotations}EOF\n",
        quote(regatta)
    )
}
