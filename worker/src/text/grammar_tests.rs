use std::cell::Cell;

use serde_json::json;

use super::*;
use crate::text::constraint::{apply_mask, continues_tag, extend_mask};
use crate::text::reply::{Reader, ReplyFormat, Tags};
use crate::text::{Constraint, Sampler, SamplerOptions, Tokenizer};

const EOS: u32 = 2;
/// Far more than any response here needs.
const LONGEST: usize = 4000;

fn demo() -> Arc<Tokenizer> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/lode-demo/tokenizer.json");
    Arc::new(Tokenizer::from_json(&std::fs::read(path).unwrap()).unwrap())
}

/// Grammars, and the constraint that applies their masks, in one process.
struct Both {
    grammars: GrammarCompiler,
    vocabulary: Arc<Vocabulary>,
}

struct Grammar {
    matching: GrammarState,
    constraint: Constraint,
    vocabulary: Arc<Vocabulary>,
}

impl Both {
    fn of(tokenizer: &Tokenizer, eos: &BTreeSet<u32>) -> Result<Both, GrammarError> {
        let vocabulary = tokenizer.vocabulary().clone();
        Ok(Both { grammars: GrammarCompiler::new(&vocabulary, eos)?, vocabulary })
    }

    fn grammar(
        &self,
        schema: Map<String, Value>,
        reader: &Reader,
        may_think: bool,
    ) -> Result<Grammar, GrammarError> {
        let (matching, allowed) = self.grammars.begin(schema)?;
        let (vocabulary, eos) = (self.vocabulary.clone(), Arc::new(BTreeSet::from([EOS])));
        let constraint = Constraint::new(allowed, reader, may_think, vocabulary.clone(), eos);
        Ok(Grammar { matching, constraint, vocabulary })
    }
}

impl Grammar {
    fn sample(&mut self, sampler: &mut Sampler, logits: &[f32]) -> Result<u32, GrammarError> {
        let picked = self
            .constraint
            .sample(sampler, logits)
            .map_err(|error| GrammarError::GrammarFailed(error.to_string()))?;
        if picked.is_content {
            self.constraint.set_allowed(self.matching.take(picked.id)?);
        }
        Ok(picked.id)
    }

    fn is_complete(&self) -> bool {
        self.constraint.is_complete()
    }
}

fn grammars() -> Both {
    Both::of(&demo(), &BTreeSet::from([EOS])).unwrap()
}

fn object(schema: Value) -> Map<String, Value> {
    let Value::Object(schema) = schema else { panic!("{schema}") };
    schema
}

/// Generates text from the allowed ids with the highest `wish`, which depends on the text so far. Also
/// returns whether the text is complete.
fn write(mut grammar: Grammar, mut wish: impl FnMut(&[u8], u32, &[u8]) -> f32) -> (String, bool) {
    let vocabulary = grammar.vocabulary.clone();
    let mut sampler =
        Sampler::new(SamplerOptions { temperature: 0.0, ..SamplerOptions::default() }, usize::MAX);
    let mut bytes = Vec::new();
    for _ in 0..LONGEST {
        let row: Vec<f32> =
            (0..vocabulary.len() as u32).map(|id| wish(&bytes, id, vocabulary.bytes(id))).collect();
        let id = grammar.sample(&mut sampler, &row).unwrap();
        if id == EOS {
            return (String::from_utf8(bytes).unwrap(), true);
        }
        bytes.extend_from_slice(vocabulary.bytes(id));
        if grammar.is_complete() {
            return (String::from_utf8(bytes).unwrap(), true);
        }
    }
    (String::from_utf8_lossy(&bytes).into_owned(), false)
}

/// Wishes for a given text as far as the grammar allows.
fn script(wanted: &str) -> impl FnMut(&[u8], u32, &[u8]) -> f32 {
    move |bytes, id, token| match wanted.as_bytes().strip_prefix(bytes) {
        Some([]) if id == EOS => 100.0,
        Some(rest) if !token.is_empty() && rest.starts_with(token) => token.len() as f32,
        _ => -1.0,
    }
}

