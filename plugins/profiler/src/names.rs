//! NCCL's names of kinds, data types, algorithms and protocols.

use regatta_events::operation::{Algorithm, DataType, Name, OperationKind, Protocol};
use regatta_events::record::Recorder;

use crate::model::Text;

/// The kind of an operation.
pub fn kind(text: Text<'_>, recorder: &Recorder) -> OperationKind {
    match text.unwrap_or_default() {
        b"AllReduce" => OperationKind::AllReduce,
        b"AllGather" => OperationKind::AllGather,
        b"ReduceScatter" => OperationKind::ReduceScatter,
        b"Broadcast" => OperationKind::Broadcast,
        b"Reduce" => OperationKind::Reduce,
        b"Send" => OperationKind::Send,
        b"Recv" => OperationKind::Receive,
        b"AlltoAll" | b"AllToAll" | b"AllToAllPivot" => OperationKind::AllToAll,
        b"Gather" => OperationKind::Gather,
        b"Scatter" => OperationKind::Scatter,
        other => OperationKind::Other(custom(other, recorder)),
    }
}

/// The data type of an operation.
pub fn dtype(text: Text<'_>, recorder: &Recorder) -> DataType {
    match text.unwrap_or_default() {
        b"ncclInt8" => DataType::I8,
        b"ncclUint8" => DataType::U8,
        b"ncclInt32" => DataType::I32,
        b"ncclUint32" => DataType::U32,
        b"ncclInt64" => DataType::I64,
        b"ncclUint64" => DataType::U64,
        b"ncclFloat16" => DataType::F16,
        b"ncclFloat32" => DataType::F32,
        b"ncclFloat64" => DataType::F64,
        b"ncclBfloat16" => DataType::Bf16,
        b"ncclFloat8e4m3" | b"ncclFp8E4M3" => DataType::F8E4M3,
        b"ncclFloat8e5m2" | b"ncclFp8E5M2" => DataType::F8E5M2,
        other => DataType::Other(custom(other, recorder)),
    }
}

/// The algorithm of a collective.
pub fn algorithm(text: Text<'_>, recorder: &Recorder) -> Algorithm {
    match text.unwrap_or_default() {
        b"" | b"Unknown" => Algorithm::None,
        b"RING" => Algorithm::Ring,
        b"TREE" => Algorithm::Tree,
        b"NVLS" => Algorithm::Nvls,
        b"NVLS_TREE" => Algorithm::NvlsTree,
        b"PAT" => Algorithm::Pat,
        b"COLLNET_DIRECT" => Algorithm::CollNetDirect,
        b"COLLNET_CHAIN" => Algorithm::CollNetChain,
        other => Algorithm::Other(custom(other, recorder)),
    }
}

/// The protocol of a collective.
pub fn protocol(text: Text<'_>, recorder: &Recorder) -> Protocol {
    match text.unwrap_or_default() {
        b"" | b"Unknown" => Protocol::None,
        b"SIMPLE" => Protocol::Simple,
        b"LL" => Protocol::Ll,
        b"LL128" => Protocol::Ll128,
        other => Protocol::Other(custom(other, recorder)),
    }
}

/// The code of a name that is not built in.
fn custom(text: &[u8], recorder: &Recorder) -> Name {
    match std::str::from_utf8(text) {
        Ok("") => recorder.name("unknown"),
        Ok(text) => recorder.name(text),
        Err(_) => recorder.name("not UTF-8"),
    }
}
