//! Interprets graphs of operations in f64.

use std::collections::{BTreeMap, HashMap};

use half::bf16;

use super::super::graph::Dims;
use super::super::sys::{Attribute, DataType, DescriptorType, PointwiseMode, ReductionOperator};
use super::fake_cudnn::FakeDescriptor;

type Descriptors = BTreeMap<usize, FakeDescriptor>;

/// A tensor: where its elements are in memory, and their values in row-major order.
struct Tensor {
    dims: Dims,
    strides: Dims,
    values: Vec<f64>,
}

impl Tensor {
    fn indices(dims: Dims) -> impl Iterator<Item = Dims> {
        let [a, b, c, d] = dims;
        (0..a * b * c * d).map(move |i| [i / d / c / b, i / d / c % b, i / d % c, i % d])
    }

    fn offset(&self, index: Dims) -> i64 {
        index.iter().zip(self.strides).map(|(i, stride)| i * stride).sum()
    }

    /// An element. Dimensions of size 1, and heads that are shared, are broadcast.
    fn at(&self, index: Dims, of: Dims) -> f64 {
        let [a, b, c, d] = self.dims;
        let mut index = index;
        for axis in 0..4 {
            let sharing = of[axis] / self.dims[axis];
            index[axis] = if self.dims[axis] == 1 { 0 } else { index[axis] / sharing.max(1) };
        }
        let [i, j, k, l] = index;
        assert!(i < a && j < b && k < c && l < d, "{index:?} is out of bounds of {:?}", self.dims);
        self.values[(((i * b + j) * c + k) * d + l) as usize]
    }
}

/// Runs a graph. `memory` has addresses by the identifiers of tensors.
pub fn run(descriptors: &Descriptors, graph: &FakeDescriptor, memory: &HashMap<i64, usize>) {
    let mut tensors: HashMap<usize, Tensor> = HashMap::new();
    for operation in graph.addresses(Attribute::OperationGraphOperations) {
        let operation = &descriptors[operation];
        let (inputs, output) = operands(operation);
        for input in inputs.iter().flatten() {
            let load = || load(&descriptors[input], memory);
            tensors.entry(*input).or_insert_with(load);
        }
        let inputs: Vec<Option<&Tensor>> =
            inputs.iter().map(|input| input.map(|input| &tensors[&input])).collect();
        let (dims, strides) = (dims(&descriptors[&output]), strides(&descriptors[&output]));
        let values = evaluate(descriptors, operation, &inputs, dims, strides);
        let result = Tensor { dims, strides, values };
        store(&descriptors[&output], &result, memory);
        tensors.insert(output, result);
    }
}

/// Inputs and output of an operation.
fn operands(operation: &FakeDescriptor) -> ([Option<usize>; 3], usize) {
    use Attribute as A;
    let optional = |name| operation.has(name).then(|| operation.addresses(name)[0]);
    let one = |name| operation.addresses(name)[0];
    match operation.kind {
        DescriptorType::OperationPointwise => (
            [A::OperationPointwiseX, A::OperationPointwiseB, A::OperationPointwiseT].map(optional),
            one(A::OperationPointwiseY),
        ),
        DescriptorType::OperationMatmul => (
            [optional(A::OperationMatmulA), optional(A::OperationMatmulB), None],
            one(A::OperationMatmulC),
        ),
        DescriptorType::OperationReduction => {
            ([optional(A::OperationReductionX), None, None], one(A::OperationReductionY))
        }
        DescriptorType::OperationReshape => {
            ([optional(A::OperationReshapeX), None, None], one(A::OperationReshapeY))
        }
        kind => panic!("{kind:?} is not an operation"),
    }
}

fn evaluate(
    descriptors: &Descriptors,
    operation: &FakeDescriptor,
    inputs: &[Option<&Tensor>],
    dims: Dims,
    strides: Dims,
) -> Vec<f64> {
    let part = |name| &descriptors[&operation.addresses(name)[0]];
    let [Some(x), b, t] = *inputs else { panic!("an operation without input") };
    match operation.kind {
        DescriptorType::OperationPointwise => {
            pointwise(part(Attribute::OperationPointwiseDescriptor), x, b, t, dims)
        }
        DescriptorType::OperationMatmul => {
            let Some(b) = b else { panic!("a product of one matrix") };
            matmul(x, b, dims)
        }
        DescriptorType::OperationReduction => {
            reduce(part(Attribute::OperationReductionDescriptor), x, dims)
        }
        _ => {
            let by_offset: HashMap<i64, f64> = Tensor::indices(x.dims)
                .map(|index| (x.offset(index), x.at(index, x.dims)))
                .collect();
            let y = Tensor { dims, strides, values: Vec::new() };
            Tensor::indices(dims).map(|index| by_offset[&y.offset(index)]).collect()
        }
    }
}

