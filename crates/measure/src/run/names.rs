//! Names of types and reductions, as nccl-tests has them and as our own.

use regatta_comm::{DType, ReduceOp};

/// As nccl-tests calls a type.
pub fn of_dtype(dtype: DType) -> &'static str {
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

/// As nccl-tests calls a reduction.
pub fn of_op(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "sum",
        ReduceOp::Product => "prod",
        ReduceOp::Min => "min",
        ReduceOp::Max => "max",
        ReduceOp::Average => "avg",
    }
}

/// The types that a name means; `all` means all.
pub fn dtypes(name: &str) -> Result<Vec<DType>, String> {
    if name == "all" {
        return Ok(DType::ALL.to_vec());
    }
    let same = |dtype: &DType| of_dtype(*dtype) == name || dtype.name() == name;
    let known = || DType::ALL.map(of_dtype).join(", ");
    match DType::ALL.into_iter().find(same) {
        Some(dtype) => Ok(vec![dtype]),
        None => Err(format!("no type is called {name}; there are {}, and all", known())),
    }
}

/// The reductions that a name means; `all` means all.
pub fn ops(name: &str) -> Result<Vec<ReduceOp>, String> {
    if name == "all" {
        return Ok(ReduceOp::ALL.to_vec());
    }
    let same = |op: &ReduceOp| of_op(*op) == name || op.name() == name;
    let known = || ReduceOp::ALL.map(of_op).join(", ");
    match ReduceOp::ALL.into_iter().find(same) {
        Some(op) => Ok(vec![op]),
        None => Err(format!("no reduction is called {name}; there are {}, and all", known())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_mean_the_same() {
        for dtype in DType::ALL {
            assert_eq!(dtypes(of_dtype(dtype)), dtypes(dtype.name()));
        }
        for op in ReduceOp::ALL {
            assert_eq!(ops(of_op(op)), ops(op.name()));
        }
        assert_eq!(dtypes("all").map(|all| all.len()), Ok(9));
        assert!(dtypes("fp8").unwrap_err().contains("bfloat16"));
        assert!(ops("mulsum").unwrap_err().contains("avg"));
    }
}
