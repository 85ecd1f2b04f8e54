//! GEMMs of linear layers on fp8 operands (e4m3), scaled by row.

use regatta_comm::{DType, enum_names};
use serde::{Deserialize, Serialize};

use super::{
    ActivationOps, CrossEntropyArgs, LinearArgs, LinearShape, LossOps, NormArgs, NormBackwardArgs,
    NormInputGrad, NormOps,
};
use crate::tensor::{View, ViewMut};

/// Data type of the bits of e4m3.
pub const FP8_DTYPE: DType = DType::U8;

/// Data type of scales.
pub const FP8_SCALE_DTYPE: DType = DType::F32;

/// GEMMs whose operands are fp8: forward, and those of the input's gradient. Gradients of weights keep the
/// device's precision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fp8 {
    /// None.
    #[default]
    Off,
    /// Those of the transformer layers.
    Layers,
    /// Those of the transformer layers and of the LM head.
    All,
}

enum_names!(Fp8, "All choices, named as in `train.fp8`.", Off "off", Layers "layers", All "all");

/// Rows of a matrix in fp8: an element is its value times the scale of its row, which is the largest
/// magnitude of the row divided by [`crate::e4m3::MAX`].
#[derive(Debug, Clone, Copy)]
pub struct Fp8Rows<'a> {
    /// Values, of [`FP8_DTYPE`].
    pub values: View<'a>,
    /// One scale per row, of [`FP8_SCALE_DTYPE`].
    pub scales: View<'a>,
}

impl Fp8Rows<'_> {
    /// Elements of a row.
    pub fn columns(&self) -> usize {
        self.values.len() / self.scales.len().max(1)
    }
}

/// Rows in fp8 that are written.
#[derive(Debug)]
pub struct Fp8RowsMut<'a> {
    /// Values, of [`FP8_DTYPE`].
    pub values: ViewMut<'a>,
    /// One scale per row, of [`FP8_SCALE_DTYPE`].
    pub scales: ViewMut<'a>,
}

impl Fp8RowsMut<'_> {
    /// For reading.
    pub fn rows(&self) -> Fp8Rows<'_> {
        Fp8Rows { values: self.values.view(), scales: self.scales.view() }
    }
}

/// GEMMs on fp8 operands, and operations that also write their result in fp8. Only a device whose
/// [`Fp8Ops::fp8`] is not `Off` implements them. A fused operation gives the same result as the operation
/// and [`Fp8Ops::quantize_rows`].
pub trait Fp8Ops: NormOps + ActivationOps + LossOps {
    /// GEMMs that the configuration of the device wants in fp8.
    fn fp8(&self) -> Fp8 {
        Fp8::Off
    }

    /// Whether the device computes a GEMM in fp8, forward and backward.
    fn supports_fp8(&self, _shape: LinearShape) -> bool {
        false
    }

    /// Writes the rows of `x` in fp8. The column sums of `x` are added to `column_sums`.
    fn quantize_rows(&self, _x: View<'_>, _to: Fp8RowsMut<'_>, _column_sums: Option<ViewMut<'_>>) {
        no_fp8()
    }

    /// Writes the columns of `x` as rows in fp8.
    fn quantize_columns(&self, _x: View<'_>, _to: Fp8RowsMut<'_>) {
        no_fp8()
    }

    /// `y = x weightᵀ + bias`. The gradient of the input is that of the weight's columns as rows.
    fn linear_fp8(&self, _args: LinearArgs<'_, Fp8Rows<'_>>) {
        no_fp8()
    }

    /// [`NormOps::add_norm`], with `y` in fp8.
    fn add_norm_fp8(
        &self,
        mut args: NormArgs<'_>,
        delta: View<'_>,
        sum: ViewMut<'_>,
        y_fp8: Fp8RowsMut<'_>,
    ) {
        self.add_norm(NormArgs { y: args.y.reborrow(), ..args }, delta, sum);
        self.quantize_rows(args.y.view(), y_fp8, None);
    }

    /// [`NormOps::norm_backward`], with the copy of the input's gradient in fp8, or with the gradient itself
    /// if there is no copy.
    fn norm_backward_fp8(&self, args: NormBackwardArgs<'_>, dx_fp8: Fp8RowsMut<'_>) {
        let NormInputGrad { mut dx, mut copy, column_sums } = args.input_grad;
        let input_grad = NormInputGrad {
            dx: dx.reborrow(),
            copy: copy.as_mut().map(ViewMut::reborrow),
            column_sums,
        };
        self.norm_backward(NormBackwardArgs { input_grad, ..args });
        let operand = copy.as_ref().map_or(dx.view(), ViewMut::view);
        self.quantize_rows(operand, dx_fp8, None);
    }

    /// [`ActivationOps::gelu`], with `y` in fp8.
    fn gelu_fp8(&self, x: ViewMut<'_>, mut y: ViewMut<'_>, y_fp8: Fp8RowsMut<'_>) {
        self.gelu(x, y.reborrow());
        self.quantize_rows(y.view(), y_fp8, None);
    }

    /// [`ActivationOps::gelu_backward`], with the result in fp8.
    fn gelu_backward_fp8(
        &self,
        saved: View<'_>,
        mut dy: ViewMut<'_>,
        dbias: Option<ViewMut<'_>>,
        dy_fp8: Fp8RowsMut<'_>,
    ) {
        self.gelu_backward(saved, dy.reborrow(), dbias);
        self.quantize_rows(dy.view(), dy_fp8, None);
    }

    /// [`LossOps::cross_entropy`] with a gradient, which is also written in fp8.
    fn cross_entropy_fp8(&self, mut args: CrossEntropyArgs<'_>, dlogits_fp8: Fp8RowsMut<'_>) {
        self.cross_entropy(CrossEntropyArgs { logits: args.logits.reborrow(), ..args });
        self.quantize_rows(args.logits.view(), dlogits_fp8, None);
    }
}

fn no_fp8() -> ! {
    panic!("the device has no GEMMs on fp8 operands")
}
