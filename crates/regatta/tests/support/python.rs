//! Python programs of training frameworks, run where the frameworks are installed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python of `REGATTA_TEST_PYTHON`, or `python3` in PATH, if it can import a module; else prints
/// that the test is skipped.
pub fn python_with(module: &str) -> Option<String> {
    let python = std::env::var("REGATTA_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let import = Command::new(&python).args(["-c", &format!("import {module}")]).output();
    if import.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    let fix = "set REGATTA_TEST_PYTHON to a Python that has it";
    eprintln!("skipped: {python} cannot import {module}; {fix}");
    None
}

/// Programs as in the documentation of each framework, which check a known sum and print
/// `NAME rank R of N`. Arguments: number of nodes, ranks per node.
#[derive(Clone, Copy)]
pub struct Program {
    pub name: &'static str,
    module: &'static str,
    source: &'static str,
    /// `--framework` of `regatta`.
    pub framework: &'static str,
}

/// A program of `tests/frameworks`.
macro_rules! program {
    ($name:literal, $module:literal, $framework:literal, $file:literal) => {
        Program {
            name: $name,
            module: $module,
            source: include_str!(concat!("../frameworks/", $file)),
            framework: $framework,
        }
    };
}

pub const DDP: Program = program!("ddp", "torch", "torch", "torch_ddp.py");
pub const FSDP2: Program = program!("fsdp2", "torch", "torch", "torch_fsdp2.py");
pub const ACCELERATE: Program =
    program!("accelerate", "accelerate", "accelerate", "accelerate_prepare.py");
pub const DEEPSPEED: Program =
    program!("deepspeed", "deepspeed", "deepspeed", "deepspeed_zero2.py");
pub const LIGHTNING: Program = program!("lightning", "lightning", "torch", "lightning_ddp.py");
pub const JAX: Program = program!("jax", "jax", "jax", "jax_allgather.py");
pub const HOROVOD: Program =
    program!("horovod", "horovod.torch", "horovod", "horovod_allreduce.py");
pub const RAY: Program = program!("ray", "ray.train.torch", "torch", "ray_train.py");

/// Those that run under `regatta launch`.
pub const LAUNCHED: [Program; 7] = [DDP, FSDP2, ACCELERATE, DEEPSPEED, LIGHTNING, JAX, HOROVOD];

/// Runs a command of rank 0 next to the rendezvous server that Horovod needs.
const HOROVOD_SERVER: &str = include_str!("../frameworks/horovod_server.py");

/// A program that can run, in a folder.
pub struct Installed {
    program: Program,
    python: String,
    file: String,
    /// The command before that of rank 0, if the framework needs one.
    rank_0: Option<String>,
}

impl Program {
    /// Writes the program to a folder, not under the name of its module, if its framework is installed; else prints that it is skipped.
    pub fn install(&self, folder: &Path) -> Option<Installed> {
        let python = python_with(self.module)?;
        let file = folder.join(format!("train_{}.py", self.name));
        std::fs::write(&file, self.source).unwrap();
        let rank_0 = (self.framework == "horovod").then(|| {
            let server = folder.join("horovod_server.py");
            std::fs::write(&server, HOROVOD_SERVER).unwrap();
            format!("{python} {}", server.display())
        });
        Some(Installed { program: *self, python, file: file.display().to_string(), rank_0 })
    }

    /// The lines that the ranks print.
    pub fn lines(&self, ranks: u32) -> Vec<String> {
        (0..ranks).map(|rank| format!("{} rank {rank} of {ranks}", self.name)).collect()
    }
}

impl Installed {
    /// The command of a rank.
    pub fn command(&self, nodes: u32, ranks_per_node: u32) -> String {
        format!("{} {} {nodes} {ranks_per_node}", self.python, self.file)
    }

    /// Options and command of `regatta launch`.
    pub fn launch_words(&self, nodes: u32, ranks_per_node: u32) -> String {
        let wrap = self.rank_0.as_ref().map(|words| format!("--wrap '{words}' --wrap-ranks 0"));
        let (framework, wrap) = (self.program.framework, wrap.unwrap_or_default());
        let command = self.command(nodes, ranks_per_node);
        format!("--framework {framework} {wrap} --oversubscribe -- {command}")
    }

    /// A script for each task of `srun`, with the environment of `regatta env`.
    pub fn task_script(&self, regatta: &str, nodes: u32, ranks_per_node: u32) -> String {
        let (framework, command) = (self.program.framework, self.command(nodes, ranks_per_node));
        let rank_0 = self.rank_0.as_deref().unwrap_or_default();
        format!(
            "eval \"$({regatta} env --framework {framework} || echo exit 1)\"
             if [ $SLURM_PROCID = 0 ]; then exec {rank_0} {command}; fi
             exec {command}"
        )
    }

    /// Variables of a user who has activated the environment of Python, on a node without GPUs.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = Path::new(&self.python).parent().unwrap_or(Path::new(""));
        let path =
            if bin.as_os_str().is_empty() { path } else { format!("{}:{path}", bin.display()) };
        // DeepSpeed compiles an extension at its first start, which takes a minute.
        let extensions = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("torch-extensions");
        vec![
            ("PATH", path),
            ("TORCH_EXTENSIONS_DIR", extensions.display().to_string()),
            ("DS_ACCELERATOR", "cpu".to_owned()),
            ("JAX_PLATFORMS", "cpu".to_owned()),
            ("CUDA_VISIBLE_DEVICES", String::new()),
        ]
    }
}
