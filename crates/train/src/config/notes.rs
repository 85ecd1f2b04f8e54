//! Keys that do nothing here, or more than they say. What contradicts another key is refused; what only
//! comes to nothing on these ranks is said, for the same file may be used on others. No I/O.

use regatta_predict::plan::ParallelPlan;

use super::{Config, Memory, Pipeline};

impl Config {
    /// What is to be said about a configuration that ranks share so.
    pub fn notes(&self, plan: &ParallelPlan) -> Vec<String> {
        let (parallel, offload) = (&self.parallel, &self.offload);
        let is_alone = plan.mesh.shard == 1;
        let parameters_on_disk = offload.parameters == Memory::Disk;
        let mut notes = Vec::new();
        let mut note = |applies: bool, text: &dyn Fn() -> String| {
            notes.extend(applies.then(text));
        };
        for (key, place) in [("optimizer", offload.optimizer), ("parameters", offload.parameters)] {
            note(place == Memory::Host, &|| {
                format!("offload.{key} host does nothing: the device's memory is the host's")
            });
        }
        note(parameters_on_disk && !is_alone && parallel.zero < 3, &|| {
            "parameters on disk are shared among ranks, as by parallel.zero 3".to_owned()
        });
        note(parallel.zero > 0 && is_alone, &|| {
            format!(
                "parallel.zero {} does nothing: no two ranks have the same parameters, or \
                 parallel.shard is 1",
                parallel.zero
            )
        });
        let are_shared = parallel.zero >= 2 && !is_alone;
        note(parallel.tiles > 1 && !are_shared && !parameters_on_disk, &|| {
            format!(
                "parallel.tiles {} save nothing: parameters are whole in memory, and logits are \
                 computed twice; they are not whole with parallel.zero 3 on several ranks, or \
                 offload.parameters disk",
                parallel.tiles
            )
        });
        note(plan.mesh.pp == 1 && parallel.schedule != Pipeline::default(), &|| {
            format!("parallel.schedule {} does nothing: there is one stage", parallel.schedule)
        });
        let any_on_disk = parameters_on_disk || offload.optimizer == Memory::Disk;
        note(!offload.folder.is_empty() && !any_on_disk, &|| {
            "offload.folder does nothing: neither offload.optimizer nor offload.parameters is disk"
                .to_owned()
        });
        notes
    }
}

#[cfg(test)]
mod tests {
    use crate::config::resolve;

    fn notes(words: &str, ranks: usize) -> Vec<String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let config = resolve(None, &words).unwrap().config;
        config.notes(&config.validate(ranks).unwrap())
    }

    #[test]
    fn what_does_nothing_here_is_said() {
        let cases = [
            ("zero=1 offload.parameters=disk", 2, "shared among ranks, as by parallel.zero 3"),
            ("zero=2", 1, "parallel.zero 2 does nothing"),
            ("zero=2 shard=1", 2, "parallel.zero 2 does nothing"),
            ("tp=2 zero=1", 2, "parallel.zero 1 does nothing"),
            ("parallel.schedule=zero-bubble", 2, "zero-bubble does nothing: there is one stage"),
            ("tiles=4", 2, "parallel.tiles 4 save nothing"),
            ("tiles=4 zero=1", 2, "parallel.tiles 4 save nothing"),
            ("offload.optimizer=host", 1, "offload.optimizer host does nothing"),
            ("offload.folder=x", 1, "offload.folder does nothing"),
        ];
        for (words, ranks, part) in cases {
            let notes = notes(words, ranks);
            assert!(notes.len() == 1 && notes[0].contains(part), "{words}: {notes:?}");
        }
        let fine =
            ["", "zero=3 tiles=4", "offload.parameters=disk zero=3 offload.folder=x tiles=2"];
        for words in fine {
            assert_eq!(notes(words, 2), [""; 0], "{words}");
        }
    }
}
