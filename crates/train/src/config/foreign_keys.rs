//! Key names of other trainers and of earlier versions. They are refused with the key to use instead.

use super::{KEYS, Key, KeyHint};

/// `(key, names)`. A name matches the full key or its last component.
const ALIASES: &[(&str, &str)] = &[
    ("model.family", "model_type arch architecture"),
    ("model.num_layers", "layers n_layer n_layers num_hidden_layers depth"),
    ("model.num_heads", "heads n_head n_heads num_attention_heads"),
    ("model.num_kv_heads", "kv_heads n_kv_heads num_key_value_heads num_query_groups"),
    ("model.hidden_size", "width n_embd dim d_model hidden_dim embed_dim"),
    ("model.intermediate_size", "feed_forward n_inner ffn_hidden_size ffn_dim d_ff mlp_dim"),
    ("model.seq_len", "context context_length block_size seq_length sequence_length max_seq_len"),
    ("model.seq_len", "max_position_embeddings n_positions n_ctx"),
    ("model.vocab_size", "vocabulary padded_vocab_size n_vocab"),
    ("model.tie_embeddings", "tied tie_word_embeddings weight_tying"),
    ("model.tie_embeddings", "untie_embeddings_and_output_weights"),
    ("model.bias", "add_bias_linear disable_bias_linear attention_bias mlp_bias"),
    ("model.dropout", "hidden_dropout attention_dropout resid_pdrop attn_pdrop embd_pdrop"),
    ("model.norm_eps", "norm_epsilon layer_norm_epsilon layer_norm_eps rms_norm_eps"),
    ("model.rope_theta", "rope_base rotary_base"),
    ("data.source", "dataset dataset_path data_path train_file"),
    ("data.tokenizer", "tokenizer_path tokenizer_model tokenizer_name"),
    ("data.val_fraction", "validation validation_split val_split"),
    ("train.steps", "max_iters max_steps train_iters total_steps num_steps"),
    ("train.batch", "batch_size global_batch global_batch_size train_batch_size"),
    ("train.batch_per_replica", "batch_per_rank local_batch_size"),
    ("train.micro_batch", "micro_batch_size per_device_train_batch_size"),
    ("train.micro_batch", "train_micro_batch_size_per_gpu"),
    ("train.seed", "random_seed"),
    ("train.precision", "dtype fp16 bf16 mixed_precision torch_dtype"),
    ("train.threads", "num_threads omp_num_threads"),
    ("train.recompute", "gradient_checkpointing activation_checkpointing recompute_activations"),
    ("train.eval_interval", "eval_every eval_steps eval_freq"),
    ("train.eval_batches", "eval_iters max_eval_samples"),
    ("train.log_interval", "log_every log_freq logging_steps"),
    ("optimizer.name", "kind optim optimizer_name optimizer_type"),
    ("optimizer.lr", "rate learning_rate max_lr peak_lr"),
    ("optimizer.min_lr", "minimum_rate min_learning_rate lr_min"),
    ("optimizer.warmup_steps", "warmup warmup_iters lr_warmup_iters num_warmup_steps"),
    ("optimizer.decay_steps", "lr_decay_iters lr_decay_steps num_training_steps"),
    ("optimizer.lr_schedule", "optimizer.schedule lr_scheduler_type lr_decay_style"),
    ("optimizer.lr_schedule", "scheduler decay_lr"),
    ("optimizer.beta1", "adam_beta1"),
    ("optimizer.beta2", "adam_beta2"),
    ("optimizer.eps", "epsilon adam_epsilon adam_eps"),
    ("optimizer.weight_decay", "wd"),
    ("optimizer.momentum", "sgd_momentum"),
    ("optimizer.grad_clip", "clip clip_grad max_norm max_grad_norm gradient_clipping"),
    ("optimizer.lr_scaling", "scale_rate scale_lr"),
    ("checkpoint.interval", "every save_every save_interval save_steps"),
    ("checkpoint.keep_last", "keep keep_latest_k save_total_limit"),
    ("checkpoint.dir", "checkpoint.folder save_dir checkpoint_dir"),
    ("checkpoint.resume", "init_from load_checkpoint resume_from_checkpoint"),
    ("parallel.dp", "data_parallel_size data_parallel_replicate_degree dp_size dp_degree"),
    ("parallel.tp", "tensor_model_parallel_size tensor_parallel_degree tensor_parallel tp_size"),
    ("parallel.cp", "context_parallel_size context_parallel_degree context_parallel cp_size"),
    ("parallel.pp", "pipeline_model_parallel_size pipeline_parallel_degree"),
    ("parallel.pp", "pipeline_parallel pp_size"),
    ("parallel.zero", "zero_stage fsdp use_distributed_optimizer"),
    ("parallel.hsdp_shard", "shard data_parallel_shard_degree hsdp"),
    ("parallel.sequence_parallel", "sequence"),
    ("parallel.schedule", "pipeline_schedule pipeline_parallel_schedule"),
    ("parallel.virtual_stages", "chunks num_model_chunks virtual_pipeline_model_parallel_size"),
    ("offload.optimizer", "offload_optimizer optimizer_cpu_offload"),
    ("offload.parameters", "offload_param offload_params cpu_offload"),
    ("offload.dir", "offload.folder nvme_path"),
    ("metrics.tensorboard", "tensorboard_dir enable_tensorboard"),
];

