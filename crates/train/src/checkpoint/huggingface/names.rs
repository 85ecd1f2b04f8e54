//! What our tensors are called in models of Hugging Face, and how they lie there. No I/O.

use regatta_predict::shape::{Family, Parameter, Shape};

/// Where the numbers of one of our tensors are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The tensors that have them, rows of the one behind those of the other.
    pub tensors: Vec<Theirs>,
    /// Whether theirs are inputs by outputs, where ours are outputs by inputs.
    pub transposed: bool,
}

/// One of their tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Theirs {
    /// Its name, without the model's prefix.
    pub name: String,
    /// Its shape there.
    pub shape: Vec<usize>,
}

/// The prefix that most names have in a model with a head. Models without one have none.
pub fn prefix(family: Family) -> &'static str {
    if family == Family::Llama { "model." } else { "transformer." }
}

/// The head's name, which never has the prefix.
pub const HEAD: &str = "lm_head.weight";

/// The text index of vocabulary to width: the tensor by which a model's prefix is found.
pub fn embedding(family: Family) -> &'static str {
    if family == Family::Llama { "embed_tokens.weight" } else { "wte.weight" }
}

/// Where a parameter of ours is found in a model of this shape.
pub fn source(shape: &Shape, parameter: &Parameter) -> Source {
    let name = parameter.name.as_str();
    if name == "head.output" {
        return one(HEAD.to_owned(), &parameter.shape, false);
    }
    match shape.family {
        Family::Llama => llama(shape, parameter),
        Family::Gpt2 | Family::Mlp => gpt2(parameter),
    }
}

fn one(name: String, shape: &[usize], transposed: bool) -> Source {
    let mut shape = shape.to_vec();
    if transposed {
        shape.reverse();
    }
    Source { tensors: vec![Theirs { name, shape }], transposed }
}

/// `layer.3.qkv.weight` in its parts: `3`, `qkv`, `weight`.
fn layer_parts(name: &str) -> Option<(&str, &str, &str)> {
    let (layer, rest) = name.strip_prefix("layer.")?.split_once('.')?;
    let (part, what) = rest.split_once('.')?;
    Some((layer, part, what))
}

fn gpt2(parameter: &Parameter) -> Source {
    let shape = &parameter.shape;
    let Some((layer, part, what)) = layer_parts(&parameter.name) else {
        let theirs = match parameter.name.as_str() {
            "embed.tokens" => "wte.weight".to_owned(),
            "embed.positions" => "wpe.weight".to_owned(),
            other => other.replace("head.norm", "ln_f"),
        };
        return one(theirs, shape, false);
    };
    let theirs = match part {
        "norm1" => "ln_1",
        "qkv" => "attn.c_attn",
        "proj" => "attn.c_proj",
        "norm2" => "ln_2",
        "up" => "mlp.c_fc",
        _ => "mlp.c_proj",
    };
    // Its products are of a kind of convolution, whose matrices are inputs by outputs.
    one(format!("h.{layer}.{theirs}.{what}"), shape, shape.len() == 2)
}

fn llama(shape: &Shape, parameter: &Parameter) -> Source {
    let Some((layer, part, what)) = layer_parts(&parameter.name) else {
        let theirs = match parameter.name.as_str() {
            "embed.tokens" => "embed_tokens.weight".to_owned(),
            other => other.replace("head.norm", "norm"),
        };
        return one(theirs, &parameter.shape, false);
    };
    let head = shape.head_width();
    let (q, kv, f) = (shape.heads * head, shape.kv_heads * head, shape.feed_forward);
    let rows: &[(&str, usize)] = match part {
        "norm1" => &[("input_layernorm", shape.width)],
        "qkv" => &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
        "proj" => &[("self_attn.o_proj", shape.width)],
        "norm2" => &[("post_attention_layernorm", shape.width)],
        "up" => &[("mlp.gate_proj", f), ("mlp.up_proj", f)],
        _ => &[("mlp.down_proj", shape.width)],
    };
    let theirs = |&(theirs, rows): &(&str, usize)| {
        let mut shape = parameter.shape.clone();
        shape[0] = rows;
        Theirs { name: format!("layers.{layer}.{theirs}.{what}"), shape }
    };
    Source { tensors: rows.iter().map(theirs).collect(), transposed: false }
}

/// Whether a tensor of theirs is no parameter but a constant that older versions stored.
pub fn is_constant(name: &str) -> bool {
    let ends = [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"];
    ends.iter().any(|end| name.ends_with(end))
}