#[test]
fn random_output_matches_the_schema() {
    let grammars = grammars();
    type Check = fn(&Value) -> bool;
    let schemas: [(Value, Check); 8] = [
        (json!({"type": "object"}), Value::is_object),
        (
            json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "size": {"type": "integer", "minimum": 3, "maximum": 70}},
                "required": ["city", "size"], "additionalProperties": false}),
            |value| {
                let (city, size) = (value["city"].as_str().unwrap(), value["size"].as_i64().unwrap());
                value.as_object().unwrap().len() == 2
                    && city.chars().count() <= 20
                    && (3..=70).contains(&size)
            },
        ),
        (json!({"enum": ["red", "green", 7, null]}), |value| {
            [json!("red"), json!("green"), json!(7), Value::Null].contains(value)
        }),
        (json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}), |value| {
            let items = value.as_array().unwrap();
            (2..=5).contains(&items.len()) && items.iter().all(Value::is_boolean)
        }),
        (json!({"type": "string", "pattern": "^[a-c]{2,4}-[0-9]$"}), |value| {
            let (letters, digit) = value.as_str().unwrap().split_once('-').unwrap();
            (2..=4).contains(&letters.len())
                && letters.bytes().all(|byte| (b'a'..=b'c').contains(&byte))
                && digit.len() == 1
                && digit.as_bytes()[0].is_ascii_digit()
        }),
        (json!({"anyOf": [{"type": "null"}, {"type": "number"}]}), |value| {
            value.is_null() || value.is_number()
        }),
        // A nested class, as written by pydantic.
        (
            json!({"$defs": {"Pet": {"properties": {"kind": {"const": "cat", "title": "Kind", "type": "string"}}, "required": ["kind"], "title": "Pet",
                "type": "object", "additionalProperties": false}}, "properties": {"pet": {"$ref": "#/$defs/Pet"}}, "required": ["pet"], "title": "Owner",
                "type": "object", "additionalProperties": false}),
            |value| *value == json!({"pet": {"kind": "cat"}}),
        ),
        // A recursive definition.
        (
            json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
                "required": ["next"], "additionalProperties": false}}}),
            |value| value.get("next").is_some(),
        ),
    ];
    for (schema, check) in schemas {
        for seed in 1..=12u64 {
            let grammar = grammars.grammar(object(schema.clone()), &Reader::default(), true).unwrap();
            let random = Cell::new(seed);
            let (text, is_whole) = write(grammar, |_, id, token| {
                random.set(
                    random
                        .get()
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407),
                );
                let chance = (random.get() >> 40) as f32 / (1 << 24) as f32;
                // Prefer closing characters, so that the text ends.
                let closes = token.iter().filter(|byte| b"\"]}".contains(byte)).count() as f32;
                chance + closes * 0.8 + if id == EOS { 0.9 } else { 0.0 }
            });
            assert!(is_whole, "{schema}: {text}");
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(check(&value), "{schema}: {text}");
        }
    }
}

#[test]
fn valid_text_is_unchanged() {
    let grammars = grammars();
    let schema =
        json!({"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}});
    for fits in [
        r#"{"city": "Paris", "n": -3}"#,
        r#"{"city":"Zürich \"\u00e9\" 東京 🦀"}"#,
        "{\n  \"city\": \"Rome\",\n  \"n\": 0\n}",
        "{}",
    ] {
        let grammar = grammars.grammar(object(schema.clone()), &Reader::default(), true).unwrap();
        assert_eq!(write(grammar, script(fits)), (fits.to_owned(), true));
    }
    // Unnamed properties are generated only if the schema allows them explicitly.
    let others = r#"{"city": "", "more": [1, {"a": null}]}"#;
    let open =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": true});
    for open in [open, json!({"type": "object"})] {
        let grammar = grammars.grammar(object(open), &Reader::default(), true).unwrap();
        assert_eq!(write(grammar, script(others)), (others.to_owned(), true));
    }
    let closed = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let grammar = grammars.grammar(object(closed), &Reader::default(), true).unwrap();
    assert!(!write(grammar, script(others)).0.contains("more"));
    // Text that does not match is not begun, and complete text does not continue.
    let grammar = grammars.grammar(object(schema.clone()), &Reader::default(), true).unwrap();
    let (text, _) = write(grammar, script("Sure! {\"n\": 1}"));
    assert!(text.starts_with('{'), "{text}");
    let grammar = grammars.grammar(object(schema), &Reader::default(), true).unwrap();
    assert_eq!(write(grammar, script("{\"n\": 1}\n\nThat is it.")).0, "{\"n\": 1}");
}

#[test]
fn whitespace_is_limited() {
    let schema = json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 3});
    let grammar = grammars().grammar(object(schema), &Reader::default(), true).unwrap();
    let (text, is_whole) = write(grammar, |_, _, token| {
        token.iter().filter(|byte| byte.is_ascii_whitespace()).count() as f32 * 10.0
            + token.iter().filter(|byte| **byte == b']').count() as f32
    });
    assert!(is_whole && text.len() < 200, "{text:?}");
    serde_json::from_str::<Value>(&text).unwrap();
}

