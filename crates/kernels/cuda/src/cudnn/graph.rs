//! Builds graphs of operations.

use std::sync::Arc;

use super::descriptor::{CudnnError, Descriptor};
use super::sys::{
    Attribute, DataType, DescriptorType, Functions, PointwiseMode, RawDescriptor, ReductionOperator,
};

/// Sizes, or strides in elements, of a tensor of four dimensions: sequences, heads, rows and columns.
pub(crate) type Dims = [i64; 4];

/// Alignment that tensors must have, in bytes.
const ALIGNMENT: i64 = 16;

/// The first identifier of a tensor without memory of its own.
const FIRST_VIRTUAL_ID: i64 = 1000;

/// The elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TensorShape {
    pub dtype: DataType,
    pub dims: Dims,
    pub strides: Dims,
}

impl TensorShape {
    /// With another data type.
    pub fn of(self, dtype: DataType) -> Self {
        Self { dtype, ..self }
    }

    /// With rows and columns swapped.
    pub fn transposed(self) -> Self {
        let swapped = |[b, h, rows, columns]: Dims| [b, h, columns, rows];
        Self { dims: swapped(self.dims), strides: swapped(self.strides), ..self }
    }
}

/// A tensor of a graph.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GraphTensor {
    raw: RawDescriptor,
    shape: TensorShape,
}

/// Where the elements of a tensor are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Storage {
    Memory,
    Virtual,
    /// One number in host memory, copied when the graph is executed.
    Value,
}

/// A graph of operations on tensors.
pub(crate) struct Graph {
    functions: Arc<Functions>,
    next_id: i64,
    pub operations: Vec<RawDescriptor>,
    /// Everything that the operations refer to.
    pub descriptors: Vec<Descriptor>,
    /// Numbers by the identifiers of their tensors.
    pub scalars: Vec<(i64, f32)>,
}

impl Graph {
    pub fn new(functions: &Arc<Functions>) -> Self {
        Self {
            functions: functions.clone(),
            next_id: FIRST_VIRTUAL_ID,
            operations: Vec::new(),
            descriptors: Vec::new(),
            scalars: Vec::new(),
        }
    }

    /// An input or output, which is bound to memory by its identifier.
    pub fn tensor(&mut self, id: i64, shape: TensorShape) -> Result<GraphTensor, CudnnError> {
        self.add_tensor(id, shape, Storage::Memory)
    }

    /// An intermediate result.
    pub fn intermediate(&mut self, shape: TensorShape) -> Result<GraphTensor, CudnnError> {
        let id = self.new_id();
        self.add_tensor(id, shape, Storage::Virtual)
    }

    /// A number.
    pub fn scalar(&mut self, value: f32) -> Result<GraphTensor, CudnnError> {
        let id = self.new_id();
        self.scalars.push((id, value));
        let shape = TensorShape { dtype: DataType::Float, dims: [1; 4], strides: [1; 4] };
        self.add_tensor(id, shape, Storage::Value)
    }

    /// `y = mode(x, b)` in f32, elementwise with broadcasting, as an intermediate result.
    pub fn pointwise(
        &mut self,
        mode: PointwiseMode,
        x: GraphTensor,
        b: Option<GraphTensor>,
    ) -> Result<GraphTensor, CudnnError> {
        let y = self.intermediate(x.shape.of(DataType::Float))?;
        self.pointwise_into(mode, x, b, y)?;
        Ok(y)
    }

    /// `y = mode(x, b)` in f32.
    pub fn pointwise_into(
        &mut self,
        mode: PointwiseMode,
        x: GraphTensor,
        b: Option<GraphTensor>,
        y: GraphTensor,
    ) -> Result<(), CudnnError> {
        self.add_pointwise(mode, DataType::Float, None, [Some(x), b, None], y)
    }

    /// `c = a b`, accumulated in f32.
    pub fn matmul(
        &mut self,
        a: GraphTensor,
        b: GraphTensor,
        c: GraphTensor,
    ) -> Result<(), CudnnError> {
        let matmul = self.descriptor(DescriptorType::Matmul)?;
        let matmul = matmul.set(Attribute::MatmulComputeType, &[DataType::Float])?;
        let matmul = self.add(matmul)?;
        let operation = self
            .descriptor(DescriptorType::OperationMatmul)?
            .set(Attribute::OperationMatmulA, &[a.raw])?
            .set(Attribute::OperationMatmulB, &[b.raw])?
            .set(Attribute::OperationMatmulC, &[c.raw])?
            .set(Attribute::OperationMatmulDescriptor, &[matmul])?;
        self.add_operation(operation)
    }

