//! Training steps on a GPU compared with PyTorch's `torch.compile` on the same GPU, in alternating rounds.
//!
//! Arguments: models, `124m`, `355m`, `1b` (Llama) and `char` (nanoGPT's character-level model, with dropout),
//! each with a batch size, as in `124m:32`. Options:
//! `--rounds N` (default 7) and `--steps N` per round (default 10); `--mode max-autotune` for torch.compile;
//! `--no-peer`; `--graphs` compares with steps without CUDA graphs instead; `--bf16-residual`; `--fp8 layers` or
//! `--fp8 all`; `--kernels` prints the time of each kernel instead. PyTorch is that of `python3`, or of the Python
//! in `REGATTA_BENCH_PYTHON`.

mod graphs;
mod own;
mod peer;

use anyhow::{Context, Result, bail};
use regatta_device::ops::Fp8;
use regatta_device::precision::Precision;
use regatta_predict::shape::{Family, ModelShape};

/// A model and a batch size.
#[derive(Debug, Clone)]
struct Case {
    name: String,
    shape: ModelShape,
    batch: usize,
    dropout: f32,
}

struct Options {
    cases: Vec<Case>,
    rounds: usize,
    steps: usize,
    mode: String,
    peer: bool,
    kernels: bool,
    graphs: bool,
    residual: Precision,
    fp8: Fp8,
}

fn main() -> Result<()> {
    let options = parse(std::env::args().skip(1))?;
    options.cases.iter().try_for_each(|case| compare(case, &options))
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options {
        cases: Vec::new(),
        rounds: 7,
        steps: 10,
        mode: "default".to_owned(),
        peer: true,
        kernels: false,
        graphs: false,
        residual: Precision::F32,
        fp8: Fp8::Off,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--rounds" => options.rounds = value()?.parse()?,
            "--steps" => options.steps = value()?.parse()?,
            "--mode" => options.mode = value()?,
            "--no-peer" => options.peer = false,
            "--kernels" => options.kernels = true,
            "--fp8" => {
                options.fp8 = match value()?.as_str() {
                    "layers" => Fp8::Layers,
                    "all" => Fp8::All,
                    other => bail!("--fp8 {other}: layers or all"),
                }
            }
            "--graphs" => options.graphs = true,
            "--bf16-residual" => options.residual = Precision::Bf16,
            name => options.cases.push(Case::parse(name)?),
        }
    }
    if options.cases.is_empty() {
        options.cases = vec![Case::parse("124m:32")?, Case::parse("355m:16")?];
    }
    Ok(options)
}

impl Case {
    fn parse(text: &str) -> Result<Self> {
        let (name, batch) = text.split_once(':').context("expected MODEL:BATCH, as in 124m:32")?;
        let gpt2 = |num_layers, num_heads, hidden_size| ModelShape {
            family: Family::Gpt2,
            seq_len: 1024,
            hidden_size,
            num_layers,
            num_heads,
            num_kv_heads: num_heads,
            intermediate_size: 4 * hidden_size,
            // A multiple of 64, for tensor cores.
            vocab_size: 50_304,
            tie_embeddings: true,
            bias: true,
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
        };
        let shape = match name {
            "124m" => gpt2(12, 12, 768),
            "355m" => gpt2(24, 16, 1024),
            "1b" => ModelShape {
                family: Family::Llama,
                intermediate_size: 5632,
                tie_embeddings: false,
                bias: false,
                ..gpt2(22, 32, 2048)
            },
            "char" => ModelShape { seq_len: 256, vocab_size: 65, bias: false, ..gpt2(6, 6, 384) },
            _ => bail!("unknown model {name}: 124m, 355m, 1b or char"),
        };
        let dropout = if name == "char" { 0.2 } else { 0.0 };
        Ok(Self { name: text.to_owned(), shape, batch: batch.parse()?, dropout })
    }

    fn tokens(&self) -> f64 {
        (self.batch * self.shape.seq_len) as f64
    }
}

/// Measures both in alternating rounds and prints the ratio of each.
fn compare(case: &Case, options: &Options) -> Result<()> {
    if options.graphs {
        return graphs::compare(case, options);
    }
    let mut own = own::Trainer::new(case, options, true)?;
    println!("{}: {}", case.name, own.describe());
    if options.kernels {
        return own.print_kernels(options.steps);
    }
    if options.peer && case.dropout > 0.0 {
        bail!("the peer has no dropout: add --no-peer or --graphs to {}", case.name);
    }
    let mut peer = match options.peer {
        true => Some(peer::Peer::start(case, &options.mode)?),
        false => None,
    };
    // Compilation, autotuning and the first allocation.
    own.run(5)?;
    peer.as_mut().map(|peer| peer.run(5)).transpose()?;
    let (mut own_steps, mut peer_steps, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let ours = own.run(options.steps)?;
        if let Some(peer) = &mut peer {
            let theirs = peer.run(options.steps)?;
            ratios.push(quartiles(&theirs)[1] / quartiles(&ours)[1]);
            peer_steps.extend(theirs);
        }
        own_steps.extend(ours);
    }
    print_steps(case, "regatta", &own_steps);
    println!("  loss {:.4}", own.last_loss);
    if peer.is_some() {
        print_steps(case, "torch", &peer_steps);
        let [low, median, high] = quartiles(&ratios);
        println!("  ratio    {median:.3} ({low:.3} to {high:.3}), mode {}", options.mode);
    }
    Ok(())
}

/// Prints the median of the times of steps, with quartiles.
fn print_steps(case: &Case, who: &str, steps: &[f64]) {
    let [low, median, high] = quartiles(steps);
    println!(
        "  {who:8} {:8.2} ms/step ({:.2} to {:.2})  {:9.0} tokens/s",
        1e3 * median,
        1e3 * low,
        1e3 * high,
        case.tokens() / median
    );
}

/// First quartile, median and third quartile.
fn quartiles(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted.get((share * (sorted.len().max(1) - 1) as f64).round() as usize);
    [0.25, 0.5, 0.75].map(|share| at(share).copied().unwrap_or(f64::NAN))
}