fn thinker() -> Reader {
    let tags = Tags { open: "<think>".into(), close: "</think>".into() };
    ReplyFormat::reasoning_only(tags).reader(false, None)
}

#[test]
fn reasoning_is_not_constrained() {
    let grammars = grammars();
    let schema = || object(json!({"type": "object", "properties": {"n": {"type": "integer"}}}));
    let thought = |wanted: &str, may_think: bool| {
        write(grammars.grammar(schema(), &thinker(), may_think).unwrap(), script(wanted))
    };
    for whole in ["<think>\nHm, {1}.\n</think>\n\n{\"n\": 1}", "<think></think>{\"n\":1}", "{\"n\": 1}"] {
        assert_eq!(thought(whole, true), (whole.to_owned(), true));
    }
    // Whitespace is limited there as well.
    let (text, _) = thought(&format!("<think></think>{}{{}}", "\n \n ".repeat(50)), true);
    assert!(text.len() < 100 || text.contains('{'), "{text}");
    // The content follows the reasoning, even if the model prefers other text.
    let (text, _) = thought("<think>Hm.</think>Sure: 1", true);
    assert!(text.starts_with("<think>Hm.</think>{"), "{text}");
    // Reasoning alone is not a complete response.
    let (text, _) = thought("<think>Hm.", true);
    assert!(text.len() > "<think>Hm.".len(), "{text}");
    // A text that is not the tag, and a tag that is not allowed.
    assert!(thought("<thanks>", true).0.starts_with("<think>"));
    assert!(thought("<think>Hm.</think>{\"n\": 1}", false).0.starts_with('{'));
}

#[test]
fn the_opening_of_the_content_is_fixed() {
    let grammars = grammars();
    let opening = demo().encode("[CALL]", false).unwrap();
    assert!(opening.len() > 1);
    let called = |wanted: &str, may_think: bool| {
        let schema =
            object(json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}));
        let mut grammar = grammars.grammar(schema, &thinker(), may_think).unwrap();
        grammar.constraint = grammar.constraint.with_opening(opening.clone());
        write(grammar, script(wanted))
    };
    for whole in ["[CALL]{\"n\": 1}", "<think>Hm, {1}.</think>\n[CALL]{\"n\":1}"] {
        assert_eq!(called(whole, true), (whole.to_owned(), true));
    }
    // Whatever text the model prefers.
    assert!(called("Sure: 1", false).0.starts_with("[CALL]{"));
    let (text, _) = called("<think>Hm.</think>Sure", true);
    let content = text.strip_prefix("<think>Hm.</think>").map(str::trim_start);
    assert!(content.is_some_and(|content| content.starts_with("[CALL]{")), "{text}");
}

#[test]
fn continued_tags() {
    for (begun, token, expect) in [
        ("", "<", true),
        ("", "\n<thi", true),
        ("", "\n", false),
        ("", "<think>{", true),
        ("", "<a", false),
        ("<thi", "nk>", true),
        ("<thi", " nk>", false),
        ("<thi", "", false),
    ] {
        assert_eq!(continues_tag("<think>", begun, token.as_bytes()), expect, "{begun:?} {token:?}");
    }
    let tag = "\u{25c1}think";
    assert!(continues_tag(tag, "", "\u{25c1}".as_bytes()) && continues_tag(tag, "\u{25c1}", b"thi"));
    assert!(!continues_tag(tag, "", &tag.as_bytes()[..2]));
}

#[test]
fn masked_ids_are_excluded() {
    let mut mask = vec![0, u32::MAX];
    extend_mask(&mut mask, 100, |id| id == 3 || id == 99);
    let mut row = vec![1.0; 140];
    apply_mask(&mut row, &mask);
    let kept: Vec<usize> = (0..140).filter(|at| row[*at] == 1.0).collect();
    assert_eq!(kept, [3].into_iter().chain(32..64).chain([99]).collect::<Vec<_>>());
}

#[test]
fn schemas_that_cannot_be_met_are_refused() {
    let grammars = grammars();
    for (schema, expect) in [
        (json!({"type": "thing"}), "thing"),
        (json!({"$ref": "#/$defs/none"}), "none"),
        (json!({"$ref": "https://example.org/schema.json"}), "example.org"),
        (json!({"type": "integer", "minimum": 4, "maximum": 3}), ""),
        (json!({"type": "string", "pattern": "("}), ""),
        (json!({"type": "string", "format": "no such thing"}), "no such thing"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "properties": 3}), ""),
        (json!({"enum": []}), ""),
        (json!({"$ref": "#"}), ""),
        (json!({"enum": ["x".repeat(MAX_SCHEMA_BYTES)]}), "expected at most 131072"),
    ] {
        let refused = grammars.grammar(object(schema.clone()), &Reader::default(), true);
        let Err(error @ GrammarError::Schema(_)) = refused else { panic!("{schema} is accepted") };
        let text = error.to_string();
        assert!(text.starts_with("invalid format: ") && text.contains(expect), "{schema}: {text}");
        assert!(text.len() < 600 && !text.contains('\n'), "{text}");
    }
}

