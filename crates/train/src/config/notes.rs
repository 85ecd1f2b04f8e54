//! Notes about keys that have no effect, or a different one, on these ranks. They are not errors because
//! the same file may be used on other ranks. No I/O.

use regatta_predict::layout::ParallelLayout;

use super::{Config, DeviceKind, ScheduleKind};
use crate::offload::Tier;

impl Config {
    /// Notes to print before the start.
    pub fn notes(&self, plan: &ParallelLayout) -> Vec<String> {
        let (parallel, offload) = (&self.parallel, &self.offload);
        let is_unsharded = plan.mesh.shard == 1;
        let parameters_offloaded = plan.offload.params.is_offloaded();
        let mut notes = Vec::new();
        let mut note = |applies: bool, text: &dyn Fn() -> String| {
            notes.extend(applies.then(text));
        };
        for (key, target) in [("optimizer", offload.optimizer), ("parameters", offload.parameters)]
        {
            let is_gpu = self.train.device == Some(DeviceKind::Gpu);
            note(target == Tier::Host && !is_gpu, &|| {
                format!(
                    "offload.{key} host has no effect: the device is the CPU and uses host memory"
                )
            });
        }
        note(parameters_offloaded && !is_unsharded && parallel.zero < 3, &|| {
            format!("offload.parameters {} implies parallel.zero 3", offload.parameters)
        });
        note(parallel.zero > 0 && is_unsharded, &|| {
            let cause = match plan.mesh.data_ranks() {
                1 => "parallel.dp x parallel.cp is 1",
                _ => "parallel.hsdp_shard is 1",
            };
            format!("parallel.zero {} has no effect: {cause}", parallel.zero)
        });
        let is_sharded = parallel.zero >= 2 && !is_unsharded;
        note(parallel.tiles > 1 && !is_sharded && !parameters_offloaded, &|| {
            format!(
                "parallel.tiles {} saves no memory and computes logits twice: parameters are not \
                 sharded; use it with parallel.zero 3 on several ranks or offload.parameters",
                parallel.tiles
            )
        });
        note(plan.mesh.pp == 1 && parallel.schedule != ScheduleKind::default(), &|| {
            format!("parallel.schedule {} has no effect with parallel.pp 1", parallel.schedule)
        });
        note(self.train.cuda_graph == Some(true) && self.communicates_in_passes(plan), &|| {
            "train.cuda_graph has no effect: every pass communicates or reads offloaded parameters, and \
             such passes run without graphs"
                .to_owned()
        });
        let any_on_disk = [offload.parameters, offload.optimizer].contains(&Tier::Disk);
        note(!offload.dir.is_empty() && !any_on_disk, &|| {
            "offload.dir has no effect: neither offload.optimizer nor offload.parameters is disk"
                .to_owned()
        });
        notes
    }

    /// Whether every pass of a step communicates, or waits for the disk.
    fn communicates_in_passes(&self, plan: &ParallelLayout) -> bool {
        let mesh = &plan.mesh;
        let is_sharded = plan.zero >= 2 && mesh.shard > 1;
        let is_model_parallel = mesh.tp > 1 || mesh.cp > 1 || mesh.pp > 1;
        // The last micro-batch reduces gradients.
        let always_reduces = mesh.data_ranks() > 1 && plan.micro_batches == 1;
        let is_offloaded = self.offload.parameters != Tier::Device;
        is_model_parallel || is_sharded || always_reduces || is_offloaded
    }
}

#[cfg(test)]
mod tests {
    use crate::config::resolve;

    fn notes(args: &str, ranks: usize) -> Vec<String> {
        let args: Vec<&str> = args.split_whitespace().collect();
        let config = resolve(None, &args).unwrap().config;
        config.notes(&config.validate(ranks).unwrap())
    }

    #[test]
    fn keys_without_effect_are_noted() {
        let implied = "offload.parameters disk implies parallel.zero 3";
        let cases = [
            ("zero=1 offload.parameters=disk", 2, implied),
            ("zero=2", 1, "parallel.zero 2 has no effect"),
            ("zero=2 hsdp_shard=1", 2, "has no effect: parallel.hsdp_shard is 1"),
            ("tp=2 zero=1", 2, "has no effect: parallel.dp x parallel.cp is 1"),
            ("parallel.schedule=zero-bubble", 2, "zero-bubble has no effect with parallel.pp 1"),
            ("tiles=4", 2, "parallel.tiles 4 saves no memory"),
            ("tiles=4 zero=1", 2, "parallel.tiles 4 saves no memory"),
            ("offload.optimizer=host", 1, "offload.optimizer host has no effect"),
            (
                "zero=2 offload.parameters=host train.device=gpu",
                2,
                "offload.parameters host implies parallel.zero 3",
            ),
            ("offload.dir=x", 1, "offload.dir has no effect"),
            ("cuda_graph=true tp=2", 2, "train.cuda_graph has no effect: every pass"),
            ("cuda_graph=true zero=2 micro_batch=1", 2, "train.cuda_graph has no effect"),
            ("cuda_graph=true", 2, "train.cuda_graph has no effect: every pass communicates"),
        ];
        for (args, ranks, part) in cases {
            let notes = notes(args, ranks);
            assert!(notes.len() == 1 && notes[0].contains(part), "{args}: {notes:?}");
        }
        let fine = [
            "",
            "zero=3 tiles=4",
            "offload.parameters=disk zero=3 offload.dir=x tiles=2",
            "offload.optimizer=host train.device=gpu",
        ];
        for args in fine {
            assert_eq!(notes(args, 2), [""; 0], "{args}");
        }
        for (args, ranks) in [("cuda_graph=true", 1), ("cuda_graph=true micro_batch=1", 2)] {
            assert_eq!(notes(args, ranks), [""; 0], "{args}");
        }
    }
}