    /// Reduces the dimensions of `x` in which `y` has size 1, or heads that share one of `y`.
    pub fn reduce(
        &mut self,
        operator: ReductionOperator,
        x: GraphTensor,
        y: GraphTensor,
    ) -> Result<(), CudnnError> {
        let reduction = self
            .descriptor(DescriptorType::Reduction)?
            .set(Attribute::ReductionOperator, &[operator])?
            .set(Attribute::ReductionComputeType, &[DataType::Float])?;
        let reduction = self.add(reduction)?;
        let operation = self
            .descriptor(DescriptorType::OperationReduction)?
            .set(Attribute::OperationReductionX, &[x.raw])?
            .set(Attribute::OperationReductionY, &[y.raw])?
            .set(Attribute::OperationReductionDescriptor, &[reduction])?;
        self.add_operation(operation)
    }

    /// The elements of `x` with the sizes and strides of `y`.
    pub fn reshape(&mut self, x: GraphTensor, y: GraphTensor) -> Result<(), CudnnError> {
        let operation = self
            .descriptor(DescriptorType::OperationReshape)?
            .set(Attribute::OperationReshapeX, &[x.raw])?
            .set(Attribute::OperationReshapeY, &[y.raw])?;
        self.add_operation(operation)
    }

    /// Scores in which keys after the query are replaced.
    pub fn causal_mask(
        &mut self,
        scores: GraphTensor,
        masked: f32,
    ) -> Result<GraphTensor, CudnnError> {
        let shape = scores.shape;
        let mut index = |axis| {
            let index = self.intermediate(shape.of(DataType::Int32))?;
            let (mode, inputs) = (PointwiseMode::GenIndex, [Some(scores), None, None]);
            self.add_pointwise(mode, DataType::Float, Some(axis), inputs, index)?;
            Ok(index)
        };
        let (query, key) = (index(2)?, index(3)?);
        let visible = self.intermediate(shape.of(DataType::Boolean))?;
        let (mode, inputs) = (PointwiseMode::CmpGe, [Some(query), Some(key), None]);
        self.add_pointwise(mode, DataType::Boolean, None, inputs, visible)?;
        let masked = self.scalar(masked)?;
        let y = self.intermediate(shape.of(DataType::Float))?;
        let inputs = [Some(scores), Some(masked), Some(visible)];
        self.add_pointwise(PointwiseMode::BinarySelect, DataType::Float, None, inputs, y)?;
        Ok(y)
    }

    fn add_pointwise(
        &mut self,
        mode: PointwiseMode,
        precision: DataType,
        axis: Option<i64>,
        [x, b, t]: [Option<GraphTensor>; 3],
        y: GraphTensor,
    ) -> Result<(), CudnnError> {
        let pointwise = self
            .descriptor(DescriptorType::Pointwise)?
            .set(Attribute::PointwiseMode, &[mode])?
            .set(Attribute::PointwiseMathPrecision, &[precision])?
            .set_optional(Attribute::PointwiseAxis, axis)?;
        let pointwise = self.add(pointwise)?;
        let operation = self
            .descriptor(DescriptorType::OperationPointwise)?
            .set(Attribute::OperationPointwiseDescriptor, &[pointwise])?
            .set_optional(Attribute::OperationPointwiseX, x.map(|x| x.raw))?
            .set_optional(Attribute::OperationPointwiseB, b.map(|b| b.raw))?
            .set_optional(Attribute::OperationPointwiseT, t.map(|t| t.raw))?
            .set(Attribute::OperationPointwiseY, &[y.raw])?;
        self.add_operation(operation)
    }

    fn add_tensor(
        &mut self,
        id: i64,
        shape: TensorShape,
        storage: Storage,
    ) -> Result<GraphTensor, CudnnError> {
        let tensor = self
            .descriptor(DescriptorType::Tensor)?
            .set(Attribute::TensorDataType, &[shape.dtype])?
            .set(Attribute::TensorDimensions, &shape.dims)?
            .set(Attribute::TensorStrides, &shape.strides)?
            .set(Attribute::TensorUniqueId, &[id])?
            .set(Attribute::TensorByteAlignment, &[ALIGNMENT])?
            .set(Attribute::TensorIsVirtual, &[storage == Storage::Virtual])?;
        let by_value = (storage == Storage::Value).then_some(true);
        let raw = self.add(tensor.set_optional(Attribute::TensorIsByValue, by_value)?)?;
        Ok(GraphTensor { raw, shape })
    }

    fn new_id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id
    }

    fn descriptor(&self, kind: DescriptorType) -> Result<Descriptor, CudnnError> {
        Descriptor::new(&self.functions, kind)
    }

    /// Finalises a descriptor and keeps it.
    fn add(&mut self, descriptor: Descriptor) -> Result<RawDescriptor, CudnnError> {
        let descriptor = descriptor.finalize()?;
        let raw = descriptor.raw();
        self.descriptors.push(descriptor);
        Ok(raw)
    }

    fn add_operation(&mut self, operation: Descriptor) -> Result<(), CudnnError> {
        let raw = self.add(operation)?;
        self.operations.push(raw);
        Ok(())
    }
}
