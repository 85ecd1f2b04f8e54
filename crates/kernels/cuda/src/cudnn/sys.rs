//! Functions and constants of cuDNN 9.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;
use regatta_comm::gpu_runtime::{LibraryError, Stream, error_text, symbol};

use crate::library_path;

/// `cudnnHandle_t`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(pub *mut c_void);

/// `cudnnBackendDescriptor_t`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawDescriptor(pub *mut c_void);

/// An address in a variant pack.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address(pub *mut c_void);

/// `CUDNN_STATUS_SUCCESS`.
pub(crate) const SUCCESS: c_int = 0;

/// `cudnnBackendDescriptorType_t`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DescriptorType {
    Pointwise = 0,
    EngineConfig = 3,
    EngineHeuristic = 4,
    ExecutionPlan = 5,
    OperationPointwise = 13,
    OperationGraph = 15,
    VariantPack = 16,
    Tensor = 17,
    Matmul = 18,
    OperationMatmul = 19,
    Reduction = 21,
    OperationReduction = 22,
    OperationReshape = 31,
}

/// `cudnnBackendAttributeName_t`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attribute {
    PointwiseMode = 0,
    PointwiseMathPrecision = 1,
    PointwiseAxis = 9,
    EngineHeuristicMode = 200,
    EngineHeuristicOperationGraph = 201,
    EngineHeuristicResults = 202,
    ExecutionPlanHandle = 400,
    ExecutionPlanEngineConfig = 401,
    ExecutionPlanWorkspaceSize = 402,
    OperationPointwiseDescriptor = 750,
    OperationPointwiseX = 751,
    OperationPointwiseB = 752,
    OperationPointwiseY = 753,
    OperationPointwiseT = 758,
    OperationGraphHandle = 800,
    OperationGraphOperations = 801,
    TensorByteAlignment = 900,
    TensorDataType = 901,
    TensorDimensions = 902,
    TensorStrides = 903,
    TensorUniqueId = 906,
    TensorIsVirtual = 907,
    TensorIsByValue = 908,
    VariantPackUniqueIds = 1000,
    VariantPackDataPointers = 1001,
    VariantPackWorkspace = 1003,
    MatmulComputeType = 1500,
    OperationMatmulA = 1520,
    OperationMatmulB = 1521,
    OperationMatmulC = 1522,
    OperationMatmulDescriptor = 1523,
    ReductionOperator = 1600,
    ReductionComputeType = 1601,
    OperationReductionX = 1610,
    OperationReductionY = 1611,
    OperationReductionDescriptor = 1612,
    OperationReshapeX = 2200,
    OperationReshapeY = 2201,
}

/// `cudnnBackendAttributeType_t`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttributeType {
    Handle = 0,
    DataType = 1,
    Boolean = 2,
    Int64 = 3,
    VoidPointer = 6,
    HeuristicMode = 8,
    PointwiseMode = 14,
    BackendDescriptor = 15,
    ReductionOperator = 18,
}

/// `cudnnDataType_t`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataType {
    Float = 0,
    Int32 = 4,
    Bfloat16 = 9,
    Boolean = 11,
}

/// `cudnnPointwiseMode_t`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PointwiseMode {
    Add = 0,
    Mul = 1,
    Div = 6,
    Sub = 9,
    Exp = 13,
    Log = 15,
    Identity = 21,
    CmpGe = 303,
    GenIndex = 501,
    BinarySelect = 601,
}

/// `cudnnReduceTensorOp_t`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReductionOperator {
    Add = 0,
    Max = 3,
}

/// `cudnnBackendHeurMode_t`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeuristicMode {
    A = 3,
}

/// `cudnnBackendSetAttribute`.
pub(crate) type SetAttribute =
    unsafe extern "C" fn(RawDescriptor, Attribute, AttributeType, i64, *const c_void) -> c_int;

/// `cudnnBackendGetAttribute`.
pub(crate) type GetAttribute = unsafe extern "C" fn(
    RawDescriptor,
    Attribute,
    AttributeType,
    i64,
    *mut i64,
    *mut c_void,
) -> c_int;

/// Functions of the library, named after `cudnn…` and `cudnnBackend…`.
pub(crate) struct Functions {
    pub create: unsafe extern "C" fn(*mut Handle) -> c_int,
    pub destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub set_stream: unsafe extern "C" fn(Handle, Stream) -> c_int,
    pub get_version: unsafe extern "C" fn() -> usize,
    pub get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub create_descriptor: unsafe extern "C" fn(DescriptorType, *mut RawDescriptor) -> c_int,
    pub destroy_descriptor: unsafe extern "C" fn(RawDescriptor) -> c_int,
    pub set_attribute: SetAttribute,
    pub get_attribute: GetAttribute,
    pub finalize: unsafe extern "C" fn(RawDescriptor) -> c_int,
    pub execute: unsafe extern "C" fn(Handle, RawDescriptor, RawDescriptor) -> c_int,
    /// Keeps the library loaded; a fake has none.
    pub _library: Option<Library>,
}

impl Functions {
    /// Loads the library.
    pub fn open() -> Result<Self, LibraryError> {
        let library =
            library_path::open_newest("REGATTA_CUDNN", &["libcudnn.so.9"], "nvidia_cudnn")?;
        macro_rules! load {
            ($name:literal) => {
                symbol(&library, concat!("cudnn", $name), "use cuDNN 9")?
            };
        }
        Ok(Self {
            create: load!("Create"),
            destroy: load!("Destroy"),
            set_stream: load!("SetStream"),
            get_version: load!("GetVersion"),
            get_error_string: load!("GetErrorString"),
            create_descriptor: load!("BackendCreateDescriptor"),
            destroy_descriptor: load!("BackendDestroyDescriptor"),
            set_attribute: load!("BackendSetAttribute"),
            get_attribute: load!("BackendGetAttribute"),
            finalize: load!("BackendFinalize"),
            execute: load!("BackendExecute"),
            _library: Some(library),
        })
    }

    /// The version, such as 91400 for 9.14.0.
    pub fn version(&self) -> usize {
        // SAFETY: the function has no preconditions.
        unsafe { (self.get_version)() }
    }

    /// The message of a status.
    pub fn error_string(&self, status: c_int) -> String {
        // SAFETY: the function accepts any status and returns a static string.
        unsafe { error_text((self.get_error_string)(status), status) }
    }
}
