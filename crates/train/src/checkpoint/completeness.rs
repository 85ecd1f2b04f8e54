//! Which tensors a checkpoint must have: those of its model shape, with optimizer state unless the model was
//! imported.

use super::error::CheckpointError;
use super::reader::Checkpoint;
use super::shard::{StateTensor, TensorSlice, key};

impl Checkpoint {
    /// Errors of tensors that are missing or have another shape than in the model.
    pub(super) fn missing_tensors(&self) -> Vec<CheckpointError> {
        self.required_kinds().iter().flat_map(|kind| self.missing_of_kind(*kind)).collect()
    }

    /// Errors of the tensors of one kind. The declared shape is not trusted: nothing of its size is allocated.
    pub fn missing_of_kind(&self, kind: StateTensor) -> Vec<CheckpointError> {
        let shape = &self.meta().shape;
        let folder = || self.folder().to_owned();
        if shape.num_layers > self.manifest().tensors.len() {
            let tensor = format!("{kind}s of {} layers", shape.num_layers);
            return vec![CheckpointError::NoTensor { folder: folder(), tensor }];
        }
        let blocks = shape.blocks();
        let parameters = blocks.iter().flat_map(|block| &block.parameters);
        let missing = parameters.filter_map(|parameter| {
            let tensor = key(kind, &parameter.name, &TensorSlice::Whole);
            let folder = folder();
            match self.shape(&parameter.name, kind) {
                None => Some(CheckpointError::NoTensor { folder, tensor }),
                Some(stored) if stored != parameter.full_shape => {
                    let expected = &parameter.full_shape;
                    let why = format!("has shape {stored:?} instead of {expected:?}");
                    Some(CheckpointError::Tensor { folder, tensor, why })
                }
                Some(_) => None,
            }
        });
        missing.collect()
    }

    /// Training saves optimizer state with its configuration; an imported model has neither.
    fn required_kinds(&self) -> &'static [StateTensor] {
        let is_moment = |kind: StateTensor| kind != StateTensor::Parameter;
        let has_moments = self.manifest().tensors.iter().any(|tensor| is_moment(tensor.kind));
        match has_moments || !self.meta().config.is_empty() {
            true => &StateTensor::ALL,
            false => &[StateTensor::Parameter],
        }
    }
}
