//! Elementwise operations and reductions.

use super::Reference;
use crate::ops::ElementwiseOps;
use crate::random::DropoutMask;
use crate::tensor::{View, ViewMut};

impl ElementwiseOps for Reference {
    fn add(&self, x: View<'_>, y: View<'_>, z: ViewMut<'_>) {
        let (x, y, z) = (x.as_slice::<f64>(), y.as_slice::<f64>(), z.as_slice::<f64>());
        assert_eq!((x.len(), y.len()), (z.len(), z.len()));
        (0..z.len()).for_each(|i| z[i] = x[i] + y[i]);
    }

    fn add_assign(&self, x: View<'_>, y: ViewMut<'_>) {
        let y = y.as_slice::<f64>();
        assert_eq!(x.len(), y.len());
        y.iter_mut().zip(x.as_slice::<f64>()).for_each(|(y, x)| *y += x);
    }

    fn dropout(&self, mask: DropoutMask, x: ViewMut<'_>) {
        let x = x.as_slice::<f64>();
        (0..).zip(x).for_each(|(index, x)| *x *= f64::from(mask.factor(index)));
    }

    fn scale(&self, by: f64, x: ViewMut<'_>) {
        x.as_slice::<f64>().iter_mut().for_each(|x| *x *= by);
    }

    fn sum_of_squares(&self, x: View<'_>, sum: ViewMut<'_>) {
        sum.as_slice::<f64>()[0] += x.as_slice::<f64>().iter().map(|x| x * x).sum::<f64>();
    }
}
