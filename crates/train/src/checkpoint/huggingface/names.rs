//! Names and layouts of our tensors in Hugging Face models. No I/O.

use regatta_predict::shape::{Family, ModelShape, ParamSpec};

/// The tensors that one of ours is stored in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HfSource {
    /// Their rows are concatenated.
    pub tensors: Vec<HfTensor>,
    /// Whether they are [in, out] instead of [out, in].
    pub transposed: bool,
}

/// A tensor of a Hugging Face model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HfTensor {
    /// Name, without the model prefix.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
}

/// Prefix of most names in models with a head.
pub fn prefix(family: Family) -> &'static str {
    if family == Family::Llama { "model." } else { "transformer." }
}

/// Name of the head, which has no prefix.
pub const HEAD: &str = "lm_head.weight";

/// Name of the token embedding, by which the prefix is detected.
pub fn embedding(family: Family) -> &'static str {
    if family == Family::Llama { "embed_tokens.weight" } else { "wte.weight" }
}

/// Where a parameter is stored.
pub fn source(shape: &ModelShape, parameter: &ParamSpec) -> HfSource {
    let name = parameter.name.as_str();
    if name == "head.output" {
        return one(HEAD.to_owned(), &parameter.shape, false);
    }
    match shape.family {
        Family::Llama => llama(shape, parameter),
        Family::Gpt2 | Family::Mlp => gpt2(parameter),
    }
}

fn one(name: String, shape: &[usize], transposed: bool) -> HfSource {
    let mut shape = shape.to_vec();
    if transposed {
        shape.reverse();
    }
    HfSource { tensors: vec![HfTensor { name, shape }], transposed }
}

/// Splits `layer.3.qkv.weight` into `3`, `qkv`, `weight`.
fn layer_parts(name: &str) -> Option<(&str, &str, &str)> {
    let (layer, rest) = name.strip_prefix("layer.")?.split_once('.')?;
    let (part, what) = rest.split_once('.')?;
    Some((layer, part, what))
}

fn gpt2(parameter: &ParamSpec) -> HfSource {
    let shape = &parameter.shape;
    let Some((layer, part, what)) = layer_parts(&parameter.name) else {
        let hf_name = match parameter.name.as_str() {
            "embed.tokens" => "wte.weight".to_owned(),
            "embed.positions" => "wpe.weight".to_owned(),
            other => other.replace("head.norm", "ln_f"),
        };
        return one(hf_name, shape, false);
    };
    let hf_name = match part {
        "norm1" => "ln_1",
        "qkv" => "attn.c_attn",
        "proj" => "attn.c_proj",
        "norm2" => "ln_2",
        "up" => "mlp.c_fc",
        _ => "mlp.c_proj",
    };
    // Conv1D in GPT-2 stores [in, out] matrices.
    one(format!("h.{layer}.{hf_name}.{what}"), shape, shape.len() == 2)
}

fn llama(shape: &ModelShape, parameter: &ParamSpec) -> HfSource {
    let Some((layer, part, what)) = layer_parts(&parameter.name) else {
        let hf_name = match parameter.name.as_str() {
            "embed.tokens" => "embed_tokens.weight".to_owned(),
            other => other.replace("head.norm", "norm"),
        };
        return one(hf_name, &parameter.shape, false);
    };
    let head = shape.head_dim();
    let (q, kv, f) = (shape.num_heads * head, shape.num_kv_heads * head, shape.intermediate_size);
    let rows: &[(&str, usize)] = match part {
        "norm1" => &[("input_layernorm", shape.hidden_size)],
        "qkv" => &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
        "proj" => &[("self_attn.o_proj", shape.hidden_size)],
        "norm2" => &[("post_attention_layernorm", shape.hidden_size)],
        "up" => &[("mlp.gate_proj", f), ("mlp.up_proj", f)],
        _ => &[("mlp.down_proj", shape.hidden_size)],
    };
    let hf_name = |&(hf_name, rows): &(&str, usize)| {
        let mut shape = parameter.shape.clone();
        shape[0] = rows;
        HfTensor { name: format!("layers.{layer}.{hf_name}.{what}"), shape }
    };
    HfSource { tensors: rows.iter().map(hf_name).collect(), transposed: false }
}

/// Whether a tensor is a buffer that older versions stored.
pub fn is_constant(name: &str) -> bool {
    let ends = [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"];
    ends.iter().any(|end| name.ends_with(end))
}
