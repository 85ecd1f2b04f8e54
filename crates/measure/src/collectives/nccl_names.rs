//! Names of data types and reductions: nccl-tests' and our own.

use regatta_comm::{DType, ReduceOp};

/// nccl-tests' name of a data type.
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::I8 => "int8",
        DType::U8 => "uint8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::F16 => "half",
        DType::Bf16 => "bfloat16",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// nccl-tests' name of a reduction.
pub fn redop_name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "sum",
        ReduceOp::Product => "prod",
        ReduceOp::Min => "min",
        ReduceOp::Max => "max",
        ReduceOp::Average => "avg",
    }
}

/// Parses a data type; `all` means all types.
pub fn dtypes(name: &str) -> Result<Vec<DType>, String> {
    parse("data type", name, &DType::ALL, |dtype| [dtype_name(dtype), dtype.name()])
}

/// Parses a reduction; `all` means all reductions.
pub fn ops(name: &str) -> Result<Vec<ReduceOp>, String> {
    parse("reduction", name, &ReduceOp::ALL, |op| [redop_name(op), op.name()])
}

/// The values with this name; `names` are nccl-tests' and our own.
fn parse<T: Copy>(
    what: &str,
    name: &str,
    all: &[T],
    names: impl Fn(T) -> [&'static str; 2],
) -> Result<Vec<T>, String> {
    let found = all.iter().copied().find(|value| names(*value).contains(&name));
    let known = || all.iter().map(|value| names(*value)[0]).collect::<Vec<_>>().join(", ");
    match (name, found) {
        ("all", _) => Ok(all.to_vec()),
        (_, Some(value)) => Ok(vec![value]),
        (_, None) => Err(format!("unknown {what} {name}: expected {}, or all", known())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_tests_names_and_own_names_are_equivalent() {
        for dtype in DType::ALL {
            assert_eq!(dtypes(dtype_name(dtype)), dtypes(dtype.name()));
        }
        for op in ReduceOp::ALL {
            assert_eq!(ops(redop_name(op)), ops(op.name()));
        }
        assert_eq!(dtypes("all").map(|all| all.len()), Ok(9));
        assert!(dtypes("fp8").unwrap_err().contains("bfloat16"));
        assert!(ops("mulsum").unwrap_err().contains("avg"));
    }
}
