//! How a model embeds texts. The pooling, and linear layers after it, are configured by sentence-transformers'
//! files in a checkpoint, and by `pooling_type` in a GGUF; the default is the mean.

use std::collections::BTreeMap;

use lode_model::gguf::Metadata;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::protocol::{ModelSpec, RunnerError};
use super::small_files::read_json;
use crate::engine::native::ProjectionShape;

/// How the hidden states of a text become one vector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pooling {
    #[default]
    Mean,
    /// The first token, `[CLS]`.
    First,
    Last,
}

/// A linear layer after the pooling, sentence-transformers' `Dense`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Dense {
    /// The folder of its files, such as `2_Dense`.
    pub(super) folder: String,
    pub(super) shape: ProjectionShape,
}

/// Maximum size of all prompts of a model.
const MAX_PROMPT_BYTES: usize = 64 << 10;
/// Maximum number of values in the input or the output of a linear layer.
const MAX_FEATURES: u64 = 1 << 16;

/// The embedding settings of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Embedding {
    pub(super) pooling: Pooling,
    /// The layers of a checkpoint that follow, in their order. Those of a GGUF are among its tensors.
    pub(super) dense: Vec<Dense>,
    /// Texts that precede an input, by name.
    pub(super) prompts: BTreeMap<String, String>,
    /// The name of the prompt for requests that name none.
    pub(super) default_prompt: Option<String>,
    /// Whether the pooling leaves out the tokens of a prompt.
    pub(super) excludes_prompt: bool,
    /// Maximum length of a text with its special tokens, if it is less than the model's context.
    pub(super) max_tokens: Option<usize>,
    /// An unsupported setting of the model; embedding requests fail with it.
    pub(super) refused: Option<String>,
}

impl Embedding {
    /// From sentence-transformers' files.
    pub(super) fn of_checkpoint(spec: &ModelSpec) -> Result<Embedding, RunnerError> {
        let json = |name: &str| read_json(spec, name);
        let mut embedding = Embedding::default();
        if let Some(modules) = json("modules.json")? {
            match read_modules(&modules, json)? {
                Ok(dense) => embedding.dense = dense,
                Err(refused) => embedding.refused = Some(refused),
            }
        }
        if let Some(config) = json("config_sentence_transformers.json")? {
            match read_prompts(&config) {
                Ok(prompts) => (embedding.prompts, embedding.default_prompt) = prompts,
                Err(refused) => embedding.refused = Some(refused),
            }
        }
        if let Some(pooling) = json("1_Pooling/config.json")? {
            embedding.excludes_prompt = pooling.get("include_prompt").is_some_and(|on| *on == false);
            match read_pooling(&pooling) {
                Ok(pooling) => embedding.pooling = pooling,
                Err(refused) => embedding.refused = Some(refused),
            }
        }
        let limit = json("sentence_bert_config.json")?;
        let limit = limit.and_then(|file| file.get("max_seq_length")?.as_u64());
        embedding.max_tokens = limit.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
        Ok(embedding)
    }

    /// The prompt with this name, or the model's default. It precedes each text.
    pub(super) fn prompt(&self, name: Option<&str>) -> Result<&str, String> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok("") };
        match self.prompts.get(name) {
            None if self.prompts.is_empty() => Err(format!("no prompt `{name}`: the model has no prompts")),
            None => {
                let names: Vec<&str> = self.prompts.keys().map(String::as_str).collect();
                Err(format!("no prompt `{name}` (the model has {})", names.join(", ")))
            }
            Some(prompt) => Ok(prompt),
        }
    }

    pub(super) fn of_gguf(metadata: &Metadata) -> Embedding {
        let mut embedding = Embedding::default();
        match metadata.architecture_value("pooling_type").and_then(|value| value.as_u64()) {
            // 0 is no pooling, which does not define an embedding of a whole text, so the mean is used.
            None | Some(0 | 1) => {}
            Some(2) => embedding.pooling = Pooling::First,
            Some(3) => embedding.pooling = Pooling::Last,
            Some(4) => embedding.refused = Some("pooling for ranking".to_owned()),
            Some(other) => embedding.refused = Some(format!("pooling type {other}")),
        }
        embedding
    }
}

