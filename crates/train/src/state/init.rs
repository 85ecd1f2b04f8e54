//! Parameter initialisation. The random generator is counter-based: each rank generates the elements
//! of its own shards, on all of its cores, and they are the same for every way of sharding.

use std::ops::Range;
use std::thread;

use regatta_device::ops::Device;
use regatta_device::random;
use regatta_device::tensor::ViewMut;
use regatta_predict::shape::{Init, ParamBlock, ParamSpec};

/// The values of parameters before the first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamInit {
    /// Random, by this seed.
    Random {
        /// Random seed of the training.
        seed: u64,
    },
    /// Zeros, because a checkpoint is read next.
    FromCheckpoint,
}

/// Standard deviation of weight matrices.
const STD: f64 = 0.02;

/// Random stream of initial parameters.
const INIT_STREAM: u64 = 0x696e_6974;

/// Elements that are staged in host memory at a time.
const STAGING_LEN: usize = 1 << 22;

/// Fewer elements are not worth a thread.
const MIN_LEN_PER_THREAD: usize = 1 << 14;

/// Generates initial parameters.
pub(super) struct Initializer {
    seed: u64,
    num_layers: usize,
    threads: usize,
    staging: Vec<f32>,
    /// Random values generated so far.
    pub generated: usize,
}

impl Initializer {
    /// With as many threads as this process may use cores.
    pub fn new(seed: u64, num_layers: usize) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self { seed, num_layers, threads, staging: Vec::new(), generated: 0 }
    }

    /// Writes the initial values of the elements `range` of a block to `to`, which is zeroed.
    pub fn fill(
        &mut self,
        device: &dyn Device,
        block: &ParamBlock,
        range: Range<usize>,
        mut to: ViewMut<'_>,
    ) {
        let end = range.end.min(block.padded_len());
        for start in (range.start..end).step_by(STAGING_LEN) {
            let chunk = start..(start + STAGING_LEN).min(end);
            self.staging.clear();
            self.staging.resize(chunk.len(), 0.0);
            self.generate(block, chunk.start);
            let target = chunk.start - range.start..chunk.end - range.start;
            device.copy_from_host(&self.staging, to.slice(target));
        }
    }

    /// Fills the staging buffer with the elements of a block from `start` on.
    fn generate(&mut self, block: &ParamBlock, start: usize) {
        let Self { seed, num_layers, threads, staging, .. } = self;
        let (seed, num_layers) = (*seed, *num_layers);
        let per_thread = staging.len().div_ceil(*threads).max(MIN_LEN_PER_THREAD);
        if staging.len() <= per_thread {
            self.generated += init_elements(block, num_layers, seed, start, staging);
            return;
        }
        let parts = (start..).step_by(per_thread).zip(staging.chunks_mut(per_thread));
        self.generated += thread::scope(|scope| {
            let spawn = |(first, part)| {
                scope.spawn(move || init_elements(block, num_layers, seed, first, part))
            };
            let threads: Vec<_> = parts.map(spawn).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, usize>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).sum::<usize>()
        });
    }
}

/// Writes the elements of a block from `start` on; `out` is zeroed. Returns the number of random
/// values.
fn init_elements(
    block: &ParamBlock,
    num_layers: usize,
    seed: u64,
    start: usize,
    out: &mut [f32],
) -> usize {
    let end = start + out.len();
    let mut generated = 0;
    for parameter in &block.parameters {
        let range = parameter.range();
        let (from, to) = (range.start.clamp(start, end), range.end.clamp(start, end));
        if from == to {
            continue;
        }
        let out = &mut out[from - start..to - start];
        let std = match parameter.init {
            Init::Zero => continue,
            Init::One => {
                out.fill(1.0);
                continue;
            }
            Init::Normal => STD,
            // Each layer adds to the residual stream twice.
            Init::Residual => STD / (2.0 * num_layers as f64).sqrt(),
        };
        let [block_key, param_key] = parameter.rng_key;
        let key = random::key(seed, &[INIT_STREAM, block_key, param_key]);
        fill_normal(parameter, std, key, from - range.start, out);
        generated += out.len();
    }
    generated
}

