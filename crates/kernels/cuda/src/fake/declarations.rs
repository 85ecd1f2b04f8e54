//! The kernels that a CUDA source declares: their names and the types of their parameters.

use std::collections::BTreeMap;

/// The type of a parameter. Sizes are not negative, so signs do not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    Pointer,
    Int32,
    Int64,
    F32,
    F64,
}

/// Definitions that a source is compiled with.
pub type Defines = BTreeMap<String, u64>;

/// The parameters of the kernels of a source, by name.
pub fn kernels(source: &str, defines: &Defines) -> BTreeMap<String, Vec<Parameter>> {
    let Preprocessed { macros, text } = preprocess(source, defines);
    let declares_kernels = |definition: &Macro| definition.body.contains("KERNEL");
    let text = expand(&text, &macros, &declares_kernels);
    let declarations =
        text.match_indices("KERNEL ").map(|(at, keyword)| &text[at + keyword.len()..]);
    declarations.map(|rest| declaration(rest, &macros)).collect()
}

/// The name and the parameters after the keyword.
fn declaration(rest: &str, macros: &Macros) -> (String, Vec<Parameter>) {
    let mut rest = rest.trim_start();
    if let Some(bounds) = rest.strip_prefix("__launch_bounds__") {
        rest = bracketed(bounds.trim_start()).1.trim_start();
    }
    let (name, rest) = identifier(rest).unwrap_or_else(|| panic!("a kernel without a name"));
    let (parameters, _) = bracketed(rest.trim_start());
    let parameters = expand(parameters, macros, &|_| true);
    (name.to_owned(), split(&parameters).into_iter().map(parameter).collect())
}

fn parameter(text: &str) -> Parameter {
    if text.contains('*') {
        return Parameter::Pointer;
    }
    let type_name = text.split_whitespace().find(|word| *word != "const");
    match type_name.unwrap_or_default() {
        "int" | "i32" | "u32" => Parameter::Int32,
        "i64" | "u64" => Parameter::Int64,
        "float" | "f32" => Parameter::F32,
        "double" | "f64" => Parameter::F64,
        _ => panic!("unknown type of the parameter {text:?}"),
    }
}

/// A macro; without parameters unless it is function-like.
#[derive(Debug)]
struct Macro {
    parameters: Option<Vec<String>>,
    body: String,
}

type Macros = BTreeMap<String, Macro>;

struct Preprocessed {
    macros: Macros,
    /// Without comments, directives and inactive branches.
    text: String,
}

fn preprocess(source: &str, defines: &Defines) -> Preprocessed {
    let joined = source.replace("\\\n", " ");
    let mut done = Preprocessed { macros: Macros::new(), text: String::new() };
    // Whether each enclosing branch is active.
    let mut branches: Vec<bool> = Vec::new();
    for line in joined.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let (directive, rest) = line.split_once(' ').unwrap_or((line, ""));
        match directive {
            "#if" => branches.push(is_true(rest, defines)),
            "#ifdef" => branches.push(defines.contains_key(rest.trim())),
            "#ifndef" => branches.push(!defines.contains_key(rest.trim())),
            "#else" => {
                let branch = branches.pop().unwrap_or_default();
                branches.push(!branch);
            }
            "#endif" => drop(branches.pop()),
            _ if branches.contains(&false) => {}
            "#define" => done.define(rest),
            _ if directive.starts_with('#') => {}
            _ => {
                done.text.push_str(line);
                done.text.push('\n');
            }
        }
    }
    done
}

/// Whether a condition holds, on CUDA. Conditions inside kernels do not matter.
fn is_true(condition: &str, defines: &Defines) -> bool {
    let condition = condition.trim();
    condition != "ON_HIP" && defines.get(condition).is_none_or(|value| *value != 0)
}

impl Preprocessed {
    fn define(&mut self, definition: &str) {
        let Some((name, rest)) = identifier(definition) else { return };
        let (parameters, body) = match rest.starts_with('(') {
            true => {
                let (parameters, body) = bracketed(rest);
                let names = split(parameters).into_iter().map(|name| name.trim().to_owned());
                (Some(names.collect()), body)
            }
            false => (None, rest),
        };
        let body = body.trim().to_owned();
        self.macros.insert(name.to_owned(), Macro { parameters, body });
    }
}