/// The layers after the pooling, or what is not supported.
fn read_modules(
    modules: &Value,
    json: impl Fn(&str) -> Result<Option<Value>, RunnerError>,
) -> Result<Result<Vec<Dense>, String>, RunnerError> {
    let (mut dense, mut last) = (Vec::new(), "");
    for module in modules.as_array().into_iter().flatten() {
        let Some(kind) = module.get("type").and_then(Value::as_str) else { continue };
        let kind = kind.rsplit('.').next().unwrap_or_default();
        let is_in_order = match kind {
            "Transformer" => last.is_empty(),
            "Pooling" => last == "Transformer",
            "Dense" | "Normalize" => ["Pooling", "Dense", "Normalize"].contains(&last),
            _ => return Ok(Err(format!("module `{kind}`"))),
        };
        // A vector that is normalised before a linear layer would give another result.
        if !is_in_order || (kind, last) == ("Dense", "Normalize") {
            return Ok(Err(format!("module `{kind}` after `{last}`")));
        }
        if kind == "Dense" {
            let folder = module.get("path").and_then(Value::as_str).unwrap_or_default();
            let name = format!("{folder}/config.json");
            let Some(config) = json(&name)? else {
                return Ok(Err(format!("module `Dense` without the file `{name}`")));
            };
            match read_dense(folder, &config) {
                Ok(layer) => dense.push(layer),
                Err(refused) => return Ok(Err(format!("{refused} in `{name}`"))),
            }
        }
        last = kind;
    }
    Ok(Ok(dense))
}

/// Prompts by name.
type Prompts = BTreeMap<String, String>;

/// The prompts and the name of the default one, or what is not supported.
fn read_prompts(config: &Value) -> Result<(Prompts, Option<String>), String> {
    let fields = config.get("prompts").and_then(Value::as_object);
    let text = |(name, prompt): (&String, &Value)| Some((name.clone(), prompt.as_str()?.to_owned()));
    let prompts: Prompts = fields.into_iter().flatten().filter_map(text).collect();
    let bytes: usize = prompts.iter().map(|(name, prompt)| name.len() + prompt.len()).sum();
    if bytes > MAX_PROMPT_BYTES {
        return Err(format!("{bytes} bytes of prompts, more than {MAX_PROMPT_BYTES},"));
    }
    match config.get("default_prompt_name").and_then(Value::as_str) {
        Some(name) if !prompts.contains_key(name) => Err(format!("the missing default prompt `{name}`")),
        name => Ok((prompts, name.map(str::to_owned))),
    }
}

fn read_dense(folder: &str, config: &Value) -> Result<Dense, String> {
    let features = |field: &str| {
        let number = config.get(field).and_then(Value::as_u64).filter(|n| (1..=MAX_FEATURES).contains(n));
        number.map(|number| number as usize).ok_or_else(|| format!("`{field}` outside 1 to {MAX_FEATURES}"))
    };
    let text = |field: &str| config.get(field).and_then(Value::as_str);
    for field in ["module_input_name", "module_output_name"] {
        if let Some(other) = text(field).filter(|name| *name != "sentence_embedding") {
            return Err(format!("`{field}` `{other}`"));
        }
    }
    if config.get("use_residual").is_some_and(|residual| *residual == true) {
        return Err("`use_residual`".to_owned());
    }
    // Tanh is the default, as in sentence-transformers.
    let activation = text("activation_function").and_then(|name| name.rsplit('.').next());
    let has_tanh = match activation.unwrap_or("Tanh") {
        "Tanh" => true,
        "Identity" => false,
        other => return Err(format!("activation `{other}`")),
    };
    let shape = ProjectionShape {
        in_features: features("in_features")?,
        out_features: features("out_features")?,
        has_bias: config.get("bias").is_none_or(|bias| *bias != false),
        has_tanh,
    };
    Ok(Dense { folder: folder.to_owned(), shape })
}

