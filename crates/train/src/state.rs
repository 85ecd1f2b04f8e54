//! What training changes: parameters, their gradients, and what the optimizer remembers, a tensor a
//! block each.

use crate::device::Device;
use crate::memory::Tensor;
use crate::model::Model;
use crate::random;
use crate::shape::{Block, Init, Parameter};

/// The width of the distribution that matrices begin with.
const WIDTH: f64 = 0.02;

/// What initial parameters' random numbers are told apart from others by.
const INITIAL: u64 = 0x696e_6974;

/// The state of a training, all blocks of it.
#[derive(Debug)]
pub struct State {
    /// Parameters of each block.
    pub parameters: Vec<Tensor>,
    /// Their gradients; `None` while they are on their way between ranks.
    pub gradients: Vec<Option<Tensor>>,
    /// Two moments of gradients each: the mean, or momentum, and the mean of squares.
    pub moments: Vec<[Tensor; 2]>,
}

impl State {
    /// Parameters as they are before training; gradients in the memory that `gradients` gives.
    pub fn new(
        model: &Model,
        device: &dyn Device,
        seed: u64,
        gradients: impl Fn(usize) -> Tensor,
    ) -> Self {
        let layers = model.shape.layers;
        let numbered = model.blocks.iter().enumerate();
        let initial = |(number, block)| initial(block, number, layers, device, seed);
        let moments = |block: &Block| [(); 2].map(|()| device.real(block.room()));
        Self {
            parameters: numbered.map(initial).collect(),
            gradients: model.blocks.iter().map(|block| Some(gradients(block.room()))).collect(),
            moments: model.blocks.iter().map(moments).collect(),
        }
    }
}

/// A block's parameters before training: a function of the seed, so that every rank has the same.
pub fn initial(
    block: &Block,
    number: usize,
    layers: usize,
    device: &dyn Device,
    seed: u64,
) -> Tensor {
    let mut numbers = vec![0.0; block.room()];
    for (which, parameter) in block.parameters.iter().enumerate() {
        let key = random::key(seed, &[INITIAL, number as u64, which as u64]);
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
    for (index, number) in (0..).zip(numbers) {
        *number = (random::normal(key, index) * width) as f32;
    }
}
