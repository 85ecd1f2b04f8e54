//! What the kernels do, by the contracts in their sources. Blocks and threads are emulated as far as they
//! determine which elements are processed and which partial sums are written.

mod activation;
mod attention;
mod elementwise;
mod embedding;
mod fp8;
mod linear;
mod loss;
mod norm;
mod optimizer;
mod rope;

use regatta_comm::DType;

use super::array::Array;
use super::launch::Launch;

/// How a kernel is emulated.
pub(crate) struct Emulation {
    pub run: fn(&Launch<'_>),
    /// The dtypes in its name.
    pub dtypes: Vec<DType>,
    /// The number in its name, or 1.
    pub width: usize,
}

/// The emulation of a kernel, if there is one.
pub(crate) fn emulation(source: &str, function: &str) -> Option<Emulation> {
    let (operation, dtypes, width) = parse_name(function);
    let run = match source {
        "activation" => activation::kernel(operation),
        "attention_generic"
        | "attention_mma_forward"
        | "attention_mma_backward"
        | "attention_mfma_forward"
        | "attention_mfma_backward"
        | "attention_prepare"
        | "attention_decode" => attention::kernel(operation),
        "elementwise" => elementwise::kernel(operation),
        "embedding" => embedding::kernel(operation),
        "fp8" => fp8::kernel(operation),
        "fp8_transpose" => fp8::transpose_kernel(operation),
        "linear" => linear::kernel(operation),
        "loss" => loss::kernel(operation),
        "norm" => norm::kernel(operation),
        "norm_generic" => norm::generic_kernel(operation),
        "optimizer" => optimizer::kernel(operation),
        "rope" => rope::kernel(operation),
        _ => None,
    };
    run.map(|run| Emulation { run, dtypes, width })
}

/// A kernel.
type Run = fn(&Launch<'_>);

/// The operation, the dtypes and the vector width of names such as `add_bias_f32_bf16_4`.
fn parse_name(function: &str) -> (&str, Vec<DType>, usize) {
    let (mut rest, mut dtypes, mut width) = (function, Vec::new(), 1);
    if let Some((before, number)) = rest.rsplit_once('_')
        && let Ok(number) = number.parse()
    {
        (rest, width) = (before, number);
    }
    while let Some((before, dtype)) = rest.rsplit_once('_').and_then(|(before, name)| match name {
        "f32" => Some((before, DType::F32)),
        "bf16" => Some((before, DType::Bf16)),
        _ => None,
    }) {
        rest = before;
        dtypes.insert(0, dtype);
    }
    (rest, dtypes, width)
}

/// Elements of a vector of elementwise kernels.
const VECTOR: usize = 8;

/// `FOR_ELEMENTS`: calls a function with the first element and the number of elements of each thread.
fn for_elements(
    launch: &Launch<'_>,
    len: usize,
    vectorised: usize,
    mut process: impl FnMut(usize, usize),
) {
    launch.assert_one_dimension();
    assert!(vectorised.is_multiple_of(VECTOR) && vectorised <= len, "{vectorised} of {len}");
    let vectors = vectorised / VECTOR;
    for thread in 0..launch.blocks[0] * launch.threads {
        if thread < vectors {
            process(thread * VECTOR, VECTOR);
        } else if thread - vectors < len - vectorised {
            process(vectorised + thread - vectors, 1);
        }
    }
}

/// Asserts that vectors at the same index of several tensors may be accessed.
fn assert_vectors(arrays: &[Array], at: usize, count: usize) {
    arrays.iter().for_each(|array| array.assert_vector(at, count));
}

/// A sum with the accuracy of a reduction by many threads.
fn sum(values: impl Iterator<Item = f32>) -> f32 {
    values.map(f64::from).sum::<f64>() as f32
}

/// e^x, as kernels compute it for results of a dtype.
fn exp(x: f32, dtype: DType) -> f32 {
    match dtype {
        DType::Bf16 => (x * std::f32::consts::LOG2_E).exp2(),
        _ => x.exp(),
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The row of a token in the local part of a table.
fn local_row(token: i32, first: usize, table_rows: usize) -> Option<usize> {
    let row = usize::try_from(token).ok()?.checked_sub(first)?;
    (row < table_rows).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_dtypes_and_widths() {
        let (f32, bf16) = (DType::F32, DType::Bf16);
        assert_eq!(parse_name("add_bias_f32_bf16_4"), ("add_bias", vec![f32, bf16], 4));
        assert_eq!(parse_name("add_scalars"), ("add_scalars", vec![], 1));
        assert_eq!(parse_name("fill_f64"), ("fill_f64", vec![], 1));
    }
}