/// The pooling in either spelling: a field `pooling_mode`, or a flag for each mode.
fn read_pooling(config: &Value) -> Result<Pooling, String> {
    let flags = || {
        let fields = config.as_object().into_iter().flatten();
        let set = fields.filter(|(_, value)| **value == true);
        set.filter_map(|(key, _)| key.strip_prefix("pooling_mode_")).collect()
    };
    let modes: Vec<&str> = match config.get("pooling_mode") {
        Some(Value::String(mode)) => vec![mode],
        Some(Value::Array(modes)) => modes.iter().filter_map(Value::as_str).collect(),
        _ => flags(),
    };
    match modes[..] {
        [] | ["mean" | "mean_tokens"] => Ok(Pooling::Mean),
        ["cls" | "cls_token"] => Ok(Pooling::First),
        ["lasttoken"] => Ok(Pooling::Last),
        [mode] => Err(format!("pooling mode `{mode}`")),
        _ => Err("a combination of pooling modes".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pooling_in_both_spellings() {
        for (config, expect) in [
            (json!({}), Ok(Pooling::Mean)),
            (json!({"pooling_mode": "mean", "include_prompt": true}), Ok(Pooling::Mean)),
            (json!({"pooling_mode": "cls"}), Ok(Pooling::First)),
            (json!({"pooling_mode": ["lasttoken"]}), Ok(Pooling::Last)),
            (json!({"pooling_mode": ["cls", "mean"]}), Err("a combination of pooling modes")),
            (json!({"pooling_mode": "max"}), Err("pooling mode `max`")),
            (json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}), Ok(Pooling::First)),
            (json!({"pooling_mode_mean_tokens": true}), Ok(Pooling::Mean)),
            (json!({"pooling_mode_max_tokens": true}), Err("pooling mode `max_tokens`")),
        ] {
            assert_eq!(read_pooling(&config), expect.map_err(str::to_owned), "{config}");
        }
    }

    #[test]
    fn prompts_by_name() {
        let config = json!({"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"});
        let (prompts, default_prompt) = read_prompts(&config).unwrap();
        let embedding = Embedding { prompts, default_prompt, ..Embedding::default() };
        assert_eq!(embedding.prompt(None), Ok("q: "));
        assert_eq!(embedding.prompt(Some("document")), Ok(""));
        let error = embedding.prompt(Some("x")).unwrap_err();
        assert_eq!(error, "no prompt `x` (the model has document, query)");

        let none = Embedding::default();
        assert_eq!(none.prompt(None), Ok(""));
        assert_eq!(none.prompt(Some("x")).unwrap_err(), "no prompt `x`: the model has no prompts");
        let refused = |config: Value| read_prompts(&config).unwrap_err();
        assert_eq!(refused(json!({"default_prompt_name": "x"})), "the missing default prompt `x`");
        let long = json!({"prompts": {"a": "x".repeat(1 << 16)}});
        assert_eq!(refused(long), "65537 bytes of prompts, more than 65536,");
    }

    /// The layers of modules, each a kind and a folder, whose configuration is in `files`.
    fn modules(list: &[(&str, &str)], files: &Value) -> Result<Vec<Dense>, String> {
        let module = |(kind, path): &(&str, &str)| json!({"type": format!("a.b.{kind}"), "path": path});
        let list = Value::Array(list.iter().map(module).collect());
        let json = |name: &str| Ok(files.get(name).cloned());
        read_modules(&list, json).map_err(|error| error.message).unwrap()
    }

    #[test]
    fn linear_layers_follow_the_pooling() {
        const START: [(&str, &str); 2] = [("Transformer", ""), ("Pooling", "1_Pooling")];
        let plain = json!({"in_features": 4, "out_features": 6, "bias": false,
            "activation_function": "torch.nn.modules.linear.Identity"});
        let files = json!({"2_Dense/config.json": plain,
            "3_Dense/config.json": {"in_features": 6, "out_features": 4}});
        let list = [&START[..], &[("Dense", "2_Dense"), ("Dense", "3_Dense"), ("Normalize", "4")]].concat();
        let dense = |folder: &str, in_features, out_features, has_both| {
            let folder = folder.to_owned();
            let shape = ProjectionShape { in_features, out_features, has_bias: has_both, has_tanh: has_both };
            Dense { folder, shape }
        };
        let expect = vec![dense("2_Dense", 4, 6, false), dense("3_Dense", 6, 4, true)];
        assert_eq!(modules(&list, &files), Ok(expect));

        let one = |change: &dyn Fn(&mut Value)| {
            let mut config = plain.clone();
            change(&mut config);
            let list = [&START[..], &[("Dense", "2_Dense")]].concat();
            modules(&list, &json!({"2_Dense/config.json": config})).unwrap_err()
        };
        let place = "in `2_Dense/config.json`";
        assert_eq!(
            one(&|c| c["in_features"] = json!(0)),
            format!("`in_features` outside 1 to 65536 {place}")
        );
        assert_eq!(one(&|c| c["use_residual"] = json!(true)), format!("`use_residual` {place}"));
        assert_eq!(
            one(&|c| c["activation_function"] = json!("x.GELU")),
            format!("activation `GELU` {place}")
        );
        assert_eq!(
            one(&|c| c["module_input_name"] = json!("token_embeddings")),
            format!("`module_input_name` `token_embeddings` {place}")
        );
        for (list, expect) in [
            (&[("Dense", "2_Dense")][..], "module `Dense` after ``"),
            (&[("Transformer", ""), ("Dense", "2_Dense")], "module `Dense` after `Transformer`"),
            (&[("Transformer", ""), ("CNN", "1_CNN")], "module `CNN`"),
            (
                &[START[0], START[1], ("Normalize", ""), ("Dense", "2_Dense")],
                "module `Dense` after `Normalize`",
            ),
            (&[START[0], START[1], ("Dense", "9")], "module `Dense` without the file `9/config.json`"),
        ] {
            assert_eq!(modules(list, &files), Err(expect.to_owned()));
        }
    }

    #[test]
    fn gguf_pooling() {
        let check = |number: Option<u32>, expect: Pooling, refused: bool| {
            let mut metadata = Metadata::new();
            metadata.set("general.architecture", "bert");
            if let Some(number) = number {
                metadata.set("bert.pooling_type", number);
            }
            let embedding = Embedding::of_gguf(&metadata);
            assert_eq!((embedding.pooling, embedding.refused.is_some()), (expect, refused), "{number:?}");
        };
        check(None, Pooling::Mean, false);
        check(Some(1), Pooling::Mean, false);
        check(Some(2), Pooling::First, false);
        check(Some(3), Pooling::Last, false);
        check(Some(4), Pooling::Mean, true);
    }
}