/// Runs on a thread with the stack size of those that read requests in the runner.
#[test]
fn hostile_schemas_end() {
    let deep = |key: &str| (0..100).fold(json!({"type": "null"}), |schema, _| json!({key: schema}));
    let deep_list = |key: &str| (0..60).fold(json!({"type": "null"}), |schema, _| json!({key: [schema]}));
    let many: Map<String, Value> =
        (0..2000).map(|at| (format!("key{at}"), json!({"type": "string"}))).collect();
    let doubled: Map<String, Value> = (0..40)
        .map(|at| {
            let next = format!("#/$defs/d{}", at + 1);
            (format!("d{at}"), json!({"allOf": [{"$ref": next}, {"$ref": next}]}))
        })
        .chain([("d40".to_owned(), json!({"type": "null"}))])
        .collect();
    for schema in [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        json!({"$defs": doubled, "$ref": "#/$defs/d0"}),
        deep("not"),
        deep("items"),
        deep("additionalProperties"),
        deep_list("allOf"),
        deep_list("anyOf"),
        deep_list("oneOf"),
        json!({"type": "object", "properties": many, "additionalProperties": false}),
        json!({"type": "string", "minLength": 1_000_000_000, "maxLength": 2_000_000_000}),
        json!({"type": "array", "items": {"type": "null"}, "minItems": 1_000_000_000}),
        json!({"type": "string", "pattern": "((((a{100}){100}){100}){100}){100}"}),
        json!({"type": "string", "pattern": "(a|b|ab|ba)*c(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)"}),
        json!({"type": "integer", "multipleOf": 1_000_000_007, "minimum": 1e300}),
        json!({"enum": (0..20_000).collect::<Vec<_>>()}),
        json!({"x-guidance": {"whitespace_flexible": 3}, "type": "null"}),
        json!({"type": "object", "patternProperties": {"(": {}}}),
    ] {
        let grammars = grammars();
        let kept = schema.clone();
        let work = move || match grammars.grammar(object(schema), &Reader::default(), true) {
            // The schema may be satisfiable or not; the worst case is a failed response.
            Ok(mut grammar) => {
                let mut sampler = Sampler::new(SamplerOptions::default(), 10);
                let row = vec![0.0; grammar.vocabulary.len()];
                for _ in 0..20 {
                    if grammar.is_complete() || grammar.sample(&mut sampler, &row).is_err() {
                        break;
                    }
                }
            }
            Err(error) => assert!(matches!(error, GrammarError::Schema(_)), "{error}"),
        };
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap();
        thread.join().unwrap_or_else(|_| panic!("{kept}"));
    }
}

#[test]
fn a_vocabulary_that_is_too_large_is_refused() {
    // A single long token is never generated; too many of them exceed the limit.
    let long = "a".repeat(MAX_TOKEN_BYTES);
    let fits = "b".repeat(MAX_TOKEN_BYTES - 1);
    let of = |tokens: Vec<String>| {
        let vocab: Map<String, Value> =
            tokens.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
        let json =
            json!({"model": {"type": "BPE", "vocab": vocab, "merges": []}, "decoder": {"type": "Fuse"}});
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).unwrap();
        Both::of(&tokenizer, &BTreeSet::new())
    };
    let grammars = of(vec!["{".into(), "}".into(), long, fits]).unwrap();
    let grammar = grammars.grammar(object(json!({"type": "object"})), &Reader::default(), true).unwrap();
    assert_eq!(write(grammar, |_, id, _| id as f32), ("{}".to_owned(), true));
    let many = (0..4200).map(|at| format!("{at}{}", "c".repeat(1000))).collect();
    assert!(matches!(of(many), Err(GrammarError::Vocabulary)));
    // No token that JSON can begin with.
    let grammars = of(vec!["a".into(), "b".into()]).unwrap();
    let refused = grammars.grammar(object(json!({"type": "object"})), &Reader::default(), true);
    assert!(matches!(refused, Err(GrammarError::Schema(_))));
}
