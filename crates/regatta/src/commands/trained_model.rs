//! Loads the model of `regatta generate` and `regatta eval`.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use regatta_device::ops::Device;
use regatta_device::precision::Precision;
use regatta_kernels_cpu::Cpu;
use regatta_kernels_cuda::CudaDevice;
use regatta_train::data::Tokenizer;
use regatta_train::load::{LoadError, Loaded, load};

use super::gpu_detection::{local_vendor, sees_no_gpu, unusable_gpu};
use super::runs::no_checkpoint;
use crate::args::model::{DeviceChoice, ModelArgs};
use crate::output;

impl ModelArgs {
    /// The GPU, or a CPU with these threads in a precision.
    pub fn device(&self, cpu_precision: Precision) -> Result<Box<dyn Device>> {
        if self.device != DeviceChoice::Cpu {
            match (local_vendor(), self.device) {
                (Some(vendor), _) => {
                    let device = CudaDevice::open_vendor(vendor, 0, Precision::Bf16);
                    let device = device
                        .map_err(|error| anyhow!("{error}; run the model with --device cpu"))?;
                    return Ok(Box::new(device));
                }
                (None, DeviceChoice::Gpu) => {
                    bail!("this process {}", sees_no_gpu("run the model with --device cpu"))
                }
                (None, _) => unusable_gpu().iter().for_each(|reason| {
                    output::note(&format!(
                        "running on the CPU: this process {reason}; --device gpu makes this an error"
                    ));
                }),
            }
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.map_or_else(cores, usize::from);
        Ok(Box::new(Cpu::new(threads, cpu_precision)))
    }

    /// Loads the model into the memory of a device. Notes newer checkpoints that were skipped because
    /// they are damaged.
    pub fn load(&self, device: &dyn Device) -> Result<Loaded> {
        let loaded = load(&self.run, device).map_err(|error| match error {
            LoadError::Nothing { .. } if !self.run.exists() => {
                anyhow!("{} does not exist; `regatta runs` lists the runs", self.run.display())
            }
            LoadError::Nothing { .. } => {
                no_checkpoint::message(&self.run).map_or(error.into(), |text| anyhow!(text))
            }
            error => error.into(),
        })?;
        for skipped in &loaded.skipped {
            let from = loaded.from.display();
            output::note(&format!("skipped damaged checkpoint {skipped}; using {from}"));
        }
        Ok(loaded)
    }

    /// The tokenizer of `--tokenizer` or of the model, and its file.
    pub fn tokenizer(&self, loaded: &Loaded) -> Result<(PathBuf, Tokenizer)> {
        let Some(path) = self.tokenizer.as_ref().or(loaded.tokenizer.as_ref()) else {
            let from = loaded.from.display();
            bail!("{from} has no tokenizer.json: pass one with --tokenizer");
        };
        let tokenizer = Tokenizer::load(path)?;
        let (file, fingerprint) = (path.display(), tokenizer.fingerprint());
        if let Some(expected) = loaded.made_by.as_ref().filter(|made_by| **made_by != fingerprint) {
            let from = loaded.from.display();
            let what =
                format!("{file} ({fingerprint}) is not the tokenizer of {from} ({expected})");
            if self.tokenizer.is_none() {
                bail!(
                    "{what}: pass the model's tokenizer with --tokenizer FILE, or pass this file to \
                     use it anyway"
                );
            }
            // One given with `--tokenizer` may be equivalent despite another fingerprint.
            output::note(&what);
        }
        let (tokenizer_size, model_size) = (tokenizer.vocab_size(), loaded.shape.vocab_size);
        if tokenizer_size > model_size {
            bail!(
                "the vocabulary size of {file} is {tokenizer_size}, that of the model {model_size}: \
                 the tokenizer belongs to another model"
            );
        }
        Ok((path.to_owned(), tokenizer))
    }
}
