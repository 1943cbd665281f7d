//! `lode tokenize NAME [TEXT]`: converts a text, or standard input, to token ids and back, for any architecture and
//! without a worker.

use std::io::Read;

use lode_model::{manifest::Manifest, recognise::ModelFile};
use lode_worker::text::{Tokenizer, TokenizerError, gguf};
use serde_json::{Value, json};

use crate::{
    args::Tokenize,
    artifact,
    connect::{Connection, Target},
    error::{Failure, Outcome},
    ui,
};

/// Limit for a tokenizer; today's have up to some tens of MiB.
const MAX_TOKENIZER: u64 = 256 << 20;
const MAX_INPUT: u64 = 4 << 30;

pub(crate) async fn run(connection: &Connection, args: Tokenize) -> Outcome {
    let target = connection.target(&args.name)?;
    let tokenizer = load_tokenizer(&target).await?;
    let text = match args.text {
        Some(text) => text,
        None => {
            let mut input = Vec::new();
            std::io::stdin().lock().take(MAX_INPUT).read_to_end(&mut input)?;
            String::from_utf8(input)
                .map_err(|error| Failure::with_source("standard input is not UTF-8", &error))?
        }
    };
    if args.decode {
        let ids = parse_ids(&text)?;
        let ids: Vec<u32> =
            ids.into_iter().filter(|id| !(args.no_special && tokenizer.is_special(*id))).collect();
        let bytes =
            tokenizer.decode(&ids).map_err(|error| Failure::with_source("cannot decode the ids", &error))?;
        if args.json {
            return ui::json(&json!({ "text": String::from_utf8_lossy(&bytes) }));
        }
        return ui::print_bytes(&bytes);
    }
    let ids = if text.is_empty() {
        Vec::new()
    } else {
        tokenizer
            .encode(&text, !args.no_special)
            .map_err(|error| Failure::with_source("cannot tokenize the text", &error))?
    };
    if args.json {
        return ui::json(&json!({ "ids": ids }));
    }
    let mut lines = String::with_capacity(ids.len() * 6);
    for id in ids {
        lines.push_str(&id.to_string());
        lines.push('\n');
    }
    ui::print_bytes(lines.as_bytes())
}

/// Loads the model's tokenizer, from the metadata of a GGUF or from tokenizer.json.
pub(crate) async fn load_tokenizer(target: &Target) -> Outcome<Tokenizer> {
    let raw = target
        .registry
        .manifest_get(&target.repository, &target.reference)
        .await
        .map_err(|error| target.not_found(error))?;
    let manifest = Manifest::parse(Some(&raw.media_type), &raw.bytes)
        .map_err(|error| Failure::with_source(format!("the manifest of {target}"), &error))?;
    let artifact = artifact::read(target, &manifest).await?;
    let about = |error: TokenizerError| Failure::with_source(format!("the tokenizer of {target}"), &error);
    if artifact.format() == Some("gguf") {
        for at in artifact.weights() {
            // Only the first file of a split GGUF has the vocabulary.
            let header = artifact::gguf_header(target, &artifact.files[at]).await?;
            match gguf::read(&header.metadata) {
                Err(TokenizerError::NoVocabulary) => {}
                read => return read.map(|(tokenizer, _)| tokenizer).map_err(about),
            }
        }
    }
    let is_tokenizer = |file: &&ModelFile| {
        let path = file.path.as_deref().unwrap_or_default();
        file.is_plain() && (path == "tokenizer.json" || path.ends_with("/tokenizer.json"))
    };
    let file = artifact.find("tokenizer.json").or_else(|| artifact.files.iter().find(is_tokenizer));
    let file = file.ok_or_else(|| {
        let has = if artifact.format() == Some("gguf") { "no vocabulary" } else { "no tokenizer.json" };
        Failure::new(format!("{target} has {has}")).hint(format!("`lode show {target}` describes it"))
    })?;
    let digest = &file.layer.digest;
    let bytes = if file.is_layer() {
        target.registry.blob_bytes(&target.repository, digest, MAX_TOKENIZER).await?
    } else if file.size <= MAX_TOKENIZER {
        let range = file.offset..file.offset.saturating_add(file.size);
        target.registry.blob_range(&target.repository, digest, range).await?
    } else {
        return Err(Failure::new(format!(
            "the tokenizer of {target} has {} bytes; expected at most {MAX_TOKENIZER}",
            file.size
        )));
    };
    Tokenizer::from_json(&bytes).map_err(about)
}

/// Parses ids separated by whitespace or commas, or the JSON output of this command.
fn parse_ids(text: &str) -> Outcome<Vec<u32>> {
    let not_ids = |what: &str| {
        let shown: String = what.chars().take(40).collect();
        Failure::new(format!("`{shown}` is not a token id")).hint("ids are whole numbers, or {\"ids\":[...]}")
    };
    if let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str::<Value>(text) {
        let list = value.get("ids").unwrap_or(&value);
        let list = list.as_array().ok_or_else(|| not_ids(text.trim()))?;
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        return list.iter().map(|value| id(value).ok_or_else(|| not_ids(&value.to_string()))).collect();
    }
    text.split(|separator: char| separator.is_whitespace() || separator == ',')
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().map_err(|_| not_ids(word)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_in_every_spelling() {
        let check = |text: &str, expect: Option<&[u32]>| {
            assert_eq!(parse_ids(text).ok().as_deref(), expect, "{text:?}");
        };
        check("", Some(&[]));
        check("1\n2\n3\n", Some(&[1, 2, 3]));
        check("1, 2  3", Some(&[1, 2, 3]));
        check("{\"ids\":[4,5]}", Some(&[4, 5]));
        check("[6]", Some(&[6]));
        check("1 x", None);
        check("-1", None);
        check("4294967296", None);
        check("{\"ids\":[-1]}", None);
        check("{\"id\":[1]}", None);
    }
}