/// What to use instead of `name`, if it is known from elsewhere or misspelled with dashes or capitals.
pub(super) fn hint_for(name: &str) -> Option<KeyHint> {
    let name = name.trim_start_matches("--").replace('-', "_").to_lowercase();
    let last = name.rsplit('.').next().unwrap_or(&name);
    if last == "gradient_accumulation_steps" {
        let inverse = "accumulation steps = sequences per replica / micro_batch";
        return Some(KeyHint::Text(format!("set train.micro_batch instead ({inverse})")));
    }
    let by_name = |full: &str| KEYS.iter().map(Key::full_name).find(|name| name == full);
    let by_alias = |alias: &str| {
        let is_one = |names: &str| names.split(' ').any(|name| name == alias);
        ALIASES.iter().find(|(_, names)| is_one(names)).and_then(|(full, _)| by_name(full))
    };
    by_name(&name).or_else(|| by_alias(&name)).or_else(|| by_alias(last)).map(KeyHint::Use)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::resolve;

    #[test]
    fn aliases_are_unique_and_name_existing_keys() {
        let mut seen = BTreeSet::new();
        for (full, names) in ALIASES {
            assert!(KEYS.iter().any(|key| key.full_name() == *full), "{full}");
            for name in names.split(' ') {
                assert!(seen.insert(name), "{name} is listed twice");
                let is_key = |key: &Key| key.name == name || key.full_name() == name;
                assert!(!KEYS.iter().any(is_key), "{name} is a key");
            }
        }
    }

    #[test]
    fn every_alias_is_refused_with_the_key_to_use() {
        for (full, names) in ALIASES {
            for name in names.split(' ') {
                let error = resolve(None, &[format!("{name}=1")]).unwrap_err().to_string();
                assert_eq!(error, format!("command line: unknown key {name}: use {full}"));
            }
        }
    }

    #[test]
    fn aliases_match_within_any_section_and_with_dashes() {
        let cases = [
            ("model.n_layer", "use model.num_layers"),
            ("training.batch-size", "use train.batch"),
            ("--learning-rate", "use optimizer.lr"),
            ("optimizer.rate", "use optimizer.lr"),
            ("checkpoint.folder", "use checkpoint.dir"),
            ("offload.folder", "use offload.dir"),
            ("Model.Hidden-Size", "use model.hidden_size"),
            (
                "training.gradient-accumulation-steps",
                "set train.micro_batch instead (accumulation steps = sequences per replica / micro_batch)",
            ),
        ];
        for (name, hint) in cases {
            assert_eq!(hint_for(name).unwrap().to_string(), hint, "{name}");
        }
        assert!(hint_for("nonsense").is_none());
    }
}
