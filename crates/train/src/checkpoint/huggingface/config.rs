//! Reads and writes the `config.json` of Hugging Face models. No I/O.

use serde_json::{Map, Value, json};

use regatta_predict::shape::{Family, ModelShape};

/// Maximum size; keeps products from overflowing.
const MAX_SIZE: u64 = 1 << 24;
/// Maximum number of layers.
const MAX_LAYERS: u64 = 1 << 12;

/// Parses the model shape. Unsupported settings are refused by their key.
pub fn parse(text: &str) -> Result<ModelShape, String> {
    let all: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| format!("is not a model configuration: {error}"))?;
    let keys = Keys(&all);
    keys.refuse("quantization_config", &[])?;
    let shape = match keys.text("model_type")? {
        "gpt2" => gpt2(&keys)?,
        "llama" => llama(&keys)?,
        other => {
            return Err(format!("has model_type {other:?}; only gpt2 and llama are supported"));
        }
    };
    shape.check()?;
    Ok(shape)
}

fn gpt2(keys: &Keys) -> Result<ModelShape, String> {
    keys.refuse("activation_function", &[json!("gelu_new"), json!("gelu_pytorch_tanh")])?;
    keys.refuse("scale_attn_weights", &[json!(true)])?;
    keys.refuse("scale_attn_by_inverse_layer_idx", &[json!(false)])?;
    keys.refuse("add_cross_attention", &[json!(false)])?;
    let hidden_size = keys.size("n_embd", None)?;
    let num_heads = keys.size("n_head", None)?;
    Ok(ModelShape {
        family: Family::Gpt2,
        vocab_size: keys.size("vocab_size", None)?,
        seq_len: keys.size("n_positions", None)?,
        hidden_size,
        num_layers: keys.count("n_layer", None, MAX_LAYERS)?,
        num_heads,
        num_kv_heads: num_heads,
        intermediate_size: keys.size("n_inner", Some(4 * hidden_size))?,
        tie_embeddings: keys.truth("tie_word_embeddings", true)?,
        bias: true,
        norm_eps: keys.number("layer_norm_epsilon", 1e-5)?,
        rope_theta: 10000.0,
    })
}

fn llama(keys: &Keys) -> Result<ModelShape, String> {
    keys.refuse("hidden_act", &[json!("silu")])?;
    keys.refuse("attention_bias", &[json!(false)])?;
    keys.refuse("mlp_bias", &[json!(false)])?;
    keys.refuse("rope_scaling", &[])?;
    keys.refuse("partial_rotary_factor", &[json!(1.0)])?;
    keys.refuse("use_sliding_window", &[json!(false)])?;
    if !matches!(keys.get("use_sliding_window"), Some(Value::Bool(false))) {
        keys.refuse("sliding_window", &[])?;
    }
    let hidden_size = keys.size("hidden_size", None)?;
    let num_heads = keys.size("num_attention_heads", None)?;
    let default = hidden_size.checked_div(num_heads).unwrap_or_default();
    let head = keys.size("head_dim", Some(default))?;
    if head * num_heads != hidden_size {
        return Err(format!(
            "has head_dim {head}; only hidden_size / num_attention_heads = {default} is supported"
        ));
    }
    Ok(ModelShape {
        family: Family::Llama,
        vocab_size: keys.size("vocab_size", None)?,
        seq_len: keys.size("max_position_embeddings", None)?,
        hidden_size,
        num_layers: keys.count("num_hidden_layers", None, MAX_LAYERS)?,
        num_heads,
        num_kv_heads: keys.size("num_key_value_heads", Some(num_heads))?,
        intermediate_size: keys.size("intermediate_size", None)?,
        tie_embeddings: keys.truth("tie_word_embeddings", false)?,
        bias: false,
        norm_eps: keys.number("rms_norm_eps", 1e-6)?,
        rope_theta: rope_base(keys)?,
    })
}

