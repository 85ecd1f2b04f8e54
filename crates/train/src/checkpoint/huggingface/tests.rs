//! Import and export of `transformers` models.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use proptest::prelude::*;
use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use super::super::header;
use super::*;
use crate::checkpoint::CheckpointError;
use crate::data::Tokenizer;
use crate::testing::TempDir;
use regatta_predict::shape::{Family, ModelShape};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/huggingface").join(name)
}

/// Name, shape and elements.
type Tensor = (String, Vec<usize>, Vec<f32>);

/// The tensors of a file.
fn read_tensors(file: &Path) -> Vec<Tensor> {
    let bytes = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let elements = |data: &[u8]| {
        data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let mut all: Vec<_> = tensors
        .iter()
        .map(|(name, view)| (name.to_owned(), view.shape().to_vec(), elements(view.data())))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn write(file: &Path, tensors: &[Tensor], dtype: Dtype) {
    let (mut infos, mut data) = (Vec::new(), Vec::new());
    for (name, shape, elements) in tensors {
        let start = data.len();
        for element in elements {
            match dtype {
                Dtype::F16 => data.extend(f16::from_f32(*element).to_le_bytes()),
                Dtype::BF16 => data.extend(bf16::from_f32(*element).to_le_bytes()),
                _ => data.extend(element.to_le_bytes()),
            }
        }
        let (shape, data_offsets) = (shape.clone(), (start, data.len()));
        infos.push((name.clone(), TensorInfo { dtype, shape, data_offsets }));
    }
    let mut bytes = header::write(None, infos).unwrap();
    bytes.extend(data);
    std::fs::write(file, bytes).unwrap();
}

fn find(imported: &Imported, name: &str) -> Vec<f32> {
    let all = imported.parameters();
    imported.read(all.iter().find(|p| p.name == name).unwrap()).unwrap()
}

#[test]
fn gpt2_is_imported() {
    let model = import(&fixture("gpt2")).unwrap();
    let shape = &model.shape;
    assert_eq!((shape.family, shape.tie_embeddings, shape.bias), (Family::Gpt2, true, true));
    assert_eq!((shape.hidden_size, shape.intermediate_size, shape.seq_len), (32, 128, 24));
    let tensors = read_tensors(&fixture("gpt2/model.safetensors"));
    let of = |name: &str| &tensors.iter().find(|t| t.0 == name).unwrap().2;
    let (ours, original) =
        (find(&model, "layer.1.qkv.weight"), of("transformer.h.1.attn.c_attn.weight"));
    for (out, input) in [(0, 0), (1, 0), (0, 1), (95, 31), (40, 7)] {
        assert_eq!(ours[out * 32 + input], original[input * 96 + out]);
    }
    assert_eq!(&find(&model, "layer.0.down.bias"), of("transformer.h.0.mlp.c_proj.bias"));
    assert_eq!(&find(&model, "embed.positions"), of("transformer.wpe.weight"));
    assert_eq!(&find(&model, "head.norm.weight"), of("transformer.ln_f.weight"));
}

#[test]
fn llama_is_imported() {
    let model = import(&fixture("llama")).unwrap();
    let shape = &model.shape;
    assert_eq!((shape.family, shape.tie_embeddings, shape.bias), (Family::Llama, false, false));
    assert_eq!((shape.num_kv_heads, shape.intermediate_size, shape.rope_theta), (2, 48, 10000.0));
    let tensors = read_tensors(&fixture("llama/model.safetensors"));
    let of = |name: &str| tensors.iter().find(|t| t.0 == name).unwrap().2.clone();
    let layer = "model.layers.1";
    let up = ["gate", "up"].map(|p| of(&format!("{layer}.mlp.{p}_proj.weight"))).concat();
    assert_eq!(find(&model, "layer.1.up.weight"), up);
    let qkv = ["q", "k", "v"].map(|p| of(&format!("{layer}.self_attn.{p}_proj.weight"))).concat();
    assert_eq!(find(&model, "layer.1.qkv.weight"), qkv);
    assert_eq!(find(&model, "head.output"), of("lm_head.weight"));
}

#[test]
fn import_and_export_round_trip_bit_exactly() {
    for name in ["gpt2", "llama"] {
        let (model, scratch) = (import(&fixture(name)).unwrap(), TempDir::new());
        let mut give = |name: &str| Ok(find(&model, name));
        export(&scratch.0, &model.shape, &mut give, None, false).unwrap();
        let written = scratch.0.join("model.safetensors");
        assert_eq!(read_tensors(&written), read_tensors(&fixture(name).join("model.safetensors")));
        assert_eq!(import(&scratch.0).unwrap().shape, model.shape);
        let left: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }
}

#[test]
fn half_precision_sharded_unprefixed_models_with_buffers_are_imported() {
    let scratch = TempDir::new();
    let mut all = read_tensors(&fixture("gpt2/model.safetensors"));
    for tensor in &mut all {
        tensor.0 = tensor.0.replace("transformer.", "");
    }
    all.push(("h.0.attn.masked_bias".to_owned(), vec![1], vec![-1e4]));
    std::fs::copy(fixture("gpt2/config.json"), scratch.0.join("config.json")).unwrap();
    let (first, second) = all.split_at(9);
    write(&scratch.0.join("a.safetensors"), first, Dtype::BF16);
    write(&scratch.0.join("b.safetensors"), second, Dtype::F16);
    let of = |part: &[Tensor], file: &str| -> Vec<(String, Value)> {
        part.iter().map(|tensor| (tensor.0.clone(), json!(file))).collect()
    };
    let map = [of(first, "a.safetensors"), of(second, "b.safetensors")].concat();
    let map: serde_json::Map<String, Value> = map.into_iter().collect();
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    std::fs::write(scratch.0.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let (model, original) = (import(&scratch.0).unwrap(), import(&fixture("gpt2")).unwrap());
    for parameter in original.parameters() {
        let (half, single) = (model.read(&parameter).unwrap(), original.read(&parameter).unwrap());
        assert_ne!(half, single, "{}", parameter.name);
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= b.abs() / 256.0 + 1e-6;
        assert!(half.iter().zip(&single).all(near), "{}", parameter.name);
    }
}

/// The error for the fixture with changed tensors.
fn import_error(change: impl FnOnce(&mut Vec<Tensor>)) -> String {
    let scratch = TempDir::new();
    let mut all = read_tensors(&fixture("llama/model.safetensors"));
    change(&mut all);
    std::fs::copy(fixture("llama/config.json"), scratch.0.join("config.json")).unwrap();
    write(&scratch.0.join("model.safetensors"), &all, Dtype::F32);
    let checked = import(&scratch.0)
        .and_then(|model| model.parameters().iter().try_for_each(|p| model.read(p).map(drop)));
    checked.unwrap_err().to_string()
}

#[test]
fn missing_wrong_and_unexpected_tensors_are_named() {
    let q = "model.layers.0.self_attn.q_proj";
    let missing = import_error(|all| all.retain(|t| t.0 != format!("{q}.weight")));
    assert!(missing.contains(&format!("{q}.weight is missing")), "{missing}");
    let bias = (format!("{q}.bias"), vec![1], vec![0.0]);
    let many = import_error(|all| all.push(bias));
    assert!(many.contains(&format!("{q}.bias is unexpected")), "{many}");
    let shape = import_error(|all| {
        let (_, shape, _) = all.iter_mut().find(|t| t.1.len() == 2).unwrap();
        shape.reverse();
    });
    assert!(shape.contains("config.json implies"), "{shape}");
    let nan = import_error(|all| all[0].2[3] = f32::NAN);
    assert!(nan.contains("NaN or infinity"), "{nan}");
}

#[test]
fn damaged_and_missing_files_are_named() {
    let scratch = TempDir::new();
    let config = scratch.0.join("config.json");
    assert!(import(&scratch.0).unwrap_err().to_string().contains("config.json"));
    std::fs::copy(fixture("llama/config.json"), &config).unwrap();
    assert!(import(&scratch.0).unwrap_err().to_string().contains("neither model.safetensors"));
    let bytes = std::fs::read(fixture("llama/model.safetensors")).unwrap();
    for (length, expected) in
        [(bytes.len() - 1, "truncated"), (100, "damaged"), (3, "cannot be read")]
    {
        std::fs::write(scratch.0.join("model.safetensors"), &bytes[..length]).unwrap();
        let error = import(&scratch.0).unwrap_err().to_string();
        let is_named = error.contains("model.safetensors") && error.contains(expected);
        assert!(is_named, "{length}: {error}");
    }
}

#[test]
fn unsupported_settings_are_refused_by_key() {
    let text = |name: &str| std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
    let cases = [
        ("llama", "rope_scaling", json!({ "rope_type": "llama3", "factor": 8.0 })),
        ("llama", "hidden_act", json!("gelu")),
        ("llama", "attention_bias", json!(true)),
        ("llama", "mlp_bias", json!(true)),
        ("llama", "sliding_window", json!(4096)),
        ("llama", "head_dim", json!(16)),
        ("llama", "rope_parameters", json!({ "rope_type": "yarn" })),
        ("llama", "hidden_size", json!(1u64 << 60)),
        ("llama", "num_key_value_heads", json!(3)),
        ("llama", "quantization_config", json!({ "bits": 4 })),
        ("llama", "rms_norm_eps", json!("small")),
        ("gpt2", "activation_function", json!("relu")),
        ("gpt2", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("gpt2", "model_type", json!("qwen2")),
        ("gpt2", "n_layer", json!(-2)),
        ("gpt2", "n_layer", Value::Null),
        ("gpt2", "model_type", Value::Null),
    ];
    for (name, key, value) in cases {
        assert!(config::parse(&text(name)).is_ok());
        let mut all: Value = serde_json::from_str(&text(name)).unwrap();
        let is_missing = value.is_null();
        all[key] = value;
        let error = config::parse(&all.to_string()).unwrap_err();
        assert_eq!(
            is_missing,
            error.contains(": expected the config.json that `save_pretrained` of")
        );
        let ours =
            key.replace("num_key_value_heads", "kv_heads").replace("rope_parameters", "rope_type");
        assert!(error.contains(&ours), "{key}: {error}");
    }
}

#[test]
fn unsupported_models_are_not_exported() {
    let shape = import(&fixture("gpt2")).unwrap().shape;
    let cases = [
        (ModelShape { family: Family::Mlp, ..shape.clone() }, "mlp"),
        (ModelShape { num_kv_heads: 2, ..shape.clone() }, "kv_heads"),
        (ModelShape { family: Family::Llama, ..shape.clone() }, "bias"),
    ];
    for (shape, expected) in cases {
        let error = config::to_text(&shape).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn gpt2_without_biases_is_exported_with_zeros() {
    let scratch = TempDir::new();
    let gpt2 = import(&fixture("gpt2")).unwrap().shape;
    let shape = ModelShape { bias: false, tie_embeddings: false, ..gpt2 };
    let parameters: Vec<_> = shape.blocks().into_iter().flat_map(|b| b.parameters).collect();
    let mut give = |name: &str| {
        let parameter = parameters.iter().find(|p| p.name == name).expect("it is ours");
        Ok(vec![1.0; parameter.len()])
    };
    export(&scratch.0, &shape, &mut give, None, false).unwrap();
    let model = import(&scratch.0).unwrap();
    assert_eq!(model.shape, ModelShape { bias: true, ..shape });
    assert!(find(&model, "layer.1.up.bias").iter().all(|element| *element == 0.0));
    assert!(find(&model, "head.output").iter().all(|element| *element == 1.0));
}

#[test]
fn an_index_cannot_leave_its_folder() {
    for file in ["../a.safetensors", "/etc/passwd", "a.bin", ""] {
        let index = json!({ "weight_map": { "a": file } }).to_string();
        assert!(import::parse_index(&index).is_err(), "{file}");
    }
    let index = json!({ "weight_map": { "a": "x.safetensors", "b": "x.safetensors" } }).to_string();
    assert_eq!(import::parse_index(&index).unwrap(), ["x.safetensors"]);
}

proptest! {
    #[test]
    fn transposing_twice_is_the_identity(rows in 1usize..20, columns in 1usize..20) {
        let elements: Vec<f32> = (0..rows * columns).map(|n| n as f32).collect();
        let transposed = export::transpose(&elements, rows, columns);
        prop_assert_eq!(transposed.get(1).copied(), elements.get(if rows > 1 { columns } else { 1 }).copied());
        prop_assert_eq!(export::transpose(&transposed, columns, rows), elements);
    }
}

#[test]
fn special_files_are_refused_without_blocking() {
    let scratch = TempDir::in_memory();
    let config = scratch.fifo("config.json");
    let error = import(&scratch.0).unwrap_err().to_string();
    assert!(error.contains("config.json: it is a FIFO, not a regular file"), "{error}");
    std::fs::remove_file(&config).unwrap();
    std::fs::copy(fixture("gpt2").join("config.json"), &config).unwrap();
    scratch.fifo("model.safetensors");
    let error = import(&scratch.0).unwrap_err().to_string();
    assert!(error.contains("model.safetensors: it is a FIFO, not a regular file"), "{error}");
}

#[test]
fn failed_export_leaves_no_folder() {
    let shape = import(&fixture("gpt2")).unwrap().shape;
    let scratch = TempDir::in_memory();
    let mut fail = |_: &str| Err(CheckpointError::Shape { why: "no data".to_owned() });
    export(&scratch.0.join("model"), &shape, &mut fail, None, false).unwrap_err();
    assert_eq!(scratch.names(), Vec::<String>::new());
}

#[test]
fn exports_overwrite_neither_files_nor_run_folders() {
    let shape = import(&fixture("gpt2")).unwrap().shape;
    let tokenizer = Tokenizer::from_characters("ab".chars());
    let export_to = |folder: &Path, overwrite| {
        let mut zeros = |name: &str| {
            let mut all = shape.blocks().into_iter().flat_map(|block| block.parameters);
            let parameter = all.find(|parameter| parameter.name == name);
            Ok(vec![0.0; parameter.map_or(0, |parameter| parameter.len())])
        };
        export(folder, &shape, &mut zeros, Some(&tokenizer), overwrite)
    };
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let scratch = TempDir::in_memory();
        let path = scratch.file(file, "mine");
        let error = export_to(&scratch.0, false).unwrap_err().to_string();
        assert!(
            error.ends_with(&format!(
                "{file} already exists: choose another folder, or overwrite it with --force"
            )),
            "{error}"
        );
        assert_eq!(
            (scratch.names(), std::fs::read(&path).unwrap()),
            (vec![file.to_owned()], b"mine".to_vec())
        );
        export_to(&scratch.0, true).unwrap();
        assert_ne!(std::fs::read(&path).unwrap(), b"mine");
    }
    for name in ["config.toml", "checkpoints", "metrics.jsonl", "checkpoint.json", "step-00000001"]
    {
        let scratch = TempDir::in_memory();
        std::fs::create_dir(scratch.0.join(name)).unwrap();
        let error = export_to(&scratch.0, true).unwrap_err();
        assert!(matches!(error, CheckpointError::RunFolder { .. }), "{error}");
    }
}
