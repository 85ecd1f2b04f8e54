//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use regatta_device::ops::Fp8;
use regatta_device::precision::Precision;

use crate::case::Case;

pub struct Options {
    pub cases: Vec<Case>,
    pub rounds: usize,
    pub steps: usize,
    pub peer: Option<PeerOptions>,
    pub kernels: bool,
    /// Whether steps with and without CUDA graphs are compared.
    pub graphs: bool,
    pub settings: Settings,
    pub json: bool,
    /// Batch size of the search for the largest model.
    pub largest: Option<usize>,
}

/// How our engine trains.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub residual: Precision,
    pub residual_gradient: Precision,
    pub fp8: Fp8,
    pub graphs: bool,
}

impl Settings {
    /// Those of `regatta train`.
    pub const DEFAULT: Self = Self {
        residual: Precision::F32,
        residual_gradient: Precision::Bf16,
        fp8: Fp8::Off,
        graphs: true,
    };
}

/// How PyTorch compiles.
#[derive(Debug, Clone)]
pub struct PeerOptions {
    /// Mode of torch.compile.
    pub mode: String,
    /// Where compiled kernels and autotuning results are kept between calls.
    pub cache_dir: Option<PathBuf>,
    /// Limit of the first steps, which compile.
    pub compile_limit: Duration,
}

pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut peer = PeerOptions {
        mode: "default".to_owned(),
        cache_dir: None,
        compile_limit: Duration::from_secs(480),
    };
    let mut options = Options {
        cases: Vec::new(),
        rounds: 7,
        steps: 10,
        peer: None,
        kernels: false,
        graphs: false,
        settings: Settings::DEFAULT,
        json: false,
        largest: None,
    };
    let (mut with_peer, mut vocab_size) = (true, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--rounds" => options.rounds = value()?.parse()?,
            "--steps" => options.steps = value()?.parse()?,
            "--mode" => peer.mode = value()?,
            "--cache-dir" => peer.cache_dir = Some(value()?.into()),
            "--compile-limit" => peer.compile_limit = Duration::from_secs(value()?.parse()?),
            "--no-peer" => with_peer = false,
            "--kernels" => options.kernels = true,
            "--graphs" => options.graphs = true,
            "--bf16-residual" => options.settings.residual = Precision::Bf16,
            "--f32-residual-gradient" => options.settings.residual_gradient = Precision::F32,
            "--fp8" => {
                options.settings.fp8 = match value()?.as_str() {
                    "layers" => Fp8::Layers,
                    "all" => Fp8::All,
                    other => bail!("--fp8 {other}: layers or all"),
                }
            }
            "--vocab-size" => vocab_size = Some(value()?.parse()?),
            "--json" => options.json = true,
            "--largest" => options.largest = Some(value()?.parse()?),
            name => options.cases.push(Case::parse(name)?),
        }
    }
    options.peer = with_peer.then_some(peer);
    if options.cases.is_empty() && options.largest.is_none() {
        options.cases = vec![Case::parse("124m:32")?, Case::parse("355m:16")?];
    }
    if let Some(vocab_size) = vocab_size {
        options.cases.iter_mut().for_each(|case| case.shape.vocab_size = vocab_size);
    }
    Ok(options)
}