/// Newer files have it in `rope_parameters`, with the scaling.
fn rope_base(keys: &Keys) -> Result<f64, String> {
    let Some(parameters) = keys.get("rope_parameters") else {
        return keys.number("rope_theta", 10000.0);
    };
    let Value::Object(parameters) = parameters else {
        return Err("has invalid rope_parameters".to_owned());
    };
    let inner = Keys(parameters);
    inner.refuse("rope_type", &[json!("default")])?;
    inner.refuse("partial_rotary_factor", &[json!(1.0)])?;
    let outer = keys.number("rope_theta", 10000.0)?;
    inner.number("rope_theta", outer)
}

/// The keys of an untrusted file.
struct Keys<'a>(&'a Map<String, Value>);

impl<'a> Keys<'a> {
    /// The value of a key; null counts as absent.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// Fails unless the key is absent or has one of these values.
    fn refuse(&self, key: &str, but: &[Value]) -> Result<(), String> {
        match self.get(key) {
            Some(value) if !but.contains(value) => {
                Err(format!("has {key} {}, which is not supported", short(value)))
            }
            _ => Ok(()),
        }
    }

    fn text(&self, key: &str) -> Result<&'a str, String> {
        let value = self.get(key).ok_or_else(|| missing(key))?;
        value.as_str().ok_or_else(|| format!("has {key} {}, expected a string", short(value)))
    }

    fn size(&self, key: &str, absent: Option<usize>) -> Result<usize, String> {
        self.count(key, absent, MAX_SIZE)
    }

    fn count(&self, key: &str, absent: Option<usize>, max: u64) -> Result<usize, String> {
        let Some(value) = self.get(key) else {
            return absent.ok_or_else(|| missing(key));
        };
        let wrong = || format!("has {key} {}, expected an integer in [1, {max}]", short(value));
        value.as_u64().filter(|size| *size <= max).map(|size| size as usize).ok_or_else(wrong)
    }

    fn truth(&self, key: &str, absent: bool) -> Result<bool, String> {
        let Some(value) = self.get(key) else { return Ok(absent) };
        value.as_bool().ok_or_else(|| format!("has {key} {}, expected true or false", short(value)))
    }

    fn number(&self, key: &str, absent: f64) -> Result<f64, String> {
        let Some(value) = self.get(key) else { return Ok(absent) };
        let good = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        good.ok_or_else(|| format!("has {key} {}, expected a number > 0", short(value)))
    }
}

fn missing(key: &str) -> String {
    format!("has no {key}: expected the config.json that `save_pretrained` of transformers writes")
}

/// A value, truncated for messages.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The `config.json` of a model, or why it has none.
pub fn to_text(shape: &ModelShape) -> Result<String, String> {
    let config = match shape.family {
        Family::Mlp => return Err("transformers has no model of family mlp".to_owned()),
        Family::Gpt2 if shape.num_kv_heads != shape.num_heads => {
            let what = "no grouped-query attention (model.num_kv_heads)";
            return Err(format!("GPT-2 in transformers has {what}"));
        }
        Family::Llama if shape.bias => {
            return Err("Llama in transformers has no norm biases (model.bias)".to_owned());
        }
        Family::Gpt2 => gpt2_config(shape),
        Family::Llama => llama_config(shape),
    };
    Ok(format!("{config:#}\n"))
}

fn gpt2_config(shape: &ModelShape) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": shape.vocab_size,
        "n_positions": shape.seq_len,
        "n_embd": shape.hidden_size,
        "n_layer": shape.num_layers,
        "n_head": shape.num_heads,
        "n_inner": shape.intermediate_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": shape.norm_eps,
        "tie_word_embeddings": shape.tie_embeddings,
        // The original token ids may be outside of this vocabulary.
        "bos_token_id": null,
        "eos_token_id": null,
        "torch_dtype": "float32",
    })
}

fn llama_config(shape: &ModelShape) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.seq_len,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": shape.tie_embeddings,
        "bos_token_id": null,
        "eos_token_id": null,
        "torch_dtype": "float32",
    })
}