fn pointwise(
    descriptor: &FakeDescriptor,
    x: &Tensor,
    b: Option<&Tensor>,
    t: Option<&Tensor>,
    dims: Dims,
) -> Vec<f64> {
    let mode = descriptor.integers(Attribute::PointwiseMode)[0];
    let element = |index: Dims| {
        let a = x.at(index, dims);
        let b = || b.map_or(f64::NAN, |b| b.at(index, dims));
        let is = |wanted: PointwiseMode| mode == wanted as i64;
        match () {
            () if is(PointwiseMode::Add) => a + b(),
            () if is(PointwiseMode::Sub) => a - b(),
            () if is(PointwiseMode::Mul) => a * b(),
            () if is(PointwiseMode::Div) => a / b(),
            () if is(PointwiseMode::Exp) => a.exp(),
            () if is(PointwiseMode::Log) => a.ln(),
            () if is(PointwiseMode::Identity) => a,
            () if is(PointwiseMode::CmpGe) => f64::from(u8::from(a >= b())),
            () if is(PointwiseMode::GenIndex) => {
                index[descriptor.integers(Attribute::PointwiseAxis)[0] as usize] as f64
            }
            () if is(PointwiseMode::BinarySelect) => {
                let is_first = t.is_some_and(|t| t.at(index, dims) != 0.0);
                if is_first { a } else { b() }
            }
            () => panic!("unknown mode {mode}"),
        }
    };
    Tensor::indices(dims).map(element).collect()
}

fn matmul(a: &Tensor, b: &Tensor, dims: Dims) -> Vec<f64> {
    let [_, _, rows, columns] = dims;
    let inner = a.dims[3];
    assert_eq!((a.dims[2], b.dims[2], b.dims[3]), (rows, inner, columns), "sizes of a product");
    let (of_a, of_b) = ([dims[0], dims[1], rows, inner], [dims[0], dims[1], inner, columns]);
    let element = |[i, j, row, column]: Dims| -> f64 {
        let product = |k| a.at([i, j, row, k], of_a) * b.at([i, j, k, column], of_b);
        (0..inner).map(product).sum()
    };
    Tensor::indices(dims).map(element).collect()
}

fn reduce(descriptor: &FakeDescriptor, x: &Tensor, dims: Dims) -> Vec<f64> {
    let is_max =
        descriptor.integers(Attribute::ReductionOperator)[0] == ReductionOperator::Max as i64;
    let start = if is_max { f64::NEG_INFINITY } else { 0.0 };
    let mut values = vec![start; dims.iter().product::<i64>() as usize];
    for index in Tensor::indices(x.dims) {
        let shared = [0, 1, 2, 3].map(|axis| index[axis] * dims[axis] / x.dims[axis]);
        let [i, j, k, l] = shared;
        let value = &mut values[(((i * dims[1] + j) * dims[2] + k) * dims[3] + l) as usize];
        let element = x.at(index, x.dims);
        *value = if is_max { value.max(element) } else { *value + element };
    }
    values
}

fn dims(descriptor: &FakeDescriptor) -> Dims {
    descriptor.integers(Attribute::TensorDimensions).try_into().unwrap()
}

fn strides(descriptor: &FakeDescriptor) -> Dims {
    descriptor.integers(Attribute::TensorStrides).try_into().unwrap()
}

/// The memory of a tensor, if it has any.
fn address(descriptor: &FakeDescriptor, memory: &HashMap<i64, usize>) -> Option<usize> {
    let is_virtual = descriptor.integers(Attribute::TensorIsVirtual)[0] == 1;
    (!is_virtual).then(|| memory[&descriptor.integers(Attribute::TensorUniqueId)[0]])
}

fn load(descriptor: &FakeDescriptor, memory: &HashMap<i64, usize>) -> Tensor {
    let mut tensor =
        Tensor { dims: dims(descriptor), strides: strides(descriptor), values: Vec::new() };
    let start = address(descriptor, memory).expect("a virtual tensor is used before its operation");
    let is_bf16 = descriptor.integers(Attribute::TensorDataType)[0] == DataType::Bfloat16 as i64;
    // SAFETY: the tests pass memory of the size of each tensor.
    let element = |at: i64| unsafe {
        match is_bf16 {
            true => (start as *const bf16).offset(at as isize).read().to_f64(),
            false => f64::from((start as *const f32).offset(at as isize).read()),
        }
    };
    tensor.values = Tensor::indices(tensor.dims).map(|i| element(tensor.offset(i))).collect();
    tensor
}

fn store(descriptor: &FakeDescriptor, tensor: &Tensor, memory: &HashMap<i64, usize>) {
    let Some(start) = address(descriptor, memory) else { return };
    let is_bf16 = descriptor.integers(Attribute::TensorDataType)[0] == DataType::Bfloat16 as i64;
    for (index, value) in Tensor::indices(tensor.dims).zip(&tensor.values) {
        let at = tensor.offset(index) as isize;
        // SAFETY: as above.
        unsafe {
            match is_bf16 {
                true => (start as *mut bf16).offset(at).write(bf16::from_f64(*value)),
                false => (start as *mut f32).offset(at).write(*value as f32),
            }
        }
    }
}