/// Fills a parameter's local elements from `start` on. Their counter is their index in the unsharded
/// parameter.
fn fill_normal(parameter: &ParamSpec, std: f64, key: u64, start: usize, out: &mut [f32]) {
    let columns = parameter.full_shape.get(1).copied().unwrap_or(1);
    let end = start + out.len();
    let mut slice_start = 0;
    for slice in &parameter.slices {
        let slice_end = slice_start + slice.len();
        let local = start.clamp(slice_start, slice_end)..end.clamp(slice_start, slice_end);
        for element in local {
            let at = element - slice_start;
            let row = slice.rows.start + at / slice.columns.len();
            let column = slice.columns.start + at % slice.columns.len();
            let index = (row * columns + column) as u64;
            out[element - start] = (random::normal(key, index) * std) as f32;
        }
        slice_start = slice_end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_comm::DType;
    use regatta_device::reference::Reference;
    use regatta_device::tensor::Tensor;
    use regatta_predict::shape::{BlockLayout, Family, ModelShape, Shard};
    use regatta_predict::testing::shape;

    const SEED: u64 = 7;

    /// The elements `range` of a block, and how many random values they took.
    fn filled(shape: &ModelShape, block: &ParamBlock, range: Range<usize>) -> (Vec<f64>, usize) {
        let mut initializer = Initializer::new(SEED, shape.num_layers);
        initializer.threads = 3;
        let mut tensor = Tensor::zeros(range.len(), DType::F64);
        initializer.fill(&Reference, block, range, tensor.view_mut());
        (tensor.view().as_slice().to_vec(), initializer.generated)
    }

    fn random_len(block: &ParamBlock) -> usize {
        let random = |p: &&ParamSpec| matches!(p.init, Init::Normal | Init::Residual);
        block.parameters.iter().filter(random).map(ParamSpec::len).sum()
    }

    #[test]
    fn zero_shards_have_the_values_of_the_full_block_and_generate_only_those() {
        let mut shape = shape(Family::Gpt2);
        // Large enough for several threads.
        (shape.vocab_size, shape.hidden_size, shape.intermediate_size) = (1000, 64, 300);
        for block in shape.blocks() {
            let len = block.padded_len().next_multiple_of(3 * 32);
            let (full, generated) = filled(&shape, &block, 0..len);
            assert_eq!(generated, random_len(&block), "{}", block.name);
            let shard = |rank: usize| filled(&shape, &block, rank * len / 3..(rank + 1) * len / 3);
            let shards: Vec<_> = (0..3).map(shard).collect();
            let values: Vec<f64> = shards.iter().flat_map(|(values, _)| values).copied().collect();
            assert_eq!(values, full, "{}", block.name);
            assert_eq!(shards.iter().map(|(_, generated)| generated).sum::<usize>(), generated);
            assert!(shards.iter().all(|(values, generated)| *generated <= values.len()));
        }
    }

    #[test]
    fn tensor_parallel_shards_and_tiles_have_the_values_of_the_full_parameter() {
        for family in [Family::Gpt2, Family::Llama] {
            let mut shape = shape(family);
            (shape.num_heads, shape.num_kv_heads, shape.hidden_size) = (4, 2, 32);
            let full = BlockLayout::new(&shape, Shard::UNSHARDED, 1);
            let full_values = |local: &ParamSpec| {
                let of_name =
                    |block: &&ParamBlock| block.parameters.iter().any(|p| p.name == local.name);
                let block = full.blocks.iter().find(of_name).unwrap();
                let parameter = block.parameters.iter().find(|p| p.name == local.name).unwrap();
                filled(&shape, block, 0..block.padded_len()).0[parameter.range()].to_vec()
            };
            for (rank, tiles) in [(0, 1), (1, 1), (0, 3), (1, 3)] {
                for block in &BlockLayout::new(&shape, Shard { rank, ranks: 2 }, tiles).blocks {
                    let (values, generated) = filled(&shape, block, 0..block.padded_len());
                    assert_eq!(generated, random_len(block), "{}", block.name);
                    for parameter in &block.parameters {
                        let full = full_values(parameter);
                        let columns = parameter.full_shape.get(1).copied().unwrap_or(1);
                        let indices = parameter.slices.iter().flat_map(|slice| {
                            let row = move |row: usize| {
                                slice.columns.clone().map(move |column| row * columns + column)
                            };
                            slice.rows.clone().flat_map(row)
                        });
                        let expected: Vec<f64> = indices.map(|index| full[index]).collect();
                        assert_eq!(values[parameter.range()], expected, "{}", parameter.name);
                    }
                }
            }
        }
    }
}
