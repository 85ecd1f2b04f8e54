//! Parameters before training.

use regatta_device::device::Device;
use regatta_device::memory::Tensor;
use regatta_device::random;
use regatta_predict::shape::{Block, Init, Parameter};

/// The width of the distribution that matrices begin with.
const WIDTH: f64 = 0.02;

/// What initial parameters' random numbers are told apart from others by.
const INITIAL: u64 = 0x696e_6974;

/// A block's parameters before training: a function of the seed, so that every rank has the same.
pub fn initial(block: &Block, layers: usize, device: &dyn Device, seed: u64) -> Tensor {
    let mut numbers = vec![0.0; block.room()];
    for parameter in &block.parameters {
        let [number, which] = parameter.key;
        let key = random::key(seed, &[INITIAL, number, which]);
        fill(parameter, layers, key, &mut numbers[parameter.range()]);
    }
    let mut tensor = device.real(block.room());
    device.put(&numbers, tensor.view_mut());
    tensor
}

fn fill(parameter: &Parameter, layers: usize, key: u64, numbers: &mut [f32]) {
    let width = match parameter.init {
        Init::Zero => return,
        Init::One => return numbers.fill(1.0),
        Init::Normal => WIDTH,
        // Each layer adds to the stream twice.
        Init::Residual => WIDTH / (2.0 * layers as f64).sqrt(),
    };
    // By their place in the whole parameter, so that ranks that share it have what one would.
    let columns = parameter.whole.get(1).copied().unwrap_or(1);
    let places = parameter.patches.iter().flat_map(|patch| {
        let row = move |row: usize| patch.columns.clone().map(move |column| row * columns + column);
        patch.rows.clone().flat_map(row)
    });
    for (place, number) in places.zip(numbers) {
        *number = (random::normal(key, place as u64) * width) as f32;
    }
}