/// Expands the macros that satisfy a condition.
fn expand(text: &str, macros: &Macros, is_expanded: &dyn Fn(&Macro) -> bool) -> String {
    let (mut to, mut rest) = (String::new(), text);
    while !rest.is_empty() {
        let Some((word, after)) = identifier(rest) else {
            let len = rest.chars().next().map_or(1, char::len_utf8);
            to.push_str(&rest[..len]);
            rest = &rest[len..];
            continue;
        };
        rest = after;
        let definition = macros.get(word).filter(|definition| is_expanded(definition));
        match definition {
            Some(Macro { parameters: None, body }) => to += &expand(body, macros, is_expanded),
            Some(Macro { parameters: Some(names), body }) if rest.trim_start().starts_with('(') => {
                let (arguments, after) = bracketed(rest.trim_start());
                let body = substitute(body, names, &split(arguments));
                to += &expand(&body, macros, is_expanded);
                rest = after;
            }
            _ => to.push_str(word),
        }
    }
    to
}

/// Replaces parameters of a macro by its arguments, and pastes tokens.
fn substitute(body: &str, names: &[String], arguments: &[&str]) -> String {
    let (mut to, mut rest) = (String::new(), body);
    while !rest.is_empty() {
        if let Some(after) = rest.trim_start().strip_prefix("##") {
            to.truncate(to.trim_end().len());
            rest = after.trim_start();
        } else if let Some((word, after)) = identifier(rest) {
            let at = names.iter().position(|name| name == word);
            to.push_str(at.map_or(word, |at| arguments[at].trim()));
            rest = after;
        } else {
            let len = rest.chars().next().map_or(1, char::len_utf8);
            to.push_str(&rest[..len]);
            rest = &rest[len..];
        }
    }
    to
}

/// The identifier or number at the start of a text, and the rest.
fn identifier(text: &str) -> Option<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let len = text.find(|c| !is_part(c)).unwrap_or(text.len());
    (len > 0).then(|| text.split_at(len))
}

/// What is between the bracket at the start of a text and its closing bracket, and the rest.
fn bracketed(text: &str) -> (&str, &str) {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return (&text[1..at], &text[at + 1..]),
            ')' => depth -= 1,
            _ => {}
        }
    }
    panic!("no closing bracket in {text:?}");
}

/// The parts between commas outside of brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use Parameter::{F32, F64, Int32, Int64, Pointer};

    const SOURCE: &str = "
        #define THREADS 256 // of a block
        #define TWO(n) u64 bound##n##0, u64 bound##n##1
        #define BOUNDS TWO(0), TWO(1)
        template <class X> DEVICE void scale(X* x, float by) {}
        #define SCALE(X)                                      \\
            KERNEL __launch_bounds__(THREADS)                 \\
                scale_##X(X* x, const float by, u64 len) {    \\
                scale(x, by);                                 \\
            }
        SCALE(f32)
        SCALE(bf16)
        #ifndef HAS_BIAS
        KERNEL forward(const float2* stats, double, int heads) {}
        #else
        KERNEL __launch_bounds__(THREADS * (1 + 1)) backward(float* to, u32 n, BOUNDS) {}
        #endif
    ";

    #[test]
    fn declarations_are_found_in_macros_and_active_branches() {
        let forward = kernels(SOURCE, &Defines::new());
        let names: Vec<&str> = forward.keys().map(String::as_str).collect();
        assert_eq!(names, ["forward", "scale_bf16", "scale_f32"]);
        assert_eq!(forward["scale_bf16"], [Pointer, F32, Int64]);
        assert_eq!(forward["forward"], [Pointer, F64, Int32]);
        let backward = kernels(SOURCE, &Defines::from([("HAS_BIAS".to_owned(), 0)]));
        assert!(!backward.contains_key("forward"));
        assert_eq!(backward["backward"], [Pointer, Int32, Int64, Int64, Int64, Int64]);
    }
}
